//! A hash table of entry ids made for memory that is far away: a bucket is one cache line of ten ids with 16 bits
//! of each fingerprint, so a lookup touches one line here and one entry. A full bucket passes on to its neighbour
//! and counts what it passed on. Grows by a quarter, not to the double: bytes a block count.

use crate::evict::Id;

/// Ids in one bucket.
const SLOTS: usize = 10;
/// Buckets whose entries are read together when a table grows.
const REHASHED: usize = 4;
/// Buckets may be filled to four fifths on average.
const MAX_LOAD: (usize, usize) = (4, 5);

#[derive(Debug, Clone, Copy, Default)]
#[repr(C, align(64))]
struct Bucket {
    ids: [Id; SLOTS],
    tags: [u16; SLOTS],
    /// Which slots hold an id.
    used: u16,
    /// Ids that found this bucket full and lie further on.
    passed: u16,
}

impl Bucket {
    /// The slots whose tag is `tag`, as bits.
    #[inline]
    fn matches(&self, tag: u16) -> u16 {
        let equal = self
            .tags
            .iter()
            .enumerate()
            .fold(0u16, |bits, (i, &t)| bits | u16::from(t == tag) << i);
        equal & self.used
    }

    #[inline]
    fn id(&self, slot: u32) -> Id {
        self.ids.get(slot as usize).copied().unwrap_or(Id::MAX)
    }
}

/// The table. Hashes are uniform 64-bit numbers.
#[derive(Debug, Default)]
pub(crate) struct Table {
    buckets: Box<[Bucket]>,
    len: usize,
}

#[inline]
fn tag_of(hash: u64) -> u16 {
    hash as u16
}

impl Table {
    /// The bucket where `hash` belongs: its upper half scaled to their number.
    #[inline]
    fn home(&self, hash: u64) -> usize {
        ((hash >> 32).wrapping_mul(self.buckets.len() as u64) >> 32) as usize
    }

    #[inline]
    fn next(&self, at: usize) -> usize {
        if at + 1 < self.buckets.len() { at + 1 } else { 0 }
    }

    /// How many ids there are.
    #[cfg(test)]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The first id that may be the one of `hash`, or any other number: only entries tell. One memory access and no
    /// branch that depends on it, so that many of these overlap.
    #[inline]
    pub(crate) fn guess(&self, hash: u64) -> Id {
        self.buckets
            .get(self.home(hash))
            .map_or(Id::MAX, |b| b.id(b.matches(tag_of(hash)).trailing_zeros()))
    }

    /// The id of `hash` for which `is` holds.
    #[inline]
    pub(crate) fn find(&self, hash: u64, is: impl Fn(Id) -> bool) -> Option<Id> {
        let mut at = self.home(hash);
        for _ in 0..self.buckets.len() {
            let b = self.buckets.get(at)?;
            let mut hits = b.matches(tag_of(hash));
            while hits != 0 {
                let id = b.id(hits.trailing_zeros());
                if is(id) {
                    return Some(id);
                }
                hits &= hits - 1;
            }
            if b.passed == 0 {
                return None;
            }
            at = self.next(at);
        }
        None
    }

    /// Makes room for `n` ids in all; `rehash` tells the hash of any id.
    pub(crate) fn reserve(&mut self, n: usize, rehash: impl Fn(Id) -> u64) {
        let wanted = (n * MAX_LOAD.1).div_ceil(SLOTS * MAX_LOAD.0);
        if wanted > self.buckets.len() {
            self.resize(wanted, rehash);
        }
    }

    /// Adds `id`, which is not there; `rehash` tells the hash of any id.
    pub(crate) fn insert(&mut self, hash: u64, id: Id, rehash: impl Fn(Id) -> u64) {
        if (self.len + 1) * MAX_LOAD.1 > self.buckets.len() * SLOTS * MAX_LOAD.0 {
            self.resize(self.buckets.len() + 1 + self.buckets.len() / 4, rehash);
        }
        self.put(hash, id);
    }

    fn resize(&mut self, buckets: usize, rehash: impl Fn(Id) -> u64) {
        let new = vec![Bucket::default(); buckets].into_boxed_slice();
        let old = std::mem::replace(&mut self.buckets, new);
        self.len = 0;
        let mut hashes = [[0; SLOTS]; REHASHED];
        for part in old.chunks(REHASHED) {
            // the accesses of all these do not wait for each other
            for (hashes, b) in hashes.iter_mut().zip(part) {
                for (slot, (hash, &id)) in hashes.iter_mut().zip(&b.ids).enumerate() {
                    *hash = if b.used & 1 << slot != 0 { rehash(id) } else { 0 };
                }
            }
            for (hashes, b) in hashes.iter().zip(part) {
                for (slot, (&hash, &id)) in hashes.iter().zip(&b.ids).enumerate() {
                    if b.used & 1 << slot != 0 {
                        self.put(hash, id);
                    }
                }
            }
        }
    }

    fn put(&mut self, hash: u64, id: Id) {
        let mut at = self.home(hash);
        for _ in 0..self.buckets.len() {
            let next = self.next(at);
            let Some(b) = self.buckets.get_mut(at) else { return };
            let slot = b.used.trailing_ones() as usize;
            if let (Some(to), Some(tag)) = (b.ids.get_mut(slot), b.tags.get_mut(slot)) {
                *to = id;
                *tag = tag_of(hash);
                b.used |= 1 << slot;
                self.len += 1;
                return;
            }
            b.passed += 1;
            at = next;
        }
    }

    /// Takes `id` out, if it is there.
    pub(crate) fn remove(&mut self, hash: u64, id: Id) {
        let home = self.home(hash);
        let mut at = home;
        for steps in 0..self.buckets.len() {
            let next = self.next(at);
            let Some(b) = self.buckets.get_mut(at) else { return };
            if let Some(slot) = b
                .ids
                .iter()
                .position(|&x| x == id)
                .filter(|s| b.used & 1 << s != 0)
            {
                b.used &= !(1 << slot);
                self.len -= 1;
                let mut passed = home;
                for _ in 0..steps {
                    let next = self.next(passed);
                    if let Some(b) = self.buckets.get_mut(passed) {
                        b.passed -= 1;
                    }
                    passed = next;
                }
                return;
            }
            if b.passed == 0 {
                return;
            }
            at = next;
        }
    }

    /// Heap bytes held.
    pub(crate) fn memory_bytes(&self) -> usize {
        size_of_val(&*self.buckets)
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashMap;

    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_bucket_is_a_cache_line() {
        assert_eq!((size_of::<Bucket>(), align_of::<Bucket>()), (64, 64));
    }

    proptest! {
        /// Few distinct hashes crowd into few buckets, so that passing on and collisions of tags happen.
        #[test]
        fn agrees_with_a_map_under_crowding(ops in prop::collection::vec((any::<bool>(), 0u64..300), 1..2000),
                                            spread in 0u32..64) {
            let hash = |n: u64| n.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> spread;
            let (mut t, mut model) = (Table::default(), HashMap::new());
            for (add, n) in ops {
                let id = n as Id + 7;
                if !add {
                    t.remove(hash(n), id);
                    model.remove(&n);
                } else if model.insert(n, id).is_none() {
                    t.insert(hash(n), id, |id| hash(u64::from(id) - 7));
                }
                prop_assert_eq!(t.len(), model.len());
            }
            for n in 0..300 {
                prop_assert_eq!(t.find(hash(n), |id| u64::from(id) == n + 7), model.get(&n).copied());
            }
            for (n, id) in model {
                t.remove(hash(n), id);
            }
            prop_assert!(t.buckets.iter().all(|b| b.used == 0 && b.passed == 0));
        }
    }
}
