//! The look that the scheduler's calls take at jobs that do not end, and at a device that is left alone.

use std::sync::Arc;

use super::backend::Backend;
use crate::{
    clock::Instant,
    error::ErrorKind,
    io::pool::{Class, PoolShare, Work, Worker},
    metrics::RefuseReason,
};

/// Looks after deadlines and breaker, if it is time to.
pub(crate) fn look_after<B: Backend>(tier: &Arc<B>, pool: &PoolShare, now: Instant) {
    if tier.runner().watchdog.is_due(now) {
        look(tier, pool, now);
    }
}

/// Looks after deadlines and breaker.
fn look<B: Backend>(tier: &Arc<B>, pool: &PoolShare, now: Instant) {
    let (dog, name) = (&tier.runner().watchdog, tier.runner().name.as_str());
    let jobs = dog.waiting();
    if let Some(timeout) = dog.timeout() {
        for job in &jobs {
            let p = job.progress();
            if p.is_overdue(now, timeout, dog.last_end(p.direction())) {
                dog.deadline_passed(name, now);
                job.give_up(now, ErrorKind::Unavailable, RefuseReason::Timeout);
            }
        }
    }
    if tier.look(now, dog.timeout()) {
        dog.deadline_passed(name, now);
    }
    if dog.must_flush() {
        pool.cancel_queued(Class::Load);
        pool.cancel_queued(Class::Store);
        // those that wait for another job's write
        for job in jobs.iter().filter(|j| !j.progress().is_running()) {
            job.give_up(now, ErrorKind::Unavailable, RefuseReason::Breaker);
        }
    }
    if dog.wants_probe(name, now)
        && pool
            .submit(Class::Load, Arc::new(Probe(Arc::clone(tier))), 1)
            .is_err()
    {
        dog.probe_lost(now);
    }
}

/// Asks the device whether it answers.
struct Probe<B>(Arc<B>);

impl<B: Backend> Work for Probe<B> {
    fn run(&self, _unit: usize, _worker: &mut Worker) {
        let answer = self.0.probe();
        let r = self.0.runner();
        r.watchdog.probed(&r.name, &answer, r.clock.now());
    }

    fn cancel(&self, _unit: usize) {
        let r = self.0.runner();
        r.watchdog.probe_lost(r.clock.now());
    }
}
