//! One of several users of a pool. What it cancels or waits for is its own work; how much may wait, and who goes first,
//! is for all of them.

use std::{fmt, sync::Arc, time::Duration};

use super::{
    queues::{Job, Queues},
    work::{Class, Work},
    worker::PoolState,
};
use crate::{
    error::{Error, ErrorKind, Result},
    sync::{lock, wait_while},
};

/// A user of a pool.
pub struct PoolShare {
    pool: Arc<PoolState>,
    owner: usize,
}

impl fmt::Debug for PoolShare {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PoolShare")
            .field("owner", &self.owner)
            .finish_non_exhaustive()
    }
}

impl PoolShare {
    pub(super) fn new(pool: Arc<PoolState>, owner: usize) -> Self {
        Self { pool, owner }
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
        let size = self.pool.size;
        // short runs keep neighbours on one worker and still spread a job over all of them
        let run = (units / (size.threads * 4)).clamp(1, 8);
        let batch = work.batch();
        let mut q = lock(&self.pool.queues);
        if q.stop {
            return Err(Error::new(
                ErrorKind::Closed,
                "queue work",
                "the pool was shut down",
            ));
        }
        let limit = size.queue_units;
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
            owner: self.owner,
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
            self.pool.ready.notify_one();
        }
        Ok(())
    }

    /// Units of its own that wait in both queues.
    pub fn queued(&self) -> usize {
        lock(&self.pool.queues).queued_by(self.owner)
    }

    /// How often a worker left stores waiting because loads ran, whosever they were.
    pub fn held_stores(&self) -> u64 {
        lock(&self.pool.queues).held
    }

    /// Waits until nothing of its own waits or runs, at most `patience`; returns whether that is so.
    pub fn wait_idle(&self, patience: Duration) -> bool {
        let busy = |q: &mut Queues| q.is_busy(self.owner);
        let q = lock(&self.pool.queues);
        let mut q = wait_while(&self.pool.idle, q, patience, busy);
        !busy(&mut q)
    }

    /// Cancels what waits of its own in the queue of `class`.
    pub fn cancel_queued(&self, class: Class) {
        self.pool.cancel_queued(class, Some(self.owner));
    }
}
