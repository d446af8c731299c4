//! The gate before a tier's stores (I9): first the bytes in flight, then the detector.
//!
//! The bound is what protects the primary tier: every byte in flight pins a slot there, and the EMA of
//! completions learns that a device is slow only after its queue has grown. The detector sees the device's
//! own time per job, not the time in queues nor the step at which completions are polled, so a device that
//! keeps up looks healthy whatever the engine's step is.
//!
//! A job larger than the bound goes alone, when nothing is in flight: whoever builds jobs cannot always make them
//! smaller, and refused at any time its blocks would never be stored.

use std::{fmt, time::Duration};

use super::{
    ema::{DetectorStats, EmaDetector, Transition, Verdict},
    policy::LatencySignal,
    settings::{PressureSettings, default_max_inflight},
};
use crate::{
    clock::Instant,
    error::{Error, Result},
};

const MIB: f64 = 1_048_576.0;

/// What the device did for one store job, measured by the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DeviceSample {
    /// Bytes written by the device; zero (all blocks were there already) tells the detector nothing.
    pub bytes: u64,
    /// The job's share of the device's time while I/O of it was under way: queue time excluded, and divided among
    /// jobs that overlap.
    pub device_time: Duration,
}

/// Why a store was refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Refusal {
    /// With the job, more than `max_inflight_bytes` would be in flight, and something is.
    InflightFull,
    /// The tier is under pressure, and the policy drops this store.
    Pressure,
    /// Pressure cleared a moment ago; every second store is still dropped.
    Cooldown,
}

impl Refusal {
    /// All reasons, in the order in which they are looked at.
    pub const ALL: [Self; 3] = [Self::InflightFull, Self::Pressure, Self::Cooldown];

    /// The word used in logs and metrics labels.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::InflightFull => "inflight_full",
            Self::Pressure => "pressure",
            Self::Cooldown => "cooldown",
        }
    }
}

impl fmt::Display for Refusal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A store that was admitted and whose bytes are in flight.
///
/// It cannot be copied, and goes back to the gate that gave it by [`Gate::complete`] or [`Gate::cancel`]: so
/// its bytes are released once. One that is dropped instead keeps its bytes in flight for ever.
#[must_use = "give it back by Gate::complete or Gate::cancel, or its bytes stay in flight for ever"]
#[derive(Debug, PartialEq, Eq)]
pub struct Admission {
    blocks: u64,
    bytes: u64,
}

impl Admission {
    /// The blocks of the job.
    pub fn blocks(&self) -> u64 {
        self.blocks
    }

    /// The bytes in flight for the job.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }
}

/// Stores refused for one reason, since construction.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DropCount {
    /// Store jobs.
    pub stores: u64,
    /// Blocks in them.
    pub blocks: u64,
    /// Bytes of them.
    pub bytes: u64,
}

impl DropCount {
    fn add(&mut self, blocks: u64, bytes: u64) {
        self.stores += 1;
        self.blocks = self.blocks.saturating_add(blocks);
        self.bytes = self.bytes.saturating_add(bytes);
    }
}

/// [`DropCount`] for each [`Refusal`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DropsByReason {
    /// [`Refusal::InflightFull`].
    pub inflight_full: DropCount,
    /// [`Refusal::Pressure`].
    pub pressure: DropCount,
    /// [`Refusal::Cooldown`].
    pub cooldown: DropCount,
}

impl DropsByReason {
    /// The count for one reason.
    pub const fn get(&self, reason: Refusal) -> DropCount {
        match reason {
            Refusal::InflightFull => self.inflight_full,
            Refusal::Pressure => self.pressure,
            Refusal::Cooldown => self.cooldown,
        }
    }

    /// The count over all reasons.
    pub fn total(&self) -> DropCount {
        Refusal::ALL
            .iter()
            .map(|&reason| self.get(reason))
            .fold(DropCount::default(), |a, b| DropCount {
                stores: a.stores.saturating_add(b.stores),
                blocks: a.blocks.saturating_add(b.blocks),
                bytes: a.bytes.saturating_add(b.bytes),
            })
    }

    fn add(&mut self, reason: Refusal, blocks: u64, bytes: u64) {
        let count = match reason {
            Refusal::InflightFull => &mut self.inflight_full,
            Refusal::Pressure => &mut self.pressure,
            Refusal::Cooldown => &mut self.cooldown,
        };
        count.add(blocks, bytes);
    }
}

/// What a gate knows, for metrics.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct GateStats {
    /// Bytes of stores admitted and not given back.
    pub inflight_bytes: u64,
    /// Jobs admitted and not given back.
    pub inflight_jobs: u64,
    /// The most `inflight_bytes` ever was: above the bound only where a single job is.
    pub peak_inflight_bytes: u64,
    /// The bound on `inflight_bytes`, unless a single job is larger.
    pub max_inflight_bytes: u64,
    /// Jobs admitted since construction.
    pub admitted_stores: u64,
    /// Stores refused since construction, by reason.
    pub drops: DropsByReason,
    /// The detector's side.
    pub detector: DetectorStats,
}

/// Admits the stores of one tier.
///
/// ```
/// use std::time::Duration;
/// use kvweir::{clock::Instant, pressure::{DeviceSample, Gate, PressureSettings, Refusal}};
/// let mib = 1 << 20;
/// let mut gate = Gate::new(PressureSettings::default(), 64 * mib)?; // at most 16 MiB in flight
/// let now = Instant::from_secs_f64(1.0);
/// let job = gate.try_admit(now, 3, 12 * mib).unwrap();
/// assert_eq!(gate.try_admit(now, 2, 8 * mib), Err(Refusal::InflightFull));
/// gate.complete(now, job, DeviceSample { bytes: 12 * mib, device_time: Duration::from_millis(6) }, true);
/// assert_eq!(gate.stats().inflight_bytes, 0);
/// # Ok::<(), kvweir::Error>(())
/// ```
#[derive(Debug)]
pub struct Gate {
    detector: EmaDetector,
    max_inflight_bytes: u64,
    inflight_bytes: u64,
    inflight_jobs: u64,
    peak_inflight_bytes: u64,
    admitted_stores: u64,
    drops: DropsByReason,
    /// Stores and blocks of `drops` that were popped.
    popped: (u64, u64),
}

impl Gate {
    /// The gate of a tier behind a primary tier of `primary_bytes` bytes, which matters only for the default
    /// of `max_inflight_bytes` ([`default_max_inflight`]).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) as [`PressureSettings::validate`], or when the
    /// default bound is zero.
    pub fn new(settings: PressureSettings, primary_bytes: u64) -> Result<Self> {
        let max = settings
            .max_inflight_bytes
            .unwrap_or_else(|| default_max_inflight(primary_bytes));
        Self::with_detector(EmaDetector::new(settings)?, max)
    }

    /// A gate around a detector of one's own; its settings' `max_inflight_bytes` is not looked at.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when `max_inflight_bytes` is zero.
    pub fn with_detector(detector: EmaDetector, max_inflight_bytes: u64) -> Result<Self> {
        if max_inflight_bytes == 0 {
            return Err(Error::invalid(
                "make pressure gate",
                "max_inflight_bytes is 0 (set so, or a quarter of an empty primary tier): at least 1 is needed",
            ));
        }
        Ok(Self {
            detector,
            max_inflight_bytes,
            inflight_bytes: 0,
            inflight_jobs: 0,
            peak_inflight_bytes: 0,
            admitted_stores: 0,
            drops: DropsByReason::default(),
            popped: (0, 0),
        })
    }

    /// Asks for one store job. The bytes in flight are looked at first; a job they refuse is not a question
    /// to the detector and does not touch its policy.
    ///
    /// # Errors
    /// The [`Refusal`], which has been counted. The block stays in the primary tier.
    pub fn try_admit(&mut self, now: Instant, blocks: u64, bytes: u64) -> Result<Admission, Refusal> {
        let room = self.max_inflight_bytes.saturating_sub(self.inflight_bytes);
        let refusal = if self.inflight_bytes > 0 && bytes > room {
            Refusal::InflightFull
        } else {
            match self.detector.decide(now, blocks) {
                Verdict::Admit => {
                    self.inflight_bytes = self.inflight_bytes.saturating_add(bytes);
                    self.inflight_jobs += 1;
                    self.admitted_stores += 1;
                    self.peak_inflight_bytes = self.peak_inflight_bytes.max(self.inflight_bytes);
                    return Ok(Admission { blocks, bytes });
                }
                Verdict::Pressure => Refusal::Pressure,
                Verdict::Cooldown => Refusal::Cooldown,
            }
        };
        self.drops.add(refusal, blocks, bytes);
        Err(refusal)
    }

    /// Takes back a job that ran: releases its bytes and tells the detector the device's time, or the
    /// failure.
    ///
    /// A job that leaves nothing in flight shows that the device kept up with what it was given, however long
    /// it took for however few bytes (a 64 KiB job of 1 ms reads as 16 ms/MiB): its sample counts as at most the
    /// high mark, so that it cannot be what starts a drop (I9).
    pub fn complete(&mut self, now: Instant, admission: Admission, sample: DeviceSample, ok: bool) {
        self.cancel(admission);
        if ok {
            let mut seconds = sample.device_time.as_secs_f64();
            if self.inflight_bytes == 0 {
                seconds = seconds.min(self.detector.high_water() * sample.bytes as f64 / MIB);
            }
            self.detector.on_store_completed(now, seconds, sample.bytes);
        } else {
            self.detector.on_store_failed(now);
        }
    }

    /// Takes back a job that never reached the device: releases its bytes and observes nothing.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "consuming the admission is what releases its bytes only once"
    )]
    pub fn cancel(&mut self, admission: Admission) {
        debug_assert!(
            admission.bytes <= self.inflight_bytes,
            "an admission of another gate"
        );
        self.inflight_bytes = self.inflight_bytes.saturating_sub(admission.bytes);
        self.inflight_jobs = self.inflight_jobs.saturating_sub(1);
    }

    /// Whether the tier is under pressure; asking applies idle decay. Bytes in flight do not matter here.
    pub fn is_under_pressure(&mut self, now: Instant) -> bool {
        self.detector.is_under_pressure(now)
    }

    /// The stores and blocks refused, for whatever reason, since the last call.
    pub fn pop_stores_dropped(&mut self) -> (u64, u64) {
        let total = self.drops.total();
        let (stores, blocks) = std::mem::replace(&mut self.popped, (total.stores, total.blocks));
        (total.stores - stores, total.blocks - blocks)
    }

    /// The detector's transition since the last call; see [`EmaDetector::take_transition`].
    pub fn take_transition(&mut self) -> Option<Transition> {
        self.detector.take_transition()
    }

    /// Resets the detector. Bytes in flight stay, since their I/O may still run, and so do the counters of
    /// drops.
    pub fn reset(&mut self) {
        self.detector.reset();
    }

    /// What the gate knows, without changing it.
    pub fn stats(&self) -> GateStats {
        GateStats {
            inflight_bytes: self.inflight_bytes,
            inflight_jobs: self.inflight_jobs,
            peak_inflight_bytes: self.peak_inflight_bytes,
            max_inflight_bytes: self.max_inflight_bytes,
            admitted_stores: self.admitted_stores,
            drops: self.drops,
            detector: self.detector.stats(),
        }
    }

    /// The detector behind the gate.
    pub fn detector(&self) -> &EmaDetector {
        &self.detector
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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
        assert_eq!(g.detector.pop_stores_dropped(), (0, 0));
        g.cancel(held);
        let first = g.try_admit(at(1.0), 1, MIB).expect("the policy's first decision");
        assert_eq!(g.try_admit(at(1.0), 1, MIB), Err(Refusal::Pressure));
        g.cancel(first);
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
        assert_eq!((t.ema, t.high, t.low), (0.040, 0.010, 0.002));
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
}
