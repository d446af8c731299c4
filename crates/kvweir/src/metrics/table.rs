//! Every metric, once: what is exported, what the manual lists and what tests check comes from [`METRICS`]. Names
//! start with `kvweir_`, carry base units (bytes, seconds), and counters end in `_total`.

use super::{EvictReason, RefuseReason, TierStats};
use crate::pressure::{GateStats, Refusal};

/// Whether a number only rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Rises until the process ends.
    Counter,
    /// Goes up and down.
    Gauge,
}

impl Kind {
    /// The word of the text format.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Things, or what the name says.
    None,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

impl Unit {
    /// The suffix in the name; empty for none.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
        }
    }
}

/// What the metrics of one tier are read from.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    /// The tier's numbers.
    pub tier: &'a TierStats,
    /// Those of the gate before its stores, if it has one.
    pub gate: Option<&'a GateStats>,
}

/// A number as it is counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// Whole.
    Int(u64),
    /// Measured.
    Real(f64),
}

impl From<u64> for Value {
    fn from(n: u64) -> Self {
        Self::Int(n)
    }
}

impl From<f64> for Value {
    fn from(x: f64) -> Self {
        Self::Real(x)
    }
}

/// One value of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Value of the metric's second label, if it has one.
    pub label: Option<&'static str>,
    /// The number.
    pub value: Value,
}

/// A metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// The whole name, as it is scraped.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// What it counts.
    pub unit: Unit,
    /// Names of labels; `tier` first.
    pub labels: &'static [&'static str],
    /// Its values for one tier; none where the tier does not have it.
    pub read: fn(&Snapshot<'_>) -> Vec<Sample>,
}

fn one(value: impl Into<Value>) -> Vec<Sample> {
    vec![Sample {
        label: None,
        value: value.into(),
    }]
}

fn by<V: Into<Value>>(values: impl IntoIterator<Item = (&'static str, V)>) -> Vec<Sample> {
    let sample = |(label, value): (_, V)| Sample {
        label: Some(label),
        value: value.into(),
    };
    values.into_iter().map(sample).collect()
}

fn gate(s: &Snapshot<'_>, read: impl FnOnce(&GateStats) -> Vec<Sample>) -> Vec<Sample> {
    s.gate.map_or_else(Vec::new, read)
}

/// All metrics, in the order in which they are written.
pub const METRICS: &[Metric] = &[
    Metric {
        name: "kvweir_blocks",
        help: "Blocks that can be loaded.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.blocks),
    },
    Metric {
        name: "kvweir_resident_bytes",
        help: "Bytes on the device: blocks, trailers, temporaries, directories, foreign files.",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["tier"],
        read: |s| one(s.tier.resident_bytes),
    },
    Metric {
        name: "kvweir_reserved_bytes",
        help: "Bytes promised to writers.",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["tier"],
        read: |s| one(s.tier.reserved_bytes),
    },
    Metric {
        name: "kvweir_peak_bytes",
        help: "The most that resident and reserved bytes came to together.",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["tier"],
        read: |s| one(s.tier.peak_bytes),
    },
    Metric {
        name: "kvweir_bound_bytes",
        help: "The configured bound; absent without one.",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["tier"],
        read: |s| s.tier.bound_bytes.map_or_else(Vec::new, one),
    },
    Metric {
        name: "kvweir_effective_bound_bytes",
        help: "The bound in force: lower than the configured one for a while after the device ran full.",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["tier"],
        read: |s| s.tier.effective_bound_bytes.map_or_else(Vec::new, one),
    },
    Metric {
        name: "kvweir_above_bound_bytes",
        help: "Bytes below the root beyond the bound or beyond this member's share of it: they are being removed, or cannot be.",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["tier"],
        read: |s| one(s.tier.above_bound_bytes),
    },
    Metric {
        name: "kvweir_pinned_blocks",
        help: "Blocks with at least one pin.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.pinned_blocks),
    },
    Metric {
        name: "kvweir_pinned_peak_blocks",
        help: "The most blocks that were pinned at one time.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.pinned_peak),
    },
    Metric {
        name: "kvweir_pin_leases_expired_total",
        help: "Requests whose pins were taken back because they did not finish in time.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.pin_leases_expired),
    },
    Metric {
        name: "kvweir_lookups_total",
        help: "Lookups by answer: hit, miss, or retry (being looked for on disk).",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier", "result"],
        read: |s| {
            let t = s.tier;
            by([
                ("hit", t.lookup_hits),
                ("miss", t.lookup_misses),
                ("retry", t.lookup_retries),
            ])
        },
    },
    Metric {
        name: "kvweir_stored_blocks_total",
        help: "Blocks written.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.stored_blocks),
    },
    Metric {
        name: "kvweir_stored_bytes_total",
        help: "Bytes written, trailers included.",
        kind: Kind::Counter,
        unit: Unit::Bytes,
        labels: &["tier"],
        read: |s| one(s.tier.stored_bytes),
    },
    Metric {
        name: "kvweir_present_blocks_total",
        help: "Stores of blocks that were there already; nothing was written.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.present_blocks),
    },
    Metric {
        name: "kvweir_loaded_blocks_total",
        help: "Blocks read and found good.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.loaded_blocks),
    },
    Metric {
        name: "kvweir_loaded_bytes_total",
        help: "Bytes read, trailers included.",
        kind: Kind::Counter,
        unit: Unit::Bytes,
        labels: &["tier"],
        read: |s| one(s.tier.loaded_bytes),
    },
    Metric {
        name: "kvweir_load_failures_total",
        help: "Blocks that failed to load; each is a miss until it is stored again.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.load_failures),
    },
    Metric {
        name: "kvweir_verification_failures_total",
        help: "Blocks whose checksum, key or size was wrong.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.verification_failures),
    },
    Metric {
        name: "kvweir_device_seconds_total",
        help: "Time the device worked on jobs, shared out among those that overlap.",
        kind: Kind::Counter,
        unit: Unit::Seconds,
        labels: &["tier", "direction"],
        read: |s| {
            let (store, load) = (s.tier.store_device_time, s.tier.load_device_time);
            by([("store", store.as_secs_f64()), ("load", load.as_secs_f64())])
        },
    },
    Metric {
        name: "kvweir_evicted_blocks_total",
        help: "Blocks gone.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier", "reason"],
        read: |s| {
            by(EvictReason::ALL
                .map(EvictReason::as_str)
                .into_iter()
                .zip(s.tier.evicted_blocks))
        },
    },
    Metric {
        name: "kvweir_evicted_bytes_total",
        help: "Bytes gone.",
        kind: Kind::Counter,
        unit: Unit::Bytes,
        labels: &["tier", "reason"],
        read: |s| {
            by(EvictReason::ALL
                .map(EvictReason::as_str)
                .into_iter()
                .zip(s.tier.evicted_bytes))
        },
    },
    Metric {
        name: "kvweir_refused_blocks_total",
        help: "Blocks that the tier was given and did not store.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier", "reason"],
        read: |s| {
            by(RefuseReason::ALL
                .map(RefuseReason::as_str)
                .into_iter()
                .zip(s.tier.refused_blocks))
        },
    },
    Metric {
        name: "kvweir_unlink_failures_total",
        help: "Files that could not be removed; they stay counted and are tried again.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.unlink_failures),
    },
    Metric {
        name: "kvweir_startup_seconds",
        help: "From opening to ready.",
        kind: Kind::Gauge,
        unit: Unit::Seconds,
        labels: &["tier"],
        read: |s| one(s.tier.startup_seconds),
    },
    Metric {
        name: "kvweir_recovered_blocks",
        help: "Blocks found at start.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.recovered_blocks),
    },
    Metric {
        name: "kvweir_swept_files",
        help: "Leftover temporaries removed at start.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.swept_files),
    },
    Metric {
        name: "kvweir_foreign_files",
        help: "Files below the root that are not ours, found at start; counted, never touched.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.foreign_files),
    },
    Metric {
        name: "kvweir_unopened_extents",
        help: "Extents that could not be opened or read so far: their blocks are misses, and they are tried again.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.unopened_extents),
    },
    Metric {
        name: "kvweir_trim_candidates",
        help: "Blocks that the trim at start tried to remove.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.trim_candidates),
    },
    Metric {
        name: "kvweir_oldest_age_seconds",
        help: "Since the block that goes next was written.",
        kind: Kind::Gauge,
        unit: Unit::Seconds,
        labels: &["tier"],
        read: |s| one(s.tier.oldest_age_seconds),
    },
    Metric {
        name: "kvweir_queued_blocks",
        help: "Blocks and probes waiting for a worker.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.queued_blocks),
    },
    Metric {
        name: "kvweir_stores_held_total",
        help: "How often a worker left stores waiting because loads ran.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.stores_held),
    },
    Metric {
        name: "kvweir_index_bytes",
        help: "Memory of index and policy.",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["tier"],
        read: |s| one(s.tier.index_bytes),
    },
    Metric {
        name: "kvweir_breaker_state",
        help: "Whether the tier is asked at all: 0 closed (it is), 1 half-open, 2 open.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.breaker_state),
    },
    Metric {
        name: "kvweir_breaker_opened_total",
        help: "How often the breaker opened.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.breaker_opened),
    },
    Metric {
        name: "kvweir_jobs_timed_out_total",
        help: "Jobs given up at their deadline.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.jobs_timed_out),
    },
    Metric {
        name: "kvweir_hung_operations",
        help: "Operations given up whose I/O has not returned.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| one(s.tier.hung_operations),
    },
    Metric {
        name: "kvweir_pressure_ema_seconds_per_mebibyte",
        help: "Smoothed device time of stores per MiB; zero in warm-up.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| gate(s, |g| one(g.detector.ema_s_per_mib)),
    },
    Metric {
        name: "kvweir_under_pressure",
        help: "1 under pressure, else 0.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| gate(s, |g| one(u64::from(g.detector.under_pressure))),
    },
    Metric {
        name: "kvweir_pressure_warm",
        help: "1 once warm-up is over, else 0.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| gate(s, |g| one(u64::from(g.detector.warm))),
    },
    Metric {
        name: "kvweir_pressure_healthy",
        help: "1 while stores pass without asking the policy, else 0.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| gate(s, |g| one(u64::from(g.detector.healthy))),
    },
    Metric {
        name: "kvweir_pressure_streak",
        help: "Completions in a row that left the EMA below the low mark.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| gate(s, |g| one(g.detector.streak)),
    },
    Metric {
        name: "kvweir_pressure_completions",
        help: "Completed stores observed since start or reset.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| gate(s, |g| one(g.detector.completions)),
    },
    Metric {
        name: "kvweir_pressure_consecutive_failures",
        help: "Failed stores in a row.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| gate(s, |g| one(g.detector.consecutive_failures)),
    },
    Metric {
        name: "kvweir_pressure_activations_total",
        help: "How often pressure began.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| gate(s, |g| one(g.detector.activations)),
    },
    Metric {
        name: "kvweir_inflight_bytes",
        help: "Bytes of stores admitted and not completed.",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["tier"],
        read: |s| gate(s, |g| one(g.inflight_bytes)),
    },
    Metric {
        name: "kvweir_inflight_jobs",
        help: "Store jobs admitted and not completed.",
        kind: Kind::Gauge,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| gate(s, |g| one(g.inflight_jobs)),
    },
    Metric {
        name: "kvweir_inflight_peak_bytes",
        help: "The most bytes that were in flight.",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["tier"],
        read: |s| gate(s, |g| one(g.peak_inflight_bytes)),
    },
    Metric {
        name: "kvweir_inflight_max_bytes",
        help: "The bound on bytes in flight.",
        kind: Kind::Gauge,
        unit: Unit::Bytes,
        labels: &["tier"],
        read: |s| gate(s, |g| one(g.max_inflight_bytes)),
    },
    Metric {
        name: "kvweir_admitted_stores_total",
        help: "Store jobs that the gate admitted.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier"],
        read: |s| gate(s, |g| one(g.admitted_stores)),
    },
    Metric {
        name: "kvweir_dropped_stores_total",
        help: "Store jobs that the gate refused.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier", "reason"],
        read: |s| {
            gate(s, |g| {
                by(Refusal::ALL.map(|r| (r.as_str(), g.drops.get(r).stores)))
            })
        },
    },
    Metric {
        name: "kvweir_dropped_blocks_total",
        help: "Blocks of store jobs that the gate refused.",
        kind: Kind::Counter,
        unit: Unit::None,
        labels: &["tier", "reason"],
        read: |s| {
            gate(s, |g| {
                by(Refusal::ALL.map(|r| (r.as_str(), g.drops.get(r).blocks)))
            })
        },
    },
    Metric {
        name: "kvweir_dropped_bytes_total",
        help: "Bytes of store jobs that the gate refused.",
        kind: Kind::Counter,
        unit: Unit::Bytes,
        labels: &["tier", "reason"],
        read: |s| {
            gate(
                s,
                |g| by(Refusal::ALL.map(|r| (r.as_str(), g.drops.get(r).bytes))),
            )
        },
    },
];
