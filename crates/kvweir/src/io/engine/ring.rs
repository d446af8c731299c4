//! Many operations at once through io_uring, from a ring that its worker has for itself. Nothing is allocated for an
//! operation: the arrays of addresses are those of the runs, and whose a completion is its index in the batch tells. A
//! ring that breaks is dropped, and the runs end by plain calls.

#![expect(unsafe_code, reason = "hands addresses to the kernel")]

use std::{
    fmt, io,
    thread::{self, ThreadId},
};

use io_uring::{IoUring, opcode, squeue};

use super::{
    Ended, Engine, EngineKind, Piece, ReadRun, Run, Tally, WriteRun,
    fixed::{Fixed, descriptor},
    flight::Flight,
};
use crate::io::Region;

/// What the kernel moves at most in one operation (`MAX_RW_COUNT`), on all its page sizes.
const MAX_BYTES: usize = 0x7fff_0000;

/// A ring of `entries` operations that is still disabled where its flags say so ([`enable`]).
pub(super) fn create(entries: u32) -> io::Result<IoUring> {
    // who waits for completions works them off and is never interrupted (6.1); is not interrupted (5.19); as ever
    let invalid = |e: &io::Error| e.raw_os_error() == Some(libc::EINVAL);
    IoUring::builder()
        .setup_clamp()
        .setup_r_disabled()
        .setup_single_issuer()
        .setup_defer_taskrun()
        .build(entries)
        .or_else(|e| match invalid(&e) {
            true => IoUring::builder()
                .setup_clamp()
                .setup_coop_taskrun()
                .build(entries),
            false => Err(e),
        })
        .or_else(|e| match invalid(&e) {
            true => IoUring::builder().build(entries),
            false => Err(e),
        })
}

/// Gives a ring of one issuer to this thread.
pub(super) fn enable(ring: &IoUring) -> io::Result<()> {
    match ring.params().is_setup_single_issuer() {
        true => ring.submitter().register_enable_rings(),
        false => Ok(()),
    }
}

struct Ring {
    io: IoUring,
    /// The thread it was enabled on.
    owner: Option<ThreadId>,
    broken: bool,
}

/// io_uring.
pub struct RingEngine {
    ring: Option<Ring>,
    depth: u32,
    // after the ring: the region must outlive it
    fixed: Option<Fixed>,
    tally: Tally,
}

impl RingEngine {
    /// An engine with at most `depth` operations under way. It may be used on another thread than it was made on.
    ///
    /// # Errors
    /// The system's, where it gives no ring; [`probe`](super::probe()) says why in words.
    pub fn new(depth: u32) -> io::Result<Self> {
        let depth = depth.clamp(1, 4096);
        Ok(Self {
            ring: Some(Ring::new(depth)?),
            depth,
            fixed: None,
            tally: Tally::default(),
        })
    }

    #[cfg(test)]
    pub(super) fn ring_of_test(&mut self) -> &mut IoUring {
        let ring = self.ring.as_mut().unwrap();
        assert!(ring.is_mine().unwrap());
        &mut ring.io
    }

    fn run<'b, B: Piece>(
        &mut self,
        batch: &mut [Run<'b, B>],
        ended: &mut impl FnMut(&[Run<'b, B>], usize),
        eager: bool,
    ) {
        if let Err(error) = self.submit(batch, ended, eager) {
            tracing::warn!(%error, "a ring broke: its worker makes plain calls from now on");
            self.ring = None;
        }
        // what has no descriptor, and what a broken ring left
        for n in 0..batch.len() {
            if let Some(run) = batch.get_mut(n).filter(|r| !r.has_ended()) {
                self.tally.called += 1;
                run.call();
                ended(batch, n);
            }
        }
    }

    /// Ends what a ring can end.
    fn submit<'b, B: Piece>(
        &mut self,
        batch: &mut [Run<'b, B>],
        ended: &mut impl FnMut(&[Run<'b, B>], usize),
        eager: bool,
    ) -> io::Result<()> {
        let Some(ring) = self.ring.as_mut() else {
            return Ok(());
        };
        if ring.broken {
            // a batch ended in a panic, and left operations behind whose memory is gone
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        if !ring.is_mine()? {
            *ring = Ring::new(self.depth)?;
            if self.fixed.as_ref().is_some_and(|f| f.enter(&ring.io).is_err()) {
                self.fixed = None;
            }
            ring.is_mine()?;
        }
        let done = {
            let depth = (self.depth as usize).min(ring.io.params().sq_entries() as usize);
            let mut flight = Flight::new(&mut ring.io, &mut ring.broken);
            let mut flown = Flown {
                fixed: self.fixed.as_ref(),
                tally: &mut self.tally,
                ended,
                eager,
            };
            let done = fly(&mut flight, batch, depth, &mut flown);
            self.tally.enters += flight.enters();
            done
        };
        match ring.broken {
            true => done.and(Err(io::ErrorKind::BrokenPipe.into())),
            false => done,
        }
    }
}

/// What goes with a flight.
struct Flown<'a, F> {
    fixed: Option<&'a Fixed>,
    tally: &'a mut Tally,
    ended: &'a mut F,
    /// Whether something is done about each run that ends.
    eager: bool,
}

/// Keeps at most `depth` runs of `batch` under way until all have ended that have a descriptor.
fn fly<'b, B: Piece, F: FnMut(&[Run<'b, B>], usize)>(
    flight: &mut Flight<'_>,
    batch: &mut [Run<'b, B>],
    depth: usize,
    with: &mut Flown<'_, F>,
) -> io::Result<()> {
    let mut next = 0;
    loop {
        while flight.under_way() < depth
            && let Some(run) = batch.get_mut(next)
        {
            let before = run.has_ended();
            run.end_if_empty();
            push(flight, run, next as u64, with.fixed, with.tally);
            if run.has_ended() && !before {
                (with.ended)(batch, next);
            }
            next += 1;
        }
        // who works on what has come wants it at once; else the rest is waited for together, and while more is to
        // come, a quarter leaves the device enough to do
        let want = match flight.under_way() {
            0 => return Ok(()),
            _ if with.eager => 1,
            n if next >= batch.len() => n,
            n => n.div_ceil(4),
        };
        flight.enter(want)?;
        while let Some((whose, outcome)) = flight.next() {
            if let Some(run) = batch.get_mut(whose as usize) {
                run.settle(outcome);
                push(flight, run, whose, with.fixed, with.tally);
                if run.has_ended() {
                    (with.ended)(batch, whose as usize);
                }
            }
        }
    }
}

/// Pushes the next operation of a run, if there is one that a ring can do.
fn push<B: Piece>(
    flight: &mut Flight<'_>,
    run: &mut Run<'_, B>,
    whose: u64,
    fixed: Option<&Fixed>,
    tally: &mut Tally,
) {
    if run.has_ended() {
        return;
    }
    let Some((entry, is_fixed)) = entry(run, fixed) else {
        return;
    };
    // SAFETY: the entry names memory of the run's pieces, the array of its pieces and its file. The batch borrows all
    // of them beyond the life of the flight; the run is touched again when its operation has completed.
    if unsafe { flight.push(&entry.user_data(whose)) } {
        tally.submitted += 1;
        tally.fixed += u64::from(is_fixed);
    }
}

/// The operation that moves the run's window, and whether in registered memory.
fn entry<B: Piece>(run: &mut Run<'_, B>, fixed: Option<&Fixed>) -> Option<(squeue::Entry, bool)> {
    let offset = run.offset();
    // beyond are no offsets of files, and the last of them would mean the file's own position
    i64::try_from(offset).ok()?;
    let fd = descriptor(run.file().fd()?);
    match run.window() {
        [piece] => {
            let (start, len) = (piece.start(), piece.len().min(MAX_BYTES));
            let bytes = len as u32;
            let entry = match (fixed.and_then(|f| f.index(start, len)), B::READS) {
                (Some(i), true) => {
                    let op = opcode::ReadFixed::new(fd, start, bytes, i);
                    return Some((op.offset(offset).build(), true));
                }
                (Some(i), false) => {
                    let op = opcode::WriteFixed::new(fd, start, bytes, i);
                    return Some((op.offset(offset).build(), true));
                }
                (None, true) => opcode::Read::new(fd, start, bytes).offset(offset).build(),
                (None, false) => opcode::Write::new(fd, start, bytes).offset(offset).build(),
            };
            Some((entry, false))
        }
        pieces => {
            // the standard library promises that a piece is laid out as the system's iovec
            let (array, n) = (pieces.as_ptr().cast::<libc::iovec>(), pieces.len() as u32);
            let entry = match B::READS {
                true => opcode::Readv::new(fd, array, n).offset(offset).build(),
                false => opcode::Writev::new(fd, array, n).offset(offset).build(),
            };
            Some((entry, false))
        }
    }
}

impl Ring {
    fn new(depth: u32) -> io::Result<Self> {
        Ok(Self {
            io: create(depth)?,
            owner: None,
            broken: false,
        })
    }

    /// Whether this thread may use it; the first that asks may.
    fn is_mine(&mut self) -> io::Result<bool> {
        let me = thread::current().id();
        match self.owner {
            Some(owner) => Ok(owner == me || !self.io.params().is_setup_single_issuer()),
            None => {
                enable(&self.io)?;
                self.owner = Some(me);
                Ok(true)
            }
        }
    }
}

impl Engine for RingEngine {
    fn name(&self) -> &'static str {
        match self.ring {
            Some(_) => EngineKind::IoUring.as_str(),
            None => EngineKind::Threads.as_str(),
        }
    }

    fn read(&mut self, batch: &mut [ReadRun<'_>]) {
        self.run(batch, &mut |_, _| (), false);
    }

    fn read_each(&mut self, batch: &mut [ReadRun<'_>], ended: &mut Ended<'_>) {
        self.run(batch, &mut |runs, n| ended(runs, n), true);
    }

    fn overlaps(&self) -> bool {
        self.ring.is_some()
    }

    fn write(&mut self, batch: &mut [WriteRun<'_>]) {
        self.run(batch, &mut |_, _| (), false);
    }

    fn register(&mut self, region: &Region) -> bool {
        let Some(ring) = self.ring.as_ref() else {
            return false;
        };
        let fixed = Fixed::new(region);
        let entered = fixed.enter(&ring.io);
        if let Err(error) = &entered {
            tracing::debug!(%error, "memory was not registered: it is looked up for each operation");
            self.tally.refused += 1;
        }
        self.fixed = entered.is_ok().then_some(fixed);
        self.fixed.is_some()
    }

    fn tally(&self) -> Tally {
        self.tally
    }
}

impl fmt::Debug for RingEngine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RingEngine")
            .field("depth", &self.depth)
            .field("ring", &self.ring.is_some())
            .field("fixed", &self.fixed)
            .field("tally", &self.tally)
            .finish()
    }
}
