//! The metrics as text that Prometheus scrapes.

use std::fmt;

use prometheus_client::{
    collector::Collector,
    encoding::{DescriptorEncoder, MetricEncoder, text},
    metrics::MetricType,
    registry::{Registry, Unit as TextUnit},
};

use super::{
    GateStats, TierStats, distinct,
    metric::{Kind, Metric, Snapshot, Unit, Value},
    table::METRICS,
};

/// All of [`METRICS`] for `tiers`: each by name, with the gate before its stores if there is one. Tiers of one name are
/// numbered from the second on.
///
/// ```
/// use kvweir::metrics::{TierStats, encode};
/// let text = encode(&[("fs".into(), TierStats::default(), None)]);
/// assert!(text.contains("kvweir_stored_bytes_total{tier=\"fs\"} 0\n"));
/// ```
pub fn encode(tiers: &[(String, TierStats, Option<GateStats>)]) -> String {
    let mut registry = Registry::default();
    let names = distinct(tiers.iter().map(|t| t.0.as_str()));
    let mut tiers = tiers.to_vec();
    for (tier, name) in tiers.iter_mut().zip(names) {
        tier.0 = name;
    }
    registry.register_collector(Box::new(Tiers(tiers)));
    let mut out = String::new();
    // writing to a string cannot fail
    let _ = text::encode(&mut out, &registry);
    out
}

/// Tiers and their numbers at one moment.
#[derive(Debug)]
struct Tiers(Vec<(String, TierStats, Option<GateStats>)>);

impl Collector for Tiers {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> fmt::Result {
        for m in METRICS {
            let unit = match m.unit {
                Unit::None => None,
                Unit::Bytes => Some(TextUnit::Bytes),
                Unit::Seconds => Some(TextUnit::Seconds),
            };
            let kind = match m.kind {
                Kind::Counter => MetricType::Counter,
                Kind::Gauge => MetricType::Gauge,
            };
            let mut family = encoder.encode_descriptor(bare_name(m), m.help, unit.as_ref(), kind)?;
            for (name, tier, gate) in &self.0 {
                let s = Snapshot {
                    tier,
                    gate: gate.as_ref(),
                };
                for sample in (m.read)(&s) {
                    let mut labels = vec![("tier", name.as_str())];
                    if let (Some(&key), Some(value)) = (m.labels.get(1), sample.label) {
                        labels.push((key, value));
                    }
                    write(family.encode_family(&labels)?, m.kind, sample.value)?;
                }
            }
        }
        Ok(())
    }
}

fn write(mut to: MetricEncoder<'_>, kind: Kind, value: Value) -> fmt::Result {
    match (kind, value) {
        (Kind::Counter, Value::Int(n)) => to.encode_counter::<[(&str, &str); 0], _, u64>(&n, None),
        (Kind::Counter, Value::Real(x)) => to.encode_counter::<[(&str, &str); 0], _, u64>(&x, None),
        (Kind::Gauge, Value::Int(n)) => to.encode_gauge(&n),
        (Kind::Gauge, Value::Real(x)) => to.encode_gauge(&x),
    }
}

/// The name without what the text format adds: `_total` of counters, and the unit.
fn bare_name(m: &Metric) -> &'static str {
    let name = m.name.strip_suffix("_total").unwrap_or(m.name);
    name.strip_suffix(m.unit.as_str())
        .and_then(|n| n.strip_suffix('_'))
        .filter(|_| m.unit != Unit::None)
        .unwrap_or(name)
}

#[cfg(test)]
mod tests {
    use std::{collections::HashSet, time::Duration};

    use super::*;
    use crate::metrics::{DetectorStats, DropCount, DropsByReason, RefuseReason};

    /// Every field has a value that no other has. A new field does not compile until it is given one here.
    fn distinct() -> (TierStats, GateStats, usize) {
        let mut n = 10_000u64;
        let mut next = || {
            n += 1;
            n
        };
        let tier = TierStats {
            blocks: next(),
            resident_bytes: next(),
            reserved_bytes: next(),
            peak_bytes: next(),
            bound_bytes: Some(next()),
            effective_bound_bytes: Some(next()),
            trimming: false,
            above_bound_bytes: next(),
            pinned_blocks: next(),
            pinned_peak: next(),
            pin_leases_expired: next(),
            lookup_hits: next(),
            lookup_misses: next(),
            lookup_retries: next(),
            stored_blocks: next(),
            stored_bytes: next(),
            present_blocks: next(),
            loaded_blocks: next(),
            loaded_bytes: next(),
            load_failures: next(),
            verification_failures: next(),
            store_device_time: Duration::from_secs(next()),
            load_device_time: Duration::from_secs(next()),
            evicted_blocks: [(); 5].map(|()| next()),
            evicted_bytes: [(); 5].map(|()| next()),
            refused_blocks: [(); RefuseReason::ALL.len()].map(|()| next()),
            unlink_failures: next(),
            startup_seconds: next() as f64,
            recovered_blocks: next(),
            swept_files: next(),
            foreign_files: next(),
            unopened_extents: next(),
            trim_candidates: next(),
            oldest_age_seconds: next(),
            queued_blocks: next(),
            stores_held: next(),
            index_bytes: next(),
            breaker_state: next(),
            breaker_opened: next(),
            jobs_timed_out: next(),
            hung_operations: next(),
        };
        let mut drops = || DropCount {
            stores: next(),
            blocks: next(),
            bytes: next(),
        };
        let drops = DropsByReason {
            inflight_full: drops(),
            pressure: drops(),
            cooldown: drops(),
        };
        let gate = GateStats {
            inflight_bytes: next(),
            inflight_jobs: next(),
            peak_inflight_bytes: next(),
            max_inflight_bytes: next(),
            admitted_stores: next(),
            drops,
            detector: DetectorStats {
                ema_s_per_mib: next() as f64,
                under_pressure: true,
                warm: true,
                streak: next(),
                healthy: true,
                completions: next(),
                consecutive_failures: next(),
                activations: next(),
            },
        };
        let values = next() - 10_001;
        (tier, gate, values as usize)
    }

    /// Two tiers with the same name exported every series twice, and the OpenMetrics parser refuses such a page.
    #[test]
    fn no_series_comes_twice_whatever_tiers_are_called() {
        let tiers =
            ["fs", "fs", "fs-2", "fs", "fs-2", "far"].map(|n| (n.to_owned(), TierStats::default(), None));
        let text = encode(&tiers);
        let series: Vec<&str> = text
            .lines()
            .filter(|l| !l.starts_with('#'))
            .filter_map(|l| l.rsplit_once(' '))
            .map(|(series, _)| series)
            .collect();
        let once: HashSet<&str> = series.iter().copied().collect();
        assert_eq!(series.len(), once.len());
        let stored = |name: &str| text.contains(&format!("kvweir_stored_bytes_total{{tier=\"{name}\"}} 0"));
        assert!(
            ["fs", "fs-2", "fs-3", "fs-4", "fs-2-2", "far"]
                .iter()
                .all(|n| stored(n))
        );
    }

    #[test]
    fn every_number_of_tier_and_gate_is_exported_once() {
        let (tier, gate, values) = distinct();
        // all values are whole numbers from 10001 on
        let numbers = |debug: String| -> HashSet<u64> {
            debug
                .split(|c: char| !c.is_ascii_digit())
                .filter_map(|w| w.parse().ok())
                .filter(|&n| n > 10_000)
                .collect()
        };
        let want: HashSet<u64> = &numbers(format!("{tier:?}")) | &numbers(format!("{gate:?}"));
        assert_eq!(want.len(), values, "a value occurs twice");
        let text = encode(&[("fs".into(), tier, Some(gate))]);
        let got: Vec<u64> = text
            .lines()
            .filter(|l| !l.starts_with('#'))
            .map(|l| l.rsplit(' ').next().unwrap().parse::<f64>().unwrap() as u64)
            .filter(|&n| n > 10_000)
            .collect();
        assert_eq!(got.len(), want.len());
        assert_eq!(got.into_iter().collect::<HashSet<_>>(), want);
    }

    #[test]
    fn names_are_unique_and_follow_the_rules() {
        let names: HashSet<_> = METRICS.iter().map(|m| m.name).collect();
        assert_eq!(names.len(), METRICS.len());
        for m in METRICS {
            let rest = m.name.strip_prefix("kvweir_").unwrap();
            assert!(
                rest.bytes().all(|b| b.is_ascii_lowercase() || b == b'_'),
                "{}",
                m.name
            );
            assert_eq!(m.kind == Kind::Counter, rest.ends_with("_total"), "{}", m.name);
            let unit = rest.trim_end_matches("_total");
            assert!(unit.ends_with(m.unit.as_str()), "{}", m.name);
            assert!(
                m.help.ends_with('.') && m.labels.first() == Some(&"tier"),
                "{}",
                m.name
            );
        }
    }

    #[test]
    fn each_line_is_a_comment_or_a_sample_of_a_known_metric() {
        let (tier, gate, _) = distinct();
        let text = encode(&[
            ("0:fs".into(), tier, Some(gate)),
            ("1:\"odd\"".into(), TierStats::default(), None),
        ]);
        assert!(text.ends_with("# EOF\n"));
        let mut seen = HashSet::new();
        for line in text.lines() {
            if let Some(comment) = line.strip_prefix("# ") {
                let word = comment.split(' ').next().unwrap();
                assert!(["HELP", "TYPE", "UNIT", "EOF"].contains(&word), "{line}");
                continue;
            }
            let (name, rest) = line.split_once('{').unwrap();
            let (labels, value) = rest.rsplit_once("} ").unwrap();
            let m = METRICS.iter().find(|m| m.name == name).expect(line);
            assert!(value.parse::<f64>().is_ok(), "{line}");
            for l in m.labels {
                assert!(labels.contains(&format!("{l}=\"")), "{line}");
            }
            assert!(seen.insert(line.to_owned()), "twice: {line}");
        }
    }
}
