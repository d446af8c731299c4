//! An engine, its manager, two tiers, their disks and the clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use kvweir::{
    Key,
    clock::ManualClock,
    evict::PolicyKind,
    fs::{FsBuilder, FsSettings, Layout},
    io::{
        Region,
        fault::{Fault, FaultDisk, Op, Rule},
        region::SlotId,
        sim::SimDisk,
    },
    manager::{Found, Manager, NewRequest},
    pressure::{Gate, PressureSettings},
    primary::Primary,
    tier::{RequestId, conformance::content},
};

use super::watch::{Seen, Watched};
use crate::support::{self, LEN, Rng, key, pause};

/// Keys there are.
const KEYS: u64 = 60;
const SLOTS: u32 = 16;
const TIERS: [&str; 2] = ["near", "far"];

/// One tier's disk, as this life of the process sees it.
struct Place {
    disk: SimDisk,
    faults: FaultDisk,
    bound: u64,
    layout: Layout,
    seen: Arc<Mutex<Seen>>,
}

/// A request that has not ended.
struct Request {
    keys: Vec<Key>,
    /// Copies to the accelerator that run.
    copies: Vec<Vec<Key>>,
    /// Copies from it: slots to be written.
    stores: Vec<Vec<(Key, SlotId)>>,
}

/// What a run saw.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Counts {
    /// A mix of all answers, to tell runs apart.
    pub(crate) trace: u64,
    /// Lookups that found a block in memory.
    pub(crate) hits: u64,
    /// Blocks that came up from a tier, and those that could not be moved.
    pub(crate) loaded: u64,
    pub(crate) failed: u64,
    /// Processes that ended, in order or not.
    pub(crate) lives: u64,
}

pub(crate) struct World {
    rng: Rng,
    healthy: bool,
    clock: Arc<ManualClock>,
    places: Vec<Place>,
    manager: Option<Manager>,
    requests: BTreeMap<u64, Request>,
    next: u64,
    policy: PolicyKind,
    trace: u64,
    /// What was ever stored.
    stored: BTreeSet<Key>,
    counts: Counts,
}

impl World {
    pub(crate) fn new(seed: u64) -> Self {
        let mut rng = Rng(seed);
        let places = (0..TIERS.len() as u64)
            .map(|n| {
                let disk = support::disk();
                let layout = [Layout::Fs, Layout::Pack][rng.below(2) as usize];
                Place {
                    faults: FaultDisk::new(Arc::new(disk.clone())),
                    disk,
                    bound: support::bound_of(layout, 12 * n + rng.below(8)),
                    layout,
                    seen: Arc::default(),
                }
            })
            .collect();
        let policy = PolicyKind::ALL[rng.below(PolicyKind::ALL.len() as u64) as usize];
        let mut world = Self {
            rng,
            healthy: seed.is_multiple_of(2),
            clock: Arc::new(ManualClock::new()),
            places,
            manager: None,
            requests: BTreeMap::new(),
            next: 1,
            policy,
            trace: 0,
            stored: BTreeSet::new(),
            counts: Counts::default(),
        };
        world.open();
        world
    }

    fn m(&mut self) -> &mut Manager {
        self.manager.as_mut().unwrap()
    }

    fn open(&mut self) {
        let region = Region::new(SLOTS, LEN, false).unwrap();
        let primary = Primary::new(region, self.policy, true);
        let mut manager = Manager::new(primary).clock(Arc::clone(&self.clock) as _);
        for (name, p) in TIERS.iter().zip(&mut self.places) {
            p.faults = FaultDisk::new(Arc::new(p.disk.clone()));
            p.seen = Arc::default();
            p.seen.lock().unwrap().healthy = self.healthy;
            let settings = FsSettings {
                policy: self.policy,
                io_timeout: (!self.healthy).then_some(Duration::from_secs(2)),
                pin_ttl: Duration::from_secs(100_000),
                layout: p.layout,
                ..support::settings(p.bound)
            };
            let tier = FsBuilder::new(settings, support::ns("model"), LEN)
                .name(*name)
                .disk(Arc::new(p.faults.clone()))
                .clock(Arc::clone(&self.clock) as _)
                .boot_id([1; 16])
                .walk_patience(Duration::from_secs(60))
                .open()
                .unwrap();
            let gate = Gate::new(PressureSettings::default(), u64::from(SLOTS) * LEN as u64).unwrap();
            manager.add_tier(Box::new(Watched::new(tier, Arc::clone(&p.seen))), Some(gate));
        }
        self.manager = Some(manager);
    }

    pub(crate) fn step(&mut self) {
        match self.rng.below(100) {
            0..14 => self.begin(),
            14..44 => self.ask(),
            44..60 => self.store(),
            60..72 => self.copy_ends(),
            72..80 => self.finish(),
            80..88 => pause_a_while(&mut self.rng),
            88..90 => self.meddle(),
            90..93 => {
                let most = if self.healthy { 20 } else { 2000 };
                self.clock.advance(Duration::from_millis(self.rng.below(most)));
            }
            93..97 if !self.healthy => self.fault(),
            97 if self.rng.below(4) == 0 => self.reset(),
            98 if self.rng.below(4) == 0 => self.restart(),
            99 if self.rng.below(4) == 0 => self.die(),
            _ => {
                self.m().poll();
            }
        }
        self.clock.advance(Duration::from_micros(100));
        self.check();
    }

    /// What must be so at every step.
    fn check(&mut self) {
        for (name, p) in TIERS.iter().zip(&self.places) {
            let (peak, _) = p.disk.bytes();
            assert!(peak <= p.bound, "{name}: {peak} bytes of {} (I1)", p.bound);
        }
    }

    fn begin(&mut self) {
        if self.requests.len() >= 6 {
            return self.finish();
        }
        let (from, n) = (self.rng.below(KEYS - 8), 1 + self.rng.below(6));
        let keys: Vec<Key> = (from..from + n).map(key).collect();
        let id = self.next;
        self.next += 1;
        self.m().on_new_request(RequestId(id), NewRequest::default());
        let request = Request {
            keys,
            copies: Vec::new(),
            stores: Vec::new(),
        };
        self.requests.insert(id, request);
    }

    /// Some request.
    fn some(&mut self) -> Option<u64> {
        let n = self.requests.len() as u64;
        let at = (n > 0).then(|| self.rng.below(n) as usize)?;
        self.requests.keys().nth(at).copied()
    }

    /// A step of the scheduler: the request's keys, in order, as far as they hit; what is there is copied up.
    fn ask(&mut self) {
        let Some(id) = self.some() else { return };
        let keys = self.requests[&id].keys.clone();
        let mut prefix = Vec::new();
        let mut whole = true;
        for k in &keys {
            let found = self.m().lookup(k, RequestId(id));
            self.counts.hits += u64::from(found == Found::Hit);
            self.note(found as u64);
            whole &= found == Found::Hit;
            if whole {
                assert!(self.stored.contains(k), "{k} was never stored (I2)");
                prefix.push(k.clone());
            }
            if found == Found::Miss {
                break;
            }
        }
        if !prefix.is_empty() {
            let slots = self.m().prepare_load(&prefix).unwrap();
            for (k, slot) in prefix.iter().zip(slots) {
                let region = self.manager.as_ref().unwrap().primary().region();
                let bytes = region
                    .read(slot)
                    .expect("a slot that is ready is not written to (I5)");
                assert!(
                    *bytes == *content(k, LEN),
                    "the bytes of {k} are not its own (I2)"
                );
            }
            self.requests.get_mut(&id).unwrap().copies.push(prefix);
        }
        self.m().on_schedule_end();
    }

    fn store(&mut self) {
        let Some(id) = self.some() else { return };
        let keys = self.requests[&id].keys.clone();
        let Some(room) = self.m().prepare_store(&keys, RequestId(id)) else {
            return;
        };
        if !room.to_store.is_empty() {
            let of = self.requests.get_mut(&id).unwrap();
            of.stores.push(room.to_store);
        }
        if self.rng.below(2) == 0 {
            self.copy_ends();
        }
        self.m().on_schedule_end();
    }

    /// A copy from or to the accelerator ends.
    fn copy_ends(&mut self) {
        let Some(id) = self.some() else { return };
        let of = self.requests.get_mut(&id).unwrap();
        if let Some(done) = of.copies.pop() {
            self.m().complete_load(&done);
        } else if let Some(slots) = of.stores.pop() {
            let keys = keys_of(&slots);
            let good = self.rng.below(8) > 0;
            for (k, slot) in slots.iter().filter(|_| good) {
                let region = self.m().primary().region();
                let mut bytes = region
                    .write(*slot)
                    .expect("a slot that is given out is free (I5)");
                bytes.copy_from_slice(&content(k, LEN));
            }
            if good {
                self.stored.extend(keys.iter().cloned());
            }
            self.m().complete_store(&keys, RequestId(id), good);
        }
    }

    /// A request speaks of blocks that are not its own to write: as failed, or as written.
    fn meddle(&mut self) {
        let (Some(a), Some(b)) = (self.some(), self.some()) else {
            return;
        };
        let own: Vec<Key> = self.requests[&a].stores.iter().flat_map(|s| keys_of(s)).collect();
        let others = self.requests[&b].keys.iter();
        let keys: Vec<Key> = others.filter(|k| !own.contains(k)).cloned().collect();
        // with a store of its own under way, the call would count for that one
        if own.is_empty() {
            let good = self.rng.below(2) == 0;
            self.m().complete_store(&keys, RequestId(a), good);
        }
    }

    /// Ends all copies of a request, and perhaps the request.
    fn finish(&mut self) {
        let Some(id) = self.some() else { return };
        let Some(of) = self.requests.remove(&id) else {
            return;
        };
        of.copies.iter().for_each(|k| self.m().complete_load(k));
        for slots in of.stores {
            self.m().complete_store(&keys_of(&slots), RequestId(id), false);
        }
        self.m().on_request_finished(RequestId(id), &of.keys);
    }

    fn finish_all(&mut self) {
        while !self.requests.is_empty() {
            self.finish();
        }
    }

    /// A disk begins to fail, or is well again.
    fn fault(&mut self) {
        let at = self.rng.below(2) as usize;
        let ops = [
            Op::Open,
            Op::Create,
            Op::Read,
            Op::Write,
            Op::Rename,
            Op::Remove,
            Op::CreateDir,
            Op::Stat,
        ];
        let op = ops[self.rng.below(ops.len() as u64) as usize];
        let n = 1 + self.rng.below(6);
        let (after, ms, held) = (self.rng.below(10), self.rng.below(50), self.rng.below(200_000));
        let kind = self.rng.below(9);
        let faults = &self.places[at].faults;
        let rule = match kind {
            0 => Rule::new(op, Fault::Errno(5)).times(n),
            1 => Rule::new(op, Fault::Errno(28)).times(n),
            2 => Rule::new(op, Fault::Hang).times(n).path(".bin"),
            3 => Rule::new(op, Fault::Slow(Duration::from_millis(ms))).times(4 * n),
            4 => Rule::new(op, Fault::Short(4096)).times(4 * n),
            5 => Rule::new(Op::Read, Fault::Flip).times(n).path(".bin"),
            6 => Rule::new(Op::Write, Fault::Flip).times(n).path(".bin"),
            7 => Rule::new(Op::Write, Fault::FullAt(held)).times(4 * n),
            _ => return faults.heal(),
        };
        faults.add(rule.after(after));
    }

    /// The engine forgets what is in memory.
    fn reset(&mut self) {
        self.finish_all();
        self.ending(true);
        self.with_time(|w| w.m().reset());
        self.m().on_reset_flushed();
        self.ending(false);
    }

    fn ending(&self, yes: bool) {
        for p in &self.places {
            p.seen.lock().unwrap().ending = yes;
        }
    }

    /// Runs `f` while time goes on, since it may wait for a deadline.
    fn with_time(&mut self, f: impl FnOnce(&mut Self)) {
        let over = Arc::new(AtomicBool::new(false));
        let (clock, until) = (Arc::clone(&self.clock), Arc::clone(&over));
        let time = shuttle::thread::spawn(move || {
            while !until.load(Ordering::Relaxed) {
                clock.advance(Duration::from_millis(20));
                pause(20);
            }
        });
        f(self);
        over.store(true, Ordering::Relaxed);
        time.join().unwrap();
    }

    fn heal(&self) {
        self.places.iter().for_each(|p| p.faults.heal());
    }

    /// The process ends in order and begins anew.
    fn restart(&mut self) {
        self.heal();
        self.finish_all();
        self.rest();
        self.ending(true);
        self.m().shutdown();
        for (name, p) in TIERS.iter().zip(&self.places) {
            let owed = p.seen.lock().unwrap().outstanding();
            assert_eq!(owed, 0, "{name}: jobs without a report (I4)");
        }
        self.end_life();
        self.open();
        self.agree();
    }

    /// The process is killed and begins anew.
    fn die(&mut self) {
        let within = self.rng.below(40);
        for p in &self.places {
            p.disk.die_at(p.disk.steps() + within);
        }
        pause(self.rng.below(100));
        for p in &self.places {
            p.disk.die_at(0);
        }
        // what hung goes on, and finds itself dead
        self.heal();
        self.requests.clear();
        self.ending(true);
        self.places
            .iter()
            .for_each(|p| p.seen.lock().unwrap().healthy = false);
        self.end_life();
        self.open();
        self.agree();
    }

    fn end_life(&mut self) {
        self.check();
        self.counts.lives += 1;
        self.manager = None;
        self.requests.clear();
        for p in &mut self.places {
            let seen = p.seen.lock().unwrap();
            self.trace = (self.trace ^ seen.trace).wrapping_mul(0x100_0000_01b3);
            self.counts.loaded += seen.loaded;
            self.counts.failed += seen.failed;
            drop(seen);
            p.disk = p.disk.next_life();
        }
    }

    /// Until nothing is under way.
    fn rest(&mut self) {
        for _ in 0..10_000 {
            self.m().poll();
            self.m().on_schedule_end();
            if !self.m().has_pending_work() {
                return;
            }
            self.clock.advance(Duration::from_millis(5));
            pause(5);
        }
        panic!("the tiers never come to rest: {:?}", self.manager);
    }

    /// Nothing runs and nothing fails: pins, account and events are as they must be.
    fn agree(&mut self) {
        let mut last = Vec::new();
        for _ in 0..400 {
            let stats = self.manager.as_ref().unwrap().tier_stats();
            last = stats
                .iter()
                .zip(&self.places)
                .map(|((_, s, _), p)| {
                    (
                        s.resident_bytes,
                        support::counted(&p.disk),
                        s.reserved_bytes,
                        s.pinned_blocks,
                    )
                })
                .collect();
            if last
                .iter()
                .all(|l| (l.0 == l.1 || !self.healthy && l.0 > l.1) && l.2 == 0)
            {
                break;
            }
            pause(10);
        }
        for (name, (resident, du, reserved, pinned)) in TIERS.iter().zip(last) {
            assert_eq!(pinned, 0, "{name}: pins without a request (I3)");
            // a removal that a failing disk kept out of the journal is counted until it is found out
            let agrees = resident == du || !self.healthy && resident > du;
            assert!(
                agrees && reserved == 0,
                "{name}: account {resident} + {reserved}, du {du} (I1)"
            );
        }
        let mut events = Vec::new();
        self.m().take_events(&mut events);
        // which tier holds what is told by blocks that are nowhere else: the primary tier is empty after a restart
        for n in 0..KEYS {
            let k = key(n);
            let says = self.places.iter().any(|p| p.seen.lock().unwrap().says(&k));
            let id = RequestId(u64::MAX - n);
            self.m().on_new_request(id, NewRequest::default());
            let found = self.m().lookup(&k, id);
            let is_held = found != Found::Miss;
            let full = self.manager.as_ref().unwrap().primary().stats();
            assert!(
                is_held == says || full.slots == full.used,
                "events and lookup of {k}: {says}, {found:?} (I7)"
            );
            assert!(!is_held || self.stored.contains(&k), "{k} was never stored");
            self.m().on_schedule_end();
            self.rest();
            // what came up is right
            if self.m().lookup(&k, id) == Found::Hit {
                let slots = self.m().prepare_load(std::slice::from_ref(&k)).unwrap();
                let region = self.manager.as_ref().unwrap().primary().region();
                let right = *region.read(slots[0]).unwrap() == *content(&k, LEN);
                assert!(right, "the bytes of {k} are not its own (I2)");
                self.m().complete_load(std::slice::from_ref(&k));
            }
            self.m().on_request_finished(id, &[]);
            self.m().on_schedule_end();
        }
    }

    fn note(&mut self, n: u64) {
        self.trace = (self.trace ^ n).wrapping_mul(0x100_0000_01b3).rotate_left(17);
    }

    /// Ends in order; returns what tells this run from others.
    pub(crate) fn end(&mut self) -> Counts {
        self.restart();
        self.finish_all();
        self.rest();
        self.ending(true);
        self.m().shutdown();
        self.end_life();
        self.counts.trace = self.trace;
        self.counts
    }
}

fn keys_of(slots: &[(Key, SlotId)]) -> Vec<Key> {
    slots.iter().map(|s| s.0.clone()).collect()
}

/// Lets the engine's threads run.
fn pause_a_while(rng: &mut Rng) {
    pause(rng.below(60));
}
