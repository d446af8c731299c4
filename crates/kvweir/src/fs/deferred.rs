//! What the scheduler leaves to the workers. Submitting costs it the same for one block and for thousands: the first
//! worker that reaches a job makes its blocks (claims slots, takes pins, computes fingerprints), the others wait for
//! that. A job whose blocks cannot be made is reported failed, once (I4); pins of a load pass to the job at submission
//! and are sorted out by the worker (I3). The guard knows a job from its submission on, so that one which no worker
//! reaches is reported at its deadline; its blocks are made then, to be failed.

use std::{
    fmt,
    ops::Range,
    sync::{Arc, Weak},
};

use crate::{
    block::{Fingerprint, Key},
    catalog::pins::Held,
    clock::Instant,
    error::{ErrorKind, Result},
    fs::shared::Shared,
    io::pool::{Class, Pool, Work, Worker},
    jobs::{progress::Progress, watchdog::Abandon},
    metrics::RefuseReason,
    sync::{Mutex, OnceLock, lock},
    tier::{Direction, JobId, Report, RequestId},
};

/// Blocks touched under one hold of the lock.
const TOUCHED_AT_ONCE: usize = 64;

/// Bytes of packed blocks that a worker moves together.
const BATCH_BYTES: usize = 1 << 20;
/// Most blocks that it does.
const MAX_BATCH: usize = 256;

/// A job as the scheduler gives it.
pub(crate) struct Order {
    pub(crate) req: RequestId,
    /// Begun when the job was submitted.
    pub(crate) progress: Arc<Progress>,
    /// What the guard was given.
    pub(crate) job: Weak<dyn Abandon>,
    /// What the request pinned; nothing for stores.
    pub(crate) held: Held,
}

/// A job with its blocks.
pub(crate) trait Run: Work + Abandon + Sized + 'static {
    /// A block and its slot.
    type Block: Send + 'static;
    const DIRECTION: Direction;

    /// Takes blocks and pins over.
    fn new(shared: &Arc<Shared>, order: Order, blocks: Vec<Self::Block>) -> Arc<Self>;
    /// Fails every block for `reason` without I/O.
    fn refuse(&self, kind: ErrorKind, reason: RefuseReason);
}

type Make<T> = Mutex<Option<Box<dyn FnOnce() -> T + Send>>>;

/// A job whose blocks are made when they are wanted.
struct Later<R: Run> {
    shared: Arc<Shared>,
    id: JobId,
    req: RequestId,
    blocks: usize,
    progress: Arc<Progress>,
    order: Mutex<Option<Order>>,
    make: Make<Result<Vec<R::Block>>>,
    run: OnceLock<Option<Arc<R>>>,
}

impl<R: Run> Later<R> {
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
                Some(R::new(&self.shared, order, blocks))
            }
            (order, blocks) => {
                if let Some(Err(error)) = blocks {
                    tracing::warn!(tier = %self.shared.params.name, job = self.id.0, %error, "a job cannot be done");
                }
                if let Some(o) = order {
                    lock(&self.shared.core).give_back(o.req, o.held);
                }
                self.fail();
                None
            }
        }
    }

    /// Reports the job failed; it has no blocks.
    fn fail(&self) {
        let now = self.shared.clock.now();
        let given_up = self.progress.give_up(now, ErrorKind::Invalid, false);
        if let Some(job) = given_up.and_then(|g| g.job) {
            self.shared.end_job(job, now, self.req, &[]);
        }
    }
}

impl<R: Run> Work for Later<R> {
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
        match &self.shared.pack {
            Some(_) => (BATCH_BYTES / self.shared.params.block_len.max(1)).clamp(1, MAX_BATCH),
            None => 0,
        }
    }

    fn run_batch(&self, units: Range<usize>, worker: &mut Worker) {
        if let Some(r) = self.get() {
            r.run_batch(units, worker);
        }
    }
}

impl<R: Run> Abandon for Later<R> {
    fn progress(&self) -> &Progress {
        &self.progress
    }

    fn give_up(&self, now: Instant, kind: ErrorKind, reason: RefuseReason) {
        if let Some(r) = self.get() {
            r.give_up(now, kind, reason);
        }
    }
}

/// Queues a job of `blocks` blocks, which the guard looks after from now on.
pub(crate) fn submit<R: Run>(
    shared: &Arc<Shared>,
    pool: &Pool,
    (id, req): (JobId, RequestId),
    blocks: usize,
    make: impl FnOnce() -> Result<Vec<R::Block>> + Send + 'static,
) {
    if blocks == 0 {
        lock(&shared.done).push(Report::refused(id, R::DIRECTION, 0, ErrorKind::Invalid));
        shared.bell.ring();
        return;
    }
    // of stores each block looks for itself
    let (class, held, closed) = match R::DIRECTION {
        Direction::Store => (Class::Store, Held::default(), false),
        Direction::Load => {
            let mut core = lock(&shared.core);
            (Class::Load, core.lend(req), core.closed)
        }
    };
    let now = shared.clock.now();
    let progress = Arc::new(Progress::new(id, R::DIRECTION, blocks, now, &shared.meter));
    let job = Arc::new_cyclic(|me: &Weak<Later<R>>| {
        let order = Order {
            req,
            progress: Arc::clone(&progress),
            job: Weak::<Later<R>>::clone(me),
            held,
        };
        Later {
            shared: Arc::clone(shared),
            id,
            req,
            blocks,
            progress,
            order: Mutex::new(Some(order)),
            make: Mutex::new(Some(Box::new(make))),
            run: OnceLock::new(),
        }
    });
    let known: Weak<Later<R>> = Arc::downgrade(&job);
    shared.guard.take(known);
    let refused = match R::DIRECTION {
        _ if closed => Some((ErrorKind::Closed, RefuseReason::Cancelled)),
        Direction::Store if shared.params.read_only => Some((ErrorKind::Closed, RefuseReason::ReadOnly)),
        _ if shared.guard.is_tripped() => Some((ErrorKind::Unavailable, RefuseReason::Breaker)),
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
struct Touch {
    shared: Arc<Shared>,
    req: RequestId,
    keys: Make<Vec<Key>>,
}

impl Touch {
    fn touch(&self) {
        let s = &*self.shared;
        let keys = lock(&self.keys).take().map(|make| make()).unwrap_or_default();
        let fps: Vec<Fingerprint> = keys.iter().map(|k| s.fingerprint(k)).collect();
        s.touch(self.req, &fps);
    }
}

impl Work for Touch {
    fn run(&self, _: usize, _: &mut Worker) {
        self.touch();
    }

    fn cancel(&self, _: usize) {}
}

/// Marks blocks as used, soon.
pub(crate) fn touch(
    shared: &Arc<Shared>,
    pool: &Pool,
    req: RequestId,
    keys: impl FnOnce() -> Vec<Key> + Send + 'static,
) {
    let work = Arc::new(Touch {
        shared: Arc::clone(shared),
        req,
        keys: Mutex::new(Some(Box::new(keys))),
    });
    if matches!(pool.submit(Class::Load, Arc::clone(&work) as Arc<dyn Work>, 1), Err(e) if e.kind() == ErrorKind::Busy)
    {
        work.touch();
    }
}

impl Shared {
    /// Marks blocks as used, given in prefix order: the leaf end becomes the least recent of them. The scheduler gets
    /// the lock in between.
    pub(crate) fn touch(&self, req: RequestId, fps: &[Fingerprint]) {
        for part in fps.rchunks(TOUCHED_AT_ONCE) {
            lock(&self.core).touch(part, req.tag());
        }
    }
}

impl<R: Run> fmt::Debug for Later<R> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Later")
            .field("id", &self.id)
            .finish_non_exhaustive()
    }
}
