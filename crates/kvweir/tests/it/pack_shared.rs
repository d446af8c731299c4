//! Several members that pack on one root: each its own extents, whole extents change hands (I1, I6).

use std::{collections::HashMap, path::PathBuf};

use kvweir::{
    fs::Layout,
    tier::{RequestId, Tier, conformance::Client},
};

use crate::{
    shared_root::{join, pour},
    support::*,
};

const BOUND: u64 = 6 << 20;

/// Header pages of extents: which file is which.
fn heads(root: &Root) -> HashMap<PathBuf, Vec<u8>> {
    let head = |p: &PathBuf| std::fs::read(p).map(|b| b[..128].to_vec()).unwrap_or_default();
    extents(&root.path())
        .into_iter()
        .map(|p| (p.clone(), head(&p)))
        .collect()
}

#[test]
fn two_live_members_of_one_namespace_leave_each_others_extents_alone() {
    let root = Root::of(Layout::Pack);
    let mut a = join(&root, BOUND, "model");
    let mut b = join(&root, BOUND, "model");
    pour(&mut a, 0..60);
    until("b stores", || pour(&mut b, 1000..1020) == 20);
    let before = heads(&root);
    assert!(before.len() >= 2);
    for round in 0..20 {
        pour(&mut a, round * 50..round * 50 + 80);
        pour(&mut b, 2000 + round * 50..2000 + round * 50 + 80);
        assert!(root.du() <= BOUND, "{} of {BOUND}", root.du());
    }
    for (path, head) in heads(&root) {
        assert!(
            before.get(&path).is_none_or(|h| *h == head),
            "{path:?} is another one"
        );
    }
    for (c, from) in [(&mut a, 0), (&mut b, 2000)] {
        let held: Vec<_> = keys(from..from + 1100)
            .into_iter()
            .filter(|k| c.holds(k))
            .collect();
        assert!(held.len() > 40);
        for part in held.chunks(20) {
            all_ok(&c.load(R, part));
        }
        c.tier.on_request_finished(R, &[]);
        assert_eq!(c.tier.stats().verification_failures, 0);
    }
}

#[test]
fn what_a_dead_member_packed_is_opened_by_one_of_its_namespace_that_lives() {
    let root = Root::of(Layout::Pack);
    let mut a = join(&root, BOUND, "model");
    pour(&mut a, 0..60);
    let mut b = join(&root, BOUND, "model");
    until("b stores", || pour(&mut b, 1000..1020) == 20);
    // one key of both
    until("both store one", || pour(&mut b, 5..6) == 1);
    drop(a);
    until("b takes over what a left", || {
        keys(0..60).iter().all(|k| b.holds(k))
    });
    all_ok(&b.load(R, &keys(0..60)));
    all_ok(&b.load(R, &keys(1000..1020)));
    b.tier.on_request_finished(R, &[]);
    assert_eq!(b.tier.stats().blocks, 80, "the key of both counts once");
    // its slots are used like any other
    for round in 0..12 {
        assert_eq!(pour(&mut b, 3000 + round * 80..3080 + round * 80), 80);
        assert!(root.du() <= BOUND);
    }
    assert_settled(&mut b, &root);
    drop(b);
    let mut c = join(&root, BOUND, "model");
    assert!(c.tier.stats().recovered_blocks > 100);
    assert_settled(&mut c, &root);
}

#[test]
fn what_a_dead_member_of_another_namespace_packed_goes_when_room_is_needed() {
    let root = Root::of(Layout::Pack);
    let mut a = join(&root, BOUND, "a");
    pour(&mut a, 0..400);
    let mut b = join(&root, BOUND, "b");
    drop(a);
    until("b has nearly all of the room", || {
        pour(&mut b, 0..1200);
        assert!(root.du() <= BOUND, "{} of {BOUND}", root.du());
        let left = extents(&root.path())
            .iter()
            .filter(|p| p.to_string_lossy().contains("/a_"))
            .count();
        left == 0
    });
    assert!(pour(&mut b, 5000..5020) == 20);
    b.tier.on_request_finished(R, &[]);
    drop(b);
    let mut a = join(&root, BOUND, "a");
    assert!(keys(0..400).iter().all(|k| !a.holds(k)));
    assert_eq!(pour(&mut a, 0..50), 50);
    assert!(root.du() <= BOUND);
}

#[test]
fn a_member_above_its_share_gives_whole_extents_though_blocks_in_each_are_pinned() {
    let root = Root::of(Layout::Pack);
    let mut a = join(&root, BOUND, "a");
    let mut n = 0;
    while a.tier.stats().evicted_blocks.iter().sum::<u64>() == 0 {
        assert_eq!(pour(&mut a, n..n + 1), 1);
        n += 1;
    }
    let held: Vec<_> = keys(0..n).into_iter().filter(|k| a.holds(k)).collect();
    // what a request waits for, all over
    let pinned: Vec<_> = held.iter().step_by(40).cloned().collect();
    assert!(pinned.iter().all(|k| a.lookup(k, RequestId(7))));
    let before = extents(&root.path()).len();
    let mut b = join(&root, BOUND, "b");
    let mut stored = 0;
    until("the newcomer stores", || {
        stored += pour(&mut b, stored as u64..stored as u64 + 10);
        assert!(root.du() <= BOUND);
        stored > 100
    });
    let of_a = |root: &Root| {
        let ours = |p: &&PathBuf| p.to_string_lossy().contains("/a_");
        extents(&root.path()).iter().filter(ours).count()
    };
    assert!(of_a(&root) < before, "whole extents went");
    for part in pinned.chunks(10) {
        all_ok(&a.load(RequestId(7), part));
    }
    a.tier.on_request_finished(RequestId(7), &[]);
    assert!(pour(&mut a, 7000..7050) == 50 && root.du() <= BOUND);
    check_all(&mut a, &held);
}

fn check_all(c: &mut Client<kvweir::fs::FsTier>, known: &[kvweir::Key]) {
    let left: Vec<_> = known.iter().filter(|k| c.holds(k)).cloned().collect();
    for part in left.chunks(20) {
        all_ok(&c.load(R, part));
    }
    c.tier.on_request_finished(R, &[]);
}
