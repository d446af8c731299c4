//! How far a job is: outcomes of its blocks and the time the device worked on it, that is, while at least one of
//! its I/Os was under way. That time, not the caller's polling, feeds the pressure detector.

use std::{
    sync::Mutex,
    time::Duration,
};

use crate::{
    clock::Instant,
    sync::lock,
    tier::{BlockOutcome, Direction, JobId, Report},
};

#[derive(Debug)]
struct Inner {
    outcomes: Vec<Option<BlockOutcome>>,
    remaining: usize,
    active: usize,
    active_since: Instant,
    first_io: Option<Instant>,
    device_time: Duration,
    bytes: u64,
}

/// The progress of one job.
#[derive(Debug)]
pub(crate) struct Progress {
    id: JobId,
    direction: Direction,
    submitted: Instant,
    inner: Mutex<Inner>,
}

impl Progress {
    pub(crate) fn new(id: JobId, direction: Direction, blocks: usize, now: Instant) -> Self {
        let inner = Inner {
            outcomes: vec![None; blocks],
            remaining: blocks,
            active: 0,
            active_since: now,
            first_io: None,
            device_time: Duration::ZERO,
            bytes: 0,
        };
        Self { id, direction, submitted: now, inner: Mutex::new(inner) }
    }

    /// An I/O of the job begins.
    pub(crate) fn begin_io(&self, now: Instant) {
        let mut p = lock(&self.inner);
        if p.active == 0 {
            p.active_since = now;
        }
        p.active += 1;
        p.first_io.get_or_insert(now);
    }

    /// An I/O of the job ended after moving `bytes`.
    pub(crate) fn end_io(&self, now: Instant, bytes: u64) {
        let mut p = lock(&self.inner);
        p.active = p.active.saturating_sub(1);
        if p.active == 0 {
            p.device_time += now.since(p.active_since);
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
            device_time: p.device_time,
            queue_time: p.first_io.map_or(Duration::ZERO, |t| t.since(self.submitted)),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn device_time_counts_while_at_least_one_io_runs_and_queue_time_before_the_first() {
        let at = Instant::from_nanos;
        let p = Progress::new(JobId(1), Direction::Store, 3, at(100));
        p.begin_io(at(150));
        p.begin_io(at(160));
        p.end_io(at(170), 10);
        p.end_io(at(200), 10);
        assert!(p.finish(0, BlockOutcome::Stored).is_none());
        assert!(p.finish(1, BlockOutcome::Stored).is_none());
        p.begin_io(at(1000));
        p.end_io(at(1005), 5);
        let r = p.finish(2, BlockOutcome::Present).unwrap();
        assert_eq!((r.device_time, r.queue_time, r.bytes), (Duration::from_nanos(55), Duration::from_nanos(50), 25));
        assert!(p.finish(2, BlockOutcome::Stored).is_none(), "a block is told once");
    }
}
