//! A circuit breaker: a tier whose device fails or hangs is left alone for a while, so that requests miss at once
//! instead of waiting for it (I10). The pattern is Nygard's ("Release It!"); opening after 5 failures in a row is
//! Envoy's default for a host (`outlier_detection.consecutive_5xx`). Its cool-down of 30 s to 300 s is longer than
//! ours, since what we let through afterwards is one probe and no request.
//!
//! ```text
//!            `failures` failed jobs in a row, or a deadline
//!   closed ------------------------------------------------> open
//!     ^                                                     |  ^ probe failed; cool-down doubles
//!     |  probe succeeded (on probation: the next failed     v  |
//!     +------------------------ job opens it again) ---- half-open
//!                                                  cool-down over
//! ```
//!
//! A probe may succeed where jobs still fail (a cached answer, a device that only lists), so it closes the breaker on
//! probation: only a job that succeeds makes the cool-down short again.

use std::time::Duration;

use crate::{
    clock::Instant,
    error::{Error, Result},
};

/// When a breaker opens, and for how long.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BreakerSettings {
    /// How many failed jobs in a row open it; 0: it never opens, not even for a deadline.
    pub failures: u32,
    /// How long it stays open the first time.
    pub cooldown: Duration,
    /// The longest it stays open: each failed probe or failure on probation doubles the time up to here.
    pub max_cooldown: Duration,
}

impl Default for BreakerSettings {
    fn default() -> Self {
        Self {
            failures: 5,
            cooldown: Duration::from_secs(1),
            max_cooldown: Duration::from_secs(60),
        }
    }
}

impl BreakerSettings {
    /// Checks what the values mean together.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) naming the setting, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        if self.failures > 0 && (self.cooldown.is_zero() || self.max_cooldown < self.cooldown) {
            return Err(Error::invalid(
                "check settings",
                format!(
                    "breaker.cooldown {:?} and max_cooldown {:?}: the first must be above zero, the second at least \
                     as long",
                    self.cooldown, self.max_cooldown
                ),
            ));
        }
        Ok(())
    }
}

/// Whether a breaker lets work through.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum BreakerState {
    /// Work passes.
    #[default]
    Closed,
    /// Nothing passes but the one probe that is under way.
    HalfOpen,
    /// Nothing passes.
    Open,
}

impl BreakerState {
    /// The number in metrics: 0 closed, 1 half-open, 2 open.
    pub const fn as_number(self) -> u64 {
        self as u64
    }
}

/// The breaker of one tier. Every call is given the time; nothing here waits or reads a clock.
///
/// ```
/// use kvweir::{clock::Instant, pressure::{Breaker, BreakerSettings, BreakerState}};
/// let mut breaker = Breaker::new(BreakerSettings { failures: 2, ..BreakerSettings::default() });
/// let t = Instant::from_secs_f64;
/// breaker.job_failed(t(0.0));
/// assert!(breaker.job_failed(t(0.1)), "the second failure in a row opens it");
/// assert!(!breaker.wants_probe(t(1.0)));
/// assert!(breaker.wants_probe(t(1.2)), "after the cool-down one probe goes through");
/// assert!(breaker.probed(true, t(1.3)));
/// assert_eq!(breaker.state(), BreakerState::Closed);
/// ```
#[derive(Debug, Clone)]
pub struct Breaker {
    settings: BreakerSettings,
    state: State,
    /// Failed jobs in a row.
    failures: u32,
    /// How long it stays open the next time.
    next: Duration,
    opened: u64,
}

#[derive(Debug, Clone, Copy)]
enum State {
    Closed,
    Open { until: Instant },
    HalfOpen,
}

impl Breaker {
    /// A closed breaker.
    pub fn new(settings: BreakerSettings) -> Self {
        Self {
            settings,
            state: State::Closed,
            failures: 0,
            next: settings.cooldown,
            opened: 0,
        }
    }

    /// Whether it lets work through.
    pub fn state(&self) -> BreakerState {
        match self.state {
            State::Closed => BreakerState::Closed,
            State::Open { .. } => BreakerState::Open,
            State::HalfOpen => BreakerState::HalfOpen,
        }
    }

    /// How often it opened.
    pub fn opened(&self) -> u64 {
        self.opened
    }

    /// How long it stays open from `now` on; zero unless it is open.
    pub fn open_for(&self, now: Instant) -> Duration {
        match self.state {
            State::Open { until } => until.since(now),
            _ => Duration::ZERO,
        }
    }

    /// A job failed on account of the device. Returns whether that opened the breaker. What began before it opened
    /// says nothing new.
    pub fn job_failed(&mut self, now: Instant) -> bool {
        if !matches!(self.state, State::Closed) || self.settings.failures == 0 {
            return false;
        }
        self.failures += 1;
        self.failures >= self.settings.failures && self.open(now)
    }

    /// The device completed a job: earlier failures no longer count, and the next cool-down is the shortest again.
    pub fn job_succeeded(&mut self) {
        if matches!(self.state, State::Closed) {
            self.failures = 0;
            self.next = self.settings.cooldown;
        }
    }

    /// An operation passed its deadline. Returns whether that opened the breaker.
    pub fn deadline_passed(&mut self, now: Instant) -> bool {
        matches!(self.state, State::Closed) && self.settings.failures > 0 && self.open(now)
    }

    /// Whether a probe should begin now. Then the breaker is half-open until it is told how the probe ended.
    pub fn wants_probe(&mut self, now: Instant) -> bool {
        match self.state {
            State::Open { until } if now >= until => {
                self.state = State::HalfOpen;
                true
            }
            _ => false,
        }
    }

    /// What hung has returned: the cool-down is over.
    pub fn hurry(&mut self, now: Instant) {
        if matches!(self.state, State::Open { .. }) {
            self.state = State::Open { until: now };
        }
    }

    /// The probe ended. Returns whether the breaker is closed now.
    pub fn probed(&mut self, ok: bool, now: Instant) -> bool {
        if !matches!(self.state, State::HalfOpen) {
            return false;
        }
        if ok {
            self.state = State::Closed;
            // on probation
            self.failures = self.settings.failures.saturating_sub(1);
        } else {
            self.open(now);
        }
        ok
    }

    /// The probe was cancelled and says nothing.
    pub fn probe_lost(&mut self, now: Instant) {
        if matches!(self.state, State::HalfOpen) {
            self.state = State::Open {
                until: now.after(self.settings.cooldown),
            };
        }
    }

    fn open(&mut self, now: Instant) -> bool {
        if matches!(self.state, State::Closed) {
            self.opened += 1;
        }
        self.state = State::Open {
            until: now.after(self.next),
        };
        self.next = (self.next * 2).min(self.settings.max_cooldown);
        self.failures = 0;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn t(s: f64) -> Instant {
        Instant::from_secs_f64(s)
    }

    fn breaker() -> Breaker {
        Breaker::new(BreakerSettings {
            failures: 3,
            cooldown: Duration::from_secs(1),
            max_cooldown: Duration::from_secs(5),
        })
    }

    #[test]
    fn failures_in_a_row_open_it_and_a_success_between_them_starts_anew() {
        let mut b = breaker();
        assert!(!b.job_failed(t(0.0)) && !b.job_failed(t(0.0)));
        b.job_succeeded();
        assert!(!b.job_failed(t(1.0)) && !b.job_failed(t(1.0)));
        assert_eq!(b.state(), BreakerState::Closed);
        assert!(b.job_failed(t(1.0)));
        assert_eq!((b.state(), b.opened()), (BreakerState::Open, 1));
        assert!(!b.job_failed(t(1.1)), "late failures open nothing twice");
        assert_eq!((b.open_for(t(1.25)), b.opened()), (Duration::from_millis(750), 1));
    }

    #[test]
    fn one_deadline_opens_it() {
        let mut b = breaker();
        assert!(b.deadline_passed(t(0.0)));
        assert!(
            !b.deadline_passed(t(0.5)),
            "a second one of the same hang does not"
        );
        assert_eq!((b.state(), b.opened()), (BreakerState::Open, 1));
    }

    #[test]
    fn after_the_cool_down_one_probe_decides() {
        let mut b = breaker();
        b.deadline_passed(t(0.0));
        assert!(!b.wants_probe(t(0.9)));
        assert!(b.wants_probe(t(1.0)));
        assert!(!b.wants_probe(t(1.0)), "one probe at a time");
        assert_eq!(b.state(), BreakerState::HalfOpen);
        assert!(b.probed(true, t(1.1)));
        assert_eq!(b.state(), BreakerState::Closed);
    }

    #[test]
    fn the_cool_down_doubles_up_to_its_limit_and_a_success_makes_it_short_again() {
        let mut b = breaker();
        b.deadline_passed(t(0.0));
        let mut now = 0.0;
        for want in [1, 2, 4, 5, 5] {
            assert_eq!(b.open_for(t(now)), Duration::from_secs(want));
            now += want as f64;
            assert!(b.wants_probe(t(now)));
            assert!(!b.probed(false, t(now)));
        }
        assert_eq!(b.opened(), 1, "a failed probe is no new opening");
        now += 5.0;
        assert!(b.wants_probe(t(now)) && b.probed(true, t(now)));
        b.job_succeeded();
        b.deadline_passed(t(now));
        assert_eq!(b.open_for(t(now)), Duration::from_secs(1));
    }

    #[test]
    fn a_breaker_closed_by_a_probe_is_on_probation_until_a_job_succeeds() {
        let mut b = breaker();
        b.deadline_passed(t(0.0));
        assert!(b.wants_probe(t(1.0)) && b.probed(true, t(1.0)));
        assert!(b.job_failed(t(1.5)), "one failed job opens it again");
        assert_eq!(b.open_for(t(1.5)), Duration::from_secs(2), "for twice as long");
        assert!(b.wants_probe(t(4.0)) && b.probed(true, t(4.0)));
        b.job_succeeded();
        assert!(!b.job_failed(t(5.0)), "a success ends the probation");
    }

    #[test]
    fn what_returns_ends_the_cool_down_and_a_lost_probe_is_made_again() {
        let mut b = breaker();
        b.hurry(t(0.0));
        assert_eq!(b.state(), BreakerState::Closed);
        b.deadline_passed(t(0.0));
        b.hurry(t(0.2));
        assert!(b.wants_probe(t(0.2)));
        b.probe_lost(t(0.3));
        assert!(!b.wants_probe(t(1.0)) && b.wants_probe(t(1.3)));
        assert!(!b.probed(false, t(1.3)));
        assert!(!b.probed(true, t(1.4)), "an answer nobody waits for");
        assert_eq!(b.state(), BreakerState::Open);
    }

    #[test]
    fn with_no_number_of_failures_it_never_opens() {
        let mut b = Breaker::new(BreakerSettings {
            failures: 0,
            ..BreakerSettings::default()
        });
        assert!((0..100).all(|_| !b.job_failed(t(0.0))) && !b.deadline_passed(t(0.0)));
        assert_eq!(b.state(), BreakerState::Closed);
        let bad = BreakerSettings {
            cooldown: Duration::ZERO,
            ..BreakerSettings::default()
        };
        assert!(bad.validate().is_err() && BreakerSettings::default().validate().is_ok());
    }
}
