//! Several members on one root: one bound for all, each its share, and what the dead leave is taken over (I1, I6).

use std::{sync::Arc, time::Duration};

use kvweir::{
    fs::{FsBuilder, FsTier, Layout},
    io::{
        OsDisk,
        fault::{Fault, FaultDisk, Op, Rule},
    },
    tier::{Tier, conformance::Client},
};

use crate::support::*;

pub(crate) fn join(root: &Root, bound: u64, model: &str) -> Client<FsTier> {
    client(FsBuilder::new(root.settings(bound), ns(model), LEN))
}

/// Stores what can be stored of `range`, one by one; returns how many were.
pub(crate) fn pour(c: &mut Fs, range: std::ops::Range<u64>) -> usize {
    let n = keys(range)
        .iter()
        .filter(|k| c.store(R, std::slice::from_ref(k))[0].is_ok())
        .count();
    c.tier.on_request_finished(R, &[]);
    n
}

fn two_models_share_one_bound_and_a_newcomer_gets_its_part(layout: Layout) {
    let root = Root::of(layout);
    let bound = 4 << 20;
    let mut a = join(&root, bound, "a");
    assert_eq!(pour(&mut a, 0..400), 400);
    let full = a.tier.stats().blocks;
    let mut b = join(&root, bound, "b");
    let mut stored = 0;
    until("the newcomer holds a third of what the first held alone", || {
        stored += pour(&mut b, 0..400) as u64;
        assert!(root.du() <= bound, "{} of {bound}", root.du());
        b.tier.stats().blocks > full / 3
    });
    until("both together are below the bound", || root.du() <= bound);
    assert!(
        a.tier.stats().blocks > full / 3,
        "and the first keeps its own part"
    );
    assert!(pour(&mut a, 1000..1100) > 0 && pour(&mut b, 1000..1100) > 0);
    assert!(root.du() <= bound);
}

#[test]
fn members_of_one_namespace_see_each_others_blocks_without_a_walk() {
    let root = Root::new();
    let mut a = join(&root, 8 << 20, "model");
    store(&mut a, &keys(0..20));
    let mut b = join(&root, 8 << 20, "model");
    until("b sees what a stored before", || {
        keys(0..20).iter().all(|k| b.holds(k))
    });
    all_ok(&b.load(R, &keys(0..20)));
    store(&mut a, &keys(20..30));
    until("b sees what a stores now", || {
        keys(20..30).iter().all(|k| b.holds(k))
    });
    // nothing is stored twice
    let before = b.tier.stats().stored_blocks;
    all_ok(&b.store(R, &keys(0..30)));
    assert_eq!(b.tier.stats().stored_blocks, before);
    assert_eq!(
        files(&root.path())
            .iter()
            .filter(|p| p.extension().is_some_and(|e| e == "bin"))
            .count(),
        30
    );
    // what its owner evicts is a miss for the others, soon
    a.tier.on_request_finished(R, &[]);
    b.tier.on_request_finished(R, &[]);
    drop(a);
    until("b takes over what a left", || b.tier.stats().blocks == 30);
    all_ok(&b.load(R, &keys(0..30)));
    assert_settled(&mut b, &root);
}

#[test]
fn a_peers_block_that_is_gone_is_one_miss_and_then_stored_again() {
    let root = Root::new();
    let mut a = join(&root, 8 << 20, "model");
    store(&mut a, &keys(0..3));
    let mut b = join(&root, 8 << 20, "model");
    until("b sees them", || keys(0..3).iter().all(|k| b.holds(k)));
    std::fs::remove_file(file_of(a.tier.namespace_dir(), &keys(1..2)[0])).unwrap();
    let got = b.load(R, &keys(0..3));
    assert!(got[0].is_ok() && !got[1].is_ok() && got[2].is_ok(), "{got:?}");
    b.tier.on_request_finished(R, &[]);
    assert!(!b.holds(&keys(1..2)[0]));
    all_ok(&b.store(R, &keys(1..2)));
    all_ok(&b.load(R, &keys(1..2)));
    assert_eq!(b.tier.stats().pinned_blocks, 0);
}

fn what_another_model_left_goes_first_and_comes_back_with_it(layout: Layout) {
    let root = Root::of(layout);
    let bound = 4 << 20;
    let mut a = join(&root, bound, "a");
    store(&mut a, &keys(0..50));
    drop(a);
    let mut b = join(&root, bound, "b");
    assert_settled(&mut b, &root);
    store(&mut b, &keys(0..30));
    drop(b);
    let mut a = join(&root, bound, "a");
    assert_eq!(
        (0..50).filter(|&n| a.holds(&keys(n..n + 1)[0])).count(),
        50,
        "a finds its own again"
    );
    all_ok(&a.load(R, &keys(0..50)));
    a.tier.on_request_finished(R, &[]);
    // b's go before any of a's
    pour(&mut a, 100..800);
    let left = files(&root.path())
        .iter()
        .filter(|p| p.to_string_lossy().contains("/b_") && p.extension().is_some_and(|e| e == "bin"))
        .count();
    assert_eq!(left, 0);
    assert_settled(&mut a, &root);
}

#[test]
fn recency_and_depth_survive_a_restart() {
    let root = Root::new();
    let bound = 4 << 20;
    let mut c = join(&root, bound, "model");
    store(&mut c, &keys(0..100));
    // the oldest are used again, as one request: its leaf end is the least recent of them
    let chain = keys(0..20);
    c.tier.on_request_finished(R, &chain);
    c.tier.shutdown();
    drop(c);
    let mut c = join(&root, bound, "model");
    assert_eq!(c.tier.stats().recovered_blocks, 100);
    // evict all but some
    let mut n = 1000;
    while (20..100).any(|k| c.holds(&keys(k..k + 1)[0])) {
        pour(&mut c, n..n + 1);
        n += 1;
    }
    let mut held: Vec<u64> = (0..20).filter(|&k| c.holds(&keys(k..k + 1)[0])).collect();
    assert!(
        held.len() > 15,
        "those used last went before the others: {held:?}"
    );
    while held.len() > 8 {
        pour(&mut c, n..n + 1);
        n += 1;
        held = (0..20).filter(|&k| c.holds(&keys(k..k + 1)[0])).collect();
        assert_eq!(held, (0..held.len() as u64).collect::<Vec<_>>(), "leaf first");
    }
}

#[test]
fn a_journal_of_another_boot_or_a_damaged_one_is_not_believed() {
    let root = Root::new();
    let mut c = join(&root, 8 << 20, "model");
    store(&mut c, &keys(0..20));
    let dir = c.tier.namespace_dir().to_owned();
    // still open: as if the machine went down now
    std::mem::forget(c);
    let file = file_of(&dir, &keys(3..4)[0]);
    let journal = files(&root.path())
        .into_iter()
        .find(|p| p.to_string_lossy().contains("/journal-"))
        .unwrap();
    let copy = tempfile::tempdir().unwrap();
    let other = Root(copy, Layout::Fs);
    let status = std::process::Command::new("cp")
        .arg("-a")
        .arg(root.path())
        .arg(other.path())
        .status();
    assert!(status.unwrap().success());
    let at = |p: &std::path::Path| other.path().join(p.strip_prefix(root.path()).unwrap());
    std::fs::remove_file(at(&file)).unwrap();
    let b = FsBuilder::new(other.settings(8 << 20), ns("model"), LEN).boot_id([9; 16]);
    let mut c = client(b);
    assert_eq!(c.tier.stats().recovered_blocks, 19, "another boot: walked");
    assert_settled(&mut c, &other);
    drop(c);
    // a bit of the journal flips
    let mut bytes = std::fs::read(at(&journal)).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    std::fs::write(at(&journal), bytes).unwrap();
    std::fs::remove_file(at(&file_of(&dir, &keys(4..5)[0]))).unwrap();
    let b = FsBuilder::new(other.settings(8 << 20), ns("model"), LEN).boot_id([9; 16]);
    let mut c = client(b);
    assert_eq!(c.tier.stats().recovered_blocks, 18, "damaged: walked");
    assert_settled(&mut c, &other);
    all_ok(&c.load(R, &keys(5..20)));
}

#[test]
fn the_journal_stays_within_twice_what_it_describes_and_inside_the_bound() {
    let root = Root::new();
    let bound = 4 << 20;
    let mut c = join(&root, bound, "model");
    for n in 0..60 {
        pour(&mut c, n * 40..n * 40 + 60);
        assert!(root.du() <= bound);
    }
    until("the journal is folded", || {
        let journals: u64 = files(&root.path().join(".kvweir")).iter().map(|p| du(p)).sum();
        journals < 256 << 10
    });
    let held: Vec<u64> = (0..2500).filter(|&n| c.holds(&keys(n..n + 1)[0])).collect();
    assert_settled(&mut c, &root);
    drop(c);
    let mut c = join(&root, bound, "model");
    let again: Vec<u64> = (0..2500).filter(|&n| c.holds(&keys(n..n + 1)[0])).collect();
    assert_eq!(held, again);
    assert_settled(&mut c, &root);
}

/// Twenty blocks without a journal, and a disk on which a walk of them hangs.
fn left_by_another(root: &Root) -> FaultDisk {
    let mut c = join(root, 8 << 20, "model");
    store(&mut c, &keys(0..20));
    let dir = c.tier.namespace_dir().to_owned();
    drop(c);
    root.forget_journal();
    let disk = faulty();
    disk.add(Rule::new(Op::List, Fault::Hang).path(dir.file_name().unwrap().to_str().unwrap()));
    disk
}

/// Opens without waiting long for a walk.
fn enter(root: &Root, disk: Arc<dyn kvweir::io::Disk>, model: &str) -> Client<FsTier> {
    let tier = FsBuilder::new(root.settings(8 << 20), ns(model), LEN)
        .disk(disk)
        .walk_patience(Duration::from_millis(50))
        .open();
    Client::new(Box::new(tier.unwrap()), 64, LEN)
}

fn who_opens_while_another_walks_waits_for_its_share_without_holding_up_its_engine(layout: Layout) {
    let root = Root::of(layout);
    let disk = left_by_another(&root);
    let mut walks = enter(&root, Arc::new(disk.clone()), "model");
    let mut waits = enter(&root, Arc::new(OsDisk), "other");
    assert!(walks.tier.is_trimming() && waits.tier.is_trimming());
    assert!(!waits.store(R, &keys(0..1))[0].is_ok() && !waits.holds(&keys(0..1)[0]));
    pause(6000);
    assert!(waits.tier.is_trimming(), "it does not give up after a while");
    disk.heal();
    disk.release();
    until("both are open", || {
        !walks.tier.is_trimming() && !waits.tier.is_trimming()
    });
    assert_eq!(walks.tier.stats().recovered_blocks, 20);
    until("both store", || {
        pour(&mut waits, 0..1) == 1 && pour(&mut walks, 30..31) == 1
    });
    assert!(root.du() <= 8 << 20);
}

fn a_walk_whose_walker_ended_is_begun_again_by_the_next_also_beside_others(layout: Layout) {
    let root = Root::of(layout);
    let disk = left_by_another(&root);
    let mut walks = enter(&root, Arc::new(disk.clone()), "model");
    let mut waits = enter(&root, Arc::new(OsDisk), "other");
    walks.tier.shutdown();
    disk.heal();
    disk.release();
    pause(300);
    assert!(waits.tier.is_trimming(), "nobody knows yet what is there");
    let mut next = enter(&root, Arc::new(OsDisk), "model");
    until("the next walks", || {
        !next.tier.is_trimming() && !waits.tier.is_trimming()
    });
    assert_eq!(next.tier.stats().recovered_blocks, 20);
    all_ok(&next.load(R, &keys(0..20)));
    until("both store", || {
        pour(&mut waits, 0..1) == 1 && pour(&mut next, 30..31) == 1
    });
    // all that lies there is leased: more is not let in
    pour(&mut waits, 100..600);
    pour(&mut next, 1000..1500);
    assert!(root.du() <= 8 << 20, "{}", root.du());
}

in_both_layouts! {
    two_models_share_one_bound_and_a_newcomer_gets_its_part,
    what_another_model_left_goes_first_and_comes_back_with_it,
    who_opens_while_another_walks_waits_for_its_share_without_holding_up_its_engine,
    a_walk_whose_walker_ended_is_begun_again_by_the_next_also_beside_others,
}

#[test]
fn a_root_that_another_process_makes_at_the_same_moment_is_opened() {
    let root = Root::new();
    std::fs::create_dir(root.path()).unwrap();
    let disk = Arc::new(faulty());
    // it is not there when it is looked for, and there when it is to be made
    disk.add(Rule::new(Op::Stat, Fault::Errno(2)).path("/kv").times(1));
    let builder = FsBuilder::new(root.settings(8 << 20), ns("model"), LEN);
    let mut c = client(builder.disk(disk));
    store(&mut c, &keys(0..3));
}

/// Two members had files in the same directories. The one that emptied its part first could not remove them, and
/// counted them for good, restarts included: 1.3 MB for 300 of them.
#[test]
fn who_comes_beside_one_that_needs_little_takes_over_what_the_dead_left() {
    // each that came and went kept its part of what was free: the 17th was kept out for as long as the first lived
    let root = Root::new();
    let mut a = join(&root, 8 << 20, "model");
    store(&mut a, &keys(0..3));
    for n in 0..18 {
        let mut b = join(&root, 8 << 20, &format!("model{n}"));
        store(&mut b, &keys(100..103));
    }
    assert!(root.du() <= 8 << 20, "{}", root.du());
    let got = a.load(R, &keys(0..3));
    assert!(got.iter().all(|o| o.is_ok()), "{got:?}: {:?}", a.tier.stats());
    a.tier.on_request_finished(R, &[]);
}

/// A living member's share was less than what it held, since the dead had most of the root: it evicted for each
/// newcomer what nobody had reason to evict.
#[test]
fn a_living_member_evicts_nothing_for_a_newcomer_while_the_dead_hold_enough() {
    let root = Root::new();
    let bound = 8 << 20;
    let mut a = join(&root, bound, "model");
    store(&mut a, &keys(0..150));
    for n in 0..10 {
        let mut b = join(&root, bound, &format!("model{n}"));
        store(&mut b, &keys(1000..1003));
    }
    assert!(root.du() <= bound, "{}", root.du());
    for part in keys(0..150).chunks(50) {
        all_ok(&a.load(R, part));
    }
    a.tier.on_request_finished(R, &[]);
}

#[test]
fn directories_that_two_members_share_are_counted_by_nobody_once_they_are_gone() {
    let root = Root::new();
    let bound = 8 << 20;
    // the first five digits of the hash are the directory's, the rest the block's
    let key = |dir: u32, who: u8| {
        let mut bytes = [0; 36];
        bytes[..4].copy_from_slice(&[(dir >> 12) as u8, (dir >> 4) as u8, (dir << 4) as u8, who]);
        kvweir::Key::new(&bytes).unwrap()
    };
    let mut a = join(&root, bound, "model");
    let mut b = join(&root, bound, "model");
    until("b has a share", || pour(&mut b, 0..1) == 1);
    let all = |who| (0..60).map(move |n| key(n * 257, who)).collect::<Vec<_>>();
    store(&mut a, &all(1));
    store(&mut b, &all(2));
    let mut n = 1000;
    for c in [&mut a, &mut b] {
        let mine = if n == 1000 { all(1) } else { all(2) };
        while mine.iter().any(|k| c.holds(k)) {
            pour(c, n..n + 20);
            n += 20;
        }
    }
    let own = root.path().join(ns("model").dir());
    let gone = |n: u32| !file_of(&own, &key(n * 257, 1)).parent().unwrap().exists();
    assert!((0..60).all(gone), "the last one removes them");
    drop(b);
    until("a takes over what b left", || {
        files(&root.path().join(".kvweir"))
            .iter()
            .all(|p| !p.to_string_lossy().contains("journal-01"))
    });
    assert_settled(&mut a, &root);
    drop(a);
    let mut c = join(&root, bound, "model");
    assert_settled(&mut c, &root);
}
