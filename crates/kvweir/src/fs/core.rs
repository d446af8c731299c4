//! The file tier's state behind its one lock: index, policy, budget, pins, events and counters. Every call is a few
//! memory operations; nothing here does I/O, so the scheduler may take the lock at any time (I8). Eviction is in
//! three steps: chosen here (the entry becomes `Evicting`: a miss, its bytes still counted), unlinked by a worker
//! outside the lock, settled here; so the account never runs ahead of the disk (I1).

use std::{
    collections::{HashMap, VecDeque},
    time::Duration,
};

use foldhash::fast::FixedState;

use crate::{
    block::{Fingerprint, Key},
    budget::{Budget, Change},
    catalog::{
        index::{BATCH, COST_UNIT, Index, State},
        pins::{Held, Pins},
    },
    clock::Instant,
    events::EventLog,
    evict::{Id, Policy, RequestTag, Residents},
    metrics::{EvictReason, RefuseReason, TierStats},
    root::{
        accounts::Accounts,
        names::{Fan, Leaf},
    },
    sync::{Mutex, lock},
    tier::{BlockOutcome, RequestId},
};

/// How long nothing is evicted for a full device after that did not help.
const NO_HELP_FOR: Duration = Duration::from_secs(30);
/// Uses noted between two visits of the keeper.
const MAX_TOUCHED: usize = 1 << 18;
/// How long a file that could not be removed is left alone.
const STUCK_FOR: Duration = Duration::from_secs(30);

/// What is called with the outcome of a block that another job stores, by whoever waits for it.
pub(crate) type Waiter = Box<dyn FnOnce(BlockOutcome) + Send>;

/// Everything needed to remove a victim's file without the lock.
#[derive(Debug, Clone)]
pub(crate) struct Victim {
    pub(crate) id: Id,
    pub(crate) fp: Fingerprint,
    pub(crate) key: Option<Key>,
    pub(crate) namespace: u16,
    pub(crate) leaf: Leaf,
    pub(crate) fan: Fan,
}

/// The state.
pub(crate) struct Core {
    pub(crate) index: Index,
    /// Blocks with files of their own, by weight of their bytes.
    pub(crate) policy: Box<dyn Policy>,
    /// Packed blocks, each of weight 1.
    pub(crate) packed: Box<dyn Policy>,
    pub(crate) budget: Budget,
    pub(crate) events: EventLog,
    pub(crate) stats: TierStats,
    pub(crate) waiters: HashMap<Id, Vec<Waiter>, FixedState>,
    pub(crate) trimming: bool,
    /// Whether this tier opens extents.
    pub(crate) packs: bool,
    pub(crate) closed: bool,
    /// Temporaries that could not be removed, with their bytes; tried again when room is needed.
    pub(crate) leftovers: Vec<(std::path::PathBuf, u64)>,
    /// The device is full and evicting did not help; until then, or until a store succeeds, none evicts for that.
    pub(crate) no_help_until: Option<Instant>,
    /// Blocks of namespaces that nobody here serves, oldest first: evicted before all others, in no policy.
    pub(crate) orphans: VecDeque<Id>,
    /// Hashes of blocks used since the journal was told, in order; `None` without a journal.
    pub(crate) touched: Option<Vec<u64>>,
    /// The root's bound and the bytes below it that no member owns: what [`Budget`] holds is this member's lease.
    pub(crate) root_bound: Option<u64>,
    pub(crate) common: u64,
    /// Bytes that stores lacked and had to evict for since the keeper looked.
    pub(crate) pressure: u64,
    /// There was pressure, here or elsewhere, and room may be had from what dead members left.
    pub(crate) starved: bool,
    /// Files of extents that were found and are not open yet.
    pub(crate) unclaimed: Vec<Id>,
    /// Slots of packed blocks that were forgotten while they were pinned, and are not pinned any more.
    pub(crate) freed: Vec<u32>,
    /// Reserved bytes kept for the journal's growth.
    credit: u64,
    pins: Pins,
    /// Files that could not be removed, until when they are left alone.
    stuck: HashMap<Id, Instant, FixedState>,
    /// The same in the order in which their times end.
    stuck_until: VecDeque<(Instant, Id)>,
    scratch: Vec<Id>,
}

struct View<'a> {
    index: &'a Index,
    stuck: &'a HashMap<Id, Instant, FixedState>,
    now: Instant,
}

impl Residents for View<'_> {
    fn evictable(&self, id: Id) -> bool {
        matches!(self.index.state(id), State::Ready | State::Bad)
            && self.index.pins(id) == 0
            && self.stuck.get(&id).is_none_or(|&until| self.now >= until)
    }

    fn fingerprint(&self, id: Id) -> Fingerprint {
        self.index.fingerprint(id)
    }
}

/// The weight of `bytes` in a policy.
pub(crate) fn weight(bytes: u64) -> u64 {
    bytes.div_ceil(COST_UNIT)
}

impl Core {
    pub(crate) fn new(
        index: Index,
        [policy, packed]: [Box<dyn Policy>; 2],
        budget: Budget,
        events: EventLog,
    ) -> Self {
        Self {
            index,
            policy,
            packed,
            budget,
            events,
            stats: TierStats::default(),
            waiters: HashMap::default(),
            trimming: false,
            packs: false,
            closed: false,
            leftovers: Vec::new(),
            no_help_until: None,
            orphans: VecDeque::new(),
            touched: None,
            root_bound: None,
            common: 0,
            pressure: 0,
            starved: false,
            unclaimed: Vec::new(),
            freed: Vec::new(),
            credit: 0,
            pins: Pins::default(),
            stuck: HashMap::default(),
            stuck_until: VecDeque::new(),
            scratch: Vec::new(),
        }
    }

    /// Whether `fp` can be loaded now.
    pub(crate) fn ready(&self, fp: Fingerprint) -> Option<Id> {
        self.index
            .find(fp)
            .filter(|&id| self.index.state(id).is_loadable())
    }

    // --- journal --------------------------------------------------------------------------------------------

    /// Reserves what the journal will grow by; returns the bytes that are missing of it.
    pub(crate) fn top_up(&mut self, target: u64) -> u64 {
        if self.touched.is_some() && self.credit < target {
            self.credit += self.budget.grant(target - self.credit);
            return target - self.credit;
        }
        0
    }

    /// Takes `bytes` out of what is reserved for the journal, leaving `rest`; they stay reserved.
    pub(crate) fn spend_credit(&mut self, bytes: u64, rest: u64) -> bool {
        let enough = self.credit >= bytes + rest;
        if enough {
            self.credit -= bytes;
        }
        enough
    }

    /// Keeps some of what was taken so for what comes later.
    pub(crate) fn return_credit(&mut self, bytes: u64) {
        self.credit += bytes;
    }

    // --- blocks of other processes --------------------------------------------------------------------------

    /// Forgets another process's block.
    pub(crate) fn forget_peer(&mut self, id: Id) {
        if self.index.state(id) == State::Peer {
            if let Some(k) = self.index.key(id) {
                self.events.removed(k);
            }
            self.index.remove(id);
        }
    }

    // --- pins -----------------------------------------------------------------------------------------------

    /// Pins `id` for `req`, once.
    pub(crate) fn pin_for(&mut self, req: RequestId, id: Id, now: Instant) {
        if self.pins.add(req, id, now) {
            self.pin(id);
        }
    }

    /// Pins `ids` for `req`, once each; about `expected` pins will come with and after them.
    pub(crate) fn pin_all_for(
        &mut self,
        req: RequestId,
        mut ids: impl Iterator<Item = Id>,
        now: Instant,
        expected: usize,
    ) {
        let Some(one) = ids.next() else { return };
        self.pin_for(req, one, now);
        let lease = self.pins.lease(req, now);
        lease.reserve(expected);
        let mut first = 0;
        for id in ids {
            if lease.add(id) {
                first += u64::from(self.index.pin(id));
            }
        }
        self.stats.pinned_blocks += first;
        self.stats.pinned_peak = self.stats.pinned_peak.max(self.stats.pinned_blocks);
    }

    /// Hands what `req` pins to a job.
    pub(crate) fn lend(&mut self, req: RequestId) -> Held {
        self.pins.lend(req)
    }

    /// Pins `id` for a job: takes a pin that was handed to it over, or adds one.
    pub(crate) fn pin_for_job(&mut self, held: &mut Held, id: Id) {
        if !self.pins.take(held, id) {
            self.pin(id);
        }
    }

    /// Takes back what a job was handed and has no use for; it is released if the request is over.
    pub(crate) fn give_back(&mut self, req: RequestId, held: Held) {
        for id in self.pins.give_back(req, held) {
            self.unpin(id);
        }
    }

    /// Pins `id` for whoever will [`unpin`](Self::unpin) it.
    pub(crate) fn pin(&mut self, id: Id) {
        if self.index.pin(id) {
            self.stats.pinned_blocks += 1;
            self.stats.pinned_peak = self.stats.pinned_peak.max(self.stats.pinned_blocks);
        }
    }

    /// Releases one pin of a job.
    pub(crate) fn unpin(&mut self, id: Id) {
        let forgotten = self.index.state(id) == State::Dead;
        let packed = self.index.packed(id);
        if self.index.unpin(id) {
            self.stats.pinned_blocks = self.stats.pinned_blocks.saturating_sub(1);
            match packed {
                Some((slot, _)) if forgotten => self.freed.push(slot),
                Some(_) => self.packed.unpinned(id),
                None => self.policy.unpinned(id),
            }
        }
    }

    /// Releases what `req` still pins.
    pub(crate) fn end_request(&mut self, req: RequestId) {
        let ids = self.pins.end(req);
        self.index.warm(&ids);
        ids.into_iter().for_each(|id| self.unpin(id));
    }

    /// Releases the pins of every request.
    pub(crate) fn end_all_requests(&mut self) {
        for req in self.pins.requests() {
            self.end_request(req);
        }
    }

    /// Takes back pins of requests that did not finish within `ttl`.
    pub(crate) fn expire_leases(&mut self, now: Instant, ttl: Duration) {
        let (mut requests, mut first) = (0u64, None);
        while let Some(req) = self.pins.expired(now, ttl) {
            requests += 1;
            first.get_or_insert(req.0);
            self.stats.pin_leases_expired += 1;
            self.end_request(req);
        }
        if let Some(request) = first {
            tracing::warn!(
                request,
                requests,
                ttl_s = ttl.as_secs_f64(),
                "requests did not finish; their pins are released"
            );
        }
    }

    // --- recency --------------------------------------------------------------------------------------------

    /// Marks blocks as used, given in prefix order: the leaf end becomes the least recent of them.
    pub(crate) fn touch(&mut self, fps: &[Fingerprint], tag: RequestTag) {
        let mut found = [None; BATCH];
        let (mut files, mut packed) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        for fps in fps.rchunks(BATCH) {
            self.index.find_ready(fps, &mut found);
            for (&fp, &id) in fps.iter().zip(&found).rev() {
                let Some(id) = id.filter(|&id| self.index.state(id) == State::Ready) else {
                    continue;
                };
                // of packed blocks the journal knows nothing
                if self.index.packed(id).is_some() {
                    packed.push(id);
                    continue;
                }
                files.push(id);
                // beyond, only recency would be lost, and only in a crash
                if let Some(t) = self.touched.as_mut().filter(|t| t.len() < MAX_TOUCHED) {
                    t.push(fp.hash64());
                }
            }
            self.policy.access_all(&files, tag);
            self.packed.access_all(&packed, tag);
            files.clear();
            packed.clear();
        }
    }

    /// The policy that ranks `id`.
    pub(crate) fn policy_of(&mut self, id: Id) -> &mut dyn Policy {
        match self.index.packed(id) {
            Some(_) => &mut *self.packed,
            None => &mut *self.policy,
        }
    }

    // --- eviction -------------------------------------------------------------------------------------------

    /// Lets files be evicted again that could not be removed and were left alone for long enough.
    fn retry_stuck(&mut self, now: Instant) {
        while let Some(&(until, id)) = self.stuck_until.front()
            && until <= now
        {
            self.stuck_until.pop_front();
            if self.stuck.get(&id) == Some(&until) {
                self.stuck.remove(&id);
                self.policy_of(id).unpinned(id);
            }
        }
    }

    /// Evicts packed blocks, `most` of them or, where not so many can go, fewer; appends their slots to `freed`.
    pub(crate) fn evict_packed(&mut self, most: u64, slot_bytes: u64, now: Instant, freed: &mut Vec<u32>) {
        let mut ids = std::mem::take(&mut self.scratch);
        ids.clear();
        let view = View {
            index: &self.index,
            stuck: &self.stuck,
            now,
        };
        let mut want = most;
        while want > 0 && !self.packed.victims(want, &view, &mut ids) {
            want /= 2;
        }
        for id in ids.drain(..) {
            self.drop_packed(id, EvictReason::Capacity, slot_bytes, freed);
        }
        self.scratch = ids;
    }

    /// Forgets a packed block that is in no policy any more; its slot goes to `freed`, at once or when nobody pins it
    /// any more.
    pub(crate) fn drop_packed(&mut self, id: Id, reason: EvictReason, slot_bytes: u64, freed: &mut Vec<u32>) {
        let Some((slot, _)) = self.index.packed(id) else {
            return;
        };
        self.leave_ready(id);
        self.stats.evicted(reason, slot_bytes);
        if let Some(k) = self.index.key(id) {
            self.events.removed(k);
        }
        if self.index.pins(id) == 0 {
            freed.push(slot);
        }
        self.index.remove(id);
    }

    /// Whether nothing holds `id` back from being evicted.
    pub(crate) fn is_evictable(&self, id: Id) -> bool {
        matches!(self.index.state(id), State::Ready | State::Bad) && self.index.pins(id) == 0
    }

    /// Chooses victims worth at least `bytes`: enough, or none and `false`.
    pub(crate) fn choose_victims(&mut self, bytes: u64, now: Instant, out: &mut Vec<Victim>) -> bool {
        self.retry_stuck(now);
        let mut ids = std::mem::take(&mut self.scratch);
        ids.clear();
        let view = View {
            index: &self.index,
            stuck: &self.stuck,
            now,
        };
        let want = weight(bytes);
        // what nobody serves goes first; nobody pins it either, and one that is not evictable went another way
        let mut have = 0;
        while have < want
            && let Some(id) = self.orphans.pop_front()
        {
            if view.evictable(id) {
                have += weight(self.index.cost(id)).max(1);
                ids.push(id);
            }
        }
        let enough = have >= want || self.policy.victims(want - have, &view, &mut ids);
        if !enough {
            ids.iter().rev().for_each(|&id| self.orphans.push_front(id));
        }
        if enough {
            for &id in &ids {
                self.leave_ready(id);
                self.index.set_state(id, State::Evicting);
                self.stuck.remove(&id);
                out.extend(self.victim(id));
            }
        }
        self.scratch = ids;
        enough
    }

    /// Takes a resident entry out of the policy to remove its file.
    pub(crate) fn begin_removal(&mut self, id: Id) -> Option<Victim> {
        self.policy_of(id).remove(id);
        self.stuck.remove(&id);
        self.leave_ready(id);
        self.index.set_state(id, State::Evicting);
        self.victim(id)
    }

    /// `id` cannot be loaded any more.
    fn leave_ready(&mut self, id: Id) {
        if self.index.state(id) == State::Ready {
            self.stats.blocks = self.stats.blocks.saturating_sub(1);
        }
    }

    fn victim(&self, id: Id) -> Option<Victim> {
        let (shelf, fan) = self.index.place(id)?;
        let fp = self.index.fingerprint(id);
        let key = self.index.key(id).cloned();
        Some(Victim {
            id,
            fp,
            key,
            namespace: shelf.namespace,
            leaf: shelf.leaf,
            fan,
        })
    }

    /// The file of `id` is gone; `key` where it is known now.
    pub(crate) fn settle_removed(&mut self, id: Id, key: Option<&Key>, reason: EvictReason, dirs: Change) {
        let cost = self.index.cost(id);
        self.budget.remove_resident(cost);
        self.budget.apply(dirs);
        let is_block = self
            .index
            .place(id)
            .is_none_or(|(shelf, _)| shelf.leaf != Leaf::Extent);
        if is_block {
            self.stats.evicted(reason, cost);
        }
        if let Some(k) = self.index.key(id).or(key) {
            self.events.removed(k);
        }
        self.index.remove(id);
    }

    /// The file of `id` could not be removed: it stays counted, is never a hit if `bad`, and is tried again later.
    pub(crate) fn settle_stuck(&mut self, id: Id, bad: bool, now: Instant) {
        self.stats.unlink_failures += 1;
        self.keep(id, bad);
        let until = now.after(STUCK_FOR);
        self.stuck.insert(id, until);
        self.stuck_until.push_back((until, id));
    }

    /// Puts an entry whose file stays back under the policy.
    pub(crate) fn keep(&mut self, id: Id, bad: bool) {
        if bad && let Some(k) = self.index.key(id) {
            self.events.removed(k);
        }
        self.leave_ready(id);
        self.stats.blocks += u64::from(!bad);
        self.index
            .set_state(id, if bad { State::Bad } else { State::Ready });
        let w = u32::try_from(weight(self.index.cost(id))).unwrap_or(u32::MAX);
        let fp = self.index.fingerprint(id);
        self.policy_of(id).insert(id, fp, w.max(1), RequestTag::NONE);
    }

    /// The device is full and evicting freed nothing that a store can use (somebody else fills it, inodes or a quota
    /// ran out). Until a store succeeds, or half a minute has passed, stores are tried but nothing is evicted for them on that account: the cache
    /// is not emptied for nothing.
    pub(crate) fn eviction_does_not_help(&mut self, now: Instant) {
        if self.no_help_until.is_none_or(|until| now >= until) {
            self.no_help_until = Some(now.after(NO_HELP_FOR));
        }
        self.budget.forget_lowering();
    }

    /// Bytes that lie below the root beyond what this member may hold, or beyond the bound without any member's.
    pub(crate) fn above_bound(&self) -> u64 {
        let common = self.root_bound.map_or(0, |b| self.common.saturating_sub(b));
        self.budget.above_bound() + common
    }

    /// Why nothing more can be had: the bound, or a device that ran full below it.
    pub(crate) fn why_no_room(&self) -> RefuseReason {
        if self.budget.effective() == self.budget.bound() {
            RefuseReason::NoRoom
        } else {
            RefuseReason::NoSpace
        }
    }

    // --- numbers --------------------------------------------------------------------------------------------

    /// A snapshot; O(1) but for the index memory.
    pub(crate) fn snapshot(&self, unix_seconds: u64) -> TierStats {
        let oldest = self
            .orphans
            .front()
            .copied()
            .or_else(|| self.policy.oldest())
            .filter(|&id| self.index.written_at(id) > 0)
            .map_or(unix_seconds, |id| self.index.written_at(id));
        TierStats {
            resident_bytes: self.budget.resident() + self.common,
            reserved_bytes: self.budget.reserved().saturating_sub(self.credit),
            peak_bytes: self.budget.peak() + self.common,
            bound_bytes: self.root_bound,
            above_bound_bytes: self.above_bound(),
            effective_bound_bytes: self.budget.effective().map(|e| e + self.common),
            oldest_age_seconds: unix_seconds.saturating_sub(oldest),
            trimming: self.trimming,
            index_bytes: (self.index.memory_bytes().0
                + self.policy.memory_bytes()
                + self.packed.memory_bytes()) as u64,
            ..self.stats.clone()
        }
    }
}

impl Accounts for Mutex<Core> {
    fn grow(&self, bytes: u64) {
        let core = &mut *lock(self);
        let paid = bytes.min(core.credit);
        core.credit -= paid;
        core.budget.release(paid);
        core.budget.add_resident(bytes);
    }

    fn shrink(&self, bytes: u64) {
        lock(self).budget.remove_resident(bytes);
    }
}
