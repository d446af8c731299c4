//! The in-memory index of a root: a fingerprint finds a 32-byte entry through one of 1024 small hash tables of
//! ids ([`Table`]), so that no growth ever rehashes more than a thousandth of the blocks while the scheduler waits (I8).
//! Full keys are not kept (files name them, trailers prove them) unless events need them.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::table::Table;
use crate::{
    block::{Fingerprint, Key},
    evict::Id,
    io::{PAGE, PageBuffer, round_up},
    root::names::{Fan, Shelf},
};

/// Bytes of an entry.
const ENTRY: usize = 32;
/// Entries in one chunk of the arena: what a huge page holds.
const CHUNK: usize = (2 << 20) / ENTRY;
/// Hash tables that share the load.
const TABLES: usize = 1024;
/// Lookups whose memory accesses overlap.
pub(crate) const BATCH: usize = 64;
/// Bytes in one unit of [`Entry`] cost.
pub(crate) const COST_UNIT: u64 = 512;
/// Shelves that an entry can name.
const MAX_SHELVES: usize = 1 << 12;

/// The life of an entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub(crate) enum State {
    /// On the free list.
    Free = 0,
    /// Reserved; its file is being written.
    Writing = 1,
    /// Resident and loadable.
    Ready = 2,
    /// Its file is being removed.
    Evicting = 3,
    /// Out of the table; kept until the last pin on it is released.
    Dead = 4,
    /// A file that cannot be a block of its namespace (wrong size): counted, evicted first, never a hit.
    Bad = 5,
    /// Another live process's block of our namespace: loadable, but its owner's to count and to evict.
    Peer = 6,
    /// Not a block but an extent that this tier packs blocks into: counted, no hit, not under a policy.
    Extent = 7,
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
    /// 12 bits shelf, 20 bits fan; of a packed block its slot.
    place: u32,
    /// 1 bit "has a trailer", 1 bit "is packed", 6 bits state, 24 bits pins.
    meta: u32,
    /// Allocated bytes in units of 512; of a packed block the low half of its tag.
    cost: u32,
    /// Seconds since the Unix epoch when it was written; of a packed block the high half of its tag.
    written_at: u32,
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
            place: word(16),
            meta: word(20),
            cost: word(24),
            written_at: word(28),
        }
    }

    #[inline]
    fn write(&self, to: &mut [u8; ENTRY]) {
        let [low, high] = self.fp;
        let long = u128::from(high) << 64 | u128::from(low);
        let rest = [self.place, self.meta, self.cost, self.written_at];
        let (first, second) = to.split_at_mut(16);
        first.copy_from_slice(&long.to_le_bytes());
        for (to, word) in second.chunks_exact_mut(4).zip(rest) {
            to.copy_from_slice(&word.to_le_bytes());
        }
    }
}

const PINS: u32 = (1 << 24) - 1;
const TRAILER: u32 = 1 << 31;
const PACKED: u32 = 1 << 30;
const FLAGS: u32 = TRAILER | PACKED;

/// The index. All calls are O(1).
#[derive(Debug)]
pub(crate) struct Index {
    tables: Vec<Table>,
    chunks: Vec<PageBuffer>,
    free: Vec<u32>,
    used: u32,
    shelves: Vec<Shelf>,
    shelf_ids: HashMap<Shelf, u16, FixedState>,
    keys: Option<HashMap<u32, Key, FixedState>>,
}

impl Index {
    /// An empty index; with `keep_keys` it also remembers full keys.
    pub(crate) fn new(keep_keys: bool) -> Self {
        Self {
            tables: (0..TABLES).map(|_| Table::default()).collect(),
            chunks: Vec::new(),
            free: Vec::new(),
            used: 0,
            shelves: Vec::new(),
            shelf_ids: HashMap::default(),
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

    /// Adds an entry for a block that will be packed, as [`insert`](Self::insert).
    pub(crate) fn insert_packed(&mut self, fp: Fingerprint, state: State, slot: u32, tag: u64) -> Option<Id> {
        let id = self.insert(fp, 0, Fan(0), state, 0)?;
        self.set_packed(id, slot, tag);
        Some(id)
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
    pub(crate) fn insert(
        &mut self,
        fp: Fingerprint,
        shelf: u16,
        fan: Fan,
        state: State,
        cost: u64,
    ) -> Option<Id> {
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
        let new = Entry {
            fp: split(fp),
            place: u32::from(shelf) << 20 | fan.0 & 0xf_ffff,
            meta: (state as u32) << 24,
            cost: units(cost),
            written_at: 0,
        };
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
        match self.entry(id).map_or(0, |e| (e.meta & !FLAGS) >> 24) {
            1 => State::Writing,
            2 => State::Ready,
            3 => State::Evicting,
            4 => State::Dead,
            5 => State::Bad,
            6 => State::Peer,
            7 => State::Extent,
            _ => State::Free,
        }
    }

    pub(crate) fn set_state(&mut self, id: Id, state: State) {
        self.update(id, |e| {
            e.meta = (state as u32) << 24 | e.meta & (PINS | FLAGS);
        });
    }

    /// Whether the entry's file is known to end in a trailer page: losing it is then proof of damage.
    pub(crate) fn has_trailer(&self, id: Id) -> bool {
        self.entry(id).is_some_and(|e| e.meta & TRAILER != 0)
    }

    pub(crate) fn set_has_trailer(&mut self, id: Id, yes: bool) {
        self.update(id, |e| {
            e.meta = if yes { e.meta | TRAILER } else { e.meta & !TRAILER };
        });
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

    /// Allocated bytes of the entry's file.
    pub(crate) fn cost(&self, id: Id) -> u64 {
        self.entry(id)
            .filter(|e| e.meta & PACKED == 0)
            .map_or(0, |e| u64::from(e.cost) * COST_UNIT)
    }

    /// Makes a block that lies in `slot`, with `tag` to tell its bytes by, out of an entry.
    pub(crate) fn set_packed(&mut self, id: Id, slot: u32, tag: u64) {
        self.update(id, |e| {
            e.meta |= PACKED;
            e.place = slot;
            e.cost = tag as u32;
            e.written_at = (tag >> 32) as u32;
        });
    }

    /// Slot and tag of a packed block; `None` for one with a file of its own.
    pub(crate) fn packed(&self, id: Id) -> Option<(u32, u64)> {
        let e = self.entry(id).filter(|e| e.meta & PACKED != 0)?;
        Some((e.place, u64::from(e.written_at) << 32 | u64::from(e.cost)))
    }

    pub(crate) fn set_cost(&mut self, id: Id, bytes: u64) {
        self.update(id, |e| e.cost = units(bytes));
    }

    pub(crate) fn written_at(&self, id: Id) -> u64 {
        self.entry(id)
            .filter(|e| e.meta & PACKED == 0)
            .map_or(0, |e| u64::from(e.written_at))
    }

    pub(crate) fn set_written_at(&mut self, id: Id, unix_seconds: u64) {
        self.update(id, |e| {
            e.written_at = u32::try_from(unix_seconds).unwrap_or(u32::MAX);
        });
    }

    /// Whose an entry of [`State::Peer`] is, as [`set_owner`](Self::set_owner) said. In the place of the time when it was
    /// written, which only its owner needs.
    pub(crate) fn owner(&self, id: Id) -> u32 {
        self.entry(id).map_or(0, |e| e.written_at)
    }

    pub(crate) fn set_owner(&mut self, id: Id, owner: u32) {
        self.update(id, |e| e.written_at = owner);
    }

    /// Entries are numbered below this.
    pub(crate) fn end(&self) -> Id {
        self.used
    }

    /// The number of `shelf`; `None` when 4096 others exist.
    pub(crate) fn shelf_id(&mut self, shelf: Shelf) -> Option<u16> {
        if let Some(&id) = self.shelf_ids.get(&shelf) {
            return Some(id);
        }
        let id = u16::try_from(self.shelves.len())
            .ok()
            .filter(|&n| usize::from(n) < MAX_SHELVES)?;
        self.shelves.push(shelf);
        self.shelf_ids.insert(shelf, id);
        Some(id)
    }

    /// Where the entry's file lies; `None` for a packed block.
    pub(crate) fn place(&self, id: Id) -> Option<(Shelf, Fan)> {
        let e = self.entry(id).filter(|e| e.meta & PACKED == 0)?;
        Some((
            *self.shelves.get((e.place >> 20) as usize)?,
            Fan(e.place & 0xf_ffff),
        ))
    }

    pub(crate) fn set_key(&mut self, id: Id, key: &Key) {
        if let Some(keys) = &mut self.keys {
            keys.insert(id, key.clone());
        }
    }

    pub(crate) fn key(&self, id: Id) -> Option<&Key> {
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
            .map_or(0, |k| k.capacity() * (size_of::<(u32, Key)>() + 1));
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

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(COST_UNIT)).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::names::Leaf;

    fn fp(n: u64) -> Fingerprint {
        Fingerprint::of(&n.to_le_bytes(), 0)
    }

    #[test]
    fn an_entry_reads_back() {
        let e = Entry {
            fp: [1 << 63 | 2, 3 << 60 | 4],
            place: 5 << 28,
            meta: 6 << 28,
            cost: 7 << 28,
            written_at: 8 << 28,
        };
        let mut bytes = [0; ENTRY];
        e.write(&mut bytes);
        assert_eq!(Entry::read(&bytes), e);
    }

    #[test]
    fn what_is_inserted_is_found_until_removed() {
        let mut ix = Index::new(true);
        let shelf = ix
            .shelf_id(Shelf {
                namespace: 0,
                leaf: Leaf::Group(2),
            })
            .unwrap();
        let ids: Vec<Id> = (0..5000)
            .map(|n| {
                ix.insert(fp(n), shelf, Fan(n as u32), State::Ready, n * 700)
                    .unwrap()
            })
            .collect();
        for n in 0..5000u64 {
            let id = ix.find(fp(n)).unwrap();
            assert_eq!(id, ids[n as usize]);
            assert_eq!(ix.cost(id), (n * 700).div_ceil(512) * 512);
            assert_eq!(ix.place(id).unwrap().1, Fan(n as u32));
            assert_eq!(ix.fingerprint(id), fp(n));
        }
        (0..5000).step_by(2).for_each(|n| ix.remove(ids[n]));
        assert_eq!(ix.len(), 2500);
        assert!(ix.find(fp(0)).is_none() && ix.find(fp(1)).is_some());
        let again = ix.insert(fp(0), shelf, Fan(0), State::Writing, 0).unwrap();
        assert!(ids.contains(&again), "ids are reused");
    }

    #[test]
    fn a_packed_block_keeps_slot_and_tag_through_states_and_pins() {
        let mut ix = Index::new(false);
        let id = ix
            .insert_packed(fp(1), State::Writing, u32::MAX, u64::MAX)
            .unwrap();
        ix.set_packed(id, 0xdead_beef, 0x0123_4567_89ab_cdef);
        ix.set_state(id, State::Ready);
        assert!(ix.pin(id) && ix.pins(id) == 1 && ix.unpin(id));
        assert_eq!(ix.packed(id), Some((0xdead_beef, 0x0123_4567_89ab_cdef)));
        assert_eq!((ix.state(id), ix.place(id), ix.cost(id)), (State::Ready, None, 0));
        ix.remove(id);
        let file = ix.insert(fp(2), 0, Fan(0), State::Ready, 4096).unwrap();
        assert_eq!(
            (file, ix.packed(file)),
            (id, None),
            "the entry is used again as a file's"
        );
    }

    #[test]
    fn a_pinned_entry_outlives_its_removal_and_is_not_confused_with_its_successor() {
        let mut ix = Index::new(false);
        let s = ix
            .shelf_id(Shelf {
                namespace: 0,
                leaf: Leaf::Keyed,
            })
            .unwrap();
        let old = ix.insert(fp(1), s, Fan(0), State::Ready, 0).unwrap();
        assert!(ix.pin(old) && !ix.pin(old));
        ix.remove(old);
        assert_eq!(ix.state(old), State::Dead);
        let new = ix.insert(fp(1), s, Fan(0), State::Ready, 0).unwrap();
        assert_ne!(new, old);
        assert!(!ix.unpin(old) && ix.unpin(old));
        assert_eq!((ix.state(old), ix.pins(new)), (State::Free, 0));
    }

    #[test]
    fn shelves_run_out_without_harm() {
        let mut ix = Index::new(false);
        for n in 0..MAX_SHELVES as u32 {
            assert!(
                ix.shelf_id(Shelf {
                    namespace: 0,
                    leaf: Leaf::Group(n)
                })
                .is_some()
            );
        }
        assert!(
            ix.shelf_id(Shelf {
                namespace: 1,
                leaf: Leaf::Keyed
            })
            .is_none()
        );
        assert_eq!(
            ix.shelf_id(Shelf {
                namespace: 0,
                leaf: Leaf::Group(7)
            }),
            Some(7)
        );
    }
}
