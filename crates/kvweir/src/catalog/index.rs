//! The in-memory index of a root: a fingerprint finds a 32-byte entry through one of 1024 small hash tables of
//! ids ([`Table`]), so that no growth ever rehashes more than a thousandth of the blocks while the scheduler waits
//! (I8). Full keys are not kept (files name them, trailers prove them) unless events need them.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::{
    body::{Body, MAX_SLOT_STORES, Rank},
    space::SpaceId,
    table::Table,
};
use crate::{
    block::{Fingerprint, Key},
    evict::Id,
    io::{PAGE, PageBuffer, round_up},
};

/// Bytes of an entry.
const ENTRY: usize = 32;
/// Entries in one chunk of the arena: what a huge page holds.
const CHUNK: usize = (2 << 20) / ENTRY;
/// Hash tables that share the load.
const TABLES: usize = 1024;
/// Lookups whose memory accesses overlap.
pub(crate) const BATCH: usize = 64;

/// The life of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// On the free list.
    Free = 0,
    /// Reserved; it is being written.
    Writing = 1,
    /// Resident and loadable.
    Ready = 2,
    /// It is being removed.
    Evicting = 3,
    /// Out of the table; kept until the last pin on it is released.
    Dead = 4,
    /// What cannot be a block of its namespace (wrong size): counted, evicted first, never a hit.
    Bad = 5,
    /// Another live process's block of a namespace served here: loadable, but its owner's to count and to evict.
    Peer = 6,
    /// Not a block but what the tier keeps blocks in: counted, no hit, under no policy.
    Aside = 7,
}

impl State {
    /// Whether a block can be loaded.
    pub(crate) fn is_loadable(self) -> bool {
        matches!(self, Self::Ready | Self::Peer)
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
struct Entry {
    fp: [u64; 2],
    /// 1 bit mark, 4 bits rank, 3 bits state, 24 bits pins.
    meta: u32,
    /// What the tier keeps there.
    words: [u32; 3],
}

impl Entry {
    #[inline]
    fn read(bytes: &[u8; ENTRY]) -> Self {
        let word = |at: usize| {
            let bytes = bytes.get(at..).and_then(<[u8]>::first_chunk::<4>);
            bytes.map_or(0, |b| u32::from_le_bytes(*b))
        };
        let long = |at: usize| u64::from(word(at + 4)) << 32 | u64::from(word(at));
        Self {
            fp: [long(0), long(8)],
            meta: word(20),
            words: [word(16), word(24), word(28)],
        }
    }

    #[inline]
    fn write(&self, to: &mut [u8; ENTRY]) {
        let [low, high] = self.fp;
        let long = u128::from(high) << 64 | u128::from(low);
        let [one, two, three] = self.words;
        let rest = [one, self.meta, two, three];
        let (first, second) = to.split_at_mut(16);
        first.copy_from_slice(&long.to_le_bytes());
        for (to, word) in second.chunks_exact_mut(4).zip(rest) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }
}

const PINS: u32 = (1 << 24) - 1;
const STATE_SHIFT: u32 = 24;
const RANK_SHIFT: u32 = 27;
const MARK: u32 = 1 << 31;
/// 0: [`Rank::Whole`]; else one more than the number of a store of slots.
const RANK: u32 = (MAX_SLOT_STORES as u32) << RANK_SHIFT;
const FLAGS: u32 = MARK | RANK;

impl Entry {
    fn body(&self) -> Body {
        Body {
            words: self.words,
            rank: self.rank(),
            mark: self.meta & MARK != 0,
        }
    }

    fn rank(&self) -> Rank {
        match (self.meta & RANK) >> RANK_SHIFT {
            0 => Rank::Whole,
            n => Rank::Slot((n - 1) as u8),
        }
    }

    fn set_body(&mut self, body: Body) {
        self.words = body.words;
        let rank = match body.rank {
            Rank::Whole => 0,
            Rank::Slot(n) => (u32::from(n) + 1) << RANK_SHIFT & RANK,
        };
        let mark = if body.mark { MARK } else { 0 };
        self.meta = self.meta & !FLAGS | rank | mark;
    }
}

/// The index. All calls are O(1).
#[derive(Debug)]
pub(crate) struct Index {
    tables: Vec<Table>,
    chunks: Vec<PageBuffer>,
    free: Vec<u32>,
    used: u32,
    keys: Option<HashMap<u32, (SpaceId, Key), FixedState>>,
}

impl Index {
    /// An empty index; with `keep_keys` it also remembers full keys.
    pub(crate) fn new(keep_keys: bool) -> Self {
        Self {
            tables: (0..TABLES).map(|_| Table::default()).collect(),
            chunks: Vec::new(),
            free: Vec::new(),
            used: 0,
            keys: keep_keys.then(HashMap::default),
        }
    }

    #[inline]
    fn entry(&self, id: Id) -> Option<Entry> {
        entry_of(&self.chunks, id)
    }

    /// Changes an entry; returns what `change` does.
    #[inline]
    fn update<R>(&mut self, id: Id, change: impl FnOnce(&mut Entry) -> R) -> Option<R> {
        let chunk = self.chunks.get_mut(id as usize / CHUNK)?;
        let bytes = chunk.as_mut_slice().get_mut(id as usize % CHUNK * ENTRY..)?;
        let bytes = bytes.first_chunk_mut::<ENTRY>()?;
        let mut e = Entry::read(bytes);
        let r = change(&mut e);
        e.write(bytes);
        Some(r)
    }

    /// Entries that are found by fingerprint.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.tables.iter().map(Table::len).sum()
    }

    /// The entry of `fp`.
    #[inline]
    pub(crate) fn find(&self, fp: Fingerprint) -> Option<Id> {
        let words = split(fp);
        self.tables
            .get(table_of(fp))?
            .find(fp.hash64(), |id| self.entry(id).is_some_and(|e| e.fp == words))
    }

    /// The entries of `fps` that can be loaded, into `out`. Two rounds of memory accesses that do not wait
    /// for each other: one over the tables, one over the entries.
    pub(crate) fn find_ready(&self, fps: &[Fingerprint], out: &mut [Option<Id>]) {
        let mut guesses = [Id::MAX; BATCH];
        for (fps, out) in fps.chunks(BATCH).zip(out.chunks_mut(BATCH)) {
            for (guess, &fp) in guesses.iter_mut().zip(fps) {
                *guess = self
                    .tables
                    .get(table_of(fp))
                    .map_or(Id::MAX, |t| t.guess(fp.hash64()));
            }
            for ((out, &guess), &fp) in out.iter_mut().zip(&guesses).zip(fps) {
                let known = match self.entry(guess) {
                    Some(e) if e.fp == split(fp) => Some(guess),
                    _ => self.find(fp),
                };
                *out = known.filter(|&id| self.state(id).is_loadable());
            }
        }
    }

    /// How many entries there ever were at one time: their ids are below that.
    pub(crate) fn ids(&self) -> Id {
        self.used
    }

    /// Makes room for `n` entries in all.
    pub(crate) fn reserve(&mut self, n: usize) {
        let chunks = &self.chunks;
        let rehash = |id: u32| entry_of(chunks, id).map_or(0, |e| e.fp[0]);
        // what a table gets of uniform hashes, and a little: the few that get more grow
        let each = n / TABLES + n / TABLES / 16;
        self.tables.iter_mut().for_each(|t| t.reserve(each, rehash));
    }

    /// Brings the entries of `ids` into the cache, by accesses that do not wait for each other.
    pub(crate) fn warm(&self, ids: &[Id]) {
        let metas = ids.iter().map(|&id| self.entry(id).map_or(0, |e| e.meta));
        std::hint::black_box(metas.fold(0, |all, meta| all ^ meta));
    }

    /// The same for the places of `fps` in the tables: asked before adding many.
    pub(crate) fn warm_places(&self, fps: impl Iterator<Item = Fingerprint>) {
        let table = |fp: Fingerprint| self.tables.get(table_of(fp));
        let known = fps.filter(|&fp| table(fp).is_some_and(|t| t.guess(fp.hash64()) != Id::MAX));
        std::hint::black_box(known.count());
    }

    /// Adds an entry under `fp`, which must not be there. `None` when 2^32 entries exist or memory is short.
    pub(crate) fn insert(&mut self, fp: Fingerprint, state: State, body: Body) -> Option<Id> {
        let id = match self.free.pop() {
            Some(id) => id,
            None => {
                let id = self.used;
                if id == u32::MAX {
                    return None;
                }
                if id as usize / CHUNK >= self.chunks.len() {
                    // a small tier should not take a huge page
                    let bytes = CHUNK * ENTRY;
                    let chunk = if self.chunks.is_empty() {
                        PageBuffer::new(bytes)
                    } else {
                        PageBuffer::huge(bytes)
                    };
                    self.chunks.push(chunk.ok()?);
                }
                self.used += 1;
                id
            }
        };
        let mut new = Entry {
            fp: split(fp),
            meta: (state as u32) << STATE_SHIFT,
            words: [0; 3],
        };
        new.set_body(body);
        self.update(id, |e| *e = new)?;
        let chunks = &self.chunks;
        let rehash = |id: u32| entry_of(chunks, id).map_or(0, |e| e.fp[0]);
        self.tables.get_mut(table_of(fp))?.insert(fp.hash64(), id, rehash);
        Some(id)
    }

    /// Takes an entry out of the table. If it is pinned it stays as [`State::Dead`] until the last pin goes.
    pub(crate) fn remove(&mut self, id: Id) {
        let fp = self.fingerprint(id);
        if let Some(t) = self.tables.get_mut(table_of(fp)) {
            t.remove(fp.hash64(), id);
        }
        if let Some(keys) = &mut self.keys {
            keys.remove(&id);
        }
        if self.pins(id) > 0 {
            self.set_state(id, State::Dead);
        } else {
            self.release(id);
        }
    }

    fn release(&mut self, id: Id) {
        self.set_state(id, State::Free);
        self.free.push(id);
    }

    pub(crate) fn fingerprint(&self, id: Id) -> Fingerprint {
        self.entry(id).map_or(Fingerprint(0), |e| {
            let [low, high] = e.fp;
            Fingerprint(u128::from(high) << 64 | u128::from(low))
        })
    }

    pub(crate) fn state(&self, id: Id) -> State {
        match self.entry(id).map_or(0, |e| (e.meta & !FLAGS) >> STATE_SHIFT) {
            1 => State::Writing,
            2 => State::Ready,
            3 => State::Evicting,
            4 => State::Dead,
            5 => State::Bad,
            6 => State::Peer,
            7 => State::Aside,
            _ => State::Free,
        }
    }

    pub(crate) fn set_state(&mut self, id: Id, state: State) {
        self.update(id, |e| {
            e.meta = (state as u32) << STATE_SHIFT | e.meta & (PINS | FLAGS);
        });
    }

    /// What the tier keeps of an entry.
    #[inline]
    pub(crate) fn body(&self, id: Id) -> Body {
        self.entry(id).map_or(Body::default(), |e| e.body())
    }

    /// Which policy ranks an entry.
    #[inline]
    pub(crate) fn rank(&self, id: Id) -> Rank {
        self.entry(id).map_or(Rank::Whole, |e| e.rank())
    }

    pub(crate) fn set_body(&mut self, id: Id, body: Body) {
        self.update(id, |e| e.set_body(body));
    }

    pub(crate) fn pins(&self, id: Id) -> u32 {
        self.entry(id).map_or(0, |e| e.meta & PINS)
    }

    /// Adds a pin; returns whether it is the first.
    pub(crate) fn pin(&mut self, id: Id) -> bool {
        let first = self.update(id, |e| {
            debug_assert!(e.meta & PINS < PINS, "2^24 pins on one block");
            e.meta += 1;
            e.meta & PINS == 1
        });
        first.unwrap_or(false)
    }

    /// Takes a pin away; returns whether it was the last. A dead entry is freed with its last pin.
    pub(crate) fn unpin(&mut self, id: Id) -> bool {
        let last = self.update(id, |e| {
            debug_assert!(e.meta & PINS > 0, "a pin was released twice");
            let last = e.meta & PINS == 1;
            e.meta -= u32::from(e.meta & PINS > 0);
            last
        });
        let last = last.unwrap_or(false);
        if last && self.state(id) == State::Dead {
            self.release(id);
        }
        last
    }

    /// Notes the key of an entry, and the space that serves it.
    pub(crate) fn set_key(&mut self, id: Id, space: SpaceId, key: &Key) {
        if let Some(keys) = &mut self.keys {
            keys.insert(id, (space, key.clone()));
        }
    }

    pub(crate) fn key(&self, id: Id) -> Option<&(SpaceId, Key)> {
        self.keys.as_ref()?.get(&id)
    }

    /// Heap bytes held, and those of them that hold full keys.
    pub(crate) fn memory_bytes(&self) -> (usize, usize) {
        let tables: usize = self.tables.iter().map(Table::memory_bytes).sum();
        // the pages of the first chunk come as they are used
        let entries = match self.chunks.len() {
            0 | 1 => round_up(u64::from(self.used) * ENTRY as u64, PAGE as u64) as usize,
            n => n * CHUNK * ENTRY,
        };
        let arena = entries + self.free.capacity() * 4;
        let keys = self
            .keys
            .as_ref()
            .map_or(0, |k| k.capacity() * (size_of::<(u32, (SpaceId, Key))>() + 1));
        (tables + TABLES * size_of::<Table>() + arena + keys, keys)
    }
}

#[inline]
fn entry_of(chunks: &[PageBuffer], id: Id) -> Option<Entry> {
    let chunk = chunks.get(id as usize / CHUNK)?.as_slice();
    let bytes = chunk.get(id as usize % CHUNK * ENTRY..)?;
    bytes.first_chunk().map(Entry::read)
}

#[inline]
fn table_of(fp: Fingerprint) -> usize {
    (fp.high64() >> 54) as usize
}

#[inline]
fn split(fp: Fingerprint) -> [u64; 2] {
    [fp.hash64(), fp.high64()]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fp(n: u64) -> Fingerprint {
        Fingerprint::of(&n.to_le_bytes(), 0)
    }

    fn body(n: u32) -> Body {
        Body {
            words: [n, n + 1, n + 2],
            rank: if n.is_multiple_of(2) {
                Rank::Whole
            } else {
                Rank::Slot((n % 15) as u8)
            },
            mark: n.is_multiple_of(3),
        }
    }

    #[test]
    fn an_entry_reads_back() {
        let e = Entry {
            fp: [1 << 63 | 2, 3 << 60 | 4],
            meta: 6 << 28,
            words: [5 << 28, 7 << 28, 8 << 28],
        };
        let mut bytes = [0; ENTRY];
        e.write(&mut bytes);
        assert_eq!(Entry::read(&bytes), e);
    }

    #[test]
    fn what_is_inserted_is_found_until_removed() {
        let mut ix = Index::new(true);
        let ids: Vec<Id> = (0..5000)
            .map(|n| ix.insert(fp(n), State::Ready, body(n as u32)).unwrap())
            .collect();
        for n in 0..5000u64 {
            let id = ix.find(fp(n)).unwrap();
            assert_eq!(id, ids[n as usize]);
            assert_eq!((ix.body(id), ix.fingerprint(id)), (body(n as u32), fp(n)));
        }
        (0..5000).step_by(2).for_each(|n| ix.remove(ids[n]));
        assert_eq!(ix.len(), 2500);
        assert!(ix.find(fp(0)).is_none() && ix.find(fp(1)).is_some());
        let again = ix.insert(fp(0), State::Writing, Body::default()).unwrap();
        assert!(ids.contains(&again), "ids are reused");
    }

    #[test]
    fn a_body_outlives_states_and_pins_and_not_its_entry() {
        let mut ix = Index::new(false);
        let id = ix.insert(fp(1), State::Writing, Body::default()).unwrap();
        ix.set_body(id, body(3));
        ix.set_state(id, State::Ready);
        assert!(ix.pin(id) && ix.pins(id) == 1 && ix.unpin(id));
        assert_eq!(
            (ix.body(id), ix.rank(id), ix.state(id)),
            (body(3), Rank::Slot(3), State::Ready)
        );
        ix.remove(id);
        let next = ix.insert(fp(2), State::Ready, body(2)).unwrap();
        assert_eq!((next, ix.body(next)), (id, body(2)), "the entry is used again");
    }

    #[test]
    fn a_pinned_entry_outlives_its_removal_and_is_not_confused_with_its_successor() {
        let mut ix = Index::new(false);
        let old = ix.insert(fp(1), State::Ready, body(0)).unwrap();
        assert!(ix.pin(old) && !ix.pin(old));
        ix.remove(old);
        assert_eq!(ix.state(old), State::Dead);
        let new = ix.insert(fp(1), State::Ready, body(0)).unwrap();
        assert_ne!(new, old);
        assert!(!ix.unpin(old) && ix.unpin(old));
        assert_eq!((ix.state(old), ix.pins(new)), (State::Free, 0));
    }
}
