//! A cache of bare block numbers around a shipping [`Policy`]: what a tier of that capacity would hold, without bytes,
//! time or pins. Replaying a trace through it gives the hit rate that a policy and a touch order can reach.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::{Id, Policy, PolicyKind, RequestTag, Residents};
use crate::block::Fingerprint;

/// In which order a request's chain of blocks is touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Order {
    /// Last block first, so that the end of a chain is evicted before its beginning, without which it is useless.
    #[default]
    LeafFirst,
    /// First block first.
    HeadFirst,
}

/// The blocks resident in a cache of a fixed number of blocks.
///
/// ```
/// use kvweir::evict::{Order, PolicyKind, RequestTag, ResidentSet};
/// let mut cache = ResidentSet::new(PolicyKind::Lru, 3);
/// cache.touch_request(&[1, 2, 3], Order::LeafFirst, RequestTag(1));
/// cache.touch_request(&[7], Order::LeafFirst, RequestTag(2)); // evicts 3, the leaf
/// assert_eq!(cache.leading_hits(&[1, 2, 3]), 2);
/// ```
#[derive(Debug)]
pub struct ResidentSet {
    policy: Box<dyn Policy>,
    capacity: usize,
    index: HashMap<u64, Id, FixedState>,
    /// The block under each id.
    blocks: Vec<u64>,
    victims: Vec<Id>,
}

impl ResidentSet {
    /// An empty cache of `capacity_blocks` blocks (at most 2^31), replaced by `kind`.
    pub fn new(kind: PolicyKind, capacity_blocks: usize) -> Self {
        let capacity = capacity_blocks.min(1 << 31);
        Self {
            policy: kind.build(capacity as u64),
            capacity,
            index: HashMap::with_hasher(FixedState::with_seed(0)),
            blocks: Vec::new(),
            victims: Vec::new(),
        }
    }

    /// How many of `ids` are resident before the first that is not: the usable prefix.
    pub fn leading_hits(&self, ids: &[u64]) -> usize {
        ids.iter().take_while(|id| self.index.contains_key(id)).count()
    }

    /// Touches every block of a request: uses it where resident, else inserts it, evicting one where full.
    pub fn touch_request(&mut self, ids: &[u64], order: Order, tag: RequestTag) {
        match order {
            Order::LeafFirst => ids.iter().rev().for_each(|&id| self.touch(id, tag)),
            Order::HeadFirst => ids.iter().for_each(|&id| self.touch(id, tag)),
        }
    }

    fn touch(&mut self, block: u64, tag: RequestTag) {
        if let Some(&id) = self.index.get(&block) {
            self.policy.access(id, tag);
        } else if let Some(id) = self.room() {
            match self.blocks.get_mut(id as usize) {
                Some(b) => *b = block,
                None => self.blocks.push(block),
            }
            self.index.insert(block, id);
            self.policy.insert(id, fingerprint(block), 1, tag);
        }
    }

    /// An id for one more block.
    fn room(&mut self) -> Option<Id> {
        if self.blocks.len() < self.capacity {
            return Id::try_from(self.blocks.len()).ok();
        }
        self.victims.clear();
        self.policy.victims(1, &Blocks(&self.blocks), &mut self.victims);
        let id = self.victims.first().copied()?;
        self.index.remove(self.blocks.get(id as usize)?);
        Some(id)
    }

    /// How many blocks are resident.
    pub fn len(&self) -> usize {
        self.index.len()
    }

    /// Whether none is resident.
    pub fn is_empty(&self) -> bool {
        self.index.is_empty()
    }

    /// The policy, for inspection.
    pub fn policy(&self) -> &dyn Policy {
        &*self.policy
    }
}

fn fingerprint(block: u64) -> Fingerprint {
    Fingerprint::of(&block.to_le_bytes(), 0)
}

struct Blocks<'a>(&'a [u64]);

impl Residents for Blocks<'_> {
    fn evictable(&self, _id: Id) -> bool {
        true
    }

    fn fingerprint(&self, id: Id) -> Fingerprint {
        fingerprint(self.0.get(id as usize).copied().unwrap_or_default())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_capacity_holds_and_every_policy_finds_what_it_kept() {
        for kind in PolicyKind::ALL {
            let mut cache = ResidentSet::new(kind, 50);
            for r in 0..200_u64 {
                let ids: Vec<u64> = (0..20).map(|i| if i < 10 { i } else { r * 100 + i }).collect();
                let hits = cache.leading_hits(&ids);
                assert!(
                    r < 5 || kind == PolicyKind::S3Fifo || hits == 10,
                    "{kind}: {hits} in request {r}"
                );
                cache.touch_request(&ids, Order::LeafFirst, RequestTag(r as u32 + 1));
                assert!(cache.len() <= 50 && cache.len() == cache.policy().len());
            }
            assert_eq!(cache.len(), 50);
        }
    }

    #[test]
    fn a_cache_of_no_blocks_holds_none() {
        let mut cache = ResidentSet::new(PolicyKind::Arc, 0);
        cache.touch_request(&[1, 2], Order::HeadFirst, RequestTag::NONE);
        assert!(cache.is_empty() && cache.leading_hits(&[1]) == 0);
    }
}
