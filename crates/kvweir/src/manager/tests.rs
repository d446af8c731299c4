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

mod detectors;
mod liars;

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

#[test]
fn a_block_comes_back_through_the_first_tier_that_holds_it() {
    let mut w = world(8, vec![tier(64), tier(64)], None);
    let (r, ks) = (w.begin(1), keys(1..5));
    w.store(r, &ks);
    w.m.on_request_finished(r, &ks);
    w.drop_primary();
    let r = w.begin(2);
    assert_eq!(w.resolve(r, &ks), 4);
    assert_eq!(w.m.tier_hits(), [4, 0]);
    assert_eq!(w.bytes(&ks[2]), vec![3; BLOCK]);
    assert_eq!(w.m.stats().promoted_blocks, 4);
}

#[test]
fn the_loads_of_a_step_go_out_as_one_job_per_tier_and_request() {
    let mut w = world(16, vec![tier(64).deferred(true)], None);
    let (r, ks) = (w.begin(1), keys(1..7));
    w.store(r, &ks);
    w.drop_primary();
    let (a, b) = (w.begin(2), w.begin(3));
    ks[..3]
        .iter()
        .for_each(|k| assert_eq!(w.m.lookup(k, a), Found::HitPending));
    ks[3..]
        .iter()
        .for_each(|k| assert_eq!(w.m.lookup(k, b), Found::HitPending));
    assert!(w.m.jobs.is_empty(), "nothing goes out before the end of the step");
    w.m.on_schedule_end();
    let mut jobs: Vec<_> = w.m.jobs.values().map(|j| (j.direction, j.keys.clone())).collect();
    jobs.sort_by_key(|j| j.1.clone());
    assert_eq!(
        jobs,
        [
            (Direction::Load, ks[..3].to_vec()),
            (Direction::Load, ks[3..].to_vec())
        ]
    );
}

#[test]
fn a_failed_load_frees_its_slot_and_is_a_miss_and_the_rest_is_kept() {
    let mut w = world(8, vec![tier(64)], None);
    let (r, ks) = (w.begin(1), keys(1..5));
    w.store(r, &ks);
    w.drop_primary();
    {
        let mut t = lock(&w.tiers[0].0);
        *t = std::mem::replace(&mut *t, tier(1)).fail_next_loads(1);
    }
    let r = w.begin(2);
    assert_eq!(w.resolve(r, &ks), 0, "the first block failed");
    assert_eq!(w.m.stats().failed_promotions, 1);
    assert_eq!(w.m.lookup(&ks[0], r), Found::Miss);
    assert_eq!(w.m.lookup(&ks[1], r), Found::Hit);
    assert_eq!(w.m.primary().stats().used, 3);
}

#[test]
fn a_full_primary_turns_a_hit_into_a_miss_and_no_pin_outlives_the_request() {
    let mut w = world(2, vec![tier(64)], None);
    let r = w.begin(1);
    w.store(r, &keys([1, 2]));
    w.m.on_request_finished(r, &keys([1, 2]));
    let r = w.begin(2);
    w.store(r, &keys([3, 4]));
    w.m.lookup(&keys([3])[0], r);
    w.m.lookup(&keys([4])[0], r);
    w.m.prepare_load(&keys([3, 4])).unwrap();
    assert_eq!(w.m.lookup(&keys([1])[0], r), Found::Miss);
    assert_eq!(w.m.stats().promotions_without_room, 1);
    assert_eq!(
        w.tiers[0].stats().pinned_blocks,
        1,
        "the tier was told nothing yet"
    );
    w.m.complete_load(&keys([3, 4]));
    w.m.on_request_finished(r, &keys([3, 4]));
    assert_eq!(w.tiers[0].stats().pinned_blocks, 0);
}

#[test]
fn no_pin_outlives_a_request_that_was_never_announced() {
    let mut w = world(2, vec![tier(64)], None);
    let r = w.begin(1);
    w.store(r, &keys([1, 2]));
    w.m.on_request_finished(r, &keys([1, 2]));
    w.drop_primary();
    let r = w.begin(2);
    w.store(r, &keys([3, 4]));
    w.m.lookup(&keys([3])[0], r);
    w.m.lookup(&keys([4])[0], r);
    w.m.prepare_load(&keys([3, 4])).unwrap();
    let stranger = RequestId(3);
    assert_eq!(
        w.m.lookup(&keys([1])[0], stranger),
        Found::Miss,
        "there is no room"
    );
    assert_eq!(w.tiers[0].stats().pinned_blocks, 1);
    w.m.on_request_finished(stranger, &[]);
    assert_eq!(w.tiers[0].stats().pinned_blocks, 0);
}

#[test]
fn an_aborted_request_drops_its_queued_promotions_and_pins() {
    let mut w = world(4, vec![tier(64)], None);
    let (r, ks) = (w.begin(1), keys(1..4));
    w.store(r, &ks);
    w.drop_primary();
    let r = w.begin(2);
    ks.iter()
        .for_each(|k| assert_eq!(w.m.lookup(k, r), Found::HitPending));
    w.m.on_request_finished(r, &[]);
    assert_eq!(
        (w.m.primary().stats().used, w.tiers[0].stats().pinned_blocks),
        (0, 0)
    );
    w.m.on_schedule_end();
    assert!(!w.m.has_pending_work() || w.m.jobs.is_empty());
}

#[test]
fn tiers_learn_of_the_end_only_when_no_store_can_still_be_cascaded() {
    let mut w = world(4, vec![tier(64)], None);
    let (r, ks) = (w.begin(1), keys([1, 2]));
    w.m.prepare_store(&ks, r).unwrap();
    w.m.on_request_finished(r, &ks);
    assert!(w.m.requests.contains_key(&r));
    w.m.complete_store(&ks, r, true);
    assert!(w.m.requests.is_empty());
    w.m.poll();
    assert_eq!(w.tiers[0].stats().stored_blocks, 2);
}

#[test]
fn slots_of_a_store_in_flight_are_not_evicted() {
    let mut w = world(2, vec![tier(64).hold(true)], None);
    let r = w.begin(1);
    w.store(r, &keys([1, 2]));
    assert!(
        w.m.prepare_store(&keys([3]), r).is_none(),
        "both slots are still being stored"
    );
    lock(&w.tiers[0].0).release();
    assert!(w.m.prepare_store(&keys([3]), r).is_some());
}

#[test]
fn a_refused_store_is_dropped_without_a_trace_in_the_primary() {
    let gate = PressureSettings {
        max_inflight_bytes: Some(2 * BLOCK as u64),
        ..PressureSettings::default()
    };
    let mut w = world(8, vec![tier(64).hold(true)], Some(gate));
    let r = w.begin(1);
    w.store(r, &keys([1, 2]));
    w.store(r, &keys([3, 4]));
    let (_, _, g) = w.m.tier_stats().remove(0);
    let g = g.unwrap();
    assert_eq!(
        (g.inflight_bytes, g.drops.inflight_full.blocks),
        (2 * BLOCK as u64, 2)
    );
    assert_eq!(
        w.m.primary().stats().referenced,
        2,
        "only the admitted blocks are referenced"
    );
    lock(&w.tiers[0].0).release();
    w.m.poll();
    assert_eq!(w.m.primary().stats().referenced, 0);
    assert_eq!(w.m.tier_stats()[0].2.as_ref().unwrap().inflight_bytes, 0);
    assert_eq!(w.tiers[0].stats().stored_blocks, 2);
}

#[test]
fn a_long_prompt_goes_down_in_jobs_that_the_gate_can_admit() {
    let gate = PressureSettings {
        max_inflight_bytes: Some(4 * BLOCK as u64),
        ..PressureSettings::default()
    };
    let mut w = world(16, vec![tier(64)], Some(gate));
    let r = w.begin(1);
    w.store(r, &keys(1..11));
    w.m.poll();
    let stats = w.tiers[0].stats();
    assert!(
        stats.stored_blocks >= 4,
        "a prompt larger than the limit is not lost whole"
    );
    assert!(w.m.tier_stats()[0].2.as_ref().unwrap().peak_inflight_bytes <= 4 * BLOCK as u64);
}

#[test]
fn where_a_single_block_is_larger_than_the_limit_blocks_go_down_one_by_one() {
    let gate = PressureSettings {
        max_inflight_bytes: Some(BLOCK as u64 - 1),
        ..PressureSettings::default()
    };
    let mut w = world(16, vec![tier(64)], Some(gate));
    let r = w.begin(1);
    for n in 1..4 {
        w.store(r, &keys([n]));
        w.m.poll();
    }
    assert_eq!(w.tiers[0].stats().stored_blocks, 3);
}

#[test]
fn a_tier_that_wants_every_block_gets_also_what_the_primary_held() {
    let mut w = world(
        8,
        vec![tier(64), tier(64).store_policy(StorePolicy::EveryBlock)],
        None,
    );
    let ks = keys(1..4);
    let first = w.begin(1);
    w.store(first, &ks[..2]);
    w.m.poll();
    lock(&w.tiers[1].0).shutdown();
    *lock(&w.tiers[1].0) = tier(64).store_policy(StorePolicy::EveryBlock);
    assert_eq!(
        w.m.on_new_request(RequestId(2), NewRequest::default()),
        StorePolicy::EveryBlock
    );
    let third = w.begin(3);
    // block 3 is still being written for another request when request 2 offers it
    w.m.prepare_store(&ks[2..], third).unwrap();
    let p = w.m.prepare_store(&ks, RequestId(2)).unwrap();
    assert!(p.to_store.is_empty());
    w.m.on_request_finished(RequestId(2), &ks);
    assert!(
        w.m.requests.contains_key(&RequestId(2)),
        "a parked block keeps the request open"
    );
    w.m.on_schedule_end();
    w.m.complete_store(&ks[2..], third, true);
    w.m.on_schedule_end();
    w.m.poll();
    assert!(!w.m.requests.contains_key(&RequestId(2)));
    let held = &w.tiers[1];
    assert!(
        ks.iter()
            .all(|k| held.clone().lookup(k, RequestId(9)) == Lookup::Hit)
    );
}

#[test]
fn a_request_loads_only_from_the_tiers_its_filter_allows() {
    let mut w = world(8, vec![tier(64), tier(64)], None);
    let (r, ks) = (w.begin(1), keys([1]));
    w.store(r, &ks);
    w.drop_primary();
    let only_remote = LoadFilter {
        localities: Some(vec![Locality::Remote]),
        ..LoadFilter::default()
    };
    w.m.on_new_request(
        RequestId(2),
        NewRequest {
            load_from: only_remote,
        },
    );
    assert_eq!(w.resolve(RequestId(2), &ks), 1);
    assert_eq!(w.m.tier_hits(), [0, 1]);
    w.drop_primary();
    let none = LoadFilter {
        media: Some(vec![]),
        ..LoadFilter::default()
    };
    w.m.on_new_request(RequestId(3), NewRequest { load_from: none });
    assert_eq!(w.m.lookup(&ks[0], RequestId(3)), Found::Miss);
}

#[test]
fn reset_drops_promotions_keeps_the_tiers_and_holds_until_flushed() {
    let mut w = world(8, vec![tier(64).hold(true)], None);
    let (r, ks) = (w.begin(1), keys(1..4));
    w.store(r, &ks);
    lock(&w.tiers[0].0).release();
    w.drop_primary();
    let r = w.begin(2);
    lock(&w.tiers[0].0).hold_now();
    assert_eq!(w.m.lookup(&ks[0], r), Found::HitPending);
    w.m.on_schedule_end();
    assert_eq!(w.m.lookup(&ks[1], r), Found::HitPending);
    w.m.reset();
    assert!(w.m.jobs.is_empty() && w.m.primary().stats().used == 0);
    assert_eq!(w.m.lookup(&ks[0], r), Found::Miss, "held");
    w.m.on_reset_flushed();
    lock(&w.tiers[0].0).release();
    assert_eq!(w.resolve(r, &ks), 3);
}

#[test]
fn after_shutdown_nothing_is_owed() {
    let mut w = world(8, vec![tier(64).hold(true), tier(64)], None);
    let r = w.begin(1);
    w.store(r, &keys(1..5));
    w.m.shutdown();
    assert!(w.m.jobs.is_empty());
    assert_eq!(w.m.primary().stats().referenced, 0);
    assert!(w.tiers.iter().all(|t| t.stats().pinned_blocks == 0));
}

#[test]
fn events_of_all_tiers_tell_the_true_residency() {
    let mut w = world(3, vec![tier(5)], None);
    let r = w.begin(1);
    let (mut cpu, mut disk) = (
        std::collections::BTreeSet::new(),
        std::collections::BTreeSet::new(),
    );
    for n in 0..20 {
        w.store(r, &keys([n, n + 1]));
        w.m.poll();
        let mut events = Vec::new();
        w.m.take_events(&mut events);
        for e in events {
            let set = if e.medium == Medium::Cpu {
                &mut cpu
            } else {
                &mut disk
            };
            match e.kind {
                EventKind::Stored => set.insert(e.key),
                EventKind::Removed => set.remove(&e.key),
            };
        }
    }
    for k in keys(0..22) {
        assert_eq!(cpu.contains(&k), w.m.primary().state(&k) == SlotState::Ready);
        let held = w.tiers[0].clone().lookup(&k, RequestId(99)) == Lookup::Hit;
        assert_eq!(disk.contains(&k), held);
    }
}

#[test]
fn a_report_of_an_unknown_job_is_ignored_and_an_unready_load_refused() {
    let mut w = world(4, vec![tier(8)], None);
    let r = w.begin(1);
    w.m.take_report(
        0,
        &Report::refused(JobId(77), Direction::Load, 1, ErrorKind::Busy),
    );
    assert_eq!(
        w.m.prepare_load(&keys([1])).unwrap_err().kind(),
        ErrorKind::Invalid
    );
    w.clock.advance(Duration::from_secs(1));
    w.store(r, &keys([1]));
    assert_eq!(w.m.take_job_times().stores.len(), 1);
}

#[test]
fn a_promotion_is_completed_by_its_report_and_by_nobody_else() {
    let mut w = world(8, vec![tier(64)], None);
    let (r, ks) = (w.begin(1), keys(1..3));
    w.store(r, &ks);
    w.drop_primary();
    lock(&w.tiers[0].0).hold_now();
    let a = w.begin(2);
    assert_eq!(w.m.lookup(&ks[0], a), Found::HitPending);
    w.m.on_schedule_end();
    let b = w.begin(3);
    // another request computes both, and names both when only one was its to write
    assert_eq!(w.m.prepare_store(&ks, b).unwrap().to_store.len(), 1);
    w.m.complete_store(&ks, b, true);
    assert_eq!(
        w.m.primary().state(&ks[0]),
        SlotState::Writing,
        "its load still runs"
    );
    assert_eq!(w.m.primary().state(&ks[1]), SlotState::Ready);
    lock(&w.tiers[0].0).release();
    w.m.poll();
    assert_eq!(w.m.primary().state(&ks[0]), SlotState::Ready);
}

#[test]
fn stores_wait_until_a_reset_is_flushed() {
    let mut w = world(8, vec![], None);
    let (r, ks) = (w.begin(1), keys(1..2));
    w.m.prepare_store(&ks, r).unwrap();
    w.m.reset();
    let b = w.begin(2);
    assert!(
        w.m.prepare_store(&ks, b).is_none(),
        "a copy of before the reset may still land"
    );
    w.m.complete_store(&ks, r, true);
    assert_eq!(w.m.primary().state(&ks[0]), SlotState::Absent);
    w.m.on_reset_flushed();
    assert!(w.m.prepare_store(&ks, b).is_some());
}

#[test]
fn a_shutdown_leaves_no_block_pending() {
    let mut w = world(8, vec![tier(64)], None);
    let (r, ks) = (w.begin(1), keys(1..3));
    w.store(r, &ks);
    w.drop_primary();
    let a = w.begin(2);
    assert_eq!(w.m.lookup(&ks[0], a), Found::HitPending);
    w.m.shutdown();
    assert_eq!(w.m.primary().state(&ks[0]), SlotState::Absent);
}
