//! A request: what it asked for, and what is remembered of it while it runs.

use std::{collections::HashMap, sync::Arc};

use foldhash::fast::FixedState;

use super::{prefix::Prefix, stage::Stage};
use crate::{
    block::Key,
    clock::Instant,
    events::{Locality, Medium},
    primary::Claim,
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
    /// Tiers, by place from the top, that it may not load from whatever `load_from` says.
    pub not_from: Vec<usize>,
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
    pub(super) closed: u64,
    /// Tiers that said they had a block and did not bring it.
    failed: HashMap<Key, Vec<usize>, FixedState>,
    /// Its keys in order, where they were told.
    pub(super) prefix: Option<Arc<Prefix>>,
    /// Its keys were waited for and did not come.
    pub(super) has_no_prefix: bool,
    pub(super) stage: Stage,
    /// What it holds until it has loaded it.
    pub(super) holds: Vec<Claim>,
    /// The step in which its stage was last looked at.
    pub(super) asked_in: Option<u64>,
    /// When that was.
    pub(super) asked_at: Option<Instant>,
    /// Blocks that it loaded or stored, by where they end.
    pub(super) used: Vec<(u64, Key)>,
    /// Blocks answered readable while it waits.
    pub(super) hits_counted: u64,
    /// It was counted among those that had to wait for room.
    pub(super) held_back: bool,
    /// Bit per tier that was never told of it: the one that asks on behalf of somebody else.
    pub(super) untold: u64,
}

impl Request {
    /// A request that may not load from the tiers of `closed`.
    pub(super) fn new(every_block: u64, closed: u64, untold: u64) -> Self {
        Self {
            every_block,
            closed,
            untold,
            ..Self::default()
        }
    }

    pub(super) fn may_load(&self, key: &Key, tier: usize) -> bool {
        let failed = || self.failed.get(key).is_some_and(|tiers| tiers.contains(&tier));
        self.closed & bit(tier) == 0 && (self.failed.is_empty() || !failed())
    }

    /// Whether it may load from `tier`, and how many leading ones of `keys`.
    pub(super) fn may_load_run(&self, keys: &[Key], tier: usize) -> (bool, usize) {
        if self.closed & bit(tier) != 0 {
            return (false, 0);
        }
        if self.failed.is_empty() {
            return (true, keys.len());
        }
        let most = keys.iter().position(|k| !self.may_load(k, tier));
        (true, most.unwrap_or(keys.len()))
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
