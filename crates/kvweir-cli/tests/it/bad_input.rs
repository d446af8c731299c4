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
    // whoever wants JSON finds the error there too
    let json = kvweir_in(dir.path(), words(&format!("{args} --json")), b"");
    let object = json.json();
    assert_eq!(json.code, 2, "{context}");
    assert_eq!(
        first,
        format!("error: {}", object["error"]["message"].as_str().unwrap())
    );
    assert_eq!(object["error"]["exit_code"], 2, "{context}");
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
}

/// `--block-bytes 64MiB` with the default primary tier stored, dropped and refused nothing, and did not say so.
#[test]
fn sizes_that_do_not_go_together_are_named_both() {
    refused(
        &[],
        "replay --root kv --block-bytes 64MiB",
        "`primary_bytes = 64MiB` (default) is too small for `block_bytes = 64MiB` (flag --block-bytes)",
        "",
    );
    refused(
        &[],
        "replay --root kv --block-bytes 5000 --primary-bytes 8000",
        "`primary_bytes = 8000` (flag --primary-bytes) holds not even one block of `block_bytes = 5000`",
        "",
    );
    refused(
        &[],
        "replay --root kv --primary-bytes 1EiB",
        "`primary_bytes = 1EiB` (flag --primary-bytes) is more than",
        "",
    );
    refused(
        &[],
        "replay --root kv --layout pack",
        "`layout = pack` (flag --layout) needs `max_bytes`, which is unset",
        "",
    );
    refused(
        &[],
        "replay --root kv --layout pack --max-bytes 1MiB --read-only",
        "`layout = pack` (flag --layout) does not go with `read_only = true` (flag --read-only)",
        "",
    );
    refused(
        &[],
        "replay --root kv --layout pack --max-bytes 400KiB",
        "`max_bytes = 400KiB` (flag --max-bytes) is below the",
        "",
    );
    refused(
        &[],
        "replay --root kv --low-water-s 0 --backpressure-policy drop",
        "`low_water_s = 0` (flag --low-water-s) with `backpressure_policy = drop` (flag --backpressure-policy)",
        "",
    );
    for threads in [0, 1, 513] {
        refused(
            &[],
            &format!("replay --root kv --threads {threads}"),
            "is out of range",
            "from 2 to 512",
        );
    }
}

#[test]
fn of_a_repeated_flag_the_last_counts() {
    let line = "replay --seed 1 --seed 2 --quiet --quiet=false --max-bytes 1GiB --capacity-bytes 2GiB --print-config";
    let ran = kvweir_in(Path::new("."), words(line), b"");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    for setting in ["seed = 2 ", "quiet = false ", "max_bytes = \"2GiB\" "] {
        assert!(ran.stdout.contains(setting), "{setting}: {}", ran.stdout);
    }
    let dir = tempfile::tempdir().unwrap();
    for (line, code) in [
        (
            "bench . --block-size 1000 --block-size 4KiB --bytes 64KiB --ramp 1 --ramp 2,3 --json --json",
            0,
        ),
        ("inspect . --json --json", 0),
        ("trim . --to 1GiB --to 2GiB --json", 0),
        ("gc . --no-shm --no-shm --older-than 1d --older-than 2d --json", 0),
    ] {
        let ran = kvweir_in(dir.path(), words(line), b"");
        assert_eq!(ran.code, code, "{line}: {}", ran.stderr);
        let json = ran.json();
        if line.starts_with("bench") {
            assert_eq!(json["steps"].as_array().unwrap().len(), 2, "the last --ramp");
        }
    }
}

#[test]
fn errors_of_every_command_are_an_object_too_where_json_is_wanted() {
    for line in [
        "inspect none --json",
        "verify none --json",
        "trim none --to 1 --json",
        "gc none --json",
        "doctor none --json",
        "import none --json",
        "convert none --to fs --json",
        "bench none --json",
        "trim . --json",
        "trim . --to lots --json",
        "replay --alhpa 1 --json",
        "replay --json=false --json --seed x",
        "explode --json",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let ran = kvweir_in(dir.path(), words(line), b"");
        assert_eq!(ran.code, 2, "{line}: {}", ran.stderr);
        let error = &ran.json()["error"];
        let message = error["message"].as_str().unwrap();
        assert!(
            !message.is_empty() && ran.stderr.contains(message),
            "{line}: {message} {}",
            ran.stderr
        );
        assert_eq!(error["exit_code"], 2, "{line}");
    }
    let ran = kvweir_in(Path::new("."), words("replay --json --json=false --seed x"), b"");
    assert_eq!(ran.stdout, "", "the last one counts");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("s.toml"), "json = true\nseed = -1\n").unwrap();
    let ran = kvweir_in(dir.path(), words("replay --config s.toml"), b"");
    assert!(ran.json()["error"]["message"].as_str().unwrap().contains("seed"));
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

/// It was a failed run, 1, with a random name in a directory that nobody had asked for.
#[test]
fn a_tmpdir_that_cannot_be_used_is_a_bad_setting() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    for bad in [dir.path().join("missing"), file] {
        let out = std::process::Command::new(env!("CARGO_BIN_EXE_kvweir"))
            .args(words("replay --requests 2 --json"))
            .env("TMPDIR", &bad)
            .stdin(std::process::Stdio::null())
            .output()
            .unwrap();
        let said = String::from_utf8(out.stderr).unwrap();
        assert_eq!(out.status.code(), Some(2), "{said}");
        let named = format!(
            "error: no temporary directory can be made in {}, which TMPDIR names: ",
            bad.display()
        );
        assert!(said.starts_with(&named), "{said}");
        assert!(
            said.contains("help: set TMPDIR to a directory") && said.contains("--root"),
            "{said}"
        );
        let json: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(json["error"]["exit_code"], 2);
    }
}
