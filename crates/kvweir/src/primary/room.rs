//! Making room: free slots first, then victims of the policy, all or none; and the slots whose I/O has not ended yet
//! (I3, I5).

use std::{cell::RefCell, collections::VecDeque};

use hashbrown::{HashTable, hash_table::Entry};

use super::{
    Prepared, Primary,
    slot::{Slot, Writer},
};
use crate::{
    block::{Fingerprint, Key},
    evict::{Id, Residents},
    io::{Region, region::SlotId},
    request::RequestId,
};

/// Keeps the first of equal blocks.
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

/// How many slots of `late` and `guarded` are checked whenever room is made, beside twice as many as are wanted.
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
        // the end of the last reference, and of a write, will be reported
        if !slot.ready || slot.refs > 0 || slot.holds > 0 {
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
    /// Makes room for those of `keys` that are not here, to be written by `writer`; see
    /// [`prepare_store`](Self::prepare_store).
    pub(super) fn reserve(&mut self, keys: &[Key], req: RequestId, writer: Writer) -> Option<Prepared> {
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
        // blocks that follow each other get rows that do, where these are free
        let mut claimed = claimed.into_iter();
        for (key, fp) in missing {
            if self.find(key, fp).is_some() {
                // given twice
                continue;
            }
            let Some(id) = claimed.next() else { break };
            if let Some(s) = self.slots.get_mut(id as usize) {
                self.turns += 1;
                self.writing += 1;
                *s = Slot {
                    key: Some(key.clone()),
                    fp,
                    ready: false,
                    writer,
                    hit_in: u64::MAX,
                    origin: None,
                    turn: self.turns,
                    ..*s
                };
            }
            let slots = &self.slots;
            let rehash = |&id: &SlotId| slots.get(id as usize).map_or(0, |s| s.fp.hash64());
            self.table.insert_unique(fp.hash64(), id, rehash);
            out.to_store.push((key.clone(), id));
        }
        self.free.extend(claimed.rev());
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
        // before it fails, every slot is checked for I/O that has ended meanwhile
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

    /// Checks at most `most` free and `most` ready slots whose I/O had not ended when they were last checked (I5).
    /// Returns whether that of any has ended since.
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
    pub(super) fn forget(&mut self, id: SlotId) -> Option<Key> {
        let slot = self.slots.get_mut(id as usize)?;
        let (key, fp) = (slot.key.take(), slot.fp);
        self.referenced -= u64::from(slot.refs > 0);
        self.held -= u64::from(slot.holds > 0);
        self.writing -= u64::from(key.is_some() && !slot.ready);
        (slot.ready, slot.refs, slot.holds) = (false, 0, 0);
        slot.life = slot.life.wrapping_add(1);
        if let Ok(e) = self.table.find_entry(fp.hash64(), |&other| other == id) {
            e.remove();
        }
        key
    }
}
