//! The blocks that a member's records tell of, in the order in which they were stored. Most records of a journal store
//! a block, and nothing refers to it any more: where each lies is noted when something does, for many at a time, so
//! that the accesses to memory overlap.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::{
    block::{Fingerprint, Key},
    root::names::{DirKind, Prefix},
};

/// A block that a member owned.
#[derive(Debug, Clone)]
pub(crate) struct Owned {
    pub(crate) fp: Fingerprint,
    /// Index into the reader's list of namespaces.
    pub(crate) namespace: u16,
    pub(crate) leaf: DirKind,
    pub(crate) prefix: Prefix,
    pub(crate) trailer: bool,
    pub(crate) bad: bool,
    /// Units of 512 bytes.
    pub(crate) cost: u32,
    pub(crate) written_at: u32,
    /// On the heap: most journals tell none.
    pub(crate) key: Option<Box<Key>>,
    /// When it was used last, by the journal's own count.
    pub(crate) used: u64,
}

/// In [`Owned::used`]: removed since, or stored again.
const OVER: u64 = 0;

/// Blocks as records come.
#[derive(Debug, Default)]
pub(super) struct Blocks {
    all: Vec<Owned>,
    /// Where a block lies in `all`, by the low half of its fingerprint, which touches tell.
    at: HashMap<u64, u32, FixedState>,
    /// How many of `all` are in `at`.
    noted: usize,
    clock: u64,
}

impl Blocks {
    /// Room for about `n` more.
    pub(super) fn reserve(&mut self, n: usize) {
        self.all.reserve(n);
    }

    /// A block was stored, for the first time or again.
    pub(super) fn stored(&mut self, block: Owned) {
        self.clock += 1;
        let used = self.clock;
        self.all.push(Owned { used, ..block });
    }

    /// It is gone.
    pub(super) fn gone(&mut self, fp: Fingerprint) -> Option<()> {
        self.note()?;
        let Some(&n) = self.at.get(&fp.hash64()) else {
            return Some(());
        };
        if let Some(o) = self.all.get_mut(n as usize).filter(|o| o.fp == fp) {
            o.used = OVER;
            self.at.remove(&fp.hash64());
        }
        Some(())
    }

    /// Blocks were used, least recent first.
    pub(super) fn touched(&mut self, hashes: &[u8]) -> Option<()> {
        self.note()?;
        for h in hashes.chunks_exact(8) {
            let hash = u64::from_le_bytes(*h.first_chunk::<8>()?);
            if let Some(&n) = self.at.get(&hash)
                && let Some(o) = self.all.get_mut(n as usize)
            {
                self.clock += 1;
                o.used = self.clock;
            }
        }
        Some(())
    }

    /// Notes where blocks lie. `None`: two fingerprints have one half in common, and touches could not tell them apart.
    pub(super) fn note(&mut self) -> Option<()> {
        let mut again = Vec::new();
        self.at.reserve(self.all.len() - self.noted);
        for (n, o) in self.all.iter().enumerate().skip(self.noted) {
            let n = u32::try_from(n).ok()?;
            if let Some(before) = self.at.insert(o.fp.hash64(), n) {
                again.push((before, o.fp));
            }
        }
        self.noted = self.all.len();
        for (before, fp) in again {
            let old = self.all.get_mut(before as usize)?;
            if old.fp != fp {
                return None;
            }
            old.used = OVER;
        }
        Some(())
    }

    /// Those that are there, in no order.
    pub(super) fn iter(&self) -> impl Iterator<Item = &Owned> {
        self.all.iter().filter(|o| o.used != OVER)
    }

    /// Those that are there, least recently used first. All must be noted.
    pub(super) fn into_order(mut self) -> Vec<Owned> {
        drop(self.at);
        self.all.retain(|o| o.used != OVER);
        if !self.all.is_sorted_by_key(|o| o.used) {
            self.all.sort_by_cached_key(|o| o.used);
        }
        self.all
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn block(n: u64, cost: u32) -> Owned {
        Owned {
            fp: Fingerprint(u128::from(n) << 64 | u128::from(n)),
            namespace: 0,
            leaf: DirKind::Keyed,
            prefix: Prefix(0),
            trailer: true,
            bad: false,
            cost,
            written_at: 0,
            key: None,
            used: 0,
        }
    }

    proptest! {
        #[test]
        fn agrees_with_a_list_kept_in_order(ops in prop::collection::vec((0..4, 0u64..40), 1..400)) {
            let mut blocks = Blocks::default();
            let mut model = Vec::<(u64, u32)>::new();
            for (cost, (op, n)) in (0..).zip(ops) {
                let known = model.iter().position(|m| m.0 == n);
                let old = known.map(|at| model.remove(at));
                match op {
                    0 | 1 => {
                        blocks.stored(block(n, cost));
                        model.push((n, cost));
                    }
                    2 => blocks.gone(block(n, 0).fp).unwrap(),
                    _ => {
                        blocks.touched(&n.to_le_bytes()).unwrap();
                        model.extend(old);
                    }
                }
            }
            blocks.note().unwrap();
            prop_assert_eq!(blocks.iter().count(), model.len());
            let got: Vec<_> = blocks.into_order().iter().map(|o| (o.fp.hash64(), o.cost)).collect();
            prop_assert_eq!(got, model);
        }
    }

    #[test]
    fn two_fingerprints_with_one_half_in_common_are_refused() {
        let mut blocks = Blocks::default();
        blocks.stored(block(1, 0));
        blocks.stored(Owned {
            fp: Fingerprint(1),
            ..block(1, 0)
        });
        assert!(blocks.note().is_none());
        let mut blocks = Blocks::default();
        blocks.stored(block(1, 0));
        blocks.gone(block(1, 0).fp).unwrap();
        blocks.stored(Owned {
            fp: Fingerprint(1),
            ..block(1, 0)
        });
        assert!(blocks.note().is_some(), "the first is gone");
    }
}
