//! Every metric, once: what is exported, what the manual lists and what tests check comes from [`METRICS`]. Names
//! start with `kvweir_`, carry base units (bytes, seconds), and counters end in `_total`.

use super::{
    EvictReason, GateStats, Refusal, RefuseReason,
    metric::{Metric, Sample, Snapshot, Unit, Value},
};

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
    Metric::gauge("kvweir_blocks", Unit::None, "Blocks that can be loaded.", |s| {
        one(s.tier.blocks)
    }),
    Metric::gauge(
        "kvweir_resident_bytes",
        Unit::Bytes,
        "Bytes on the device: blocks, trailers, temporaries, directories, foreign files.",
        |s| one(s.tier.resident_bytes),
    ),
    Metric::gauge(
        "kvweir_reserved_bytes",
        Unit::Bytes,
        "Bytes promised to writers.",
        |s| one(s.tier.reserved_bytes),
    ),
    Metric::gauge(
        "kvweir_peak_bytes",
        Unit::Bytes,
        "The most that resident and reserved bytes came to together.",
        |s| one(s.tier.peak_bytes),
    ),
    Metric::gauge(
        "kvweir_bound_bytes",
        Unit::Bytes,
        "The configured bound; absent without one.",
        |s| s.tier.bound_bytes.map_or_else(Vec::new, one),
    ),
    Metric::gauge(
        "kvweir_effective_bound_bytes",
        Unit::Bytes,
        "The bound in force: lower than the configured one for a while after the device ran full.",
        |s| s.tier.effective_bound_bytes.map_or_else(Vec::new, one),
    ),
    Metric::gauge(
        "kvweir_above_bound_bytes",
        Unit::Bytes,
        "Bytes below the root beyond the bound or beyond this member's share of it: they are being \
         removed, or cannot be.",
        |s| one(s.tier.above_bound_bytes),
    ),
    Metric::gauge(
        "kvweir_pinned_blocks",
        Unit::None,
        "Blocks with at least one pin.",
        |s| one(s.tier.pinned_blocks),
    ),
    Metric::gauge(
        "kvweir_pinned_peak_blocks",
        Unit::None,
        "The most blocks that were pinned at one time.",
        |s| one(s.tier.pinned_peak),
    ),
    Metric::counter(
        "kvweir_pin_leases_expired_total",
        Unit::None,
        "Requests whose pins were taken back because they did not finish in time.",
        |s| one(s.tier.pin_leases_expired),
    ),
    Metric::counter(
        "kvweir_lookups_total",
        Unit::None,
        "Lookups by answer: hit, miss, or retry (being looked for on disk).",
        |s| {
            let t = s.tier;
            by([
                ("hit", t.lookup_hits),
                ("miss", t.lookup_misses),
                ("retry", t.lookup_retries),
            ])
        },
    )
    .labelled(&["tier", "result"]),
    Metric::counter("kvweir_stored_blocks_total", Unit::None, "Blocks written.", |s| {
        one(s.tier.stored_blocks)
    }),
    Metric::counter(
        "kvweir_stored_bytes_total",
        Unit::Bytes,
        "Bytes written, trailers included.",
        |s| one(s.tier.stored_bytes),
    ),
    Metric::counter(
        "kvweir_present_blocks_total",
        Unit::None,
        "Stores of blocks that were there already; nothing was written.",
        |s| one(s.tier.present_blocks),
    ),
    Metric::counter(
        "kvweir_loaded_blocks_total",
        Unit::None,
        "Blocks read and found good.",
        |s| one(s.tier.loaded_blocks),
    ),
    Metric::counter(
        "kvweir_loaded_bytes_total",
        Unit::Bytes,
        "Bytes read, trailers included.",
        |s| one(s.tier.loaded_bytes),
    ),
    Metric::counter(
        "kvweir_load_failures_total",
        Unit::None,
        "Blocks that failed to load; each is a miss until it is stored again.",
        |s| one(s.tier.load_failures),
    ),
    Metric::counter(
        "kvweir_verification_failures_total",
        Unit::None,
        "Blocks whose checksum, key or size was wrong.",
        |s| one(s.tier.verification_failures),
    ),
    Metric::counter(
        "kvweir_device_seconds_total",
        Unit::Seconds,
        "Time the device worked on jobs, shared out among those that overlap.",
        |s| {
            let (store, load) = (s.tier.store_device_time, s.tier.load_device_time);
            by([("store", store.as_secs_f64()), ("load", load.as_secs_f64())])
        },
    )
    .labelled(&["tier", "direction"]),
    Metric::counter("kvweir_evicted_blocks_total", Unit::None, "Blocks gone.", |s| {
        by(EvictReason::ALL
            .map(EvictReason::as_str)
            .into_iter()
            .zip(s.tier.evicted_blocks))
    })
    .labelled(&["tier", "reason"]),
    Metric::counter("kvweir_evicted_bytes_total", Unit::Bytes, "Bytes gone.", |s| {
        by(EvictReason::ALL
            .map(EvictReason::as_str)
            .into_iter()
            .zip(s.tier.evicted_bytes))
    })
    .labelled(&["tier", "reason"]),
    Metric::counter(
        "kvweir_refused_blocks_total",
        Unit::None,
        "Blocks that the tier was given and did not store.",
        |s| {
            by(RefuseReason::ALL
                .map(RefuseReason::as_str)
                .into_iter()
                .zip(s.tier.refused_blocks))
        },
    )
    .labelled(&["tier", "reason"]),
    Metric::counter(
        "kvweir_unlink_failures_total",
        Unit::None,
        "Files that could not be removed; they stay counted and are tried again.",
        |s| one(s.tier.unlink_failures),
    ),
    Metric::gauge(
        "kvweir_startup_seconds",
        Unit::Seconds,
        "From opening to ready.",
        |s| one(s.tier.startup_seconds),
    ),
    Metric::gauge(
        "kvweir_recovered_blocks",
        Unit::None,
        "Blocks found at start.",
        |s| one(s.tier.recovered_blocks),
    ),
    Metric::gauge(
        "kvweir_swept_files",
        Unit::None,
        "Leftover temporaries removed at start.",
        |s| one(s.tier.swept_files),
    ),
    Metric::gauge(
        "kvweir_foreign_files",
        Unit::None,
        "Files below the root that are not ours, found at start; counted, never touched.",
        |s| one(s.tier.foreign_files),
    ),
    Metric::gauge(
        "kvweir_unopened_extents",
        Unit::None,
        "Extents that could not be opened or read so far: their blocks are misses, and they are tried again.",
        |s| one(s.tier.unopened_extents),
    ),
    Metric::gauge(
        "kvweir_trim_candidates",
        Unit::None,
        "Blocks that the trim at start tried to remove.",
        |s| one(s.tier.trim_candidates),
    ),
    Metric::gauge(
        "kvweir_oldest_age_seconds",
        Unit::Seconds,
        "Since the block that goes next was written.",
        |s| one(s.tier.oldest_age_seconds),
    ),
    Metric::gauge(
        "kvweir_queued_blocks",
        Unit::None,
        "Blocks and probes waiting for a worker.",
        |s| one(s.tier.queued_blocks),
    ),
    Metric::counter(
        "kvweir_stores_held_total",
        Unit::None,
        "How often a worker left stores waiting because loads ran.",
        |s| one(s.tier.stores_held),
    ),
    Metric::gauge(
        "kvweir_index_bytes",
        Unit::Bytes,
        "Memory of index and policy.",
        |s| one(s.tier.index_bytes),
    ),
    Metric::gauge(
        "kvweir_breaker_state",
        Unit::None,
        "Whether the tier is asked at all: 0 closed (it is), 1 half-open, 2 open.",
        |s| one(s.tier.breaker_state),
    ),
    Metric::counter(
        "kvweir_breaker_opened_total",
        Unit::None,
        "How often the breaker opened.",
        |s| one(s.tier.breaker_opened),
    ),
    Metric::counter(
        "kvweir_jobs_timed_out_total",
        Unit::None,
        "Jobs given up at their deadline.",
        |s| one(s.tier.jobs_timed_out),
    ),
    Metric::gauge(
        "kvweir_hung_operations",
        Unit::None,
        "Operations given up whose I/O has not returned.",
        |s| one(s.tier.hung_operations),
    ),
    Metric::gauge(
        "kvweir_pressure_ema_seconds_per_mebibyte",
        Unit::None,
        "Smoothed device time of stores per MiB; zero in warm-up.",
        |s| gate(s, |g| one(g.detector.ema_s_per_mib)),
    ),
    Metric::gauge(
        "kvweir_under_pressure",
        Unit::None,
        "1 under pressure, else 0.",
        |s| gate(s, |g| one(u64::from(g.detector.under_pressure))),
    ),
    Metric::gauge(
        "kvweir_pressure_warm",
        Unit::None,
        "1 once warm-up is over, else 0.",
        |s| gate(s, |g| one(u64::from(g.detector.warm))),
    ),
    Metric::gauge(
        "kvweir_pressure_healthy",
        Unit::None,
        "1 while stores pass without asking the policy, else 0.",
        |s| gate(s, |g| one(u64::from(g.detector.healthy))),
    ),
    Metric::gauge(
        "kvweir_pressure_streak",
        Unit::None,
        "Completions in a row that left the EMA below the low mark.",
        |s| gate(s, |g| one(g.detector.streak)),
    ),
    Metric::gauge(
        "kvweir_pressure_completions",
        Unit::None,
        "Completed stores observed since start or reset.",
        |s| gate(s, |g| one(g.detector.completions)),
    ),
    Metric::gauge(
        "kvweir_pressure_consecutive_failures",
        Unit::None,
        "Failed stores in a row.",
        |s| gate(s, |g| one(g.detector.consecutive_failures)),
    ),
    Metric::counter(
        "kvweir_pressure_activations_total",
        Unit::None,
        "How often pressure began.",
        |s| gate(s, |g| one(g.detector.activations)),
    ),
    Metric::gauge(
        "kvweir_inflight_bytes",
        Unit::Bytes,
        "Bytes of stores admitted and not completed.",
        |s| gate(s, |g| one(g.inflight_bytes)),
    ),
    Metric::gauge(
        "kvweir_inflight_jobs",
        Unit::None,
        "Store jobs admitted and not completed.",
        |s| gate(s, |g| one(g.inflight_jobs)),
    ),
    Metric::gauge(
        "kvweir_inflight_peak_bytes",
        Unit::Bytes,
        "The most bytes that were in flight.",
        |s| gate(s, |g| one(g.peak_inflight_bytes)),
    ),
    Metric::gauge(
        "kvweir_inflight_max_bytes",
        Unit::Bytes,
        "The bound on bytes in flight.",
        |s| gate(s, |g| one(g.max_inflight_bytes)),
    ),
    Metric::counter(
        "kvweir_admitted_stores_total",
        Unit::None,
        "Store jobs that the gate admitted.",
        |s| gate(s, |g| one(g.admitted_stores)),
    ),
    Metric::counter(
        "kvweir_dropped_stores_total",
        Unit::None,
        "Store jobs that the gate refused.",
        |s| {
            gate(s, |g| {
                by(Refusal::ALL.map(|r| (r.as_str(), g.drops.get(r).stores)))
            })
        },
    )
    .labelled(&["tier", "reason"]),
    Metric::counter(
        "kvweir_dropped_blocks_total",
        Unit::None,
        "Blocks of store jobs that the gate refused.",
        |s| {
            gate(s, |g| {
                by(Refusal::ALL.map(|r| (r.as_str(), g.drops.get(r).blocks)))
            })
        },
    )
    .labelled(&["tier", "reason"]),
    Metric::counter(
        "kvweir_dropped_bytes_total",
        Unit::Bytes,
        "Bytes of store jobs that the gate refused.",
        |s| {
            gate(
                s,
                |g| by(Refusal::ALL.map(|r| (r.as_str(), g.drops.get(r).bytes))),
            )
        },
    )
    .labelled(&["tier", "reason"]),
];
