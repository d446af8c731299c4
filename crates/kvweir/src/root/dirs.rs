//! Directories of a bounded root: how many files each leaf holds and what each directory costs, so that `du`
//! agrees with the account and emptied directories go (I1). Making and removing directories happens under the
//! lock of their stripe, which only I/O workers take; the tier's own lock is never held across these calls.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    io,
    ops::Bound,
    path::Path,
};

use foldhash::fast::FixedState;

use super::{
    journal::DirCosts,
    leaves::Row,
    names::{Fan, Leaf, Shelf, high_dir, leaf_dir},
};
use crate::{
    budget::Change,
    catalog::index::COST_UNIT,
    io::{Disk, Stat},
    sync::{Mutex, lock},
};

/// Locks that share the first-level directories.
const STRIPES: u32 = 64;
/// Directories looked at again under one hold of a stripe.
const LOOKED_AT_ONCE: usize = 32;
/// Entries a directory can surely hold in its first block; beyond, its size is read after each new file.
const SMALL_DIR: u32 = 8;
/// Directories from a leaf up to the root, both included; and those that a leaf needs below its namespace's.
const LEVELS: usize = 4;
const LEVELS_A_LEAF: usize = 2;

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
    /// What went behind our back, until somebody looks.
    lost: Mutex<Lost>,
}

/// What became of directories without files that were looked at again.
#[derive(Debug, Default)]
pub(crate) struct Emptied {
    pub(crate) change: Change,
    /// Those that are gone, and those above them, with what they cost now: shelf, level, place, units of 512 bytes.
    pub(crate) told: Vec<(Shelf, u16, Fan, u32)>,
}

/// Directories of our namespace that were counted and turned out not to be there.
#[derive(Debug, Default)]
pub(crate) struct Lost {
    /// Any of them may be gone.
    pub(crate) all: bool,
    /// These leaves are.
    pub(crate) leaves: HashSet<(Fan, Leaf), FixedState>,
}

/// A first-level directory and its leaves.
#[derive(Debug, Default)]
struct High {
    cost: u64,
    leaves: Vec<LeafDir>,
    named: Vec<Leaf>,
}

/// One leaf: 12 bytes, since a root has about as many leaves as blocks.
#[derive(Debug, Clone, Copy)]
struct LeafDir {
    low: u8,
    /// Index into the parent's list of leaf kinds.
    kind: u16,
    files: u32,
    /// Units of 512 bytes.
    cost: u32,
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
        let lost = lock(&self.lost);
        lost.all || !lost.leaves.is_empty()
    }

    /// Takes what was found to be gone since the last call.
    pub(crate) fn take_lost(&self) -> Lost {
        std::mem::take(&mut lock(&self.lost))
    }

    fn stripe(&self, fan: Fan) -> Option<&Stripe> {
        self.stripes.get((fan.high() % STRIPES) as usize)
    }

    /// Counts a file found at start-up.
    pub(crate) fn found_file(&self, ns: u16, fan: Fan, leaf: Leaf) {
        if let Some(s) = self.stripe(fan) {
            lock(s).entry((ns, fan.high())).or_default().leaf(fan, leaf).files += 1;
        }
    }

    /// Counts the cost of a directory found at start-up; without `leaf`, the first-level one.
    pub(crate) fn found_dir(&self, ns: u16, fan: Fan, leaf: Option<Leaf>, bytes: u64) {
        if let Some(s) = self.stripe(fan) {
            let mut s = lock(s);
            let high = s.entry((ns, fan.high())).or_default();
            match leaf {
                Some(l) => high.leaf(fan, l).cost = units(bytes),
                None => high.cost = bytes,
            }
        }
    }

    /// Notes the cost, already counted, of a namespace's own directory.
    pub(crate) fn found_top(&self, ns: u16, bytes: u64) {
        lock(&self.tops).insert(ns, bytes);
    }

    /// Counts files found at start-up, by leaf of a first-level directory.
    pub(crate) fn found_files(&self, ns: u16, high: u32, kind: Leaf, row: &Row) {
        self.each_leaf(ns, high, kind, row, |leaf, files| leaf.files += files);
    }

    /// Counts leaf directories that a dead member counted, unless they are counted here already; returns the bytes added.
    pub(crate) fn also_leaves(&self, ns: u16, high: u32, kind: Leaf, costs: &Row) -> u64 {
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
        kind: Leaf,
        row: &Row,
        mut change: impl FnMut(&mut LeafDir, u32),
    ) {
        let Some(stripe) = self.stripe(Fan(high << 8)) else {
            return;
        };
        let mut s = lock(stripe);
        let dir = s.entry((ns, high)).or_default();
        if dir.leaves.is_empty() {
            dir.leaves.reserve_exact(row.iter().filter(|&&n| n > 0).count());
        }
        for (low, &n) in (0..).zip(row).filter(|l| *l.1 > 0) {
            change(dir.leaf(Fan(high << 8 | low), kind), n);
        }
    }

    /// The same as [`also_leaves`](Self::also_leaves) for a first-level directory.
    pub(crate) fn also_high(&self, ns: u16, high: u32, bytes: u64) -> u64 {
        let Some(stripe) = self.stripe(Fan(high << 8)) else {
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

    /// Forgets what a leaf costs, to look at it again; returns what was counted for it. Its count of files stays
    /// where others of ours lie in it.
    pub(crate) fn forget_leaf(&self, ns: u16, fan: Fan, leaf: Leaf) -> u64 {
        let Some(stripe) = self.stripe(fan) else { return 0 };
        let mut s = lock(stripe);
        let Some(high) = s.get_mut(&(ns, fan.high())) else {
            return 0;
        };
        let cost = high.leaf_cost(fan, leaf);
        let l = high.leaf(fan, leaf);
        l.cost = 0;
        if l.files == 0 {
            high.forget(fan, leaf);
        }
        cost
    }

    /// Removes a first-level directory if nothing is in it, else reads its size and that of the namespace again.
    pub(crate) fn look_again(&self, disk: &dyn Disk, root: &Path, ns: u16, high: u32, path: &Path) -> Change {
        let mut change = Change::default();
        let Some(stripe) = self.stripe(Fan(high << 8)) else {
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
        fan: Fan,
        leaf: Leaf,
    ) -> (Change, io::Result<()>) {
        let mut change = Change::default();
        let Some(stripe) = self.stripe(fan) else {
            return (change, Ok(()));
        };
        let mut s = lock(stripe);
        let high = s.entry((ns, fan.high())).or_default();
        let l = high.leaf(fan, leaf);
        l.files += 1;
        if l.files > 1 {
            return (change, Ok(()));
        }
        let path = leaf_dir(root, fan, leaf);
        let made = make_dir(disk, &path).and_then(|made| {
            if made > LEVELS_A_LEAF && ns == 0 {
                // the namespace's own directory was not there
                lock(&self.lost).all = true;
            }
            let now = disk.stat(&path)?.allocated;
            high.leaf(fan, leaf).cost = units(change.set(high.leaf_cost(fan, leaf), now));
            let now = disk.stat(&high_dir(root, fan.high()))?.allocated;
            let is_new = high.cost == 0;
            high.cost = change.set(high.cost, now);
            if is_new {
                self.top_changed(disk, root, ns, &mut change);
            }
            Ok(())
        });
        if made.is_err() {
            let cost = high.leaf_cost(fan, leaf);
            high.drop_file(fan, leaf);
            if gone(disk.remove_dir(&path)) {
                change.set(cost, 0);
                high.forget(fan, leaf);
            } else {
                lock(&self.emptied).insert((ns, fan.high()));
            }
            if high.leaves.is_empty() {
                if gone(disk.remove_dir(&high_dir(root, fan.high()))) {
                    change.set(high.cost, 0);
                    s.remove(&(ns, fan.high()));
                } else {
                    lock(&self.emptied).insert((ns, fan.high()));
                }
            }
        }
        (change, made)
    }

    /// Reads the size of a leaf again where a new file may have made it grow.
    pub(crate) fn grown(&self, disk: &dyn Disk, root: &Path, ns: u16, fan: Fan, leaf: Leaf) -> Change {
        let mut change = Change::default();
        let Some(stripe) = self.stripe(fan) else {
            return change;
        };
        let mut s = lock(stripe);
        let high = s.entry((ns, fan.high())).or_default();
        if high.leaf(fan, leaf).files > SMALL_DIR
            && let Ok(Stat { allocated, .. }) = disk.stat(&leaf_dir(root, fan, leaf))
        {
            high.leaf(fan, leaf).cost = units(change.set(high.leaf_cost(fan, leaf), allocated));
        }
        change
    }

    /// Counts a file gone from a leaf and removes the directories that it leaves empty. A directory that cannot
    /// be removed (a file lies in it that is not ours) stays counted, and is looked at again.
    pub(crate) fn leave(&self, disk: &dyn Disk, root: &Path, ns: u16, fan: Fan, leaf: Leaf) -> Change {
        let mut change = Change::default();
        let Some(stripe) = self.stripe(fan) else {
            return change;
        };
        let mut s = lock(stripe);
        let Some(high) = s.get_mut(&(ns, fan.high())) else {
            return change;
        };
        if high.drop_file(fan, leaf) > 0 {
            return change;
        }
        let mut all_gone = gone(disk.remove_dir(&leaf_dir(root, fan, leaf)));
        if all_gone {
            change.set(high.leaf_cost(fan, leaf), 0);
            high.forget(fan, leaf);
            if high.leaves.is_empty() {
                all_gone = gone(disk.remove_dir(&high_dir(root, fan.high())));
                if all_gone {
                    change.set(high.cost, 0);
                    s.remove(&(ns, fan.high()));
                    self.top_changed(disk, root, ns, &mut change);
                }
            }
        }
        if !all_gone {
            lock(&self.emptied).insert((ns, fan.high()));
        }
        change
    }

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
        let Some(stripe) = self.stripe(Fan(digits << 8)) else {
            return out;
        };
        let mut s = lock(stripe);
        lock(&self.emptied).remove(&(ns, digits));
        let Some(high) = s.get_mut(&(ns, digits)) else {
            return out;
        };
        let shelf = |leaf| Shelf { namespace: ns, leaf };
        let empty = high.leaves.iter().filter(|l| l.files == 0 && l.cost > 0);
        let empty: Vec<LeafDir> = empty.take(LOOKED_AT_ONCE).copied().collect();
        let mut left = empty.len() == LOOKED_AT_ONCE;
        for l in empty {
            let Some(&leaf) = high.named.get(usize::from(l.kind)) else {
                continue;
            };
            let fan = Fan(digits << 8 | u32::from(l.low));
            if gone(disk.remove_dir(&leaf_dir(root, fan, leaf))) {
                out.change.set(high.leaf_cost(fan, leaf), 0);
                high.forget(fan, leaf);
                out.told.push((shelf(leaf), 2, fan, 0));
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
                out.told.push((shelf(Leaf::Keyed), 1, Fan(digits << 8), 0));
                out.told.push((shelf(Leaf::Keyed), 0, Fan(0), top));
            } else {
                left = true;
            }
        }
        if left {
            lock(&self.emptied).insert((ns, digits));
        }
        out
    }

    /// What the directories above a leaf's blocks cost, in units of 512 bytes; 0 for what is not there.
    pub(crate) fn costs(&self, ns: u16, fan: Fan, leaf: Leaf) -> DirCosts {
        let (mut leaf_cost, mut high_cost) = (0, 0);
        if let Some(stripe) = self.stripe(fan)
            && let Some(high) = lock(stripe).get_mut(&(ns, fan.high()))
        {
            high_cost = units(high.cost);
            if let Ok(at) = high.position(fan, leaf) {
                leaf_cost = high.leaves.get(at).map_or(0, |l| l.cost);
            }
        }
        let top = lock(&self.tops).get(&ns).map_or(0, |&t| units(t));
        [leaf_cost, high_cost, top]
    }

    /// Directories that are there though no counted block needs them: namespace, leaf kind, place, level (0 namespace,
    /// 1 first, 2 leaf), cost in units of 512 bytes.
    pub(crate) fn empty_ones(&self) -> Vec<(Shelf, u16, Fan, u32)> {
        let mut out = Vec::new();
        for s in &self.stripes {
            for (&(namespace, digits), high) in lock(s).iter() {
                for l in high.leaves.iter().filter(|l| l.files == 0 && l.cost > 0) {
                    if let Some(&leaf) = high.named.get(usize::from(l.kind)) {
                        let fan = Fan(digits << 8 | u32::from(l.low));
                        out.push((Shelf { namespace, leaf }, 2, fan, l.cost));
                    }
                }
                if high.leaves.iter().all(|l| l.files == 0) && high.cost > 0 {
                    let leaf = Leaf::Keyed;
                    out.push((Shelf { namespace, leaf }, 1, Fan(digits << 8), units(high.cost)));
                }
            }
        }
        for (&namespace, &top) in lock(&self.tops).iter() {
            let leaf = Leaf::Keyed;
            out.push((Shelf { namespace, leaf }, 0, Fan(0), units(top)));
        }
        out
    }

    /// Makes a counted leaf's directories again after somebody else removed them; what they cost is known already.
    pub(crate) fn remake(&self, disk: &dyn Disk, root: &Path, fan: Fan, leaf: Leaf) -> io::Result<()> {
        let Some(stripe) = self.stripe(fan) else {
            return Ok(());
        };
        let _turn = lock(stripe);
        let made = make_dir(disk, &leaf_dir(root, fan, leaf))?;
        let mut lost = lock(&self.lost);
        lost.all |= made > 1;
        if made > 0 {
            lost.leaves.insert((fan, leaf));
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
                        .map(|h| h.named.capacity() * size_of::<Leaf>())
                        .sum::<usize>()
                    + s.capacity() * (size_of::<((u16, u32), High)>() + 1)
            })
            .sum()
    }
}

impl High {
    fn kind(&mut self, leaf: Leaf) -> u16 {
        let at = self.named.iter().position(|&l| l == leaf).unwrap_or_else(|| {
            self.named.reserve_exact(1);
            self.named.push(leaf);
            self.named.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }

    fn position(&mut self, fan: Fan, leaf: Leaf) -> Result<usize, usize> {
        let want = (fan.low() as u8, self.kind(leaf));
        let key = |l: &LeafDir| (l.low, l.kind);
        // where it lies in a full directory of one kind: no search over distant memory
        let full = fan.low() as usize;
        match self.leaves.get(full) {
            Some(l) if key(l) == want => Ok(full),
            _ => self.leaves.binary_search_by_key(&want, key),
        }
    }

    fn leaf(&mut self, fan: Fan, leaf: Leaf) -> &mut LeafDir {
        let at = self.position(fan, leaf).unwrap_or_else(|at| {
            if self.leaves.len() == self.leaves.capacity() {
                // an eighth more: memory a block counts
                self.leaves.reserve_exact(1 + self.leaves.len() / 8);
            }
            let kind = self.kind(leaf);
            self.leaves.insert(
                at,
                LeafDir {
                    low: fan.low() as u8,
                    kind,
                    files: 0,
                    cost: 0,
                },
            );
            at
        });
        #[expect(clippy::indexing_slicing, reason = "found or inserted just above")]
        &mut self.leaves[at]
    }

    fn leaf_cost(&mut self, fan: Fan, leaf: Leaf) -> u64 {
        u64::from(self.leaf(fan, leaf).cost) * 512
    }

    /// Returns how many files remain.
    fn drop_file(&mut self, fan: Fan, leaf: Leaf) -> u32 {
        let l = self.leaf(fan, leaf);
        l.files = l.files.saturating_sub(1);
        let left = l.files;
        if left == 0 && l.cost == 0 {
            // never made on disk
            self.forget(fan, leaf);
        }
        left
    }

    fn forget(&mut self, fan: Fan, leaf: Leaf) {
        if let Ok(at) = self.position(fan, leaf) {
            self.leaves.remove(at);
        }
    }
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(512)).unwrap_or(u32::MAX)
}

fn gone(r: io::Result<()>) -> bool {
    match r {
        Ok(()) => true,
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    }
}

/// Makes `path` and, where missing, those above it, the root included; an existing directory is fine. Returns how many
/// were made.
fn make_dir(disk: &dyn Disk, path: &Path) -> io::Result<usize> {
    let mut missing = Vec::new();
    let mut made = 0;
    for p in path.ancestors().take(LEVELS) {
        match disk.create_dir(p) {
            Ok(()) => made += 1,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound && missing.len() + 1 < LEVELS => {
                missing.push(p);
                continue;
            }
            Err(e) => return Err(e),
        }
        break;
    }
    for p in missing.into_iter().rev() {
        match disk.create_dir(p) {
            Ok(()) => made += 1,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Ok(made)
}
