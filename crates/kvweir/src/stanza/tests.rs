mod transfer;

use serde_json::{Value as Json, json};

use super::*;
use crate::pressure::Locality;

fn fields(stanza: &Json) -> Vec<(String, Given)> {
    Given::json(stanza).map().unwrap().to_vec()
}

fn tier(stanza: &Json) -> Reading {
    read_tier(&fields(stanza), TierKind::ALL[0], None)
}

fn told(mistakes: &[Mistake]) -> Vec<String> {
    mistakes.iter().map(ToString::to_string).collect()
}

/// Users were told the first of their mistakes, mended it, waited two minutes, and were told the second.
#[test]
fn every_mistake_of_a_tier_is_told_at_once() {
    let r =
        tier(&json!({"max_byte": 1, "n_read_threads": 0, "policy": "fifo", "verify": "no", "pin_ttl_s": 0}));
    assert_eq!(
        told(&r.mistakes),
        [
            "unknown setting 'max_byte' of the kvweir tier; did you mean 'max_bytes'?",
            "n_read_threads = 0: 1 to 256 threads is allowed",
            "pin_ttl_s = 0: a number of seconds greater than zero is allowed",
            "policy = \"fifo\": lru, arc or s3fifo is allowed",
            "verify = \"no\": true or false is allowed",
            "root_dir is not given: name a directory",
        ]
    );
    assert_eq!(r.settings["n_read_threads"], Parsed::Null);
    assert_eq!(r.settings["pin_ttl_s"], Parsed::Real(600.0));
}

/// `pin_ttl_s = 0` passed the reader and failed the engine; what one lets through the other must take.
#[test]
fn what_the_table_allows_the_engine_takes() {
    for (text, good) in [
        ("0", false),
        ("1e-10", false),
        ("1e-9", true),
        ("0.5", true),
        ("1e18", false),
    ] {
        let pin_ttl: f64 = text.parse().unwrap();
        let r = tier(&json!({"root_dir": "/kv", "pin_ttl_s": pin_ttl}));
        assert_eq!(r.mistakes.is_empty(), good, "{text}: {:?}", r.mistakes);
    }
    let mut tried = 0;
    for layout in ["auto", "fs", "pack"] {
        for bound in [Json::Null, json!(1), json!("300KiB"), json!("1GiB")] {
            for read_only in [false, true] {
                let stanza =
                    json!({"root_dir": "/kv", "layout": layout, "max_bytes": bound, "read_only": read_only});
                let r = read_tier(&fields(&stanza), TierKind::ALL[0], Some(65536));
                let settings = crate::fs::FsSettings {
                    max_bytes: r.settings["max_bytes"].int(),
                    layout: layout.parse().unwrap(),
                    read_only,
                    ..crate::fs::FsSettings::new("/kv")
                };
                assert_eq!(
                    r.mistakes.is_empty(),
                    settings.validate(65536).is_ok(),
                    "{stanza}"
                );
                tried += 1;
            }
        }
    }
    assert_eq!(tried, 24);
}

/// The same setting was a size with a unit in the tier's stanza and a TypeError inside `backpressure`.
#[test]
fn a_bound_on_bytes_in_flight_is_read_alike_in_both_places() {
    let good = [json!("512MiB"), json!(536_870_912), json!("536870912")];
    let bad = [
        json!(0),
        json!(-5),
        json!(1.5),
        json!(true),
        json!("0"),
        json!("much"),
        json!([]),
        json!({}),
    ];
    for value in good.iter().chain(&bad) {
        let in_tier = tier(&json!({"root_dir": "/kv", "max_inflight_bytes": value}));
        let in_pressure = read_backpressure(
            &fields(&json!({"max_inflight_bytes": value})),
            Locality::Local,
            false,
        );
        assert_eq!(told(&in_tier.mistakes), told(&in_pressure.mistakes));
        let parsed = &in_pressure.settings["max_inflight_bytes"];
        if good.contains(value) {
            assert_eq!((parsed, in_tier.mistakes.len()), (&Parsed::Int(512 << 20), 0));
        } else {
            assert_eq!(in_tier.mistakes.len(), 1, "{value}");
            assert!(told(&in_tier.mistakes)[0].starts_with(&format!("max_inflight_bytes = {value}: ")));
        }
    }
}

/// `failure_threshold: true` was taken for 1, and others ended as TypeError or OverflowError without a name.
#[test]
fn every_setting_refuses_what_it_does_not_mean_and_names_itself() {
    let odd = [
        json!(null),
        json!(true),
        json!([]),
        json!({}),
        json!("x"),
        json!(-1),
        json!(1e300),
        json!(1.5),
    ];
    let mut refused = 0;
    for (table, pressure) in [(TIER, false), (BACKPRESSURE, true)] {
        for s in table {
            let mut of_this = 0;
            for value in &odd {
                let stanza = fields(&json!({s.name: value}));
                let reading = if pressure {
                    read_backpressure(&stanza, Locality::Local, false)
                } else {
                    read_tier(&stanza, TierKind::ALL[0], None)
                };
                let named = format!("{} = {value}: ", s.name);
                of_this += usize::from(told(&reading.mistakes).iter().any(|m| m.starts_with(&named)));
            }
            // at least the list, the object and one more
            assert!(of_this >= 3, "{}: {of_this}", s.name);
            refused += of_this;
        }
    }
    assert!(refused > 100, "{refused}");
}

#[test]
fn the_defaults_of_the_table_are_those_of_the_engine() {
    let usual = crate::fs::FsSettings::new("/");
    let r = tier(&json!({"root_dir": "/"}));
    let real = |name: &str| r.settings[name].real().unwrap();
    assert_eq!(real("pin_ttl_s"), usual.pin_ttl.as_secs_f64());
    assert_eq!(real("miss_ttl_s"), usual.miss_ttl.as_secs_f64());
    assert_eq!(real("io_timeout_s"), usual.io_timeout.unwrap().as_secs_f64());
    assert_eq!(r.settings["verify"], Parsed::Bool(usual.verify));
    assert_eq!(r.settings["policy"].text().unwrap(), usual.policy.to_string());
    assert_eq!(r.settings["engine"].text().unwrap(), usual.engine.to_string());
    assert_eq!(r.settings["bounce"].text().unwrap(), usual.bounce.to_string());
    let pacing = crate::pacing::PacingSettings::default();
    assert_eq!(real("promote_share"), pacing.share);
    assert_eq!(real("promote_wait_s"), pacing.wait.as_secs_f64());
    let usual = crate::pressure::PressureSettings::default();
    let r = read_backpressure(&[], Locality::Local, false);
    assert_eq!(r.settings["high_water_s"], Parsed::Real(usual.high_water_s));
    assert_eq!(r.settings["low_water_s"], Parsed::Real(usual.low_water_s));
    assert_eq!(r.settings["alpha"], Parsed::Real(usual.alpha));
    assert_eq!(
        r.settings["warmup_completions"],
        Parsed::Int(usual.warmup_completions.into())
    );
    assert_eq!(
        r.settings["decay_half_life_s"],
        Parsed::Real(usual.decay_half_life_s)
    );
    assert_eq!(r.settings["cooldown_s"], Parsed::Real(usual.cooldown_s));
}

/// A word that the engine learned could be left out of the table: users of vLLM were refused it.
#[test]
fn the_words_of_a_setting_are_those_that_the_engine_reads() {
    use crate::{
        evict::PolicyKind,
        fs::{BounceMode, Layout},
        io::engine::EngineKind,
    };
    let words = |name: &str| match Setting::find(TIER, name).unwrap().kind {
        Kind::Word(words) => words,
        other => panic!("{name}: {other:?}"),
    };
    assert_eq!(words("policy"), PolicyKind::ALL.map(PolicyKind::as_str));
    assert_eq!(words("engine"), EngineKind::ALL.map(EngineKind::as_str));
    assert_eq!(words("layout"), Layout::ALL.map(Layout::as_str));
    assert_eq!(words("bounce"), BounceMode::ALL.map(BounceMode::as_str));
}

/// A policy that drops every store never sees the completion that would end the pressure.
#[test]
fn marks_that_never_clear_are_refused_where_every_store_is_dropped() {
    for (name, value) in [
        ("low_water_s", 0.0),
        ("decay_half_life_s", 0.0),
        ("decay_half_life_s", -1.0),
    ] {
        let stanza = fields(&json!({name: value}));
        assert_eq!(read_backpressure(&stanza, Locality::Local, false).mistakes, []);
        let told = told(&read_backpressure(&stanza, Locality::Local, true).mistakes);
        assert!(told.len() == 1 && told[0].starts_with(name), "{told:?}");
    }
    let crossed = fields(&json!({"low_water_s": 0.5, "alpha": 3, "warmup": 1}));
    let told = told(&read_backpressure(&crossed, Locality::Local, false).mistakes);
    assert_eq!(told.len(), 3, "{told:?}");
    assert!(told[2].contains("low_water_s = 0.5 lies above high_water_s = 0.01"));
}
