//! Storing blocks, whatever their layout. Per block: present or being written by somebody else? then nothing is
//! written; else an entry is reserved, a layout writes it, and only then it becomes a hit (I1, I2). Every path admits
//! or aborts.

use std::{io, ops::Range, time::Duration};

use crate::{
    block::Fingerprint,
    catalog::{Begin, Origin, index::State},
    error::{ErrorKind, IoClass, classify},
    evict::Id,
    fs::{
        core::Core,
        space::Space,
        written::{Fresh, Written},
    },
    io::pool::Worker,
    jobs::StoreRun,
    metrics::{EvictReason, RefuseReason},
    sync::{lock, wait_while},
    tier::BlockOutcome,
};

/// Longest wait for another worker's removal of the same block's old file.
const REMOVAL_PATIENCE: Duration = Duration::from_secs(5);

/// What is to be done about one block.
enum Begun {
    /// Write it: its entry is reserved.
    Fresh(Id),
    /// It is there already.
    Present,
    /// Another worker writes it and will tell.
    Joined,
    /// It cannot be stored now.
    Refused(ErrorKind),
}

/// What the catalog tells of one block.
enum Seen {
    Fresh(Id),
    Present,
    /// It is there, as far as known, and pinned: to be looked at.
    Look {
        id: Id,
        layout: usize,
    },
    Joined,
    /// Something that is no block lies there: to be cleared away first.
    Bad(Id),
    Refused(ErrorKind),
}

/// Entries that are reserved and not admitted. Dropped with any left only by a panic: they are then given back, and
/// those who joined are told (I4).
struct Claims<'a> {
    run: &'a StoreRun<Space>,
    fresh: Vec<Fresh>,
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        for f in self.fresh.drain(..) {
            self.run.abort(f.id, ErrorKind::Unavailable);
        }
    }
}

impl Space {
    /// Stores `units` of a job.
    pub(crate) fn store_units(&self, run: &StoreRun<Self>, units: Range<usize>, worker: &mut Worker) {
        if units.len() > 1 {
            let coming = run.fps.get(units.clone()).unwrap_or_default();
            lock(&self.core).catalog.warm_places(coming.iter().copied());
        }
        let all = (0..self.layouts.len()).map(|_| Claims {
            run,
            fresh: Vec::new(),
        });
        let mut claims: Vec<Claims<'_>> = all.collect();
        for unit in run.progress.start_all(units, self.clock.now()) {
            match self.begin(run, unit) {
                Begun::Fresh(id) => {
                    let layout = run.keys.get(unit).map_or(0, |k| self.layouts.of_key(k));
                    if let Some(c) = claims.get_mut(layout) {
                        c.fresh.push(Fresh { unit, id });
                    }
                }
                Begun::Present => run.finish(unit, BlockOutcome::Present),
                Begun::Joined => run.leave(unit),
                Begun::Refused(kind) => run.finish(unit, BlockOutcome::Failed(kind)),
            }
        }
        for (claims, layout) in claims.iter_mut().zip(self.layouts.iter()) {
            if !claims.fresh.is_empty() {
                let written = layout.write(self, run, claims.fresh.clone(), worker);
                claims.fresh.clear();
                self.settle_written(run, written);
            }
        }
    }

    /// Looks a block up, and reserves its entry if it is to be written.
    fn begin(&self, run: &StoreRun<Self>, unit: usize) -> Begun {
        let (Some(key), Some(&fp)) = (run.keys.get(unit), run.fps.get(unit)) else {
            return Begun::Refused(ErrorKind::Invalid);
        };
        if !run.fits(unit) {
            return Begun::Refused(ErrorKind::Invalid);
        }
        if self.gives_way() {
            run.count_refused(RefuseReason::ReadOnly, 1);
            return Begun::Refused(ErrorKind::Closed);
        }
        let (mut looked, mut cleared) = (false, false);
        loop {
            match self.see(run, unit, fp) {
                Seen::Fresh(id) => return Begun::Fresh(id),
                Seen::Present => return Begun::Present,
                Seen::Joined => return Begun::Joined,
                Seen::Refused(kind) => return Begun::Refused(kind),
                Seen::Bad(_) if cleared => {
                    // it cannot be removed; trying for ever would cost this worker
                    run.count_refused(RefuseReason::Io, 1);
                    return Begun::Refused(ErrorKind::Unavailable);
                }
                Seen::Bad(id) => {
                    cleared = true;
                    self.clear(id, State::Bad, EvictReason::Corrupt);
                }
                Seen::Look { id, layout } => {
                    // pinned since it was found, so what is looked at is the entry's own (I3)
                    let right = looked || self.layouts.get(layout).is_none_or(|l| l.is_there(self, key));
                    looked = true;
                    if !right {
                        // it went or changed behind our back: forget it, then store anew
                        self.clear(id, State::Ready, EvictReason::External);
                    }
                    let mut core = lock(&self.core);
                    core.catalog.unpin(id);
                    if right {
                        core.catalog.space(self.id).stats.present_blocks += 1;
                        return Begun::Present;
                    }
                }
            }
        }
    }

    /// Looks a block up in the catalog, under one hold of the lock.
    fn see(&self, run: &StoreRun<Self>, unit: usize, fp: Fingerprint) -> Seen {
        let mut core = lock(&self.core);
        loop {
            if core.catalog.is_closed(self.id) {
                return Seen::Refused(ErrorKind::Closed);
            }
            let (id, state) = match core.catalog.begin(fp) {
                Begin::New(id) => return Seen::Fresh(id),
                Begin::Known(id, state) => (id, state),
                Begin::Full => {
                    core.catalog.space(self.id).stats.refused(RefuseReason::NoRoom, 1);
                    return Seen::Refused(ErrorKind::Full);
                }
            };
            match state {
                State::Ready | State::Peer => {
                    let layout = self.layouts.of_body(&core.catalog.body(id));
                    if self.layouts.get(layout).is_some_and(|l| !l.must_look()) {
                        core.catalog.space(self.id).stats.present_blocks += 1;
                        return Seen::Present;
                    }
                    core.catalog.pin(id);
                    return Seen::Look { id, layout };
                }
                State::Writing => {
                    let waits = run.wait_for(unit);
                    core.catalog.join(id, waits);
                    return Seen::Joined;
                }
                State::Bad => return Seen::Bad(id),
                // nothing that a block can take the place of
                State::Aside | State::Free | State::Dead => return Seen::Refused(ErrorKind::Invalid),
                State::Evicting => {
                    let same = |c: &mut Core| {
                        c.catalog.find(fp) == Some(id) && c.catalog.state(id) == State::Evicting
                    };
                    core = wait_while(&self.settled, core, REMOVAL_PATIENCE, same);
                    if same(&mut core) {
                        core.catalog.space(self.id).stats.refused(RefuseReason::Io, 1);
                        return Seen::Refused(ErrorKind::Busy);
                    }
                }
            }
        }
    }

    /// Clears an entry away that is in `state` still, or another process's.
    fn clear(&self, id: Id, state: State, reason: EvictReason) {
        let layout = {
            let mut core = lock(&self.core);
            let now = core.catalog.state(id);
            if now == State::Peer {
                core.catalog.forget_peer(id);
                return;
            }
            if now != state {
                return;
            }
            self.layouts.of_body(&core.catalog.body(id))
        };
        if let Some(l) = self.layouts.get(layout) {
            l.clear(self, id, reason);
        }
    }

    /// Makes what was written hits, and fails the rest.
    fn settle_written(&self, run: &StoreRun<Self>, written: Vec<Written<'_>>) {
        let mut waiters = Vec::new();
        let mut stored = Vec::with_capacity(written.len());
        let (mut failed, mut unkept) = (Vec::new(), Vec::new());
        {
            let mut core = lock(&self.core);
            let core = &mut *core;
            for w in written {
                match (w.end, run.keys.get(w.unit)) {
                    (Ok(placed), Some(key)) => {
                        if let Some(bill) = placed.bill {
                            bill.promise.commit(&mut core.account, bill.cost, bill.dirs);
                            core.account.no_help_until = None;
                        }
                        let stats = &mut core.catalog.space(self.id).stats;
                        stats.stored_blocks += 1;
                        stats.stored_bytes += placed.bytes;
                        let origin = Origin::Stored(run.req.tag());
                        waiters.extend(core.catalog.admit(w.id, placed.body, (self.id, key), origin));
                        stored.push((w.unit, BlockOutcome::Stored));
                    }
                    // no job has a unit without a key; its promise may not be dropped here
                    (Ok(placed), None) => {
                        failed.push((w.unit, w.id, ErrorKind::Invalid));
                        unkept.push(placed);
                    }
                    (Err(kind), _) => failed.push((w.unit, w.id, kind)),
                }
            }
        }
        drop(unkept);
        for w in waiters {
            w(BlockOutcome::Present);
        }
        if !stored.is_empty() {
            run.finish_all(&stored);
        }
        for (unit, id, kind) in failed {
            run.abort(id, kind);
            run.finish(unit, BlockOutcome::Failed(kind));
        }
    }

    /// `blocks` blocks of a job were not written; returns what they are reported as.
    pub(crate) fn not_written(&self, run: &StoreRun<Self>, e: &io::Error, blocks: u64) -> ErrorKind {
        let (kind, reason) = match classify(e) {
            IoClass::Full => (ErrorKind::Full, RefuseReason::NoSpace),
            IoClass::Transient => (ErrorKind::Busy, RefuseReason::Io),
            _ => (ErrorKind::Unavailable, RefuseReason::Io),
        };
        if classify(e).blames_device() {
            run.progress.blame();
        }
        let what = match kind {
            ErrorKind::Full => "blocks were not stored: the device is full",
            ErrorKind::Busy => "blocks were not stored: for now",
            _ => "blocks were not stored: the device refuses",
        };
        if self.root.told.is_new(what, self.clock.now(), blocks) {
            tracing::warn!(tier = %self.params.name, error = %e, errno = e.raw_os_error(), blocks, "{what}");
        }
        if !run.progress.is_reported() {
            run.count_refused(reason, blocks);
        }
        kind
    }
}
