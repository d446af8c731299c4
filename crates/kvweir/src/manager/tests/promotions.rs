//! Blocks that come up: from which tier, in which jobs, and what is left of those that do not come.

use super::*;

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
            ..NewRequest::default()
        },
    );
    assert_eq!(w.resolve(RequestId(2), &ks), 1);
    assert_eq!(w.m.tier_hits(), [0, 1]);
    w.drop_primary();
    let none = LoadFilter {
        media: Some(vec![]),
        ..LoadFilter::default()
    };
    w.m.on_new_request(
        RequestId(3),
        NewRequest {
            load_from: none,
            ..NewRequest::default()
        },
    );
    assert_eq!(w.m.lookup(&ks[0], RequestId(3)), Found::Miss);
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
