//! A bounded tier in memory, for tests and simulation. It honours the whole contract of [`Tier`](super::Tier) and can
//! be told to misbehave as devices do: late, held back, or failing loads.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    time::Duration,
};

use super::{BlockOutcome, Direction, LoadJob, Report, RequestId, StoreJob, StorePolicy, Verified};
use crate::{
    block::{Fingerprint, Key},
    error::ErrorKind,
    events::{EventLog, Locality, Medium},
    evict::{Id, Policy, PolicyKind, Residents},
    metrics::{EvictReason, RefuseReason, TierStats},
};

mod calls;

#[derive(Debug)]
struct Entry {
    key: Key,
    bytes: Box<[u8]>,
    pins: u32,
}

struct View<'a>(&'a [Option<Entry>]);

impl Residents for View<'_> {
    fn evictable(&self, id: Id) -> bool {
        self.0
            .get(id as usize)
            .and_then(Option::as_ref)
            .is_some_and(|e| e.pins == 0)
    }

    fn fingerprint(&self, id: Id) -> Fingerprint {
        let entry = self.0.get(id as usize).and_then(Option::as_ref);
        entry.map_or(Fingerprint(0), |e| e.key.fingerprint(0))
    }
}

#[derive(Debug)]
enum Job {
    Store(StoreJob),
    /// With the pins it took over: the entry of each block that was there when it was submitted.
    Load(LoadJob, Vec<Option<Id>>),
}

/// Blocks in host memory, at most `capacity_blocks` of them, least recently used first out.
///
/// ```
/// use kvweir::{Key, io::Region, tier::{JobId, MemoryTier, RequestId, StoreBlock, StoreJob, Tier}};
/// # fn main() -> kvweir::Result<()> {
/// let (mut tier, region) = (MemoryTier::new("memory", 100), Region::new(1, 4096, false)?);
/// let block = StoreBlock { key: Key::new(b"a block hash")?, slot: region.read(0)? };
/// tier.submit_store(StoreJob { id: JobId(1), req: RequestId(1), blocks: vec![block] });
/// let mut reports = Vec::new();
/// tier.poll(&mut reports);
/// assert!(reports[0].all_ok());
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct MemoryTier {
    name: String,
    policy_for_requests: StorePolicy,
    deferred: bool,
    held: bool,
    closed: bool,
    failing_loads: u64,
    entries: Vec<Option<Entry>>,
    free: Vec<Id>,
    index: HashMap<Key, Id, foldhash::fast::FixedState>,
    pins: HashMap<RequestId, HashSet<Id, foldhash::fast::FixedState>, foldhash::fast::FixedState>,
    policy: Box<dyn Policy>,
    queue: VecDeque<Job>,
    done: Vec<Report>,
    events: EventLog,
    stats: TierStats,
}

impl MemoryTier {
    /// A tier for `capacity_blocks` blocks that ends every job at submission.
    pub fn new(name: impl Into<String>, capacity_blocks: u32) -> Self {
        Self {
            name: name.into(),
            policy_for_requests: StorePolicy::NewBlocks,
            deferred: false,
            held: false,
            closed: false,
            failing_loads: 0,
            entries: (0..capacity_blocks).map(|_| None).collect(),
            free: (0..capacity_blocks).rev().collect(),
            index: HashMap::default(),
            pins: HashMap::default(),
            policy: PolicyKind::Lru.build(u64::from(capacity_blocks)),
            queue: VecDeque::new(),
            done: Vec::new(),
            events: EventLog::new(true, Medium::Storage, Locality::Local),
            stats: TierStats::default(),
        }
    }

    /// Jobs end at the next [`poll`](super::Tier::poll) instead of at submission.
    #[must_use]
    pub fn deferred(mut self, deferred: bool) -> Self {
        self.deferred = deferred;
        self
    }

    /// Jobs wait, with their slots claimed, until [`release`](Self::release), a drain or a shutdown.
    #[must_use]
    pub fn hold(mut self, held: bool) -> Self {
        self.held = held;
        self
    }

    /// What [`on_new_request`](super::Tier::on_new_request) answers.
    #[must_use]
    pub fn store_policy(mut self, policy: StorePolicy) -> Self {
        self.policy_for_requests = policy;
        self
    }

    /// The next `n` blocks to be loaded fail as if their bytes were damaged.
    #[must_use]
    pub fn fail_next_loads(mut self, n: u64) -> Self {
        self.failing_loads = n;
        self
    }

    /// Holds jobs back from now on.
    pub fn hold_now(&mut self) {
        self.held = true;
    }

    /// Ends the jobs that were held back, and holds none from now on.
    pub fn release(&mut self) {
        self.held = false;
        self.run_queue();
    }

    fn submit(&mut self, job: Job) {
        self.queue.push_back(job);
        if !self.deferred && !self.held {
            self.run_queue();
        }
    }

    /// The blocks of queued jobs, in their order.
    #[cfg(test)]
    pub(crate) fn queued_keys(&self) -> Vec<Key> {
        let keys = |job: &Job| match job {
            Job::Store(j) => j.blocks.iter().map(|b| b.key.clone()).collect::<Vec<_>>(),
            Job::Load(j, _) => j.blocks.iter().map(|b| b.key.clone()).collect(),
        };
        self.queue.iter().flat_map(keys).collect()
    }

    fn run_queue(&mut self) {
        while let Some(job) = self.queue.pop_front() {
            self.run(job, None);
        }
    }

    fn cancel_queue(&mut self) {
        while let Some(job) = self.queue.pop_front() {
            self.run(job, Some(ErrorKind::Closed));
        }
    }

    /// Ends a job: for real, or with `refusal` for every block. The slots are dropped before the report (I5).
    fn run(&mut self, job: Job, refusal: Option<ErrorKind>) {
        let (id, direction, blocks) = match job {
            Job::Store(job) => {
                let each = job.blocks.into_iter().map(|b| match refusal {
                    Some(kind) => {
                        self.stats.refused(RefuseReason::Cancelled, 1);
                        BlockOutcome::Failed(kind)
                    }
                    None => self.store(&b.key, &b.slot, job.req),
                });
                (job.id, Direction::Store, each.collect())
            }
            Job::Load(job, ids) => {
                let mut blocks = Vec::with_capacity(job.blocks.len());
                for (mut b, id) in job.blocks.into_iter().zip(ids) {
                    let outcome = match refusal {
                        Some(kind) => BlockOutcome::Failed(kind),
                        None => self.load(id, &b.key, &mut b.slot),
                    };
                    self.stats.load_failures += u64::from(!outcome.is_ok());
                    if let Some(id) = id {
                        self.unpin(id);
                    }
                    blocks.push(outcome);
                }
                (job.id, Direction::Load, blocks)
            }
        };
        let moved = |b: &&BlockOutcome| matches!(b, BlockOutcome::Stored | BlockOutcome::Loaded(_));
        let bytes = blocks.iter().filter(moved).count() as u64;
        let (device_time, queue_time) = (Duration::ZERO, Duration::ZERO);
        self.done.push(Report {
            id,
            direction,
            blocks,
            bytes,
            device_time,
            queue_time,
        });
    }

    fn store(&mut self, key: &Key, bytes: &[u8], req: RequestId) -> BlockOutcome {
        if let Some(&id) = self.index.get(key) {
            self.policy.access(id, req.tag());
            self.stats.present_blocks += 1;
            return BlockOutcome::Present;
        }
        let mut victims = Vec::new();
        if self.free.is_empty() && self.policy.victims(1, &View(&self.entries), &mut victims) {
            victims
                .into_iter()
                .for_each(|v| self.forget(v, EvictReason::Capacity));
        }
        let Some(id) = self.free.pop() else {
            self.stats.refused(RefuseReason::NoRoom, 1);
            return BlockOutcome::Failed(ErrorKind::Full);
        };
        if let Some(e) = self.entries.get_mut(id as usize) {
            *e = Some(Entry {
                key: key.clone(),
                bytes: bytes.into(),
                pins: 0,
            });
        }
        self.index.insert(key.clone(), id);
        self.policy.insert(id, key.fingerprint(0), 1, req.tag());
        self.events.stored(key);
        self.stats.stored_blocks += 1;
        self.stats.stored_bytes += bytes.len() as u64;
        self.stats.resident_bytes += bytes.len() as u64;
        self.stats.peak_bytes = self.stats.peak_bytes.max(self.stats.resident_bytes);
        BlockOutcome::Stored
    }

    fn load(&mut self, id: Option<Id>, key: &Key, slot: &mut [u8]) -> BlockOutcome {
        let entry = id
            .and_then(|id| self.entries.get(id as usize))
            .and_then(Option::as_ref);
        // a block that failed under another job's load is a miss for this one too
        let Some(e) = entry.filter(|e| self.index.get(key) == id.as_ref() && e.bytes.len() == slot.len())
        else {
            return BlockOutcome::Failed(ErrorKind::Unavailable);
        };
        slot.copy_from_slice(&e.bytes);
        if self.failing_loads > 0 {
            self.failing_loads -= 1;
            slot.fill(0xee);
            self.stats.verification_failures += 1;
            if let Some(id) = self.index.remove(key) {
                self.policy.remove(id);
                self.events.removed(key);
            }
            return BlockOutcome::Failed(ErrorKind::Corrupt);
        }
        self.stats.loaded_blocks += 1;
        self.stats.loaded_bytes += slot.len() as u64;
        BlockOutcome::Loaded(Verified::Checksum)
    }

    fn forget(&mut self, id: Id, reason: EvictReason) {
        if let Some(e) = self.entries.get_mut(id as usize).and_then(Option::take) {
            if self.index.get(&e.key) == Some(&id) {
                self.index.remove(&e.key);
                self.events.removed(&e.key);
            }
            self.stats.resident_bytes -= e.bytes.len() as u64;
            self.stats.evicted(reason, e.bytes.len() as u64);
            self.free.push(id);
        }
    }

    fn pin(&mut self, id: Id) {
        if let Some(e) = self.entries.get_mut(id as usize).and_then(Option::as_mut) {
            e.pins += 1;
            self.stats.pinned_blocks += u64::from(e.pins == 1);
            self.stats.pinned_peak = self.stats.pinned_peak.max(self.stats.pinned_blocks);
        }
    }

    fn unpin(&mut self, id: Id) {
        let Some(e) = self.entries.get_mut(id as usize).and_then(Option::as_mut) else {
            return;
        };
        e.pins = e.pins.saturating_sub(1);
        let (last, orphan) = (e.pins == 0, self.index.get(&e.key) != Some(&id));
        self.stats.pinned_blocks -= u64::from(last);
        if last && orphan {
            self.forget(id, EvictReason::Corrupt);
        } else if last {
            self.policy.unpinned(id);
        }
    }

    fn end_request(&mut self, req: RequestId) {
        self.pins
            .remove(&req)
            .into_iter()
            .flatten()
            .for_each(|id| self.unpin(id));
    }
}
