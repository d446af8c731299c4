//! Numbers of a tier, read in O(1), and their names.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | [`TierStats`] and the reasons it counts by |
//! | `gate.rs` | [`GateStats`] of the gate before a tier's stores |
//! | `metric.rs` | [`Metric`]: what each has |
//! | `table.rs` | [`METRICS`]: name, unit and meaning of every metric, once |
//! | `prometheus.rs` | [`encode`]: the table as text |

mod gate;
mod metric;
mod prometheus;
mod table;

use std::{collections::HashSet, time::Duration};

pub use gate::{DetectorStats, DropCount, DropsByReason, GateStats, Refusal};
pub use metric::{Kind, Metric, Sample, Snapshot, Unit, Value};
pub use prometheus::encode;
pub use table::METRICS;

/// Numbers repeated names, so that each is exported once: `disk`, `disk-2`, `disk-3`. A scraper refuses the same series
/// twice.
pub(crate) fn distinct<'a>(names: impl Iterator<Item = &'a str>) -> Vec<String> {
    let names: Vec<&str> = names.collect();
    let mut taken = HashSet::new();
    let mut out = Vec::with_capacity(names.len());
    for name in &names {
        let mut own = (*name).to_owned();
        let mut n = 1u32;
        // a numbered name may be the name of another tier
        while taken.contains(&own) || n > 1 && names.contains(&own.as_str()) {
            n += 1;
            own = format!("{name}-{n}");
        }
        taken.insert(own.clone());
        out.push(own);
    }
    out
}

/// Why a block was evicted or a file removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EvictReason {
    /// To make room for another block.
    Capacity,
    /// To come below the bound at start or after a change of it.
    Trim,
    /// Its bytes were provably wrong.
    Corrupt,
    /// The device was full below the bound.
    NoSpace,
    /// Somebody else removed the file.
    External,
}

impl EvictReason {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 5] = [
        Self::Capacity,
        Self::Trim,
        Self::Corrupt,
        Self::NoSpace,
        Self::External,
    ];

    /// The label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Capacity => "capacity",
            Self::Trim => "trim",
            Self::Corrupt => "corrupt",
            Self::NoSpace => "no_space",
            Self::External => "external",
        }
    }
}

/// Why a block was not stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RefuseReason {
    /// Everything left within the bound is pinned or reserved.
    NoRoom,
    /// One block is larger than the bound.
    TooLarge,
    /// The tier is being trimmed below its bound.
    Trimming,
    /// The device is full below the bound.
    NoSpace,
    /// The queue is full.
    QueueFull,
    /// The job was cancelled by a drain or shutdown.
    Cancelled,
    /// The device failed.
    Io,
    /// The job passed its deadline.
    Timeout,
    /// The breaker is open: the device failed or hung a moment ago.
    Breaker,
    /// The tier was opened to read only.
    ReadOnly,
}

impl RefuseReason {
    /// All reasons, in the order of their counters.
    pub const ALL: [Self; 10] = [
        Self::NoRoom,
        Self::TooLarge,
        Self::Trimming,
        Self::NoSpace,
        Self::QueueFull,
        Self::Cancelled,
        Self::Io,
        Self::Timeout,
        Self::Breaker,
        Self::ReadOnly,
    ];

    /// The label value.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::NoRoom => "no_room",
            Self::TooLarge => "too_large",
            Self::Trimming => "trimming",
            Self::NoSpace => "no_space",
            Self::QueueFull => "queue_full",
            Self::Cancelled => "cancelled",
            Self::Io => "io",
            Self::Timeout => "timeout",
            Self::Breaker => "breaker",
            Self::ReadOnly => "read_only",
        }
    }
}

/// Counters and gauges of a tier. Bytes are allocated bytes on the device where a tier has one.
#[derive(Debug, Clone, Default, PartialEq)]
#[non_exhaustive]
pub struct TierStats {
    /// Blocks that can be loaded.
    pub blocks: u64,
    /// Bytes held: blocks, trailers, temporaries, directories and foreign files.
    pub resident_bytes: u64,
    /// Bytes promised to writers.
    pub reserved_bytes: u64,
    /// The highest sum of resident and reserved bytes.
    pub peak_bytes: u64,
    /// The configured bound, if any.
    pub bound_bytes: Option<u64>,
    /// The bound in force, if any.
    pub effective_bound_bytes: Option<u64>,
    /// Whether stores still wait for a walk or trim begun at start: what is held may be above the bound.
    pub trimming: bool,
    /// Bytes below the root beyond the bound, or beyond this member's share of it: to be removed yet, or cannot be.
    pub above_bound_bytes: u64,
    /// Blocks with at least one pin.
    pub pinned_blocks: u64,
    /// The most blocks that were pinned at one time.
    pub pinned_peak: u64,
    /// Requests whose pins were taken back because they did not finish in time.
    pub pin_leases_expired: u64,
    /// Lookups answered with a hit.
    pub lookup_hits: u64,
    /// Lookups answered with a miss.
    pub lookup_misses: u64,
    /// Lookups answered later.
    pub lookup_retries: u64,
    /// Blocks written.
    pub stored_blocks: u64,
    /// Bytes written, trailers included.
    pub stored_bytes: u64,
    /// Stores of blocks that were there already.
    pub present_blocks: u64,
    /// Blocks read and found good.
    pub loaded_blocks: u64,
    /// Bytes read, trailers included.
    pub loaded_bytes: u64,
    /// Blocks that failed to load.
    pub load_failures: u64,
    /// Blocks whose checksum, key or size was wrong.
    pub verification_failures: u64,
    /// Time during which the device worked on stores, summed over jobs.
    pub store_device_time: Duration,
    /// Time during which the device worked on loads, summed over jobs.
    pub load_device_time: Duration,
    /// Blocks gone, by [`EvictReason`].
    pub evicted_blocks: [u64; EvictReason::ALL.len()],
    /// Bytes gone, by [`EvictReason`].
    pub evicted_bytes: [u64; EvictReason::ALL.len()],
    /// Blocks not stored, by [`RefuseReason`].
    pub refused_blocks: [u64; RefuseReason::ALL.len()],
    /// Files that could not be removed (tried again later).
    pub unlink_failures: u64,
    /// Seconds from opening to ready.
    pub startup_seconds: f64,
    /// Blocks found at start.
    pub recovered_blocks: u64,
    /// Leftover temporaries removed at start.
    pub swept_files: u64,
    /// Files below the root that are not ours, found at start.
    pub foreign_files: u64,
    /// Extents that could not be opened or read so far (tried again later).
    pub unopened_extents: u64,
    /// Blocks that the trim at start tried to remove.
    pub trim_candidates: u64,
    /// Seconds since the oldest block was written.
    pub oldest_age_seconds: u64,
    /// Units waiting for a worker.
    pub queued_blocks: u64,
    /// How often a worker left stores waiting because loads ran.
    pub stores_held: u64,
    /// Heap bytes of index and policy.
    pub index_bytes: u64,
    /// The breaker: 0 closed, 1 half-open, 2 open.
    pub breaker_state: u64,
    /// How often the breaker opened.
    pub breaker_opened: u64,
    /// Jobs given up at their deadline.
    pub jobs_timed_out: u64,
    /// Operations given up whose I/O has not returned.
    pub hung_operations: u64,
}

impl TierStats {
    /// Counts a block gone.
    pub(crate) fn evicted(&mut self, reason: EvictReason, bytes: u64) {
        let i = reason as usize;
        if let (Some(n), Some(b)) = (self.evicted_blocks.get_mut(i), self.evicted_bytes.get_mut(i)) {
            *n += 1;
            *b += bytes;
        }
    }

    /// Counts blocks not stored.
    pub(crate) fn refused(&mut self, reason: RefuseReason, blocks: u64) {
        if let Some(n) = self.refused_blocks.get_mut(reason as usize) {
            *n += blocks;
        }
    }
}
