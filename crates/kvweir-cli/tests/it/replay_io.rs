//! `kvweir replay` with real I/O, with every layout, engine and kind of root.

use std::{
    fs,
    path::Path,
    process::{Command, Stdio},
};

use serde_json::Value;

use crate::run::{Ran, kvweir_in, words};

const LAYOUTS: [&str; 3] = ["fs", "pack", "auto"];
const ENGINES: [&str; 2] = ["threads", "io_uring"];
/// Some 700 blocks, of which the tier holds a part.
const SMALL: &str =
    "replay --json --block-bytes 16KiB --primary-bytes 4MiB --requests 60 --restart-every 25 --quiet";

fn run(dir: &Path, more: &str) -> Ran {
    kvweir_in(dir, words(&format!("{SMALL} {more}")), b"")
}

/// For runs whose tier must fill: a machine that is busy elsewhere would shed most stores otherwise.
const STORE_ALL: &str = "--backpressure=false --max-inflight-bytes 4MiB";

/// The object of a run that must be good and must have compared blocks.
fn good(dir: &Path, more: &str) -> Value {
    let ran = run(dir, more);
    assert_eq!(ran.code, 0, "{more}: {} {}", ran.stdout, ran.stderr);
    let json = ran.json();
    assert_eq!(json["wrong_blocks"], 0, "{more}");
    assert_ne!(
        json["events_match_directory"], false,
        "{more}: {}",
        json["events_note"]
    );
    json
}

/// Compared names of files only, so that every run with packed blocks ended with 1, as did a second run over an
/// unbounded root and one that was read only.
#[test]
fn every_layout_engine_and_kind_of_root_ends_with_0_and_says_what_was_compared() {
    for layout in LAYOUTS {
        for engine in ENGINES {
            let dir = tempfile::tempdir().unwrap();
            let with = format!("--layout {layout} --engine {engine}");
            let is_compared = |json: &Value| {
                let why = format!("{with}: {}", json["events_note"]);
                assert_eq!(json["events_match_directory"], true, "{why}");
            };
            let json = good(dir.path(), &format!("{with} --max-bytes 6MiB {STORE_ALL}"));
            assert!(
                json["tiers"][0]["evicted_blocks"].as_u64() > Some(0),
                "{with}: evicted in a temporary root"
            );
            is_compared(&json);
            let bounded = format!("{with} --root kv --max-bytes 6MiB {STORE_ALL}");
            is_compared(&good(dir.path(), &bounded));
            let again = good(dir.path(), &format!("{bounded} --seed 5"));
            assert!(
                again["tiers"][0]["evicted_blocks"].as_u64() > Some(0),
                "{with}: the root was filled"
            );
            is_compared(&again);
            let json = good(
                dir.path(),
                &format!("{} --root kv --read-only", with.replace("pack", "auto")),
            );
            assert_eq!(json["events_match_directory"], Value::Null);
            assert!(json["events_note"].as_str().unwrap().contains("read only"));
            if layout != "pack" {
                let free = format!("{with} --root free");
                is_compared(&good(dir.path(), &free));
                is_compared(&good(dir.path(), &format!("{free} --seed 5")));
            }
            assert_eq!(
                names(dir.path()).len(),
                if layout == "pack" { 1 } else { 2 },
                "{with}: no leftovers"
            );
        }
    }
}

/// A root filled in one layout and opened in the other, both ways.
#[test]
fn a_root_of_the_other_layout_is_compared_as_it_is() {
    for (first, then) in [("fs", "pack"), ("pack", "fs")] {
        let dir = tempfile::tempdir().unwrap();
        for layout in [first, then, first] {
            let json = good(
                dir.path(),
                &format!("--root kv --max-bytes 24MiB --layout {layout}"),
            );
            assert_eq!(
                json["events_match_directory"], true,
                "{first}, then {then}: {}",
                json["events_note"]
            );
        }
    }
}

/// A limit of file sizes sent a signal that ended the run: nothing was printed, and its temporary directory stayed. And
/// what was evicted once the journal had reached the limit was told of again after the next restart.
#[test]
fn a_limit_of_file_sizes_is_a_full_device_and_not_the_end() {
    let often = format!("--restart-every 5 {STORE_ALL}");
    for (layout, more) in [("fs", ""), ("pack", ""), ("fs", &often), ("pack", &often)] {
        let dir = tempfile::tempdir().unwrap();
        // of 512 bytes each, or of 1024: blocks have room, extents and the journal have none
        let command = format!(
            "ulimit -f 128; exec '{}' {SMALL} --layout {layout} {more}",
            env!("CARGO_BIN_EXE_kvweir")
        );
        let out = Command::new("sh")
            .args(["-c", &command])
            .current_dir(dir.path())
            .env("TMPDIR", dir.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        assert_eq!(out.status.code(), Some(0), "{layout} {more}: {out:?}");
        let json: Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(json["wrong_blocks"], 0, "{layout} {more}");
        assert_eq!(
            names(dir.path()),
            [""; 0],
            "{layout} {more}: nothing is left behind"
        );
    }
}

/// Extents that could not be opened at start were compared as if there were none: "no event told of it, and a slot
/// holds it", and exit code 1.
#[test]
fn extents_that_cannot_be_opened_are_not_compared() {
    let dir = tempfile::tempdir().unwrap();
    good(
        dir.path(),
        &format!("--root kv --layout pack --max-bytes 64MiB {STORE_ALL}"),
    );
    let mut notes = Vec::new();
    for limit in 8..=12 {
        let command = format!(
            "ulimit -n {limit}; exec '{}' {SMALL} --root kv --layout pack --max-bytes 64MiB --requests 1",
            env!("CARGO_BIN_EXE_kvweir")
        );
        let out = Command::new("sh")
            .args(["-c", &command])
            .current_dir(dir.path())
            .stdin(Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        // where not even the root can be opened, that is the error
        if said.contains("error: ") && said.contains("Too many open files") && out.status.code() == Some(2) {
            continue;
        }
        assert_eq!(out.status.code(), Some(0), "{limit}: {said}");
        let json: Value = serde_json::from_slice(&out.stdout).unwrap();
        notes.push(json["events_note"].to_string());
    }
    assert!(
        notes.iter().any(|n| n.contains("extents could not be opened")),
        "{notes:?}"
    );
}

/// Each sees blocks of the other, which come and go as the other likes.
#[test]
fn two_replays_on_one_root_say_that_they_did_not_compare() {
    for layout in LAYOUTS {
        let dir = tempfile::tempdir().unwrap();
        let line = format!("{SMALL} --layout {layout} --root kv --max-bytes 64MiB --requests 300");
        let start = |seed: &str| {
            Command::new(env!("CARGO_BIN_EXE_kvweir"))
                .args(words(&line))
                .args(["--seed", seed])
                .current_dir(dir.path())
                .stdout(Stdio::piped())
                .stderr(Stdio::piped())
                .spawn()
                .unwrap()
        };
        let both = [start("1"), start("2")].map(|c| c.wait_with_output().unwrap());
        for out in both {
            let json: Value = serde_json::from_slice(&out.stdout).unwrap();
            assert_eq!(
                out.status.code(),
                Some(0),
                "{layout}: {}",
                String::from_utf8_lossy(&out.stderr)
            );
            assert_ne!(json["events_match_directory"], false, "{}", json["events_note"]);
        }
    }
}

/// A check that never fails shows nothing: a file that somebody adds while the tier is open is the difference.
#[test]
fn a_difference_is_named_and_ends_with_1() {
    let dir = tempfile::tempdir().unwrap();
    let line = format!("{SMALL} --layout fs --root kv --max-bytes 24MiB");
    good(dir.path(), "--layout fs --root kv --max-bytes 24MiB");
    // the trace is read from stdin: the run waits for its end
    let mut child = Command::new(env!("CARGO_BIN_EXE_kvweir"))
        .args(words(&line.replace("replay", "replay -")))
        .current_dir(dir.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut stdin = child.stdin.take().unwrap();
    std::io::Write::write_all(&mut stdin, crate::run::line(0, &[1, 2, 3]).as_bytes()).unwrap();
    let root = dir.path().join("kv");
    let namespace = names(&root).into_iter().find(|n| n.ends_with("_r0")).unwrap();
    for _ in 0..2000 {
        if held(&root) {
            break;
        }
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
    let block = "0".repeat(64);
    let leaf = root.join(&namespace).join("000/00_g0");
    fs::create_dir_all(&leaf).unwrap();
    fs::write(leaf.join(format!("{block}.bin")), b"x").unwrap();
    drop(stdin);
    let out = child.wait_with_output().unwrap();
    let said = String::from_utf8(out.stderr).unwrap();
    assert_eq!(out.status.code(), Some(1), "{said}");
    assert!(
        said.contains("error: events and directory differ: block ") && said.contains(&block),
        "{said}"
    );
    let json: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(json["events_match_directory"], false);
}

/// Whether a tier has the root open.
fn held(root: &Path) -> bool {
    let holders = kvweir::admin::Admin::new(root).unwrap().holders().unwrap();
    holders.iter().any(|h| h.live == Some(true))
}

fn names(dir: &Path) -> Vec<String> {
    let entries = fs::read_dir(dir).unwrap();
    entries
        .map(|e| e.unwrap().file_name().into_string().unwrap())
        .collect()
}

/// The trim of a large root went on beside the requests and was cut off by the end of twenty of them: 167 MB stayed
/// below a bound of 10 MiB, and nobody said so.
#[test]
fn a_lowered_bound_is_reached_before_the_run_ends() {
    for layout in ["fs", "pack"] {
        let dir = tempfile::tempdir().unwrap();
        let fill = format!(
            "--root kv --layout {layout} --max-bytes 512MiB --block-bytes 4KiB --requests 500 --restart-every 0 {STORE_ALL}"
        );
        let filled = good(dir.path(), &fill);
        assert!(
            filled["tiers"][0]["blocks_stored"].as_u64() > Some(4_000),
            "so many that the trim is no short one"
        );
        let few = format!("{fill} --max-bytes 2MiB --requests 2");
        let ran = run(dir.path(), &few);
        assert_eq!(
            (ran.code, ran.stderr.as_str()),
            (0, ""),
            "{layout}: {}",
            ran.stdout
        );
        let json = ran.json();
        assert!(
            json["tiers"][0]["bytes_resident"].as_u64() <= Some(2 << 20),
            "{layout}: {}",
            json["tiers"][0]
        );
        let du = Command::new("du")
            .args(["-s", "--block-size=1", "kv"])
            .current_dir(dir.path())
            .output()
            .unwrap();
        let du = String::from_utf8(du.stdout).unwrap();
        let bytes: u64 = du.split_whitespace().next().unwrap().parse().unwrap();
        assert!(bytes <= 2 << 20, "{layout}: du {bytes}");
    }
}

/// `--block-bytes 1` mapped 256 GiB, since every slot takes a page.
#[test]
fn the_smallest_block_that_is_documented_runs_in_the_memory_it_is_given() {
    let dir = tempfile::tempdir().unwrap();
    let json = good(dir.path(), "--block-bytes 1 --primary-bytes 1MiB --requests 10");
    assert!(json["blocks_checked"].as_u64() > Some(0));
    // 256 pages of memory, whatever a block's length
    let limited = Command::new("prlimit")
        .args(["--as=2147483648", env!("CARGO_BIN_EXE_kvweir")])
        .args(words("replay --json --block-bytes 1 --requests 10"))
        .env("TMPDIR", dir.path())
        .output();
    if let Ok(out) = limited {
        assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    }
}

/// Chunks of 64 blocks never fit a primary tier of 32 slots: nothing was stored, dropped or refused, and nobody said
/// so.
#[test]
fn large_blocks_are_stored_as_far_as_the_primary_tier_allows() {
    let dir = tempfile::tempdir().unwrap();
    let json = good(
        dir.path(),
        "--block-bytes 2MiB --primary-bytes 16MiB --max-bytes 200MiB --requests 4 --backpressure=false",
    );
    let tier = &json["tiers"][0];
    assert!(tier["blocks_stored"].as_u64() > Some(30), "{tier}");
}

#[test]
fn many_blocks_that_are_not_stored_have_a_note_that_says_why_and_what_to_try() {
    let dir = tempfile::tempdir().unwrap();
    // every store is far slower than this
    let slow = "--layout fs --high-water-s 0.0000001 --low-water-s 0.00000001 --warmup-completions 1 --backpressure-policy drop";
    let json = good(dir.path(), slow);
    let note = json["notes"][0].as_str().unwrap();
    assert!(
        note.contains("were not stored, most for `pressure`") && note.contains("--layout auto"),
        "{note}"
    );
    let json = good(
        dir.path(),
        &format!("--layout auto --max-bytes 200MiB {STORE_ALL}"),
    );
    assert_eq!(json["notes"].as_array().unwrap().len(), 0, "{}", json["notes"]);
}
