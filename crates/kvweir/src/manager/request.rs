//! The life of a request: it begins, its blocks are looked up, loaded and stored, it finishes; tiers are told of the
//! end only when no store of it can still be cascaded.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::Manager;
use crate::{
    block::Key,
    events::{Locality, Medium},
    tier::{RequestId, StorePolicy},
};

/// From which tiers a request may load.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct LoadFilter {
    /// Media it may load from; `None`: all.
    pub media: Option<Vec<Medium>>,
    /// Localities it may load from; `None`: all.
    pub localities: Option<Vec<Locality>>,
}

impl LoadFilter {
    /// Whether a tier of this medium and locality may be asked.
    pub fn allows(&self, medium: Medium, locality: Locality) -> bool {
        self.media.as_ref().is_none_or(|m| m.contains(&medium))
            && self.localities.as_ref().is_none_or(|l| l.contains(&locality))
    }
}

/// What a new request wants.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct NewRequest {
    /// From which secondary tiers it may load.
    pub load_from: LoadFilter,
}

/// A request that has begun.
#[derive(Debug, Default)]
pub(super) struct Request {
    pub(super) pending_stores: u32,
    /// Its keys, once it has finished.
    pub(super) finished: Option<Vec<Key>>,
    /// Bit per tier that wants every block.
    pub(super) every_block: u64,
    /// Blocks to cascade once they are readable.
    pub(super) parked: Vec<Key>,
    /// Bit per tier it may not load from.
    closed: u64,
    /// Tiers that said they had a block and did not bring it.
    failed: HashMap<Key, Vec<usize>, FixedState>,
}

impl Request {
    pub(super) fn may_load(&self, key: &Key, tier: usize) -> bool {
        let failed = || self.failed.get(key).is_some_and(|tiers| tiers.contains(&tier));
        self.closed & bit(tier) == 0 && (self.failed.is_empty() || !failed())
    }

    /// `tier` could not bring `key`: the request no longer asks it for that key, or a tier that always hits and always
    /// fails would hold the request for ever.
    pub(super) fn could_not_load(&mut self, key: &Key, tier: usize) {
        self.failed.entry(key.clone()).or_default().push(tier);
    }

    /// Tiers may be asked again for what they could not bring.
    pub(super) fn forgive(&mut self) {
        self.failed.clear();
    }
}

/// The bit of a tier; those beyond the 64th have none.
pub(super) fn bit(tier: usize) -> u64 {
    u32::try_from(tier)
        .ok()
        .and_then(|t| 1_u64.checked_shl(t))
        .unwrap_or(0)
}

impl Manager {
    /// A request begins. Returns whether any tier wants all of its blocks, even those the primary already holds.
    pub fn on_new_request(&mut self, req: RequestId, new: NewRequest) -> StorePolicy {
        let (mut every_block, mut closed) = (0, 0);
        for (i, s) in self.tiers.iter_mut().enumerate() {
            if s.tier.on_new_request(req) == StorePolicy::EveryBlock {
                every_block |= bit(i);
            }
            if !new.load_from.allows(s.tier.medium(), s.tier.locality()) {
                closed |= bit(i);
            }
        }
        drop(new);
        let state = Request {
            every_block,
            closed,
            ..Request::default()
        };
        self.requests.insert(req, state);
        if every_block == 0 {
            StorePolicy::NewBlocks
        } else {
            StorePolicy::EveryBlock
        }
    }

    /// The request is over; `keys` are its blocks in prefix order, whoever served them: they count as used now.
    /// Promotions that it queued in this step are dropped.
    pub fn on_request_finished(&mut self, req: RequestId, keys: &[Key]) {
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
        let keys = self
            .requests
            .remove(&req)
            .and_then(|r| r.finished)
            .unwrap_or_default();
        self.tiers
            .iter_mut()
            .for_each(|s| s.tier.on_request_finished(req, &keys));
    }
}
