//! Counters of the manager.

use std::time::Duration;

use crate::tier::{Direction, Report};

/// Counters since the manager was made, in blocks unless said otherwise.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct ManagerStats {
    /// Blocks that requests looked for in the primary tier; while a request waits, each once.
    pub primary_queries: u64,
    /// Those that were readable there.
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
    /// Requests that had to wait until others had loaded what was promoted for them.
    pub held_back_requests: u64,
    /// Plans that left out a part of a hit for which there was no room.
    pub cut_requests: u64,
}

/// What went between the manager and one secondary tier, since the manager was made.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
#[non_exhaustive]
pub struct TierTraffic {
    /// Blocks that it was asked for.
    pub queries: u64,
    /// Those of them that it holds.
    pub hits: u64,
    /// Blocks promoted.
    pub loaded_blocks: u64,
    /// Blocks cascaded.
    pub stored_blocks: u64,
    /// The device's time for loads, in seconds.
    pub load_seconds: f64,
    /// The device's time for stores, in seconds.
    pub store_seconds: f64,
    /// Load jobs of which a block did not come.
    pub failed_loads: u64,
    /// Store jobs that the device failed.
    pub failed_stores: u64,
    /// Load jobs under way.
    pub active_loads: u64,
    /// Their blocks.
    pub loading_blocks: u64,
    /// Store jobs under way.
    pub active_stores: u64,
    /// Their blocks.
    pub storing_blocks: u64,
}

impl TierTraffic {
    pub(super) fn end_load(&mut self, blocks: u64, report: &Report) {
        self.active_loads = self.active_loads.saturating_sub(1);
        self.loading_blocks = self.loading_blocks.saturating_sub(blocks);
        self.loaded_blocks += report.blocks.iter().filter(|b| b.is_ok()).count() as u64;
        self.load_seconds += report.device_time.as_secs_f64();
        self.failed_loads += u64::from(!report.all_ok());
    }

    pub(super) fn end_store(&mut self, blocks: u64, report: &Report) {
        self.active_stores = self.active_stores.saturating_sub(1);
        self.storing_blocks = self.storing_blocks.saturating_sub(blocks);
        self.stored_blocks += report.blocks.iter().filter(|b| b.is_ok()).count() as u64;
        self.store_seconds += report.device_time.as_secs_f64();
        self.failed_stores += u64::from(report.failed_on_device());
    }
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
