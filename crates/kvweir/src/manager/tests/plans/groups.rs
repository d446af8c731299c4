//! Groups of several kinds, and keys of which nothing or little was told.

use super::*;

#[test]
fn a_group_with_a_window_is_put_off_by_as_many_keys_as_its_window_has() {
    let mut p = Planned::new(64, vec![tier(64)], vec![None, Some(3)]);
    let ks = grouped(0, 12, 2);
    p.on_disk(1, &ks);
    lock(&p.w.tiers[0].0).hold_now();
    let r = p.begin(2, &ks);
    assert_eq!(p.pass(r, &ks), Passed(None, 2 + 3));
    p.w.m.on_schedule_end();
    lock(&p.w.tiers[0].0).release();
    assert_eq!(p.pass(r, &ks), Passed(Some(12), 12 + 3));
    assert_eq!(p.held(), 15, "of the window no more than it needs");
}

#[test]
fn without_its_prefix_a_request_is_put_off_one_step_and_then_promoted_block_by_block() {
    let mut p = Planned::new(32, vec![tier(255)], vec![]);
    let ks = prompt(0, 4);
    p.on_disk(1, &ks);
    let r = p.w.begin(2);
    assert_eq!(
        p.w.m.lookup_with_prefix(&ks[0][0], r),
        None,
        "it may be brought up"
    );
    assert_eq!(p.w.m.await_prefix(&ks[0][0], r), Found::HitPending);
    assert_eq!(p.w.m.lookup_with_prefix(&ks[0][1], r), Some(Found::Miss));
    p.w.m.on_schedule_end();
    assert_eq!(p.w.m.lookup_with_prefix(&ks[0][0], r), Some(Found::HitPending));
    assert_eq!(p.w.m.lookup_with_prefix(&ks[0][1], r), Some(Found::HitPending));
    assert_eq!(p.w.m.lookup_with_prefix(&key(99, 0), r), Some(Found::Miss));
}

#[test]
fn groups_of_coarser_blocks_end_a_hit_where_both_have_one() {
    let mut p = Planned::new(64, vec![tier(255)], vec![]);
    let fine: Vec<Key> = (0..12).map(|i| key(i, 0)).collect();
    let coarse: Vec<Key> = (0..2).map(|i| key(i, 1)).collect();
    p.on_disk(1, &[fine.clone(), coarse.clone()]);
    let r = p.w.begin(2);
    let ends = fine
        .iter()
        .cloned()
        .zip(1..)
        .chain([(coarse[0].clone(), 4), (coarse[1].clone(), 8)]);
    p.w.m.set_prefix(r, ends.collect());
    assert_eq!(p.w.m.lookup(&fine[0], r), Found::HitPending);
    p.w.m.on_schedule_end();
    assert_eq!(p.held(), 8 + 2, "beyond eight the coarse group has nothing");
}

#[test]
fn a_key_between_the_ends_of_blocks_comes_up_by_itself_and_ends_no_prefix() {
    let mut p = Planned::new(64, vec![tier(255)], vec![]);
    let ks = prompt(0, 6);
    let tail = key(200, 0);
    p.on_disk(1, &[[ks[0].clone(), vec![tail.clone()]].concat()]);
    let nowhere = key(201, 0);
    let r = p.w.begin(2);
    let ends = ks[0].iter().cloned().zip((16..).step_by(16));
    p.w.m.set_prefix(
        r,
        ends.chain([(nowhere.clone(), 24), (tail.clone(), 104)]).collect(),
    );
    assert_eq!(p.pass(r, &ks), Passed(None, 2));
    p.w.m.on_schedule_end();
    assert_eq!(p.pass(r, &ks), Passed(Some(6), 6));
    assert_eq!(p.w.m.lookup(&nowhere, r), Found::Miss);
    assert_eq!(p.w.m.lookup(&tail, r), Found::HitPending);
    p.w.m.on_schedule_end();
    assert_eq!(p.w.m.lookup(&tail, r), Found::Hit);
}

#[test]
fn groups_of_which_nothing_was_told_are_planned_as_wholes_once_room_has_run_out() {
    let mut p = Planned::new(16, vec![tier(255)], vec![]);
    p.set_groups(Groups::watched(group_of));
    let ks = grouped(0, 20, 3);
    p.on_disk(1, &ks);
    let mut hits = Vec::new();
    for r in 2..6 {
        let req = p.begin(r, &ks);
        hits.push(p.resolve(req, &ks));
        p.w.m.on_request_finished(req, &[]);
        p.w.drop_primary();
    }
    assert_eq!(hits[1..], [5, 5, 5], "{hits:?}");
}

/// The blocks before its window are gone, and what is taken for a whole begins with a gap.
#[test]
fn a_group_that_turns_out_to_have_a_window_is_promoted_block_by_block() {
    let mut p = Planned::new(64, vec![tier(255)], vec![None, Some(3)]);
    p.set_groups(Groups::watched(group_of));
    let ks = grouped(0, 12, 2);
    p.on_disk(1, &[ks[0].clone(), ks[1][9..].to_vec()]);
    for r in 2..5 {
        let req = p.begin(r, &ks);
        assert_eq!(p.resolve(req, &ks), 12, "request {r}");
        p.w.m.on_request_finished(req, &[]);
        p.w.drop_primary();
    }
}

#[test]
fn a_tier_is_asked_once_for_a_block_whose_prefix_is_not_to_be_had() {
    let mut p = Planned::new(16, vec![tier(255)], vec![]);
    let ks = prompt(0, 3);
    p.on_disk(1, &ks);
    let r = p.w.begin(2);
    let before = p.w.tiers[0].stats().lookup_hits;
    assert_eq!(p.w.m.lookup_with_prefix(&ks[0][0], r), None);
    p.w.m.set_no_prefix(r);
    assert_eq!(p.w.m.lookup(&ks[0][0], r), Found::HitPending);
    assert_eq!(p.w.m.lookup_with_prefix(&ks[0][1], r), Some(Found::HitPending));
    assert_eq!(p.w.tiers[0].stats().lookup_hits - before, 2);
}

#[test]
fn a_pass_that_begins_with_a_key_of_no_block_is_answered_block_by_block() {
    let mut p = Planned::new(16, vec![tier(255)], vec![]);
    let ks = prompt(0, 4);
    p.on_disk(1, &ks);
    let r = p.begin(2, &ks);
    assert_eq!(p.w.m.lookup(&key(99, 0), r), Found::Miss);
    assert_eq!(p.w.m.lookup(&ks[0][0], r), Found::HitPending);
    assert_eq!(p.w.m.lookup(&ks[0][1], r), Found::HitPending);
}
