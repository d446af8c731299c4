//! A load job with its blocks: what is pinned for it, whose memory it fills, and whose outcome is told.

use std::{ops::Range, sync::Arc};

use smallvec::SmallVec;

use super::{
    backend::Backend,
    deferred::{JobRun, Order, mark_used},
    progress::Progress,
    watchdog::Abandon,
};
use crate::{
    block::{Fingerprint, Key},
    catalog::{Holds, index::BATCH},
    clock::Instant,
    error::ErrorKind,
    evict::Id,
    io::{
        SlotWrite,
        pool::{Work, Worker},
    },
    metrics::RefuseReason,
    sync::{Mutex, lock},
    tier::{BlockOutcome, Direction, LoadBlock, Report, RequestId},
};

/// A tier that loads blocks. A worker calls this for some units of a job; each is to be finished there, or left to
/// another job that finishes it.
pub(crate) trait Loads: Backend {
    /// Does `units` of `run`, none of which was started.
    fn load(&self, run: &LoadRun<Self>, units: Range<usize>, worker: &mut Worker);
}

/// A load job on its way through the workers.
pub(crate) struct LoadRun<B: Loads> {
    tier: Arc<B>,
    req: RequestId,
    pub(crate) keys: Vec<Key>,
    fps: Vec<Fingerprint>,
    /// The entries pinned for this job; `None` where the block was not resident when a worker reached it.
    ids: Vec<Mutex<Option<Id>>>,
    slots: Vec<Mutex<Option<SlotWrite>>>,
    pub(crate) progress: Arc<Progress>,
}

impl<B: Loads> JobRun for LoadRun<B> {
    type Tier = B;
    type Block = LoadBlock;
    const DIRECTION: Direction = Direction::Load;

    fn new(tier: &Arc<B>, mut order: Order, blocks: Vec<LoadBlock>) -> Arc<Self> {
        let (keys, slots): (Vec<Key>, _) = blocks
            .into_iter()
            .map(|b| (b.key, Mutex::new(Some(b.slot))))
            .unzip();
        let fps: Vec<_> = keys.iter().map(|k| tier.fingerprint(k)).collect();
        let mut ids = Vec::with_capacity(fps.len());
        for part in fps.chunks(BATCH) {
            let mut state = lock(tier.state());
            let catalog = state.catalog();
            ids.extend(part.iter().map(|&fp| {
                let id = catalog.ready(fp);
                if let Some(id) = id {
                    catalog.pin_for_job(tier.space(), &mut order.held, id);
                }
                Mutex::new(id)
            }));
        }
        let req = (tier.space(), order.req);
        lock(tier.state()).catalog().give_back(req, order.held);
        Arc::new(Self {
            tier: Arc::clone(tier),
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

impl<B: Loads> LoadRun<B> {
    pub(crate) fn finish(&self, unit: usize, outcome: BlockOutcome) {
        drop(self.take_slot(unit));
        self.finish_all(&[(unit, outcome)]);
    }

    /// As [`finish`](Self::finish), for blocks that ended together and whose memory is free.
    pub(crate) fn finish_all(&self, ends: &[(usize, BlockOutcome)]) {
        {
            let taken: SmallVec<[(Option<Id>, bool); 1]> = ends
                .iter()
                .map(|&(unit, _)| {
                    let id = self.ids.get(unit).and_then(|i| lock(i).take());
                    (id, self.progress.is_open(unit))
                })
                .collect();
            let mut state = lock(self.tier.state());
            let catalog = state.catalog();
            let (mut loaded, mut failed) = (0, 0);
            for (&(_, outcome), (id, in_time)) in ends.iter().zip(taken) {
                if let Some(id) = id {
                    catalog.unpin(id);
                }
                match outcome {
                    _ if !in_time => {}
                    BlockOutcome::Loaded(_) => loaded += 1,
                    _ => failed += 1,
                }
            }
            let stats = &mut catalog.space(self.tier.space()).stats;
            stats.loaded_blocks += loaded;
            stats.load_failures += failed;
        }
        let end = self.progress.finish_all(ends);
        self.tier
            .runner()
            .end_units(end, Direction::Load, |r| self.note(r));
    }

    /// The entry that is pinned for a block.
    pub(crate) fn id(&self, unit: usize) -> Option<Id> {
        self.ids.get(unit).and_then(|i| *lock(i))
    }

    /// Takes the memory that a block is to go to; `None`: it was given up, or somebody has it.
    pub(crate) fn take_slot(&self, unit: usize) -> Option<SlotWrite> {
        self.slots.get(unit).and_then(|x| lock(x).take())
    }

    /// Whether the memory that a block is to go to has the length of a block here.
    pub(crate) fn fits(&self, unit: usize) -> bool {
        let len = self.tier.block_len();
        let slot = self.slots.get(unit).map(lock);
        slot.is_some_and(|s| s.as_ref().is_none_or(|s| s.len() == len))
    }

    fn note(&self, report: &Report) {
        {
            let mut state = lock(self.tier.state());
            let stats = &mut state.catalog().space(self.tier.space()).stats;
            stats.loaded_bytes += report.bytes;
            stats.load_device_time += report.device_time;
        }
        mark_used(&*self.tier, self.req, &self.fps);
    }
}

impl<B: Loads> Work for LoadRun<B> {
    fn run(&self, unit: usize, worker: &mut Worker) {
        self.run_batch(unit..unit + 1, worker);
    }

    fn run_batch(&self, units: Range<usize>, worker: &mut Worker) {
        if self.tier.runner().watchdog.is_tripped() {
            return units.for_each(|u| self.cancel(u));
        }
        self.tier.load(self, units, worker);
    }

    fn cancel(&self, unit: usize) {
        let kind = if self.tier.runner().watchdog.is_tripped() {
            ErrorKind::Unavailable
        } else {
            ErrorKind::Closed
        };
        self.finish(unit, BlockOutcome::Failed(kind));
    }
}

impl<B: Loads> Abandon for LoadRun<B> {
    fn progress(&self) -> &Progress {
        &self.progress
    }

    /// A read that may still touch the caller's memory is waited for where nothing else protects that.
    fn give_up(&self, now: Instant, kind: ErrorKind, reason: RefuseReason) {
        let Some(g) = self.progress.give_up(now, kind, !self.tier.may_abandon_loads()) else {
            return;
        };
        for &(unit, runs) in &g.cut {
            // a read under way has its memory already, or finds none
            drop(self.take_slot(unit));
            let Some(ids) = self.ids.get(unit) else { continue };
            let mut id = lock(ids);
            let mut state = lock(self.tier.state());
            let catalog = state.catalog();
            catalog.space(self.tier.space()).stats.load_failures += 1;
            if !runs {
                if let Some(id) = id.take() {
                    catalog.unpin(id);
                }
            } else if let Some(id) = *id {
                // its worker unpins it; until it is stored again it is a miss
                catalog.forget_peer(id);
                catalog.mark_bad(id);
            }
        }
        let runner = self.tier.runner();
        runner.watchdog.gave_up(g.hung, g.first, reason);
        if let Some(job) = g.job {
            runner.end_job(job, now, |r| self.note(r));
        }
    }
}
