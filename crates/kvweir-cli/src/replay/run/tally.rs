//! What adds up over the lives of a run.

use std::{collections::BTreeMap, path::Path, sync::Arc, time::Duration};

use hdrhistogram::Histogram;
use kvweir::{
    clock::{Clock, Instant},
    events::Medium,
    manager::{Found, JobTimes},
    metrics::{RefuseReason, TierStats},
    pressure::{GateStats, Refusal},
};

use super::{
    life::Life,
    notes::notes,
    told::{Compared, Told},
};
use crate::{
    settings::ReplaySettings,
    summary::{PrimarySummary, Quantiles, Sample, Summary, TierSummary, Timeline},
};

/// What a run with real I/O yields.
#[derive(Debug)]
pub(crate) struct Outcome {
    /// The numbers at the end.
    pub(crate) summary: Summary,
    /// The numbers over time, for the report.
    pub(crate) timeline: Timeline,
}

/// Everything measured so far.
pub(super) struct Tally {
    clock: Arc<dyn Clock>,
    began: Instant,
    summary: Summary,
    tier: TierSummary,
    lookups: Histogram<u64>,
    stores: Histogram<u64>,
    loads: Histogram<u64>,
    recent_stores: Histogram<u64>,
    recent_loads: Histogram<u64>,
    told: Told,
    timeline: Timeline,
    block_bytes: u64,
    dropped: u64,
}

/// A histogram of nanoseconds up to an hour, with three digits.
fn histogram() -> Histogram<u64> {
    // the bounds are valid constants
    Histogram::new_with_bounds(1, 3_600_000_000_000, 3).unwrap_or_else(|_| unreachable!())
}

impl Tally {
    pub(super) fn new(settings: &ReplaySettings, clock: Arc<dyn Clock>) -> Self {
        let p = &settings.pressure;
        let names = vec!["primary".to_owned(), "fs".to_owned()];
        Self {
            began: clock.now(),
            clock,
            summary: Summary::default(),
            tier: TierSummary::default(),
            lookups: histogram(),
            stores: histogram(),
            loads: histogram(),
            recent_stores: histogram(),
            recent_loads: histogram(),
            told: Told::default(),
            timeline: Timeline::new(names, settings.max_bytes, p.high_water_s, p.low_water_s),
            block_bytes: settings.block_bytes,
            dropped: 0,
        }
    }

    pub(super) fn elapsed(&self) -> Duration {
        self.clock.now().since(self.began)
    }

    /// Requests finished.
    pub(super) fn requests(&self) -> u64 {
        self.summary.requests
    }

    pub(super) fn finished(&mut self, requests: u64) {
        self.summary.requests += requests;
    }

    pub(super) fn wrong_blocks(&self) -> u64 {
        self.summary.wrong_blocks
    }

    pub(super) fn interrupted(&mut self) {
        self.summary.interrupted = true;
    }

    pub(super) fn restarted(&mut self, settings: &ReplaySettings, root: &Path) {
        self.summary.restarts += 1;
        self.told.reopened(settings, root);
    }

    pub(super) fn timed_lookup(&mut self, lookup: impl FnOnce() -> Found) -> Found {
        let before = self.clock.now();
        let found = lookup();
        record(&mut self.lookups, self.clock.now().since(before));
        found
    }

    /// A request's leading hits are known.
    pub(super) fn resolved(&mut self, blocks: usize, in_primary: usize, in_tier: usize) {
        self.summary.blocks_requested += blocks as u64;
        self.summary.primary.hits += in_primary as u64;
        self.tier.hits += in_tier as u64;
    }

    /// Blocks were computed and not kept: the primary tier was full of blocks in use.
    pub(super) fn without_slot(&mut self, blocks: usize) {
        self.summary.primary.without_slot += blocks as u64;
    }

    /// A loaded block was compared.
    pub(super) fn checked(&mut self, id: u64, right: bool) {
        self.summary.blocks_checked += 1;
        if !right {
            self.summary.wrong_blocks += 1;
            crate::output::say(&format!(
                "error: block {id} does not hold the bytes that were stored for it"
            ));
        }
    }

    /// Takes from `life` what was measured since the last call.
    pub(super) fn take_from(&mut self, life: &mut Life) {
        self.job_times(&life.manager.take_job_times());
        let mut events = Vec::new();
        life.manager.take_events(&mut events);
        self.told.take(&events);
    }

    fn job_times(&mut self, times: &JobTimes) {
        for (nanos, all, recent) in [
            (&times.stores, &mut self.stores, &mut self.recent_stores),
            (&times.loads, &mut self.loads, &mut self.recent_loads),
        ] {
            for &n in nanos {
                record(all, Duration::from_nanos(n));
                record(recent, Duration::from_nanos(n));
            }
        }
    }

    /// Adds a point to the timeline; returns the bytes moved so far.
    pub(super) fn sample(&mut self, life: &Life) -> u64 {
        let stats = life.manager.tier_stats();
        let Some((_, tier, gate)) = stats.first() else {
            return 0;
        };
        let us = |h: &Histogram<u64>, q| (!h.is_empty()).then(|| h.value_at_quantile(q) as f64 / 1e3);
        let share = |n| share(n, self.summary.blocks_requested);
        let primary = share(self.summary.primary.hits);
        let below = share(self.tier.hits);
        let dropped = gate.as_ref().map_or(0, |g| g.drops.total().blocks) + refused_blocks(tier);
        self.timeline.push(Sample {
            t_s: self.elapsed().as_secs_f64(),
            requests: self.summary.requests,
            hit_rate: primary + below,
            tier_hit_rates: vec![primary, below],
            bytes_resident: tier.resident_bytes,
            store_p50_us: us(&self.recent_stores, 0.5),
            store_p99_us: us(&self.recent_stores, 0.99),
            load_p50_us: us(&self.recent_loads, 0.5),
            load_p99_us: us(&self.recent_loads, 0.99),
            ema_s_per_mib: gate
                .as_ref()
                .filter(|g| g.detector.warm)
                .map(|g| g.detector.ema_s_per_mib),
            dropped_blocks: self.dropped + dropped,
        });
        self.recent_stores.reset();
        self.recent_loads.reset();
        self.tier.bytes_stored + self.tier.bytes_loaded + tier.stored_bytes + tier.loaded_bytes
    }

    /// A life ended: takes what it has left to tell, and adds up its tier's numbers.
    pub(super) fn add_life(&mut self, life: &mut Life) {
        self.take_from(life);
        self.sample(life);
        self.summary.primary.evictions += life.manager.primary().stats().evicted;
        let stats = life.manager.tier_stats();
        let Some((name, s, gate)) = stats.first() else {
            return;
        };
        let t = &mut self.tier;
        t.name.clone_from(name);
        t.medium = Medium::Storage.to_string();
        t.blocks_stored += s.stored_blocks;
        t.bytes_stored += s.stored_bytes;
        t.blocks_loaded += s.loaded_blocks;
        t.bytes_loaded += s.loaded_bytes;
        t.device_store_s += s.store_device_time.as_secs_f64();
        t.device_load_s += s.load_device_time.as_secs_f64();
        t.evicted_blocks += s.evicted_blocks.iter().sum::<u64>();
        t.evicted_bytes += s.evicted_bytes.iter().sum::<u64>();
        t.load_failures += s.load_failures;
        t.bytes_resident = s.resident_bytes;
        t.bytes_resident_peak = t.bytes_resident_peak.max(s.peak_bytes);
        t.bound_bytes = s.bound_bytes;
        t.pinned_peak = t.pinned_peak.max(s.pinned_peak);
        t.pinned_end = s.pinned_blocks;
        for (reason, n) in RefuseReason::ALL
            .iter()
            .zip(s.refused_blocks)
            .filter(|(_, n)| *n > 0)
        {
            *t.refused.entry(reason.as_str().to_owned()).or_default() += n;
        }
        let drops = gate
            .iter()
            .flat_map(|g| Refusal::ALL.map(|r| (r, g.drops.get(r).blocks)));
        for (reason, n) in drops.filter(|(_, n)| *n > 0) {
            *t.drops.entry(reason.as_str().to_owned()).or_default() += n;
        }
        self.dropped += gate.as_ref().map_or(0, dropped_blocks) + refused_blocks(s);
    }

    /// The end: rates, quantiles, and whether the events agree with the directory.
    pub(super) fn finish(self, last: &Life, settings: &ReplaySettings) -> Outcome {
        let mut tier = self.tier;
        let mut s = self.summary;
        tier.store_gb_s = rate(tier.bytes_stored, tier.device_store_s);
        tier.load_gb_s = rate(tier.bytes_loaded, tier.device_load_s);
        tier.hit_rate = share(tier.hits, s.blocks_requested);
        s.primary = PrimarySummary {
            hit_rate: share(s.primary.hits, s.blocks_requested),
            bytes: settings.primary_bytes,
            ..s.primary
        };
        s.prefix_hit_rate = s.primary.hit_rate + tier.hit_rate;
        s.elapsed_s = self.clock.now().since(self.began).as_secs_f64();
        s.bytes_resident_peak = tier.bytes_resident_peak;
        let stored = tier.blocks_stored * self.block_bytes;
        s.write_amplification = if stored == 0 {
            0.0
        } else {
            tier.bytes_stored as f64 / stored as f64
        };
        (s.events_match_directory, s.events_note) = match self.told.compare(settings, last) {
            Compared::Same => (Some(true), None),
            Compared::Differs(first) => (Some(false), Some(first)),
            Compared::NotChecked(why) => (None, Some(why)),
        };
        s.latencies = BTreeMap::from([
            ("lookup".to_owned(), Quantiles::of_nanos(&self.lookups)),
            ("store".to_owned(), Quantiles::of_nanos(&self.stores)),
            ("load".to_owned(), Quantiles::of_nanos(&self.loads)),
        ]);
        s.tiers = vec![tier];
        s.notes = notes(&s, settings, last.layout);
        Outcome {
            summary: s,
            timeline: self.timeline,
        }
    }
}

fn record(h: &mut Histogram<u64>, d: Duration) {
    h.saturating_record(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX));
}

fn share(part: u64, whole: u64) -> f64 {
    if whole == 0 {
        0.0
    } else {
        part as f64 / whole as f64
    }
}

fn rate(bytes: u64, seconds: f64) -> f64 {
    if seconds > 0.0 {
        bytes as f64 / 1e9 / seconds
    } else {
        0.0
    }
}

fn dropped_blocks(g: &GateStats) -> u64 {
    g.drops.total().blocks
}

fn refused_blocks(s: &TierStats) -> u64 {
    s.refused_blocks.iter().sum()
}
