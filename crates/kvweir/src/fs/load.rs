//! Loading blocks with files of their own. Bytes go straight into the slot, or, where the file system may hang, into a
//! buffer and from there; size, trailer, full key, namespace and, with `verify`, the checksum are compared before the
//! block is reported good (I2). A file of exactly a block's length is a stock tier's and has nothing to be compared with
//! but its size, unless it is known to have had a trailer. What cannot be proved wrong, a later version's trailer
//! included, keeps its file but is no hit any more; what is provably wrong goes, file and account together. Either way
//! the failed block is a miss until stored again. Packed blocks are loaded in `pack/load.rs`.

use std::{
    io,
    ops::Range,
    path::Path,
    sync::{Arc, atomic::Ordering},
};

use smallvec::SmallVec;

use super::{
    deferred::{Order, Run},
    files::pieces::{PIECE, read_in_pieces},
    shared::Shared,
};
use crate::{
    block::{Fingerprint, Key},
    catalog::index::{BATCH, State},
    clock::Instant,
    error::{ErrorKind, IoClass, classify},
    evict::Id,
    io::{
        SlotWrite,
        disk::{OpenMode, read_full},
        engine::Engine,
        is_aligned,
        pool::{Work, Worker},
    },
    jobs::{progress::Progress, watchdog::Abandon},
    metrics::{EvictReason, RefuseReason},
    root::{
        names::Location,
        trailer::{TRAILER_BYTES, decode, payload_sum, version},
    },
    sync::{Mutex, lock},
    tier::{BlockOutcome, Direction, LoadBlock, RequestId, Verified},
};

/// A load job on its way through the workers.
pub(crate) struct LoadRun {
    pub(crate) shared: Arc<Shared>,
    req: RequestId,
    pub(crate) keys: Vec<Key>,
    fps: Vec<Fingerprint>,
    /// The entries pinned for this job; `None` where the block was not resident at submission.
    pub(crate) ids: Vec<Mutex<Option<Id>>>,
    slots: Vec<Mutex<Option<SlotWrite>>>,
    pub(crate) progress: Arc<Progress>,
}

/// Why a block is not good.
enum Bad {
    /// Not there.
    Gone,
    /// Provably not the block.
    Corrupt(&'static str),
    /// A later version's, in a format that this one does not read.
    Newer(String),
    /// The device failed, or the job was given up; nothing is proved.
    Failed(io::Error),
}

/// What a read brought: bytes read, and how they were checked.
type Good = (usize, Verified);

impl Run for LoadRun {
    type Block = LoadBlock;
    const DIRECTION: Direction = Direction::Load;

    fn new(shared: &Arc<Shared>, mut order: Order, blocks: Vec<LoadBlock>) -> Arc<Self> {
        let (keys, slots): (Vec<Key>, _) = blocks
            .into_iter()
            .map(|b| (b.key, Mutex::new(Some(b.slot))))
            .unzip();
        let fps: Vec<_> = keys.iter().map(|k| shared.fingerprint(k)).collect();
        let mut ids = Vec::with_capacity(fps.len());
        for part in fps.chunks(BATCH) {
            let mut core = lock(&shared.core);
            ids.extend(part.iter().map(|&fp| {
                let id = core.ready(fp);
                if let Some(id) = id {
                    core.pin_for_job(&mut order.held, id);
                }
                Mutex::new(id)
            }));
        }
        lock(&shared.core).give_back(order.req, order.held);
        Arc::new(Self {
            shared: Arc::clone(shared),
            req: order.req,
            keys,
            fps,
            ids,
            slots,
            progress: order.progress,
        })
    }

    fn refuse(&self, kind: ErrorKind, _: RefuseReason) {
        (0..self.keys.len()).for_each(|u| self.finish(u, BlockOutcome::Failed(kind)));
    }
}

impl LoadRun {
    pub(crate) fn finish(&self, unit: usize, outcome: BlockOutcome) {
        if let Some(slot) = self.slots.get(unit) {
            drop(lock(slot).take());
        }
        self.finish_all(&[(unit, outcome)]);
    }

    /// As [`finish`](Self::finish), for blocks that ended together.
    pub(crate) fn finish_all(&self, ends: &[(usize, BlockOutcome)]) {
        {
            let taken: SmallVec<[(Option<Id>, bool); 1]> = ends
                .iter()
                .map(|&(unit, _)| {
                    let id = self.ids.get(unit).and_then(|i| lock(i).take());
                    (id, self.progress.is_open(unit))
                })
                .collect();
            let mut core = lock(&self.shared.core);
            for (&(_, outcome), (id, in_time)) in ends.iter().zip(taken) {
                if let Some(id) = id {
                    core.unpin(id);
                }
                match outcome {
                    _ if !in_time => {}
                    BlockOutcome::Loaded(_) => core.stats.loaded_blocks += 1,
                    _ => core.stats.load_failures += 1,
                }
            }
        }
        let end = self.progress.finish_all(ends);
        if let Some(job) = &end.0 {
            lock(&self.shared.core).stats.loaded_bytes += job.report.bytes;
        }
        self.shared.end_units(end, Direction::Load, self.req, &self.fps);
    }

    /// Whether the memory that a block is to go to has the length of a block here.
    pub(crate) fn fits(&self, unit: usize) -> bool {
        let len = self.shared.params.block_len;
        let slot = self.slots.get(unit).map(lock);
        slot.is_some_and(|s| s.as_ref().is_none_or(|s| s.len() == len))
    }

    pub(crate) fn load(&self, unit: usize, worker: &mut Worker) -> BlockOutcome {
        let s = &*self.shared;
        if !self.fits(unit) {
            // says nothing of what lies there
            return BlockOutcome::Failed(ErrorKind::Invalid);
        }
        let (Some(key), Some(ids)) = (self.keys.get(unit), self.ids.get(unit)) else {
            return BlockOutcome::Failed(ErrorKind::Invalid);
        };
        let id = *lock(ids);
        if id.is_none() && s.params.bounded {
            // the index of an owned root is the truth: it was evicted or never there
            return BlockOutcome::Failed(ErrorKind::Unavailable);
        }
        let trailed = id.is_some_and(|id| lock(&s.core).index.has_trailer(id));
        self.progress.begin_io(s.clock.now());
        let read = if s.bounce.on {
            self.read_bounced(unit, key, trailed, worker)
        } else {
            // the worker has the slot until its I/O has ended, reported or not (I5)
            match self.take_slot(unit) {
                Some(mut slot) => self.read(key, trailed, &mut slot, worker),
                None => Err(Bad::Failed(io::ErrorKind::TimedOut.into())),
            }
        };
        self.progress
            .end_io(s.clock.now(), read.as_ref().map_or(0, |&(n, _)| n as u64));
        match read {
            Ok((_, verified)) => BlockOutcome::Loaded(verified),
            Err(bad) => {
                if matches!(&bad, Bad::Failed(e) if classify(e).blames_device()) {
                    self.progress.blame();
                }
                self.fail(id, key, &bad)
            }
        }
    }

    pub(crate) fn take_slot(&self, unit: usize) -> Option<SlotWrite> {
        self.slots.get(unit).and_then(|x| lock(x).take())
    }

    /// Reads into a buffer of the tier. The slot is touched only while the job cannot be given up.
    fn read_bounced(&self, unit: usize, key: &Key, trailed: bool, worker: &mut Worker) -> Result<Good, Bad> {
        let read = self.shared.bounce.with(|buffer| {
            let good = self.read(key, trailed, buffer, worker)?;
            let copied = self.progress.touch(|| {
                let mut slot = self.take_slot(unit)?;
                slot.copy_from_slice(buffer);
                Some(())
            });
            match copied {
                Ok(Some(())) => Ok(good),
                Ok(None) => Err(Bad::Failed(io::ErrorKind::TimedOut.into())),
                Err(e) => Err(Bad::Failed(e)),
            }
        });
        read.unwrap_or_else(|e| Err(Bad::Failed(e)))
    }

    /// Reads the file and compares everything; returns the bytes read.
    fn read(&self, key: &Key, trailed: bool, slot: &mut [u8], worker: &mut Worker) -> Result<Good, Bad> {
        let s = &*self.shared;
        let at = Location::of(key);
        let path = s.leaf_of(&at).join(at.file_name());
        let (engine, page) = (&mut *worker.engine, worker.scratch.as_mut_slice());
        let page = page.get_mut(..TRAILER_BYTES).unwrap_or_default();
        let (n, sum) = self.read_file(&path, slot, page, engine)?;
        let (len, whole) = (slot.len(), slot.len() + TRAILER_BYTES);
        if n == len && !trailed {
            return Ok((n, Verified::SizeOnly));
        }
        if n != whole {
            return Err(Bad::Corrupt("the file has the wrong size"));
        }
        let Some(t) = decode(page) else {
            let claims = page.first_chunk().and_then(version);
            return Err(claims.map_or(Bad::Corrupt("the trailer is damaged"), Bad::Newer));
        };
        if t.key != *key || t.namespace != *s.ns.digest() || t.block_len != len as u64 {
            return Err(Bad::Corrupt("the file holds another block"));
        }
        if !s.params.verify {
            return Ok((n, Verified::SizeOnly));
        }
        if sum.unwrap_or_else(|| payload_sum(slot)) != t.payload_sum {
            return Err(Bad::Corrupt("the checksum does not match"));
        }
        Ok((n, Verified::Checksum))
    }

    /// The bytes read and, where it could be had on the way, the checksum of the block.
    fn read_file(
        &self,
        path: &Path,
        slot: &mut [u8],
        page: &mut [u8],
        engine: &mut dyn Engine,
    ) -> Result<(usize, Option<u128>), Bad> {
        let s = &*self.shared;
        let aligned = is_aligned(slot);
        let mut attempt = |direct: bool| -> io::Result<_> {
            let file = s.disk.open(path, OpenMode::Read, direct)?;
            // through the page cache a plain call is cheaper
            if direct && engine.overlaps() && slot.len() > PIECE {
                return read_in_pieces(&*file, slot, page, engine, s.params.verify);
            }
            Ok((read_full(&*file, slot, page)?, None))
        };
        let mut read = Err(io::ErrorKind::Unsupported.into());
        if aligned && s.direct.load(Ordering::Relaxed) {
            read = attempt(true);
        }
        if matches!(&read, Err(e) if classify(e) == IoClass::Invalid) {
            read = attempt(false);
        }
        read.map_err(|e| match classify(&e) {
            IoClass::Gone => Bad::Gone,
            IoClass::Corrupt => Bad::Corrupt("the file system says that its bytes are lost"),
            _ => Bad::Failed(e),
        })
    }

    /// Makes a block that did not load a miss.
    fn fail(&self, id: Option<Id>, key: &Key, bad: &Bad) -> BlockOutcome {
        let s = &*self.shared;
        let (kind, what, why) = match bad {
            Bad::Gone => (
                ErrorKind::Unavailable,
                "a block's file is gone: a miss until it is stored again",
                String::new(),
            ),
            Bad::Corrupt(why) => (
                ErrorKind::Corrupt,
                "a block is damaged: a miss until it is stored again",
                (*why).to_owned(),
            ),
            Bad::Newer(version) => (
                ErrorKind::Unavailable,
                "a block was written by a later version in a format that this one does not read: a miss until it is stored \
                 again",
                version.clone(),
            ),
            Bad::Failed(e) => (
                match classify(e) {
                    IoClass::Transient => ErrorKind::Busy,
                    _ => ErrorKind::Unavailable,
                },
                "a block could not be read: a miss until it is stored again",
                e.to_string(),
            ),
        };
        if s.told.is_new(what, s.clock.now(), 1) {
            tracing::warn!(tier = %s.params.name, %key, why, "{what}");
        }
        let victim = {
            let mut core = lock(&s.core);
            if matches!(bad, Bad::Corrupt(_)) {
                core.stats.verification_failures += 1;
            }
            if let Some(id) = id {
                // its owner finds out for itself
                core.forget_peer(id);
            }
            match id.filter(|&id| core.index.state(id) == State::Ready) {
                Some(id)
                    if matches!(bad, Bad::Failed(_) | Bad::Newer(_))
                        || s.params.read_only && matches!(bad, Bad::Corrupt(_)) =>
                {
                    core.policy.remove(id);
                    core.keep(id, true);
                    None
                }
                Some(id) => core.begin_removal(id),
                None => None,
            }
        };
        if let Some(v) = victim {
            let reason = if kind == ErrorKind::Corrupt {
                EvictReason::Corrupt
            } else {
                EvictReason::External
            };
            s.remove_victim(&v, reason, true);
        }
        BlockOutcome::Failed(kind)
    }
}

impl Work for LoadRun {
    fn run(&self, unit: usize, worker: &mut Worker) {
        let s = &*self.shared;
        if s.guard.is_tripped() {
            return self.cancel(unit);
        }
        if self.progress.start(unit, s.clock.now()) {
            let outcome = self.load(unit, worker);
            self.finish(unit, outcome);
        }
    }

    fn run_batch(&self, units: Range<usize>, worker: &mut Worker) {
        match &self.shared.pack {
            Some(_) if self.shared.guard.is_tripped() => units.for_each(|u| self.cancel(u)),
            Some(pack) => self.load_packed(pack, units, worker),
            None => units.for_each(|u| self.run(u, worker)),
        }
    }

    fn cancel(&self, unit: usize) {
        let kind = if self.shared.guard.is_tripped() {
            ErrorKind::Unavailable
        } else {
            ErrorKind::Closed
        };
        self.finish(unit, BlockOutcome::Failed(kind));
    }
}

impl Abandon for LoadRun {
    fn progress(&self) -> &Progress {
        &self.progress
    }

    /// A read into the slot of an engine that does not honour guards is waited for: nothing else protects its memory.
    fn give_up(&self, now: Instant, kind: ErrorKind, reason: RefuseReason) {
        let s = &*self.shared;
        let wait = !s.bounce.on && !s.guard.honours_guards;
        let Some(g) = self.progress.give_up(now, kind, wait) else {
            return;
        };
        for &(unit, runs) in &g.cut {
            // a read under way has its slot already, or finds none
            drop(self.take_slot(unit));
            let Some(ids) = self.ids.get(unit) else { continue };
            let mut id = lock(ids);
            let mut core = lock(&s.core);
            core.stats.load_failures += 1;
            if !runs {
                if let Some(id) = id.take() {
                    core.unpin(id);
                }
            } else if let Some(id) = *id {
                // its worker unpins it; until it is stored again it is a miss
                core.forget_peer(id);
                if core.index.state(id) == State::Ready {
                    core.policy_of(id).remove(id);
                    core.keep(id, true);
                }
            }
        }
        s.guard.gave_up(g.hung, g.first, reason);
        if let Some(job) = g.job {
            lock(&s.core).stats.loaded_bytes += job.report.bytes;
            s.end_job(job, now, self.req, &self.fps);
        }
    }
}
