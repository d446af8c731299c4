//! The tables of `docs/operating.md` and `docs/vllm.md` say what the code says. `KVWEIR_UPDATE_DOCS=1` writes them instead.

#![expect(clippy::panic, clippy::unwrap_used, reason = "all of it is a test")]

use std::{fmt::Write as _, path::PathBuf};

use kvweir::{
    fs::FsSettings,
    metrics::{Kind, METRICS},
    pressure::PressureSettings,
    stanza::{BACKPRESSURE, MANAGER, Setting, TIER},
};

/// Compares what lies between the markers `name` with `table`, or replaces it.
fn check(text: &mut String, name: &str, table: &str) -> bool {
    let (begin, end) = (format!("<!-- {name}:begin -->\n"), format!("<!-- {name}:end -->"));
    let from = text.find(&begin).unwrap_or_else(|| panic!("no {begin}")) + begin.len();
    let to = from + text[from..].find(&end).unwrap_or_else(|| panic!("no {end}"));
    let same = &text[from..to] == table;
    text.replace_range(from..to, table);
    same
}

fn metrics() -> String {
    let mut t = "| metric | kind | labels | meaning |\n|---|---|---|---|\n".to_owned();
    for m in METRICS {
        let labels = m.labels.join("`, `");
        let kind = if m.kind == Kind::Counter {
            "counter"
        } else {
            "gauge"
        };
        let _ = writeln!(t, "| `{}` | {kind} | `{labels}` | {} |", m.name, m.help);
    }
    t
}

fn settings<'a>(rows: impl IntoIterator<Item = (&'a str, String, &'a str)>) -> String {
    let mut t = "| setting | default | meaning |\n|---|---|---|\n".to_owned();
    for (name, default, meaning) in rows {
        let _ = writeln!(t, "| `{name}` | {default} | {meaning} |");
    }
    t
}

/// What a user of vLLM may write.
fn stanza(table: &[Setting]) -> String {
    let also = |s: &Setting| match s.aliases.join("`, `") {
        names if names.is_empty() => String::new(),
        names => format!("; also `{names}`"),
    };
    let meanings: Vec<String> = table.iter().map(|s| s.meaning.to_owned() + &also(s)).collect();
    let rows = table.iter().zip(&meanings);
    settings(rows.map(|(s, meaning)| (s.name, s.default_words(), meaning.as_str())))
}

/// What each setting of the file tier means, in the order of the manual.
const FS_SETTINGS: [(&str, &str); 17] = [
    ("root", "the directory; its parent must exist"),
    (
        "max_bytes",
        "bound on all that lies below `root`; none: unbounded and shared",
    ),
    (
        "min_free_bytes",
        "bytes of the file system to leave free, whoever fills it",
    ),
    (
        "layout",
        "`fs`, `pack`, or `auto`: packed where the root is owned and blocks are below 1 MiB",
    ),
    (
        "engine",
        "`threads` or `io_uring`: who moves packed blocks, and reads large ones with files of their own",
    ),
    ("policy", "`lru`, `arc` or `s3fifo`"),
    (
        "pool",
        "worker threads, how many of them may store, length of the queues",
    ),
    ("verify", "compare payload checksums on load"),
    ("events", "record residency events"),
    ("locality", "`LOCAL` or `REMOTE`"),
    ("pin_ttl", "a request not finished for so long loses its pins"),
    ("miss_ttl", "a missing key is not looked for again for so long"),
    ("direct", "bypass the page cache where possible"),
    (
        "io_timeout",
        "a job whose I/O takes this long is given up; 0: never",
    ),
    (
        "bounce",
        "`auto`, `always` or `never`: load through a buffer of the tier",
    ),
    (
        "breaker",
        "so many failed jobs in a row, or one deadline, and the tier misses for so long; 0 failures: never",
    ),
    ("read_only", "change nothing below `root`, store nothing"),
];

/// The defaults of [`FS_SETTINGS`]. Every field by name: a new one does not compile until it has a row.
fn fs_settings() -> String {
    let FsSettings {
        root: _,
        max_bytes,
        min_free_bytes,
        policy,
        pool,
        verify,
        events,
        locality,
        pin_ttl,
        miss_ttl,
        direct,
        io_timeout,
        bounce,
        breaker,
        read_only,
        layout,
        engine,
    } = FsSettings::new("/");
    let max = max_bytes.map_or("none".into(), |n| n.to_string());
    let _ = pool; // depends on the machine
    let defaults: [String; FS_SETTINGS.len()] = [
        "(required)".into(),
        max,
        min_free_bytes.map_or("none".into(), |n| n.to_string()),
        layout.to_string(),
        engine.to_string(),
        policy.to_string(),
        "by usable CPUs".into(),
        verify.to_string(),
        events.to_string(),
        <&str>::from(locality).to_owned(),
        format!("{pin_ttl:?}"),
        format!("{miss_ttl:?}"),
        direct.to_string(),
        io_timeout.map_or("none".into(), |t| format!("{t:?}")),
        bounce.to_string(),
        format!(
            "{} failures, {:?} to {:?}",
            breaker.failures, breaker.cooldown, breaker.max_cooldown
        ),
        read_only.to_string(),
    ];
    let rows = FS_SETTINGS.into_iter().zip(defaults);
    settings(rows.map(|((name, meaning), default)| (name, default, meaning)))
}

fn pressure_settings() -> String {
    let PressureSettings {
        high_water_s,
        low_water_s,
        alpha,
        warmup_completions,
        decay_half_life_s,
        cooldown_s,
        failure_threshold,
        policy,
        ramp_factor,
        max_inflight_bytes,
    } = PressureSettings::default();
    let none = |n: Option<u64>| n.map_or("none".into(), |n| n.to_string());
    let policy = serde_json::to_value(policy).unwrap();
    settings([
        (
            "high_water_s",
            high_water_s.to_string(),
            "an EMA above it sets pressure; seconds per MiB",
        ),
        (
            "low_water_s",
            low_water_s.to_string(),
            "an EMA below it clears pressure; at most `high_water_s`, with `drop` above 0",
        ),
        (
            "alpha",
            alpha.to_string(),
            "weight of the newest completion, in (0, 1]",
        ),
        (
            "warmup_completions",
            warmup_completions.to_string(),
            "so many first completions only collect; their mean starts the EMA",
        ),
        (
            "decay_half_life_s",
            decay_half_life_s.to_string(),
            "under pressure the EMA halves in so many seconds of silence; 0 disables, except with `drop`",
        ),
        (
            "cooldown_s",
            cooldown_s.to_string(),
            "after pressure every second store is dropped for so many seconds; 0 disables",
        ),
        (
            "failure_threshold",
            none(failure_threshold.map(u64::from)),
            "so many failed stores in a row mean pressure",
        ),
        (
            "policy",
            policy.as_str().unwrap().to_owned(),
            "`throttled_drop`: a share that grows with the pressure; `drop`: every store",
        ),
        (
            "ramp_factor",
            ramp_factor.to_string(),
            "everything is dropped so many high marks above the high mark",
        ),
        (
            "max_inflight_bytes",
            none(max_inflight_bytes),
            "most bytes submitted and not completed",
        ),
    ])
}

#[test]
fn the_tables_of_the_manual_are_those_of_the_code() {
    let operating = [
        ("metrics", metrics()),
        ("fs-settings", fs_settings()),
        ("pressure-settings", pressure_settings()),
        ("stanza-settings", stanza(TIER)),
        ("stanza-backpressure", stanza(BACKPRESSURE)),
    ];
    compare("operating.md", &operating);
    compare("vllm.md", &[("manager-settings", stanza(MANAGER))]);
}

fn compare(page: &str, tables: &[(&str, String)]) {
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../docs")
        .join(page);
    let mut text = std::fs::read_to_string(&path).unwrap();
    let wrong: Vec<_> = tables
        .iter()
        .filter(|(name, table)| !check(&mut text, name, table))
        .map(|(name, _)| *name)
        .collect();
    if std::env::var_os("KVWEIR_UPDATE_DOCS").is_some() {
        std::fs::write(&path, text).unwrap();
    } else {
        assert!(
            wrong.is_empty(),
            "docs/{page} differs in {wrong:?}; run with KVWEIR_UPDATE_DOCS=1"
        );
    }
}

/// Every test that the ledger of guarantees names is there.
#[test]
fn the_tests_that_guarantees_name_exist() {
    let repo = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../..");
    let mut sources = String::new();
    let mut folders = vec![repo.join("crates")];
    while let Some(f) = folders.pop() {
        for e in std::fs::read_dir(&f).unwrap().flatten() {
            let p = e.path();
            if p.is_dir() {
                folders.push(p);
            } else if p.extension().is_some_and(|x| x == "rs" || x == "py") {
                sources += &std::fs::read_to_string(&p).unwrap_or_default();
            }
        }
    }
    let text = std::fs::read_to_string(repo.join("docs/guarantees.md")).unwrap();
    let mut named = 0;
    for word in text.split('`').skip(1).step_by(2).filter(|w| w.contains("::")) {
        let name = word.rsplit("::").next().unwrap();
        let there = [format!("fn {name}("), format!("def {name}(")]
            .iter()
            .any(|d| sources.contains(d.as_str()));
        assert!(there, "docs/guarantees.md names {word}, which is no test");
        named += 1;
    }
    assert!(named > 20);
}
