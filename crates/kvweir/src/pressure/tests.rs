//! Vectors computed by hand for the detector, and simulations of whole devices.
//!
//! Vectors use 1 MiB jobs, so a latency in seconds is the sample itself.

use std::{
    collections::VecDeque,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use proptest::prelude::*;

use super::{
    DeviceSample, DropPolicy, DropPolicyKind, EmaDetector, Gate, LatencySignal, PressureSettings, Refusal,
    TransitionCause, TransitionKind, Verdict,
};
use crate::clock::Instant;

const MIB: u64 = 1 << 20;

fn at(seconds: f64) -> Instant {
    Instant::from_secs_f64(seconds)
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12
}

/// Local marks; the newest sample is the EMA; warm after one completion.
fn sharp() -> PressureSettings {
    PressureSettings {
        alpha: 1.0,
        warmup_completions: 1,
        ..Default::default()
    }
}

fn detector(settings: PressureSettings) -> EmaDetector {
    EmaDetector::new(settings).unwrap()
}

/// A sharp detector that is warm.
fn warm() -> EmaDetector {
    let mut d = detector(sharp());
    feed(&mut d, 1.0, &[0.001]);
    d
}

fn feed(d: &mut EmaDetector, t: f64, samples: &[f64]) {
    for &x in samples {
        d.on_store_completed(at(t), x, MIB);
    }
}

fn ema(d: &EmaDetector) -> f64 {
    d.stats().ema_s_per_mib
}

/// A policy that refuses always and counts how often it was asked.
#[derive(Debug)]
struct Refuse(Arc<AtomicU32>);

impl DropPolicy for Refuse {
    fn admit(&mut self, _: &dyn LatencySignal) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn reset(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

fn refusing(settings: PressureSettings) -> (EmaDetector, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    (
        EmaDetector::with_policy(settings, Box::new(Refuse(Arc::clone(&asked)))).unwrap(),
        asked,
    )
}

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

// Cool-down.

/// A sharp detector whose pressure has just cleared at `t`.
fn cleared(t: f64) -> EmaDetector {
    let mut d = warm();
    feed(&mut d, t, &[0.030, 0.001]);
    d
}

#[test]
fn after_pressure_every_second_store_is_dropped_until_the_cool_down_ends() {
    let mut d = cleared(2.0);
    let answers: Vec<bool> = [2.0, 2.1, 2.2, 2.3, 2.999, 3.0, 3.1, 3.2]
        .into_iter()
        .map(|t| d.should_store(at(t), 7))
        .collect();
    assert_eq!(answers, [true, false, true, false, true, true, true, true]);
    assert_eq!(d.pop_stores_dropped(), (2, 14));
}

#[test]
fn the_count_restarts_at_each_clearing() {
    let mut d = cleared(2.0);
    assert!(d.should_store(at(2.0), 1));
    feed(&mut d, 2.1, &[0.030, 0.001]);
    assert!(
        d.should_store(at(2.1), 1),
        "the second question, but the first since this clearing"
    );
    assert!(!d.should_store(at(2.1), 1));
    feed(&mut d, 2.2, &[0.030, 0.001]);
    let answers: Vec<bool> = (0..2).map(|_| d.should_store(at(3.15), 1)).collect();
    assert_eq!(
        answers,
        [true, false],
        "the cool-down runs from the latest clearing"
    );
}

#[test]
fn the_cool_down_is_asked_before_the_policy() {
    let (mut d, asked) = refusing(sharp());
    feed(&mut d, 1.0, &[0.001, 0.030, 0.001]);
    assert_eq!(
        (d.decide(at(1.0), 1), asked.load(Ordering::Relaxed)),
        (Verdict::Pressure, 1)
    );
    assert_eq!(
        (d.decide(at(1.0), 1), asked.load(Ordering::Relaxed)),
        (Verdict::Cooldown, 1)
    );
    assert_eq!(
        (d.decide(at(1.0), 1), asked.load(Ordering::Relaxed)),
        (Verdict::Pressure, 2)
    );
    assert_eq!(d.pop_stores_dropped(), (3, 3));
}

#[test]
fn there_is_no_cool_down_under_pressure() {
    let mut d = cleared(2.0);
    assert!(d.should_store(at(2.0), 1));
    feed(&mut d, 2.0, &[0.0101]); // rate 0.005: the policy admits
    let answers: Vec<Verdict> = (0..6).map(|_| d.decide(at(2.0), 1)).collect();
    assert_eq!(answers, [Verdict::Admit; 6]);
}

#[test]
fn there_is_no_cool_down_when_healthy() {
    let mut d = cleared(2.0);
    feed(&mut d, 2.0, &[0.001; 9]);
    assert!(d.stats().healthy);
    assert!((0..6).all(|_| d.should_store(at(2.0), 1)));
}

#[test]
fn completions_below_the_low_mark_without_pressure_start_no_cool_down() {
    let mut d = warm();
    feed(&mut d, 2.0, &[0.001, 0.001]);
    assert!((0..6).all(|_| d.should_store(at(2.0), 1)));

    let mut d = cleared(2.0);
    feed(&mut d, 2.9, &[0.001]);
    assert!(
        (0..6).all(|_| d.should_store(at(3.0), 1)),
        "nor do they prolong one"
    );
}

#[test]
fn a_cool_down_of_zero_drops_nothing() {
    let mut d = detector(PressureSettings {
        cooldown_s: 0.0,
        ..sharp()
    });
    feed(&mut d, 1.0, &[0.001, 0.030, 0.001]);
    assert!((0..6).all(|_| d.should_store(at(1.0), 1)));
}

// Health.

#[test]
fn ten_completions_below_the_low_mark_open_the_fast_path() {
    let (mut d, asked) = refusing(sharp());
    feed(&mut d, 1.0, &[0.001; 10]); // one of them warms up
    assert_eq!((d.stats().streak, d.should_store(at(1.0), 1)), (9, false));
    feed(&mut d, 1.0, &[0.001]);
    assert!((0..5).all(|_| d.should_store(at(1.0), 1)));
    assert_eq!(
        asked.load(Ordering::Relaxed),
        1,
        "the fast path does not ask the policy"
    );
    feed(&mut d, 1.0, &[0.005]);
    assert!(
        !d.should_store(at(1.0), 1),
        "one completion between the marks ends it"
    );
}

#[test]
fn a_failure_ends_the_streak() {
    let (mut d, _) = refusing(sharp());
    feed(&mut d, 1.0, &[0.001; 11]);
    assert!(d.should_store(at(1.0), 1));
    d.on_store_failed(at(1.0));
    assert_eq!((d.stats().streak, d.should_store(at(1.0), 1)), (0, false));
}

// Failures.

#[test]
fn failures_in_a_row_mean_pressure_even_in_warm_up() {
    let mut d = detector(PressureSettings::default());
    feed(&mut d, 1.0, &[0.001; 3]);
    d.on_store_failed(at(1.0));
    d.on_store_failed(at(1.0));
    assert!(d.should_store(at(1.0), 1));
    d.on_store_failed(at(1.0));
    assert_eq!((ema(&d), d.stats().warm), (0.040, false));
    assert!(!d.should_store(at(1.0), 1));
    let t = d.take_transition().unwrap();
    assert_eq!(
        (t.kind, t.cause),
        (TransitionKind::Activated, TransitionCause::Failures)
    );
}

#[test]
fn failures_never_lower_the_average() {
    let mut d = warm();
    feed(&mut d, 1.0, &[0.100]);
    (0..3).for_each(|_| d.on_store_failed(at(1.0)));
    assert_eq!(ema(&d), 0.100);
}

#[test]
fn a_success_resets_the_count_of_failures() {
    let mut d = warm();
    for _ in 0..5 {
        d.on_store_failed(at(1.0));
        d.on_store_failed(at(1.0));
        assert_eq!(d.stats().consecutive_failures, 2);
        feed(&mut d, 1.0, &[0.001]);
        assert_eq!(d.stats().consecutive_failures, 0);
    }
    assert!(!d.is_under_pressure(at(1.0)));
}

#[test]
fn after_failures_decay_lets_probes_through_and_a_failed_probe_trips_at_once() {
    let mut d = detector(PressureSettings::default());
    (0..3).for_each(|_| d.on_store_failed(at(1.0)));
    // 40 ms to 2 ms: log2(20) = 4.32 half-lives of 2 s = 8.64 s
    assert!(d.is_under_pressure(at(1.0 + 8.64)));
    assert!(!d.is_under_pressure(at(1.0 + 8.65)));
    assert!(d.should_store(at(10.0), 1), "a probe");
    d.on_store_failed(at(10.0));
    assert!(d.is_under_pressure(at(10.0)));
    assert_eq!(
        (ema(&d), d.stats().consecutive_failures, d.stats().activations),
        (0.040, 4, 2)
    );
}

#[test]
fn after_failures_good_completions_clear_too() {
    let mut d = detector(PressureSettings {
        alpha: 0.5,
        ..sharp()
    });
    feed(&mut d, 1.0, &[0.001]);
    (0..3).for_each(|_| d.on_store_failed(at(1.0)));
    for want in [0.020, 0.010, 0.005, 0.0025] {
        feed(&mut d, 1.0, &[0.0]);
        assert!(near(ema(&d), want) && d.is_under_pressure(at(1.0)));
    }
    feed(&mut d, 1.0, &[0.0]);
    assert!(!d.is_under_pressure(at(1.0)));
}

#[test]
fn after_failures_in_warm_up_the_mean_replaces_the_average_and_the_next_question_clears() {
    let mut d = detector(PressureSettings {
        warmup_completions: 2,
        ..Default::default()
    });
    (0..3).for_each(|_| d.on_store_failed(at(1.0)));
    feed(&mut d, 1.0, &[0.001, 0.001]);
    assert!(d.stats().under_pressure, "warm-up evaluates nothing");
    assert_eq!(d.decide(at(1.0), 1), Verdict::Admit);
    assert_eq!(d.decide(at(1.0), 1), Verdict::Cooldown);
}

#[test]
fn the_mean_of_warm_up_decays_from_the_end_of_warm_up() {
    let mut d = detector(PressureSettings {
        warmup_completions: 1,
        ..Default::default()
    });
    (0..3).for_each(|_| d.on_store_failed(at(1.0)));
    feed(&mut d, 5.0, &[0.008]);
    assert!(d.is_under_pressure(at(7.0)));
    assert!(near(ema(&d), 0.004), "one half-life of silence: {}", ema(&d));
}

#[test]
fn without_a_threshold_failures_are_ignored() {
    let mut d = detector(PressureSettings {
        failure_threshold: None,
        ..sharp()
    });
    feed(&mut d, 1.0, &[0.001; 11]);
    let before = d.stats();
    (0..100).for_each(|_| d.on_store_failed(at(1.0)));
    assert_eq!(d.stats(), before);
}

// Reset, counters, transitions, policy choice.

#[test]
fn reset_clears_everything() {
    let mut d = warm();
    feed(&mut d, 2.0, &[0.025]); // rate 0.75
    assert!(d.should_store(at(2.0), 4));
    assert!(!d.should_store(at(2.0), 4));
    d.on_store_failed(at(2.0));
    d.reset();
    let s = d.stats();
    assert_eq!(
        (s.ema_s_per_mib, s.under_pressure, s.warm, s.streak),
        (0.0, false, false, 0)
    );
    assert_eq!((s.completions, s.consecutive_failures), (0, 0));
    assert_eq!(d.pop_stores_dropped(), (0, 0));
    assert!((0..4).all(|_| d.should_store(at(2.0), 1)), "no cool-down either");
    // the policy's accumulator too: at rate 0.75 the first is admitted, the second refused
    feed(&mut d, 3.0, &[0.001, 0.025]);
    assert!(
        near(ema(&d), 0.025),
        "warm-up starts anew: its sum holds nothing old"
    );
    assert!(d.should_store(at(3.0), 1));
    assert!(!d.should_store(at(3.0), 1));
}

#[test]
fn reset_ends_a_cool_down() {
    let mut d = cleared(2.0);
    d.reset();
    assert!((0..4).all(|_| d.should_store(at(2.0), 1)));
}

#[test]
fn reset_resets_the_warm_up_mean() {
    let mut d = detector(PressureSettings {
        warmup_completions: 2,
        ..Default::default()
    });
    feed(&mut d, 1.0, &[0.008]);
    d.reset();
    feed(&mut d, 1.0, &[0.002, 0.004]);
    assert!(near(ema(&d), 0.003));
}

#[test]
fn dropped_stores_and_blocks_are_popped_once() {
    let mut d = detector(PressureSettings {
        policy: DropPolicyKind::Drop,
        ..sharp()
    });
    feed(&mut d, 1.0, &[0.001, 0.011]);
    assert!(!d.should_store(at(1.0), 3));
    assert!(!d.should_store(at(1.0), 5));
    assert_eq!(d.pop_stores_dropped(), (2, 8));
    assert_eq!(d.pop_stores_dropped(), (0, 0));
}

#[test]
fn each_transition_is_told_once_with_its_numbers() {
    let mut d = warm();
    assert!(d.take_transition().is_none());
    feed(&mut d, 1.0, &[0.030]);
    let t = d.take_transition().unwrap();
    assert_eq!(
        (t.kind, t.cause),
        (TransitionKind::Activated, TransitionCause::Completion)
    );
    assert_eq!((t.ema, t.high, t.low), (0.030, 0.010, 0.002));
    let line =
        "back-pressure activated by a completed store: ema 0.030000 s/MiB, high 0.010000, low 0.002000";
    assert_eq!(t.to_string(), line);
    feed(&mut d, 1.0, &[0.040]);
    assert!(
        d.take_transition().is_none(),
        "still under pressure: no transition"
    );
    feed(&mut d, 1.0, &[0.001]);
    assert_eq!(d.take_transition().unwrap().kind, TransitionKind::Cleared);
    feed(&mut d, 1.0, &[0.030]);
    d.take_transition();
    d.should_store(at(60.0), 1);
    let t = d.take_transition().unwrap();
    assert_eq!(
        (t.kind, t.cause),
        (TransitionKind::Cleared, TransitionCause::Idle)
    );
    feed(&mut d, 61.0, &[0.030]);
    d.take_transition();
    d.reset();
    assert_eq!(d.take_transition().unwrap().cause, TransitionCause::Reset);
    d.reset();
    assert!(d.take_transition().is_none());
}

// Whole devices.

/// The share of stores dropped, in percent, when a job of `bytes` is offered each step to a disk that needs 1
/// ms for any, and completions are seen at the next step.
fn healthy_disk(step: Duration, bytes: u64, steps: u32, device_time: bool) -> f64 {
    let mut gate = Gate::new(PressureSettings::default(), 8 << 30).unwrap();
    let mut polled = detector(PressureSettings::default());
    let mut now = at(1.0);
    let (mut running, mut dropped) = (None, 0_u32);
    for _ in 0..steps {
        if device_time {
            if let Some(job) = running.take() {
                gate.complete(
                    now,
                    job,
                    DeviceSample {
                        bytes,
                        device_time: Duration::from_millis(1),
                    },
                    true,
                );
            }
            running = gate.try_admit(now, 1, bytes).map_err(|_| dropped += 1).ok();
        }
        now = now.after(step);
    }
    if !device_time {
        let mut submitted = None;
        for _ in 0..steps {
            if let Some(t) = submitted.take() {
                polled.update(now, t, bytes as i64);
            }
            if polled.should_store(now, 1) {
                submitted = Some(now);
            } else {
                dropped += 1;
            }
            now = now.after(step);
        }
    }
    100.0 * f64::from(dropped) / f64::from(steps)
}

#[test]
fn a_healthy_disk_loses_no_store_where_polling_would_drop_most() {
    let jobs = [MIB / 2, MIB, 2 * MIB, 4 * MIB, 8 * MIB];
    // what feeding the time at which completions are polled drops, in percent
    let published = [
        (10, [48.0, 0.0, 0.0, 0.0, 0.0]),
        (30, [94.0, 75.0, 23.0, 0.0, 0.0]),
        (50, [94.0, 87.0, 58.0, 11.0, 0.0]),
        (100, [93.0, 89.0, 79.0, 50.0, 10.0]),
    ];
    let mut far = Vec::new();
    for (step_ms, row) in published {
        for (bytes, want) in jobs.into_iter().zip(row) {
            let step = Duration::from_millis(step_ms);
            let ours = healthy_disk(step, bytes, 3_000, true);
            assert_eq!(ours, 0.0, "{step_ms} ms, {bytes} bytes");
            let polled = healthy_disk(step, bytes, 3_000, false);
            println!("{step_ms} ms, {bytes} bytes: {polled:.1} % polled, {want} % published");
            if (polled - want).abs() > 4.0 {
                far.push((step_ms, bytes, polled, want));
            }
        }
    }
    assert!(far.is_empty(), "the control differs: {far:?}");
}

struct Run {
    gate: Gate,
    offered: u64,
    most_inflight: u64,
}

/// Offers a job of `job_bytes` each `step` to a device that serves one after the other at `bytes_per_s`, then
/// drains.
fn serve(
    settings: PressureSettings,
    primary: u64,
    bytes_per_s: f64,
    job_bytes: u64,
    step: Duration,
    steps: u32,
) -> Run {
    let mut gate = Gate::new(settings, primary).unwrap();
    let service = Duration::from_secs_f64(job_bytes as f64 / bytes_per_s);
    let sample = DeviceSample {
        bytes: job_bytes,
        device_time: service,
    };
    let (mut now, mut free_at, mut most_inflight) = (at(1.0), at(1.0), 0);
    let mut queue = VecDeque::new();
    for _ in 0..steps {
        while queue.front().is_some_and(|&(done, _)| done <= now) {
            let (_, job) = queue.pop_front().unwrap();
            gate.complete(now, job, sample, true);
        }
        if let Ok(job) = gate.try_admit(now, 16, job_bytes) {
            free_at = free_at.max(now).after(service);
            queue.push_back((free_at, job));
        }
        let held: u64 = queue.iter().map(|(_, job)| job.bytes()).sum();
        assert_eq!(gate.stats().inflight_bytes, held);
        most_inflight = most_inflight.max(held);
        now = now.after(step);
    }
    for (done, job) in queue {
        gate.complete(done, job, sample, true);
    }
    Run {
        gate,
        offered: u64::from(steps),
        most_inflight,
    }
}

#[test]
fn a_slow_tier_never_holds_more_than_its_bound() {
    for (primary, max) in [(64 << 30, 2 << 30), (1 << 30, 256 << 20), (512 << 20, 128 << 20)] {
        for step_ms in [10, 50, 100, 1_000] {
            let step = Duration::from_millis(step_ms);
            let run = serve(PressureSettings::default(), primary, 50e6, 64 * MIB, step, 4_000);
            let s = run.gate.stats();
            assert_eq!(s.max_inflight_bytes, max);
            assert!(run.most_inflight <= max, "{} bytes in flight", run.most_inflight);
            assert_eq!(
                (s.peak_inflight_bytes, s.inflight_bytes, s.inflight_jobs),
                (run.most_inflight, 0, 0)
            );
            assert_eq!(s.admitted_stores + s.drops.total().stores, run.offered);
            assert!(
                s.drops.total().stores > 0,
                "it cannot keep up, so something is refused"
            );
            if step_ms <= 100 {
                assert_eq!(s.peak_inflight_bytes, max, "the bound is what stops it");
                assert!(s.drops.get(Refusal::InflightFull).stores > 0);
                assert!(
                    s.admitted_stores < run.offered / 5,
                    "it takes what it can serve: {s:?}"
                );
            }
        }
    }
}

#[test]
fn a_tier_that_keeps_up_is_never_refused() {
    // (bytes per second, bytes per job, step in ms): load from a few percent to all of the device
    for (rate, job, step_ms) in [
        (5e9, 64 * MIB, 50),
        (5e9, 64 * MIB, 14),
        (1e9, 8 * MIB, 10),
        (600e6, 4 * MIB, 7),
        (200e6, 2 * MIB, 11),
        (120e6, MIB, 9),
    ] {
        let step = Duration::from_millis(step_ms);
        let run = serve(PressureSettings::default(), 8 << 30, rate, job, step, 4_000);
        assert_eq!(
            run.gate.stats().drops.total().stores,
            0,
            "{rate} B/s, {job} bytes, {step_ms} ms"
        );
    }
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

    #[test]
    fn whatever_happens_the_answer_follows_the_state(
        events in prop::collection::vec((0..5_u8, 0.0..0.05_f64, 0..3_000_u64), 1..300),
    ) {
        let mut d = detector(PressureSettings { policy: DropPolicyKind::Drop, ..Default::default() });
        let (mut now, mut stores, mut under) = (at(1.0), 0, false);
        for (what, x, ms) in events {
            now = now.after(Duration::from_millis(ms));
            match what {
                0 | 1 => d.on_store_completed(now, x, MIB),
                2 => d.on_store_failed(now),
                _ => {
                    let (before, verdict) = (d.stats(), d.decide(now, 2));
                    let after = d.stats();
                    prop_assert!(after.ema_s_per_mib <= before.ema_s_per_mib, "asking never raises the average");
                    prop_assert_eq!(verdict == Verdict::Pressure, after.under_pressure);
                    prop_assert!(verdict == Verdict::Admit || !after.healthy);
                    stores += u64::from(verdict != Verdict::Admit);
                }
            }
            if let Some(t) = d.take_transition() {
                prop_assert_eq!(t.kind == TransitionKind::Activated, d.stats().under_pressure);
                under = !under;
            }
            prop_assert_eq!(under, d.stats().under_pressure, "no change without a transition");
            prop_assert!(d.stats().ema_s_per_mib.is_finite());
        }
        prop_assert_eq!(d.pop_stores_dropped(), (stores, 2 * stores));
    }
}
