//! Claims of the gate: the bound, what is counted, and what its detector is told and asked.

use std::{sync::mpsc, time::Duration};

use proptest::prelude::*;

use super::{
    super::{DetectorStats, DropCount, Marks},
    *,
};

const MIB: u64 = 1 << 20;

fn at(seconds: f64) -> Instant {
    Instant::from_secs_f64(seconds)
}

fn gate(max: u64) -> Gate {
    let settings = PressureSettings {
        max_inflight_bytes: Some(max),
        warmup_completions: 1,
        alpha: 1.0,
        ..Default::default()
    };
    Gate::new(settings, 0).unwrap()
}

fn sample(mib: u64, ms: u64) -> DeviceSample {
    DeviceSample {
        bytes: mib * MIB,
        device_time: Duration::from_millis(ms),
    }
}

/// One job of 1 MiB there and back, taking `ms` on the device.
fn run(g: &mut Gate, now: Instant, ms: u64) {
    let job = Admission { blocks: 1, bytes: 0 };
    g.inflight_jobs += 1;
    g.complete(now, job, sample(1, ms), true);
}

#[test]
fn the_bound_is_reached_exactly_and_released_once() {
    let mut g = gate(10);
    let a = g.try_admit(at(1.0), 1, 4).unwrap();
    let b = g.try_admit(at(1.0), 1, 6).unwrap();
    assert_eq!(g.try_admit(at(1.0), 1, 1), Err(Refusal::InflightFull));
    g.complete(at(1.0), a, DeviceSample::default(), true);
    assert_eq!((g.stats().inflight_bytes, g.stats().inflight_jobs), (6, 1));
    let c = g.try_admit(at(1.0), 1, 4).unwrap();
    g.complete(at(1.0), b, DeviceSample::default(), false);
    g.cancel(c);
    assert_eq!(
        (
            g.stats().inflight_bytes,
            g.stats().inflight_jobs,
            g.stats().peak_inflight_bytes
        ),
        (0, 0, 10)
    );
}

/// It was refused at any time here and went alone on the Python side.
#[test]
fn a_job_larger_than_the_bound_goes_alone() {
    let mut g = gate(10);
    let small = g.try_admit(at(1.0), 1, 1).unwrap();
    assert_eq!(g.try_admit(at(1.0), 3, 11), Err(Refusal::InflightFull));
    g.cancel(small);
    let large = g
        .try_admit(at(1.0), 3, u64::MAX)
        .expect("nothing else is in flight");
    assert_eq!(g.try_admit(at(1.0), 1, 1), Err(Refusal::InflightFull));
    assert_eq!(g.stats().peak_inflight_bytes, u64::MAX);
    g.cancel(large);
    let stats = g.stats();
    assert_eq!((stats.inflight_bytes, stats.inflight_jobs), (0, 0));
    assert_eq!((stats.drops.total().stores, stats.drops.total().blocks), (2, 4));
}

#[test]
fn the_bound_refuses_before_the_detector_is_asked() {
    let mut g = gate(10 * MIB);
    let held = g.try_admit(at(1.0), 1, 10 * MIB).unwrap();
    run(&mut g, at(1.0), 1);
    run(&mut g, at(1.0), 20); // rate 0.5: every second decision of the policy refuses
    for _ in 0..3 {
        assert_eq!(g.try_admit(at(1.0), 1, MIB), Err(Refusal::InflightFull));
    }
    assert_eq!(g.stats().drops.pressure, DropCount::default());
    g.cancel(held);
    let first = g.try_admit(at(1.0), 1, MIB).expect("the policy's first decision");
    assert_eq!(g.try_admit(at(1.0), 1, MIB), Err(Refusal::Pressure));
    g.cancel(first);
}

/// What a detector was told and asked, in order.
#[derive(Debug, PartialEq)]
enum Call {
    Completed(DeviceSample, InFlight),
    Failed(InFlight),
    Decide(u64, InFlight),
}

/// Admits all, and lets the test hear of it.
#[derive(Debug)]
struct Told(mpsc::SyncSender<Call>);

impl Detector for Told {
    fn completed(&mut self, _: Instant, sample: DeviceSample, left: InFlight) {
        self.0.send(Call::Completed(sample, left)).unwrap();
    }
    fn failed(&mut self, _: Instant, left: InFlight) {
        self.0.send(Call::Failed(left)).unwrap();
    }
    fn decide(&mut self, _: Instant, blocks: u64, in_flight: InFlight) -> Verdict {
        self.0.send(Call::Decide(blocks, in_flight)).unwrap();
        Verdict::Admit
    }
    fn is_under_pressure(&mut self, _: Instant) -> bool {
        false
    }
    fn reset(&mut self) {}
    fn stats(&self) -> DetectorStats {
        DetectorStats::default()
    }
}

#[test]
fn a_detector_is_asked_what_the_bound_lets_pass_and_told_what_the_device_did() {
    let (told, calls) = mpsc::sync_channel(16);
    let mut g = Gate::with_detector(Box::new(Told(told)), 10).unwrap();
    let heard = || calls.try_iter().collect::<Vec<_>>();
    let in_flight = |jobs, bytes| InFlight { jobs, bytes };

    let a = g.try_admit(at(1.0), 2, 6).unwrap();
    let b = g.try_admit(at(1.0), 1, 4).unwrap();
    assert_eq!(
        heard(),
        [Call::Decide(2, in_flight(0, 0)), Call::Decide(1, in_flight(1, 6))],
        "each with what was in flight before it"
    );
    assert_eq!(g.try_admit(at(1.0), 1, 1), Err(Refusal::InflightFull));
    assert_eq!(
        heard(),
        [],
        "what the bound refuses is no question to the detector"
    );

    let slow = sample(1, 500);
    g.complete(at(2.0), a, slow, true);
    assert_eq!(
        heard(),
        [Call::Completed(slow, in_flight(1, 4))],
        "as the worker measured it"
    );
    g.complete(at(2.0), b, DeviceSample::default(), false);
    assert_eq!(heard(), [Call::Failed(in_flight(0, 0))]);

    let c = g.try_admit(at(3.0), 1, 1).unwrap();
    heard();
    g.cancel(c);
    assert_eq!(heard(), [], "what never reached the device says nothing about it");
}

#[test]
fn a_job_that_leaves_nothing_in_flight_never_starts_a_drop() {
    let mut g = gate(10 * MIB);
    for _ in 0..100 {
        // 16 ms/MiB at every job, far above the mark, but the device is idle before the next one
        let a = g.try_admit(at(1.0), 1, 65_536).expect("a device that keeps up");
        let sample = DeviceSample {
            bytes: 65_536,
            device_time: Duration::from_millis(1),
        };
        g.complete(at(1.0), a, sample, true);
    }
    let waiting = g.try_admit(at(1.0), 1, 65_536).unwrap();
    let a = g.try_admit(at(1.0), 1, 65_536).unwrap();
    g.complete(
        at(1.0),
        a,
        DeviceSample {
            bytes: 65_536,
            device_time: Duration::from_millis(1),
        },
        true,
    );
    assert!(
        g.is_under_pressure(at(1.0)),
        "with work waiting the same sample counts in full"
    );
    g.cancel(waiting);
}

#[test]
fn drops_are_counted_by_reason_and_popped_once() {
    let mut g = gate(10 * MIB);
    let _waiting = g
        .try_admit(at(1.0), 1, 1)
        .expect("something waits, so slowness counts");
    run(&mut g, at(1.0), 1);
    run(&mut g, at(1.0), 100);
    assert!(g.is_under_pressure(at(1.0)));
    assert_eq!(g.try_admit(at(1.0), 2, MIB), Err(Refusal::Pressure));
    run(&mut g, at(1.0), 1);
    assert!(!g.is_under_pressure(at(1.0)));
    let a = g.try_admit(at(1.1), 1, MIB).unwrap();
    assert_eq!(g.try_admit(at(1.1), 3, 2 * MIB), Err(Refusal::Cooldown));
    assert_eq!(g.try_admit(at(1.1), 5, 10 * MIB), Err(Refusal::InflightFull));
    let drops = g.stats().drops;
    assert_eq!(
        drops.pressure,
        DropCount {
            stores: 1,
            blocks: 2,
            bytes: MIB
        }
    );
    assert_eq!(
        drops.cooldown,
        DropCount {
            stores: 1,
            blocks: 3,
            bytes: 2 * MIB
        }
    );
    assert_eq!(
        drops.inflight_full,
        DropCount {
            stores: 1,
            blocks: 5,
            bytes: 10 * MIB
        }
    );
    assert_eq!(
        drops.total(),
        DropCount {
            stores: 3,
            blocks: 10,
            bytes: 13 * MIB
        }
    );
    assert_eq!(g.pop_stores_dropped(), (3, 10));
    assert_eq!(g.pop_stores_dropped(), (0, 0));
    g.cancel(a);
}

#[test]
fn the_detector_is_fed_device_time_and_never_queue_time() {
    let mut g = gate(10 * MIB);
    for step in 0..3 {
        let job = g.try_admit(at(f64::from(step) * 60.0), 1, 4 * MIB).unwrap();
        g.complete(at(f64::from(step) * 60.0 + 59.0), job, sample(4, 2), true);
    }
    assert_eq!(g.stats().detector.ema_s_per_mib, 0.0005);
    assert_eq!(g.stats().drops.total().stores, 0);
}

#[test]
fn failed_jobs_mean_pressure_and_skipped_jobs_mean_nothing() {
    let mut g = gate(10 * MIB);
    for _ in 0..3 {
        let job = g.try_admit(at(1.0), 1, MIB).unwrap();
        g.complete(at(1.0), job, sample(1, 1), false);
    }
    assert_eq!(g.try_admit(at(1.0), 1, MIB), Err(Refusal::Pressure));
    let t = g.take_transition().unwrap();
    assert_eq!(
        t.marks,
        Some(Marks {
            ema: 0.040,
            high: 0.010,
            low: 0.002
        })
    );
    let before = g.stats().detector;
    run(&mut g, at(1.0), 1);
    assert_eq!(g.stats().detector.completions, before.completions + 1);
    let skipped = Admission { blocks: 1, bytes: 0 };
    g.complete(at(1.0), skipped, sample(0, 1), true);
    assert_eq!(g.stats().detector.completions, before.completions + 1);
}

#[test]
fn reset_keeps_what_is_in_flight() {
    let mut g = gate(10 * MIB);
    let job = g.try_admit(at(1.0), 1, 9 * MIB).unwrap();
    run(&mut g, at(1.0), 1);
    g.reset();
    assert_eq!(g.stats().detector.completions, 0);
    assert_eq!(g.try_admit(at(1.0), 1, 2 * MIB), Err(Refusal::InflightFull));
    g.complete(at(2.0), job, sample(9, 9), true);
    assert_eq!(g.stats().inflight_bytes, 0);
}

#[test]
fn a_bound_of_zero_is_invalid() {
    let e = Gate::new(PressureSettings::default(), 3).unwrap_err();
    assert_eq!(e.kind(), crate::ErrorKind::Invalid);
    assert!(e.to_string().contains("max_inflight_bytes"), "{e}");
}

#[test]
fn the_bound_defaults_to_a_share_of_the_primary() {
    let g = Gate::new(PressureSettings::default(), 400).unwrap();
    assert_eq!(g.stats().max_inflight_bytes, 100);
}

proptest! {
    #[test]
    fn bytes_in_flight_exceed_the_bound_by_a_single_job_only_and_return_to_zero(
        max in 1..200_u64,
        steps in prop::collection::vec((0..4_u8, 0..250_u64, 0..400_u64), 0..300),
    ) {
        let mut g = gate(max);
        let mut held = Vec::new();
        let mut now = at(1.0);
        for (what, bytes, ms) in steps {
            now = now.after(Duration::from_millis(ms));
            match (what, held.is_empty()) {
                (0, false) => g.cancel(held.swap_remove(bytes as usize % held.len())),
                (1, false) => {
                    let job: Admission = held.swap_remove(bytes as usize % held.len());
                    g.complete(now, job, sample(1, ms / 10), ms % 7 != 0);
                }
                _ => held.extend(g.try_admit(now, 1, bytes)),
            }
            let s = g.stats();
            prop_assert_eq!(s.inflight_bytes, held.iter().map(Admission::bytes).sum::<u64>());
            prop_assert_eq!(s.inflight_jobs, held.len() as u64);
            let alone = held.iter().filter(|a| a.bytes() > 0).count() <= 1;
            prop_assert!(s.inflight_bytes <= max || alone);
        }
        for job in held.drain(..) {
            g.complete(now, job, DeviceSample::default(), true);
        }
        prop_assert_eq!((g.stats().inflight_bytes, g.stats().inflight_jobs), (0, 0));
    }
}
