//! Numbers of pacing.

/// Numbers since the start.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PacingStats {
    /// Requests whose hit was cut because it did not fit.
    pub cut_requests: u64,
    /// Blocks that the tier held and that were not promoted because of that.
    pub cut_blocks: u64,
    /// Requests that were held back for others.
    pub held_back_requests: u64,
    /// Blocks promised again because the primary had evicted them before they were read.
    pub repeated_blocks: u64,
    /// Blocks for which the primary had no slot when they were to be promoted.
    pub refused_blocks: u64,
    /// Slots of the primary promised to waiting requests now.
    pub promised_slots: u64,
}
