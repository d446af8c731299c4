//! What works for all tiers of one root: workers and keeper, until the last of the tiers is shut down.

use std::time::Duration;

use crate::{
    fs::{keeper::Keeping, space::Space},
    io::pool::{Class, Pool, PoolShare},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        lock,
    },
};

/// Longest wait at shutdown for I/O that already runs.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);

/// Workers and keeper of a root.
pub(crate) struct Running {
    pool: Pool,
    keeper: Mutex<Option<Keeping>>,
    /// Tiers that are not shut down.
    tiers: AtomicUsize,
}

impl Running {
    /// For `tiers` tiers.
    pub(crate) fn new(pool: Pool, keeper: Option<Keeping>, tiers: usize) -> Self {
        Self {
            pool,
            keeper: Mutex::new(keeper),
            tiers: AtomicUsize::new(tiers),
        }
    }

    /// A tier's part of the workers.
    pub(crate) fn share(&self) -> PoolShare {
        self.pool.share()
    }

    /// A tier ends: its work does, and with the last tier the workers. Returns whether it is the last, and whether
    /// nothing runs any more that it answers for: the last one answers for all.
    pub(crate) fn leave(&self, space: &Space, share: &PoolShare) -> (bool, bool) {
        if self.tiers.fetch_sub(1, Ordering::AcqRel) == 1 {
            space.stop.store(true, Ordering::Relaxed);
            return (true, self.pool.stop(SHUTDOWN_PATIENCE));
        }
        share.cancel_queued(Class::Load);
        share.cancel_queued(Class::Store);
        (false, share.wait_idle(SHUTDOWN_PATIENCE))
    }

    /// Ends the keeper, which lets the root go if all I/O has `ended`.
    pub(crate) fn end_keeper(&self, ended: bool) {
        if let Some(k) = &mut *lock(&self.keeper) {
            k.end(ended);
        }
    }
}
