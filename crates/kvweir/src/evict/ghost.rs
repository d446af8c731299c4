//! Ghosts: names of recently evicted blocks, oldest forgotten first, bounded by weight. Only 64 bits of a fingerprint
//! are kept: a collision misplaces one block in a queue and nothing more.

use std::fmt;

use hashbrown::HashTable;

use super::{
    Id,
    list::{Arena, LINKS, List, NIL, Note},
};
use crate::block::Fingerprint;

/// 64 bits of a fingerprint in two halves, so that a node is 20 bytes and not 24.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
struct Name {
    low: u32,
    high: u32,
}

impl Name {
    const fn of(fp: Fingerprint) -> Self {
        let h = fp.hash64();
        Self {
            low: h as u32,
            high: (h >> 32) as u32,
        }
    }

    const fn hash(self) -> u64 {
        (self.high as u64) << 32 | self.low as u64
    }
}

impl Note for Name {
    const NODE: usize = LINKS + 8;

    fn words(self) -> [u32; 2] {
        [self.low, self.high]
    }

    fn of_words([low, high]: [u32; 2]) -> Self {
        Self { low, high }
    }
}

/// A queue of ghosts.
#[derive(Clone)]
pub(super) struct Ghosts {
    arena: Arena<Name>,
    queue: List,
    /// Nodes to use again.
    free: List,
    /// Nodes ever used.
    used: Id,
    index: HashTable<Id>,
}

impl Ghosts {
    pub(super) const fn new() -> Self {
        Self {
            arena: Arena::new(),
            queue: List::new(),
            free: List::new(),
            used: 0,
            index: HashTable::new(),
        }
    }

    pub(super) const fn weight(&self) -> u64 {
        self.queue.weight()
    }

    /// Notes an evicted block as the newest ghost.
    pub(super) fn remember(&mut self, fp: Fingerprint, weight: u32) {
        self.take(fp);
        let name = Name::of(fp);
        let slot = match self.free.cold() {
            NIL => self.used,
            slot => slot,
        };
        self.free.unlink(&mut self.arena, slot);
        if !self.queue.push_hot(&mut self.arena, slot, weight, name) {
            return;
        }
        self.used = self.used.max(slot.saturating_add(1));
        let Self { arena, index, .. } = self;
        index.insert_unique(name.hash(), slot, |&s| arena.mark(s).unwrap_or_default().hash());
    }

    /// Forgets this block; returns whether it was known.
    pub(super) fn take(&mut self, fp: Fingerprint) -> bool {
        if self.index.is_empty() {
            return false;
        }
        let name = Name::of(fp);
        let Self { arena, index, .. } = self;
        match index.find_entry(name.hash(), |&s| arena.mark(s) == Some(name)) {
            Ok(found) => {
                let (slot, _) = found.remove();
                self.release(slot);
                true
            }
            Err(_) => false,
        }
    }

    /// Forgets the oldest until no more than `weight` is left.
    pub(super) fn shrink_to(&mut self, weight: u64) {
        while self.queue.weight() > weight {
            let slot = self.queue.cold();
            let name = self.arena.mark(slot).unwrap_or_default();
            if let Ok(found) = self.index.find_entry(name.hash(), |&s| s == slot) {
                found.remove();
            }
            self.release(slot);
        }
    }

    fn release(&mut self, slot: Id) {
        self.queue.unlink(&mut self.arena, slot);
        self.free.push_hot(&mut self.arena, slot, 0, Name::default());
    }

    pub(super) fn memory_bytes(&self) -> usize {
        self.arena.memory_bytes() + self.index.allocation_size()
    }
}

impl fmt::Debug for Ghosts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Ghosts")
            .field("len", &self.queue.len())
            .field("weight", &self.weight())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fp(n: u64) -> Fingerprint {
        Fingerprint::of(&n.to_le_bytes(), 0)
    }

    #[test]
    fn the_oldest_is_forgotten_first_and_nodes_are_used_again() {
        let mut g = Ghosts::new();
        for n in 0..10_000 {
            g.remember(fp(n), 3);
            g.shrink_to(30);
        }
        assert_eq!((g.weight(), g.used), (30, 11));
        g.remember(fp(9_990), 3); // refreshed: no longer the oldest
        g.shrink_to(27);
        assert!(!g.take(fp(9_991)) && g.take(fp(9_990)) && !g.take(fp(9_990)));
        g.shrink_to(0);
        assert_eq!((g.weight(), g.index.len()), (0, 0));
    }
}
