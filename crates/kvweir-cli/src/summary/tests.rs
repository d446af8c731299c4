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
        blocks_checked: 13_671,
        elapsed_s: 4.25,
        restarts: 1,
        primary: PrimarySummary {
            hits: 40_000,
            hit_rate: 0.6532,
            bytes: 64 << 20,
            evictions: 5_100,
            without_slot: 0,
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
    insta::assert_snapshot!(sample().to_table(), @r#"
    run
     requests                                                    600
     blocks requested                                         61,234
     prefix hit rate                                          0.8765
       from the primary tier                  0.6532 (40,000 blocks)
       from fs                                0.2233 (13,671 blocks)
     content                  0 wrong bytes in 13,671 blocks checked
     primary tier                     64.0 MiB, 5,100 blocks evicted
     secondary peak                                        256.0 MiB
     write amplification                                       1.062
     restarts                                                      1
     elapsed                                                  4.25 s
     events match directory                                      yes

    tiers
                                 fs (STORAGE)
     hits                     13,671 (0.2233)
     stored           6,200 blocks, 387.5 MiB
       device time        0.325 s, 1.250 GB/s
     loaded          13,671 blocks, 854.4 MiB
       device time        0.358 s, 2.500 GB/s
     evicted          2,300 blocks, 143.8 MiB
     dropped                      12 inflight
     refused                                0
     load failures                          0
     resident       250.0 MiB, peak 256.0 MiB
     bound                          256.0 MiB
     pinned                        0, peak 97

    latency (us)
               p50     p99   p99.9     max   count
     load     80.0   800.0  1600.0  2640.0  61,234
     lookup    0.5     5.0    10.0    16.5  61,234
     store   120.0  1200.0  2400.0  3960.0  61,234
    "#);
}

#[test]
fn the_json() {
    insta::assert_snapshot!(serde_json::to_string_pretty(&sample()).unwrap(), @r#"
    {
      "requests": 600,
      "blocks_requested": 61234,
      "prefix_hit_rate": 0.8765,
      "blocks_checked": 13671,
      "wrong_blocks": 0,
      "elapsed_s": 4.25,
      "interrupted": false,
      "skipped_lines": 0,
      "restarts": 1,
      "primary": {
        "hits": 40000,
        "hit_rate": 0.6532,
        "bytes": 67108864,
        "evictions": 5100,
        "without_slot": 0
      },
      "tiers": [
        {
          "name": "fs",
          "medium": "STORAGE",
          "hits": 13671,
          "hit_rate": 0.2233,
          "blocks_stored": 6200,
          "bytes_stored": 406323200,
          "blocks_loaded": 13671,
          "bytes_loaded": 895942656,
          "store_gb_s": 1.25,
          "load_gb_s": 2.5,
          "device_store_s": 0.325,
          "device_load_s": 0.358,
          "evicted_blocks": 2300,
          "evicted_bytes": 150732800,
          "drops": {
            "inflight": 12,
            "pressure": 0
          },
          "refused": {},
          "load_failures": 0,
          "bytes_resident": 262144000,
          "bytes_resident_peak": 268435456,
          "bound_bytes": 268435456,
          "pinned_peak": 97,
          "pinned_end": 0
        }
      ],
      "latencies": {
        "load": {
          "p50_us": 80.0,
          "p99_us": 800.0,
          "p999_us": 1600.0,
          "max_us": 2640.0,
          "count": 61234
        },
        "lookup": {
          "p50_us": 0.5,
          "p99_us": 5.0,
          "p999_us": 10.0,
          "max_us": 16.5,
          "count": 61234
        },
        "store": {
          "p50_us": 120.0,
          "p99_us": 1200.0,
          "p999_us": 2400.0,
          "max_us": 3960.0,
          "count": 61234
        }
      },
      "bytes_resident_peak": 268435456,
      "write_amplification": 1.0625,
      "events_match_directory": true,
      "events_note": null,
      "notes": [],
      "report": null
    }
    "#);
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
