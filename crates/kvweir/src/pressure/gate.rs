//! The gate before a tier's stores (I9): first the bytes in flight, then the detector.
//!
//! The bound is what protects the primary tier: every byte in flight pins a slot there, and a detector that watches
//! completions learns that a device is slow only after its queue has grown. The detector sees the device's own time
//! per job, not the time in queues nor the step at which completions are polled, so a device that keeps up looks
//! healthy whatever the engine's step is.
//!
//! A job larger than the bound goes alone, when nothing is in flight: jobs cannot always be made smaller, and if this
//! one were refused every time its blocks would never be stored.

use super::{
    detector::{Detector, DeviceSample, InFlight, Transition, Verdict},
    ema::EmaDetector,
    settings::{PressureSettings, default_max_inflight},
};
use crate::{
    clock::Instant,
    error::{Error, Result},
    metrics::{DropsByReason, GateStats, Refusal},
};

/// A store that was admitted and whose bytes are in flight.
///
/// It cannot be copied, and returns to the gate that issued it by [`Gate::complete`] or [`Gate::cancel`], so that
/// its bytes are released exactly once. One that is dropped instead keeps its bytes in flight for ever.
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
    detector: Box<dyn Detector>,
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
    /// A gate around an [`EmaDetector`]. `primary_bytes`, the size of the primary tier in front of it, matters only for
    /// the default of `max_inflight_bytes` ([`default_max_inflight`]).
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) as [`PressureSettings::validate`], or when the
    /// default bound is zero.
    pub fn new(settings: PressureSettings, primary_bytes: u64) -> Result<Self> {
        let max = settings
            .max_inflight_bytes
            .unwrap_or_else(|| default_max_inflight(primary_bytes));
        Self::with_detector(Box::new(EmaDetector::new(settings)?), max)
    }

    /// A gate around any detector. Of the settings of an [`EmaDetector`] with a policy of one's own,
    /// `max_inflight_bytes` is ignored.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when `max_inflight_bytes` is zero.
    pub fn with_detector(detector: Box<dyn Detector>, max_inflight_bytes: u64) -> Result<Self> {
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

    /// Asks for one store job. The bytes in flight come first: of a job that is refused for them the detector, and its
    /// policy, is not asked.
    ///
    /// # Errors
    /// The [`Refusal`], which has been counted. The block stays in the primary tier.
    pub fn try_admit(&mut self, now: Instant, blocks: u64, bytes: u64) -> Result<Admission, Refusal> {
        let room = self.max_inflight_bytes.saturating_sub(self.inflight_bytes);
        let refusal = if self.inflight_bytes > 0 && bytes > room {
            Refusal::InflightFull
        } else {
            match self.detector.decide(now, blocks, self.in_flight()) {
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

    /// Takes back a job that ran: releases its bytes and tells the detector the device's time, or the failure.
    pub fn complete(&mut self, now: Instant, admission: Admission, sample: DeviceSample, ok: bool) {
        self.cancel(admission);
        let left = self.in_flight();
        if ok {
            self.detector.completed(now, sample, left);
        } else {
            self.detector.failed(now, left);
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

    /// Whether the tier is under pressure, by its detector; the bound on bytes in flight does not matter here.
    pub fn is_under_pressure(&mut self, now: Instant) -> bool {
        self.detector.is_under_pressure(now)
    }

    /// The stores and blocks refused, for whatever reason, since the last call.
    pub fn pop_stores_dropped(&mut self) -> (u64, u64) {
        let total = self.drops.total();
        let (stores, blocks) = std::mem::replace(&mut self.popped, (total.stores, total.blocks));
        (total.stores - stores, total.blocks - blocks)
    }

    /// The detector's transition since the last call; see [`Detector::take_transition`].
    pub fn take_transition(&mut self) -> Option<Transition> {
        self.detector.take_transition()
    }

    /// Resets the detector. Bytes in flight stay, since their I/O may still run, and so do the counters of
    /// drops.
    pub fn reset(&mut self) {
        self.detector.reset();
    }

    /// Stores admitted and not given back.
    pub fn in_flight(&self) -> InFlight {
        InFlight {
            jobs: self.inflight_jobs,
            bytes: self.inflight_bytes,
        }
    }

    /// The bound on the bytes in flight, unless a single job is larger.
    pub fn max_inflight_bytes(&self) -> u64 {
        self.max_inflight_bytes
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
    pub fn detector(&self) -> &dyn Detector {
        &*self.detector
    }
}

#[cfg(test)]
mod tests;
