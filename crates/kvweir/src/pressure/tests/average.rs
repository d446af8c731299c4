//! The average: warm-up, formula, hysteresis, decay.

use super::*;

// Warm-up and the moving average.

#[test]
fn warm_up_only_collects_and_ends_with_the_mean() {
    let mut d = detector(PressureSettings::default());
    for ms in 1..=9 {
        feed(&mut d, 1.0, &[f64::from(ms) / 1000.0]);
        assert_eq!((ema(&d), d.stats().warm), (0.0, false));
    }
    feed(&mut d, 1.0, &[0.010]);
    assert!(near(ema(&d), 0.0055) && d.stats().warm);
}

#[test]
fn the_last_warm_up_sample_evaluates_nothing() {
    let mut d = detector(PressureSettings::default());
    feed(&mut d, 1.0, &[1.0; 10]);
    assert_eq!((ema(&d), d.is_under_pressure(at(1.0))), (1.0, false));
    feed(&mut d, 1.0, &[1.0]);
    assert!(d.is_under_pressure(at(1.0)));

    let mut d = detector(PressureSettings::default());
    feed(&mut d, 1.0, &[0.001; 10]);
    assert_eq!(d.stats().streak, 0);
}

#[test]
fn without_warm_up_the_average_starts_from_zero() {
    let mut d = detector(PressureSettings {
        warmup_completions: 0,
        ..Default::default()
    });
    feed(&mut d, 1.0, &[0.02]);
    assert!(near(ema(&d), 0.003));
}

#[test]
fn the_average_follows_the_formula() {
    let mut d = detector(PressureSettings::default());
    feed(&mut d, 1.0, &[0.001; 10]);
    for (x, want) in [
        (0.020, 0.003_85),
        (0.020, 0.006_272_5),
        (0.0, 0.005_331_625),
        (0.100, 0.019_531_881_25),
    ] {
        feed(&mut d, 1.0, &[x]);
        assert!(near(ema(&d), want), "after {x}: {} not {want}", ema(&d));
    }
}

#[test]
fn a_sample_is_seconds_per_mib() {
    let mut d = warm();
    for (seconds, bytes, want) in [
        (0.008, 4 * MIB, 0.002),
        (0.001, MIB / 4, 0.004),
        (0.5, 64 * MIB, 0.0078125),
    ] {
        d.on_store_completed(at(1.0), seconds, bytes);
        assert!(near(ema(&d), want), "{seconds} s, {bytes} bytes: {}", ema(&d));
    }
}

#[test]
fn polled_stores_count_from_their_submission() {
    let mut d = warm();
    d.update(at(1.25), at(1.0), 4 * MIB as i64);
    assert!(near(ema(&d), 0.0625));
}

#[test]
fn what_is_no_measurement_is_ignored() {
    let mut d = warm();
    d.on_store_failed(at(1.0));
    let before = d.stats();
    d.update(at(9.0), at(1.0), 0);
    d.update(at(9.0), at(1.0), -5);
    d.on_store_completed(at(9.0), 8.0, 0);
    for seconds in [f64::NAN, f64::INFINITY, -1.0] {
        d.on_store_completed(at(9.0), seconds, MIB);
    }
    d.on_store_completed(at(9.0), f64::MAX, 1);
    assert_eq!(d.stats(), before);
}

// Hysteresis.

#[test]
fn between_the_marks_the_state_stays_and_the_streak_is_zero() {
    let mut d = warm();
    // (sample, pressure, streak); the marks themselves lie between the marks
    let table = [
        (0.001, false, 1),
        (0.002, false, 0),
        (0.010, false, 0),
        (0.001, false, 1),
        (0.011, true, 0),
        (0.010, true, 0),
        (0.005, true, 0),
        (0.002, true, 0),
        (0.001, false, 1),
        (0.001, false, 2),
        (0.009, false, 0),
    ];
    for (i, (x, pressure, streak)) in table.into_iter().enumerate() {
        feed(&mut d, 1.0, &[x]);
        assert_eq!(
            (d.is_under_pressure(at(1.0)), d.stats().streak),
            (pressure, streak),
            "row {i}"
        );
    }
}

// Idle decay.

#[test]
fn silence_under_pressure_halves_the_average_each_half_life() {
    let mut d = warm();
    feed(&mut d, 1.0, &[0.032]);
    // 32 ms at 1 s; the low mark, 2 ms, is met at 9 s and passed right after
    for (t, want, pressure) in [
        (1.0, 0.032, true),
        (3.0, 0.016, true),
        (5.0, 0.008, true),
        (7.0, 0.004, true),
        (9.0, 0.002, true),
    ] {
        assert_eq!(d.is_under_pressure(at(t)), pressure, "at {t} s");
        assert!(near(ema(&d), want), "at {t} s: {}", ema(&d));
    }
    assert!(!d.is_under_pressure(at(9.001)));
}

#[test]
fn decay_does_not_depend_on_how_often_it_is_asked() {
    let (mut often, mut once) = (warm(), warm());
    feed(&mut often, 1.0, &[0.032]);
    feed(&mut once, 1.0, &[0.032]);
    for i in 0..=300 {
        often.is_under_pressure(at(1.0 + f64::from(i) / 100.0));
    }
    once.is_under_pressure(at(4.0));
    assert!(near(ema(&often), ema(&once)) && near(ema(&once), 0.032 * 0.5_f64.powf(1.5)));
}

#[test]
fn there_is_no_decay_without_pressure_without_half_life_or_back_in_time() {
    let mut d = warm();
    feed(&mut d, 1.0, &[0.009]);
    assert!(!d.is_under_pressure(at(100.0)));
    assert_eq!(ema(&d), 0.009);

    for half_life in [0.0, -1.0] {
        let mut d = detector(PressureSettings {
            decay_half_life_s: half_life,
            ..sharp()
        });
        feed(&mut d, 1.0, &[0.001, 0.032]);
        assert!(d.is_under_pressure(at(1000.0)));
        assert_eq!(ema(&d), 0.032);
    }

    let mut d = warm();
    feed(&mut d, 5.0, &[0.032]);
    assert!(d.is_under_pressure(at(1.0)));
    assert_eq!(ema(&d), 0.032);
}

/// Two stores of a few bytes and many seconds made the average infinite, then no number at all: pressure for ever.
#[test]
fn the_average_stays_a_number_whatever_is_observed() {
    for (warmup, high, alpha) in [(0, 0.01, 1.0), (10, 0.01, 0.15), (3, f64::MAX / 2.0, 0.5)] {
        let mut d = detector(PressureSettings {
            warmup_completions: warmup,
            high_water_s: high,
            alpha,
            failure_threshold: Some(2),
            ..PressureSettings::default()
        });
        for _ in 0..20 {
            d.on_store_completed(at(1.0), 1e302, 1);
            assert!(ema(&d).is_finite());
        }
        (0..3).for_each(|_| d.on_store_failed(at(1.0)));
        assert!(ema(&d).is_finite(), "{}", ema(&d));
        assert!(d.is_under_pressure(at(1.0)));
        for n in 0..3000 {
            d.is_under_pressure(at(2.0 + f64::from(n)));
        }
        assert!(ema(&d).is_finite() && !d.is_under_pressure(at(10_000.0)));
    }
}

#[test]
fn decay_below_the_low_mark_clears_and_cools_down() {
    let mut d = warm();
    feed(&mut d, 1.0, &[0.032]);
    let answers: Vec<Verdict> = (0..4).map(|_| d.decide(at(20.0), 1)).collect();
    assert_eq!(
        answers,
        [
            Verdict::Admit,
            Verdict::Cooldown,
            Verdict::Admit,
            Verdict::Cooldown
        ]
    );
}

proptest! {
    #[test]
    fn the_average_stays_within_its_inputs(
        alpha in 0.001..=1.0_f64,
        warmup in 1..20_u32,
        samples in prop::collection::vec((0.0..10.0_f64, 1..(1_u64 << 32)), 20..200),
    ) {
        let mut d = detector(PressureSettings { alpha, warmup_completions: warmup, ..Default::default() });
        let (mut min, mut max) = (f64::INFINITY, 0.0_f64);
        for (i, (seconds, bytes)) in samples.into_iter().enumerate() {
            let x = seconds / (bytes as f64 / MIB as f64);
            (min, max) = (min.min(x), max.max(x));
            d.on_store_completed(at(1.0 + i as f64), seconds, bytes);
            if d.stats().warm {
                let e = ema(&d);
                prop_assert!(e.is_finite());
                prop_assert!(e >= min * (1.0 - 1e-9) && e <= max * (1.0 + 1e-9), "{e} not in [{min}, {max}]");
            }
        }
    }
}
