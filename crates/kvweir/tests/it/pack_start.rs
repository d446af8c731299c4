//! Extents found at start. A passing error - no descriptor or memory left, a device that stumbles - was taken for
//! damage and cost the extent for good; and what a later version had written was removed by an older one.

use std::{fs, path::Path, sync::Arc};

use kvweir::{
    clock::ManualClock,
    fs::Layout,
    io::fault::{Fault, Op, Rule},
    tier::{BlockOutcome, Tier, conformance::key},
};
use xxhash_rust::xxh3::xxh3_64;

use crate::support::*;

const BOUND: u64 = 4 << 20;
const BLOCKS: u64 = 60;
const EIO: i32 = 5;
const ENOMEM: i32 = 12;
const EMFILE: i32 = 24;

fn filled(layout: Layout) -> Root {
    let root = Root::of(layout);
    let mut c = root.open(BOUND);
    for part in keys(0..BLOCKS).chunks(10) {
        all_ok(&c.store(R, part));
    }
    c.tier.on_request_finished(R, &[]);
    assert_settled(&mut c, &root);
    root
}

fn held(c: &mut Fs) -> u64 {
    let n = keys(0..BLOCKS).iter().filter(|k| c.lookup(k, R)).count();
    c.tier.on_request_finished(R, &[]);
    n as u64
}

#[test]
fn a_passing_error_at_start_costs_nothing_and_is_tried_again() {
    for op in [Op::Open, Op::Read, Op::Stat, Op::List] {
        for errno in [EIO, ENOMEM, EMFILE] {
            for times in [1, 3, u64::MAX] {
                let what = format!("{op:?} fails with {errno}, {times} times");
                let root = filled(Layout::Pack);
                let before = extent_files(&root.path());
                assert!(before.len() >= 4, "{before:?}");
                let disk = faulty();
                disk.add(Rule::new(op, Fault::Errno(errno)).times(times).path("00_x"));
                let b = builder(root.settings(BOUND), "model", LEN);
                let mut c = client(b.disk(Arc::new(disk.clone())));
                assert!(!disk.met().is_empty(), "{what}: nothing failed");
                assert!(c.tier.stats().resident_bytes >= root.du(), "{what}: counted");
                assert_eq!(extent_files(&root.path()), before, "{what}: removed");
                if times == u64::MAX {
                    disk.heal();
                }
                assert!(in_time(|| held(&mut c) == BLOCKS), "{what}: {} hit", held(&mut c));
                disk.heal();
                for part in keys(0..BLOCKS).chunks(20) {
                    all_ok(&c.load(R, part));
                }
                c.tier.on_request_finished(R, &[]);
                assert_settled(&mut c, &root);
                all_ok(&c.store(R, &keys(100..120)));
            }
        }
    }
}

/// Names of extents came of the root, the time and the process id: a life that began in the same second with the same
/// id, as in a container that is started again, could give an extent the name of one that was there, and take its
/// place.
#[test]
fn a_life_that_begins_in_the_same_instant_takes_no_extents_place() {
    let root = Root::of(Layout::Pack);
    let clock = Arc::new(ManualClock::new());
    let mut made = 0;
    for life in 0..4 {
        let b = builder(root.settings(BOUND), "model", LEN);
        let mut c = client(b.clock(Arc::<ManualClock>::clone(&clock)));
        for part in keys(life * 20..life * 20 + 20).chunks(10) {
            all_ok(&c.store(R, part));
        }
        for n in 0..life * 20 + 20 {
            assert!(c.holds(&key(n)), "key {n} is gone in life {life}");
            all_ok(&c.load(R, &[key(n)]));
        }
        c.tier.on_request_finished(R, &[]);
        let now = extent_files(&root.path()).len();
        assert!(now > made, "life {life} made none: nothing was shown");
        made = now;
        // also where the ledger, which counts lives, is gone
        if life == 2 {
            drop(c);
            root.forget_journal();
        }
    }
}

/// Makes the first 128 bytes of a table, or the trailer page at `at`, those of version 2.
fn next_version(file: &Path, at: usize, summed: usize) {
    let mut bytes = fs::read(file).unwrap();
    let page = &mut bytes[at..];
    page[8..10].copy_from_slice(&2u16.to_le_bytes());
    let sum = xxh3_64(&page[..summed]).to_le_bytes();
    page[summed..summed + 8].copy_from_slice(&sum);
    fs::write(file, bytes).unwrap();
}

#[test]
fn an_extent_of_a_later_version_is_counted_and_stays_as_it_is() {
    let root = filled(Layout::Pack);
    let table = extents(&root.path()).swap_remove(0);
    next_version(&table, 0, 120);
    let before = [fs::read(&table).unwrap(), fs::read(data_of(&table)).unwrap()];
    for walk in [false, true] {
        if walk {
            root.forget_journal();
        }
        let mut c = root.open(BOUND);
        if walk {
            // found again, unlike the blocks before
            store(&mut c, &keys(0..1));
        }
        let there = held(&mut c);
        assert!(there > 0 && there < BLOCKS, "{there}");
        let counted = |c: &Fs| (root.du()..=root.counted()).contains(&c.tier.stats().resident_bytes);
        assert!(in_time(|| counted(&c)), "walk: {walk}");
        // more than the bound holds: all others give way
        for part in keys(1000..2000).chunks(10) {
            all_ok(&c.store(R, part));
            assert!(root.du() <= BOUND);
        }
        all_ok(&c.store(R, &keys(0..BLOCKS)[..20]));
        c.tier.on_request_finished(R, &[]);
        assert!(in_time(|| counted(&c)), "walk: {walk}");
        drop(c);
        let now = [fs::read(&table).unwrap(), fs::read(data_of(&table)).unwrap()];
        assert!(now == before, "walk: {walk}");
    }
}

#[test]
fn a_block_with_a_trailer_of_a_later_version_is_a_miss_and_stays_as_it_is() {
    let root = filled(Layout::Fs);
    let k = keys(5..6);
    let file = file_of(&root.path().join(ns("model").dir()), &k[0]);
    next_version(&file, LEN, 4088);
    let before = fs::read(&file).unwrap();
    for walk in [false, true] {
        if walk {
            root.forget_journal();
        }
        let mut c = root.open(BOUND);
        if c.lookup(&k[0], R) {
            assert!(!c.load(R, &k)[0].is_ok());
        }
        c.tier.on_request_finished(R, &[]);
        assert!(!c.holds(&k[0]));
        assert_eq!(c.tier.stats().verification_failures, 0, "it is not damage");
        assert_eq!(c.tier.stats().evicted_blocks.iter().sum::<u64>(), 0);
        assert_settled(&mut c, &root);
        assert!(fs::read(&file).unwrap() == before, "walk: {walk}");
    }
    // computed anew it takes the old one's place, as any block stored twice
    let mut c = root.open(BOUND);
    c.load(R, &k);
    assert_eq!(c.store(R, &k), [BlockOutcome::Stored]);
    all_ok(&c.load(R, &k));
}
