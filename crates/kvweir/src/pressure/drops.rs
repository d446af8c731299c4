//! Why a gate refuses stores, and how many it refused.

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
    fn add(&mut self, blocks: u64, bytes: u64) {
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

    pub(super) fn add(&mut self, reason: Refusal, blocks: u64, bytes: u64) {
        let count = match reason {
            Refusal::InflightFull => &mut self.inflight_full,
            Refusal::Pressure => &mut self.pressure,
            Refusal::Cooldown => &mut self.cooldown,
        };
        count.add(blocks, bytes);
    }
}
