//! Who pins what: a lookup that hits pins the block for its request, once per request and block. The pin passes to
//! the load job, or goes when the request finishes, or when its lease runs out because the engine forgot it (I3). Which
//! blocks a job is for is known when a worker reaches it: the pins of a request that ends before are kept until its
//! last job was reached.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

use foldhash::fast::FixedState;

use crate::{clock::Instant, evict::Id, tier::RequestId};

/// What one request pins.
#[derive(Debug)]
pub(crate) struct Lease {
    ids: HashSet<Id, FixedState>,
    since: Instant,
    number: u64,
    /// Jobs that no worker has reached.
    jobs: usize,
}

/// What a request that ended pinned for jobs that no worker has reached.
#[derive(Debug)]
struct Left {
    ids: HashSet<Id, FixedState>,
    jobs: usize,
}

/// Pins of a request that a job was handed.
#[derive(Debug, Default)]
pub(crate) struct Held {
    ids: HashSet<Id, FixedState>,
    /// The lease they come from: a request of the same name that came later has another one.
    lease: u64,
}

impl Held {
    /// Takes the pin on `id`; returns whether there was one.
    pub(crate) fn take(&mut self, id: Id) -> bool {
        self.ids.remove(&id)
    }
}

impl Lease {
    /// Prepares for `n` more.
    pub(crate) fn reserve(&mut self, n: usize) {
        self.ids.reserve(n);
    }

    /// Notes a pin on `id`; returns whether that is new.
    pub(crate) fn add(&mut self, id: Id) -> bool {
        self.ids.insert(id)
    }
}

/// Pins by request.
#[derive(Debug, Default)]
pub(crate) struct Pins {
    leases: HashMap<RequestId, Lease, FixedState>,
    by_age: VecDeque<(Instant, RequestId)>,
    /// By number of the lease.
    left: HashMap<u64, Left, FixedState>,
    begun: u64,
}

impl Pins {
    /// The lease of `req`, made if need be.
    pub(crate) fn lease(&mut self, req: RequestId, now: Instant) -> &mut Lease {
        self.leases.entry(req).or_insert_with(|| {
            self.by_age.push_back((now, req));
            self.begun += 1;
            Lease {
                ids: HashSet::default(),
                since: now,
                number: self.begun,
                jobs: 0,
            }
        })
    }

    /// Notes that `req` pins `id`; returns whether that is new.
    pub(crate) fn add(&mut self, req: RequestId, id: Id, now: Instant) -> bool {
        self.lease(req, now).add(id)
    }

    /// Hands all pins of `req` over to a job. Its lease goes on.
    pub(crate) fn lend(&mut self, req: RequestId) -> Held {
        let lease = self.leases.get_mut(&req);
        lease.map_or_else(Held::default, |l| {
            l.jobs += 1;
            Held {
                ids: std::mem::take(&mut l.ids),
                lease: l.number,
            }
        })
    }

    /// Takes a pin on `id` that was handed to a job, or to another one of its request, which ended; returns whether
    /// there was one.
    pub(crate) fn take(&mut self, held: &mut Held, id: Id) -> bool {
        held.take(id) || self.left.get_mut(&held.lease).is_some_and(|l| l.ids.remove(&id))
    }

    /// Takes back what is left of pins that `req` lent to a job; returns those that are to be released, its lease
    /// holding them already, or being over while no other job of it waits for them.
    pub(crate) fn give_back(&mut self, req: RequestId, mut held: Held) -> Vec<Id> {
        if let Some(l) = self.leases.get_mut(&req).filter(|l| l.number == held.lease) {
            l.jobs = l.jobs.saturating_sub(1);
            held.ids.retain(|&id| !l.ids.insert(id));
        } else if let Some(l) = self.left.get_mut(&held.lease) {
            l.jobs = l.jobs.saturating_sub(1);
            held.ids.retain(|&id| !l.ids.insert(id));
            if l.jobs == 0 {
                let last = self.left.remove(&held.lease).map(|l| l.ids);
                return held.ids.into_iter().chain(last.into_iter().flatten()).collect();
            }
        }
        held.ids.into_iter().collect()
    }

    /// Ends the lease of `req`; returns what it still pinned, but for what its jobs may wait for.
    pub(crate) fn end(&mut self, req: RequestId) -> Vec<Id> {
        let ids = match self.leases.remove(&req) {
            Some(Lease {
                ids, number, jobs, ..
            }) if jobs > 0 => {
                self.left.insert(number, Left { ids, jobs });
                Vec::new()
            }
            lease => lease.map(|l| l.ids.into_iter().collect()).unwrap_or_default(),
        };
        while let Some(&(since, r)) = self.by_age.front()
            && !self.is_live(r, since)
        {
            self.by_age.pop_front();
        }
        ids
    }

    fn is_live(&self, req: RequestId, since: Instant) -> bool {
        self.leases.get(&req).is_some_and(|l| l.since == since)
    }

    /// A request whose lease is older than `ttl`.
    pub(crate) fn expired(&self, now: Instant, ttl: Duration) -> Option<RequestId> {
        let &(since, req) = self.by_age.front()?;
        (now.since(since) > ttl).then_some(req)
    }

    /// Requests that hold a lease.
    pub(crate) fn requests(&self) -> Vec<RequestId> {
        self.leases.keys().copied().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_pins_a_block_once_and_gives_back_what_no_job_took() {
        let mut p = Pins::default();
        let (r, t) = (RequestId(1), Instant::from_nanos(0));
        assert!(p.add(r, 5, t) && !p.add(r, 5, t) && p.add(r, 6, t) && p.add(RequestId(2), 5, t));
        let mut held = p.lend(r);
        assert!(held.take(5) && !held.take(5));
        assert!(p.give_back(r, held).is_empty());
        assert_eq!(p.end(r), [6]);
        assert!(p.end(r).is_empty() && p.lend(RequestId(2)).take(5));
    }

    #[test]
    fn what_a_job_did_not_take_goes_back_to_the_same_lease_or_is_released() {
        let mut p = Pins::default();
        let (r, t) = (RequestId(1), Instant::from_nanos(0));
        for id in 1..=3 {
            p.add(r, id, t);
        }
        let mut held = p.lend(r);
        assert!(
            held.take(1) && p.add(r, 2, t),
            "asked again meanwhile: a pin of its own"
        );
        assert_eq!(p.give_back(r, held), [2]);
        let held = p.lend(r);
        p.end(r);
        p.add(r, 3, t);
        let mut back = p.give_back(r, held);
        back.sort_unstable();
        assert_eq!(back, [2, 3], "a later request of the same name holds its own");
        assert_eq!(p.end(r), [3]);
    }

    #[test]
    fn pins_of_a_request_that_ended_stay_until_its_last_job_was_reached() {
        let mut p = Pins::default();
        let (r, t) = (RequestId(1), Instant::from_nanos(0));
        for id in 1..=4 {
            p.add(r, id, t);
        }
        let mut jobs = [p.lend(r), p.lend(r), p.lend(r)];
        assert!(p.end(r).is_empty());
        // reached in any order, each takes its own; the fourth is nobody's
        for (job, id) in [(1, 2), (0, 1), (2, 3)] {
            let mut held = std::mem::take(&mut jobs[job]);
            // what the first job holds comes back with it: before that the others pin anew
            let _ = p.take(&mut held, id);
            let back = p.give_back(r, held);
            assert_eq!(back.is_empty(), job != 2, "{back:?}");
        }
        assert!(p.left.is_empty());
        p.add(r, 9, t);
        assert_eq!(p.end(r), [9], "another lease of the same name is its own");
    }

    #[test]
    fn only_leases_older_than_the_ttl_expire_and_finished_ones_are_forgotten() {
        let mut p = Pins::default();
        let at = |s: u64| Instant::from_nanos(s * 1_000_000_000);
        for n in 0..1000 {
            p.add(RequestId(n), 1, at(n));
            if n % 2 == 0 {
                p.end(RequestId(n));
            }
        }
        let ttl = Duration::from_secs(600);
        assert_eq!(p.expired(at(601), ttl), None);
        assert_eq!(p.expired(at(602), ttl), Some(RequestId(1)));
        for n in 0..1000 {
            p.end(RequestId(n));
        }
        assert!(p.by_age.is_empty());
    }
}
