//! The ledger's hand-over: members of one root that join, leave and die beside each other. The bound holds at every
//! call to the disk (I1), and what one left another has (I6).

use std::sync::Arc;

use kvweir::{
    clock::ManualClock,
    fs::FsBuilder,
    io::{
        fault::{Fault, FaultDisk, Rule},
        sim::SimDisk,
    },
    tier::{RequestId, Tier},
};
use shuttle::thread;

use crate::{explore::explore, support::*};

fn of(model: &str, disk: &SimDisk, clock: &Arc<ManualClock>, bound: u64) -> FsBuilder {
    FsBuilder::new(settings(bound), ns(model), LEN)
        .disk(Arc::new(disk.clone()))
        .clock(Arc::clone(clock) as _)
        .boot_id([1; 16])
}

/// Stores one by one; returns which were.
fn pour(c: &mut Fs, range: std::ops::Range<u64>) -> Vec<u64> {
    let stored = range
        .filter(|&n| c.store(RequestId(1), &[key(n)])[0].is_ok())
        .collect();
    c.tier.on_request_finished(RequestId(1), &[]);
    stored
}

#[test]
fn what_a_member_leaves_is_held_by_the_one_that_joins_as_it_goes() {
    explore(|seed| {
        let mut rng = Rng(seed);
        let (disk, clock, bound) = (disk(), Arc::new(ManualClock::new()), bound(60));
        let mut a = client(builder(disk.clone(), &clock, bound));
        store(&mut a, &keys(0..5));
        let wait = rng.below(400);
        let leaves = thread::spawn(move || {
            pause(wait);
            a.tier.shutdown();
            drop(a);
        });
        pause(rng.below(400));
        let mut b = client(builder(disk.clone(), &clock, bound));
        let early = pour(&mut b, 10..12);
        leaves.join().unwrap();
        soon("all that the first left is held", &clock, || {
            b.tier.stats().blocks == 5 + early.len() as u64
        });
        let there = held(&mut b, 20);
        assert_eq!(there, [&[0, 1, 2, 3, 4], &early[..]].concat());
        for &n in &there {
            assert!(b.load(RequestId(2), &[key(n)])[0].is_ok(), "key {n}");
        }
        b.tier.on_request_finished(RequestId(2), &[]);
        quiet(&mut b, &disk, bound, 20);
    });
}

#[test]
fn what_a_member_that_died_left_is_taken_over_beside_others() {
    explore(|seed| {
        let mut rng = Rng(seed);
        let (disk, clock, bound) = (disk(), Arc::new(ManualClock::new()), bound(60));
        let hand = FaultDisk::new(Arc::new(disk.clone()));
        let mut a = client(builder(hand.clone(), &clock, bound));
        store(&mut a, &keys(0..4));
        let mut b = client(builder(disk.clone(), &clock, bound));
        let dies = {
            let wait = rng.below(100);
            thread::spawn(move || {
                a.submit_store(RequestId(1), &keys(4..6));
                pause(wait);
                // nothing it does reaches the disk any more; its locks end with its files
                hand.add(Rule::any(Fault::Errno(5)));
                drop(a);
            })
        };
        let joins = {
            let (disk, clock) = (disk.clone(), Arc::clone(&clock));
            thread::spawn(move || {
                let mut c = client(builder(disk, &clock, bound));
                (pour(&mut c, 20..22), c)
            })
        };
        let mine = pour(&mut b, 10..12);
        dies.join().unwrap();
        let (theirs, mut c) = joins.join().unwrap();
        let must = [&[0, 1, 2, 3], &mine[..], &theirs[..]].concat();
        for m in [&mut b, &mut c] {
            soon("each sees what all stored", &clock, || {
                let there = held(m, 30);
                must.iter().all(|n| there.contains(n))
            });
        }
        let counted = |b: &Fs, c: &Fs| b.tier.stats().resident_bytes + c.tier.stats().resident_bytes;
        soon("one of them owns what the dead left", &clock, || {
            b.tier.stats().blocks + c.tier.stats().blocks >= must.len() as u64
        });
        assert!(counted(&b, &c) <= bound);
        for n in held(&mut c, 30) {
            assert!(c.load(RequestId(2), &[key(n)])[0].is_ok(), "key {n}");
        }
        c.tier.on_request_finished(RequestId(2), &[]);
        within(&disk, bound);
    });
}

#[test]
fn two_models_that_fill_one_root_stay_below_its_bound_at_every_step() {
    explore(|seed| {
        let mut rng = Rng(seed);
        let (disk, clock) = (disk(), Arc::new(ManualClock::new()));
        let bound = 2 * bound(8);
        let mut a = client(of("a", &disk, &clock, bound));
        store(&mut a, &keys(0..6));
        let other = {
            let (disk, clock, first) = (disk.clone(), Arc::clone(&clock), rng.below(100));
            thread::spawn(move || {
                pause(first);
                let mut b = client(of("b", &disk, &clock, bound));
                let stored = pour(&mut b, 0..12);
                (b, stored)
            })
        };
        let stored = pour(&mut a, 10..30);
        assert!(!stored.is_empty());
        let (mut b, _) = other.join().unwrap();
        within(&disk, bound);
        for c in [&mut a, &mut b] {
            for n in held(c, 30) {
                // another member may evict what is not its own: then it is a miss, never wrong bytes
                let _ = c.load(RequestId(2), &[key(n)]);
            }
            c.tier.on_request_finished(RequestId(2), &[]);
        }
        drop(a);
        within(&disk, bound);
        quiet_together(&mut b, &disk, bound);
    });
}

/// No pins are left, and the bound was held.
fn quiet_together(c: &mut Fs, disk: &SimDisk, bound: u64) {
    c.wait_all();
    assert_eq!(c.tier.stats().pinned_blocks, 0);
    within(disk, bound);
}

#[test]
fn a_member_that_died_as_it_joined_opens_again_beside_others() {
    explore(|seed| {
        let mut rng = Rng(seed);
        let (disk, clock) = (disk(), Arc::new(ManualClock::new()));
        let bound = 2 * bound(8);
        let mut a = client(of("a", &disk, &clock, bound));
        store(&mut a, &keys(0..2));
        let hand = FaultDisk::new(Arc::new(disk.clone()));
        hand.add(Rule::any(Fault::Errno(5)).after(rng.below(80)));
        let dies = of("b", &disk, &clock, bound).disk(Arc::new(hand)).open();
        drop(dies);
        let mut b = client(of("b", &disk, &clock, bound));
        soon("it stores", &clock, || {
            b.store(RequestId(1), &[key(1)])[0].is_ok()
        });
        b.tier.on_request_finished(RequestId(1), &[]);
        assert!(a.load(RequestId(2), &[key(0)])[0].is_ok());
        a.tier.on_request_finished(RequestId(2), &[]);
        within(&disk, bound);
    });
}
