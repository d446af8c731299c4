//! Least recently used: one list; an access moves to its hot end, a pass starts at its cold end and skips what is
//! pinned (I3). Which request touches does not matter, so a node is 12 bytes.

use super::{
    All, Id, Policy, PolicyKind, RequestTag, Residents,
    list::{Arena, List},
    pass::Pass,
};
use crate::block::Fingerprint;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Lru {
    arena: Arena<()>,
    list: List,
}

impl Lru {
    pub(super) const fn new() -> Self {
        Self {
            arena: Arena::new(),
            list: List::new(),
        }
    }

    /// The victims, still listed; false, and `out` as it was, if they would not suffice.
    fn plan(&self, need: u64, residents: &dyn Residents, out: &mut Vec<Id>) -> bool {
        let start = out.len();
        let mut pass = Pass::over(&self.list);
        let mut gained = 0_u64;
        while gained < need {
            let Some(id) = pass.candidate(&self.arena, residents) else {
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
        self.list.push_hot(&mut self.arena, id, weight.max(1), ());
    }

    fn insert_cold(&mut self, id: Id, _fp: Fingerprint, weight: u32) {
        self.remove(id);
        self.list.push_cold(&mut self.arena, id, weight.max(1), ());
    }

    fn access(&mut self, id: Id, _tag: RequestTag) {
        self.list.refresh(&mut self.arena, id);
    }

    fn access_all(&mut self, ids: &[Id], tag: RequestTag) {
        self.arena.warm(ids);
        self.arena.warm_neighbours(ids);
        ids.iter().for_each(|&id| self.access(id, tag));
    }

    fn remove(&mut self, id: Id) {
        self.list.unlink(&mut self.arena, id);
    }

    fn victims(&mut self, need: u64, residents: &dyn Residents, out: &mut Vec<Id>) -> bool {
        let start = out.len();
        if need > self.weight() || !self.plan(need, residents, out) {
            return false;
        }
        for &id in out.iter().skip(start) {
            self.list.unlink(&mut self.arena, id);
        }
        true
    }

    fn oldest(&self) -> Option<Id> {
        Some(self.list.cold()).filter(|&id| self.arena.weight(id).is_some())
    }

    fn len(&self) -> usize {
        self.list.len()
    }

    fn weight(&self) -> u64 {
        self.list.weight()
    }

    fn memory_bytes(&self) -> usize {
        self.arena.memory_bytes()
    }

    fn eviction_order(&self) -> Vec<Id> {
        let mut order = Vec::with_capacity(self.len());
        self.plan(self.weight(), &All, &mut order);
        order
    }
}
