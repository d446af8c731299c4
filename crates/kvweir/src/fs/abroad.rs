//! A tier in a child that was forked from the process that opened it. Its threads are not there, and a lock that one of
//! them held is held for ever: so no lock is touched, no handle of a thread used, no file let go of. Lookups miss, jobs
//! are reported [`Closed`](ErrorKind::Closed), everything else does nothing, and it is said once. The child can open a
//! tier of its own.

use super::FsTier;
use crate::{
    error::ErrorKind,
    tier::{Direction, JobId, Report},
};

impl FsTier {
    /// Whether this process is another than the one that opened the tier: one load.
    #[inline]
    pub(super) fn is_abroad(&self) -> bool {
        self.home.is_elsewhere() && self.tell_abroad()
    }

    /// As [`is_abroad`](Self::is_abroad), also for a fork that the C library does not know of.
    pub(super) fn is_surely_abroad(&self) -> bool {
        self.home.is_surely_elsewhere() && self.tell_abroad()
    }

    #[cold]
    fn tell_abroad(&self) -> bool {
        if self.home.is_news() {
            tracing::error!(tier = %self.space.params.name, "{}", self.home.told_elsewhere("tier"));
        }
        true
    }

    /// Reports a job that this process cannot do.
    pub(super) fn refuse_abroad(&mut self, id: JobId, direction: Direction, blocks: usize) {
        self.refused
            .push(Report::refused(id, direction, blocks, ErrorKind::Closed));
    }

    /// Lets nothing go that is another process's.
    pub(super) fn forget_all(&mut self) {
        // threads that are not there, and what may lie in the middle of a change
        std::mem::forget(std::sync::Arc::clone(&self.running));
        std::mem::forget(std::sync::Arc::clone(&self.space));
    }
}
