//! Where every job of a tier ends, and the look that the scheduler's calls take at those that do not. A job is reported
//! here and nowhere else: the breaker learns of it first, then the tier counts it, then the scheduler gets it (I4).

use std::sync::Arc;

use super::{progress::Ended, watchdog::Watchdog};
use crate::{
    clock::{Clock, Instant},
    error::ErrorKind,
    metrics::RefuseReason,
    sync::{Bell, Mutex, lock},
    tier::{Direction, Report},
};

/// The ends of a tier's jobs.
#[derive(Debug)]
pub(crate) struct Runner {
    /// The tier's name, for the log.
    pub(crate) name: String,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) watchdog: Watchdog,
    done: Mutex<Vec<Report>>,
    bell: Arc<Bell>,
}

impl Runner {
    /// No jobs yet; `bell` rings whenever a report is ready.
    pub(crate) fn new(name: String, clock: Arc<dyn Clock>, bell: Arc<Bell>, watchdog: Watchdog) -> Self {
        Self {
            name,
            clock,
            watchdog,
            done: Mutex::default(),
            bell,
        }
    }

    /// Units that ended together are told; `hung` of them had been given up. The report, if it was the job's last, is
    /// `noted` before the scheduler gets it.
    pub(crate) fn end_units(
        &self,
        (job, hung): (Option<Ended>, usize),
        direction: Direction,
        noted: impl FnOnce(&Report),
    ) {
        let now = self.clock.now();
        self.watchdog.ended(direction, false, now);
        (0..hung).for_each(|_| self.watchdog.ended(direction, true, now));
        if let Some(job) = job {
            self.end_job(job, now, noted);
        }
    }

    /// A job ended or was given up.
    pub(crate) fn end_job(&self, job: Ended, now: Instant, noted: impl FnOnce(&Report)) {
        self.watchdog.learn(&self.name, job.verdict, now);
        noted(&job.report);
        self.hand_over(job.report);
        self.watchdog.reported();
    }

    /// Hands a report to the scheduler.
    pub(crate) fn hand_over(&self, report: Report) {
        lock(&self.done).push(report);
        self.bell.ring();
    }

    /// Moves the reports since the last call to `out`.
    pub(crate) fn take_reports(&self, out: &mut Vec<Report>) {
        out.append(&mut lock(&self.done));
    }

    /// Whether reports are to come, or there are some.
    pub(crate) fn owes_reports(&self) -> bool {
        self.watchdog.owes_reports() || !lock(&self.done).is_empty()
    }

    /// The scheduler should look.
    pub(crate) fn ring(&self) {
        self.bell.ring();
    }

    /// Reports every job that is left, as far as the memory it uses allows: the tier is shut down.
    pub(crate) fn give_all_up(&self) {
        let now = self.clock.now();
        for job in self.watchdog.waiting() {
            job.give_up(now, ErrorKind::Closed, RefuseReason::Cancelled);
        }
    }
}
