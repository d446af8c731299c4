//! Members whose processes have ended.

use super::ledger::Entry;

/// A member whose process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dead {
    pub(crate) number: u32,
    pub(crate) incarnation: u32,
    /// The number of its namespace, if that is served here.
    pub(crate) served: Option<usize>,
    pub(crate) lease: u64,
}

impl Dead {
    pub(crate) fn of(number: u32, e: &Entry, seeds: &[u64]) -> Self {
        Self {
            number,
            incarnation: e.incarnation,
            served: seeds.iter().position(|&seed| seed == e.seed),
            lease: e.lease,
        }
    }
}
