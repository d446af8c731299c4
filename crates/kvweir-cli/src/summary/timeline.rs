//! Samples of a run over time, in bounded memory: when there are too many, neighbours are merged in pairs.

/// More samples than this halve the resolution.
pub(crate) const SAMPLES_MAX: usize = 2_000;

/// The state of a run at one moment.
#[derive(Debug, Clone, Default, PartialEq)]
pub(crate) struct Sample {
    /// Seconds since the start.
    pub(crate) t_s: f64,
    /// Requests finished.
    pub(crate) requests: u64,
    /// Prefix hit rate so far.
    pub(crate) hit_rate: f64,
    /// The part of each tier, in the order of [`Timeline::tier_names`].
    pub(crate) tier_hit_rates: Vec<f64>,
    /// Bytes in secondary tiers now.
    pub(crate) bytes_resident: u64,
    /// Median store since the sample before; none if nothing was stored.
    pub(crate) store_p50_us: Option<f64>,
    /// Its 99th percentile.
    pub(crate) store_p99_us: Option<f64>,
    /// Median load since the sample before.
    pub(crate) load_p50_us: Option<f64>,
    /// Its 99th percentile.
    pub(crate) load_p99_us: Option<f64>,
    /// The detector's EMA; none before its warm-up.
    pub(crate) ema_s_per_mib: Option<f64>,
    /// Blocks dropped so far.
    pub(crate) dropped_blocks: u64,
}

impl Sample {
    /// One sample for `self` and the `later` one: the later state, and the peaks of both.
    fn merge(self, later: Self) -> Self {
        let peak = |a: Option<f64>, b: Option<f64>| a.into_iter().chain(b).reduce(f64::max);
        let mean = |a: Option<f64>, b: Option<f64>| match (a, b) {
            (Some(a), Some(b)) => Some(f64::midpoint(a, b)),
            (a, b) => a.or(b),
        };
        Self {
            bytes_resident: self.bytes_resident.max(later.bytes_resident),
            store_p50_us: mean(self.store_p50_us, later.store_p50_us),
            store_p99_us: peak(self.store_p99_us, later.store_p99_us),
            load_p50_us: mean(self.load_p50_us, later.load_p50_us),
            load_p99_us: peak(self.load_p99_us, later.load_p99_us),
            ema_s_per_mib: peak(self.ema_s_per_mib, later.ema_s_per_mib),
            ..later
        }
    }
}

/// A run over time, with the limits it is held against.
#[derive(Debug, Clone, Default)]
pub(crate) struct Timeline {
    /// Tiers in lookup order, the primary first.
    pub(crate) tier_names: Vec<String>,
    /// Bound of the secondary tiers.
    pub(crate) bound_bytes: Option<u64>,
    /// Seconds per MiB above which pressure sets in.
    pub(crate) high_water_s: f64,
    /// Seconds per MiB below which it ends.
    pub(crate) low_water_s: f64,
    samples: Vec<Sample>,
    pending: Option<(Sample, u64)>,
    /// Pushed samples that make one kept sample, as a power of two.
    halvings: u32,
}

impl Timeline {
    /// An empty timeline of `tier_names` (primary first) and the limits of the run.
    pub(crate) fn new(
        tier_names: Vec<String>,
        bound_bytes: Option<u64>,
        high_water_s: f64,
        low_water_s: f64,
    ) -> Self {
        Self {
            tier_names,
            bound_bytes,
            high_water_s,
            low_water_s,
            ..Self::default()
        }
    }

    /// Adds a sample, not earlier than the one before.
    pub(crate) fn push(&mut self, sample: Sample) {
        let (merged, n) = match self.pending.take() {
            Some((before, n)) => (before.merge(sample), n + 1),
            None => (sample, 1),
        };
        if n < 1 << self.halvings {
            self.pending = Some((merged, n));
            return;
        }
        self.samples.push(merged);
        if self.samples.len() > SAMPLES_MAX {
            self.halve();
        }
    }

    /// What was kept, in order of time, the latest state last.
    pub(crate) fn samples(&self) -> impl DoubleEndedIterator<Item = &Sample> {
        self.samples
            .iter()
            .chain(self.pending.iter().map(|(sample, _)| sample))
    }

    fn halve(&mut self) {
        self.halvings += 1;
        let mut old = std::mem::take(&mut self.samples).into_iter();
        while let Some(a) = old.next() {
            match old.next() {
                Some(b) => self.samples.push(a.merge(b)),
                None => self.pending = Some((a, 1 << (self.halvings - 1))),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_bounded_and_peaks_and_order_are_kept() {
        let mut t = Timeline::default();
        for i in 0..1_000_000_u64 {
            let bytes_resident = if i == 777 { 1 << 40 } else { i };
            let load_p99_us = (i == 4_321).then_some(9.0);
            t.push(Sample {
                t_s: i as f64,
                requests: i,
                bytes_resident,
                load_p99_us,
                ..Sample::default()
            });
            assert!(t.samples.len() <= SAMPLES_MAX);
        }
        assert!(t.samples.len() > SAMPLES_MAX / 3);
        assert!(t.samples.is_sorted_by_key(|s| s.requests));
        assert!(t.samples().next_back().unwrap().requests == 999_999);
        assert_eq!(t.samples.iter().map(|s| s.bytes_resident).max(), Some(1 << 40));
        assert_eq!(
            t.samples.iter().filter_map(|s| s.load_p99_us).collect::<Vec<_>>(),
            [9.0]
        );
        let gaps: Vec<u64> = t
            .samples
            .windows(2)
            .map(|w| w[1].requests - w[0].requests)
            .collect();
        assert!(gaps.iter().all(|g| *g == gaps[0]), "even spacing");
    }
}
