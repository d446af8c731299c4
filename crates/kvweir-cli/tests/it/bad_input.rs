//! Bad input is told with name, value, origin and what is allowed, ends with code 2 and leaves nothing behind.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use crate::run::{kvweir_in, line, words};

/// Runs `args` in a directory that holds `files`, and checks the message and that nothing was made.
fn refused(files: &[(&str, &str)], args: &str, error: &str, hint: &str) {
    let dir = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(dir.path().join(name), text).unwrap();
    }
    let ran = kvweir_in(dir.path(), words(args), b"");
    let context = format!("{args}: stdout {:?}, stderr {:?}", ran.stdout, ran.stderr);
    assert_eq!(ran.code, 2, "{context}");
    assert_eq!(ran.stdout, "", "{context}");
    let mut lines = ran.stderr.lines();
    let (first, second) = (lines.next().unwrap(), lines.next().unwrap_or_default());
    assert!(
        first.starts_with("error: ") && first.contains(error),
        "{context}\nwants {error}"
    );
    assert!(second.contains(hint), "{context}\nwants {hint}");
    assert_eq!(lines.next(), None, "{context}");
    let left: Vec<_> = fs::read_dir(dir.path())
        .unwrap()
        .map(|e| e.unwrap().file_name())
        .collect();
    assert_eq!(left.len(), files.len(), "left behind: {left:?}");
}

#[test]
fn settings_of_the_file() {
    let table = [
        (
            "low_water_s = 0.5",
            "`low_water_s = 0.5` (s.toml line 2) lies above `high_water_s = 0.010` (default)",
            "not above high_water_s",
        ),
        (
            "alpha = 0",
            "`alpha = 0` (s.toml line 2) is out of range",
            "help: allowed for `alpha`: a number above 0, at most 1",
        ),
        (
            "max_bytes = 1000",
            "`max_bytes = 1000` (s.toml line 2) is below the 299008 bytes that one block",
            "allowed for `max_bytes`",
        ),
        (
            "maxbytes = 1000",
            "unknown key `maxbytes` (s.toml line 2)",
            "help: did you mean `max_bytes`?",
        ),
        (
            "block_bytes = \"64 KiBs\"",
            "`block_bytes = \"64 KiBs\"` (s.toml line 2) is not a size: write 65536, 64KiB",
            "",
        ),
        (
            "primary_bytes = 1",
            "`primary_bytes = 1` (s.toml line 2) holds not even one block",
            "",
        ),
        ("alpha = ", "s.toml line 2: ", "help: the file is TOML"),
    ];
    for (setting, error, hint) in table {
        let toml = format!("seed = 1\n{setting}\n");
        refused(
            &[("s.toml", &toml)],
            "replay --root kv --config s.toml",
            error,
            hint,
        );
    }
    refused(
        &[],
        "replay --root kv --config none.toml",
        "settings file none.toml cannot be read",
        "",
    );
}

#[test]
fn settings_of_flags() {
    let table = [
        ("--alpha 0", "`alpha = 0` (flag --alpha) is out of range"),
        ("--alpha=-0.5", "`alpha = -0.5` (flag --alpha) is out of range"),
        ("--alpha -0.5", "`alpha = -0.5` (flag --alpha) is out of range"),
        (
            "--block-bytes -64KiB",
            "`block_bytes = -64KiB` (flag --block-bytes) is negative",
        ),
        (
            "--block-bytes lots",
            "`block_bytes = lots` (flag --block-bytes) is not a size",
        ),
        (
            "--block-bytes 99999999999GiB",
            "`block_bytes = 99999999999GiB` (flag --block-bytes) is too large",
        ),
        (
            "--high-water-s 0.001 --low-water-s 0.002",
            "`low_water_s = 0.002` (flag --low-water-s) lies above `high_water_s = 0.001` (flag --high-water-s)",
        ),
        (
            "--capacity-bytes 4KiB",
            "`max_bytes = 4KiB` (flag --max-bytes) is below",
        ),
        (
            "--policy lfu",
            "`policy = lfu` (flag --policy) is none of the words allowed",
        ),
        (
            "--verify=maybe",
            "`verify = maybe` (flag --verify) is neither true nor false",
        ),
        (
            "--report none/r.html",
            "`report = none/r.html` (flag --report) lies in none, which is no directory",
        ),
    ];
    for (flags, error) in table {
        refused(
            &[],
            &format!("replay --root kv {flags}"),
            error,
            "help: allowed for",
        );
    }
}

#[test]
fn roots_that_cannot_be_used() {
    let file = [("kv", "")];
    refused(
        &file,
        "replay --root kv",
        "`root = kv` (flag --root) is a file, not a directory",
        "allowed for `root`",
    );
    refused(
        &file,
        "replay --root kv/deeper",
        "(flag --root) lies below kv, which is a file",
        "",
    );
    if rustix::process::geteuid().is_root() {
        println!("skipped: root may write everywhere");
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("kv");
    fs::create_dir(&root).unwrap();
    fs::set_permissions(&root, fs::Permissions::from_mode(0o500)).unwrap();
    let ran = kvweir_in(dir.path(), words("replay --root kv"), b"");
    assert_eq!(ran.code, 2);
    assert!(
        ran.stderr.contains("writable: uid ") && ran.stderr.contains("mode 0500"),
        "{}",
        ran.stderr
    );
}

#[test]
fn trace_lines() {
    let good = line(0, &[1, 2]);
    let table = [
        (
            "{\"timestamp\": 3}\n",
            "t.jsonl line 2: missing field `input_length`",
        ),
        ("nonsense\n", "t.jsonl line 2: not a JSON object"),
        (
            "{\"timestamp\": 1, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": []}",
            "t.jsonl line 2: `hash_ids` is empty",
        ),
        (
            "{\"timestamp\": -1, \"input_length\": 5, \"output_length\": 1, \"hash_ids\": [1]}",
            "t.jsonl line 2: `timestamp` is negative: -1",
        ),
    ];
    for (bad, error) in table {
        let text = format!("{good}{bad}");
        for mode in ["--root kv", "--hit-rate-only --capacity-blocks 5"] {
            refused(
                &[("t.jsonl", &text)],
                &format!("replay t.jsonl {mode}"),
                error,
                "help: --skip-bad-lines",
            );
        }
    }
    let empty = [("t.jsonl", "\n\n")];
    refused(
        &empty,
        "replay t.jsonl --root kv",
        "trace t.jsonl holds no request (0 bad lines skipped)",
        "",
    );
    refused(
        &[],
        "replay none.jsonl --root kv",
        "trace none.jsonl cannot be read: No such file",
        "",
    );
    refused(
        &[],
        "replay . --root kv",
        "trace . cannot be read: is a directory",
        "",
    );
}

#[test]
fn modes_that_do_not_go_together() {
    refused(
        &[],
        "replay --hit-rate-only",
        "`hit_rate_only = true` (flag --hit-rate-only) needs `capacity_blocks`",
        "--capacity-blocks N",
    );
    refused(
        &[],
        "replay --capacity-blocks 5",
        "is for --hit-rate-only",
        "--max-bytes",
    );
    refused(
        &[],
        "replay --hit-rate-only --capacity-blocks 5 --report r.html",
        "does not go with `hit_rate_only",
        "",
    );
}

#[test]
fn unknown_flags_are_told_by_the_parser() {
    let ran = kvweir_in(Path::new("."), words("replay --alhpa 1"), b"");
    assert_eq!(ran.code, 2);
    assert!(
        ran.stderr.contains("'--alhpa'") && ran.stderr.contains("'--alpha'"),
        "{}",
        ran.stderr
    );
}
