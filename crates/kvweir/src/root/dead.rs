//! Members whose processes have ended.

use super::ledger::Entry;

/// A member whose process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dead {
    pub(crate) number: u32,
    pub(crate) incarnation: u32,
    /// Of our namespace.
    pub(crate) ours: bool,
    pub(crate) lease: u64,
}

impl Dead {
    pub(crate) fn of(number: u32, e: &Entry, seed: u64) -> Self {
        Self {
            number,
            incarnation: e.incarnation,
            ours: e.seed == seed,
            lease: e.lease,
        }
    }
}
