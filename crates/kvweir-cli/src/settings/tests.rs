use super::{
    origin::{Origin, Raw, Shape},
    table::Setting,
    *,
};

fn flags(given: &[(&'static str, &str)]) -> Flags {
    let raw = given.iter().map(|&(key, text)| {
        let flag = Setting::find(key).unwrap().flag;
        (
            key,
            Raw {
                text: text.to_owned(),
                shape: Shape::Any,
                origin: Origin::Flag(flag),
            },
        )
    });
    Flags(raw.collect())
}

fn load(toml: &str, given: &[(&'static str, &str)]) -> Result<ReplaySettings, SettingError> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("replay.toml");
    std::fs::write(&path, toml).unwrap();
    ReplaySettings::load(Some(&path), flags(given)).map_err(|e| {
        let short = |s: &str| s.replace(&format!("{}/", dir.path().display()), "");
        SettingError::new(short(&e.to_string()), e.hint().map(short))
    })
}

fn refused(toml: &str, given: &[(&'static str, &str)]) -> String {
    let e = load(toml, given).unwrap_err();
    format!("{e} | {}", e.hint().unwrap_or("-"))
}

#[test]
fn flags_win_over_the_file_and_the_file_over_defaults() {
    let toml = "seed = 5\nalpha = 0.5\nblock_bytes = \"16KiB\"\nmax_cache_size_bytes = 0x1000_0000\n";
    let s = load(toml, &[("alpha", "0.25")]).unwrap();
    assert_eq!(
        (s.seed, s.pressure.alpha, s.block_bytes, s.max_bytes),
        (5, 0.25, 16384, Some(1 << 28))
    );
    assert_eq!(s.origin("alpha").to_string(), "flag --alpha");
    assert!(s.origin("seed").to_string().ends_with("replay.toml line 1"));
    assert_eq!(s.origin("policy"), &Origin::Default);
}

#[test]
fn defaults_follow_what_is_replayed() {
    let s = load("", &[]).unwrap();
    assert_eq!(
        (s.requests, s.restart_every, s.max_bytes),
        (Some(600), Some(300), Some(256 << 20))
    );
    let s = load("", &[("trace", "t.jsonl"), ("root", "/tmp")]).unwrap();
    assert_eq!((s.requests, s.restart_every, s.max_bytes), (None, None, None));
    assert_eq!(load("restart_every = 0", &[]).unwrap().restart_every, None);
}

/// A settings file, flags, and how the message begins.
type Case<'a> = (&'a str, &'a [(&'static str, &'a str)], &'a str);

/// Every fault names the setting, its value, where that came from and what is allowed, in one line.
fn all_told(table: &[Case<'_>]) {
    for (toml, given, message) in table {
        let told = refused(toml, given);
        assert!(
            told.starts_with(message),
            "{toml:?} {given:?}\n  told: {told}\n  want: {message}"
        );
        assert!(!told.contains('\n'));
    }
}

#[test]
fn a_value_that_is_out_of_range_or_cannot_be_read_is_told_with_its_origin() {
    all_told(&[
        (
            "\nalpha = 0\n",
            &[],
            "`alpha = 0` (replay.toml line 2) is out of range | allowed for `alpha`: a number above 0, at most 1",
        ),
        (
            "",
            &[("alpha", "1.5")],
            "`alpha = 1.5` (flag --alpha) is out of range | ",
        ),
        (
            "",
            &[("alpha", "NaN")],
            "`alpha = NaN` (flag --alpha) is not a number | ",
        ),
        (
            "block_bytes = \"64 potatoes\"",
            &[],
            "`block_bytes = \"64 potatoes\"` (replay.toml line 1) is not a size: write 65536, 64KiB",
        ),
        (
            "block_bytes = -5",
            &[],
            "`block_bytes = -5` (replay.toml line 1) is negative",
        ),
        (
            "block_bytes = 0",
            &[],
            "`block_bytes = 0` (replay.toml line 1) is out of range",
        ),
        (
            "",
            &[("block_bytes", "3GiB")],
            "`block_bytes = 3GiB` (flag --block-bytes) is out of range",
        ),
        (
            "policy = \"lfu\"",
            &[],
            "`policy = \"lfu\"` (replay.toml line 1) is none of the words allowed | allowed for `policy`: lru, arc, s3fifo",
        ),
        (
            "seed = 1.5",
            &[],
            "`seed = 1.5` (replay.toml line 1) is not a whole number",
        ),
        (
            "",
            &[("time_scale", "0")],
            "`time_scale = 0` (flag --time-scale) is out of range",
        ),
        (
            "",
            &[("concurrency", "0")],
            "`concurrency = 0` (flag --concurrency) is out of range",
        ),
        (
            "",
            &[("failure_threshold", "0")],
            "`failure_threshold = 0` (flag --failure-threshold) is out of range",
        ),
        (
            "",
            &[("capacity_blocks", "5,0")],
            "`capacity_blocks = 5,0` (flag --capacity-blocks) holds a 0",
        ),
    ]);
}

#[test]
fn what_does_not_belong_into_the_file_is_told_with_its_line() {
    all_told(&[
        (
            "\n\nalhpa = 1\n",
            &[],
            "unknown key `alhpa` (replay.toml line 3) | did you mean `alpha`?",
        ),
        (
            "[pressure]\nalpha = 1\n",
            &[],
            "unknown key `pressure` (replay.toml line 1)",
        ),
        (
            "block_bytes = true",
            &[],
            "`block_bytes = true` (replay.toml line 1) is a TOML boolean",
        ),
        (
            "max_bytes = 1_000_000\ncapacity_bytes = 5",
            &[],
            "`max_bytes` is given twice",
        ),
        (
            "root = 5",
            &[],
            "`root = 5` (replay.toml line 1) is a TOML integer",
        ),
        (
            "seed = \"1\"",
            &[],
            "`seed = \"1\"` (replay.toml line 1) is a TOML string",
        ),
        ("seed = 1\nseed = 2", &[], "replay.toml line 2: duplicate key"),
        ("seed = [1", &[], "replay.toml line 1: "),
        ("seed = { a = 1 }", &[], "`seed` (replay.toml line 1) is a TOML"),
    ]);
}

#[test]
fn settings_that_do_not_go_together_are_told_with_both_origins() {
    all_told(&[
        (
            "high_water_s = 0.001\n",
            &[],
            "`low_water_s = 0.002` (default) lies above `high_water_s = 0.001` (replay.toml line 1) | allowed for `low_water_s`",
        ),
        (
            "primary_bytes = \"4KiB\"",
            &[],
            "`primary_bytes = \"4KiB\"` (replay.toml line 1) holds not even one block of `block_bytes = 64KiB` (default)",
        ),
        (
            "",
            &[("max_bytes", "299007")],
            "`max_bytes = 299007` (flag --max-bytes) is below the 299008 bytes that one block of `block_bytes = 64KiB` (default)",
        ),
        (
            "backpressure_policy = \"drop\"\nlow_water_s = 0.0",
            &[],
            "`low_water_s = 0.0` (replay.toml line 2) with `backpressure_policy = \"drop\"` (replay.toml line 1) never lets \
             pressure end",
        ),
        (
            "",
            &[("backpressure_policy", "drop"), ("decay_half_life_s", "-1")],
            "`decay_half_life_s = -1` (flag --decay-half-life-s) with `backpressure_policy = drop` (flag",
        ),
        (
            "",
            &[("hit_rate_only", "true")],
            "`hit_rate_only = true` (flag --hit-rate-only) needs `capacity_blocks`",
        ),
        (
            "",
            &[("capacity_blocks", "5")],
            "`capacity_blocks = 5` (flag --capacity-blocks) is for --hit-rate-only",
        ),
    ]);
}

#[test]
fn paths_that_cannot_be_used_are_told_before_anything_is_made() {
    all_told(&[
        (
            "",
            &[("root", "/dev/null")],
            "`root = /dev/null` (flag --root) is a file, not a directory",
        ),
        (
            "",
            &[("root", "/dev/null/x/y")],
            "`root = /dev/null/x/y` (flag --root) lies below /dev/null, which is a file",
        ),
        (
            "",
            &[("report", "/nonexistent/r.html")],
            "`report = /nonexistent/r.html` (flag --report) lies in /nonexistent, which is no directory",
        ),
    ]);
}

#[test]
fn a_missing_or_odd_file_is_told() {
    let e = ReplaySettings::load(Some(Path::new("/nonexistent.toml")), Flags::default()).unwrap_err();
    assert!(
        e.to_string()
            .starts_with("settings file /nonexistent.toml cannot be read: No such file")
    );
}

#[test]
fn printed_settings_read_back_as_the_same_settings() {
    let given = [
        ("alpha", "1e-3"),
        ("max_bytes", "1.5GiB"),
        ("root", "/tmp/a \"b\""),
        ("seed", "+7"),
    ];
    let toml = load("", &given).unwrap().to_toml();
    let again = load(&toml, &[]).unwrap();
    assert_eq!(
        (again.pressure.alpha, again.max_bytes, again.seed),
        (1e-3, Some(3 << 29), 7)
    );
    assert_eq!(again.root.as_deref(), Some(Path::new("/tmp/a \"b\"")));
    let values = |t: &str| {
        t.lines()
            .map(|l| l.split(" #").next().unwrap().trim().to_owned())
            .collect::<Vec<_>>()
    };
    assert_eq!(values(&again.to_toml()), values(&toml));
}

#[test]
fn the_default_settings_file() {
    insta::assert_snapshot!(load("", &[]).unwrap().to_toml(), @r#"
    # Workload
    # trace =                                # default: the built-in workload
    requests = 600                           # default
    seed = 0                                 # default
    concurrency = 4                          # default
    # time_scale =                           # default: as fast as possible
    skip_bad_lines = false                   # default
    restart_every = 300                      # default
    verify = true                            # default

    # Primary tier
    block_bytes = "64KiB"                    # default
    primary_bytes = "64MiB"                  # default
    primary_policy = "lru"                   # default

    # File tier
    # root =                                 # default: a temporary directory, removed at the end
    max_bytes = "256MiB"                     # default
    policy = "lru"                           # default
    # threads =                              # default: from CPU affinity and cgroup quota
    io_timeout_s = 30.0                      # default
    bounce = "auto"                          # default
    read_only = false                        # default
    layout = "auto"                          # default
    engine = "threads"                       # default

    # Back-pressure
    backpressure = true                      # default
    backpressure_policy = "throttled_drop"   # default
    high_water_s = 0.01                      # default
    low_water_s = 0.002                      # default
    alpha = 0.15                             # default
    warmup_completions = 10                  # default
    decay_half_life_s = 2.0                  # default
    cooldown_s = 1.0                         # default
    failure_threshold = 3                    # default
    ramp_factor = 2.0                        # default
    # max_inflight_bytes =                   # default: a quarter of primary_bytes, at most 2GiB

    # Hit rate only
    hit_rate_only = false                    # default
    # capacity_blocks =                      # default: needed with hit_rate_only
    order = "leaf-first"                     # default

    # Output
    json = false                             # default
    # report =                               # default: none
    quiet = false                            # default
    "#);
}

#[test]
fn fuzzed_settings_are_read_or_refused_with_one_line_and_without_panic() {
    let samples = [
        b"seed = 5\nalpha = 0.5\nblock_bytes = \"16KiB\"\nmax_cache_size_bytes = 0x1000_0000\n".to_vec(),
        ReplaySettings::load(None, flags(&[]))
            .unwrap()
            .to_toml()
            .into_bytes(),
    ];
    kvweir::fuzz::fuzz("settings", &samples, |bytes| {
        if let Err(e) = file::parse(&String::from_utf8_lossy(bytes), "s.toml") {
            assert!(!e.to_string().is_empty());
        }
    });
}
