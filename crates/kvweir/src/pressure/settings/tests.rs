//! Claims of the settings: every rule, every default, and what lies over them.

use serde_json::json;

use super::{
    super::{Drop, EmaDetector, Gate},
    *,
};
use crate::ErrorKind;

/// After one activation such a detector dropped every store for ever: nothing completed, so nothing cleared it.
#[test]
fn settings_under_which_pressure_would_never_end_are_refused_wherever_they_are_read() {
    let good = PressureSettings::default();
    let bad = [
        (DropPolicyKind::Drop, 0.01, 0.0, 2.0, "low_water_s = 0:"),
        (DropPolicyKind::Drop, 0.01, -1.0, 2.0, "low_water_s = -1:"),
        (DropPolicyKind::Drop, 0.01, 0.002, 0.0, "decay_half_life_s = 0:"),
        (DropPolicyKind::Drop, 0.01, 0.002, -2.0, "decay_half_life_s = -2:"),
        (DropPolicyKind::ThrottledDrop, 0.0, 0.0, 2.0, "high_water_s = 0:"),
    ];
    for (policy, high_water_s, low_water_s, decay_half_life_s, words) in bad {
        let bad = PressureSettings {
            policy,
            high_water_s,
            low_water_s,
            decay_half_life_s,
            ..good
        };
        let written = serde_json::to_value(bad).unwrap();
        for e in [
            bad.validate().unwrap_err(),
            EmaDetector::new(bad).unwrap_err(),
            Gate::new(bad, 1 << 30).unwrap_err(),
            good.overlay(written.as_object().unwrap()).unwrap_err(),
        ] {
            assert_eq!(e.kind(), ErrorKind::Invalid);
            assert!(e.to_string().contains(words), "{e}");
        }
        let own = Box::new(Drop);
        assert!(EmaDetector::with_policy(bad, own).is_ok());
    }
    // a share of the stores goes through, and tells
    let throttled = PressureSettings {
        low_water_s: 0.0,
        decay_half_life_s: 0.0,
        ..good
    };
    throttled.validate().unwrap();
}

#[test]
fn a_broken_rule_is_an_invalid_error_naming_setting_and_values() {
    let good = PressureSettings::default();
    good.validate().unwrap();
    let drop = PressureSettings {
        policy: DropPolicyKind::Drop,
        ..good
    };
    drop.validate().unwrap();
    let with = |base: PressureSettings, change: fn(&mut PressureSettings)| {
        let mut s = base;
        change(&mut s);
        s
    };
    let table: [(PressureSettings, &[&str]); 17] = [
        (
            with(drop, |s| s.low_water_s = 0.0),
            &["low_water_s = 0", "never ends"],
        ),
        (
            with(drop, |s| s.decay_half_life_s = 0.0),
            &["decay_half_life_s = 0", "never ends"],
        ),
        (
            with(drop, |s| {
                s.decay_half_life_s = -1.0;
                s.alpha = 2.0;
            }),
            &["decay_half_life_s = -1", "never ends", "alpha = 2"],
        ),
        (
            with(good, |s| s.low_water_s = 0.03),
            &["low_water_s = 0.03", "high_water_s = 0.01"],
        ),
        (with(good, |s| s.alpha = 0.0), &["alpha = 0", "at most 1"]),
        (with(good, |s| s.alpha = 1.5), &["alpha = 1.5", "at most 1"]),
        (with(good, |s| s.alpha = -0.1), &["alpha = -0.1"]),
        (with(good, |s| s.alpha = f64::NAN), &["alpha = NaN"]),
        (
            with(good, |s| s.failure_threshold = Some(0)),
            &["failure_threshold = 0", "at least 1"],
        ),
        (
            with(good, |s| s.ramp_factor = 0.0),
            &["ramp_factor = 0", "greater than 0"],
        ),
        (with(good, |s| s.ramp_factor = -2.0), &["ramp_factor = -2"]),
        (with(good, |s| s.ramp_factor = f64::NAN), &["ramp_factor = NaN"]),
        (
            with(good, |s| s.high_water_s = f64::INFINITY),
            &["high_water_s = inf"],
        ),
        (with(good, |s| s.low_water_s = f64::NAN), &["low_water_s = NaN"]),
        (
            with(good, |s| s.decay_half_life_s = f64::NAN),
            &["decay_half_life_s = NaN"],
        ),
        (
            with(good, |s| s.cooldown_s = f64::INFINITY),
            &["cooldown_s = inf"],
        ),
        (
            with(good, |s| s.max_inflight_bytes = Some(0)),
            &["max_inflight_bytes = 0"],
        ),
    ];
    for (settings, words) in table {
        let e = settings.validate().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        for word in words {
            assert!(e.to_string().contains(word), "{word:?} is missing in {e}");
        }
        assert!(EmaDetector::new(settings).is_err());
    }
}

#[test]
fn the_allowed_extremes_are_accepted() {
    let good = PressureSettings::default();
    for settings in [
        PressureSettings { alpha: 1.0, ..good },
        PressureSettings {
            low_water_s: 0.01,
            high_water_s: 0.01,
            ..good
        },
        PressureSettings {
            failure_threshold: None,
            ..good
        },
        PressureSettings {
            warmup_completions: 0,
            decay_half_life_s: 0.0,
            cooldown_s: 0.0,
            ..good
        },
    ] {
        settings.validate().unwrap();
    }
}

#[test]
fn defaults_are_those_documented() {
    let local: PressureSettings = serde_json::from_value(json!({})).unwrap();
    assert_eq!(local, PressureSettings::default());
    let expected = json!({
        "high_water_s": 0.010, "low_water_s": 0.002, "alpha": 0.15, "warmup_completions": 10,
        "decay_half_life_s": 2.0, "cooldown_s": 1.0, "failure_threshold": 3, "policy": "throttled_drop",
        "ramp_factor": 2.0, "max_inflight_bytes": null,
    });
    assert_eq!(serde_json::to_value(local).unwrap(), expected);
}

#[test]
fn remote_in_any_letter_case_and_object_tiers_get_network_marks() {
    for word in ["REMOTE", "remote", "Remote", "rEmOtE"] {
        let locality: Locality = word.parse().unwrap();
        assert_eq!(serde_json::from_value::<Locality>(json!(word)).unwrap(), locality);
        let s = PressureSettings::default_config("fs", locality);
        assert_eq!(
            (s.high_water_s, s.low_water_s, s.failure_threshold),
            (0.050, 0.010, Some(3)),
            "{word}"
        );
    }
    assert_eq!("lOcAl".parse::<Locality>().unwrap(), Locality::Local);
    assert!(
        "moon"
            .parse::<Locality>()
            .unwrap_err()
            .to_string()
            .contains("moon")
    );
    let table = [
        ("fs", 0.010, Some(3)),
        ("pack", 0.010, Some(3)),
        ("obj", 0.050, Some(3)),
        ("p2p", 0.010, None),
    ];
    for (tier, high, failures) in table {
        let s = PressureSettings::default_config(tier, Locality::Local);
        assert_eq!((s.high_water_s, s.failure_threshold), (high, failures), "{tier}");
    }
}

#[test]
fn what_the_user_wrote_lies_over_the_defaults_of_the_tier() {
    let network = PressureSettings::defaults(Locality::Remote, true);
    let overlay = |v: Value| network.overlay(v.as_object().unwrap());
    let s = overlay(json!({ "alpha": 0.5, "policy": "drop", "failure_threshold": null })).unwrap();
    let expected = PressureSettings {
        alpha: 0.5,
        policy: DropPolicyKind::Drop,
        failure_threshold: None,
        ..network
    };
    assert_eq!(s, expected);
    for (bad, word) in [
        (json!({ "alpah": 0.5 }), "alpah"),
        (json!({ "alpha": "x" }), "f64"),
        (json!({ "high_water_s": 0.001 }), "high_water_s = 0.001"),
    ] {
        let e = overlay(bad).unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid);
        assert!(e.to_string().contains(word), "{e}");
    }
}

#[test]
fn the_default_bound_is_a_quarter_of_the_primary_up_to_2_gib() {
    assert_eq!(default_max_inflight(4 * GIB), GIB);
    assert_eq!(default_max_inflight(8 * GIB), 2 * GIB);
    assert_eq!(default_max_inflight(64 * GIB), 2 * GIB);
    assert_eq!(default_max_inflight(0), 0);
}
