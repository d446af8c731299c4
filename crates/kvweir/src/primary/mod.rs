//! The primary tier: host memory in slots, the only tier an accelerator touches. A slot is free, being written, or
//! ready with a reference count; ready slots without references may be evicted. Blocks of one request are inserted
//! and touched leaf first, so that of two blocks equally recent the one nearer the leaf goes first.
//!
//! Keeps I3 (referenced slots, and those answered "hit" in this step, are not evicted) and I5 (a slot is handed out
//! only when no I/O guard of it exists). Full keys are kept and compared (I2).
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | [`Primary`]: the calls of a manager |
//! | `slot.rs` | a slot, and the claims on it |
//! | `hold.rs` | blocks held for requests that wait |
//! | `room.rs` | free slots, victims, and slots whose I/O still runs |

mod hold;
mod room;
mod slot;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;

use hashbrown::HashTable;

pub use self::slot::SlotState;
use self::slot::{Slot, Writer};
pub(crate) use self::{hold::Standing, slot::Claim};
use crate::{
    block::{Fingerprint, Key},
    error::{Error, ErrorKind, Result},
    events::{Event, EventLog, Locality, Medium},
    evict::{Id, Policy, PolicyKind},
    io::{Region, region::SlotId},
    request::RequestId,
};

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
    /// Slots that are being written.
    pub writing: u64,
    /// Slots held for requests that wait to be scheduled.
    pub held: u64,
    /// Blocks evicted.
    pub evicted: u64,
    /// How often no room could be made.
    pub allocation_failures: u64,
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
    /// Passed over by an eviction because of a hit in this step.
    until_step: Vec<SlotId>,
    /// Passed over only because of an I/O guard: nothing signals when that is dropped.
    guarded: VecDeque<SlotId>,
    policy: Box<dyn Policy>,
    events: EventLog,
    step: u64,
    evicted: u64,
    allocation_failures: u64,
    referenced: u64,
    writing: u64,
    held: u64,
    turns: u64,
    victims: Vec<Id>,
    /// Blocks that were to come and did not, where events are recorded.
    lost: Vec<Key>,
}

/// Lost blocks kept until they are taken.
const MAX_LOST: usize = 1 << 16;

impl Primary {
    /// An empty tier over `region`; with `events`, residency changes are recorded.
    pub fn new(region: Region, policy: PolicyKind, events: bool) -> Self {
        let n = region.num_slots();
        Self {
            slots: vec![Slot::empty(); n as usize],
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
            writing: 0,
            held: 0,
            turns: 0,
            victims: Vec::new(),
            lost: Vec::new(),
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

    /// The bytes of `keys` arrived (`success`) or never will: they become readable, or their slots free. This is only
    /// for slots that [`prepare_store`](Self::prepare_store) handed out: what a tier brings up, its job completes.
    pub fn complete_store(&mut self, keys: &[Key], success: bool) {
        self.complete_keys(keys, success, |w| w != Writer::Tier);
    }

    /// The same for slots that were handed out to `req`: an engine may name more keys than it was given slots for, and
    /// it knows nothing of the others' bytes (I2).
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

    /// The bytes of a promoted block arrived or never will. Returns whether the block is readable now: not if the slot
    /// has been given to another block, nor while its guard exists and its bytes may yet change; then the slot is free
    /// once the guard is dropped.
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

    /// A slot that was being written becomes readable or free.
    fn settle(&mut self, id: SlotId, success: bool) {
        if !success {
            self.policy.remove(id);
            if let Some(key) = self.forget(id)
                && self.events.enabled()
                && self.lost.len() < MAX_LOST
            {
                self.lost.push(key);
            }
            self.free.push(id);
            return;
        }
        if let Some(slot) = self.slots.get_mut(id as usize) {
            slot.ready = true;
            self.writing -= 1;
            if let Some(key) = &slot.key {
                self.events.stored(key);
            }
        }
        self.policy.unpinned(id);
    }

    /// References `keys` for reading and returns their slots: all, or none and an error.
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

    /// Releases the references that [`reference`](Self::reference) took, where the slot still holds the same block.
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
                if s.holds == 0 {
                    self.policy.unpinned(id);
                }
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
    /// out before it ends (I5). Completions of transfers that began before are ignored.
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

    /// Takes the blocks that were announced as coming (written, or brought up), never came, and are not here now. Only
    /// where events are recorded: there is no event of them, since they were never readable.
    pub fn take_lost(&mut self) -> Vec<Key> {
        let mut lost = std::mem::take(&mut self.lost);
        lost.retain(|key| self.state(key) == SlotState::Absent);
        lost
    }

    /// Counters.
    pub fn stats(&self) -> PrimaryStats {
        PrimaryStats {
            slots: u64::from(self.region.num_slots()),
            used: u64::from(self.region.num_slots()) - (self.free.len() + self.late.len()) as u64,
            referenced: self.referenced,
            writing: self.writing,
            held: self.held,
            evicted: self.evicted,
            allocation_failures: self.allocation_failures,
        }
    }
}
