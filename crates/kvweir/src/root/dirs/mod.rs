//! Directories of a bounded root: how many files each leaf holds and what each directory costs, so that `du`
//! agrees with the account and emptied directories go (I1). Making and removing directories happens under the
//! lock of their stripe, which only I/O workers take; the tier's own lock is never held across these calls.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | [`Dirs`]: files enter and leave |
//! | `high.rs` | a first-level directory in memory |
//! | `found.rs` | what a start finds |
//! | `emptied.rs` | directories without files of ours, to be looked at again |
//! | `make.rs` | directories made and removed on disk |

mod emptied;
mod found;
mod high;
mod make;

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    io,
    path::Path,
};

use foldhash::fast::FixedState;

use self::{
    high::{High, LeafDir, units},
    make::{gone, make_dir},
};
use super::{
    journal::DirCosts,
    names::{DirKind, Prefix, high_dir, leaf_dir},
};
use crate::{
    budget::Change,
    io::{Disk, Stat},
    sync::{Mutex, lock},
};

/// Locks that share the first-level directories.
const STRIPES: u32 = 64;
/// Entries that a directory surely holds in its first block; beyond, its size is read after each new file.
const SMALL_DIR: u32 = 8;
/// Directories that a leaf needs below its namespace's.
const LEVELS_PER_LEAF: usize = 2;

/// First-level directories by namespace number and first three digits.
type Stripe = Mutex<HashMap<(u16, u32), High, FixedState>>;

/// The directories of all namespaces of a root.
#[derive(Debug)]
pub(crate) struct Dirs {
    stripes: Vec<Stripe>,
    /// What the namespaces' own directories cost. They grow with the first-level directories in them.
    tops: Mutex<HashMap<u16, u64, FixedState>>,
    /// First-level directories in which something without files of ours could not be removed: another member's lie in
    /// it, or foreign ones. Taken inside a stripe.
    emptied: Mutex<BTreeSet<(u16, u32)>>,
    /// What others removed, until somebody looks.
    lost: Mutex<Lost>,
}

/// Directories that were counted and turned out not to be there.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// Any of these namespaces may be gone.
    pub(crate) all: BTreeSet<u16>,
    /// These leaves are.
    pub(crate) leaves: HashSet<(u16, Prefix, DirKind), FixedState>,
}

impl Lost {
    /// Whether nothing is.
    pub(crate) fn is_empty(&self) -> bool {
        self.all.is_empty() && self.leaves.is_empty()
    }
}

impl Dirs {
    pub(crate) fn new() -> Self {
        Self {
            stripes: (0..STRIPES).map(|_| Mutex::default()).collect(),
            tops: Mutex::default(),
            emptied: Mutex::default(),
            lost: Mutex::default(),
        }
    }

    /// Whether anything was found to be gone that nobody took.
    pub(crate) fn has_lost(&self) -> bool {
        !lock(&self.lost).is_empty()
    }

    /// Takes what was found to be gone since the last call.
    pub(crate) fn take_lost(&self) -> Lost {
        std::mem::take(&mut lock(&self.lost))
    }

    fn stripe(&self, prefix: Prefix) -> Option<&Stripe> {
        self.stripes.get((prefix.high() % STRIPES) as usize)
    }

    /// Forgets what a leaf costs, to look at it again; returns what was counted for it. Its count of files stays
    /// where others of ours lie in it.
    pub(crate) fn forget_leaf(&self, ns: u16, prefix: Prefix, leaf: DirKind) -> u64 {
        let Some(stripe) = self.stripe(prefix) else {
            return 0;
        };
        let mut s = lock(stripe);
        let Some(high) = s.get_mut(&(ns, prefix.high())) else {
            return 0;
        };
        let cost = high.leaf_cost(prefix, leaf);
        let l = high.leaf(prefix, leaf);
        l.cost = 0;
        if l.files == 0 {
            high.forget(prefix, leaf);
        }
        cost
    }

    /// Removes a first-level directory if nothing is in it, else reads its size and that of the namespace again.
    pub(crate) fn remeasure(&self, disk: &dyn Disk, root: &Path, ns: u16, high: u32, path: &Path) -> Change {
        let mut change = Change::default();
        let Some(stripe) = self.stripe(Prefix(high << 8)) else {
            return change;
        };
        let mut s = lock(stripe);
        let entry = s.entry((ns, high)).or_default();
        if entry.leaves.is_empty() && gone(disk.remove_dir(path)) {
            change.set(entry.cost, 0);
            s.remove(&(ns, high));
        } else if let Ok(Stat { allocated, .. }) = disk.stat(path) {
            entry.cost = change.set(entry.cost, allocated);
        }
        self.top_changed(disk, root, ns, &mut change);
        change
    }

    /// Reads the size of a namespace's own directory again, after a first-level directory came or went.
    fn top_changed(&self, disk: &dyn Disk, root: &Path, ns: u16, change: &mut Change) {
        let mut tops = lock(&self.tops);
        let now = match disk.stat(root) {
            Ok(Stat { allocated, .. }) => allocated,
            Err(e) if e.kind() == io::ErrorKind::NotFound => 0,
            Err(_) => return,
        };
        let top = tops.entry(ns).or_default();
        *top = change.set(*top, now);
    }

    /// Counts a file to be written into a leaf and makes the directories that are missing. Where that fails, what
    /// was made is removed again; the change of bytes holds either way.
    pub(crate) fn enter(
        &self,
        disk: &dyn Disk,
        root: &Path,
        ns: u16,
        prefix: Prefix,
        leaf: DirKind,
    ) -> (Change, io::Result<()>) {
        let mut change = Change::default();
        let Some(stripe) = self.stripe(prefix) else {
            return (change, Ok(()));
        };
        let mut s = lock(stripe);
        let high = s.entry((ns, prefix.high())).or_default();
        let l = high.leaf(prefix, leaf);
        l.files += 1;
        if l.files > 1 {
            return (change, Ok(()));
        }
        let path = leaf_dir(root, prefix, leaf);
        let made = make_dir(disk, &path).and_then(|made| {
            if made > LEVELS_PER_LEAF {
                // the namespace's own directory was not there
                lock(&self.lost).all.insert(ns);
            }
            let now = disk.stat(&path)?.allocated;
            high.leaf(prefix, leaf).cost = units(change.set(high.leaf_cost(prefix, leaf), now));
            let now = disk.stat(&high_dir(root, prefix.high()))?.allocated;
            let is_new = high.cost == 0;
            high.cost = change.set(high.cost, now);
            if is_new {
                self.top_changed(disk, root, ns, &mut change);
            }
            Ok(())
        });
        if made.is_err() {
            let cost = high.leaf_cost(prefix, leaf);
            high.drop_file(prefix, leaf);
            if gone(disk.remove_dir(&path)) {
                change.set(cost, 0);
                high.forget(prefix, leaf);
            } else {
                lock(&self.emptied).insert((ns, prefix.high()));
            }
            if high.leaves.is_empty() {
                if gone(disk.remove_dir(&high_dir(root, prefix.high()))) {
                    change.set(high.cost, 0);
                    s.remove(&(ns, prefix.high()));
                } else {
                    lock(&self.emptied).insert((ns, prefix.high()));
                }
            }
        }
        (change, made)
    }

    /// Reads the size of a leaf again where a new file may have made it grow.
    pub(crate) fn grown(
        &self,
        disk: &dyn Disk,
        root: &Path,
        ns: u16,
        prefix: Prefix,
        leaf: DirKind,
    ) -> Change {
        let mut change = Change::default();
        let Some(stripe) = self.stripe(prefix) else {
            return change;
        };
        let mut s = lock(stripe);
        let high = s.entry((ns, prefix.high())).or_default();
        if high.leaf(prefix, leaf).files > SMALL_DIR
            && let Ok(Stat { allocated, .. }) = disk.stat(&leaf_dir(root, prefix, leaf))
        {
            high.leaf(prefix, leaf).cost = units(change.set(high.leaf_cost(prefix, leaf), allocated));
        }
        change
    }

    /// Counts a file gone from a leaf and removes the directories that it leaves empty. A directory that cannot
    /// be removed (a file lies in it that is not ours) stays counted, and is looked at again.
    pub(crate) fn leave(
        &self,
        disk: &dyn Disk,
        root: &Path,
        ns: u16,
        prefix: Prefix,
        leaf: DirKind,
    ) -> Change {
        let mut change = Change::default();
        let Some(stripe) = self.stripe(prefix) else {
            return change;
        };
        let mut s = lock(stripe);
        let Some(high) = s.get_mut(&(ns, prefix.high())) else {
            return change;
        };
        if high.drop_file(prefix, leaf) > 0 {
            return change;
        }
        let mut all_gone = gone(disk.remove_dir(&leaf_dir(root, prefix, leaf)));
        if all_gone {
            change.set(high.leaf_cost(prefix, leaf), 0);
            high.forget(prefix, leaf);
            if high.leaves.is_empty() {
                all_gone = gone(disk.remove_dir(&high_dir(root, prefix.high())));
                if all_gone {
                    change.set(high.cost, 0);
                    s.remove(&(ns, prefix.high()));
                    self.top_changed(disk, root, ns, &mut change);
                }
            }
        }
        if !all_gone {
            lock(&self.emptied).insert((ns, prefix.high()));
        }
        change
    }

    /// What the directories above a leaf's blocks cost, in units of 512 bytes; 0 for what is not there.
    pub(crate) fn costs(&self, ns: u16, prefix: Prefix, leaf: DirKind) -> DirCosts {
        let (mut leaf_cost, mut high_cost) = (0, 0);
        if let Some(stripe) = self.stripe(prefix)
            && let Some(high) = lock(stripe).get_mut(&(ns, prefix.high()))
        {
            high_cost = units(high.cost);
            if let Ok(at) = high.position(prefix, leaf) {
                leaf_cost = high.leaves.get(at).map_or(0, |l| l.cost);
            }
        }
        let top = lock(&self.tops).get(&ns).map_or(0, |&t| units(t));
        [leaf_cost, high_cost, top]
    }

    /// Makes a counted leaf's directories again after somebody else removed them; what they cost is known already.
    pub(crate) fn remake(
        &self,
        disk: &dyn Disk,
        root: &Path,
        ns: u16,
        prefix: Prefix,
        leaf: DirKind,
    ) -> io::Result<()> {
        let Some(stripe) = self.stripe(prefix) else {
            return Ok(());
        };
        let _turn = lock(stripe);
        let made = make_dir(disk, &leaf_dir(root, prefix, leaf))?;
        let mut lost = lock(&self.lost);
        if made > 1 {
            lost.all.insert(ns);
        }
        if made > 0 {
            lost.leaves.insert((ns, prefix, leaf));
        }
        Ok(())
    }

    /// Heap bytes held.
    pub(crate) fn memory_bytes(&self) -> usize {
        self.stripes
            .iter()
            .map(|s| {
                let s = lock(s);
                let leaves: usize = s
                    .values()
                    .map(|h| h.leaves.capacity() * size_of::<LeafDir>())
                    .sum();
                leaves
                    + s.values()
                        .map(|h| h.named.capacity() * size_of::<DirKind>())
                        .sum::<usize>()
                    + s.capacity() * (size_of::<((u16, u32), High)>() + 1)
            })
            .sum()
    }
}
