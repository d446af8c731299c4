//! Promotions planned per request: what fits, who waits, what is held until when, and what a step costs.

use super::*;
use crate::manager::{Groups, PlanSettings};

mod groups;
mod order;

/// The group of a test's key is its second byte.
fn group_of(key: &Key) -> u32 {
    key.as_bytes().get(1).map_or(0, |&g| u32::from(g))
}

fn key(n: u8, group: u8) -> Key {
    Key::new(&[n, group, 2, 3]).unwrap()
}

/// `n` blocks from number `from` on, in one group of whole attention.
fn prompt(from: u8, n: u8) -> Vec<Vec<Key>> {
    grouped(from, n, 1)
}

fn grouped(from: u8, n: u8, groups: u8) -> Vec<Vec<Key>> {
    (0..groups)
        .map(|g| (from..from + n).map(|i| key(i, g)).collect())
        .collect()
}

/// What a scheduler is told by a pass over the keys of a request: hits, or nothing yet; and how many it asked for.
#[derive(Debug, PartialEq, Eq)]
struct Passed(Option<usize>, usize);

struct Planned {
    w: World,
    windows: Vec<Option<u32>>,
}

impl Planned {
    fn new(slots: u32, tiers: Vec<MemoryTier>, windows: Vec<Option<u32>>) -> Self {
        let mut p = Self {
            w: world(slots, tiers, None),
            windows: windows.clone(),
        };
        p.set_groups(Groups::new(group_of, windows));
        p
    }

    fn set_groups(&mut self, groups: Groups) {
        let region = Region::new(1, BLOCK, false).unwrap();
        let other = Manager::new(Primary::new(region, PolicyKind::Lru, false));
        self.w.m = std::mem::replace(&mut self.w.m, other).groups(groups);
    }

    /// Stores a prompt, so that only tiers have it.
    fn on_disk(&mut self, r: u64, prompt: &[Vec<Key>]) {
        let req = self.w.begin(r);
        for part in prompt
            .concat()
            .chunks(self.w.m.primary().region().num_slots() as usize / 2)
        {
            self.w.store(req, part);
        }
        self.w.m.on_request_finished(req, &[]);
        self.w.drop_primary();
    }

    fn begin(&mut self, r: u64, prompt: &[Vec<Key>]) -> RequestId {
        let req = self.w.begin(r);
        let ends = |g: &Vec<Key>| g.iter().cloned().zip(1..).collect::<Vec<_>>();
        self.w.m.set_prefix(req, prompt.iter().flat_map(ends).collect());
        req
    }

    /// vLLM's search: groups of whole attention from the front, then windows from the back.
    fn pass(&mut self, req: RequestId, prompt: &[Vec<Key>]) -> Passed {
        let (mut asked, mut later, mut limit) = (0, false, prompt[0].len());
        for (g, keys) in prompt.iter().enumerate() {
            let window = self.windows.get(g).copied().flatten();
            let (mut hits, mut pending) = (0, false);
            let mut run = 0;
            let order: Vec<usize> = if window.is_some() {
                (0..limit).rev().collect()
            } else {
                (0..limit).collect()
            };
            for i in order {
                asked += 1;
                let found = self.w.m.lookup(&keys[i], req);
                match (found, window) {
                    (Found::Miss, None) => break,
                    (Found::Miss, Some(_)) => (run, pending) = (0, false),
                    (Found::Retry, _) => (later, run) = (true, 0),
                    (Found::Hit | Found::HitPending, _) => {
                        pending |= found == Found::HitPending;
                        run += 1;
                        hits = if window.is_some() { i + run } else { run };
                        if window.is_some_and(|w| run == w as usize) {
                            break;
                        }
                    }
                }
            }
            if window.is_some_and(|w| run < w as usize) {
                hits = run;
            }
            if hits == 0 && !pending && !later {
                return Passed(Some(0), asked);
            }
            later |= pending;
            if !pending && !later {
                limit = limit.min(hits);
            }
        }
        Passed((!later).then_some(limit), asked)
    }

    /// Steps until the request is told what it hits, which is loaded and let go of.
    fn resolve(&mut self, req: RequestId, prompt: &[Vec<Key>]) -> usize {
        for _ in 0..100 {
            let Passed(hits, _) = self.pass(req, prompt);
            if let Some(n) = hits {
                let keys: Vec<Key> = prompt
                    .iter()
                    .enumerate()
                    .flat_map(|(g, keys)| {
                        let w = self.windows.get(g).copied().flatten().map_or(n, |w| w as usize);
                        keys[n.saturating_sub(w)..n].to_vec()
                    })
                    .collect();
                self.w.m.prepare_load(&keys).expect("hits are readable");
                self.w.m.let_go(req);
                self.w.m.on_schedule_end();
                self.w.m.complete_load(&keys);
                return n;
            }
            self.w.m.on_schedule_end();
        }
        panic!("never told");
    }

    fn held(&self) -> u64 {
        self.w.m.primary().stats().held
    }
}

fn deferred(n: u32) -> MemoryTier {
    tier(n).deferred(true)
}

#[test]
fn a_step_asks_two_keys_of_a_request_whose_blocks_are_on_their_way() {
    let mut p = Planned::new(64, vec![tier(64)], vec![]);
    let ks = prompt(0, 20);
    p.on_disk(1, &ks);
    lock(&p.w.tiers[0].0).hold_now();
    let r = p.begin(2, &ks);
    for _ in 0..3 {
        assert_eq!(p.pass(r, &ks), Passed(None, 2));
        p.w.m.on_schedule_end();
    }
    assert_eq!(p.w.tiers[0].stats().loaded_blocks, 0);
    lock(&p.w.tiers[0].0).release();
    assert_eq!(p.pass(r, &ks), Passed(Some(20), 20));
    assert_eq!((p.held(), p.w.m.stats().queued_promotions), (20, 20));
}

#[test]
fn of_a_prefix_longer_than_the_primary_what_fits_is_hit_again_and_again() {
    for groups in [1, 3] {
        let mut p = Planned::new(64, vec![tier(255)], vec![]);
        let ks = grouped(0, 60, groups);
        p.on_disk(1, &ks);
        // beside the stores of a step
        let fits = if groups == 1 { 48 } else { 16 };
        for r in 2..6 {
            let req = p.begin(r, &ks);
            assert_eq!(p.resolve(req, &ks), fits, "{groups} groups");
            let more = prompt(200 + r as u8, 16);
            assert!(p.w.m.prepare_store(&more[0], req).is_some(), "stores go on");
            p.w.m.complete_store(&more[0], req, false);
            p.w.m.on_request_finished(req, &[]);
            p.w.drop_primary();
        }
        assert_eq!(p.w.m.stats().cut_requests, 4);
        assert_eq!(
            p.w.m.stats().promotions_without_room,
            0,
            "decided before a slot was taken"
        );
    }
}

#[test]
fn waiting_requests_are_promoted_in_their_order_and_never_evict_each_others_blocks() {
    let mut p = Planned::new(16, vec![deferred(255)], vec![]);
    let prompts: Vec<_> = (0..8).map(|i| prompt(i * 8, 8)).collect();
    for (i, ks) in prompts.iter().enumerate() {
        p.on_disk(i as u64, ks);
    }
    let reqs: Vec<_> = prompts
        .iter()
        .enumerate()
        .map(|(i, ks)| p.begin(100 + i as u64, ks))
        .collect();
    let mut served = Vec::new();
    for _ in 0..100 {
        for (i, ks) in prompts
            .iter()
            .enumerate()
            .filter(|(i, _)| !served.contains(i))
            .collect::<Vec<_>>()
        {
            if let Passed(Some(n), _) = p.pass(reqs[i], ks) {
                assert_eq!(n, 8);
                served.push(i);
                p.w.m.let_go(reqs[i]);
                p.w.m.on_request_finished(reqs[i], &[]);
            }
        }
        p.w.m.on_schedule_end();
    }
    assert_eq!(served, (0..8).collect::<Vec<_>>());
    assert_eq!(p.w.m.stats().promoted_blocks, 64, "each block was loaded once");
    assert!(p.w.m.stats().held_back_requests >= 6);
    assert_eq!(p.held(), 0);
}

#[test]
fn a_shared_prefix_is_promoted_once_and_held_for_all_who_wait_for_it() {
    let mut p = Planned::new(16, vec![deferred(255)], vec![]);
    let ks = prompt(0, 10);
    p.on_disk(1, &ks);
    let (a, b) = (p.begin(2, &ks), p.begin(3, &ks));
    assert_eq!(p.pass(a, &ks), Passed(None, 2));
    assert_eq!(
        p.pass(b, &ks),
        Passed(None, 2),
        "the same blocks need no more room"
    );
    assert_eq!((p.held(), p.w.m.stats().queued_promotions), (10, 10));
    p.w.m.on_schedule_end();
    assert_eq!(p.resolve(a, &ks), 10);
    assert_eq!(p.held(), 10, "the other still waits");
    p.w.m.on_request_finished(a, &[]);
    let filler = prompt(100, 16);
    assert!(
        p.w.m.prepare_store(&filler[0], a).is_none(),
        "what is held is not evicted"
    );
    assert_eq!(p.resolve(b, &ks), 10);
    assert_eq!(p.held(), 0);
    assert!(p.w.m.prepare_store(&filler[0], a).is_some());
}

#[test]
fn a_request_that_is_gone_holds_nothing_whatever_it_waited_for() {
    let mut p = Planned::new(16, vec![deferred(255)], vec![]);
    let (a, b) = (prompt(0, 10), prompt(20, 10));
    p.on_disk(1, &a);
    p.on_disk(2, &b);
    let (ra, rb) = (p.begin(3, &a), p.begin(4, &b));
    p.pass(ra, &a);
    assert_eq!(
        p.pass(rb, &b),
        Passed(None, 2),
        "there is no room beside the other"
    );
    p.w.m.on_request_finished(ra, &[]);
    assert_eq!(
        (p.held(), p.w.m.primary().stats().used),
        (0, 0),
        "nothing was submitted yet"
    );
    p.w.m.on_schedule_end();
    assert_eq!(p.pass(rb, &b), Passed(None, 2));
    p.w.m.on_schedule_end();
    p.w.m.on_request_finished(rb, &[]);
    assert_eq!(p.held(), 0);
    p.w.m.drain();
    assert_eq!(p.w.tiers[0].stats().pinned_blocks, 0);
}

#[test]
fn a_block_that_does_not_come_ends_the_hit_before_it_and_nobody_waits_for_ever() {
    let mut p = Planned::new(32, vec![tier(255)], vec![]);
    let ks = prompt(0, 12);
    p.on_disk(1, &ks);
    {
        let mut t = lock(&p.w.tiers[0].0);
        *t = std::mem::replace(&mut *t, tier(1)).fail_next_loads(1);
    }
    let r = p.begin(2, &ks);
    assert_eq!(p.resolve(r, &ks), 0, "the first block failed");
    assert_eq!(p.held(), 0);
    p.w.m.on_request_finished(r, &[]);
    let r = p.begin(3, &ks);
    assert_eq!(p.resolve(r, &ks), 0, "the tier has it no longer");
}

#[test]
fn who_waits_for_room_too_long_takes_what_there_is() {
    let mut p = Planned::new(16, vec![tier(255)], vec![]);
    let (a, b) = (prompt(0, 10), prompt(20, 10));
    p.on_disk(1, &a);
    p.on_disk(2, &b);
    let (ra, rb) = (p.begin(3, &a), p.begin(4, &b));
    p.pass(ra, &a);
    assert_eq!(p.pass(rb, &b), Passed(None, 2));
    p.w.m.on_schedule_end();
    p.w.clock
        .advance(PlanSettings::default().wait + Duration::from_secs(1));
    p.pass(ra, &a);
    assert_eq!(
        p.pass(rb, &b),
        Passed(None, 2),
        "two slots are left of three quarters"
    );
    p.w.m.on_schedule_end();
    assert_eq!(p.pass(rb, &b), Passed(Some(2), 3));
}

#[test]
fn a_hit_that_begins_earlier_than_was_planned_is_planned_anew() {
    let mut p = Planned::new(32, vec![tier(255)], vec![]);
    let ks = prompt(0, 12);
    p.on_disk(1, &ks);
    let r = p.begin(2, &ks);
    // the accelerator has the first six
    let rest = vec![ks[0][6..].to_vec()];
    p.pass(r, &rest);
    p.w.m.on_schedule_end();
    assert_eq!(p.pass(r, &rest), Passed(Some(6), 6));
    p.w.m.on_schedule_end();
    // it could not be scheduled, and the accelerator has lost them
    assert_eq!(p.pass(r, &ks), Passed(None, 2));
    p.w.m.on_schedule_end();
    assert_eq!(p.pass(r, &ks), Passed(Some(12), 12));
    assert_eq!(p.w.m.stats().promoted_blocks, 12);
}

#[test]
fn a_reset_drops_plans_and_they_are_made_again() {
    let mut p = Planned::new(32, vec![deferred(255)], vec![]);
    let ks = prompt(0, 12);
    p.on_disk(1, &ks);
    let r = p.begin(2, &ks);
    p.pass(r, &ks);
    p.w.m.on_schedule_end();
    p.w.m.reset();
    assert_eq!(p.held(), 0);
    assert_eq!(
        p.pass(r, &ks),
        Passed(Some(0), 1),
        "nothing is promoted before the flush"
    );
    p.w.m.on_reset_flushed();
    assert_eq!(p.resolve(r, &ks), 12);
}

#[test]
fn a_request_that_is_alone_may_fill_the_primary_but_for_what_stores_have_needed_lately() {
    let mut p = Planned::new(64, vec![tier(255)], vec![]);
    let ks = prompt(0, 64);
    p.on_disk(1, &ks);
    for _ in 0..8 {
        p.w.m.on_schedule_end();
    }
    let r = p.begin(2, &ks);
    assert_eq!(p.resolve(r, &ks), 64);
    p.w.m.on_request_finished(r, &[]);
    p.w.drop_primary();
    let r = p.begin(3, &prompt(100, 8));
    p.w.store(r, &prompt(100, 8)[0]);
    let r = p.begin(4, &ks);
    assert_eq!(p.resolve(r, &ks), 56);
}

#[test]
fn a_request_that_is_never_asked_for_again_holds_its_slots_no_longer_than_others_wait() {
    let mut p = Planned::new(16, vec![tier(255)], vec![]);
    let (a, b) = (prompt(0, 12), prompt(20, 12));
    p.on_disk(1, &a);
    p.on_disk(2, &b);
    let (ra, rb) = (p.begin(3, &a), p.begin(4, &b));
    p.pass(ra, &a);
    p.w.m.on_schedule_end();
    for _ in 0..5 {
        assert_eq!(p.pass(rb, &b), Passed(None, 2));
        p.w.m.on_schedule_end();
        p.w.clock.advance(Duration::from_secs(1));
    }
    p.w.clock.advance(Duration::from_secs(1));
    p.pass(rb, &b);
    p.w.m.on_schedule_end();
    assert_eq!(p.resolve(rb, &b), 12, "not cut");
}

/// The answers were "hit, hit, miss", which is a hit of two: the rest came up for nothing.

#[test]
fn a_prefix_that_is_readable_at_first_is_put_off_for_the_rest_of_it() {
    for shown in [1, 5, 11] {
        let mut p = Planned::new(64, vec![tier(255)], vec![]);
        let ks = prompt(0, 12);
        p.on_disk(1, &ks);
        let r = p.begin(2, &prompt(0, shown));
        p.resolve(r, &prompt(0, shown));
        p.w.m.on_request_finished(r, &[]);
        let r = p.begin(3, &ks);
        assert_eq!(
            p.pass(r, &ks),
            Passed(None, shown as usize + if shown == 11 { 1 } else { 2 })
        );
        p.w.m.on_schedule_end();
        assert_eq!(p.pass(r, &ks), Passed(Some(12), 12), "{shown} were there");
        assert_eq!(p.w.m.stats().promoted_blocks, 12, "nothing twice");
    }
}

#[test]
fn a_prefix_of_the_accelerator_that_shrinks_while_blocks_come_up_costs_no_hit() {
    let mut p = Planned::new(64, vec![tier(255)], vec![]);
    let ks = prompt(0, 12);
    p.on_disk(1, &ks);
    let r = p.begin(2, &ks);
    p.pass(r, &[ks[0][5..].to_vec()]);
    p.w.m.on_schedule_end();
    assert_eq!(p.resolve(r, &ks), 12);
}

#[test]
fn a_request_that_ran_and_grew_is_planned_with_all_its_keys() {
    let mut p = Planned::new(64, vec![tier(255)], vec![]);
    let ks = prompt(0, 12);
    p.on_disk(1, &ks);
    let r = p.begin(2, &prompt(0, 4));
    assert_eq!(p.resolve(r, &prompt(0, 4)), 4);
    p.w.drop_primary();
    assert_eq!(
        p.w.m.lookup_with_prefix(&ks[0][0], r),
        None,
        "its keys are wanted again"
    );
    p.w.m.set_prefix(r, ks[0].iter().cloned().zip(1..).collect());
    assert_eq!(p.resolve(r, &ks), 12);
}

/// A later batch is deeper: evicted head first, what is left of a prompt is of no use. Nor is one group without the others.

#[test]
fn nobody_waits_for_room_to_hold_what_is_in_the_primary_or_on_its_way_there() {
    let mut p = Planned::new(16, vec![tier(255)], vec![]);
    let (a, b) = (prompt(0, 8), prompt(20, 8));
    p.on_disk(1, &a);
    let ra = p.begin(2, &a);
    p.pass(ra, &a);
    p.w.m.on_schedule_end();
    assert_eq!(p.held(), 8, "two thirds of what may be held");
    let runs = p.begin(3, &b);
    p.w.m.prepare_store(&b[0], runs).expect("room");
    let rb = p.begin(4, &b);
    for _ in 0..3 {
        assert_eq!(p.pass(rb, &b), Passed(None, 2));
        p.w.m.on_schedule_end();
    }
    p.w.m.complete_store(&b[0], runs, true);
    assert_eq!(p.pass(rb, &b), Passed(Some(8), 8));
    assert_eq!((p.held(), p.w.m.stats().held_back_requests), (8, 0));
}
