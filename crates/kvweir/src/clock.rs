//! Time comes in through the builder: [`SystemClock`] in production, [`ManualClock`] in tests and simulation.
//! Nothing else in the engine reads a clock, so every run can be replayed.

use std::{
    fmt::Debug,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

/// A monotonic instant: nanoseconds since the clock's own origin.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Instant(u64);

impl Instant {
    /// The instant `nanos` nanoseconds after the origin.
    pub const fn from_nanos(nanos: u64) -> Self {
        Self(nanos)
    }

    /// The instant `seconds` after the origin.
    pub fn from_secs_f64(seconds: f64) -> Self {
        Self((seconds.max(0.0) * 1e9) as u64)
    }

    /// Nanoseconds since the origin.
    pub const fn as_nanos(self) -> u64 {
        self.0
    }

    /// The time from `earlier` to `self`; zero if `earlier` is later.
    pub const fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.0.saturating_sub(earlier.0))
    }

    /// The instant `d` later.
    #[must_use]
    pub fn after(self, d: Duration) -> Self {
        Self(
            self.0
                .saturating_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)),
        )
    }
}

/// A source of time.
pub trait Clock: Send + Sync + Debug {
    /// The monotonic time.
    fn now(&self) -> Instant;

    /// Wall-clock seconds since the Unix epoch; only for ages told to people.
    fn unix_seconds(&self) -> u64;
}

/// The machine's clocks.
#[derive(Debug)]
pub struct SystemClock {
    origin: std::time::Instant,
}

impl SystemClock {
    /// A clock whose origin is now.
    #[expect(
        clippy::disallowed_methods,
        reason = "this is the seam through which the system clock comes in"
    )]
    pub fn new() -> Self {
        Self {
            origin: std::time::Instant::now(),
        }
    }

    /// A shared clock, as builders take it.
    pub fn shared() -> Arc<dyn Clock> {
        Arc::new(Self::new())
    }
}

impl Default for SystemClock {
    fn default() -> Self {
        Self::new()
    }
}

impl Clock for SystemClock {
    fn now(&self) -> Instant {
        Instant(u64::try_from(self.origin.elapsed().as_nanos()).unwrap_or(u64::MAX))
    }

    #[expect(
        clippy::disallowed_methods,
        reason = "this is the seam through which the system clock comes in"
    )]
    fn unix_seconds(&self) -> u64 {
        std::time::SystemTime::now()
            .duration_since(std::time::UNIX_EPOCH)
            .map_or(0, |d| d.as_secs())
    }
}

/// A clock that stands still until it is moved.
///
/// ```
/// use kvweir::clock::{Clock, ManualClock};
/// use std::time::Duration;
/// let clock = ManualClock::new();
/// let before = clock.now();
/// clock.advance(Duration::from_millis(5));
/// assert_eq!(clock.now().since(before), Duration::from_millis(5));
/// ```
#[derive(Debug, Default)]
pub struct ManualClock {
    nanos: AtomicU64,
}

impl ManualClock {
    /// A clock at its origin.
    pub fn new() -> Self {
        Self::default()
    }

    /// Moves the clock forward by `d`.
    pub fn advance(&self, d: Duration) {
        self.nanos
            .fetch_add(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    /// Moves the clock to `t`, which may not lie before its present time.
    pub fn set(&self, t: Instant) {
        self.nanos.fetch_max(t.0, Ordering::Relaxed);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Instant {
        Instant(self.nanos.load(Ordering::Relaxed))
    }

    fn unix_seconds(&self) -> u64 {
        1_700_000_000 + self.nanos.load(Ordering::Relaxed) / 1_000_000_000
    }
}
