//! Least recently used: one queue; an access moves to its hot end, a pass starts at its cold end and leaves what is
//! pinned in its place (I3). Which request touches does not matter, so a node is 12 bytes.

use super::{
    Id, Policy, PolicyKind, RequestTag, Residents,
    list::{Arena, NIL},
    queue::{Pass, Queue},
};
use crate::block::Fingerprint;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Lru {
    arena: Arena<()>,
    queue: Queue,
}

impl Lru {
    pub(super) fn new() -> Self {
        Self {
            arena: Arena::new(),
            queue: Queue::new(),
        }
    }

    /// The victims, still listed; false, and `out` as it was, if they would not suffice.
    fn plan(&mut self, need: u64, residents: &dyn Residents, out: &mut Vec<Id>) -> bool {
        let start = out.len();
        let mut pass = Pass::new();
        let mut gained = 0_u64;
        while gained < need {
            let Some(id) = pass.candidate(&mut self.queue, &mut self.arena, residents) else {
                out.truncate(start);
                return false;
            };
            gained = gained.saturating_add(pass.take(&self.arena));
            out.push(id);
        }
        true
    }
}

impl Policy for Lru {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Lru
    }

    fn set_capacity(&mut self, _weight: u64) {}

    fn insert(&mut self, id: Id, _fp: Fingerprint, weight: u32, _tag: RequestTag) {
        self.remove(id);
        self.queue.push_hot(&mut self.arena, id, weight.max(1), ());
    }

    fn insert_cold(&mut self, id: Id, _fp: Fingerprint, weight: u32) {
        self.remove(id);
        self.queue.push_cold(&mut self.arena, id, weight.max(1), ());
    }

    fn access(&mut self, id: Id, _tag: RequestTag) {
        self.queue.refresh(&mut self.arena, id);
    }

    fn access_all(&mut self, ids: &[Id], tag: RequestTag) {
        self.arena.warm(ids);
        self.arena.warm_neighbours(ids);
        ids.iter().for_each(|&id| self.access(id, tag));
    }

    #[inline]
    fn unpinned(&mut self, id: Id) {
        self.queue.release(&self.arena, id);
    }

    fn remove(&mut self, id: Id) {
        self.queue.unlink(&mut self.arena, id);
    }

    fn victims(&mut self, need: u64, residents: &dyn Residents, out: &mut Vec<Id>) -> bool {
        let start = out.len();
        self.queue.tidy(&mut self.arena);
        if need > self.weight() || !self.plan(need, residents, out) {
            return false;
        }
        for &id in out.iter().skip(start) {
            self.queue.unlink(&mut self.arena, id);
        }
        true
    }

    fn oldest(&self) -> Option<Id> {
        Some(self.queue.cold()).filter(|&id| id != NIL)
    }

    fn len(&self) -> usize {
        self.queue.len()
    }

    fn weight(&self) -> u64 {
        self.queue.weight()
    }

    fn memory_bytes(&self) -> usize {
        self.arena.memory_bytes() + self.queue.memory_bytes()
    }

    fn eviction_order(&self) -> Vec<Id> {
        self.queue.iter(&self.arena).collect()
    }
}
