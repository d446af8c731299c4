//! A caller for tests of tiers: keys with content that follows from them, jobs over a region of its own, and a poll
//! that checks every report the moment it appears.

use std::{
    collections::{HashMap, HashSet},
    time::Duration,
};

use super::broken::broken;
use crate::{
    block::{Fingerprint, Key},
    error::ErrorKind,
    events::{Event, EventKind},
    io::{Region, region::SlotId},
    sync::thread,
    tier::{
        BlockOutcome, Direction, JobId, LoadBlock, LoadJob, Lookup, Report, RequestId, StoreBlock, StoreJob,
        Tier, Verified,
    },
};

/// Longest wait for a report or an answer: this many milliseconds.
const PATIENCE_MS: u32 = 60_000;

/// The `n`-th key of 36 bytes: a well-spread hash and group 0.
pub fn key(n: u64) -> Key {
    long_key(n, 36)
}

/// The [`key`]s of these numbers.
pub fn keys(range: std::ops::Range<u64>) -> Vec<Key> {
    range.map(key).collect()
}

/// A key of `len` bytes (at least 4 keep numbers apart) that ends with group 0 where it can.
pub fn long_key(n: u64, len: usize) -> Key {
    let mut bytes = Vec::with_capacity(len + 16);
    let mut i = 0u64;
    while bytes.len() < len {
        let word = Fingerprint::of(&n.to_le_bytes(), i).0;
        bytes.extend(word.to_le_bytes());
        i += 1;
    }
    bytes.truncate(len);
    if let Some(group) = bytes.last_chunk_mut::<4>().filter(|_| len >= 8) {
        *group = [0; 4];
    }
    Key::new(&bytes).unwrap_or_else(|e| broken("keys", &e.to_string()))
}

/// Fills `block` with the content that belongs to `key`.
pub fn fill_content(key: &Key, block: &mut [u8]) {
    let mut state = Fingerprint::of(key.as_bytes(), 0x6b76).hash64();
    for word in block.chunks_mut(8) {
        // splitmix64
        state = state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = state;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^= z >> 31;
        word.iter_mut()
            .zip(z.to_le_bytes())
            .for_each(|(to, from)| *to = from);
    }
}

/// The content that belongs to `key`.
pub fn content(key: &Key, len: usize) -> Vec<u8> {
    let mut block = vec![0; len];
    fill_content(key, &mut block);
    block
}

/// A job that was submitted.
#[derive(Debug)]
struct Sent {
    direction: Direction,
    blocks: Vec<(Key, SlotId)>,
}

/// A tier and a caller in front of it.
#[derive(Debug)]
pub struct Client<T: Tier + ?Sized> {
    /// The tier.
    pub tier: Box<T>,
    region: Region,
    next_job: u64,
    next_slot: SlotId,
    sent: HashMap<JobId, Sent, foldhash::fast::FixedState>,
    ended: HashSet<JobId, foldhash::fast::FixedState>,
    reports: Vec<Report>,
    last_seq: Option<u64>,
    resident: HashSet<Key, foldhash::fast::FixedState>,
    events_seen: u64,
    late_slots: bool,
    unverified: bool,
}

impl<T: Tier + ?Sized> Client<T> {
    /// A caller with `slots` slots of `block_len` bytes.
    pub fn new(tier: Box<T>, slots: u32, block_len: usize) -> Self {
        let region = Region::new(slots, block_len, false);
        Self {
            tier,
            region: region.unwrap_or_else(|e| broken("test region", &e.to_string())),
            next_job: 1,
            next_slot: 0,
            sent: HashMap::default(),
            ended: HashSet::default(),
            reports: Vec::new(),
            last_seq: None,
            resident: HashSet::default(),
            events_seen: 0,
            late_slots: false,
            unverified: false,
        }
    }

    /// A block that failed as unavailable may leave its slot claimed: the tier gives up I/O that hangs.
    pub fn allow_late_slots(&mut self) {
        self.late_slots = true;
    }

    /// What is loaded as not verified may be wrong from now on: somebody else changes what lies there.
    pub fn allow_unverified(&mut self) {
        self.unverified = true;
    }

    /// The region that jobs use.
    pub fn region(&self) -> &Region {
        &self.region
    }

    /// Jobs not reported yet.
    pub fn outstanding(&self) -> usize {
        self.sent.len()
    }

    /// A free slot; collects reports until there is one.
    fn slot(&mut self) -> SlotId {
        for _ in 0..PATIENCE_MS {
            for _ in 0..self.region.num_slots() {
                let slot = self.next_slot;
                self.next_slot = (slot + 1) % self.region.num_slots();
                if self.region.is_free(slot) && !self.is_used(slot) {
                    return slot;
                }
            }
            self.collect();
            pause();
        }
        broken("Slots (I5)", "no slot became free again")
    }

    fn is_used(&self, slot: SlotId) -> bool {
        self.sent.values().any(|s| s.blocks.iter().any(|b| b.1 == slot))
    }

    fn job_id(&mut self) -> JobId {
        self.next_job += 1;
        JobId(self.next_job)
    }

    /// Submits a store of `keys` with the content that belongs to them.
    pub fn submit_store(&mut self, req: RequestId, keys: &[Key]) -> JobId {
        let (id, mut blocks, mut sent) = (self.job_id(), Vec::new(), Vec::new());
        for key in keys {
            let n = self.slot();
            let mut slot = self
                .region
                .write(n)
                .unwrap_or_else(|e| broken("Slots (I5)", &e.to_string()));
            fill_content(key, &mut slot);
            drop(slot);
            let slot = self
                .region
                .read(n)
                .unwrap_or_else(|e| broken("Slots (I5)", &e.to_string()));
            blocks.push(StoreBlock {
                key: key.clone(),
                slot,
            });
            sent.push((key.clone(), n));
        }
        self.sent.insert(
            id,
            Sent {
                direction: Direction::Store,
                blocks: sent,
            },
        );
        self.tier.submit_store(StoreJob { id, req, blocks });
        id
    }

    /// Submits a load of `keys`.
    pub fn submit_load(&mut self, req: RequestId, keys: &[Key]) -> JobId {
        let (id, mut blocks, mut sent) = (self.job_id(), Vec::new(), Vec::new());
        for key in keys {
            let n = self.slot();
            let mut slot = self
                .region
                .write(n)
                .unwrap_or_else(|e| broken("Slots (I5)", &e.to_string()));
            slot.fill(0xa5);
            blocks.push(LoadBlock {
                key: key.clone(),
                slot,
            });
            sent.push((key.clone(), n));
        }
        self.sent.insert(
            id,
            Sent {
                direction: Direction::Load,
                blocks: sent,
            },
        );
        self.tier.submit_load(LoadJob { id, req, blocks });
        id
    }

    /// Polls and checks what is reported: once, complete, with free slots and, for loaded blocks, the right bytes.
    pub fn collect(&mut self) {
        let from = self.reports.len();
        self.tier.poll(&mut self.reports);
        for r in self.reports.iter().skip(from) {
            assert!(
                !self.ended.contains(&r.id),
                "contract broken: Once (I4): {:?} was reported twice",
                r.id
            );
            let Some(sent) = self.sent.remove(&r.id) else {
                broken("Once (I4)", &format!("{:?} was never submitted", r.id))
            };
            self.ended.insert(r.id);
            assert_eq!(
                (r.direction, r.blocks.len()),
                (sent.direction, sent.blocks.len()),
                "contract broken: Once (I4): {:?} needs one outcome per block, and its own direction",
                r.id
            );
            for ((key, slot), outcome) in sent.blocks.iter().zip(&r.blocks) {
                let given_up = *outcome == BlockOutcome::Failed(ErrorKind::Unavailable);
                assert!(
                    self.region.is_free(*slot) || self.late_slots && given_up,
                    "contract broken: Slots (I5): slot {slot} of {:?} is claimed after the report",
                    r.id
                );
                let fits = match outcome {
                    BlockOutcome::Loaded(_) => r.direction == Direction::Load,
                    BlockOutcome::Stored | BlockOutcome::Present => r.direction == Direction::Store,
                    BlockOutcome::Failed(_) => true,
                };
                assert!(
                    fits,
                    "contract broken: Once (I4): {outcome:?} is no outcome of a {:?}",
                    r.direction
                );
                if let BlockOutcome::Loaded(verified) = outcome {
                    let slot = self
                        .region
                        .read(*slot)
                        .unwrap_or_else(|e| broken("Slots (I5)", &e.to_string()));
                    let promised = *verified != Verified::SizeOnly || !self.unverified;
                    assert!(
                        !promised || *slot == *content(key, slot.len()),
                        "contract broken: Truth (I2): the bytes loaded for {key:?} are not those stored"
                    );
                }
            }
        }
    }

    /// Waits for the report of `id`.
    pub fn wait(&mut self, id: JobId) -> Report {
        for n in 0..PATIENCE_MS {
            self.collect();
            if let Some(at) = self.reports.iter().rposition(|r| r.id == id) {
                return self.reports.swap_remove(at);
            }
            if n < 100 {
                thread::yield_now();
            } else {
                pause();
            }
        }
        broken("Once (I4)", &format!("{id:?} is never reported"))
    }

    /// Waits for every job; returns the reports not asked for one by one.
    pub fn wait_all(&mut self) -> Vec<Report> {
        let mut left = PATIENCE_MS;
        self.collect();
        while !self.sent.is_empty() {
            left -= 1;
            if left == 0 {
                broken(
                    "Once (I4)",
                    &format!("{} jobs are never reported", self.sent.len()),
                )
            }
            pause();
            self.collect();
        }
        std::mem::take(&mut self.reports)
    }

    /// Reports collected and not asked for yet.
    pub fn take_reports(&mut self) -> Vec<Report> {
        std::mem::take(&mut self.reports)
    }

    /// Stores `keys` and waits.
    pub fn store(&mut self, req: RequestId, keys: &[Key]) -> Vec<BlockOutcome> {
        let id = self.submit_store(req, keys);
        self.wait(id).blocks
    }

    /// Loads `keys` and waits.
    pub fn load(&mut self, req: RequestId, keys: &[Key]) -> Vec<BlockOutcome> {
        let id = self.submit_load(req, keys);
        self.wait(id).blocks
    }

    /// Looks `key` up, asking again for as long as the answer is to ask again.
    pub fn lookup(&mut self, key: &Key, req: RequestId) -> bool {
        for _ in 0..PATIENCE_MS {
            match self.tier.lookup(key, req) {
                Lookup::Hit => return true,
                Lookup::Miss => return false,
                Lookup::Retry => pause(),
            }
        }
        broken("Lookup", "Retry for ever")
    }

    /// Whether `key` is there; asks for a request of its own and ends it.
    pub fn holds(&mut self, key: &Key) -> bool {
        let req = RequestId(u64::MAX);
        let hit = self.lookup(key, req);
        self.tier.on_request_finished(req, &[]);
        hit
    }

    /// Takes events and replays them; returns the keys that they say are there.
    pub fn replay_events(&mut self) -> &HashSet<Key, foldhash::fast::FixedState> {
        let mut events: Vec<Event> = Vec::new();
        self.tier.take_events(&mut events);
        for e in events {
            assert!(
                self.last_seq.is_none_or(|s| s < e.seq),
                "contract broken: Events (I7): sequence number {} after {:?}",
                e.seq,
                self.last_seq
            );
            self.last_seq = Some(e.seq);
            self.events_seen += 1;
            match e.kind {
                EventKind::Stored => self.resident.insert(e.key),
                EventKind::Removed => self.resident.remove(&e.key),
            };
        }
        &self.resident
    }

    /// How many events were seen.
    pub fn events_seen(&self) -> u64 {
        self.events_seen
    }
}

/// Lets the tier's threads run for a moment.
fn pause() {
    thread::park_timeout(Duration::from_millis(1));
}
