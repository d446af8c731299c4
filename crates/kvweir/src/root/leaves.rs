//! A number for each leaf directory: what it costs, or how many files lie in it. A root has about as many leaves as
//! blocks, so the 256 below one first-level directory lie together: reading 500,000 of them does not walk all over
//! memory.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::names::{DirKind, Prefix};

/// A leaf directory: number of the namespace, place, kind.
pub(crate) type LeafAt = (u16, Prefix, DirKind);

/// The leaves of one kind below one first-level directory, by their two digits.
pub(crate) type Row = [u32; 256];

/// Numbers of leaves; 0 where none was set.
#[derive(Debug, Clone, Default)]
pub(crate) struct Leaves(HashMap<(u16, u32, DirKind), Box<Row>, FixedState>);

impl Leaves {
    fn slot(&mut self, (ns, prefix, leaf): LeafAt) -> Option<&mut u32> {
        let row = self
            .0
            .entry((ns, prefix.high(), leaf))
            .or_insert_with(|| Box::new([0; 256]));
        row.get_mut(prefix.low() as usize)
    }

    pub(crate) fn set(&mut self, at: LeafAt, n: u32) {
        if let Some(slot) = self.slot(at) {
            *slot = n;
        }
    }

    pub(crate) fn add_one(&mut self, at: LeafAt) {
        if let Some(slot) = self.slot(at) {
            *slot += 1;
        }
    }

    pub(crate) fn get(&self, (ns, prefix, leaf): LeafAt) -> u32 {
        let row = self.0.get(&(ns, prefix.high(), leaf));
        row.and_then(|r| r.get(prefix.low() as usize))
            .copied()
            .unwrap_or(0)
    }

    /// The leaves whose number is not 0.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (LeafAt, u32)> {
        self.rows().flat_map(|(ns, high, leaf, row)| {
            let of = move |(low, &n): (u32, &u32)| ((ns, Prefix(high << 8 | low), leaf), n);
            (0u32..).zip(row).filter(|l| *l.1 > 0).map(of)
        })
    }

    /// First-level directories with their leaves of one kind: namespace, first three digits, kind.
    pub(crate) fn rows(&self) -> impl Iterator<Item = (u16, u32, DirKind, &Row)> {
        self.0
            .iter()
            .map(|(&(ns, high, leaf), row)| (ns, high, leaf, &**row))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_set_is_told_and_zero_is_nothing() {
        let mut l = Leaves::default();
        let at = |n: u32| (n as u16 % 3, Prefix(n * 77 % (1 << 20)), DirKind::Group(n % 2));
        (1..500).for_each(|n| l.set(at(n), n));
        l.add_one(at(7));
        l.set(at(9), 0);
        assert_eq!((l.get(at(7)), l.get(at(9)), l.get(at(8))), (8, 0, 8));
        assert_eq!(l.get((0, Prefix(0), DirKind::Keyed)), 0);
        assert_eq!(l.iter().count(), 498);
        assert!(l.iter().all(|(at, n)| l.get(at) == n));
    }
}
