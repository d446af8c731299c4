//! One walk from the cold end of a list that never turns back: each entry is asked about once, pinned ones stay
//! where they are. The list must not change during the walk.

use super::{
    Id, Residents,
    list::{Arena, List, NIL, Note},
};

/// A walk over a list.
#[derive(Debug)]
pub(super) struct Pass {
    /// The next entry to ask about.
    next: Id,
    /// An evictable entry found and not taken yet.
    found: Id,
}

impl Pass {
    pub(super) const fn over(list: &List) -> Self {
        Self {
            next: list.cold(),
            found: NIL,
        }
    }

    /// The coldest evictable entry not taken yet.
    pub(super) fn candidate<M: Note>(&mut self, arena: &Arena<M>, residents: &dyn Residents) -> Option<Id> {
        while self.found == NIL && self.next != NIL {
            let id = self.next;
            self.next = arena.hotter(id);
            if residents.evictable(id) {
                self.found = id;
            }
        }
        (self.found != NIL).then_some(self.found)
    }

    /// Takes the candidate and says what it weighs.
    pub(super) fn take<M: Note>(&mut self, arena: &Arena<M>) -> u64 {
        let weight = arena.weight(self.found).map_or(0, u64::from);
        self.found = NIL;
        weight
    }
}
