//! How far a job is: outcomes of its blocks and its share of the device's time. While `n` jobs have I/O under way,
//! each is charged an n-th of the time that passes, so that the shares of all jobs add up to the time the device
//! was busy, and neither polling nor neighbours make a healthy device look slow (I9).

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::{
    clock::Instant,
    sync::lock,
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

#[derive(Debug)]
struct Inner {
    outcomes: Vec<Option<BlockOutcome>>,
    remaining: usize,
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

    /// An I/O of the job begins.
    pub(crate) fn begin_io(&self, now: Instant) {
        let mut p = lock(&self.inner);
        if p.active == 0 {
            p.active_since = self.meter.advance(now, 1);
        }
        p.active += 1;
        p.first_io.get_or_insert(now);
    }

    /// An I/O of the job ended after moving `bytes`.
    pub(crate) fn end_io(&self, now: Instant, bytes: u64) {
        let mut p = lock(&self.inner);
        p.active = p.active.saturating_sub(1);
        if p.active == 0 {
            p.device_seconds += self.meter.advance(now, -1) - p.active_since;
        }
        p.bytes += bytes;
    }

    /// Notes the outcome of a block, the first one told. Returns the report when it was the last block.
    pub(crate) fn finish(&self, unit: usize, outcome: BlockOutcome) -> Option<Report> {
        let mut p = lock(&self.inner);
        let slot = p.outcomes.get_mut(unit)?;
        if slot.is_some() {
            return None;
        }
        *slot = Some(outcome);
        p.remaining -= 1;
        if p.remaining > 0 {
            return None;
        }
        Some(Report {
            id: self.id,
            direction: self.direction,
            blocks: std::mem::take(&mut p.outcomes).into_iter().flatten().collect(),
            bytes: p.bytes,
            device_time: Duration::from_secs_f64(p.device_seconds.max(0.0)),
            queue_time: p.first_io.map_or(Duration::ZERO, |t| t.since(self.submitted)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
        assert!(p.finish(0, BlockOutcome::Stored).is_none());
        assert!(p.finish(1, BlockOutcome::Stored).is_none());
        p.begin_io(at(1000));
        p.end_io(at(1005), 5);
        let r = p.finish(2, BlockOutcome::Present).unwrap();
        assert_eq!(
            (r.device_time, r.queue_time, r.bytes),
            (Duration::from_micros(55), Duration::from_micros(50), 25)
        );
        assert!(
            p.finish(2, BlockOutcome::Stored).is_none(),
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
            let r = j.finish(0, BlockOutcome::Stored).unwrap();
            assert_eq!(r.device_time, Duration::from_millis(1));
        }
    }
}
