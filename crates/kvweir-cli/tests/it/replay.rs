//! `kvweir replay` on good input.

use std::{fs, io::Write as _, path::Path};

use crate::run::{kvweir_in, line, words};

/// With capacity 3 and leaf first: 4 evicts 3, so request 3 finds 1 and 2 of its 3 blocks, and then evicts 4.
fn small_trace() -> String {
    [line(0, &[1, 2, 3]), line(10, &[4]), line(20, &[1, 2, 3])].concat()
}

fn hit_rates(args: &str, stdin: &[u8], files: &[(&str, &[u8])]) -> serde_json::Value {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in files {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    let ran = kvweir_in(dir.path(), words(args), stdin);
    assert_eq!(ran.code, 0, "{}", ran.stderr);
    ran.json()
}

#[test]
fn hit_rate_only_by_hand_from_file_stdin_and_gzip() {
    let text = small_trace();
    let mut gz = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::default());
    gz.write_all(text.as_bytes()).unwrap();
    let gz = gz.finish().unwrap();
    let flags = "--hit-rate-only --capacity-blocks 3,4 --json";
    let outcomes = [
        hit_rates(
            &format!("replay t.jsonl {flags}"),
            b"",
            &[("t.jsonl", text.as_bytes())],
        ),
        hit_rates(&format!("replay - {flags}"), text.as_bytes(), &[]),
        hit_rates(&format!("replay - {flags}"), &gz, &[]),
        hit_rates(
            &format!("replay misnamed.txt {flags}"),
            b"",
            &[("misnamed.txt", &gz)],
        ),
    ];
    for json in outcomes {
        let results = json["results"].as_array().unwrap();
        assert_eq!(results.len(), 2);
        let (three, four) = (&results[0], &results[1]);
        assert_eq!(
            (three["requests"].as_u64(), three["blocks"].as_u64()),
            (Some(3), Some(7))
        );
        assert_eq!(
            (three["prefix_hits"].as_u64(), four["prefix_hits"].as_u64()),
            (Some(2), Some(3))
        );
        assert_eq!(three["prefix_hit_rate"].as_f64(), Some(2.0 / 7.0));
        assert_eq!(four["capacity_blocks"].as_u64(), Some(4));
    }
}

#[test]
fn order_and_limit() {
    let text = small_trace();
    let head = "replay - --hit-rate-only --capacity-blocks 3 --order head-first --json";
    assert_eq!(
        hit_rates(head, text.as_bytes(), &[])["results"][0]["prefix_hits"],
        0
    );
    let two = "replay - --hit-rate-only --capacity-blocks 3 --requests 2 --json";
    assert_eq!(hit_rates(two, text.as_bytes(), &[])["results"][0]["blocks"], 4);
}

#[test]
fn bad_lines_are_skipped_counted_and_told_once() {
    let text = format!("{}junk\n\n{{}}\n", small_trace());
    let dir = tempfile::tempdir().unwrap();
    let args = words("replay - --hit-rate-only --capacity-blocks 3 --skip-bad-lines --json");
    let ran = kvweir_in(dir.path(), args, text.as_bytes());
    assert_eq!(ran.code, 0);
    assert_eq!(ran.json()["skipped_lines"], 2);
    let warning = "warning: 2 bad lines skipped, the first: stdin line 4: not a JSON object\n";
    assert_eq!(ran.stderr, warning);
}

#[test]
fn the_built_in_workload_and_the_table() {
    for policy in ["lru", "arc", "s3fifo"] {
        let args = format!("replay --hit-rate-only --capacity-blocks 1000,5000 --policy {policy}");
        let ran = kvweir_in(Path::new("."), words(&args), b"");
        assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
        assert!(ran.stdout.contains("prefix hit rate") && ran.stdout.matches(policy).count() == 2);
    }
}

#[test]
fn print_config_shows_origins_and_reads_back() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(
        dir.path().join("s.toml"),
        "\nalpha = 0.5\nmax_cache_size_bytes = \"1GiB\"\n",
    )
    .unwrap();
    let args = words("replay --config s.toml --root kv --seed 9 --json --print-config");
    let ran = kvweir_in(dir.path(), args, b"");
    assert_eq!((ran.code, ran.stderr.as_str()), (0, ""));
    let has = |value: &str, origin: &str| {
        assert!(
            ran.stdout
                .lines()
                .any(|l| l.starts_with(value) && l.ends_with(origin)),
            "{value} {origin}: {}",
            ran.stdout
        );
    };
    has("alpha = 0.5 ", "# s.toml line 2");
    has("max_bytes = \"1GiB\" ", "# s.toml line 3");
    has("seed = 9 ", "# flag --seed");
    has("json = true ", "# flag --json");
    has("policy = \"lru\" ", "# default");
    fs::write(dir.path().join("again.toml"), &ran.stdout).unwrap();
    let again = kvweir_in(
        dir.path(),
        words("replay --config again.toml --print-config"),
        b"",
    );
    assert_eq!(again.code, 0, "{}", again.stderr);
    assert!(again.stdout.contains("again.toml line"));
    assert!(!dir.path().join("kv").exists());
}

#[test]
fn help_and_version() {
    let run = |args| kvweir_in(Path::new("."), words(args), b"");
    for (args, part) in [
        ("", "replay"),
        ("--help", "replay"),
        ("replay --help", "Examples:"),
        ("replay -h", "--max-bytes"),
    ] {
        let ran = run(args);
        assert_eq!(ran.code, 0, "{args:?}");
        assert!(ran.stdout.contains(part), "{args:?}: {}", ran.stdout);
    }
    assert_eq!(
        run("--version").stdout,
        format!("kvweir {}\n", env!("CARGO_PKG_VERSION"))
    );
}

#[test]
fn reference_hit_rates_on_a_real_trace() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/traces");
    let trace = folder.join("mooncake-conversation.jsonl.gz");
    if !trace.exists() {
        println!("skipped: {} is not there", trace.display());
        return;
    }
    let args = format!(
        "replay {} --hit-rate-only --capacity-blocks 5000,50000 --json",
        trace.display()
    );
    let json = kvweir_in(Path::new("."), words(&args), b"").json();
    for (i, rate) in [0.112, 0.355].into_iter().enumerate() {
        let got = json["results"][i]["prefix_hit_rate"].as_f64().unwrap();
        assert!((got - rate).abs() < 0.002, "{got} instead of {rate}");
    }
}
