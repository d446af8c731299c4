//! Where jobs of the local tier end, and the look that the scheduler's calls take at those that do not.

use std::{io, sync::Arc};

use crate::{
    block::Fingerprint,
    clock::Instant,
    error::ErrorKind,
    fs::{FsTier, shared::Shared},
    io::pool::{Class, Work, Worker},
    jobs::progress::{Ended, UnitEnd},
    metrics::RefuseReason,
    sync::{atomic::Ordering::Relaxed, lock},
    tier::{Direction, RequestId},
};

impl Shared {
    /// A worker is done with a unit, in time or not.
    pub(crate) fn end_unit(&self, end: UnitEnd, direction: Direction, req: RequestId, fps: &[Fingerprint]) {
        self.end_units((end.job, usize::from(end.was_hung)), direction, req, fps);
    }

    /// A worker is done with units that ended together; `hung` of them had been given up.
    pub(crate) fn end_units(
        &self,
        (job, hung): (Option<Ended>, usize),
        direction: Direction,
        req: RequestId,
        fps: &[Fingerprint],
    ) {
        let now = self.clock.now();
        self.guard.ended(direction, false, now);
        (0..hung).for_each(|_| self.guard.ended(direction, true, now));
        if let Some(job) = job {
            self.end_job(job, now, req, fps);
        }
    }

    /// A job ended or was given up: the breaker learns of it before the scheduler does.
    pub(crate) fn end_job(&self, job: Ended, now: Instant, req: RequestId, fps: &[Fingerprint]) {
        self.guard.learn(&self.params.name, job.verdict, now);
        self.report(job.report, req, fps);
        self.guard.unreported.fetch_sub(1, Relaxed);
    }
}

impl FsTier {
    /// Looks after deadlines and breaker, if it is time to.
    pub(super) fn look_after(&self, now: Instant) {
        if self.shared.guard.is_due(now) {
            self.look(now);
        }
    }

    pub(super) fn look(&self, now: Instant) {
        let (s, name) = (&*self.shared, self.shared.params.name.as_str());
        let g = &s.guard;
        s.told.tell(name, now, false);
        let jobs = g.waiting();
        if let Some(timeout) = g.timeout {
            for job in &jobs {
                let p = job.progress();
                if p.is_overdue(now, timeout, g.last_end(p.direction())) {
                    g.deadline_passed(name, now);
                    job.give_up(now, ErrorKind::Unavailable, RefuseReason::Timeout);
                }
            }
            if lock(&s.probes).oldest().is_some_and(|t| now.since(t) >= timeout) {
                g.deadline_passed(name, now);
                lock(&s.probes).running.clear();
            }
        }
        if g.flush.swap(false, Relaxed) {
            self.pool.cancel_queued(Class::Load);
            self.pool.cancel_queued(Class::Store);
            // those that wait for another job's write
            for job in jobs.iter().filter(|j| !j.progress().is_running()) {
                job.give_up(now, ErrorKind::Unavailable, RefuseReason::Breaker);
            }
        }
        if g.wants_probe(name, now) {
            let probe = Arc::new(RootProbe(Arc::clone(&self.shared)));
            if self.pool.submit(Class::Load, probe, 1).is_err() {
                lock(&g.breaker).probe_lost(now);
            }
        }
    }

    /// Reports every job that is left, as far as the memory it uses allows: the tier is shut down.
    pub(super) fn give_all_up(&self) {
        let now = self.shared.clock.now();
        for job in self.shared.guard.waiting() {
            job.give_up(now, ErrorKind::Closed, RefuseReason::Cancelled);
        }
    }
}

/// Asks the root's file system whether it answers. `statvfs` of a network or FUSE file system is a round trip.
struct RootProbe(Arc<Shared>);

impl Work for RootProbe {
    fn run(&self, _unit: usize, _worker: &mut Worker) {
        let s = &*self.0;
        let root = &s.params.root;
        let ask = || s.disk.space(root).and_then(|_| s.disk.stat(root)).map(|_| ());
        let answer = ask().or_else(|e| match e.kind() {
            // somebody removed it: a store would make it again
            io::ErrorKind::NotFound if !s.params.read_only => s.disk.create_dir(root).and_then(|()| ask()),
            _ => Err(e),
        });
        s.guard.probed(&s.params.name, &answer, s.clock.now());
    }

    fn cancel(&self, _unit: usize) {
        lock(&self.0.guard.breaker).probe_lost(self.0.clock.now());
    }
}
