//! Whole devices, simulated: what a gate does before one that keeps up and before one that does not.

use std::collections::VecDeque;

use super::{
    super::{DeviceSample, Gate, Refusal},
    *,
};

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
