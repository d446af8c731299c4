//! What a start finds, and what a dead member counted.

use super::{
    Dirs,
    high::{LeafDir, units},
};
use crate::{
    budget::COST_UNIT,
    root::{
        leaves::Row,
        names::{DirKind, Prefix},
    },
    sync::lock,
};

impl Dirs {
    /// Counts a file found at start-up.
    pub(crate) fn found_file(&self, ns: u16, prefix: Prefix, leaf: DirKind) {
        if let Some(s) = self.stripe(prefix) {
            lock(s)
                .entry((ns, prefix.high()))
                .or_default()
                .leaf(prefix, leaf)
                .files += 1;
        }
    }

    /// Counts the cost of a directory found at start-up; without `leaf`, the first-level one.
    pub(crate) fn found_dir(&self, ns: u16, prefix: Prefix, leaf: Option<DirKind>, bytes: u64) {
        if let Some(s) = self.stripe(prefix) {
            let mut s = lock(s);
            let high = s.entry((ns, prefix.high())).or_default();
            match leaf {
                Some(l) => high.leaf(prefix, l).cost = units(bytes),
                None => high.cost = bytes,
            }
        }
    }

    /// Notes the cost, already counted, of a namespace's own directory.
    pub(crate) fn found_top(&self, ns: u16, bytes: u64) {
        lock(&self.tops).insert(ns, bytes);
    }

    /// Counts files found at start-up, by leaf of a first-level directory.
    pub(crate) fn found_files(&self, ns: u16, high: u32, kind: DirKind, row: &Row) {
        self.each_leaf(ns, high, kind, row, |leaf, files| leaf.files += files);
    }

    /// Counts leaf directories that a dead member counted, unless they are counted here already; returns the bytes
    /// added.
    pub(crate) fn also_leaves(&self, ns: u16, high: u32, kind: DirKind, costs: &Row) -> u64 {
        let mut added = 0;
        self.each_leaf(ns, high, kind, costs, |leaf, cost| {
            added += u64::from(cost.saturating_sub(leaf.cost)) * COST_UNIT;
            leaf.cost = cost.max(leaf.cost);
        });
        added
    }

    /// Changes the leaves of a first-level directory for which `row` has a number.
    fn each_leaf(
        &self,
        ns: u16,
        high: u32,
        kind: DirKind,
        row: &Row,
        mut change: impl FnMut(&mut LeafDir, u32),
    ) {
        let Some(stripe) = self.stripe(Prefix(high << 8)) else {
            return;
        };
        let mut s = lock(stripe);
        let dir = s.entry((ns, high)).or_default();
        if dir.leaves.is_empty() {
            dir.leaves.reserve_exact(row.iter().filter(|&&n| n > 0).count());
        }
        for (low, &n) in (0..).zip(row).filter(|l| *l.1 > 0) {
            change(dir.leaf(Prefix(high << 8 | low), kind), n);
        }
    }

    /// The same as [`also_leaves`](Self::also_leaves) for a first-level directory.
    pub(crate) fn also_high(&self, ns: u16, high: u32, bytes: u64) -> u64 {
        let Some(stripe) = self.stripe(Prefix(high << 8)) else {
            return 0;
        };
        let mut s = lock(stripe);
        let dir = s.entry((ns, high)).or_default();
        let added = bytes.saturating_sub(dir.cost);
        dir.cost = bytes.max(dir.cost);
        added
    }

    /// The same for a namespace's own directory.
    pub(crate) fn also_top(&self, ns: u16, bytes: u64) -> u64 {
        let mut tops = lock(&self.tops);
        let known = tops.entry(ns).or_default();
        let added = bytes.saturating_sub(*known);
        *known = bytes.max(*known);
        added
    }
}
