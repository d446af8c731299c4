//! Pins: what somebody may load is not evicted (I3).

use std::time::Duration;

use super::{Catalog, body::Rank, index::State, pins::Held, space::SpaceId};
use crate::{clock::Instant, evict::Id, tier::RequestId};

impl Catalog {
    /// Pins `id` for `req`, once.
    pub(crate) fn pin_for(&mut self, (space, req): (SpaceId, RequestId), id: Id, now: Instant) {
        if self.spaces.get_mut(space).pins.add(req, id, now) {
            self.pin(id);
        }
    }

    /// Pins `ids` for `req`, once each; about `expected` pins will come with and after them.
    pub(crate) fn pin_all_for(
        &mut self,
        (space, req): (SpaceId, RequestId),
        mut ids: impl Iterator<Item = Id>,
        now: Instant,
        expected: usize,
    ) {
        let Some(one) = ids.next() else { return };
        self.pin_for((space, req), one, now);
        let lease = self.spaces.get_mut(space).pins.lease(req, now);
        lease.reserve(expected);
        let mut first = 0;
        for id in ids {
            if lease.add(id) {
                first += u64::from(self.index.pin(id));
            }
        }
        self.stats.pinned_blocks += first;
        self.stats.pinned_peak = self.stats.pinned_peak.max(self.stats.pinned_blocks);
    }

    /// Hands what `req` pins to a job.
    pub(crate) fn lend(&mut self, (space, req): (SpaceId, RequestId)) -> Held {
        self.spaces.get_mut(space).pins.lend(req)
    }

    /// Pins `id` for a job: takes a pin that was handed to it over, or adds one.
    pub(crate) fn pin_for_job(&mut self, space: SpaceId, held: &mut Held, id: Id) {
        if !self.spaces.get_mut(space).pins.take(held, id) {
            self.pin(id);
        }
    }

    /// Takes back what a job was handed and has no use for; it is released if the request is over.
    pub(crate) fn give_back(&mut self, (space, req): (SpaceId, RequestId), held: Held) {
        for id in self.spaces.get_mut(space).pins.give_back(req, held) {
            self.unpin(id);
        }
    }

    /// Pins `id` for whoever will [`unpin`](Self::unpin) it.
    pub(crate) fn pin(&mut self, id: Id) {
        if self.index.pin(id) {
            self.stats.pinned_blocks += 1;
            self.stats.pinned_peak = self.stats.pinned_peak.max(self.stats.pinned_blocks);
        }
    }

    /// Releases one pin of a job.
    pub(crate) fn unpin(&mut self, id: Id) {
        let forgotten = self.index.state(id) == State::Dead;
        let body = self.index.body(id);
        if self.index.unpin(id) {
            self.stats.pinned_blocks = self.stats.pinned_blocks.saturating_sub(1);
            match body.rank {
                Rank::Slot(_) if forgotten => self.released.push(body),
                rank => self.policy_mut(rank).unpinned(id),
            }
        }
    }

    /// Releases what `req` still pins.
    pub(crate) fn end_request(&mut self, (space, req): (SpaceId, RequestId)) {
        let ids = self.spaces.get_mut(space).pins.end(req);
        self.index.warm(&ids);
        ids.into_iter().for_each(|id| self.unpin(id));
    }

    /// Releases the pins of every request of a space.
    pub(crate) fn end_all_requests(&mut self, space: SpaceId) {
        for req in self.spaces.get(space).pins.requests() {
            self.end_request((space, req));
        }
    }

    /// Takes back pins of a space's requests that did not finish within `ttl`.
    pub(crate) fn expire_leases(&mut self, space: SpaceId, now: Instant, ttl: Duration) {
        let (mut requests, mut first) = (0u64, None);
        while let Some(req) = self.spaces.get_mut(space).pins.expired(now, ttl) {
            requests += 1;
            first.get_or_insert(req.0);
            self.spaces.get_mut(space).stats.pin_leases_expired += 1;
            self.end_request((space, req));
        }
        if let Some(request) = first {
            tracing::warn!(
                request,
                requests,
                ttl_s = ttl.as_secs_f64(),
                "requests did not finish; their pins are released"
            );
        }
    }
}
