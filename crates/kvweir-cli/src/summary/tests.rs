use super::*;

/// A summary with a different number everywhere.
pub(crate) fn sample() -> Summary {
    let q = |x: f64| Quantiles {
        p50_us: x,
        p99_us: x * 10.0,
        p999_us: x * 20.0,
        max_us: x * 33.0,
        count: 61_234,
    };
    Summary {
        requests: 600,
        blocks_requested: 61_234,
        prefix_hit_rate: 0.8765,
        elapsed_s: 4.25,
        restarts: 1,
        primary: PrimarySummary {
            hits: 40_000,
            hit_rate: 0.6532,
            bytes: 64 << 20,
            evictions: 5_100,
        },
        tiers: vec![TierSummary {
            name: String::from("fs"),
            medium: String::from("STORAGE"),
            hits: 13_671,
            hit_rate: 0.2233,
            blocks_stored: 6_200,
            bytes_stored: 6_200 << 16,
            blocks_loaded: 13_671,
            bytes_loaded: 13_671 << 16,
            store_gb_s: 1.25,
            load_gb_s: 2.5,
            device_store_s: 0.325,
            device_load_s: 0.358,
            evicted_blocks: 2_300,
            evicted_bytes: 2_300 << 16,
            drops: BTreeMap::from([(String::from("inflight"), 12), (String::from("pressure"), 0)]),
            bytes_resident: 250 << 20,
            bytes_resident_peak: 256 << 20,
            bound_bytes: Some(256 << 20),
            pinned_peak: 97,
            ..TierSummary::default()
        }],
        latencies: [("lookup", 0.5), ("store", 120.0), ("load", 80.0)]
            .map(|(n, x)| (n.to_owned(), q(x)))
            .into(),
        bytes_resident_peak: 256 << 20,
        write_amplification: 1.0625,
        events_match_directory: Some(true),
        ..Summary::default()
    }
}

#[test]
fn the_table() {
    insta::assert_snapshot!(sample().to_table(), @"");
}

#[test]
fn the_json() {
    insta::assert_snapshot!(serde_json::to_string_pretty(&sample()).unwrap(), @"");
    assert!(!sample().to_json().unwrap().contains('\n'));
}

#[test]
fn what_is_rare_is_told_when_it_happens() {
    let s = Summary {
        interrupted: true,
        skipped_lines: 3,
        report: Some("a.html".into()),
        ..Summary::default()
    };
    let table = s.to_table();
    for part in ["interrupted", "bad lines skipped", "a.html"] {
        assert!(table.contains(part), "{part}");
    }
}

#[test]
fn quantiles_of_a_histogram() {
    let mut h = hdrhistogram::Histogram::<u64>::new(3).unwrap();
    (1..=1000).for_each(|us| h.record(us * 1000).unwrap());
    let q = Quantiles::of_nanos(&h);
    assert_eq!(q.count, 1000);
    assert!(
        (q.p50_us - 500.0).abs() < 1.0 && (q.p99_us - 990.0).abs() < 1.0 && (q.max_us - 1000.0).abs() < 2.0
    );
}
