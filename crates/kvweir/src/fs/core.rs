//! The state of a root's tiers behind their one lock: what they hold, and the bytes of that. Every call is a few memory
//! operations; nothing here does I/O, so the scheduler may take the lock at any time (I8).

use std::path::PathBuf;

use super::body::{DirClasses, FileBody, SlotBody};
use crate::{
    block::{Fingerprint, Key},
    budget::{COST_UNIT, Change},
    catalog::{Catalog, Holds, Origin, body::Rank, index::State, space::SpaceId},
    clock::Instant,
    evict::Id,
    metrics::{EvictReason, TierStats},
    root::{
        account::Account,
        accounts::Accounts,
        names::{DirClass, DirKind, Location, Prefix},
    },
    sync::{Mutex, lock},
};

/// Everything needed to remove a victim's file without the lock.
#[derive(Debug, Clone)]
pub(crate) struct Victim {
    pub(crate) id: Id,
    pub(crate) fp: Fingerprint,
    pub(crate) key: Option<Key>,
    pub(crate) class: DirClass,
    pub(crate) prefix: Prefix,
}

/// Extents of one space that were found on disk.
#[derive(Debug)]
struct FoundExtents {
    /// Whether it opens them.
    packs: bool,
    /// Their files, as far as they are not open yet.
    unclaimed: Vec<Id>,
}

/// The state.
pub(crate) struct Core {
    pub(crate) catalog: Catalog,
    pub(crate) account: Account,
    pub(crate) classes: DirClasses,
    /// Extents that were found, by space.
    found: Vec<FoundExtents>,
    scratch: Vec<Id>,
}

impl Core {
    /// An empty one; `packs` tells of each space whether it opens extents.
    pub(crate) fn new(catalog: Catalog, account: Account, packs: impl Iterator<Item = bool>) -> Self {
        let found = |packs| FoundExtents {
            packs,
            unclaimed: Vec::new(),
        };
        Self {
            catalog,
            account,
            classes: DirClasses::default(),
            found: packs.map(found).collect(),
            scratch: Vec::new(),
        }
    }

    /// Whether the namespace with this number is served here and packs.
    pub(crate) fn packs(&self, namespace: u16) -> bool {
        self.found.get(usize::from(namespace)).is_some_and(|f| f.packs)
    }

    /// Whether the namespace with this number is served here.
    pub(crate) fn serves(&self, namespace: u16) -> bool {
        usize::from(namespace) < self.found.len()
    }

    /// Files of extents of a space that are to be opened.
    pub(crate) fn add_unclaimed(&mut self, space: SpaceId, files: impl IntoIterator<Item = Id>) {
        if let Some(f) = self.found.get_mut(usize::from(space.0)) {
            f.unclaimed.extend(files);
        }
        let all: usize = self.found.iter().map(|f| f.unclaimed.len()).sum();
        self.catalog.stats.unopened_extents = all.div_ceil(2) as u64;
    }

    /// Takes them.
    pub(crate) fn take_unclaimed(&mut self, space: SpaceId) -> Vec<Id> {
        let found = self.found.get_mut(usize::from(space.0));
        found
            .map(|f| std::mem::take(&mut f.unclaimed))
            .unwrap_or_default()
    }

    /// Whether any space has such files.
    pub(crate) fn has_unclaimed(&self) -> bool {
        self.found.iter().any(|f| !f.unclaimed.is_empty())
    }

    /// What an entry tells of its file; `None` for a slot.
    pub(crate) fn file(&self, id: Id) -> Option<FileBody> {
        FileBody::of(&self.catalog.body(id))
    }

    /// What an entry tells of its slot; `None` for a file.
    pub(crate) fn slot(&self, id: Id) -> Option<SlotBody> {
        SlotBody::of(&self.catalog.body(id))
    }

    /// Where the file of an entry lies; `None` for a slot.
    pub(crate) fn place(&self, id: Id) -> Option<(DirClass, Prefix)> {
        let f = self.file(id)?;
        Some((self.classes.get(f.class)?, f.prefix))
    }

    /// Allocated bytes of the file of an entry; 0 for a slot.
    pub(crate) fn cost(&self, id: Id) -> u64 {
        self.file(id).map_or(0, FileBody::cost)
    }

    /// Counts the file of an entry as `cost` bytes, unless it is counted as more.
    pub(crate) fn recount(&mut self, id: Id, cost: u64) {
        let Some(file) = self.file(id) else { return };
        let before = file.cost();
        let counted = FileBody {
            units: FileBody::new(0, file.prefix, cost.max(before)).units,
            ..file
        };
        self.catalog.set_body(id, counted.body());
        self.account.budget.change(before, counted.cost());
    }

    /// Makes a block of ours that was found on disk a hit; `false` where it is known, or no entry can be had.
    pub(crate) fn admit_found(
        &mut self,
        fp: Fingerprint,
        at: &Location,
        cost: u64,
        (trailer, written_at): (bool, u64),
        key: Option<&Key>,
    ) -> bool {
        let Some(class) = self.classes.number(at.class().0) else {
            return false;
        };
        let body = FileBody::new(class, at.prefix, cost).written(trailer, written_at);
        let key = key.map(|k| (SpaceId(at.namespace), k));
        let Some(id) = self.catalog.discover(fp, State::Ready, body.body(), key) else {
            return false;
        };
        self.account.budget.add_resident(cost);
        self.catalog.rank(id, Origin::Found);
        true
    }

    /// Forgets a packed block; returns its slot, where nobody pins it: else it is [freed](Self::take_freed) with its
    /// last pin.
    pub(crate) fn forget_slot(&mut self, id: Id, reason: EvictReason, slot_bytes: u64) -> Option<u32> {
        let body = self.catalog.forget(id, reason, slot_bytes)?;
        Some(SlotBody::of(&body)?.slot)
    }

    /// Evicts blocks from the slots of `store`, `most` of them or, where not so many can go, fewer; appends their slots
    /// to `freed`.
    pub(crate) fn evict_slots(
        &mut self,
        store: u8,
        (most, slot_bytes): (u64, u64),
        now: Instant,
        freed: &mut Vec<u32>,
    ) {
        let mut bodies = Vec::new();
        self.catalog
            .evict_slots(store, (most, slot_bytes), now, &mut bodies);
        freed.extend(bodies.iter().filter_map(|b| Some(SlotBody::of(b)?.slot)));
    }

    /// Slots of `store` whose blocks were forgotten while they were pinned, and are not pinned any more.
    pub(crate) fn take_freed(&mut self, store: u8) -> Vec<u32> {
        let released = self.catalog.take_released(Rank::Slot(store));
        released
            .iter()
            .filter_map(|b| Some(SlotBody::of(b)?.slot))
            .collect()
    }

    /// Chooses victims worth at least `bytes`: enough, or none and `false`.
    pub(crate) fn choose_victims(&mut self, bytes: u64, now: Instant, out: &mut Vec<Victim>) -> bool {
        let mut ids = std::mem::take(&mut self.scratch);
        ids.clear();
        let enough = self.catalog.choose(bytes.div_ceil(COST_UNIT), now, &mut ids);
        out.extend(ids.iter().filter_map(|&id| self.victim(id)));
        self.scratch = ids;
        enough
    }

    /// Takes a resident entry out of its policy to remove its file.
    pub(crate) fn begin_removal(&mut self, id: Id) -> Option<Victim> {
        self.catalog.begin_removal(id);
        self.victim(id)
    }

    fn victim(&self, id: Id) -> Option<Victim> {
        let (class, prefix) = self.place(id)?;
        Some(Victim {
            id,
            fp: self.catalog.fingerprint(id),
            key: self.catalog.key(id).cloned(),
            class,
            prefix,
        })
    }

    /// The file of `id` is gone.
    pub(crate) fn settle_removed(&mut self, id: Id, reason: EvictReason, dirs: Change) {
        let cost = self.cost(id);
        self.account.budget.remove_resident(cost);
        self.account.budget.apply(dirs);
        let is_block = self
            .place(id)
            .is_none_or(|(class, _)| class.leaf != DirKind::Extent);
        self.catalog.removed(id, is_block.then_some((reason, cost)));
    }

    /// A snapshot as the tier of `space` tells it: what is held is the root's, of all its spaces together; traffic is
    /// its own. O(1) but for the index memory.
    pub(crate) fn snapshot(&self, space: SpaceId, unix_seconds: u64) -> TierStats {
        let (account, budget, all) = (&self.account, &self.account.budget, &self.catalog.stats);
        let oldest = self.catalog.oldest().and_then(|id| self.file(id));
        let oldest = oldest.map_or(0, |f| u64::from(f.stamp));
        let oldest = if oldest > 0 { oldest } else { unix_seconds };
        let (index, policies, _) = self.catalog.memory_bytes();
        TierStats {
            resident_bytes: budget.resident() + account.common,
            reserved_bytes: account.reserved(),
            peak_bytes: budget.peak() + account.common,
            bound_bytes: account.root_bound,
            above_bound_bytes: account.above_bound(),
            effective_bound_bytes: budget.effective().map(|e| e + account.common),
            oldest_age_seconds: unix_seconds.saturating_sub(oldest),
            trimming: account.trimming,
            index_bytes: (index + policies) as u64,
            blocks: all.blocks,
            pinned_blocks: all.pinned_blocks,
            pinned_peak: all.pinned_peak,
            evicted_blocks: all.evicted_blocks,
            evicted_bytes: all.evicted_bytes,
            unlink_failures: all.unlink_failures,
            startup_seconds: all.startup_seconds,
            recovered_blocks: all.recovered_blocks,
            swept_files: all.swept_files,
            foreign_files: all.foreign_files,
            unopened_extents: all.unopened_extents,
            trim_candidates: all.trim_candidates,
            ..self.catalog.traffic(space).clone()
        }
    }
}

impl Holds for Core {
    fn catalog(&mut self) -> &mut Catalog {
        &mut self.catalog
    }
}

impl Accounts for Mutex<Core> {
    fn grow(&self, bytes: u64) {
        lock(self).account.journal_grows(bytes);
    }

    fn shrink(&self, bytes: u64) {
        lock(self).account.budget.remove_resident(bytes);
    }

    fn apply(&self, change: Change) {
        lock(self).account.budget.apply(change);
    }

    fn leave_behind(&self, temp: PathBuf, bytes: u64) {
        let mut core = lock(self);
        core.catalog.stats.unlink_failures += 1;
        core.account.budget.add_resident(bytes);
        core.account.leftovers.push((temp, bytes));
    }

    fn has_leftovers(&self) -> bool {
        !lock(self).account.leftovers.is_empty()
    }

    fn take_leftovers(&self) -> Vec<(PathBuf, u64)> {
        std::mem::take(&mut lock(self).account.leftovers)
    }

    fn keep_leftovers(&self, stuck: Vec<(PathBuf, u64)>) {
        lock(self).account.leftovers.extend(stuck);
    }
}
