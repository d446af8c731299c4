//! Numbers of the gate before a tier's stores: what is in flight, why stores were refused, what its detector knows.

use std::fmt;

/// Why a store was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// With the job, more than `max_inflight_bytes` would be in flight, and something is.
    InflightFull,
    /// The tier is under pressure, and the policy drops this store.
    Pressure,
    /// Pressure cleared a moment ago; every second store is still dropped.
    Cooldown,
}

impl Refusal {
    /// All reasons, in the order in which they are looked at.
    pub const ALL: [Self; 3] = [Self::InflightFull, Self::Pressure, Self::Cooldown];

    /// The word used in logs and metrics labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InflightFull => "inflight_full",
            Self::Pressure => "pressure",
            Self::Cooldown => "cooldown",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Stores refused for one reason, since construction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DropCount {
    /// Store jobs.
    pub stores: u64,
    /// Blocks in them.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl DropCount {
    pub(crate) fn add(&mut self, blocks: u64, bytes: u64) {
        self.stores += 1;
        self.blocks = self.blocks.saturating_add(blocks);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// [`DropCount`] for each [`Refusal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DropsByReason {
    /// [`Refusal::InflightFull`].
    pub inflight_full: DropCount,
    /// [`Refusal::Pressure`].
    pub pressure: DropCount,
    /// [`Refusal::Cooldown`].
    pub cooldown: DropCount,
}

impl DropsByReason {
    /// The count for one reason.
    pub const fn get(&self, reason: Refusal) -> DropCount {
        match reason {
            Refusal::InflightFull => self.inflight_full,
            Refusal::Pressure => self.pressure,
            Refusal::Cooldown => self.cooldown,
        }
    }

    /// The count over all reasons.
    pub fn total(&self) -> DropCount {
        Refusal::ALL
            .iter()
            .map(|&reason| self.get(reason))
            .fold(DropCount::default(), |a, b| DropCount {
                stores: a.stores.saturating_add(b.stores),
                blocks: a.blocks.saturating_add(b.blocks),
                bytes: a.bytes.saturating_add(b.bytes),
            })
    }

    pub(crate) fn add(&mut self, reason: Refusal, blocks: u64, bytes: u64) {
        let count = match reason {
            Refusal::InflightFull => &mut self.inflight_full,
            Refusal::Pressure => &mut self.pressure,
            Refusal::Cooldown => &mut self.cooldown,
        };
        count.add(blocks, bytes);
    }
}

/// What a detector knows, for metrics. What a detector does not have stays zero.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct DetectorStats {
    /// The smoothed latency of stores, in seconds per MiB; zero before the end of warm-up.
    pub ema_s_per_mib: f64,
    /// Whether the tier is under pressure, as of the latest question or observation.
    pub under_pressure: bool,
    /// Whether warm-up is over.
    pub warm: bool,
    /// Completions in a row that left the EMA below the low mark.
    pub streak: u64,
    /// Whether that streak is long enough for stores to pass without asking the policy.
    pub healthy: bool,
    /// Completions observed since construction or reset.
    pub completions: u64,
    /// Failed stores in a row; always zero when the settings ignore failures.
    pub consecutive_failures: u64,
    /// How often pressure began since construction; a reset does not clear it.
    pub activations: u64,
}

/// What a gate knows, for metrics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateStats {
    /// Bytes of stores admitted and not given back.
    pub inflight_bytes: u64,
    /// Jobs admitted and not given back.
    pub inflight_jobs: u64,
    /// The most `inflight_bytes` ever was: above the bound only where a single job is.
    pub peak_inflight_bytes: u64,
    /// The bound on `inflight_bytes`, unless a single job is larger.
    pub max_inflight_bytes: u64,
    /// Jobs admitted since construction.
    pub admitted_stores: u64,
    /// Stores refused since construction, by reason.
    pub drops: DropsByReason,
    /// The detector's side.
    pub detector: DetectorStats,
}
