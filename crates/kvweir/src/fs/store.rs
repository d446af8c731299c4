//! Storing blocks. Per block: present or being written by somebody else? then nothing is written; else room is
//! reserved for the file with its trailer and directories, the file is written under a temporary name that nobody
//! else uses, published by rename, and only then becomes a hit (I1, I2). Every path commits or releases.

use std::{
    io,
    ops::Range,
    path::Path,
    sync::{Arc, Weak, atomic::Ordering},
    time::Duration,
};

use super::{
    core::{Core, Waiter, weight},
    deferred::{Order, Run},
    shared::Shared,
};
use crate::{
    block::{Fingerprint, Key},
    catalog::index::State,
    clock::Instant,
    error::{ErrorKind, IoClass, classify},
    evict::Id,
    io::{
        Disk, DiskFile, PageBuffer, SlotRead, Stat,
        disk::{OpenMode, write_full},
        is_aligned,
        pool::{Work, Worker},
        round_up,
        tree::most_allocated,
    },
    jobs::{progress::Progress, watchdog::Abandon},
    metrics::{EvictReason, RefuseReason},
    root::{
        journal::{Facts, units},
        names::{Location, temp_name},
        trailer::{TRAILER_BYTES, Trailer, encode, payload_sum},
    },
    sync::{Mutex, lock, wait_while},
    tier::{BlockOutcome, Direction, RequestId, StoreBlock},
};

/// Longest wait for another worker's removal of the same block's old file.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(5);

/// A store job on its way through the workers.
pub(crate) struct StoreRun {
    pub(crate) me: Weak<Self>,
    pub(crate) shared: Arc<Shared>,
    pub(crate) req: RequestId,
    pub(crate) keys: Vec<Key>,
    pub(crate) fps: Vec<Fingerprint>,
    pub(crate) slots: Vec<Mutex<Option<SlotRead>>>,
    pub(crate) progress: Arc<Progress>,
    /// This job as the guard knows it.
    pub(crate) job: Weak<dyn Abandon>,
}

/// What to do about one block.
enum Begin {
    /// Write it; an entry and `granted` bytes are reserved.
    Write { id: Id, granted: u64 },
    /// It is there already, and pinned.
    Present(Id),
    /// It is there already, packed.
    Packed,
    /// Another worker writes it and will tell.
    Joined,
    /// Something that is no block lies there: remove it first.
    Replace(Id),
    /// It cannot be stored now.
    Refused(ErrorKind),
}

impl Run for StoreRun {
    type Block = StoreBlock;
    const DIRECTION: Direction = Direction::Store;

    fn new(shared: &Arc<Shared>, order: Order, blocks: Vec<StoreBlock>) -> Arc<Self> {
        let (keys, slots): (Vec<_>, _) = blocks
            .into_iter()
            .map(|b| (b.key, Mutex::new(Some(b.slot))))
            .unzip();
        let fps = keys.iter().map(|k| shared.fingerprint(k)).collect();
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            shared: Arc::clone(shared),
            req: order.req,
            keys,
            fps,
            slots,
            progress: order.progress,
            job: order.job,
        })
    }

    fn refuse(&self, kind: ErrorKind, reason: RefuseReason) {
        lock(&self.shared.core)
            .stats
            .refused(reason, self.keys.len() as u64);
        (0..self.keys.len()).for_each(|u| self.finish(u, BlockOutcome::Failed(kind)));
    }
}

impl StoreRun {
    /// Notes the outcome of a block; the last one sends the report.
    pub(crate) fn finish(&self, unit: usize, outcome: BlockOutcome) {
        if let Some(slot) = self.slots.get(unit) {
            drop(lock(slot).take());
        }
        let end = self.progress.finish(unit, outcome);
        self.shared.end_unit(end, Direction::Store, self.req, &self.fps);
    }

    /// Whether the memory of a block has the length of a block here: what is counted for it goes by that (I1).
    pub(crate) fn fits(&self, unit: usize) -> bool {
        let len = self.shared.params.block_len;
        let slot = self.slots.get(unit).map(lock);
        slot.is_some_and(|s| s.as_ref().is_none_or(|s| s.len() == len))
    }

    fn store(&self, unit: usize, scratch: &mut PageBuffer) -> Option<BlockOutcome> {
        if !self.fits(unit) {
            return Some(BlockOutcome::Failed(ErrorKind::Invalid));
        }
        let (key, fp) = (self.keys.get(unit)?, *self.fps.get(unit)?);
        if self.shared.gives_way() {
            lock(&self.shared.core).stats.refused(RefuseReason::ReadOnly, 1);
            return Some(BlockOutcome::Failed(ErrorKind::Closed));
        }
        let at = Location::of(key);
        let (mut checked, mut replaced) = (false, false);
        let (id, granted) = loop {
            match self.begin(unit, fp, &at) {
                Begin::Write { id, granted } => break (id, granted),
                Begin::Joined => return None,
                Begin::Packed => return Some(BlockOutcome::Present),
                Begin::Refused(kind) => return Some(BlockOutcome::Failed(kind)),
                Begin::Replace(_) if replaced => {
                    // it cannot be removed; trying for ever would cost this worker
                    lock(&self.shared.core).stats.refused(RefuseReason::Io, 1);
                    return Some(BlockOutcome::Failed(ErrorKind::Unavailable));
                }
                Begin::Replace(id) => {
                    replaced = true;
                    self.remove_if(id, State::Bad, EvictReason::Corrupt);
                }
                Begin::Present(id) => {
                    // pinned since it was found, so the file looked at is the entry's own (I3)
                    let right = checked || self.size_is_right(&at);
                    checked = true;
                    if !right {
                        // it went or changed behind our back: forget it, then store anew
                        self.remove_if(id, State::Ready, EvictReason::External);
                    }
                    let mut core = lock(&self.shared.core);
                    core.unpin(id);
                    if right {
                        core.stats.present_blocks += 1;
                        return Some(BlockOutcome::Present);
                    }
                }
            }
        };
        let claim = Claim {
            run: self,
            id,
            granted,
        };
        let slot = self.slots.get(unit).and_then(|s| lock(s).take());
        let written = match slot {
            Some(slot) => self.write(key, &at, &slot, scratch),
            None => Err(io::ErrorKind::InvalidInput.into()),
        };
        std::mem::forget(claim);
        Some(self.settle(id, key, &at, granted, written))
    }

    /// Looks the block up and reserves it. Everything under one hold of the lock but the making of room.
    fn begin(&self, unit: usize, fp: Fingerprint, at: &Location) -> Begin {
        let s = &*self.shared;
        let id = {
            let mut core = lock(&s.core);
            loop {
                if core.closed {
                    return Begin::Refused(ErrorKind::Closed);
                }
                let Some(id) = core.index.find(fp) else { break };
                match core.index.state(id) {
                    State::Ready if core.index.packed(id).is_some() => {
                        core.stats.present_blocks += 1;
                        return Begin::Packed;
                    }
                    // a slot still read, an extent: nothing that a file can take the place of
                    State::Bad if core.index.packed(id).is_some() => return Begin::Refused(ErrorKind::Busy),
                    State::Extent => return Begin::Refused(ErrorKind::Invalid),
                    State::Ready | State::Peer => {
                        core.pin(id);
                        return Begin::Present(id);
                    }
                    State::Bad => return Begin::Replace(id),
                    State::Writing => {
                        // our slot is not needed any more and must be free before the report
                        let waits = self.wait_for(unit);
                        core.waiters.entry(id).or_default().extend(waits);
                        return Begin::Joined;
                    }
                    State::Evicting => {
                        let same = |c: &mut Core| {
                            c.index.find(fp) == Some(id) && c.index.state(id) == State::Evicting
                        };
                        core = wait_while(&s.settled, core, REMOVAL_PATIENCE, same);
                        if same(&mut core) {
                            core.stats.refused(RefuseReason::Io, 1);
                            return Begin::Refused(ErrorKind::Busy);
                        }
                    }
                    State::Free | State::Dead => break,
                }
            }
            let shelf = core.index.shelf_id(at.shelf().0);
            let id = shelf.and_then(|sh| core.index.insert(fp, sh, at.fan, State::Writing, 0));
            match id {
                Some(id) => id,
                None => {
                    core.stats.refused(RefuseReason::NoRoom, 1);
                    return Begin::Refused(ErrorKind::Full);
                }
            }
        };
        match s.make_room(s.write_cost(), EvictReason::Capacity) {
            Ok(granted) => Begin::Write { id, granted },
            Err(no) => {
                lock(&s.core).stats.refused(no.0, 1);
                self.abort(id, no.kind());
                Begin::Refused(no.kind())
            }
        }
    }

    /// This unit as one that waits for another job's write; its slot is free from now on, and its job stays known to the
    /// watchdog.
    pub(crate) fn wait_for(&self, unit: usize) -> Option<Waiter> {
        drop(self.slots.get(unit).and_then(|s| lock(s).take()));
        let (run, job) = (self.me.upgrade()?, self.job.upgrade());
        Some(Box::new(move |outcome| {
            run.finish(unit, outcome);
            drop(job);
        }))
    }

    /// Takes back an entry that was reserved, and fails those who waited for it.
    pub(crate) fn abort(&self, id: Id, kind: ErrorKind) {
        let waiters = {
            let mut core = lock(&self.shared.core);
            core.index.remove(id);
            core.waiters.remove(&id)
        };
        for w in waiters.into_iter().flatten() {
            w(BlockOutcome::Failed(kind));
        }
    }

    fn remove_if(&self, id: Id, state: State, reason: EvictReason) {
        let victim = {
            let mut core = lock(&self.shared.core);
            if core.index.state(id) == State::Peer {
                core.forget_peer(id);
                None
            } else if core.index.state(id) == state {
                core.begin_removal(id)
            } else {
                None
            }
        };
        if let Some(v) = victim {
            self.shared.remove_victim(&v, reason, true);
        }
    }

    fn size_is_right(&self, at: &Location) -> bool {
        let s = &*self.shared;
        let path = s.leaf_of(at).join(at.file_name());
        match s.disk.stat(&path) {
            Ok(st) => st.len == s.file_len() || st.len == s.params.block_len as u64,
            Err(e) => !matches!(classify(&e), IoClass::Gone | IoClass::Corrupt),
        }
    }

    /// Writes and publishes the file, once more after making room if the device is full.
    fn write(
        &self,
        key: &Key,
        at: &Location,
        slot: &SlotRead,
        scratch: &mut PageBuffer,
    ) -> io::Result<Written> {
        let s = &*self.shared;
        if let Some(j) = s.journal.get() {
            let begin = || j.begin(&s.core, self.fp_of(key), at.shelf());
            let begun = begin().or_else(|e| match classify(&e) {
                IoClass::Full if self.evict_for_full_device(&e) => begin(),
                _ => Err(e),
            });
            if let Err(e) = begun {
                if classify(&e) == IoClass::Full {
                    lock(&s.core).eviction_does_not_help(s.clock.now());
                }
                return Err(e);
            }
        }
        let enter = || s.dirs.enter(&*s.disk, s.own_dir(), 0, at.fan, at.leaf);
        let (mut change, mut entered) = enter();
        if matches!(&entered, Err(e) if classify(e) == IoClass::Full && self.evict_for_full_device(e)) {
            let again = enter();
            change.add(again.0);
            entered = again.1;
        }
        if let Err(e) = entered {
            self.journal_nothing_left(key, at);
            let mut core = lock(&s.core);
            core.budget.apply(change);
            if classify(&e) == IoClass::Full {
                core.eviction_does_not_help(s.clock.now());
            }
            return Err(e);
        }
        self.progress.begin_io(s.clock.now());
        let page = scratch.as_mut_slice().first_chunk_mut::<TRAILER_BYTES>();
        let written = page
            .ok_or_else(|| io::Error::from(io::ErrorKind::InvalidInput))
            .and_then(|page| {
                let trailer = Trailer {
                    key: key.clone(),
                    block_len: slot.len() as u64,
                    payload_sum: self.progress.touch(|| payload_sum(slot))?,
                    namespace: *s.ns.digest(),
                    written_at: s.clock.unix_seconds(),
                };
                encode(&trailer, page);
                match self.write_and_publish(at, slot, page) {
                    // somebody removed the directory behind our back
                    Err(e) if classify(&e) == IoClass::Gone => s
                        .dirs
                        .remake(&*s.disk, s.own_dir(), at.fan, at.leaf)
                        .and_then(|()| self.write_and_publish(at, slot, page)),
                    Err(e) if classify(&e) == IoClass::Full && self.evict_for_full_device(&e) => {
                        self.write_and_publish(at, slot, page)
                    }
                    r => r,
                }
            });
        let bytes = if written.is_ok() { s.file_len() } else { 0 };
        self.progress.end_io(s.clock.now(), bytes);
        let more = match &written {
            Ok(_) => s.dirs.grown(&*s.disk, s.own_dir(), 0, at.fan, at.leaf),
            Err(_) => s.dirs.leave(&*s.disk, s.own_dir(), 0, at.fan, at.leaf),
        };
        change.add(more);
        match written {
            Ok(stat) => {
                self.journal_stored(key, at, &stat);
                let Some(late) = self.take_back_if_late(at) else {
                    return Ok(Written { stat, change });
                };
                change.add(s.dirs.leave(&*s.disk, s.own_dir(), 0, at.fan, at.leaf));
                self.journal_nothing_left(key, at);
                lock(&s.core).budget.apply(change);
                Err(late)
            }
            Err(e) => {
                self.journal_nothing_left(key, at);
                let mut core = lock(&s.core);
                core.budget.apply(change);
                if classify(&e) == IoClass::Full {
                    core.eviction_does_not_help(s.clock.now());
                }
                Err(e)
            }
        }
    }

    /// Removes what was published after its job was given up: some step hung. Where it cannot go it stays, and is what
    /// was to be stored, since all of it was written before.
    fn take_back_if_late(&self, at: &Location) -> Option<io::Error> {
        let s = &*self.shared;
        let late = self.progress.check().err()?;
        match s.disk.remove_file(&s.leaf_of(at).join(at.file_name())) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => None,
            _ => Some(late),
        }
    }

    fn fp_of(&self, key: &Key) -> Fingerprint {
        self.shared.fingerprint(key)
    }

    fn journal_stored(&self, key: &Key, at: &Location, stat: &Stat) {
        let s = &*self.shared;
        let Some(j) = s.journal.get() else { return };
        let facts = Facts {
            trailer: true,
            bad: false,
            cost: units(stat.counted(s.params.fs_block)),
            written_at: u32::try_from(s.clock.unix_seconds()).unwrap_or(u32::MAX),
            dirs: s.dirs.costs(0, at.fan, at.leaf),
        };
        let key_bytes = s.params.keep_keys.then_some(key.as_bytes());
        if let Err(error) = j.stored(&s.core, self.fp_of(key), at.shelf(), facts, key_bytes) {
            // its begin stands: the next owner looks
            tracing::debug!(%error, "a block is in doubt in the journal");
        }
    }

    /// A write failed and left nothing; where a temporary is stuck its leaf stays in doubt.
    fn journal_nothing_left(&self, key: &Key, at: &Location) {
        let s = &*self.shared;
        if lock(&s.core).leftovers.is_empty() {
            let (shelf, fan) = at.shelf();
            s.journal_gone(self.fp_of(key), shelf, fan);
        }
    }

    fn evict_for_full_device(&self, e: &io::Error) -> bool {
        let s = &*self.shared;
        let now = s.clock.now();
        if lock(&s.core).no_help_until.is_some_and(|until| now < until) {
            return false;
        }
        s.device_full(e);
        // what one block costs goes; the reservation made before still stands
        let victims = {
            let mut core = lock(&s.core);
            let mut out = Vec::new();
            core.choose_victims(s.write_cost(), s.clock.now(), &mut out);
            out
        };
        victims
            .iter()
            .for_each(|v| s.remove_victim(v, EvictReason::NoSpace, false));
        !victims.is_empty()
    }

    /// One attempt, direct where address and length allow it, else or on refusal buffered.
    fn write_and_publish(&self, at: &Location, slot: &[u8], page: &[u8; TRAILER_BYTES]) -> io::Result<Stat> {
        let s = &*self.shared;
        let dir = s.leaf_of(at);
        let to = dir.join(at.file_name());
        if is_aligned(slot) && s.direct.load(Ordering::Relaxed) {
            match self.attempt(&dir, &to, at, slot, page, true) {
                Err(e) if classify(&e) == IoClass::Invalid => {}
                r => return r,
            }
        }
        self.attempt(&dir, &to, at, slot, page, false)
    }

    fn attempt(
        &self,
        dir: &Path,
        to: &Path,
        at: &Location,
        slot: &[u8],
        page: &[u8; TRAILER_BYTES],
        direct: bool,
    ) -> io::Result<Stat> {
        let s = &*self.shared;
        let (temp, file) = loop {
            let temp = dir.join(temp_name(&at.file_name(), s.next_temp()));
            match s.disk.open(&temp, OpenMode::CreateNew, direct) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) if direct && classify(&e) == IoClass::Invalid => {
                    // some file systems make the file before refusing the flag
                    s.direct.store(false, Ordering::Relaxed);
                    let _ = s.disk.remove_file(&temp);
                    return Err(e);
                }
                r => break (temp, r?),
            }
        };
        if !s.params.bounded {
            // tells a sweeper that a live writer has it; file systems without locks do without
            let _ = file.try_lock();
        }
        let published = self
            .give_out(&*file, direct)
            .and_then(|()| write_full(&*file, slot, page))
            .and_then(|()| self.progress.check())
            .and_then(|()| file.stat())
            .and_then(|stat| rename(&*s.disk, &temp, to, s.file_len()).map(|()| stat));
        if published.is_err() {
            s.discard(temp, file.stat().map_or(s.file_len(), |st| st.allocated));
        }
        published
    }

    /// Has the blocks of a file given out before what is written through the page cache: else that happens later, and
    /// what the file system needs to keep track of them comes after the file was counted.
    fn give_out(&self, file: &dyn DiskFile, direct: bool) -> io::Result<()> {
        let (len, fs_block) = (self.shared.file_len(), self.shared.params.fs_block);
        if direct || !self.shared.params.bounded || most_allocated(len, fs_block) == round_up(len, fs_block) {
            return Ok(());
        }
        match file.allocate(len) {
            Err(e) if classify(&e) == IoClass::Invalid => Ok(()),
            r => r,
        }
    }

    /// Turns the reservation into a resident block, or gives it back.
    fn settle(
        &self,
        id: Id,
        key: &Key,
        at: &Location,
        granted: u64,
        written: io::Result<Written>,
    ) -> BlockOutcome {
        let s = &*self.shared;
        match written {
            Ok(w) => {
                let waiters = {
                    let mut core = lock(&s.core);
                    core.budget.release(granted);
                    let cost = w.stat.counted(s.params.fs_block);
                    core.budget.add_resident(cost);
                    core.budget.apply(w.change);
                    core.index.set_state(id, State::Ready);
                    core.index.set_cost(id, cost);
                    core.index.set_has_trailer(id, true);
                    core.index.set_written_at(id, s.clock.unix_seconds());
                    core.index.set_key(id, key);
                    let weight = u32::try_from(weight(cost)).unwrap_or(u32::MAX);
                    let fp = core.index.fingerprint(id);
                    core.policy.insert(id, fp, weight, self.req.tag());
                    core.stats.blocks += 1;
                    core.no_help_until = None;
                    core.stats.stored_blocks += 1;
                    core.stats.stored_bytes += s.file_len();
                    core.events.stored(key);
                    core.waiters.remove(&id)
                };
                for w in waiters.into_iter().flatten() {
                    w(BlockOutcome::Present);
                }
                BlockOutcome::Stored
            }
            Err(e) => {
                tracing::debug!(block = %at.stem, "a block was not stored");
                lock(&s.core).budget.release(granted);
                let kind = self.not_written(&e, 1);
                self.abort(id, kind);
                BlockOutcome::Failed(kind)
            }
        }
    }

    /// `blocks` blocks were not written; returns what they are reported as.
    pub(crate) fn not_written(&self, e: &io::Error, blocks: u64) -> ErrorKind {
        let s = &*self.shared;
        let (kind, reason) = match classify(e) {
            IoClass::Full => (ErrorKind::Full, RefuseReason::NoSpace),
            IoClass::Transient => (ErrorKind::Busy, RefuseReason::Io),
            _ => (ErrorKind::Unavailable, RefuseReason::Io),
        };
        if classify(e).blames_device() {
            self.progress.blame();
        }
        let what = match kind {
            ErrorKind::Full => "blocks were not stored: the device is full",
            ErrorKind::Busy => "blocks were not stored: for now",
            _ => "blocks were not stored: the device refuses",
        };
        if s.told.is_new(what, s.clock.now(), blocks) {
            tracing::warn!(tier = %s.params.name, error = %e, errno = e.raw_os_error(), blocks, "{what}");
        }
        if !self.progress.is_reported() {
            lock(&s.core).stats.refused(reason, blocks);
        }
        kind
    }

    /// Nobody works on `unit` any more; another job will tell its outcome.
    pub(crate) fn leave(&self, unit: usize) {
        let end = self.progress.leave(unit);
        self.shared.end_unit(end, Direction::Store, self.req, &self.fps);
    }

    /// Stores a block, which was begun, in a file of its own.
    pub(crate) fn store_file(&self, unit: usize, scratch: &mut PageBuffer) {
        match self.store(unit, scratch) {
            Some(outcome) => self.finish(unit, outcome),
            None => self.leave(unit),
        }
    }
}

/// A reserved entry while its file is written. Dropped only by a panic: then the reservation is given back and those
/// who joined are told (I4).
struct Claim<'a> {
    run: &'a StoreRun,
    id: Id,
    granted: u64,
}

impl Drop for Claim<'_> {
    fn drop(&mut self) {
        lock(&self.run.shared.core).budget.release(self.granted);
        self.run.abort(self.id, ErrorKind::Unavailable);
    }
}

struct Written {
    stat: Stat,
    change: crate::budget::Change,
}

/// Publishes `temp` as `to`. EEXIST, which some network file systems give, is success if the destination is whole.
fn rename(disk: &dyn Disk, temp: &Path, to: &Path, len: u64) -> io::Result<()> {
    match disk.rename(temp, to) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && disk.stat(to).is_ok_and(|s| s.len == len) => {
            disk.remove_file(temp)
        }
        r => r,
    }
}

impl Work for StoreRun {
    fn run(&self, unit: usize, worker: &mut Worker) {
        let s = &*self.shared;
        if s.guard.is_tripped() {
            return self.cancel(unit);
        }
        if !self.progress.start(unit, s.clock.now()) {
            return;
        }
        self.store_file(unit, &mut worker.scratch);
    }

    fn run_batch(&self, units: Range<usize>, worker: &mut Worker) {
        match &self.shared.pack {
            Some(_) if self.shared.guard.is_tripped() => units.for_each(|u| self.cancel(u)),
            Some(pack) => self.store_packed(pack, units, worker),
            None => units.for_each(|u| self.run(u, worker)),
        }
    }

    fn cancel(&self, unit: usize) {
        let (kind, reason) = if self.shared.guard.is_tripped() {
            (ErrorKind::Unavailable, RefuseReason::Breaker)
        } else {
            (ErrorKind::Closed, RefuseReason::Cancelled)
        };
        if self.progress.is_open(unit) {
            lock(&self.shared.core).stats.refused(reason, 1);
        }
        self.finish(unit, BlockOutcome::Failed(kind));
    }
}

impl Abandon for StoreRun {
    fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The slot of a write that runs stays with its worker, which publishes nothing any more.
    fn give_up(&self, now: Instant, kind: ErrorKind, reason: RefuseReason) {
        let Some(g) = self.progress.give_up(now, kind, false) else {
            return;
        };
        for slot in g.cut.iter().filter_map(|&(unit, _)| self.slots.get(unit)) {
            drop(lock(slot).take());
        }
        lock(&self.shared.core).stats.refused(reason, g.cut.len() as u64);
        self.shared.guard.gave_up(g.hung, g.first, reason);
        if let Some(job) = g.job {
            self.shared.end_job(job, now, self.req, &self.fps);
        }
    }
}
