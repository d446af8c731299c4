//! Counting and timing of one phase.

use std::{
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use hdrhistogram::Histogram;
use kvweir::clock::{Clock, Instant};
use rustix::time::{ClockId, clock_gettime};

use super::outcome::{Latency, Measure};

/// Longer times count as this: an hour.
const LONGEST_NS: u64 = 3_600_000_000_000;

/// When a phase has done enough.
#[derive(Debug, Clone, Copy)]
pub(super) enum Amount {
    /// After so many jobs.
    Jobs(u64),
    /// After so long.
    Time(Duration),
}

/// A phase that runs: its clock, and whether another job is begun.
#[derive(Debug)]
pub(super) struct Phase<'a> {
    clock: &'a dyn Clock,
    stop: &'a AtomicBool,
    amount: Amount,
    began: Instant,
    cpu: f64,
}

impl<'a> Phase<'a> {
    pub(super) fn begin(clock: &'a dyn Clock, stop: &'a AtomicBool, amount: Amount) -> Self {
        Self {
            clock,
            stop,
            amount,
            began: clock.now(),
            cpu: cpu_seconds(),
        }
    }

    pub(super) fn now(&self) -> Instant {
        self.clock.now()
    }

    /// Whether one more job is begun after `jobs` of them.
    pub(super) fn goes_on(&self, jobs: u64) -> bool {
        !self.stop.load(Ordering::Relaxed)
            && match self.amount {
                Amount::Jobs(n) => jobs < n,
                Amount::Time(t) => self.now().since(self.began) < t,
            }
    }

    /// How much of the phase is over, for the bar.
    pub(super) fn share(&self, jobs: u64) -> f64 {
        match self.amount {
            Amount::Jobs(n) => jobs as f64 / n.max(1) as f64,
            Amount::Time(t) => self.now().since(self.began).as_secs_f64() / t.as_secs_f64().max(1e-9),
        }
    }

    /// Wall-clock and CPU seconds so far.
    pub(super) fn spent(&self) -> Spent {
        Spent {
            seconds: self.now().since(self.began).as_secs_f64(),
            cpu_s: cpu_seconds() - self.cpu,
        }
    }
}

/// What a phase took.
#[derive(Debug, Clone, Copy)]
pub(super) struct Spent {
    seconds: f64,
    cpu_s: f64,
}

/// Jobs that ended.
#[derive(Debug)]
pub(super) struct Meter {
    times: Histogram<u64>,
    pub(super) jobs: u64,
    pub(super) bytes: u64,
}

impl Meter {
    pub(super) fn new() -> anyhow::Result<Self> {
        Ok(Self {
            times: Histogram::new_with_max(LONGEST_NS, 3)?,
            jobs: 0,
            bytes: 0,
        })
    }

    /// A job moved `bytes` bytes in `took`.
    pub(super) fn add(&mut self, took: Duration, bytes: u64) {
        self.jobs += 1;
        self.bytes += bytes;
        self.times
            .saturating_record(u64::try_from(took.as_nanos()).unwrap_or(u64::MAX));
    }

    pub(super) fn join(&mut self, other: &Self) -> anyhow::Result<()> {
        self.times.add(&other.times)?;
        self.jobs += other.jobs;
        self.bytes += other.bytes;
        Ok(())
    }

    /// The row of a table; `all_bytes` is what was moved for the CPU time, in both directions.
    pub(super) fn measure(
        &self,
        what: &'static str,
        by: &'static str,
        spent: Spent,
        all_bytes: u64,
    ) -> Measure {
        let gib = all_bytes as f64 / (1_u64 << 30) as f64;
        Measure {
            what,
            by,
            jobs: self.jobs,
            bytes: self.bytes,
            seconds: spent.seconds,
            gb_s: self.bytes as f64 / 1e9 / spent.seconds.max(1e-9),
            of_limit: None,
            cpu_s_per_gib: if all_bytes == 0 { 0.0 } else { spent.cpu_s / gib },
            latency: Latency::of_nanos(&self.times),
            curve: curve(&self.times),
        }
    }
}

/// How long at most the fastest jobs took, in microseconds, by per cent of all.
fn curve(h: &Histogram<u64>) -> Vec<(f64, f64)> {
    let shares = (1..=99).map(f64::from).chain([99.5, 99.9, 100.0]);
    shares
        .filter(|_| !h.is_empty())
        .map(|p| (p, h.value_at_percentile(p) as f64 / 1e3))
        .collect()
}

/// CPU time of this process: all threads, user and system.
fn cpu_seconds() -> f64 {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_kept_to_a_thousandth_and_joined() {
        let (mut a, mut b) = (Meter::new().unwrap(), Meter::new().unwrap());
        for ms in 1..=99 {
            a.add(Duration::from_millis(ms), 10);
        }
        b.add(Duration::from_secs(9000), 5);
        a.join(&b).unwrap();
        let spent = Spent {
            seconds: 2.0,
            cpu_s: 0.5,
        };
        let m = a.measure("store", "tier", spent, 1 << 30);
        assert_eq!((m.jobs, m.bytes, m.cpu_s_per_gib), (100, 995, 0.5));
        let near = |is: f64, ms: f64| (is / 1e3 / ms - 1.0).abs() < 0.002;
        assert!(
            near(m.latency.p50_us, 50.0) && near(m.latency.p90_us, 90.0),
            "{m:?}"
        );
        assert!(near(m.latency.max_us, 3_600_000.0), "an hour at most");
    }
}
