//! The answers: cool-down, health, failures, reset, counters and transitions.

use super::*;

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
    let marks = Marks {
        ema: 0.030,
        high: 0.010,
        low: 0.002,
    };
    assert_eq!(t.marks, Some(marks));
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

proptest! {
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
