//! What the scheduler leaves to the workers. Submitting costs it the same for one block and for thousands: the first
//! worker that reaches a job makes its blocks (claims slots, takes pins, computes fingerprints), the others wait for
//! that. A job whose blocks cannot be made is reported failed, once (I4); pins of a load pass to the job at submission
//! and are sorted out by the worker (I3). The watchdog knows a job from its submission on, so that one which no worker
//! reaches is reported at its deadline; its blocks are made then, to be failed.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Weak},
};

use super::{backend::Backend, progress::Progress, watchdog::Abandon};
use crate::{
    block::{Fingerprint, Key},
    catalog::{Holds, pins::Held},
    clock::Instant,
    error::{ErrorKind, Result},
    io::pool::{Class, PoolShare, Work, Worker},
    metrics::RefuseReason,
    sync::{Mutex, OnceLock, lock},
    tier::{Direction, JobId, Report, RequestId},
};

/// Blocks marked as used under one hold of the lock.
const MARKED_AT_ONCE: usize = 64;

/// A job as the scheduler gives it.
pub(crate) struct Order {
    pub(crate) req: RequestId,
    /// Begun when the job was submitted.
    pub(crate) progress: Arc<Progress>,
    /// What the watchdog was given.
    pub(crate) job: Weak<dyn Abandon>,
    /// What the request pinned; nothing for stores.
    pub(crate) held: Held,
}

/// A job with its blocks.
pub(crate) trait JobRun: Work + Abandon + Sized + 'static {
    /// Who does the job.
    type Tier: Backend;
    /// A block and its slot.
    type Block: Send + 'static;
    const DIRECTION: Direction;

    /// Takes blocks and pins over.
    fn new(tier: &Arc<Self::Tier>, order: Order, blocks: Vec<Self::Block>) -> Arc<Self>;
    /// Fails every block for `reason` without I/O.
    fn refuse(&self, kind: ErrorKind, reason: RefuseReason);
}

type Make<T> = Mutex<Option<Box<dyn FnOnce() -> T + Send>>>;

/// A job whose blocks are made when they are wanted.
struct Deferred<R: JobRun> {
    tier: Arc<R::Tier>,
    id: JobId,
    blocks: usize,
    progress: Arc<Progress>,
    order: Mutex<Option<Order>>,
    make: Make<Result<Vec<R::Block>>>,
    run: OnceLock<Option<Arc<R>>>,
}

impl<R: JobRun> Deferred<R> {
    /// The job, made if need be; `None` when it was reported failed instead.
    fn get(&self) -> Option<&R> {
        self.run.get_or_init(|| self.make()).as_deref()
    }

    fn make(&self) -> Option<Arc<R>> {
        // gone when a call before panicked: then the order is still there
        let make = lock(&self.make).take();
        let blocks = make.map(|make| make());
        let order = lock(&self.order).take();
        match (order, blocks) {
            (Some(order), Some(Ok(blocks))) if blocks.len() == self.blocks => {
                Some(R::new(&self.tier, order, blocks))
            }
            (order, blocks) => {
                if let Some(Err(error)) = blocks {
                    tracing::warn!(tier = %self.tier.runner().name, job = self.id.0, %error, "a job cannot be done");
                }
                if let Some(o) = order {
                    let req = (self.tier.space(), o.req);
                    lock(self.tier.state()).catalog().give_back(req, o.held);
                }
                self.fail();
                None
            }
        }
    }

    /// Reports the job failed; it has no blocks.
    fn fail(&self) {
        let runner = self.tier.runner();
        let now = runner.clock.now();
        let given_up = self.progress.give_up(now, ErrorKind::Invalid, false);
        if let Some(job) = given_up.and_then(|g| g.job) {
            runner.end_job(job, now, |_| {});
        }
    }
}

impl<R: JobRun> Work for Deferred<R> {
    fn run(&self, unit: usize, worker: &mut Worker) {
        if let Some(r) = self.get() {
            r.run(unit, worker);
        }
    }

    fn cancel(&self, unit: usize) {
        if let Some(r) = self.get() {
            r.cancel(unit);
        }
    }

    fn batch(&self) -> usize {
        self.tier.batch()
    }

    fn run_batch(&self, units: Range<usize>, worker: &mut Worker) {
        if let Some(r) = self.get() {
            r.run_batch(units, worker);
        }
    }
}

impl<R: JobRun> Abandon for Deferred<R> {
    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn give_up(&self, now: Instant, kind: ErrorKind, reason: RefuseReason) {
        if let Some(r) = self.get() {
            r.give_up(now, kind, reason);
        }
    }
}

/// Queues a job of `blocks` blocks, which the watchdog looks after from now on.
pub(crate) fn submit<R: JobRun>(
    tier: &Arc<R::Tier>,
    pool: &PoolShare,
    (id, req): (JobId, RequestId),
    blocks: usize,
    make: impl FnOnce() -> Result<Vec<R::Block>> + Send + 'static,
) {
    let runner = tier.runner();
    if blocks == 0 {
        return runner.hand_over(Report::refused(id, R::DIRECTION, 0, ErrorKind::Invalid));
    }
    // of stores each block looks for itself
    let (class, held, closed) = match R::DIRECTION {
        Direction::Store => (Class::Store, Held::default(), false),
        Direction::Load => {
            let mut state = lock(tier.state());
            let catalog = state.catalog();
            let space = tier.space();
            (Class::Load, catalog.lend((space, req)), catalog.is_closed(space))
        }
    };
    let now = runner.clock.now();
    let progress = Arc::new(Progress::new(
        id,
        R::DIRECTION,
        blocks,
        now,
        runner.watchdog.meter(),
    ));
    let job = Arc::new_cyclic(|me: &Weak<Deferred<R>>| {
        let order = Order {
            req,
            progress: Arc::clone(&progress),
            job: Weak::<Deferred<R>>::clone(me),
            held,
        };
        Deferred {
            tier: Arc::clone(tier),
            id,
            blocks,
            progress,
            order: Mutex::new(Some(order)),
            make: Mutex::new(Some(Box::new(make))),
            run: OnceLock::new(),
        }
    });
    let known: Weak<Deferred<R>> = Arc::downgrade(&job);
    runner.watchdog.take(known);
    let refused = match R::DIRECTION {
        _ if closed => Some((ErrorKind::Closed, RefuseReason::Cancelled)),
        Direction::Store if !tier.takes_stores() => Some((ErrorKind::Closed, RefuseReason::ReadOnly)),
        _ if runner.watchdog.is_tripped() => Some((ErrorKind::Unavailable, RefuseReason::Breaker)),
        _ => match pool.submit(class, Arc::clone(&job) as Arc<dyn Work>, blocks) {
            Ok(()) => None,
            Err(e) if e.kind() == ErrorKind::Busy => Some((e.kind(), RefuseReason::QueueFull)),
            Err(e) => Some((e.kind(), RefuseReason::Cancelled)),
        },
    };
    if let Some((kind, reason)) = refused
        && let Some(r) = job.get()
    {
        r.refuse(kind, reason);
    }
}

/// Blocks that a request used.
struct Uses<B> {
    tier: Arc<B>,
    req: RequestId,
    keys: Make<Vec<Key>>,
}

impl<B: Backend> Uses<B> {
    fn mark(&self) {
        let keys = lock(&self.keys).take().map(|make| make()).unwrap_or_default();
        let fps: Vec<Fingerprint> = keys.iter().map(|k| self.tier.fingerprint(k)).collect();
        mark_used(&*self.tier, self.req, &fps);
    }
}

impl<B: Backend> Work for Uses<B> {
    fn run(&self, _: usize, _: &mut Worker) {
        self.mark();
    }

    fn cancel(&self, _: usize) {}
}

/// Marks blocks as used, soon.
pub(crate) fn mark_used_later<B: Backend>(
    tier: &Arc<B>,
    pool: &PoolShare,
    req: RequestId,
    keys: impl FnOnce() -> Vec<Key> + Send + 'static,
) {
    let work = Arc::new(Uses {
        tier: Arc::clone(tier),
        req,
        keys: Mutex::new(Some(Box::new(keys))),
    });
    if matches!(pool.submit(Class::Load, Arc::clone(&work) as Arc<dyn Work>, 1), Err(e) if e.kind() == ErrorKind::Busy)
    {
        work.mark();
    }
}

/// Marks blocks as used, given in prefix order: the leaf end becomes the least recent of them. The scheduler gets the
/// lock in between.
pub(crate) fn mark_used<B: Backend>(tier: &B, req: RequestId, fps: &[Fingerprint]) {
    for part in fps.rchunks(MARKED_AT_ONCE) {
        lock(tier.state()).catalog().mark_used(part, req.tag());
    }
}

impl<R: JobRun> fmt::Debug for Deferred<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Deferred")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
