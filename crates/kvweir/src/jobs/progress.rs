//! How far a job is: outcomes of its blocks, operations under way, and its share of the device's time. While `n` jobs
//! have I/O under way, each is charged an n-th of the time that passes, so that the shares of all jobs add up to the
//! time the device was busy, and neither polling nor neighbours make a healthy device look slow (I9).
//!
//! Whether a job was reported is decided here, under one lock: a worker that comes back late learns that it may
//! neither touch the caller's memory nor publish (I4, I5).

use std::{io, sync::Arc, time::Duration};

use crate::{
    clock::Instant,
    error::ErrorKind,
    sync::{Mutex, lock},
    tier::{BlockOutcome, Direction, JobId, Report},
};

/// The device's time, shared out among the jobs that have I/O under way: a clock that runs at `1/n` of the speed.
#[derive(Debug, Default)]
pub(crate) struct Meter(Mutex<Share>);

#[derive(Debug, Default)]
struct Share {
    seconds: f64,
    jobs: u32,
    at: Instant,
}

impl Meter {
    fn advance(&self, now: Instant, jobs: i32) -> f64 {
        let mut m = lock(&self.0);
        if m.jobs > 0 {
            m.seconds += now.since(m.at).as_secs_f64() / f64::from(m.jobs);
        }
        m.at = m.at.max(now);
        m.jobs = m.jobs.saturating_add_signed(jobs);
        m.seconds
    }
}

/// What a job's end says about the device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// Nothing: no I/O, or some of it failed.
    Nothing,
    /// It moved blocks.
    Good,
    /// It moved none, and at least one error speaks against it.
    Bad,
}

/// A job that ended.
#[derive(Debug)]
pub(crate) struct Ended {
    pub(crate) report: Report,
    pub(crate) verdict: Verdict,
}

/// What giving a job up came to.
#[derive(Debug)]
pub(crate) struct GivenUp {
    /// Units that failed with it, and whether an operation on each still runs.
    pub(crate) cut: Vec<(usize, bool)>,
    /// Operations that hang and were not known to.
    pub(crate) hung: u64,
    /// Whether this was the first time.
    pub(crate) first: bool,
    pub(crate) job: Option<Ended>,
}

/// An operation under way.
#[derive(Debug, Clone, Copy)]
struct Running {
    unit: usize,
    since: Instant,
    hung: bool,
}

#[derive(Debug)]
struct Inner {
    outcomes: Vec<Option<BlockOutcome>>,
    remaining: usize,
    running: Vec<Running>,
    /// Workers that are in the caller's memory, which takes no I/O.
    touching: usize,
    given_up: bool,
    good: bool,
    blamed: bool,
    active: usize,
    active_since: f64,
    first_io: Option<Instant>,
    device_seconds: f64,
    bytes: u64,
}

/// The progress of one job.
#[derive(Debug)]
pub(crate) struct Progress {
    id: JobId,
    direction: Direction,
    submitted: Instant,
    meter: Arc<Meter>,
    inner: Mutex<Inner>,
}

impl Progress {
    pub(crate) fn new(
        id: JobId,
        direction: Direction,
        blocks: usize,
        now: Instant,
        meter: &Arc<Meter>,
    ) -> Self {
        let inner = Inner {
            outcomes: vec![None; blocks],
            remaining: blocks,
            running: Vec::new(),
            touching: 0,
            given_up: false,
            good: false,
            blamed: false,
            active: 0,
            active_since: 0.0,
            first_io: None,
            device_seconds: 0.0,
            bytes: 0,
        };
        Self {
            id,
            direction,
            submitted: now,
            meter: Arc::clone(meter),
            inner: Mutex::new(inner),
        }
    }

    pub(crate) fn direction(&self) -> Direction {
        self.direction
    }

    /// Nobody works on `unit` any more; another job will tell its outcome. Returns whether its operation had been given
    /// up.
    pub(crate) fn leave(&self, unit: usize) -> bool {
        lock(&self.inner).stop(unit)
    }

    /// Whether the outcome of `unit` was not told yet.
    pub(crate) fn is_open(&self, unit: usize) -> bool {
        lock(&self.inner).is_open(unit)
    }

    /// Whether an operation is under way.
    pub(crate) fn is_running(&self) -> bool {
        !lock(&self.inner).running.is_empty()
    }

    /// Whether the job was reported.
    pub(crate) fn is_reported(&self) -> bool {
        lock(&self.inner).remaining == 0
    }

    /// Goes on unless the job was reported.
    ///
    /// # Errors
    /// `TimedOut`: it was.
    pub(crate) fn check(&self) -> io::Result<()> {
        if self.is_reported() {
            return Err(too_late());
        }
        Ok(())
    }

    /// Calls `f`, which uses the caller's memory and does no I/O; until it returns the job is not reported.
    ///
    /// # Errors
    /// `TimedOut`: the job was reported before, `f` was not called.
    pub(crate) fn with_memory<R>(&self, f: impl FnOnce() -> R) -> io::Result<R> {
        /// Also when `f` panics.
        struct Leave<'a>(&'a Progress);
        impl Drop for Leave<'_> {
            fn drop(&mut self) {
                lock(&self.0.inner).touching -= 1;
            }
        }
        {
            let mut p = lock(&self.inner);
            if p.remaining == 0 {
                return Err(too_late());
            }
            p.touching += 1;
        }
        let _leave = Leave(self);
        Ok(f())
    }

    /// An I/O of the job begins.
    pub(crate) fn begin_io(&self, now: Instant) {
        let mut p = lock(&self.inner);
        if p.remaining == 0 {
            return;
        }
        if p.active == 0 {
            p.active_since = self.meter.advance(now, 1);
        }
        p.active += 1;
        p.first_io.get_or_insert(now);
    }

    /// An I/O of the job ended after moving `bytes`.
    pub(crate) fn end_io(&self, now: Instant, bytes: u64) {
        let mut p = lock(&self.inner);
        if p.active == 0 {
            // charged when the job was given up
            return;
        }
        p.active -= 1;
        if p.active == 0 {
            p.device_seconds += self.meter.advance(now, -1) - p.active_since;
        }
        p.bytes += bytes;
    }

    /// An error of this job speaks against the device.
    pub(crate) fn blame(&self) {
        lock(&self.inner).blamed = true;
    }

    /// Notes outcomes of blocks, of each the first one told; returns the job, if they were its last, and how many of
    /// them had been given up.
    pub(crate) fn finish_all(&self, ends: &[(usize, BlockOutcome)]) -> (Option<Ended>, usize) {
        let mut p = lock(&self.inner);
        let mut hung = 0;
        let mut told = 0;
        for &(unit, outcome) in ends {
            hung += usize::from(p.stop(unit));
            if let Some(slot) = p.outcomes.get_mut(unit).filter(|o| o.is_none()) {
                *slot = Some(outcome);
                told += 1;
                p.good |= matches!(outcome, BlockOutcome::Stored | BlockOutcome::Loaded(_));
            }
        }
        p.remaining -= told;
        let job = (told > 0 && p.remaining == 0).then(|| self.end(&mut p));
        (job, hung)
    }

    /// Which of `units` have no outcome yet; a worker begins with those.
    pub(crate) fn start_all(&self, units: std::ops::Range<usize>, now: Instant) -> Vec<usize> {
        let mut p = lock(&self.inner);
        let open: Vec<usize> = units.filter(|&u| p.is_open(u)).collect();
        p.running.extend(open.iter().map(|&unit| Running {
            unit,
            since: now,
            hung: false,
        }));
        open
    }

    /// Whether an operation has run for `timeout`, or nothing of the job runs and nothing in the tier has ended for
    /// that long (`last_end`) while it waited.
    pub(crate) fn is_overdue(&self, now: Instant, timeout: Duration, last_end: Instant) -> bool {
        let p = lock(&self.inner);
        let since = match p.running.iter().map(|r| r.since).min() {
            Some(oldest) => oldest,
            None => self.submitted.max(last_end),
        };
        p.remaining > 0 && now.since(since) >= timeout
    }

    /// Fails what was not told yet with `kind`; with `wait`, not the blocks on which an operation runs. `None`: a
    /// worker is in the caller's memory at this moment, or the job was reported.
    pub(crate) fn give_up(&self, now: Instant, kind: ErrorKind, wait: bool) -> Option<GivenUp> {
        let mut p = lock(&self.inner);
        if p.remaining == 0 || p.touching > 0 {
            return None;
        }
        let mut cut = Vec::new();
        let Inner {
            outcomes, running, ..
        } = &mut *p;
        for (unit, o) in outcomes.iter_mut().enumerate().filter(|(_, o)| o.is_none()) {
            let runs = running.iter().any(|r| r.unit == unit);
            if !(runs && wait) {
                *o = Some(BlockOutcome::Failed(kind));
                cut.push((unit, runs));
            }
        }
        let hung = running.iter().filter(|r| !r.hung).count() as u64;
        running.iter_mut().for_each(|r| r.hung = true);
        p.remaining -= cut.len();
        let first = !std::mem::replace(&mut p.given_up, true);
        let job = (p.remaining == 0).then(|| {
            if std::mem::take(&mut p.active) > 0 {
                p.device_seconds += self.meter.advance(now, -1) - p.active_since;
            }
            self.end(&mut p)
        });
        Some(GivenUp {
            cut,
            hung,
            first,
            job,
        })
    }

    fn end(&self, p: &mut Inner) -> Ended {
        let report = Report {
            id: self.id,
            direction: self.direction,
            blocks: std::mem::take(&mut p.outcomes).into_iter().flatten().collect(),
            bytes: p.bytes,
            device_time: Duration::from_secs_f64(p.device_seconds.max(0.0)),
            queue_time: p.first_io.map_or(Duration::ZERO, |t| t.since(self.submitted)),
        };
        let verdict = match (p.good, p.blamed) {
            (true, false) => Verdict::Good,
            (false, true) => Verdict::Bad,
            _ => Verdict::Nothing,
        };
        Ended { report, verdict }
    }
}

impl Inner {
    fn is_open(&self, unit: usize) -> bool {
        self.outcomes.get(unit).is_some_and(Option::is_none)
    }

    /// The operation on `unit` ended; returns whether it was given up before.
    fn stop(&mut self, unit: usize) -> bool {
        let at = self.running.iter().position(|r| r.unit == unit);
        at.is_some_and(|at| self.running.swap_remove(at).hung)
    }
}

fn too_late() -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        "its job was given up before; what it brought is dropped",
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A unit that ended: the job with it, if it was the last one.
    #[derive(Debug, Default)]
    struct UnitEnd {
        job: Option<Ended>,
        /// Its I/O had been given up.
        was_hung: bool,
    }

    impl Progress {
        fn start(&self, unit: usize, now: Instant) -> bool {
            !self.start_all(unit..unit + 1, now).is_empty()
        }

        fn finish(&self, unit: usize, outcome: BlockOutcome) -> UnitEnd {
            let (job, hung) = self.finish_all(&[(unit, outcome)]);
            UnitEnd {
                job,
                was_hung: hung > 0,
            }
        }
    }

    fn at(us: u64) -> Instant {
        Instant::from_nanos(us * 1000)
    }

    #[test]
    fn device_time_counts_while_at_least_one_io_runs_and_queue_time_before_the_first() {
        let p = Progress::new(JobId(1), Direction::Store, 3, at(100), &Arc::default());
        p.begin_io(at(150));
        p.begin_io(at(160));
        p.end_io(at(170), 10);
        p.end_io(at(200), 10);
        assert!(p.finish(0, BlockOutcome::Stored).job.is_none());
        assert!(p.finish(1, BlockOutcome::Stored).job.is_none());
        p.begin_io(at(1000));
        p.end_io(at(1005), 5);
        let r = p.finish(2, BlockOutcome::Present).job.unwrap().report;
        assert_eq!(
            (r.device_time, r.queue_time, r.bytes),
            (Duration::from_micros(55), Duration::from_micros(50), 25)
        );
        assert!(
            p.finish(2, BlockOutcome::Stored).job.is_none(),
            "a block is told once"
        );
    }

    #[test]
    fn jobs_that_overlap_share_the_devices_time() {
        let meter = Arc::default();
        let jobs: Vec<_> = (0..4)
            .map(|n| Progress::new(JobId(n), Direction::Store, 1, at(0), &meter))
            .collect();
        jobs.iter().for_each(|j| j.begin_io(at(0)));
        jobs.iter().for_each(|j| j.end_io(at(4000), 1));
        for j in &jobs {
            let r = j.finish(0, BlockOutcome::Stored).job.unwrap().report;
            assert_eq!(r.device_time, Duration::from_millis(1));
        }
    }

    #[test]
    fn blocks_that_end_together_are_told_once_and_bring_the_report_with_the_last() {
        let p = Progress::new(JobId(1), Direction::Store, 4, at(0), &Arc::default());
        p.finish(1, BlockOutcome::Present);
        assert_eq!(p.start_all(0..3, at(1)), [0, 2]);
        let (job, hung) = p.finish_all(&[(0, BlockOutcome::Stored), (1, BlockOutcome::Stored)]);
        assert!(job.is_none() && hung == 0);
        let g = p.give_up(at(2), ErrorKind::Unavailable, true).unwrap();
        assert_eq!((g.cut, g.hung), (vec![(3, false)], 1));
        let (job, hung) = p.finish_all(&[(2, BlockOutcome::Stored), (3, BlockOutcome::Stored)]);
        let lost = BlockOutcome::Failed(ErrorKind::Unavailable);
        let want = [
            BlockOutcome::Stored,
            BlockOutcome::Present,
            BlockOutcome::Stored,
            lost,
        ];
        assert_eq!((job.unwrap().report.blocks, hung), (want.to_vec(), 1));
        assert!(p.finish_all(&[(2, BlockOutcome::Stored)]).0.is_none());
    }

    const LIMIT: Duration = Duration::from_secs(1);

    fn at_s(s: u64) -> Instant {
        at(s * 1_000_000)
    }

    #[test]
    fn a_job_is_overdue_by_its_oldest_operation_or_by_waiting_while_nothing_ends() {
        let p = Progress::new(JobId(1), Direction::Load, 2, at_s(10), &Arc::default());
        assert!(!p.is_overdue(at_s(10), LIMIT, at_s(0)));
        assert!(
            p.is_overdue(at_s(11), LIMIT, at_s(0)),
            "it waits and nothing ends"
        );
        assert!(
            !p.is_overdue(at_s(11), LIMIT, at_s(11)),
            "others end: it waits for its turn"
        );
        assert!(p.start(0, at_s(20)));
        assert!(!p.is_overdue(at_s(20), LIMIT, at_s(0)));
        assert!(p.is_overdue(at_s(21), LIMIT, at_s(21)), "its own operation hangs");
        p.finish(0, BlockOutcome::Failed(ErrorKind::Busy));
        p.finish(1, BlockOutcome::Failed(ErrorKind::Busy));
        assert!(!p.is_overdue(at_s(99), LIMIT, at_s(0)), "it was reported");
    }

    #[test]
    fn a_job_given_up_is_reported_once_and_what_comes_late_is_told_so() {
        let p = Progress::new(JobId(1), Direction::Store, 3, at_s(0), &Arc::default());
        p.finish(0, BlockOutcome::Stored);
        assert!(p.start(1, at_s(0)));
        p.begin_io(at_s(0));
        let g = p.give_up(at_s(1), ErrorKind::Unavailable, false).unwrap();
        assert_eq!((g.cut, g.hung, g.first), (vec![(1, true), (2, false)], 1, true));
        let r = g.job.unwrap().report;
        let lost = BlockOutcome::Failed(ErrorKind::Unavailable);
        assert_eq!(r.blocks, [BlockOutcome::Stored, lost, lost]);
        assert_eq!(r.device_time, LIMIT);
        assert!(p.give_up(at_s(2), ErrorKind::Unavailable, false).is_none());
        assert!(!p.start(2, at_s(2)) && p.check().is_err() && p.with_memory(|| ()).is_err());
        p.end_io(at_s(3), 100);
        let end = p.finish(1, BlockOutcome::Stored);
        assert!(end.job.is_none() && end.was_hung);
    }

    #[test]
    fn a_job_whose_memory_nothing_else_protects_waits_for_its_io_and_fails_the_rest() {
        let p = Progress::new(JobId(1), Direction::Load, 2, at_s(0), &Arc::default());
        assert!(p.start(0, at_s(0)));
        let g = p.give_up(at_s(1), ErrorKind::Unavailable, true).unwrap();
        assert_eq!((g.cut, g.hung), (vec![(1, false)], 1));
        assert!(g.job.is_none() && !p.start(1, at_s(1)));
        let g = p.give_up(at_s(2), ErrorKind::Unavailable, true).unwrap();
        assert!(!g.first && g.hung == 0 && g.cut.is_empty());
        let end = p.finish(0, BlockOutcome::Loaded(crate::tier::Verified::Checksum));
        assert!(end.was_hung && end.job.unwrap().report.blocks[0].is_ok());
    }

    #[test]
    fn no_report_comes_while_a_worker_is_in_the_callers_memory() {
        let p = Progress::new(JobId(1), Direction::Load, 1, at_s(0), &Arc::default());
        let within = p.with_memory(|| p.give_up(at_s(9), ErrorKind::Unavailable, false).is_none());
        assert!(within.unwrap());
        assert!(p.give_up(at_s(9), ErrorKind::Unavailable, false).is_some());
    }
}
