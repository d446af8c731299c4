//! What goes first, in which rows and to which tiers, and what is counted and told.

use super::*;

#[test]
fn a_share_that_is_none_is_refused() {
    for share in [0.0, -1.0, 1.1, f64::NAN] {
        let settings = PlanSettings {
            share,
            ..PlanSettings::default()
        };
        assert_eq!(
            settings.validate().unwrap_err().kind(),
            ErrorKind::Invalid,
            "{share}"
        );
    }
}

#[test]
fn of_more_blocks_than_the_primary_has_slots_the_first_are_stored() {
    let mut p = Planned::new(16, vec![tier(255)], vec![]);
    let ks = prompt(0, 40);
    let r = p.begin(1, &ks);
    let got = p.w.m.prepare_store(&ks[0], r).expect("some fit");
    assert_eq!(got.to_store.len(), 16);
    assert!(got.to_store.iter().zip(&ks[0]).all(|((k, _), first)| k == first));
    assert!(
        p.w.m.prepare_store(&ks[0][16..], r).is_none(),
        "all slots are being written"
    );
    p.w.m.complete_store(&ks[0][..16], r, true);
    p.w.m.on_schedule_end();
    assert_eq!(
        p.w.m.prepare_store(&ks[0][16..], r).map(|s| s.to_store.len()),
        Some(16)
    );
}

#[test]
fn of_more_blocks_than_the_primary_has_slots_those_that_are_there_take_none() {
    let mut p = Planned::new(8, vec![tier(255)], vec![]);
    let ks = prompt(0, 10);
    let r = p.begin(1, &ks);
    p.w.store(r, &ks[0][..5]);
    p.w.m.prepare_load(&ks[0][..5]).unwrap();
    // it was "nothing to store", which an engine takes for all being stored
    let got = p.w.m.prepare_store(&ks[0], r).expect("three fit");
    assert_eq!(
        got.to_store.iter().map(|(k, _)| k.clone()).collect::<Vec<_>>(),
        ks[0][5..8]
    );
    assert!(p.w.m.prepare_store(&ks[0], r).is_none(), "none is free");
}

#[test]
fn blocks_named_in_no_order_go_down_in_that_of_their_request() {
    let mut p = Planned::new(32, vec![deferred(255)], vec![]);
    let ks = prompt(0, 12);
    let r = p.begin(1, &ks);
    p.w.m.prepare_store(&ks[0], r).expect("room");
    let mut shuffled = ks[0].clone();
    shuffled.sort_by_key(|k| k.fingerprint(77).0);
    assert_ne!(shuffled, ks[0]);
    p.w.m.complete_store_in_any_order(shuffled, r, true);
    assert_eq!(lock(&p.w.tiers[0].0).queued_keys(), ks[0]);
}

#[test]
fn a_request_of_others_is_asked_of_all_tiers_but_the_one_that_brings_it() {
    let mut p = Planned::new(16, vec![tier(255), tier(255)], vec![]);
    let ks = prompt(0, 4);
    p.on_disk(1, &ks);
    let r = RequestId(9);
    p.w.m.on_external_request(r, NewRequest::default(), 0);
    assert_eq!(p.w.resolve(r, &ks[0]), 4);
    assert_eq!(p.w.m.tier_hits(), [0, 4]);
    let job = p.w.m.store_job_for(&ks[0], r, 0).unwrap();
    assert_eq!(job.blocks.len(), 4);
    assert_eq!(p.w.m.primary().stats().referenced, 4);
    assert_eq!(p.w.m.tier_traffic()[0].active_stores, 1);
    let (id, blocks) = (job.id, job.blocks.len());
    drop(job);
    p.w.m
        .take_report(0, &Report::refused(id, Direction::Store, blocks, ErrorKind::Busy));
    assert_eq!(p.w.m.primary().stats().referenced, 0);
    assert!(p.w.m.store_job_for(&[key(77, 0)], r, 0).is_err());
    p.w.m.on_request_finished(r, &[]);
    assert_eq!(p.w.tiers[1].stats().pinned_blocks, 0);
}

#[test]
fn a_block_is_counted_once_for_a_request_however_often_it_is_asked_for() {
    let mut p = Planned::new(64, vec![tier(255)], vec![]);
    let ks = prompt(0, 6);
    p.on_disk(1, &ks);
    let r = p.begin(2, &ks);
    p.resolve(r, &ks);
    p.w.m.on_request_finished(r, &[]);
    let before = p.w.m.stats().clone();
    let r = p.begin(3, &ks);
    for _ in 0..5 {
        assert_eq!(p.pass(r, &ks), Passed(Some(6), 6));
        p.w.m.on_schedule_end();
    }
    let (hits, queries) = (p.w.m.stats().primary_hits, p.w.m.stats().primary_queries);
    assert_eq!(
        (hits - before.primary_hits, queries - before.primary_queries),
        (6, 6)
    );
}

#[test]
fn of_a_request_that_runs_the_end_goes_first_whatever_batches_and_groups_it_was_stored_in() {
    for loaded in [false, true] {
        let mut p = Planned::new(16, vec![], vec![]);
        let ks = grouped(0, 6, 2);
        let r = p.begin(1, &ks);
        for at in [0..2, 2..4, 4..6] {
            let keys: Vec<Key> = ks.iter().flat_map(|g| g[at.clone()].to_vec()).collect();
            let ends: Vec<u64> = at.clone().chain(at).map(|i| i as u64 + 1).collect();
            let first = loaded && ends[0] == 1;
            if first {
                let other = p.begin(7, &ks);
                p.w.store(other, &keys);
                p.w.m.on_request_finished(other, &[]);
                p.w.m.prepare_load_of(&keys, &ends, r).unwrap();
                p.w.m.complete_load(&keys);
            } else {
                assert_eq!(p.w.m.prepare_store_of(&keys, &ends, r).unwrap().to_store.len(), 4);
                p.w.m.complete_store(&keys, r, true);
            }
            p.w.m.on_schedule_end();
        }
        let other = p.begin(2, &prompt(100, 10));
        let mut evicted = p.w.m.prepare_store(&prompt(100, 10)[0], other).unwrap().evicted;
        let last: Vec<Key> = ks.iter().flat_map(|g| g[3..].to_vec()).collect();
        evicted.sort();
        let mut expected = last;
        expected.sort();
        assert_eq!(evicted, expected, "loaded: {loaded}");
    }
}

#[test]
fn blocks_that_follow_each_other_get_rows_that_do() {
    let mut p = Planned::new(16, vec![], vec![]);
    let ks = prompt(0, 8);
    let r = p.begin(1, &ks);
    let rows: Vec<SlotId> =
        p.w.m
            .prepare_store(&ks[0], r)
            .unwrap()
            .to_store
            .iter()
            .map(|&(_, s)| s)
            .collect();
    assert_eq!(rows, (0..8).collect::<Vec<_>>());
}

#[test]
fn a_block_that_was_to_come_and_did_not_is_told_once_unless_it_came_after_all() {
    let mut p = Planned::new(16, vec![], vec![]);
    let ks = prompt(0, 4);
    let r = p.begin(1, &ks);
    p.w.m.prepare_store(&ks[0], r);
    p.w.m.complete_store(&ks[0], r, false);
    p.w.store(r, &ks[0][..1]);
    assert_eq!(p.w.m.take_lost(), ks[0][1..]);
    assert_eq!(p.w.m.take_lost(), []);
}
