//! Named worker threads over two bounded queues: loads strictly before stores, and never all workers in stores,
//! so that a load finds a free worker while stores saturate the device; while loads run, only a few workers store. A job is many units; workers claim runs
//! of them, so one large job fills an idle pool. Work that has not begun can be cancelled; work that has begun is
//! never abandoned (I4, I5).

use std::{
    collections::VecDeque,
    fmt, io,
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use super::{
    PageBuffer,
    engine::{Engine, EngineKind, Engines},
    sched::be_patient,
};
use crate::{
    error::{Error, ErrorKind, Result},
    sync::{
        Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
        lock,
        thread::{Builder, JoinHandle},
        wait, wait_while,
    },
};

/// While loads run, one store thread in so many goes on.
const BESIDE_LOADS: usize = 4;

/// A batch is not shared out into more parts than this.
const CRUMBS: usize = 8;

/// Which queue a job waits in, most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Somebody waits for the bytes or the answer.
    Load,
    /// Nobody waits.
    Store,
}

/// What workers do with a job. Each unit is run or cancelled, once.
pub trait Work: Send + Sync {
    /// Runs unit `unit` on a worker.
    fn run(&self, unit: usize, worker: &mut Worker);
    /// Told instead of `run` when the unit will never run.
    fn cancel(&self, unit: usize);
    /// How many units a worker should take at one time to run them together; 0: each by itself.
    fn batch(&self) -> usize {
        0
    }
    /// Runs units together, where [`batch`](Self::batch) says so. After a panic all of them are cancelled.
    fn run_batch(&self, units: Range<usize>, worker: &mut Worker) {
        units.for_each(|u| self.run(u, worker));
    }
}

/// What a worker thread has of its own.
#[derive(Debug)]
pub struct Worker {
    /// A page-aligned page.
    pub scratch: PageBuffer,
    /// Moves batches of runs.
    pub engine: Box<dyn Engine>,
}

/// Sizes of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolSize {
    /// Worker threads.
    pub threads: usize,
    /// How many of them may run stores at one time.
    pub store_threads: usize,
    /// Most units waiting in each queue.
    pub queue_units: usize,
}

impl PoolSize {
    /// `loads` workers that only load beside `stores` that also store.
    pub fn new(loads: usize, stores: usize) -> Self {
        let (loads, stores) = (loads.clamp(1, 256), stores.clamp(1, 256));
        Self {
            threads: loads + stores,
            store_threads: stores,
            queue_units: 1 << 16,
        }
    }
}

impl Default for PoolSize {
    /// From the CPUs this process may use (affinity and cgroup quota): I/O waits, so two workers a CPU each way,
    /// at least two and at most eight.
    fn default() -> Self {
        let n = (2 * usable_cpus()).clamp(2, 8);
        Self::new(n, n)
    }
}

/// CPUs this process may use: the smallest of affinity and cgroup quota, at least one.
pub fn usable_cpus() -> usize {
    // the standard library reads the affinity mask and cgroup v1/v2 quotas
    std::thread::available_parallelism().map_or(1, usize::from)
}

struct Job {
    work: Arc<dyn Work>,
    next: usize,
    units: usize,
    run: usize,
    /// Most units run together; 0: each by itself.
    batch: usize,
}

#[derive(Default)]
struct Queues {
    loads: VecDeque<Job>,
    stores: VecDeque<Job>,
    load_units: usize,
    store_units: usize,
    running: usize,
    running_stores: usize,
    /// How often a worker left stores where they were because of loads.
    held: u64,
    /// Workers that wait for work.
    waiting: usize,
    stop: bool,
}

struct Shared {
    queues: Mutex<Queues>,
    ready: Condvar,
    idle: Condvar,
    size: PoolSize,
    /// Set once so that units already claimed but not begun are cancelled too.
    stopping: AtomicBool,
}

/// The pool. Dropping it cancels what waits and joins the workers.
pub struct Pool {
    shared: Arc<Shared>,
    workers: Vec<JoinHandle<()>>,
}

impl fmt::Debug for Pool {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pool")
            .field("size", &self.shared.size)
            .finish_non_exhaustive()
    }
}

impl Pool {
    /// Starts the workers, named `<name>-<n>`.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when the system gives no thread or memory.
    pub fn start(name: &str, size: PoolSize) -> Result<Self> {
        Self::start_with(name, size, &Engines::choose(EngineKind::Threads))
    }

    /// As [`start`](Self::start), with an engine of this kind for each worker.
    ///
    /// # Errors
    /// As there.
    pub fn start_with(name: &str, size: PoolSize, engines: &Engines) -> Result<Self> {
        let shared = Arc::new(Shared {
            queues: Mutex::default(),
            ready: Condvar::new(),
            idle: Condvar::new(),
            size,
            stopping: AtomicBool::new(false),
        });
        let mut pool = Self {
            shared,
            workers: Vec::with_capacity(size.threads),
        };
        for i in 0..size.threads.max(1) {
            let own = Worker {
                scratch: PageBuffer::new(super::PAGE)?,
                engine: engines.engine(),
            };
            let shared = Arc::clone(&pool.shared);
            let worker = Builder::new()
                .name(format!("{name}-{i}"))
                .spawn(move || {
                    be_patient();
                    work_loop(&shared, own);
                })
                .map_err(|e: io::Error| Error::io("start worker", name, e))?;
            pool.workers.push(worker);
        }
        Ok(pool)
    }

    /// Queues `units` units of `work`.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] when the queue is full, [`ErrorKind::Closed`] after a stop; then nothing was queued and
    /// neither `run` nor `cancel` will be called.
    pub fn submit(&self, class: Class, work: Arc<dyn Work>, units: usize) -> Result<()> {
        if units == 0 {
            return Ok(());
        }
        // short runs keep neighbours on one worker and still spread a job over all of them
        let run = (units / (self.shared.size.threads * 4)).clamp(1, 8);
        let batch = work.batch();
        let mut q = lock(&self.shared.queues);
        if q.stop {
            return Err(Error::new(
                ErrorKind::Closed,
                "queue work",
                "the pool was shut down",
            ));
        }
        let limit = self.shared.size.queue_units;
        let queues = &mut *q;
        let (queue, waiting) = queues.of(class);
        if *waiting > 0 && *waiting + units > limit {
            return Err(Error::new(
                ErrorKind::Busy,
                "queue work",
                format!("{} units wait already, at most {limit} may", *waiting),
            ));
        }
        *waiting += units;
        queue.push_back(Job {
            work,
            next: 0,
            units,
            run,
            batch,
        });
        // one is enough for whoever submits: it wakes the next
        let wake = q.waiting > 0;
        drop(q);
        if wake {
            self.shared.ready.notify_one();
        }
        Ok(())
    }

    /// Units waiting in both queues.
    pub fn queued(&self) -> usize {
        let q = lock(&self.shared.queues);
        q.load_units + q.store_units
    }

    /// How often a worker left stores waiting because loads run.
    pub fn held_stores(&self) -> u64 {
        lock(&self.shared.queues).held
    }

    /// Whether anything waits or runs.
    pub fn is_busy(&self) -> bool {
        let q = lock(&self.shared.queues);
        q.load_units + q.store_units + q.running > 0
    }

    /// Waits until nothing waits or runs. Loads that have not begun are cancelled: whoever drains does not want them
    /// any more. Stores are given `patience` to be done, then those that have not begun are cancelled too.
    pub fn drain(&self, patience: Duration) {
        self.cancel_queued(Class::Load);
        let busy = |q: &mut Queues| q.store_units + q.running > 0;
        drop(wait_while(
            &self.shared.idle,
            lock(&self.shared.queues),
            patience,
            busy,
        ));
        self.cancel_queued(Class::Store);
        let mut q = lock(&self.shared.queues);
        while q.running > 0 {
            q = wait(&self.shared.idle, q);
        }
    }

    /// Cancels what waits, lets what runs end, and waits for that at most `patience`. Workers that still run then
    /// are left to end by themselves. Returns whether all had ended.
    pub fn stop(&mut self, patience: Duration) -> bool {
        self.shared.stopping.store(true, Ordering::Relaxed);
        lock(&self.shared.queues).stop = true;
        self.cancel_queued(Class::Load);
        self.cancel_queued(Class::Store);
        self.shared.ready.notify_all();
        let q = wait_while(&self.shared.idle, lock(&self.shared.queues), patience, |q| {
            q.running > 0
        });
        let ended = q.running == 0;
        drop(q);
        for w in self.workers.drain(..) {
            if ended || w.is_finished() {
                let _ = w.join();
            }
        }
        ended
    }

    /// Forgets the workers: this process has no such threads.
    pub(crate) fn forget(&mut self) {
        self.workers.drain(..).for_each(std::mem::forget);
    }

    /// Waits until nothing waits or runs, at most `patience`; returns whether that is so.
    pub fn wait_idle(&self, patience: Duration) -> bool {
        let busy = |q: &mut Queues| q.load_units + q.store_units + q.running > 0;
        let q = lock(&self.shared.queues);
        let mut q = wait_while(&self.shared.idle, q, patience, busy);
        !busy(&mut q)
    }

    /// Cancels what waits in the queue of `class`.
    pub fn cancel_queued(&self, class: Class) {
        let jobs = {
            let mut q = lock(&self.shared.queues);
            let queues = &mut *q;
            let (queue, waiting) = queues.of(class);
            *waiting = 0;
            std::mem::take(queue)
        };
        for j in jobs {
            (j.next..j.units).for_each(|u| j.work.cancel(u));
        }
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !self.workers.is_empty() {
            self.stop(Duration::from_secs(5));
        }
    }
}

impl Queues {
    /// The queue of a class and its units.
    fn of(&mut self, class: Class) -> (&mut VecDeque<Job>, &mut usize) {
        match class {
            Class::Load => (&mut self.loads, &mut self.load_units),
            Class::Store => (&mut self.stores, &mut self.store_units),
        }
    }

    fn is_claimable(&self, store_threads: usize) -> bool {
        self.next_class(store_threads).is_some()
    }

    fn next_class(&self, store_threads: usize) -> Option<Class> {
        match () {
            () if !self.loads.is_empty() => Some(Class::Load),
            () if !self.stores.is_empty() && self.running_stores < self.most_stores(store_threads) => {
                Some(Class::Store)
            }
            () => None,
        }
    }

    /// How many stores may run: fewer beside loads, which share the device with them.
    fn most_stores(&self, store_threads: usize) -> usize {
        match self.running - self.running_stores {
            0 => store_threads,
            _ => store_threads.div_ceil(BESIDE_LOADS),
        }
    }

    /// The next run of units a worker should take.
    fn claim(&mut self, store_threads: usize) -> Option<Claim> {
        let class = self.next_class(store_threads)?;
        let idle = match class {
            Class::Load => self.waiting,
            Class::Store => self
                .waiting
                .min(store_threads.saturating_sub(self.running_stores + 1)),
        };
        let (queue, waiting) = self.of(class);
        let alone = queue.len() == 1;
        let job = queue.front_mut()?;
        let left = job.units - job.next;
        let take = match job.batch {
            0 => job.run,
            // shared out among those that have nothing else to do, but not into crumbs
            most if alone => left.div_ceil(idle + 1).clamp(most.div_ceil(CRUMBS), most),
            most => most,
        };
        let range = job.next..job.next + take.min(left);
        let together = job.batch > 0;
        job.next = range.end;
        *waiting = waiting.saturating_sub(range.len());
        let work = Arc::clone(&job.work);
        if job.next >= job.units {
            queue.pop_front();
        }
        Some(Claim {
            class,
            work,
            range,
            together,
        })
    }
}

/// Units that one worker took.
struct Claim {
    class: Class,
    work: Arc<dyn Work>,
    range: Range<usize>,
    /// Whether they are run together.
    together: bool,
}

fn run_together(shared: &Shared, work: &dyn Work, range: Range<usize>, own: &mut Worker) {
    let stopping = shared.stopping.load(Ordering::Relaxed);
    let units = range.clone();
    let ran = !stopping
        && catch_unwind(AssertUnwindSafe(|| work.run_batch(units, own)))
            .inspect_err(|_| tracing::error!(?range, "an I/O worker panicked; its blocks failed"))
            .is_ok();
    if !ran {
        range.for_each(|u| work.cancel(u));
    }
}

fn work_loop(shared: &Shared, mut own: Worker) {
    let mut q = lock(&shared.queues);
    loop {
        if let Some(claim) = q.claim(shared.size.store_threads) {
            let Claim {
                class,
                work,
                range,
                together,
            } = claim;
            let store = usize::from(class == Class::Store);
            q.running += 1;
            q.running_stores += store;
            let claimable = q.is_claimable(shared.size.store_threads);
            let wake = q.waiting > 0 && claimable;
            let idle = q.waiting > 0 && q.running_stores < shared.size.store_threads;
            q.held += u64::from(idle && !claimable && !q.stores.is_empty());
            drop(q);
            if wake {
                shared.ready.notify_one();
            }
            if together {
                run_together(shared, &*work, range.clone(), &mut own);
            }
            for unit in range.filter(|_| !together) {
                let stopping = shared.stopping.load(Ordering::Relaxed);
                // a fault in one unit must neither lose its report nor end the worker (I4, I10)
                let ran = !stopping
                    && catch_unwind(AssertUnwindSafe(|| work.run(unit, &mut own)))
                        .inspect_err(|_| tracing::error!(unit, "an I/O worker panicked; its block failed"))
                        .is_ok();
                if !ran {
                    work.cancel(unit);
                }
            }
            drop(work);
            q = lock(&shared.queues);
            q.running -= 1;
            q.running_stores -= store;
            if q.running == 0 {
                shared.idle.notify_all();
            }
            // the last load lets more than one store go on
            let last_load = store == 0 && q.running == q.running_stores;
            if !q.stores.is_empty() && last_load {
                shared.ready.notify_all();
            } else if store == 1 && !q.stores.is_empty() {
                shared.ready.notify_one();
            }
        } else if q.stop {
            return;
        } else {
            q.waiting += 1;
            q = wait(&shared.ready, q);
            q.waiting -= 1;
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, SyncSender, sync_channel};

    use super::*;

    /// Records units as they run; the first `hold` units wait for the gate to open.
    struct Probe {
        ran: Mutex<Vec<usize>>,
        cancelled: Mutex<Vec<usize>>,
        gate: Option<Mutex<Receiver<()>>>,
        begun: SyncSender<usize>,
    }

    fn probe(gated: bool) -> (Arc<Probe>, SyncSender<()>, Receiver<usize>) {
        let (open, gate) = sync_channel(1024);
        let (begun, begins) = sync_channel(4096);
        let gate = gated.then(|| Mutex::new(gate));
        (
            Arc::new(Probe {
                ran: Mutex::default(),
                cancelled: Mutex::default(),
                gate,
                begun,
            }),
            open,
            begins,
        )
    }

    impl Work for Probe {
        fn run(&self, unit: usize, _: &mut Worker) {
            self.begun.send(unit).unwrap();
            if let Some(g) = &self.gate {
                lock(g).recv().unwrap();
            }
            lock(&self.ran).push(unit);
        }
        fn cancel(&self, unit: usize) {
            lock(&self.cancelled).push(unit);
        }
    }

    #[test]
    fn few_stores_begin_while_a_load_runs_and_all_go_on_after_it() {
        let pool = Pool::start("t", PoolSize::new(2, 8)).unwrap();
        // a worker that has not started yet leaves nothing waiting
        while lock(&pool.shared.queues).waiting < 10 {
            std::thread::yield_now();
        }
        let (load, let_go, loading) = probe(true);
        pool.submit(Class::Load, Arc::clone(&load) as Arc<dyn Work>, 1)
            .unwrap();
        loading.recv().unwrap();
        let (stores, open, begun) = probe(true);
        pool.submit(Class::Store, Arc::clone(&stores) as Arc<dyn Work>, 64)
            .unwrap();
        // two of eight, and no third
        assert!((0..2).all(|_| begun.recv().is_ok()));
        assert!(begun.recv_timeout(Duration::from_millis(200)).is_err());
        assert!(pool.held_stores() > 0);
        let_go.send(()).unwrap();
        assert!((0..6).all(|_| begun.recv_timeout(Duration::from_secs(10)).is_ok()));
        (0..64).for_each(|_| open.send(()).unwrap());
        pool.drain(Duration::from_secs(10));
    }

    #[test]
    fn a_load_passes_stores_that_saturate_the_pool() {
        let pool = Pool::start("t", PoolSize::new(1, 2)).unwrap();
        let (stores, open, begun) = probe(true);
        pool.submit(Class::Store, Arc::clone(&stores) as Arc<dyn Work>, 64)
            .unwrap();
        begun.recv().unwrap();
        begun.recv().unwrap();
        let (load, _o, loaded) = probe(false);
        pool.submit(Class::Load, Arc::clone(&load) as Arc<dyn Work>, 1)
            .unwrap();
        assert_eq!(
            loaded.recv_timeout(Duration::from_secs(10)).unwrap(),
            0,
            "the load waited for stores"
        );
        assert!(lock(&stores.ran).is_empty());
        for _ in 0..64 {
            open.send(()).unwrap();
        }
        pool.drain(Duration::from_secs(60));
    }

    #[test]
    fn every_unit_is_run_or_cancelled_once() {
        for seed in 0..20 {
            let mut pool = Pool::start("t", PoolSize::new(1, 2)).unwrap();
            let (w, _open, _begun) = probe(false);
            for _ in 0..=seed {
                pool.submit(Class::Store, Arc::clone(&w) as Arc<dyn Work>, 37)
                    .unwrap();
            }
            if seed % 2 == 0 {
                pool.drain(Duration::from_secs(60));
            }
            assert!(pool.stop(Duration::from_secs(10)));
            let mut all = [lock(&w.ran).clone(), lock(&w.cancelled).clone()].concat();
            all.sort_unstable();
            let want: Vec<usize> = (0..37).flat_map(|u| vec![u; seed + 1]).collect();
            assert_eq!(all, want);
            let e = pool.submit(Class::Load, w, 1).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Closed);
        }
    }

    #[test]
    fn a_full_queue_refuses_and_queues_nothing() {
        let size = PoolSize {
            queue_units: 4,
            ..PoolSize::new(1, 1)
        };
        let pool = Pool::start("t", size).unwrap();
        let (w, open, begun) = probe(true);
        pool.submit(Class::Store, Arc::clone(&w) as Arc<dyn Work>, 1)
            .unwrap();
        begun.recv().unwrap();
        pool.submit(Class::Store, Arc::clone(&w) as Arc<dyn Work>, 4)
            .unwrap();
        let e = pool
            .submit(Class::Store, Arc::clone(&w) as Arc<dyn Work>, 1)
            .unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy);
        (0..5).for_each(|_| open.send(()).unwrap());
        pool.drain(Duration::from_secs(60));
        assert_eq!(lock(&w.ran).len() + lock(&w.cancelled).len(), 5);
    }

    #[test]
    fn the_default_size_follows_the_cpus_of_this_process() {
        let s = PoolSize::default();
        assert!((2..=8).contains(&s.store_threads) && s.threads == 2 * s.store_threads);
        assert!(usable_cpus() >= 1);
    }
}
