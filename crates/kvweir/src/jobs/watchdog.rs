//! What keeps a broken device from holding up the engine: a deadline on every operation, a breaker before all of
//! them, and the look that the scheduler's calls take at both. There is no thread for it; `poll` and `lookup` look, at
//! most 64 times in a deadline (I8).
//!
//! - A job whose operation has run for `io_timeout` is given up: reported failed, once (I4). It has not ended: the
//!   worker keeps slot guard, pin and buffer until its I/O returns, and then neither publishes nor touches the slot
//!   (I5).
//! - A job that waits while nothing on the device ends for that long is given up too; while something hangs, only what
//!   goes its own way counts, since loads may go on where all workers that store hang.
//! - A deadline, or failed jobs in a row, open the breaker: everything that waits is failed, lookups miss, nothing
//!   reaches the device but one probe after each cool-down (I10). The probe needs a free worker, since without one
//!   there is nothing to recover for: it waits behind those that hang, and goes as soon as one of them returns.

use std::{
    io,
    sync::{Arc, Weak},
    time::Duration,
};

use super::{
    device::Device,
    progress::{Meter, Progress, Verdict},
};
use crate::{
    clock::Instant,
    error::ErrorKind,
    metrics::{RefuseReason, TierStats},
    pressure::{Breaker, BreakerSettings, BreakerState},
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed},
        lock,
    },
    tier::Direction,
};

/// Looks at running jobs in the time of one deadline.
const LOOKS: u32 = 64;
/// Longest time between two looks.
const SLOWEST_LOOK: Duration = Duration::from_millis(500);
/// Time between two looks while the breaker is not closed.
const TRIPPED_LOOK: Duration = Duration::from_millis(10);

/// A job that can be given up, from its submission on: also one that no worker has reached.
pub(crate) trait Abandon: Send + Sync {
    fn progress(&self) -> &Progress;
    /// Reports the job, failed with `kind`, as far as the memory it uses allows.
    fn give_up(&self, now: Instant, kind: ErrorKind, reason: RefuseReason);
}

/// Deadlines and breaker of one tier. Its locks are taken alone, or before a job's progress.
#[derive(Debug)]
pub(crate) struct Watchdog {
    timeout: Option<Duration>,
    /// Whether the engine leaves a slot alone while a guard of it exists, reported or not.
    pub(crate) slots_outlive_reports: bool,
    breaker: Mutex<Breaker>,
    /// Whether the breaker is anything but closed.
    tripped: AtomicBool,
    /// It opened, and what waits was not failed yet.
    flush: AtomicBool,
    jobs: Mutex<Vec<Weak<dyn Abandon>>>,
    unreported: AtomicUsize,
    hung: AtomicU64,
    timed_out: AtomicU64,
    /// When to look next, in nanoseconds of the clock.
    next_look: AtomicU64,
    device: Arc<Device>,
}

impl std::fmt::Debug for dyn Abandon {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Abandon")
    }
}

impl Watchdog {
    pub(crate) fn new(
        timeout: Option<Duration>,
        breaker: BreakerSettings,
        slots_outlive_reports: bool,
        device: Arc<Device>,
    ) -> Self {
        Self {
            timeout: timeout.filter(|t| !t.is_zero()),
            slots_outlive_reports,
            breaker: Mutex::new(Breaker::new(breaker)),
            tripped: AtomicBool::new(false),
            flush: AtomicBool::new(false),
            jobs: Mutex::default(),
            unreported: AtomicUsize::new(0),
            hung: AtomicU64::new(0),
            timed_out: AtomicU64::new(0),
            next_look: AtomicU64::new(0),
            device,
        }
    }

    /// How long an operation may run.
    pub(crate) fn timeout(&self) -> Option<Duration> {
        self.timeout
    }

    /// A job was reported.
    pub(crate) fn reported(&self) {
        self.unreported.fetch_sub(1, Relaxed);
    }

    /// Whether the breaker opened since the last call: what waits is to be failed.
    pub(crate) fn must_flush(&self) -> bool {
        self.flush.swap(false, Relaxed)
    }

    /// Nobody asked the device whether it answers.
    pub(crate) fn probe_lost(&self, now: Instant) {
        lock(&self.breaker).probe_lost(now);
    }

    /// Whether nothing may reach the device.
    pub(crate) fn is_tripped(&self) -> bool {
        self.tripped.load(Relaxed)
    }

    /// Whether jobs were not reported yet.
    pub(crate) fn owes_reports(&self) -> bool {
        self.unreported.load(Relaxed) > 0
    }

    /// Whether operations hang that nobody waits for any more.
    pub(crate) fn has_hung(&self) -> bool {
        self.hung.load(Relaxed) > 0
    }

    /// Whether nothing of the tier's jobs runs or waits.
    pub(crate) fn is_quiet(&self) -> bool {
        !self.owes_reports() && !self.has_hung()
    }

    /// Takes a job in; it is looked after until it is reported.
    pub(crate) fn take(&self, job: Weak<dyn Abandon>) {
        self.unreported.fetch_add(1, Relaxed);
        lock(&self.jobs).push(job);
    }

    /// Notes what a job that was given up leaves behind.
    pub(crate) fn gave_up(&self, hung: u64, first: bool, reason: RefuseReason) {
        self.hung.fetch_add(hung, Relaxed);
        self.device.gave_up(hung);
        if first && reason == RefuseReason::Timeout {
            self.timed_out.fetch_add(1, Relaxed);
        }
    }

    pub(crate) fn fill(&self, t: &mut TierStats) {
        let b = lock(&self.breaker);
        (t.breaker_state, t.breaker_opened) = (b.state().as_number(), b.opened());
        (t.jobs_timed_out, t.hung_operations) = (self.timed_out.load(Relaxed), self.hung.load(Relaxed));
    }

    pub(crate) fn is_due(&self, now: Instant) -> bool {
        if now.as_nanos() < self.next_look.load(Relaxed) {
            return false;
        }
        let step = match self.timeout {
            _ if self.is_tripped() => TRIPPED_LOOK,
            Some(t) => (t / LOOKS).clamp(Duration::from_millis(1), SLOWEST_LOOK),
            None => SLOWEST_LOOK,
        };
        self.next_look.store(now.after(step).as_nanos(), Relaxed);
        true
    }

    /// The jobs not reported yet; forgets the others.
    pub(crate) fn waiting(&self) -> Vec<Arc<dyn Abandon>> {
        let mut out = Vec::new();
        lock(&self.jobs).retain(|j| {
            let open = j.upgrade().filter(|j| !j.progress().is_reported());
            let keep = open.is_some();
            out.extend(open);
            keep
        });
        out
    }

    fn opened(&self, tier: &str, breaker: &Breaker, now: Instant, cause: &'static str) {
        self.tripped.store(true, Relaxed);
        self.flush.store(true, Relaxed);
        self.next_look.store(0, Relaxed);
        tracing::warn!(
            tier,
            cause,
            seconds = breaker.open_for(now).as_secs_f64(),
            "the breaker opened: the tier misses and does no I/O for a while"
        );
    }

    pub(crate) fn deadline_passed(&self, tier: &str, now: Instant) {
        let mut b = lock(&self.breaker);
        if b.deadline_passed(now) {
            self.opened(tier, &b, now, "an operation passed its deadline");
        }
    }

    pub(crate) fn learn(&self, tier: &str, verdict: Verdict, now: Instant) {
        match verdict {
            Verdict::Nothing => {}
            Verdict::Good => lock(&self.breaker).job_succeeded(),
            Verdict::Bad => {
                let mut b = lock(&self.breaker);
                if b.job_failed(now) {
                    self.opened(tier, &b, now, "jobs failed in a row");
                }
            }
        }
    }

    /// When something last ended that a waiting job of this direction may take for progress.
    pub(crate) fn last_end(&self, direction: Direction) -> Instant {
        self.device.last_end(direction)
    }

    /// The device's time, shared out among jobs.
    pub(crate) fn meter(&self) -> &Arc<Meter> {
        &self.device.meter
    }

    /// An operation ended, perhaps one that had been given up.
    pub(crate) fn ended(&self, direction: Direction, was_hung: bool, now: Instant) {
        self.device.ended(direction, was_hung, now);
        if was_hung && self.hung.fetch_sub(1, Relaxed) == 1 {
            lock(&self.breaker).hurry(now);
            self.next_look.store(0, Relaxed);
        }
    }

    pub(crate) fn wants_probe(&self, tier: &str, now: Instant) -> bool {
        let wants = self.is_tripped() && lock(&self.breaker).wants_probe(now);
        if wants {
            tracing::info!(tier, "the breaker is half-open: the device is probed");
        }
        wants
    }

    pub(crate) fn probed(&self, tier: &str, answer: &io::Result<()>, now: Instant) {
        let mut b = lock(&self.breaker);
        let closed = b.probed(answer.is_ok(), now);
        match answer {
            Ok(()) if closed => {
                self.tripped.store(false, Relaxed);
                tracing::info!(tier, "the breaker closed: the device answers again");
            }
            Err(error) if b.state() == BreakerState::Open => {
                let seconds = b.open_for(now).as_secs_f64();
                tracing::warn!(tier, %error, seconds, "the breaker stays open: the probe failed");
            }
            _ => {}
        }
    }
}
