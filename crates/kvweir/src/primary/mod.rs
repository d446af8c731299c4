//! The primary tier: host memory in slots, the only tier an accelerator touches. A slot is free, being written, or
//! ready with a reference count; ready slots without references may be evicted. Blocks of one request are inserted
//! and touched leaf first, so that of two blocks equally recent the one nearer the leaf goes first.
//!
//! Keeps I3 (referenced slots, and those answered "hit" in this step, are not evicted) and I5 (a slot is handed out
//! only when no I/O guard of it exists). Full keys are kept and compared (I2).

#[cfg(test)]
mod tests;

use std::{cell::RefCell, collections::VecDeque};

use hashbrown::{HashTable, hash_table::Entry};

use crate::{
    block::{Fingerprint, Key},
    error::{Error, ErrorKind, Result},
    events::{Event, EventLog, Locality, Medium},
    evict::{Id, Policy, PolicyKind, Residents},
    io::{Region, region::SlotId},
    tier::RequestId,
};

/// Whether a block is in the primary tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotState {
    /// It is not.
    Absent,
    /// Its bytes are on their way.
    Writing,
    /// It can be read.
    Ready,
}

/// Room made for blocks to be stored.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Prepared {
    /// The blocks that were not there, each with the slot to write, in the order they were given.
    pub to_store: Vec<(Key, SlotId)>,
    /// Blocks that were evicted to make room.
    pub evicted: Vec<Key>,
}

/// Counters of the primary tier, in blocks.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct PrimaryStats {
    /// Slots in all.
    pub slots: u64,
    /// Slots that hold a block or will.
    pub used: u64,
    /// Ready slots with at least one reference.
    pub referenced: u64,
    /// Blocks evicted.
    pub evicted: u64,
    /// Times no room could be made.
    pub allocation_failures: u64,
}

/// A slot as it was handed out once. What is said of it later holds for that time only: when the slot is somebody else's,
/// a late word changes nothing.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    slot: SlotId,
    life: u32,
}

impl Claim {
    pub(crate) fn slot(self) -> SlotId {
        self.slot
    }
}

/// Who brings the bytes of a slot that is being written, and alone may say that they came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Writer {
    /// The engine, for this request.
    Engine(RequestId),
    /// A tier, by the job that holds the [`Claim`].
    Tier,
}

#[derive(Debug, Clone)]
struct Slot {
    key: Option<Key>,
    fp: Fingerprint,
    ready: bool,
    /// Noted in `Primary::guarded`.
    waits: bool,
    refs: u32,
    /// How often the slot was given to somebody else; see [`Claim`].
    life: u32,
    writer: Writer,
    /// The step in which a lookup last answered "hit": until the step ends the slot stays.
    hit_in: u64,
}

/// Drops what is given more than once but for the first time.
fn keep_distinct(blocks: &mut Vec<(&Key, Fingerprint)>) {
    let mut seen: HashTable<(&Key, Fingerprint)> = HashTable::with_capacity(blocks.len());
    blocks.retain(|&(key, fp)| {
        let same = |&(k, f): &(&Key, Fingerprint)| f == fp && k == key;
        match seen.entry(fp.hash64(), same, |(_, f)| f.hash64()) {
            Entry::Occupied(_) => false,
            Entry::Vacant(free) => {
                free.insert((key, fp));
                true
            }
        }
    });
}

/// The primary tier over a [`Region`].
#[derive(Debug)]
pub struct Primary {
    region: Region,
    slots: Vec<Slot>,
    table: HashTable<SlotId>,
    free: Vec<SlotId>,
    /// Free, but an I/O guard of them still exists.
    late: VecDeque<SlotId>,
    /// Passed over by an eviction for a hit in this step.
    until_step: Vec<SlotId>,
    /// Passed over for no reason but an I/O guard: nobody tells when that goes.
    guarded: VecDeque<SlotId>,
    policy: Box<dyn Policy>,
    events: EventLog,
    step: u64,
    evicted: u64,
    allocation_failures: u64,
    referenced: u64,
    victims: Vec<Id>,
}

/// So many slots in `late` and `guarded` are looked at in any case when room is made, and twice as many as are wanted.
const LATE_AT_ONCE: usize = 16;

struct View<'a> {
    slots: &'a [Slot],
    region: &'a Region,
    step: u64,
    until_step: RefCell<&'a mut Vec<SlotId>>,
    guarded: RefCell<&'a mut VecDeque<SlotId>>,
}

impl Residents for View<'_> {
    fn evictable(&self, id: Id) -> bool {
        let Some(slot) = self.slots.get(id as usize) else {
            return false;
        };
        // of the last reference, and of the bytes of a slot that is written, we are told
        if !slot.ready || slot.refs > 0 {
            return false;
        }
        if slot.hit_in == self.step {
            self.until_step.borrow_mut().push(id);
            return false;
        }
        let is_free = self.region.is_free(id);
        if !is_free && !slot.waits {
            self.guarded.borrow_mut().push_back(id);
        }
        is_free
    }

    fn fingerprint(&self, id: Id) -> Fingerprint {
        self.slots.get(id as usize).map_or(Fingerprint(0), |s| s.fp)
    }
}

impl Primary {
    /// An empty tier over `region`; with `events`, residency changes are recorded.
    pub fn new(region: Region, policy: PolicyKind, events: bool) -> Self {
        let n = region.num_slots();
        let empty = Slot {
            key: None,
            fp: Fingerprint(0),
            ready: false,
            waits: false,
            refs: 0,
            life: 0,
            writer: Writer::Tier,
            hit_in: u64::MAX,
        };
        Self {
            slots: vec![empty; n as usize],
            table: HashTable::with_capacity(n as usize),
            free: (0..n).rev().collect(),
            late: VecDeque::new(),
            until_step: Vec::new(),
            guarded: VecDeque::new(),
            policy: policy.build(u64::from(n)),
            events: EventLog::new(events, Medium::Cpu, Locality::Local),
            step: 0,
            evicted: 0,
            allocation_failures: 0,
            referenced: 0,
            victims: Vec::new(),
            region,
        }
    }

    /// The memory.
    pub fn region(&self) -> &Region {
        &self.region
    }

    fn find(&self, key: &Key, fp: Fingerprint) -> Option<SlotId> {
        let same = |&id: &SlotId| {
            self.slots
                .get(id as usize)
                .is_some_and(|s| s.fp == fp && s.key.as_ref() == Some(key))
        };
        self.table.find(fp.hash64(), same).copied()
    }

    fn slot_of(&mut self, key: &Key) -> Option<(SlotId, &mut Slot)> {
        let id = self.find(key, key.fingerprint(0))?;
        self.slots.get_mut(id as usize).map(|s| (id, s))
    }

    /// Where `key` stands. A ready block stays until the end of the step.
    pub fn lookup(&mut self, key: &Key) -> SlotState {
        let step = self.step;
        match self.slot_of(key) {
            None => SlotState::Absent,
            Some((_, s)) if s.ready => {
                s.hit_in = step;
                SlotState::Ready
            }
            Some(_) => SlotState::Writing,
        }
    }

    /// Whether `key` is here, without holding it.
    pub fn state(&self, key: &Key) -> SlotState {
        match self
            .find(key, key.fingerprint(0))
            .and_then(|id| self.slots.get(id as usize))
        {
            None => SlotState::Absent,
            Some(s) if s.ready => SlotState::Ready,
            Some(_) => SlotState::Writing,
        }
    }

    /// A step of the scheduler ends: blocks that were only looked up may be evicted again.
    pub fn end_step(&mut self) {
        self.step += 1;
        for id in self.until_step.drain(..) {
            self.policy.unpinned(id);
        }
    }

    /// Makes room for those of `keys` (in prefix order) that are not here. `None`: not all of them fit, and nothing
    /// was changed. Blocks among `keys` that are here are not evicted for the others; one given twice takes one slot.
    pub fn prepare_store(&mut self, keys: &[Key], req: RequestId) -> Option<Prepared> {
        self.reserve(keys, req, Writer::Engine(req))
    }

    /// Makes room for `key`, which is not here and which a tier is to bring up.
    pub(crate) fn prepare_promotion(&mut self, key: &Key, req: RequestId) -> Option<Claim> {
        let out = self.reserve(std::slice::from_ref(key), req, Writer::Tier)?;
        let &(_, slot) = out.to_store.first()?;
        self.claim_of(slot)
    }

    fn claim_of(&self, slot: SlotId) -> Option<Claim> {
        let life = self.slots.get(slot as usize)?.life;
        Some(Claim { slot, life })
    }

    fn reserve(&mut self, keys: &[Key], req: RequestId, writer: Writer) -> Option<Prepared> {
        let mut missing: Vec<(&Key, Fingerprint)> = Vec::with_capacity(keys.len());
        let step = self.step;
        for key in keys {
            let fp = key.fingerprint(0);
            match self.find(key, fp).and_then(|id| self.slots.get_mut(id as usize)) {
                Some(slot) if slot.ready => slot.hit_in = step,
                Some(_) => {}
                None => missing.push((key, fp)),
            }
        }
        self.take_back(LATE_AT_ONCE + 2 * missing.len());
        let mut claimed = self.take_free(missing.len());
        if claimed.len() < missing.len() {
            // nothing is evicted for a key that was given twice
            keep_distinct(&mut missing);
        }
        if !self.make_room(missing.len(), &mut claimed) {
            self.free.append(&mut claimed);
            self.allocation_failures += 1;
            return None;
        }
        let mut out = Prepared {
            to_store: Vec::with_capacity(missing.len()),
            evicted: Vec::new(),
        };
        for id in std::mem::take(&mut self.victims) {
            out.evicted.extend(self.forget(id));
            claimed.push(id);
        }
        self.evicted += out.evicted.len() as u64;
        for key in &out.evicted {
            self.events.removed(key);
        }
        for (key, fp) in missing {
            if self.find(key, fp).is_some() {
                // given twice
                continue;
            }
            let Some(id) = claimed.pop() else { break };
            if let Some(s) = self.slots.get_mut(id as usize) {
                *s = Slot {
                    key: Some(key.clone()),
                    fp,
                    ready: false,
                    writer,
                    hit_in: u64::MAX,
                    ..*s
                };
            }
            let slots = &self.slots;
            let rehash = |&id: &SlotId| slots.get(id as usize).map_or(0, |s| s.fp.hash64());
            self.table.insert_unique(fp.hash64(), id, rehash);
            out.to_store.push((key.clone(), id));
        }
        self.free.append(&mut claimed);
        // leaf first: the head of the prefix becomes the most recent
        for (_, id) in out.to_store.iter().rev() {
            let fp = self.slots.get(*id as usize).map_or(Fingerprint(0), |s| s.fp);
            self.policy.insert(*id, fp, 1, req.tag());
        }
        Some(out)
    }

    /// Chooses as many victims as `claimed` is short of `n`, or finds more free slots; all or none.
    fn make_room(&mut self, n: usize, claimed: &mut Vec<SlotId>) -> bool {
        self.victims.clear();
        if self.choose_victims(n.saturating_sub(claimed.len())) {
            return true;
        }
        // before it fails, I/O that ended meanwhile is looked for in earnest
        if !self.take_back(usize::MAX) {
            return false;
        }
        claimed.append(&mut self.take_free(n - claimed.len()));
        self.choose_victims(n - claimed.len())
    }

    /// At most `n` free slots.
    fn take_free(&mut self, n: usize) -> Vec<SlotId> {
        let mut taken = Vec::with_capacity(n);
        while taken.len() < n
            && let Some(id) = self.free.pop()
        {
            if self.region.is_free(id) {
                taken.push(id);
            } else {
                self.late.push_back(id);
            }
        }
        taken
    }

    /// Looks at `most` slots that are free and `most` that are ready, but whose I/O had not ended when they were looked
    /// at last (I5). Returns whether that of one has.
    fn take_back(&mut self, most: usize) -> bool {
        let mut any = false;
        for _ in 0..most.min(self.late.len()) {
            let Some(id) = self.late.pop_front() else { break };
            if self.region.is_free(id) {
                self.free.push(id);
                any = true;
            } else {
                self.late.push_back(id);
            }
        }
        for _ in 0..most.min(self.guarded.len()) {
            let Some(id) = self.guarded.pop_front() else {
                break;
            };
            if self.region.is_free(id) {
                if let Some(slot) = self.slots.get_mut(id as usize) {
                    slot.waits = false;
                }
                self.policy.unpinned(id);
                any = true;
            } else {
                self.guarded.push_back(id);
            }
        }
        any
    }

    /// Chooses `n` victims; all or none.
    fn choose_victims(&mut self, n: usize) -> bool {
        if n == 0 {
            return true;
        }
        let known = self.guarded.len();
        let view = View {
            slots: &self.slots,
            region: &self.region,
            step: self.step,
            until_step: RefCell::new(&mut self.until_step),
            guarded: RefCell::new(&mut self.guarded),
        };
        let enough = self.policy.victims(n as u64, &view, &mut self.victims);
        for &id in self.guarded.range(known..) {
            if let Some(slot) = self.slots.get_mut(id as usize) {
                slot.waits = true;
            }
        }
        enough
    }

    /// Empties a slot; returns the key it held.
    fn forget(&mut self, id: SlotId) -> Option<Key> {
        let slot = self.slots.get_mut(id as usize)?;
        let (key, fp) = (slot.key.take(), slot.fp);
        self.referenced -= u64::from(slot.refs > 0);
        (slot.ready, slot.refs) = (false, 0);
        slot.life = slot.life.wrapping_add(1);
        if let Ok(e) = self.table.find_entry(fp.hash64(), |&other| other == id) {
            e.remove();
        }
        key
    }

    /// The bytes of `keys` arrived (`success`) or will not: they become readable, or their slots free. Only of slots that
    /// [`prepare_store`](Self::prepare_store) handed out: what a tier brings up is its job's to complete.
    pub fn complete_store(&mut self, keys: &[Key], success: bool) {
        self.complete_keys(keys, success, |w| w != Writer::Tier);
    }

    /// The same for slots that were handed out to `req`: an engine may name more keys than it was given slots for, and
    /// the others' bytes are not its own to speak of (I2).
    pub(crate) fn complete_store_of(&mut self, keys: &[Key], req: RequestId, success: bool) {
        self.complete_keys(keys, success, |w| w == Writer::Engine(req));
    }

    fn complete_keys(&mut self, keys: &[Key], success: bool, is_his: impl Fn(Writer) -> bool) {
        for key in keys {
            if let Some((id, s)) = self.slot_of(key)
                && !s.ready
                && is_his(s.writer)
            {
                self.settle(id, success);
            }
        }
    }

    /// The bytes of a promoted block arrived or will not. Returns whether the block is readable now: not if the slot is
    /// another's by now, nor if its guard still exists, so that its bytes may yet change; then it is free once that is
    /// dropped.
    pub(crate) fn complete(&mut self, claim: Claim, success: bool) -> bool {
        let id = claim.slot;
        let Some(s) = self.slots.get(id as usize) else {
            return false;
        };
        if s.life != claim.life || s.ready || s.key.is_none() {
            return false;
        }
        let arrived = success && self.region.is_free(id);
        self.settle(id, arrived);
        arrived
    }

    /// A slot that is written becomes readable or free.
    fn settle(&mut self, id: SlotId, success: bool) {
        if !success {
            self.policy.remove(id);
            self.forget(id);
            self.free.push(id);
            return;
        }
        if let Some(slot) = self.slots.get_mut(id as usize) {
            slot.ready = true;
            if let Some(key) = &slot.key {
                self.events.stored(key);
            }
        }
        self.policy.unpinned(id);
    }

    /// References `keys` for reading and tells their slots: all, or none and an error.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] when a key is not here or not ready: look it up in the same step first.
    pub fn prepare_load(&mut self, keys: &[Key]) -> Result<Vec<SlotId>> {
        let mut ids = Vec::with_capacity(keys.len());
        for key in keys {
            match self.slot_of(key) {
                Some((id, s)) if s.ready => {
                    s.refs += 1;
                    self.referenced += u64::from(s.refs == 1);
                    ids.push(id);
                }
                _ => {
                    ids.iter().for_each(|&id| self.dereference(id));
                    return Err(Error::new(
                        ErrorKind::Invalid,
                        "load",
                        format!("block {key} is not ready"),
                    ));
                }
            }
        }
        Ok(ids)
    }

    /// References `keys` as [`prepare_load`](Self::prepare_load) does, for a job that gives the claims back.
    pub(crate) fn reference(&mut self, keys: &[Key]) -> Result<Vec<Claim>> {
        let ids = self.prepare_load(keys)?;
        Ok(ids.into_iter().filter_map(|id| self.claim_of(id)).collect())
    }

    /// Releases one reference on each of `keys`.
    pub fn complete_load(&mut self, keys: &[Key]) {
        for key in keys {
            if let Some(id) = self.find(key, key.fingerprint(0)) {
                self.dereference(id);
            }
        }
    }

    /// Releases the references that [`reference`](Self::reference) took, of slots that are still the same block's.
    pub(crate) fn release(&mut self, claims: &[Claim]) {
        for claim in claims {
            if self
                .slots
                .get(claim.slot as usize)
                .is_some_and(|s| s.life == claim.life)
            {
                self.dereference(claim.slot);
            }
        }
    }

    fn dereference(&mut self, id: SlotId) {
        if let Some(s) = self.slots.get_mut(id as usize)
            && s.refs > 0
        {
            s.refs -= 1;
            if s.refs == 0 {
                self.referenced -= 1;
                self.policy.unpinned(id);
            }
        }
    }

    /// Marks `keys` (in prefix order) as used by `req`, leaf first.
    pub fn touch(&mut self, keys: &[Key], req: RequestId) {
        for key in keys.iter().rev() {
            if let Some(id) = self.find(key, key.fingerprint(0)) {
                self.policy.access(id, req.tag());
            }
        }
    }

    /// Forgets every block. The engine has ended its own transfers; slots that an I/O still touches are not handed
    /// out before it ends (I5). Completions of what began before are ignored.
    pub fn reset(&mut self) {
        for id in 0..self.region.num_slots() {
            let ready = self.slots.get(id as usize).is_some_and(|s| s.ready);
            self.policy.remove(id);
            if let Some(key) = self.forget(id) {
                if ready {
                    self.events.removed(&key);
                }
                self.free.push(id);
            }
        }
    }

    /// Appends the residency changes since the last call.
    pub fn take_events(&mut self, events: &mut Vec<Event>) {
        self.events.take(events);
    }

    /// Counters.
    pub fn stats(&self) -> PrimaryStats {
        PrimaryStats {
            slots: u64::from(self.region.num_slots()),
            used: u64::from(self.region.num_slots()) - (self.free.len() + self.late.len()) as u64,
            referenced: self.referenced,
            evicted: self.evicted,
            allocation_failures: self.allocation_failures,
        }
    }
}
