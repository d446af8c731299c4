//! The life of a request: it begins, its blocks are looked up, loaded and stored, it finishes; tiers are told of the
//! end only when no store of it can still be cascaded.

use super::{
    Manager,
    request::{NewRequest, Request, bit},
};
use crate::{
    block::Key,
    tier::{RequestId, StorePolicy},
};

impl Manager {
    /// A request begins. Returns whether any tier wants all of its blocks, even those the primary already holds.
    pub fn on_new_request(&mut self, req: RequestId, new: NewRequest) -> StorePolicy {
        self.begin(req, new, 0)
    }

    /// A request begins of which the tiers of `untold` are not told.
    pub(super) fn begin(&mut self, req: RequestId, new: NewRequest, untold: u64) -> StorePolicy {
        let (mut every_block, mut closed) = (0, untold);
        for (i, s) in self.tiers.iter_mut().enumerate() {
            if untold & bit(i) != 0 {
                continue;
            }
            if s.tier.on_new_request(req) == StorePolicy::EveryBlock {
                every_block |= bit(i);
            }
            if new.not_from.contains(&i) || !new.load_from.allows(s.tier.medium(), s.tier.locality()) {
                closed |= bit(i);
            }
        }
        drop(new);
        // of one announced twice nothing stays held
        self.let_go(req);
        self.requests
            .insert(req, Request::new(every_block, closed, untold));
        if every_block == 0 {
            StorePolicy::NewBlocks
        } else {
            StorePolicy::EveryBlock
        }
    }

    /// The request is over; `keys` are its blocks in prefix order, whoever served them: they count as used now.
    /// Promotions that it queued in this step are dropped.
    pub fn on_request_finished(&mut self, req: RequestId, keys: &[Key]) {
        self.let_go(req);
        self.primary.touch(keys, req);
        for i in 0..self.tiers.len() {
            self.drop_pending(i, |r| r == req);
        }
        if !self.waits.is_empty() {
            self.waits.retain(|w, _| w.0 != req);
        }
        // also for a request that was not announced: tiers have pinned what they said they hold
        self.requests.entry(req).or_default().finished = Some(keys.to_vec());
        self.finish_if_done(req);
    }

    pub(super) fn finish_if_done(&mut self, req: RequestId) {
        let done = self
            .requests
            .get(&req)
            .is_some_and(|r| r.finished.is_some() && r.pending_stores == 0 && r.parked.is_empty());
        if !done {
            return;
        }
        let Some(r) = self.requests.remove(&req) else {
            return;
        };
        let keys = r.finished.unwrap_or_default();
        for (i, s) in self.tiers.iter_mut().enumerate() {
            if r.untold & bit(i) == 0 {
                s.tier.on_request_finished(req, &keys);
            }
        }
    }
}
