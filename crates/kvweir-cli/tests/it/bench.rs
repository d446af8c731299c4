//! `kvweir bench`: what it tells, what it refuses, and that it leaves nothing behind.

use std::{
    fs,
    process::{Command, Stdio},
    time::Duration,
};

use rustix::process::{Pid, Signal, kill_process};

use crate::run::{kvweir_in, words};

const SMALL: &str = "bench . --block-size 16KiB --batch 4 --bytes 2MiB --threads 2";

fn names(dir: &std::path::Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

#[test]
fn json_has_a_row_for_each_phase_and_depth() {
    let dir = tempfile::tempdir().unwrap();
    let line = format!("{SMALL} --ramp 1,4 --mix 50 --json --report r.html");
    let ran = kvweir_in(dir.path(), words(&line), b"");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    assert_eq!(ran.stderr, "");
    let json = ran.json();
    let steps = json["steps"].as_array().unwrap();
    let depths: Vec<_> = steps.iter().map(|s| s["queue_depth"].as_u64().unwrap()).collect();
    assert_eq!(depths, [1, 4]);
    for step in steps {
        let rows = step["measures"].as_array().unwrap();
        for by in ["device", "device blocks", "tier"] {
            for what in ["store", "load", "mixed store", "mixed load"] {
                let row = rows.iter().find(|r| r["what"] == what && r["by"] == by).unwrap();
                assert!(row["gb_s"].as_f64().unwrap() > 0.0, "{what} {by}");
                let l = &row["latency"];
                let times =
                    ["p50_us", "p90_us", "p99_us", "p999_us", "max_us"].map(|q| l[q].as_f64().unwrap());
                assert!(times[0] > 0.0 && times.is_sorted(), "{times:?}");
                assert!(row["cpu_s_per_gib"].as_f64().unwrap() >= 0.0);
                assert_eq!(row["of_limit"].is_f64(), by == "tier");
            }
        }
        let stored = rows
            .iter()
            .find(|r| r["what"] == "store" && r["by"] == "tier")
            .unwrap();
        assert_eq!(
            (&stored["jobs"], &stored["bytes"]),
            (&32.into(), &(2 << 20).into())
        );
    }
    let new = &json["device_new"];
    assert_eq!(
        (&new["what"], &new["by"]),
        (&"store".into(), &"device, new space".into())
    );
    assert_eq!(new["bytes"], 2 << 20, "the whole file, once");
    assert_eq!(json["wrong_blocks"], 0);
    assert_eq!(json["failed_blocks"], 0);
    assert_eq!(
        json["evicted_blocks"], 0,
        "nothing is evicted unless a bound is given"
    );
    assert!(json["checked_blocks"].as_u64().unwrap() >= 2 * 128);
    assert!(json["bytes_peak"].as_u64() <= json["bound_bytes"].as_u64());
    assert_eq!(json["settings"]["block_size"], "16KiB");
    assert_eq!(names(dir.path()), ["r.html"]);
    let html = fs::read_to_string(dir.path().join("r.html")).unwrap();
    assert!(html.matches("<svg").count() == 4 && html.contains("mixed load, tier") && html.is_ascii());
}

#[test]
fn a_full_tier_that_was_written_over_evicts_and_stays_within_its_bound() {
    let dir = tempfile::tempdir().unwrap();
    let line =
        format!("{SMALL} --max-bytes 24MiB --churn 2 --verify off --layout fs --engine io_uring --json");
    let ran = kvweir_in(dir.path(), words(&line), b"");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    let json = ran.json();
    assert!(json["churn"]["bytes"].as_u64().unwrap() >= 48 << 20);
    assert!(json["evicted_blocks"].as_u64().unwrap() > 0);
    assert!(json["bytes_peak"].as_u64().unwrap() <= 24 << 20);
    assert_eq!(json["missed_blocks"], 0, "loads choose from what surely is there");
    assert_eq!(names(dir.path()), [""; 0]);
}

#[test]
fn for_people_there_is_a_table_and_kept_means_kept() {
    let dir = tempfile::tempdir().unwrap();
    let ran = kvweir_in(dir.path(), words(&format!("{SMALL} --keep")), b"");
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    for text in [
        "0 wrong bytes in",
        "of device",
        "p99.9",
        "store, tier",
        "store, device, new space",
        "8 under way",
        "kept",
    ] {
        assert!(ran.stdout.contains(text), "{text}: {}", ran.stdout);
    }
    let names = names(dir.path());
    assert!(
        names.len() == 1 && names[0].starts_with("kvweir-bench-"),
        "{names:?}"
    );
    let made = fs::metadata(dir.path().join(&names[0])).unwrap();
    assert_eq!(
        std::os::unix::fs::PermissionsExt::mode(&made.permissions()) & 0o777,
        0o700
    );
}

#[test]
fn what_cannot_work_is_told_before_anything_is_made() {
    let dir = tempfile::tempdir().unwrap();
    fs::create_dir_all(dir.path().join("held/.kvweir")).unwrap();
    fs::write(dir.path().join("file"), "").unwrap();
    let before = names(dir.path());
    let table = [
        ("bench none", "none is no directory", "an existing directory"),
        ("bench file", "file is no directory", ""),
        ("bench held", "is the root of a bounded tier", "another directory"),
        ("bench . --block-size 1000", "no multiple of 4096", "whole pages"),
        (
            "bench . --block-size 1GiB --batch 1024",
            "of memory",
            "--block-size",
        ),
        (
            "bench . --max-bytes 1MiB",
            "has no room for the jobs under way",
            "raise it",
        ),
        ("bench . --bytes 8EiB", "are free", "--bytes"),
        (
            "bench . --report none/r.html",
            "lies in none, which is no directory",
            "",
        ),
        ("bench . --mix 101", "101", ""),
        ("bench . --ramp 1,0", "0", ""),
        ("bench . --bytes 0", "more than 0", ""),
        ("bench . --layout big", "none of auto, fs, pack", ""),
        ("bench . --engine big", "none of threads, io_uring", ""),
        ("bench . --verify maybe", "neither on nor off", ""),
    ];
    for (line, error, hint) in table {
        let ran = kvweir_in(dir.path(), words(line), b"");
        assert_eq!(ran.code, 2, "{line}: {}", ran.stderr);
        assert_eq!(ran.stdout, "", "{line}");
        assert!(ran.stderr.contains(error), "{line}: {}", ran.stderr);
        assert!(ran.stderr.contains(hint), "{line}: {}", ran.stderr);
    }
    assert_eq!(names(dir.path()), before);
}

#[test]
fn an_interrupt_ends_it_with_what_was_measured_and_leaves_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let child = Command::new(env!("CARGO_BIN_EXE_kvweir"))
        .args(words(&format!("{SMALL} --seconds 600 --json")))
        .current_dir(dir.path())
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    // signals are listened to before the directory is made
    let mut looks = 0;
    while names(dir.path()).is_empty() {
        std::thread::park_timeout(Duration::from_millis(5));
        looks += 1;
        assert!(looks < 4000, "no directory was made");
    }
    kill_process(Pid::from_child(&child), Signal::INT).unwrap();
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130));
    let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(json["interrupted"], true);
    assert_eq!(names(dir.path()), [""; 0]);
}
