//! Index-linked lists. Nodes live in an [`Arena`] of fixed chunks addressed by the owner's ids, so growing
//! allocates one chunk and never copies; a [`List`] is only its two ends and its sums. A node with an empty mark
//! has 12 bytes, with a 4-byte mark 16. An id is on at most one list of its arena.

use std::fmt;

use super::Id;

/// No id: the end of a list.
pub(super) const NIL: Id = Id::MAX;
/// In `prev`: this node is on no list.
const ABSENT: Id = Id::MAX - 1;
const CHUNK_BITS: u32 = 10;
const CHUNK: usize = 1 << CHUNK_BITS;

#[derive(Clone, Copy)]
struct Node<M> {
    /// Towards the cold end.
    prev: Id,
    /// Towards the hot end.
    next: Id,
    weight: u32,
    mark: M,
}

type Chunk<M> = Box<[Node<M>]>;

/// The nodes of one or more lists. `M` is what a policy notes about an entry.
#[derive(Clone)]
pub(super) struct Arena<M> {
    chunks: Vec<Option<Chunk<M>>>,
    allocated: usize,
}

impl<M: Copy + Default> Arena<M> {
    pub(super) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            allocated: 0,
        }
    }

    /// The node of an id that is on a list.
    #[inline]
    fn node(&self, id: Id) -> Option<&Node<M>> {
        let chunk = self.chunks.get((id >> CHUNK_BITS) as usize)?.as_ref()?;
        chunk.get(id as usize % CHUNK).filter(|n| n.prev != ABSENT)
    }

    #[inline]
    fn node_mut(&mut self, id: Id) -> Option<&mut Node<M>> {
        let chunk = self.chunks.get_mut((id >> CHUNK_BITS) as usize)?.as_mut()?;
        chunk.get_mut(id as usize % CHUNK).filter(|n| n.prev != ABSENT)
    }

    /// The node of an id that is on no list, made if need be.
    #[inline]
    fn vacant(&mut self, id: Id) -> Option<&mut Node<M>> {
        if id >= ABSENT {
            return None;
        }
        let at = (id >> CHUNK_BITS) as usize;
        if at >= self.chunks.len() {
            self.chunks.resize_with(at + 1, || None);
        }
        let allocated = &mut self.allocated;
        let chunk = self.chunks.get_mut(at)?.get_or_insert_with(|| {
            *allocated += 1;
            vec![
                Node {
                    prev: ABSENT,
                    next: NIL,
                    weight: 0,
                    mark: M::default()
                };
                CHUNK
            ]
            .into_boxed_slice()
        });
        chunk.get_mut(id as usize % CHUNK).filter(|n| n.prev == ABSENT)
    }

    /// The weight of a listed id.
    #[inline]
    pub(super) fn weight(&self, id: Id) -> Option<u32> {
        self.node(id).map(|n| n.weight)
    }

    /// The mark of a listed id.
    #[inline]
    pub(super) fn mark(&self, id: Id) -> Option<M> {
        self.node(id).map(|n| n.mark)
    }

    /// Replaces the mark of a listed id.
    #[inline]
    pub(super) fn set_mark(&mut self, id: Id, mark: M) {
        if let Some(n) = self.node_mut(id) {
            n.mark = mark;
        }
    }

    /// The neighbour on the hot side, or [`NIL`].
    #[inline]
    pub(super) fn hotter(&self, id: Id) -> Id {
        self.node(id).map_or(NIL, |n| n.next)
    }

    /// Heap bytes held.
    pub(super) fn memory_bytes(&self) -> usize {
        self.chunks.capacity() * size_of::<Option<Chunk<M>>>() + self.allocated * CHUNK * size_of::<Node<M>>()
    }
}

impl<M> fmt::Debug for Arena<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Arena")
            .field("chunks", &self.allocated)
            .finish_non_exhaustive()
    }
}

/// A list from its cold end (evicted first) to its hot end.
#[derive(Debug, Clone, Copy)]
pub(super) struct List {
    cold: Id,
    hot: Id,
    len: usize,
    weight: u64,
}

impl List {
    pub(super) const fn new() -> Self {
        Self {
            cold: NIL,
            hot: NIL,
            len: 0,
            weight: 0,
        }
    }

    /// The coldest id, or [`NIL`].
    #[inline]
    pub(super) const fn cold(&self) -> Id {
        self.cold
    }

    #[inline]
    pub(super) const fn len(&self) -> usize {
        self.len
    }

    #[inline]
    pub(super) const fn weight(&self) -> u64 {
        self.weight
    }

    /// Links `id` in at the hot end; false, and nothing done, if it is on a list already or no valid id.
    pub(super) fn push_hot<M: Copy + Default>(
        &mut self,
        arena: &mut Arena<M>,
        id: Id,
        weight: u32,
        mark: M,
    ) -> bool {
        let Some(n) = arena.vacant(id) else { return false };
        *n = Node {
            prev: self.hot,
            next: NIL,
            weight,
            mark,
        };
        match arena.node_mut(self.hot) {
            Some(last) => last.next = id,
            None => self.cold = id,
        }
        self.hot = id;
        self.count(weight);
        true
    }

    /// Links `id` in at the cold end; false, and nothing done, if it is on a list already or no valid id.
    pub(super) fn push_cold<M: Copy + Default>(
        &mut self,
        arena: &mut Arena<M>,
        id: Id,
        weight: u32,
        mark: M,
    ) -> bool {
        let Some(n) = arena.vacant(id) else { return false };
        *n = Node {
            prev: NIL,
            next: self.cold,
            weight,
            mark,
        };
        match arena.node_mut(self.cold) {
            Some(first) => first.prev = id,
            None => self.hot = id,
        }
        self.cold = id;
        self.count(weight);
        true
    }

    const fn count(&mut self, weight: u32) {
        self.len += 1;
        self.weight = self.weight.saturating_add(weight as u64);
    }

    /// Takes `id`, which must be on this list if on any, off it.
    pub(super) fn unlink<M: Copy + Default>(&mut self, arena: &mut Arena<M>, id: Id) -> Option<(u32, M)> {
        let n = arena.node_mut(id)?;
        let Node {
            prev,
            next,
            weight,
            mark,
        } = *n;
        n.prev = ABSENT;
        match arena.node_mut(prev) {
            Some(p) => p.next = next,
            None => self.cold = next,
        }
        match arena.node_mut(next) {
            Some(q) => q.prev = prev,
            None => self.hot = prev,
        }
        self.len = self.len.saturating_sub(1);
        self.weight = self.weight.saturating_sub(u64::from(weight));
        Some((weight, mark))
    }

    /// Moves `id`, which must be on this list if on any, to the hot end.
    #[inline]
    pub(super) fn refresh<M: Copy + Default>(&mut self, arena: &mut Arena<M>, id: Id) {
        if id != self.hot
            && let Some((weight, mark)) = self.unlink(arena, id)
        {
            self.push_hot(arena, id, weight, mark);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn order(list: &List, arena: &Arena<()>) -> Vec<Id> {
        std::iter::successors(Some(list.cold()), |&id| Some(arena.hotter(id)))
            .take_while(|&i| i != NIL)
            .collect()
    }

    #[test]
    fn nodes_are_as_small_as_promised() {
        assert_eq!(size_of::<Node<()>>(), 12);
        assert_eq!(size_of::<Node<u32>>(), 16);
    }

    #[test]
    fn pushing_refreshing_and_unlinking_keep_the_order_and_the_sums() {
        let (mut a, mut l) = (Arena::new(), List::new());
        for id in [5, 3000, 7] {
            assert!(l.push_hot(&mut a, id, 2, ()));
            assert!(!l.push_hot(&mut a, id, 2, ()), "listed twice");
        }
        assert!(l.push_cold(&mut a, 1, 4, ()));
        assert_eq!(order(&l, &a), [1, 5, 3000, 7]);
        l.refresh(&mut a, 5);
        l.refresh(&mut a, 1);
        assert_eq!(order(&l, &a), [3000, 7, 5, 1]);
        assert_eq!((l.len(), l.weight()), (4, 10));
        for id in [7, 3000, 1, 5] {
            assert!(l.unlink(&mut a, id).is_some());
            assert!(l.unlink(&mut a, id).is_none());
        }
        assert_eq!((l.len(), l.weight(), l.cold()), (0, 0, NIL));
    }

    #[test]
    fn reserved_and_unknown_ids_are_refused_and_growth_is_by_chunk() {
        let (mut a, mut l) = (Arena::<()>::new(), List::new());
        assert!(!l.push_hot(&mut a, NIL, 1, ()) && !l.push_cold(&mut a, ABSENT, 1, ()));
        assert!(l.unlink(&mut a, 9).is_none() && a.weight(NIL).is_none());
        for id in 0..4 * CHUNK as Id {
            l.push_hot(&mut a, id, 1, ());
        }
        assert!(a.memory_bytes() <= 4 * CHUNK * 12 + 8 * size_of::<Option<Chunk<()>>>());
    }
}
