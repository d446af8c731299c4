//! Resets, shutdowns, and what the events of a whole life tell.

use super::*;

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
