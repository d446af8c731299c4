//! Free slots as runs, by place and by length. Handing out finds the smallest run that is long enough, else the
//! longest: what is written together lies together, and long runs stay whole. All calls are O(log n) in the number of
//! runs.

use std::collections::{BTreeMap, BTreeSet};

/// Consecutive slots.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct SlotRun {
    pub(crate) first: u32,
    pub(crate) len: u32,
}

/// The free slots.
#[derive(Debug)]
pub(crate) struct FreeRuns {
    by_place: BTreeMap<u32, u32>,
    by_len: BTreeSet<(u32, u32)>,
    total: u64,
    /// Slots of one extent share the bits above these: runs do not cross.
    mask: u32,
}

impl FreeRuns {
    /// None free; extents begin at multiples of 2^`shift`.
    pub(crate) fn new(shift: u32) -> Self {
        Self {
            by_place: BTreeMap::new(),
            by_len: BTreeSet::new(),
            total: 0,
            mask: (1 << shift) - 1,
        }
    }

    /// How many slots are free.
    pub(crate) fn total(&self) -> u64 {
        self.total
    }

    fn insert(&mut self, r: SlotRun) {
        self.by_place.insert(r.first, r.len);
        self.by_len.insert((r.len, r.first));
        self.total += u64::from(r.len);
    }

    fn remove(&mut self, r: SlotRun) {
        self.by_place.remove(&r.first);
        self.by_len.remove(&(r.len, r.first));
        self.total -= u64::from(r.len);
    }

    /// Frees a run, which joins its neighbours.
    pub(crate) fn add(&mut self, mut run: SlotRun) {
        if run.len == 0 {
            return;
        }
        let begins = run.first & self.mask == 0;
        if !begins
            && let Some((&first, &len)) = self.by_place.range(..run.first).next_back()
            && first + len == run.first
        {
            let left = SlotRun { first, len };
            self.remove(left);
            run = SlotRun {
                first,
                len: len + run.len,
            };
        }
        let end = run.first.wrapping_add(run.len);
        if end & self.mask != 0
            && let Some(&len) = self.by_place.get(&end)
        {
            self.remove(SlotRun { first: end, len });
            run.len += len;
        }
        self.insert(run);
    }

    /// Takes up to `most` slots that begin at `first`.
    pub(crate) fn take_at(&mut self, first: u32, most: u32) -> Option<SlotRun> {
        let &len = self.by_place.get(&first)?;
        Some(self.cut(SlotRun { first, len }, most))
    }

    /// Takes a run of up to `most` slots: out of the smallest that has so many, else the smallest with at least `want`,
    /// else the longest there is.
    pub(crate) fn take(&mut self, want: u32, most: u32) -> Option<SlotRun> {
        let fits = |s: &BTreeSet<(u32, u32)>, n: u32| s.range((n, 0)..).next().copied();
        let (len, first) = fits(&self.by_len, most)
            .or_else(|| fits(&self.by_len, want))
            .or_else(|| self.by_len.last().copied())?;
        Some(self.cut(SlotRun { first, len }, most))
    }

    fn cut(&mut self, run: SlotRun, most: u32) -> SlotRun {
        self.remove(run);
        let len = run.len.min(most);
        if len < run.len {
            self.insert(SlotRun {
                first: run.first + len,
                len: run.len - len,
            });
        }
        SlotRun {
            first: run.first,
            len,
        }
    }

    /// Takes all free slots between `first` and `end`, runs that begin there.
    pub(crate) fn withdraw(&mut self, first: u32, end: u32) -> Vec<SlotRun> {
        let runs: Vec<SlotRun> = self
            .by_place
            .range(first..end)
            .map(|(&first, &len)| SlotRun { first, len })
            .collect();
        runs.iter().for_each(|&r| self.remove(r));
        runs
    }

    /// How many runs there are.
    #[cfg(test)]
    pub(crate) fn runs(&self) -> usize {
        self.by_place.len()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_was_freed_joins_its_neighbours_but_not_across_extents() {
        let mut f = FreeRuns::new(4);
        f.add(SlotRun { first: 0, len: 16 });
        f.add(SlotRun { first: 16, len: 16 });
        assert_eq!((f.runs(), f.total()), (2, 32));
        let a = f.take(5, 5).unwrap();
        let b = f.take(11, 11).unwrap();
        assert_eq!(
            (a.len, b),
            (5, SlotRun { first: 5, len: 11 }),
            "the rest fits best"
        );
        f.add(a);
        f.add(b);
        assert_eq!(
            (f.runs(), f.take_at(0, 99)),
            (2, Some(SlotRun { first: 0, len: 16 }))
        );
        assert_eq!(
            f.take(20, 20),
            Some(SlotRun { first: 16, len: 16 }),
            "the longest there is"
        );
        assert_eq!(f.take(1, 1), None);
    }

    proptest! {
        #[test]
        fn no_slot_is_handed_out_twice_or_lost(ops in prop::collection::vec((1u32..9, 1u32..20, any::<bool>()), 1..200)) {
            let mut f = FreeRuns::new(6);
            for e in 0..3 {
                f.add(SlotRun { first: e << 6, len: 50 });
            }
            let mut held: Vec<SlotRun> = Vec::new();
            for (want, most, give) in ops {
                if give && !held.is_empty() {
                    f.add(held.swap_remove(want as usize % held.len()));
                } else if let Some(r) = f.take(want.min(most), most) {
                    prop_assert!(r.len > 0 && r.len <= most && (r.first & 63) + r.len <= 50);
                    held.push(r);
                }
                let mut all: Vec<u32> = held.iter().flat_map(|r| r.first..r.first + r.len).collect();
                let taken = all.len();
                all.sort_unstable();
                all.dedup();
                prop_assert_eq!(all.len(), taken);
                prop_assert_eq!(f.total() + taken as u64, 150);
            }
            held.drain(..).for_each(|r| f.add(r));
            let second = vec![SlotRun { first: 64, len: 50 }];
            prop_assert_eq!((f.runs(), f.withdraw(64, 128), f.total()), (3, second, 100));
        }
    }
}
