//! The seam for detectors (I9): what a [`Gate`](super::Gate) tells and asks whoever judges the device behind it.
//!
//! The gate counts what is in flight and what is dropped; a detector only judges. [`EmaDetector`](super::EmaDetector)
//! is the one that settings make.

use std::{fmt, time::Duration};

use crate::{clock::Instant, metrics::DetectorStats};

/// What the device did for one store job, measured by the worker.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct DeviceSample {
    /// Bytes written by the device; zero (all blocks were there already) tells a detector nothing.
    pub bytes: u64,
    /// The job's share of the device's time while I/O of it was under way: queue time excluded, and divided among
    /// jobs that overlap.
    pub device_time: Duration,
}

/// Stores admitted by a gate and not given back yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct InFlight {
    /// Store jobs.
    pub jobs: u64,
    /// Their bytes.
    pub bytes: u64,
}

/// The detector's answer to one store.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verdict {
    /// Store it.
    Admit,
    /// Drop it: the tier is under pressure.
    Pressure,
    /// Drop it: pressure cleared a moment ago, and every second store is still dropped.
    Cooldown,
}

/// Which way a [`Transition`] went.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransitionKind {
    /// Pressure began.
    Activated,
    /// Pressure ended.
    Cleared,
}

/// What made a [`Transition`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum TransitionCause {
    /// A completed store.
    Completion,
    /// Too many stores failed in a row.
    Failures,
    /// Nothing was stored for long enough.
    Idle,
    /// The detector was reset.
    Reset,
    /// What another detector watches, in the words of its log line.
    Other(&'static str),
}

/// An EMA and the marks it is compared with, all in seconds per MiB.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Marks {
    /// The EMA.
    pub ema: f64,
    /// The high mark.
    pub high: f64,
    /// The low mark.
    pub low: f64,
}

/// Pressure that began or ended, to be logged by the owner as one line.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Transition {
    /// Which way.
    pub kind: TransitionKind,
    /// Why.
    pub cause: TransitionCause,
    /// The numbers right after it, of a detector that has them.
    pub marks: Option<Marks>,
}

impl fmt::Display for Transition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let kind = match self.kind {
            TransitionKind::Activated => "activated",
            TransitionKind::Cleared => "cleared",
        };
        let cause = match self.cause {
            TransitionCause::Completion => "a completed store",
            TransitionCause::Failures => "failed stores",
            TransitionCause::Idle => "idle decay",
            TransitionCause::Reset => "reset",
            TransitionCause::Other(words) => words,
        };
        write!(f, "back-pressure {kind} by {cause}")?;
        if let Some(Marks { ema, high, low }) = self.marks {
            write!(f, ": ema {ema:.6} s/MiB, high {high:.6}, low {low:.6}")?;
        }
        Ok(())
    }
}

/// Judges the device behind one tier: which stores it can be given.
///
/// A [`Gate`](super::Gate) asks one for every store that its bytes in flight would let pass, and tells it how each
/// admitted store ended. A detector holds no clock: every call says what time it is. Counting what is dropped is the
/// gate's part.
///
/// One that knows no latency, only how many jobs wait:
/// ```
/// use kvweir::{
///     clock::Instant,
///     pressure::{Detector, DetectorStats, DeviceSample, Gate, InFlight, Refusal, Transition, Verdict},
/// };
///
/// /// Drops stores while `most` jobs are in flight.
/// #[derive(Debug)]
/// struct QueueDepth {
///     most: u64,
///     stats: DetectorStats,
/// }
///
/// impl Detector for QueueDepth {
///     fn completed(&mut self, _: Instant, _: DeviceSample, left: InFlight) {
///         self.stats.completions += 1;
///         self.stats.under_pressure &= left.jobs >= self.most;
///     }
///     fn failed(&mut self, _: Instant, _: InFlight) {}
///     fn decide(&mut self, _: Instant, _blocks: u64, in_flight: InFlight) -> Verdict {
///         self.stats.under_pressure = in_flight.jobs >= self.most;
///         if self.stats.under_pressure { Verdict::Pressure } else { Verdict::Admit }
///     }
///     fn is_under_pressure(&mut self, _: Instant) -> bool {
///         self.stats.under_pressure
///     }
///     fn reset(&mut self) {
///         self.stats = DetectorStats::default();
///     }
///     fn stats(&self) -> DetectorStats {
///         self.stats
///     }
/// }
///
/// let detector = QueueDepth { most: 1, stats: DetectorStats::default() };
/// let mut gate = Gate::with_detector(Box::new(detector), 1 << 30)?;
/// let now = Instant::from_secs_f64(1.0);
/// let job = gate.try_admit(now, 1, 4096).unwrap();
/// assert_eq!(gate.try_admit(now, 1, 4096), Err(Refusal::Pressure));
/// gate.complete(now, job, DeviceSample::default(), true);
/// assert!(gate.try_admit(now, 1, 4096).is_ok());
/// # Ok::<(), kvweir::Error>(())
/// ```
pub trait Detector: Send + fmt::Debug {
    /// A store ended well; `left` is what is in flight without it.
    fn completed(&mut self, now: Instant, sample: DeviceSample, left: InFlight);

    /// A store failed on the device; `left` is what is in flight without it.
    fn failed(&mut self, now: Instant, left: InFlight);

    /// Whether a store of `blocks` blocks may go to the device, given what is in flight before it. Each call is one
    /// decision about one store.
    fn decide(&mut self, now: Instant, blocks: u64, in_flight: InFlight) -> Verdict;

    /// Whether the tier is under pressure. Asking is no decision about a store.
    fn is_under_pressure(&mut self, now: Instant) -> bool;

    /// Forgets all observations and decisions. What is in flight stays in flight, and its end will still be told.
    fn reset(&mut self);

    /// The transition since the last call, if there was one. The gate's owner asks after each of the other calls.
    fn take_transition(&mut self) -> Option<Transition> {
        None
    }

    /// What the detector knows, without changing it.
    fn stats(&self) -> DetectorStats;
}
