//! A list whose pinned entries do not stand in the way. An entry that a pass finds pinned is set aside: off the list,
//! into the next of the queue's *places*, which keep the order of the list they came from. All that is aside is colder
//! than all that is listed, so a place is as good as the place in the list was; and a pass looks only at places that
//! the owner released since. So each entry is asked about once for each time it was pinned, whatever is pinned besides.
//!
//! An entry aside costs its four bytes of place and a bit, and half as much again for places that emptied; its node
//! stays its own.

use super::{
    Id, Residents,
    bits::Bits,
    list::{Arena, List, NIL, Note},
};

/// Fewer places than these are not worth tidying.
const FEW: usize = 64;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Queue {
    list: List,
    aside: Aside,
}

/// Entries set aside, coldest first.
#[derive(Debug, Clone, Default)]
struct Aside {
    /// Which entry is at each place; [`NIL`] once it has gone.
    places: Vec<Id>,
    /// The place of the coldest; those before are empty.
    first: usize,
    /// Places that a pass is to look at.
    ready: Bits,
    len: usize,
    weight: u64,
}

impl Queue {
    pub(super) fn new() -> Self {
        Self {
            list: List::new(),
            aside: Aside::default(),
        }
    }

    /// The coldest entry, or [`NIL`].
    pub(super) fn cold(&self) -> Id {
        match self.aside.places.get(self.aside.first) {
            Some(&id) => id,
            None => self.list.cold(),
        }
    }

    /// Whether anything is set aside.
    #[inline]
    pub(super) const fn has_aside(&self) -> bool {
        self.aside.len > 0
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.list.len() + self.aside.len
    }

    #[inline]
    pub(super) const fn weight(&self) -> u64 {
        self.list.weight().saturating_add(self.aside.weight)
    }

    /// Links `id` in at the hot end; false, and nothing done, if it is on a queue already or no valid id.
    pub(super) fn push_hot<M: Note>(&mut self, arena: &mut Arena<M>, id: Id, weight: u32, mark: M) -> bool {
        self.list.push_hot(arena, id, weight, mark)
    }

    /// Links `id` in at the cold end; false, and nothing done, if it is on a queue already or no valid id.
    pub(super) fn push_cold<M: Note>(&mut self, arena: &mut Arena<M>, id: Id, weight: u32, mark: M) -> bool {
        if self.aside.len == 0 {
            return self.list.push_cold(arena, id, weight, mark);
        }
        if self.aside.first == 0 {
            self.aside.renumber(arena, FEW.max(self.aside.len / 4));
        }
        let place = self.aside.first - 1;
        if !arena.list_aside(id, place as u32, weight, mark) {
            return false;
        }
        if let Some(p) = self.aside.places.get_mut(place) {
            *p = id;
        }
        self.aside.first = place;
        self.aside.ready.insert(place);
        self.aside.count(weight);
        true
    }

    /// Takes `id`, which must be on this queue if on any, off it.
    #[inline]
    pub(super) fn unlink<M: Note>(&mut self, arena: &mut Arena<M>, id: Id) -> Option<(u32, M)> {
        if self.aside.len > 0
            && let Some(place) = arena.place(id)
        {
            let (weight, mark) = arena.unlist(id)?;
            self.aside.leave(place, weight);
            return Some((weight, mark));
        }
        self.list.unlink(arena, id)
    }

    /// Moves `id`, which must be on this queue if on any, to the hot end.
    #[inline]
    pub(super) fn refresh<M: Note>(&mut self, arena: &mut Arena<M>, id: Id) {
        if self.aside.len > 0 && arena.place(id).is_some() {
            if let Some((weight, mark)) = self.unlink(arena, id) {
                self.list.push_hot(arena, id, weight, mark);
            }
            return;
        }
        self.list.refresh(arena, id);
    }

    /// The next pass looks at `id` again if it is aside.
    #[inline]
    pub(super) fn release<M: Note>(&mut self, arena: &Arena<M>, id: Id) {
        if self.aside.len > 0
            && let Some(place) = arena.place(id)
        {
            self.aside.ready.insert(place);
        }
    }

    /// The next pass looks at everything.
    pub(super) fn release_all(&mut self) {
        for (place, &id) in self.aside.places.iter().enumerate() {
            if id != NIL {
                self.aside.ready.insert(place);
            }
        }
    }

    /// Reclaims empty places. Not during a pass, which knows places by number.
    #[inline]
    pub(super) fn tidy<M: Note>(&mut self, arena: &mut Arena<M>) {
        let a = &mut self.aside;
        if a.places.len() > 2 * FEW && a.places.len() > a.len + a.len / 2 {
            a.renumber(arena, 0);
        }
    }

    /// All entries, coldest first.
    pub(super) fn iter<'a, M: Note>(&'a self, arena: &'a Arena<M>) -> impl Iterator<Item = Id> + 'a {
        let aside = self.aside.places.iter().copied().filter(|&id| id != NIL);
        let first = Some(self.list.cold()).filter(|&id| id != NIL);
        let listed = std::iter::successors(first, |&id| Some(arena.hotter(id)).filter(|&id| id != NIL));
        aside.chain(listed)
    }

    /// Heap bytes held.
    pub(super) fn memory_bytes(&self) -> usize {
        self.aside.places.capacity() * size_of::<Id>() + self.aside.ready.memory_bytes()
    }
}

impl Aside {
    const fn count(&mut self, weight: u32) {
        self.len += 1;
        self.weight = self.weight.saturating_add(weight as u64);
    }

    /// Sets `id`, on no list any more, aside as the hottest of them.
    fn join<M: Note>(&mut self, arena: &mut Arena<M>, id: Id, weight: u32, mark: M, ready: bool) {
        let place = self.places.len();
        if arena.list_aside(id, place as u32, weight, mark) {
            if place == self.places.capacity() {
                // by less than a vector grows by itself: every entry pays for it
                self.places.reserve_exact(FEW.max(place / 8));
            }
            self.places.push(id);
            self.count(weight);
            if ready {
                self.ready.insert(place);
            }
        }
    }

    /// The entry at `place` is gone.
    fn leave(&mut self, place: usize, weight: u32) {
        if let Some(p) = self.places.get_mut(place) {
            *p = NIL;
        }
        self.ready.remove(place);
        self.len = self.len.saturating_sub(1);
        self.weight = self.weight.saturating_sub(u64::from(weight));
        if self.len == 0 {
            self.places.clear();
            self.first = 0;
        }
        while self.places.get(self.first) == Some(&NIL) {
            self.first += 1;
        }
    }

    /// Moves all entries together, leaving `front` places before them.
    fn renumber<M: Note>(&mut self, arena: &mut Arena<M>, front: usize) {
        let mut places = Vec::with_capacity(front + self.len);
        places.resize(front, NIL);
        let mut ready = Bits::default();
        let mut next = self.ready.next(0);
        for (old, &id) in self.places.iter().enumerate() {
            if id == NIL {
                continue;
            }
            if next == Some(old) {
                ready.insert(places.len());
                next = self.ready.next(old + 1);
            }
            arena.set_place(id, places.len() as u32);
            places.push(id);
        }
        (self.places, self.first, self.ready) = (places, front, ready);
    }
}

/// One walk over a queue from its cold end that never turns back: each entry is looked at once. Between its steps
/// entries may leave the queue and come in at its hot end.
#[derive(Debug)]
pub(super) struct Pass {
    /// Places before are done with.
    place: usize,
    /// The last entry of the list that was looked at and stays there, or [`NIL`].
    behind: Id,
    /// An evictable entry found and not taken yet, or [`NIL`].
    found: Id,
}

impl Pass {
    pub(super) const fn new() -> Self {
        Self {
            place: 0,
            behind: NIL,
            found: NIL,
        }
    }

    /// The coldest entry not looked at yet, or [`NIL`].
    #[inline]
    pub(super) fn next<M: Note>(&mut self, queue: &Queue, arena: &Arena<M>) -> Id {
        let aside = &queue.aside;
        if self.place < aside.places.len() {
            if let Some(place) = aside.ready.next(self.place) {
                return aside.places.get(place).copied().unwrap_or(NIL);
            }
            self.place = aside.places.len();
        }
        if self.behind == NIL {
            queue.list.cold()
        } else {
            arena.hotter(self.behind)
        }
    }

    /// `id`, the next one, was looked at: it can go, or it is pinned and set aside. Either way it keeps its place.
    #[inline]
    pub(super) fn looked<M: Note>(
        &mut self,
        queue: &mut Queue,
        arena: &mut Arena<M>,
        id: Id,
        evictable: bool,
    ) {
        if !queue.aside.places.is_empty()
            && let Some(place) = arena.place(id)
        {
            self.place = place + 1;
            if !evictable {
                queue.aside.ready.remove(place);
            }
        } else if evictable {
            self.behind = id;
        } else {
            self.set_aside(queue, arena, id);
        }
    }

    /// Sets `id` aside, and what can go and is colder before it, so that they keep their order.
    #[cold]
    fn set_aside<M: Note>(&mut self, queue: &mut Queue, arena: &mut Arena<M>, id: Id) {
        loop {
            let cold = queue.list.cold();
            let Some((weight, mark)) = queue.list.unlink(arena, cold) else {
                break;
            };
            queue.aside.join(arena, cold, weight, mark, cold != id);
            if cold == id {
                break;
            }
        }
        self.place = queue.aside.places.len();
        self.behind = NIL;
    }

    /// The coldest evictable entry not taken yet.
    #[inline]
    pub(super) fn candidate<M: Note>(
        &mut self,
        queue: &mut Queue,
        arena: &mut Arena<M>,
        residents: &dyn Residents,
    ) -> Option<Id> {
        while self.found == NIL {
            let id = self.next(queue, arena);
            if id == NIL {
                return None;
            }
            let can_go = residents.evictable(id);
            self.looked(queue, arena, id, can_go);
            if can_go {
                self.found = id;
            }
        }
        Some(self.found)
    }

    /// Takes the candidate and returns its weight.
    #[inline]
    pub(super) fn take<M: Note>(&mut self, arena: &Arena<M>) -> u64 {
        let weight = arena.weight(self.found).map_or(0, u64::from);
        self.found = NIL;
        weight
    }
}
