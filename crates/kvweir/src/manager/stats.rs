//! Counters of the manager.

use std::time::Duration;

use crate::tier::Direction;

/// Counters since the manager was made, in blocks unless said otherwise.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct ManagerStats {
    /// Lookups that found the block readable in the primary tier.
    pub primary_hits: u64,
    /// Blocks that a secondary tier answered "hit" for and that were queued to be brought up.
    pub queued_promotions: u64,
    /// Blocks brought up from a secondary tier.
    pub promoted_blocks: u64,
    /// Blocks that a secondary tier answered "hit" for but could not deliver.
    pub failed_promotions: u64,
    /// Hits in a secondary tier for which the primary had no room.
    pub promotions_without_room: u64,
    /// Blocks that a secondary tier could not store.
    pub failed_cascades: u64,
    /// Store jobs that a gate refused.
    pub refused_cascades: u64,
}

/// Times from the submission of a job to its report, in nanoseconds, not yet taken by
/// [`Manager::take_job_times`](super::Manager::take_job_times); at most 65,536 of each kind are kept.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct JobTimes {
    /// Of store jobs.
    pub stores: Vec<u64>,
    /// Of load jobs.
    pub loads: Vec<u64>,
}

impl JobTimes {
    const KEPT: usize = 1 << 16;

    pub(super) fn push(&mut self, direction: Direction, took: Duration) {
        let kind = match direction {
            Direction::Store => &mut self.stores,
            Direction::Load => &mut self.loads,
        };
        if kind.len() < Self::KEPT {
            kind.push(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
        }
    }
}
