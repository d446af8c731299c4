//! Directories without files of ours that could not be removed: they stay counted, and are looked at again.

use std::{ops::Bound, path::Path};

use super::{
    Dirs,
    high::{LeafDir, units},
    make::gone,
};
use crate::{
    budget::Change,
    io::Disk,
    root::names::{DirClass, DirKind, Prefix, high_dir, leaf_dir},
    sync::lock,
};

/// Directories looked at again under one hold of a stripe.
const LOOKED_AT_ONCE: usize = 32;
/// What became of directories without files that were looked at again.
#[derive(Debug, Default)]
pub(crate) struct Emptied {
    pub(crate) change: Change,
    /// Those that are gone, and those above them, with what they cost now: class, level, place, units of 512 bytes.
    pub(crate) told: Vec<(DirClass, u16, Prefix, u32)>,
}

impl Dirs {
    /// Notes all directories without files of ours, as a start finds them, to be looked at again.
    pub(crate) fn note_emptied(&self) {
        for s in &self.stripes {
            for (&at, high) in lock(s).iter() {
                let any = high.leaves.iter().any(|l| l.files == 0 && l.cost > 0);
                if any || high.leaves.is_empty() && high.cost > 0 {
                    lock(&self.emptied).insert(at);
                }
            }
        }
    }

    /// The next first-level directories, at most `most`, below which there is something to look at again.
    pub(crate) fn emptied(&self, after: Option<(u16, u32)>, most: usize) -> Vec<(u16, u32)> {
        let from = after.map_or(Bound::Unbounded, Bound::Excluded);
        let all = lock(&self.emptied);
        all.range((from, Bound::Unbounded)).take(most).copied().collect()
    }

    /// Removes what has no files of ours below a first-level directory, as far as that can be done now.
    pub(crate) fn look_at_emptied(&self, disk: &dyn Disk, root: &Path, ns: u16, digits: u32) -> Emptied {
        let mut out = Emptied::default();
        let Some(stripe) = self.stripe(Prefix(digits << 8)) else {
            return out;
        };
        let mut s = lock(stripe);
        lock(&self.emptied).remove(&(ns, digits));
        let Some(high) = s.get_mut(&(ns, digits)) else {
            return out;
        };
        let class = |leaf| DirClass { namespace: ns, leaf };
        let empty = high.leaves.iter().filter(|l| l.files == 0 && l.cost > 0);
        let empty: Vec<LeafDir> = empty.take(LOOKED_AT_ONCE).copied().collect();
        let mut left = empty.len() == LOOKED_AT_ONCE;
        for l in empty {
            let Some(&leaf) = high.named.get(usize::from(l.kind)) else {
                continue;
            };
            let prefix = Prefix(digits << 8 | u32::from(l.low));
            if gone(disk.remove_dir(&leaf_dir(root, prefix, leaf))) {
                out.change.set(high.leaf_cost(prefix, leaf), 0);
                high.forget(prefix, leaf);
                out.told.push((class(leaf), 2, prefix, 0));
            } else {
                left = true;
            }
        }
        if high.leaves.is_empty() {
            if gone(disk.remove_dir(&high_dir(root, digits))) {
                out.change.set(high.cost, 0);
                s.remove(&(ns, digits));
                self.top_changed(disk, root, ns, &mut out.change);
                let top = lock(&self.tops).get(&ns).map_or(0, |&t| units(t));
                out.told.push((class(DirKind::Keyed), 1, Prefix(digits << 8), 0));
                out.told.push((class(DirKind::Keyed), 0, Prefix(0), top));
            } else {
                left = true;
            }
        }
        if left {
            lock(&self.emptied).insert((ns, digits));
        }
        out
    }

    /// Directories on disk that no counted block needs: namespace, leaf kind, place, level (0 namespace,
    /// 1 first, 2 leaf), cost in units of 512 bytes.
    pub(crate) fn empty_ones(&self) -> Vec<(DirClass, u16, Prefix, u32)> {
        let mut out = Vec::new();
        for s in &self.stripes {
            for (&(namespace, digits), high) in lock(s).iter() {
                for l in high.leaves.iter().filter(|l| l.files == 0 && l.cost > 0) {
                    if let Some(&leaf) = high.named.get(usize::from(l.kind)) {
                        let prefix = Prefix(digits << 8 | u32::from(l.low));
                        out.push((DirClass { namespace, leaf }, 2, prefix, l.cost));
                    }
                }
                if high.leaves.iter().all(|l| l.files == 0) && high.cost > 0 {
                    let leaf = DirKind::Keyed;
                    out.push((
                        DirClass { namespace, leaf },
                        1,
                        Prefix(digits << 8),
                        units(high.cost),
                    ));
                }
            }
        }
        for (&namespace, &top) in lock(&self.tops).iter() {
            let leaf = DirKind::Keyed;
            out.push((DirClass { namespace, leaf }, 0, Prefix(0), units(top)));
        }
        out
    }
}
