//! Claims of the manager, over memory tiers whose jobs end when the test says so.

use std::sync::{Arc, Mutex};

use super::*;
use crate::{
    ErrorKind,
    clock::ManualClock,
    events::{EventKind, Locality, Medium},
    evict::PolicyKind,
    io::Region,
    pressure::PressureSettings,
    sync::lock,
    tier::{LoadJob, Lookup, MemoryTier, StoreJob, StorePolicy},
};

mod cascades;
mod detectors;
mod endings;
mod liars;
mod plans;
mod promotions;

const BLOCK: usize = 64;

/// A tier that the test still holds while the manager owns it.
#[derive(Debug, Clone)]
struct Held(Arc<Mutex<MemoryTier>>, &'static str, Locality);

impl Tier for Held {
    fn name(&self) -> &str {
        self.1
    }
    fn medium(&self) -> Medium {
        Medium::Storage
    }
    fn locality(&self) -> Locality {
        self.2
    }
    fn on_new_request(&mut self, req: RequestId) -> StorePolicy {
        lock(&self.0).on_new_request(req)
    }
    fn lookup(&mut self, key: &Key, req: RequestId) -> Lookup {
        lock(&self.0).lookup(key, req)
    }
    fn submit_store(&mut self, job: StoreJob) {
        lock(&self.0).submit_store(job);
    }
    fn submit_load(&mut self, job: LoadJob) {
        lock(&self.0).submit_load(job);
    }
    fn poll(&mut self, reports: &mut Vec<Report>) {
        lock(&self.0).poll(reports);
    }
    fn touch(&mut self, keys: &[Key], req: RequestId) {
        lock(&self.0).touch(keys, req);
    }
    fn on_request_finished(&mut self, req: RequestId, keys: &[Key]) {
        lock(&self.0).on_request_finished(req, keys);
    }
    fn take_events(&mut self, events: &mut Vec<Event>) {
        lock(&self.0).take_events(events);
    }
    fn has_pending_work(&self) -> bool {
        lock(&self.0).has_pending_work()
    }
    fn drain(&mut self) {
        lock(&self.0).drain();
    }
    fn shutdown(&mut self) {
        lock(&self.0).shutdown();
    }
    fn stats(&self) -> TierStats {
        lock(&self.0).stats()
    }
}

struct World {
    m: Manager,
    tiers: Vec<Held>,
    clock: Arc<ManualClock>,
}

/// A manager over `tiers`, each behind a gate with these settings.
fn world(slots: u32, tiers: Vec<MemoryTier>, gate: Option<PressureSettings>) -> World {
    let gate = || gate.map(|g| Gate::new(g, (slots as usize * BLOCK) as u64).unwrap());
    world_behind(slots, tiers.into_iter().map(|t| (t, gate())).collect())
}

/// A manager over `tiers`, each behind its own gate.
fn world_behind(slots: u32, tiers: Vec<(MemoryTier, Option<Gate>)>) -> World {
    let clock = Arc::new(ManualClock::new());
    let region = Region::new(slots, BLOCK, false).unwrap();
    let mut m =
        Manager::new(Primary::new(region, PolicyKind::Lru, true)).clock(Arc::clone(&clock) as Arc<dyn Clock>);
    let names = [
        ("near", Locality::Local),
        ("far", Locality::Remote),
        ("third", Locality::Local),
    ];
    let mut held = Vec::new();
    for ((tier, gate), (name, locality)) in tiers.into_iter().zip(names) {
        let tier = Held(Arc::new(Mutex::new(tier)), name, locality);
        m.add_tier(Box::new(tier.clone()), gate);
        held.push(tier);
    }
    World {
        m,
        tiers: held,
        clock,
    }
}

fn tier(n: u32) -> MemoryTier {
    MemoryTier::new("memory", n)
}

fn keys(r: impl IntoIterator<Item = u8>) -> Vec<Key> {
    r.into_iter().map(|n| Key::new(&[n, 1, 2, 3]).unwrap()).collect()
}

impl World {
    fn begin(&mut self, r: u64) -> RequestId {
        self.m.on_new_request(RequestId(r), NewRequest::default());
        RequestId(r)
    }

    /// Stores `ks` as a request would, each block filled with its first key byte.
    fn store(&mut self, req: RequestId, ks: &[Key]) {
        let p = self.m.prepare_store(ks, req).expect("room");
        for (k, slot) in p.to_store {
            self.m
                .primary()
                .region()
                .write(slot)
                .unwrap()
                .fill(k.as_bytes()[0]);
        }
        self.m.complete_store(ks, req, true);
        self.m.on_schedule_end();
    }

    fn drop_primary(&mut self) {
        self.m.reset();
        self.m.on_reset_flushed();
    }

    /// Looks up until nothing is pending; the number of leading hits.
    fn resolve(&mut self, req: RequestId, ks: &[Key]) -> usize {
        for _ in 0..100 {
            let found: Vec<Found> = ks.iter().map(|k| self.m.lookup(k, req)).collect();
            self.m.on_schedule_end();
            if !found
                .iter()
                .any(|f| matches!(f, Found::HitPending | Found::Retry))
            {
                return found.iter().take_while(|f| **f == Found::Hit).count();
            }
        }
        panic!("lookups never settled")
    }

    fn bytes(&self, key: &Key) -> Vec<u8> {
        let mut copy = self.m.primary().region().num_slots();
        let mut found = Vec::new();
        while copy > 0 {
            copy -= 1;
            let r = self.m.primary().region().read(copy).unwrap();
            if r.iter().all(|&b| b == key.as_bytes()[0]) {
                found = r.to_vec();
            }
        }
        found
    }
}
