//! Index-linked lists. Nodes live in an [`Arena`] of fixed chunks addressed by the owner's ids, so growing allocates
//! one chunk and never copies; a [`List`] is only its two ends and its sums. A node with an empty note has 12 bytes,
//! with a 4-byte note 16. An id is on at most one list of its arena. A node whose cold neighbour is itself is on none
//! but set aside (see `queue.rs`): its hot neighbour is the number of its place.

use std::{alloc::Layout, fmt, marker::PhantomData};

use super::Id;
use crate::io::{PAGE, PageBuffer, round_up};

/// No id: the end of a list.
pub(super) const NIL: Id = Id::MAX;
/// In `prev`: this node is on no list.
const ABSENT: Id = Id::MAX - 1;
/// Bytes of a huge page.
const HUGE: usize = 2 << 20;
/// Nodes of a chunk fill whole huge pages.
const CHUNK_BITS: u32 = 19;
const CHUNK: usize = 1 << CHUNK_BITS;
/// Chunks on ordinary pages, which come as they are used: the part of a huge page that is not would count for something
/// below a million nodes.
const SMALL_CHUNKS: usize = 2;
/// Bytes of a node without its note.
pub(super) const LINKS: usize = 12;

/// What a policy notes about an entry: no more than two words.
pub(super) trait Note: Copy + Default {
    /// Bytes of a node.
    const NODE: usize;

    fn words(self) -> [u32; 2];

    fn of_words(words: [u32; 2]) -> Self;
}

impl Note for () {
    const NODE: usize = LINKS;

    fn words(self) -> [u32; 2] {
        [0; 2]
    }

    fn of_words(_: [u32; 2]) -> Self {}
}

#[derive(Clone, Copy)]
struct Node<M> {
    /// Towards the cold end.
    prev: Id,
    /// Towards the hot end.
    next: Id,
    weight: u32,
    mark: M,
}

impl<M: Note> Node<M> {
    /// Reads a listed node; zeros are one on no list.
    #[inline]
    fn read(bytes: &[u8]) -> Option<Self> {
        let (words, _) = bytes.get(..M::NODE)?.as_chunks::<4>();
        let word = |at: usize| words.get(at).map_or(0, |&b| u32::from_le_bytes(b));
        (word(0) != 0).then(|| Self {
            prev: word(0) ^ ABSENT,
            next: word(1),
            weight: word(2),
            mark: M::of_words([word(3), word(4)]),
        })
    }

    #[inline]
    fn write(&self, to: &mut [u8]) {
        let [low, high] = self.mark.words();
        let words = [self.prev ^ ABSENT, self.next, self.weight, low, high];
        let (to, _) = to.as_chunks_mut::<4>();
        for (to, word) in to.iter_mut().take(M::NODE / 4).zip(words) {
            *to = word.to_le_bytes();
        }
    }
}

/// The nodes of one or more lists. `M` is what a policy notes about an entry.
pub(super) struct Arena<M> {
    chunks: Vec<Option<PageBuffer>>,
    allocated: usize,
    /// All ids ever listed are below.
    top: usize,
    notes: PhantomData<M>,
}

impl<M: Note> Arena<M> {
    pub(super) const fn new() -> Self {
        Self {
            chunks: Vec::new(),
            allocated: 0,
            top: 0,
            notes: PhantomData,
        }
    }

    #[inline]
    fn bytes(&self, id: Id) -> Option<&[u8]> {
        let chunk = self.chunks.get((id >> CHUNK_BITS) as usize)?.as_ref()?;
        let at = id as usize % CHUNK * M::NODE;
        chunk.as_slice().get(at..at + M::NODE)
    }

    #[inline]
    fn bytes_mut(&mut self, id: Id) -> Option<&mut [u8]> {
        let chunk = self.chunks.get_mut((id >> CHUNK_BITS) as usize)?.as_mut()?;
        let at = id as usize % CHUNK * M::NODE;
        chunk.as_mut_slice().get_mut(at..at + M::NODE)
    }

    /// The node of an id that is on a list.
    #[inline]
    fn node(&self, id: Id) -> Option<Node<M>> {
        Node::read(self.bytes(id)?)
    }

    /// Changes the node of an id that is on a list; false if it is on none.
    #[inline]
    fn update(&mut self, id: Id, change: impl FnOnce(&mut Node<M>)) -> bool {
        let Some(bytes) = self.bytes_mut(id) else {
            return false;
        };
        let Some(mut n) = Node::read(bytes) else {
            return false;
        };
        change(&mut n);
        n.write(bytes);
        true
    }

    /// Lists an id that is on no list; false, and nothing done, if it is on one already or no valid id.
    #[inline]
    fn list(&mut self, id: Id, node: Node<M>) -> bool {
        if id >= ABSENT {
            return false;
        }
        if self.bytes(id).is_none() {
            self.allocate(id);
        }
        self.top = self.top.max(id as usize + 1);
        let Some(bytes) = self.bytes_mut(id) else {
            return false;
        };
        let is_free = Node::<M>::read(bytes).is_none();
        if is_free {
            node.write(bytes);
        }
        is_free
    }

    /// Makes the chunk of `id`.
    #[cold]
    fn allocate(&mut self, id: Id) {
        let at = (id >> CHUNK_BITS) as usize;
        if at >= self.chunks.len() {
            self.chunks.resize_with(at + 1, || None);
        }
        if let Some(chunk) = self.chunks.get_mut(at) {
            *chunk = Some(map(CHUNK * M::NODE, at >= SMALL_CHUNKS));
            self.allocated += 1;
        }
    }

    /// Brings the nodes of `ids` into the cache, by accesses that do not wait for each other.
    pub(super) fn warm(&self, ids: &[Id]) {
        let links = ids
            .iter()
            .filter_map(|&id| self.node(id))
            .map(|n| n.prev ^ n.next);
        std::hint::black_box(links.fold(0, |all, link| all ^ link));
    }

    /// The same for the neighbours of `ids`, which are in the cache themselves.
    pub(super) fn warm_neighbours(&self, ids: &[Id]) {
        let ends = ids
            .iter()
            .filter_map(|&id| self.node(id))
            .flat_map(|n| [n.prev, n.next]);
        let links = ends.filter_map(|id| self.node(id)).map(|n| n.prev ^ n.next);
        std::hint::black_box(links.fold(0, |all, link| all ^ link));
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
        self.update(id, |n| n.mark = mark);
    }

    /// The neighbour on the hot side, or [`NIL`].
    #[inline]
    pub(super) fn hotter(&self, id: Id) -> Id {
        self.node(id).map_or(NIL, |n| n.next)
    }

    /// The place of an id that is set aside.
    #[inline]
    pub(super) fn place(&self, id: Id) -> Option<usize> {
        let node = self.node(id).filter(|n| n.prev == id)?;
        Some(node.next as usize)
    }

    /// Gives an id that is set aside another place.
    pub(super) fn set_place(&mut self, id: Id, place: u32) {
        self.update(id, |n| n.next = place);
    }

    /// Sets an id aside that is on no list; false, and nothing done, if it is or is no valid id.
    pub(super) fn list_aside(&mut self, id: Id, place: u32, weight: u32, mark: M) -> bool {
        self.list(
            id,
            Node {
                prev: id,
                next: place,
                weight,
                mark,
            },
        )
    }

    /// Forgets an id that is set aside.
    pub(super) fn unlist(&mut self, id: Id) -> Option<(u32, M)> {
        let node = self.node(id)?;
        self.update(id, |n| n.prev = ABSENT);
        Some((node.weight, node.mark))
    }

    /// Heap bytes held: the pages of a chunk come as they are used.
    pub(super) fn memory_bytes(&self) -> usize {
        let unit = if self.chunks.len() > SMALL_CHUNKS {
            HUGE
        } else {
            PAGE
        };
        let nodes = self.top.min(self.allocated * CHUNK);
        let used = round_up((nodes * M::NODE) as u64, unit as u64);
        self.chunks.capacity() * size_of::<Option<PageBuffer>>() + used as usize
    }
}

impl<M: Note> Clone for Arena<M> {
    fn clone(&self) -> Self {
        let copy = |(at, from): (usize, &Option<PageBuffer>)| {
            from.as_ref().map(|from| {
                let mut to = map(CHUNK * M::NODE, at >= SMALL_CHUNKS);
                let nodes = self.top.saturating_sub(at * CHUNK).min(CHUNK) * M::NODE;
                let (to_used, from) = (to.as_mut_slice().get_mut(..nodes), from.as_slice().get(..nodes));
                if let (Some(to), Some(from)) = (to_used, from) {
                    to.copy_from_slice(from);
                }
                to
            })
        };
        Self {
            chunks: self.chunks.iter().enumerate().map(copy).collect(),
            allocated: self.allocated,
            top: self.top,
            notes: PhantomData,
        }
    }
}

/// Memory of a chunk, or the end as of any allocation that fails: an entry that no policy knows would never go.
fn map(bytes: usize, huge: bool) -> PageBuffer {
    let made = if huge {
        PageBuffer::huge(bytes)
    } else {
        PageBuffer::new(bytes)
    };
    match (made, Layout::from_size_align(bytes, PAGE)) {
        (Ok(chunk), _) => chunk,
        (_, Ok(layout)) => std::alloc::handle_alloc_error(layout),
        _ => std::process::abort(),
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
    pub(super) fn push_hot<M: Note>(&mut self, arena: &mut Arena<M>, id: Id, weight: u32, mark: M) -> bool {
        let node = Node {
            prev: self.hot,
            next: NIL,
            weight,
            mark,
        };
        if !arena.list(id, node) {
            return false;
        }
        if !arena.update(self.hot, |last| last.next = id) {
            self.cold = id;
        }
        self.hot = id;
        self.count(weight);
        true
    }

    /// Links `id` in at the cold end; false, and nothing done, if it is on a list already or no valid id.
    pub(super) fn push_cold<M: Note>(&mut self, arena: &mut Arena<M>, id: Id, weight: u32, mark: M) -> bool {
        let node = Node {
            prev: NIL,
            next: self.cold,
            weight,
            mark,
        };
        if !arena.list(id, node) {
            return false;
        }
        if !arena.update(self.cold, |first| first.prev = id) {
            self.hot = id;
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
    pub(super) fn unlink<M: Note>(&mut self, arena: &mut Arena<M>, id: Id) -> Option<(u32, M)> {
        let Node {
            prev,
            next,
            weight,
            mark,
        } = arena.node(id)?;
        arena.update(id, |n| n.prev = ABSENT);
        if !arena.update(prev, |p| p.next = next) {
            self.cold = next;
        }
        if !arena.update(next, |q| q.prev = prev) {
            self.hot = prev;
        }
        self.len = self.len.saturating_sub(1);
        self.weight = self.weight.saturating_sub(u64::from(weight));
        Some((weight, mark))
    }

    /// Moves `id`, which must be on this list if on any, to the hot end.
    #[inline]
    pub(super) fn refresh<M: Note>(&mut self, arena: &mut Arena<M>, id: Id) {
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
    use crate::evict::{RequestTag, mark::Mark};

    fn order(list: &List, arena: &Arena<()>) -> Vec<Id> {
        std::iter::successors(Some(list.cold()), |&id| Some(arena.hotter(id)))
            .take_while(|&i| i != NIL)
            .collect()
    }

    #[test]
    fn nodes_are_as_small_as_promised_and_read_back() {
        assert_eq!((<()>::NODE, Mark::NODE), (12, 16));
        let mark = Mark::new(true, RequestTag(7)).with_freq(2);
        let mut bytes = [0; 16];
        assert!(Node::<Mark>::read(&bytes).is_none(), "zeros are on no list");
        for prev in [NIL, 0, 9, ABSENT - 1] {
            let node = Node {
                prev,
                next: 5,
                weight: 6,
                mark,
            };
            node.write(&mut bytes);
            let n = Node::<Mark>::read(&bytes).unwrap();
            assert_eq!((n.prev, n.next, n.weight, n.mark), (prev, 5, 6, mark));
        }
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
        for id in (0..2 * CHUNK as Id).step_by(9) {
            assert!(l.push_hot(&mut a, id, 1, ()));
        }
        assert!((CHUNK * 12).is_multiple_of(HUGE));
        assert!(a.memory_bytes() <= 2 * CHUNK * 12 + 8 * size_of::<Option<PageBuffer>>());
        let copy = a.clone();
        assert_eq!(order(&l, &copy), order(&l, &a));
    }
}
