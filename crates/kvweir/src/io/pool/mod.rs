//! Named worker threads over two bounded queues: loads strictly before stores, and never all workers in stores, so that
//! a load finds a free worker while stores saturate the device; while loads run, only a few workers store. A job is
//! many units; workers claim runs of them, so one large job fills an idle pool. Work that has not begun can be
//! cancelled; work that has begun is never abandoned (I4, I5).
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs`, `size.rs` | [`Pool`]: the workers, and how many |
//! | `share.rs` | [`PoolShare`]: submitting, cancelling, waiting, by one of several users |
//! | `work.rs`, `queues.rs` | [`Work`] and its [`Class`]; what waits, and what a worker takes next |
//! | `worker.rs` | a worker's life |

mod queues;
mod share;
mod size;
#[cfg(test)]
mod tests;
mod work;
mod worker;

use std::{fmt, io, sync::Arc, time::Duration};

use self::worker::{PoolState, work_loop};
pub use self::{
    share::PoolShare,
    size::{PoolSize, usable_cpus},
    work::{Class, Work, Worker},
};
use super::{
    PageBuffer,
    engine::{EngineKind, Engines},
    sched::be_patient,
};
use crate::{
    error::{Error, Result},
    sync::{
        Condvar, Mutex,
        atomic::{AtomicBool, Ordering},
        lock,
        thread::{Builder, JoinHandle},
        wait_while,
    },
};

/// The workers, for one user or more. Dropping it cancels what waits and joins them.
pub struct Pool {
    shared: Arc<PoolState>,
    workers: Mutex<Vec<JoinHandle<()>>>,
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
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) when the system gives no thread or memory.
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
        let pool = Self {
            shared,
            workers: Mutex::default(),
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
            lock(&pool.workers).push(worker);
        }
        Ok(pool)
    }

    /// A further user of the pool.
    pub fn share(&self) -> PoolShare {
        let owner = lock(&self.shared.queues).add_owner();
        PoolShare::new(Arc::clone(&self.shared), owner)
    }

    /// Cancels what waits, lets what runs end, and waits for that at most `patience`. Workers that still run then
    /// are left to end by themselves. Returns whether all had ended.
    pub fn stop(&self, patience: Duration) -> bool {
        self.shared.stopping.store(true, Ordering::Relaxed);
        lock(&self.shared.queues).stop = true;
        self.shared.cancel_queued(Class::Load, None);
        self.shared.cancel_queued(Class::Store, None);
        self.shared.ready.notify_all();
        let q = wait_while(&self.shared.idle, lock(&self.shared.queues), patience, |q| {
            q.running > 0
        });
        let ended = q.running == 0;
        drop(q);
        for w in lock(&self.workers).drain(..) {
            if ended || w.is_finished() {
                let _ = w.join();
            }
        }
        ended
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        if !lock(&self.workers).is_empty() {
            self.stop(Duration::from_secs(5));
        }
    }
}
