//! A store job with its blocks: whose memory is used, whose outcome is told, and who waits for whom.

use std::{
    ops::Range,
    sync::{Arc, Weak},
};

use super::{
    backend::Backend,
    deferred::{JobRun, Order, mark_used},
    progress::Progress,
    watchdog::Abandon,
};
use crate::{
    block::{Fingerprint, Key},
    catalog::{Holds, Waiter},
    clock::Instant,
    error::ErrorKind,
    evict::Id,
    io::{
        SlotRead,
        pool::{Work, Worker},
    },
    metrics::RefuseReason,
    sync::{Mutex, lock},
    tier::{BlockOutcome, Direction, Report, RequestId, StoreBlock},
};

/// A tier that stores blocks. A worker calls this for some units of a job; each is to be finished there, or left to
/// another job that finishes it.
pub(crate) trait Stores: Backend {
    /// Does `units` of `run`, none of which was started.
    fn store(&self, run: &StoreRun<Self>, units: Range<usize>, worker: &mut Worker);
}

/// A store job on its way through the workers.
pub(crate) struct StoreRun<B: Stores> {
    me: Weak<Self>,
    tier: Arc<B>,
    pub(crate) req: RequestId,
    pub(crate) keys: Vec<Key>,
    pub(crate) fps: Vec<Fingerprint>,
    slots: Vec<Mutex<Option<SlotRead>>>,
    pub(crate) progress: Arc<Progress>,
    /// This job as the watchdog knows it.
    job: Weak<dyn Abandon>,
}

impl<B: Stores> JobRun for StoreRun<B> {
    type Tier = B;
    type Block = StoreBlock;
    const DIRECTION: Direction = Direction::Store;

    fn new(tier: &Arc<B>, order: Order, blocks: Vec<StoreBlock>) -> Arc<Self> {
        let (keys, slots): (Vec<_>, _) = blocks
            .into_iter()
            .map(|b| (b.key, Mutex::new(Some(b.slot))))
            .unzip();
        let fps = keys.iter().map(|k| tier.fingerprint(k)).collect();
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            tier: Arc::clone(tier),
            req: order.req,
            keys,
            fps,
            slots,
            progress: order.progress,
            job: order.job,
        })
    }

    fn refuse(&self, kind: ErrorKind, reason: RefuseReason) {
        self.count_refused(reason, self.keys.len() as u64);
        (0..self.keys.len()).for_each(|u| self.finish(u, BlockOutcome::Failed(kind)));
    }
}

impl<B: Stores> StoreRun<B> {
    /// Notes the outcome of a block; the last one sends the report.
    pub(crate) fn finish(&self, unit: usize, outcome: BlockOutcome) {
        drop(self.take_slot(unit));
        self.finish_all(&[(unit, outcome)]);
    }

    /// As [`finish`](Self::finish), for blocks that ended together and whose memory is free.
    pub(crate) fn finish_all(&self, ends: &[(usize, BlockOutcome)]) {
        let end = self.progress.finish_all(ends);
        self.tier
            .runner()
            .end_units(end, Direction::Store, |r| self.note(r));
    }

    /// Nobody works on `unit` any more; another job will tell its outcome.
    pub(crate) fn leave(&self, unit: usize) {
        let hung = usize::from(self.progress.leave(unit));
        self.tier
            .runner()
            .end_units((None, hung), Direction::Store, |_| {});
    }

    /// Takes the memory of a block; `None`: it was given up, or somebody has it.
    pub(crate) fn take_slot(&self, unit: usize) -> Option<SlotRead> {
        self.slots.get(unit).and_then(|s| lock(s).take())
    }

    /// Whether the memory of a block has the length of a block here: what is counted for it goes by that (I1).
    pub(crate) fn fits(&self, unit: usize) -> bool {
        let len = self.tier.block_len();
        let slot = self.slots.get(unit).map(lock);
        slot.is_some_and(|s| s.as_ref().is_none_or(|s| s.len() == len))
    }

    /// This unit as one that waits for another job's write; its memory is free from now on, and its job stays known to
    /// the watchdog.
    pub(crate) fn wait_for(&self, unit: usize) -> Option<Waiter> {
        drop(self.take_slot(unit));
        let (run, job) = (self.me.upgrade()?, self.job.upgrade());
        Some(Box::new(move |outcome| {
            run.finish(unit, outcome);
            drop(job);
        }))
    }

    /// Takes back an entry that was begun, and fails those who waited for it.
    pub(crate) fn abort(&self, id: Id, kind: ErrorKind) {
        let waiters = lock(self.tier.state()).catalog().abort(id);
        for w in waiters {
            w(BlockOutcome::Failed(kind));
        }
    }

    /// Counts blocks that are not stored.
    pub(crate) fn count_refused(&self, reason: RefuseReason, blocks: u64) {
        let space = self.tier.space();
        lock(self.tier.state())
            .catalog()
            .space(space)
            .stats
            .refused(reason, blocks);
    }

    fn note(&self, report: &Report) {
        let space = self.tier.space();
        let device_time = report.device_time;
        lock(self.tier.state())
            .catalog()
            .space(space)
            .stats
            .store_device_time += device_time;
        mark_used(&*self.tier, self.req, &self.fps);
    }
}

impl<B: Stores> Work for StoreRun<B> {
    fn run(&self, unit: usize, worker: &mut Worker) {
        self.run_batch(unit..unit + 1, worker);
    }

    fn run_batch(&self, units: Range<usize>, worker: &mut Worker) {
        if self.tier.runner().watchdog.is_tripped() {
            return units.for_each(|u| self.cancel(u));
        }
        self.tier.store(self, units, worker);
    }

    fn cancel(&self, unit: usize) {
        let (kind, reason) = if self.tier.runner().watchdog.is_tripped() {
            (ErrorKind::Unavailable, RefuseReason::Breaker)
        } else {
            (ErrorKind::Closed, RefuseReason::Cancelled)
        };
        if self.progress.is_open(unit) {
            self.count_refused(reason, 1);
        }
        self.finish(unit, BlockOutcome::Failed(kind));
    }
}

impl<B: Stores> Abandon for StoreRun<B> {
    fn progress(&self) -> &Progress {
        &self.progress
    }

    /// The memory of a write that runs stays with its worker, which publishes nothing any more.
    fn give_up(&self, now: Instant, kind: ErrorKind, reason: RefuseReason) {
        let Some(g) = self.progress.give_up(now, kind, false) else {
            return;
        };
        for &(unit, _) in &g.cut {
            drop(self.take_slot(unit));
        }
        self.count_refused(reason, g.cut.len() as u64);
        let runner = self.tier.runner();
        runner.watchdog.gave_up(g.hung, g.first, reason);
        if let Some(job) = g.job {
            runner.end_job(job, now, |r| self.note(r));
        }
    }
}
