//! The primary tier: host memory in slots, the only tier an accelerator touches. A slot is free, being written, or
//! ready with a reference count; ready slots without references may be evicted. Blocks of one request are inserted
//! and touched leaf first, so that of two blocks equally recent the one nearer the leaf goes first.
//!
//! Keeps I3 (referenced slots, and those answered "hit" in this step, are not evicted) and I5 (a slot is handed out
//! only when no I/O guard of it exists). Full keys are kept and compared (I2).

#[cfg(test)]
mod tests;

use hashbrown::HashTable;

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

#[derive(Debug, Clone)]
struct Slot {
    key: Option<Key>,
    fp: Fingerprint,
    ready: bool,
    refs: u32,
    /// The step in which a lookup last answered "hit": until the step ends the slot stays.
    hit_in: u64,
}

/// The primary tier over a [`Region`].
#[derive(Debug)]
pub struct Primary {
    region: Region,
    slots: Vec<Slot>,
    table: HashTable<SlotId>,
    free: Vec<SlotId>,
    /// Free, but an I/O guard of them still exists.
    late: Vec<SlotId>,
    policy: Box<dyn Policy>,
    events: EventLog,
    step: u64,
    evicted: u64,
    allocation_failures: u64,
    referenced: u64,
    victims: Vec<Id>,
}

struct View<'a> {
    slots: &'a [Slot],
    region: &'a Region,
    step: u64,
}

impl Residents for View<'_> {
    fn evictable(&self, id: Id) -> bool {
        let slot = self.slots.get(id as usize);
        slot.is_some_and(|s| s.ready && s.refs == 0 && s.hit_in != self.step) && self.region.is_free(id)
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
            refs: 0,
            hit_in: u64::MAX,
        };
        Self {
            slots: vec![empty; n as usize],
            table: HashTable::with_capacity(n as usize),
            free: (0..n).rev().collect(),
            late: Vec::new(),
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
    }

    /// Makes room for those of `keys` (in prefix order) that are not here. `None`: not all of them fit, and nothing
    /// was changed. Blocks among `keys` that are here are not evicted for the others.
    pub fn prepare_store(&mut self, keys: &[Key], req: RequestId) -> Option<Prepared> {
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
        let Some(mut claimed) = self.claim(missing.len()) else {
            self.allocation_failures += 1;
            return None;
        };
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
                    refs: 0,
                    hit_in: u64::MAX,
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

    /// Takes free slots for `n` blocks; where they are too few, chooses the missing number of victims as well. All
    /// or none.
    fn claim(&mut self, n: usize) -> Option<Vec<SlotId>> {
        self.victims.clear();
        // slots whose last I/O had not ended when they became free (I5)
        let late = std::mem::take(&mut self.late);
        for id in late {
            if self.region.is_free(id) {
                self.free.push(id);
            } else {
                self.late.push(id);
            }
        }
        let mut claimed = Vec::with_capacity(n);
        while claimed.len() < n
            && let Some(id) = self.free.pop()
        {
            if self.region.is_free(id) {
                claimed.push(id);
            } else {
                self.late.push(id);
            }
        }
        let short = n - claimed.len();
        let view = View {
            slots: &self.slots,
            region: &self.region,
            step: self.step,
        };
        if short == 0 || self.policy.victims(short as u64, &view, &mut self.victims) {
            return Some(claimed);
        }
        self.free.append(&mut claimed);
        None
    }

    /// Empties a slot; returns the key it held.
    fn forget(&mut self, id: SlotId) -> Option<Key> {
        let slot = self.slots.get_mut(id as usize)?;
        let (key, fp) = (slot.key.take(), slot.fp);
        self.referenced -= u64::from(slot.refs > 0);
        (slot.ready, slot.refs) = (false, 0);
        if let Ok(e) = self.table.find_entry(fp.hash64(), |&other| other == id) {
            e.remove();
        }
        key
    }

    /// The bytes of `keys` arrived (`success`) or will not: they become readable, or their slots free.
    pub fn complete_store(&mut self, keys: &[Key], success: bool) {
        for key in keys {
            let found = self.slot_of(key).filter(|(_, s)| !s.ready).map(|(id, _)| id);
            // a slot that an I/O of ours still fills (a promotion) is completed by its report, not by an engine that
            // names more keys than it was given slots for (I2)
            let Some(id) = found.filter(|&id| !success || self.region.is_free(id)) else {
                continue;
            };
            if success {
                if let Some(slot) = self.slots.get_mut(id as usize) {
                    slot.ready = true;
                }
                self.events.stored(key);
            } else {
                self.policy.remove(id);
                self.forget(id);
                self.free.push(id);
            }
        }
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
                    self.complete_load(keys.get(..ids.len()).unwrap_or_default());
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

    /// Releases one reference on each of `keys`.
    pub fn complete_load(&mut self, keys: &[Key]) {
        for key in keys {
            if let Some((_, s)) = self.slot_of(key)
                && s.refs > 0
            {
                s.refs -= 1;
                let last = s.refs == 0;
                self.referenced -= u64::from(last);
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
