//! Blocks that go down: which are sent, which are refused, and what is held meanwhile.

use super::*;

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
