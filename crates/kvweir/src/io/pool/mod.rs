//! Named worker threads over two bounded queues: loads strictly before stores, and never all workers in stores, so that
//! a load finds a free worker while stores saturate the device; while loads run, only a few workers store. A job is
//! many units; workers claim runs of them, so one large job fills an idle pool. Work that has not begun can be
//! cancelled; work that has begun is never abandoned (I4, I5).
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs`, `size.rs` | [`Pool`]: submitting, cancelling, draining; how many workers |
//! | `work.rs`, `queues.rs` | [`Work`] and its [`Class`]; what waits, and what a worker takes next |
//! | `worker.rs` | a worker's life |

mod queues;
mod size;
#[cfg(test)]
mod tests;
mod work;
mod worker;

use std::{fmt, io, sync::Arc, time::Duration};

use self::{
    queues::{Job, Queues},
    worker::{PoolState, work_loop},
};
pub use self::{
    size::{PoolSize, usable_cpus},
    work::{Class, Work, Worker},
};
use super::{
    PageBuffer,
    engine::{EngineKind, Engines},
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

/// The pool. Dropping it cancels what waits and joins the workers.
pub struct Pool {
    shared: Arc<PoolState>,
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
        let shared = Arc::new(PoolState {
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
