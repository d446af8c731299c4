//! A worker's life: it takes units, runs them, and wakes others.

use std::{
    ops::Range,
    panic::{AssertUnwindSafe, catch_unwind},
};

use super::{
    queues::{Queues, TakenUnits},
    size::PoolSize,
    work::{Class, Work, Worker},
};
use crate::sync::{
    Condvar, Mutex,
    atomic::{AtomicBool, Ordering},
    lock, wait,
};

/// What workers share with the pool.
pub(super) struct PoolState {
    pub(super) queues: Mutex<Queues>,
    pub(super) ready: Condvar,
    pub(super) idle: Condvar,
    pub(super) size: PoolSize,
    /// Set once so that units already claimed but not begun are cancelled too.
    pub(super) stopping: AtomicBool,
}

impl PoolState {
    /// Cancels what waits in the queue of `class`, of one owner or of all.
    pub(super) fn cancel_queued(&self, class: Class, owner: Option<usize>) {
        let jobs = lock(&self.queues).take_queued(class, owner);
        for j in jobs {
            (j.next..j.units).for_each(|u| j.work.cancel(u));
        }
        // whoever waits for that may go on
        self.idle.notify_all();
    }
}

fn run_together(shared: &PoolState, work: &dyn Work, range: Range<usize>, own: &mut Worker) {
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

pub(super) fn work_loop(shared: &PoolState, mut own: Worker) {
    let mut q = lock(&shared.queues);
    loop {
        if let Some(claim) = q.claim(shared.size.store_threads) {
            let TakenUnits {
                owner,
                class,
                work,
                range,
                together,
            } = claim;
            let store = usize::from(class == Class::Store);
            q.begin(owner);
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
            let idle = q.end(owner);
            q.running_stores -= store;
            if idle {
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
