//! Who is measured: the tier in this process, the device without a tier, and tiers of Python in processes of their own.

use anyhow::Result;
use rustix::time::{ClockId, clock_gettime};

use crate::keys::mix;

/// Blocks to move.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    /// Blocks of another salt are other blocks.
    pub(super) salt: u64,
    /// The first of them.
    pub(super) first: u32,
    /// The slot of the first; the others follow.
    pub(super) slot: u32,
    /// How many.
    pub(super) blocks: u32,
    /// Blocks of a job.
    pub(super) batch: u32,
    /// Jobs under way.
    pub(super) depth: usize,
}

/// What it took.
#[derive(Debug, Clone, Default)]
pub(super) struct Took {
    /// Wall-clock time.
    pub(super) seconds: f64,
    /// CPU time of the process that moved them.
    pub(super) cpu_s: f64,
    /// Time of each job.
    pub(super) jobs_s: Vec<f64>,
}

/// A contender.
pub(super) trait Side {
    /// Stores blocks.
    fn store(&mut self, work: Work) -> Result<Took>;
    /// Loads blocks that were stored.
    fn load(&mut self, work: Work) -> Result<Took>;
    /// Loads `loads` jobs, one at a time, while `store.depth` jobs of fresh blocks are kept under way.
    fn duel(&mut self, store: Work, load: Work, loads: usize) -> Result<Took>;
    /// Ends the tier.
    fn close(&mut self) -> Result<()>;
}

/// A salt of its own for each round and purpose.
pub(super) fn salt(seed: u64, case: u64, round: u64) -> u64 {
    // exact in a JSON number
    mix(mix(seed ^ case << 32) ^ round) >> 16
}

/// CPU time of this process, all threads, user and system.
pub(super) fn cpu_seconds() -> f64 {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}
