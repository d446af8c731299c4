//! Several namespaces in one process on one root: one bound, one order, one member, the same workers; requests, events
//! and reports are each tier's own.

use std::{ops::Range, sync::Arc, time::Duration};

use kvweir::{
    ErrorKind,
    clock::{Clock, SystemClock},
    fs::{FsBuilder, FsSpace, FsTier, Layout},
    io::{
        fault::{Fault, Op, Rule},
        pool::PoolSize,
        sim::SimDisk,
    },
    tier::{BlockOutcome, RequestId, Tier, conformance::Client},
};

use crate::{shared_root::pour, support::*};

/// Bytes of a block of the second model.
const SMALL: usize = 4096;
const BOTH: [[Layout; 2]; 4] = [
    [Layout::Fs, Layout::Fs],
    [Layout::Pack, Layout::Pack],
    [Layout::Fs, Layout::Pack],
    [Layout::Pack, Layout::Fs],
];

fn pair(root: &Root, bound: u64, [a, b]: [Layout; 2]) -> FsBuilder {
    let mut settings = root.settings(bound);
    settings.layout = a;
    builder(settings, "a", LEN)
        .name("a")
        .beside(FsSpace::new("b", ns("b"), SMALL).layout(b))
}

fn clients(b: FsBuilder) -> [Fs; 2] {
    let tiers: Vec<FsTier> = b.open_all().unwrap();
    let [a, b] = <[FsTier; 2]>::try_from(tiers).unwrap();
    [
        Client::new(Box::new(a), 64, LEN),
        Client::new(Box::new(b), 64, SMALL),
    ]
}

fn open(root: &Root, bound: u64, layouts: [Layout; 2]) -> [Fs; 2] {
    clients(pair(root, bound, layouts))
}

/// How many of `range` a tier holds.
fn count(c: &mut Fs, range: Range<u64>) -> u64 {
    let n = keys(range).iter().filter(|k| c.holds(k)).count();
    c.tier.on_request_finished(R, &[]);
    n as u64
}

fn shut(all: [Fs; 2]) {
    for mut c in all {
        c.tier.shutdown();
    }
}

/// A tier holds all of `range`, and reads it back.
fn assert_all_there(c: &mut Fs, range: Range<u64>, what: &str) {
    assert_eq!(count(c, range.clone()), range.end - range.start, "{what}");
    all_ok(&c.load(R, &keys(range)));
    c.tier.on_request_finished(R, &[]);
}

/// Stores `n` blocks from `from` on in each tier and reads them back.
fn both_work(all: &mut [Fs; 2], from: u64, n: u64) {
    for c in all.iter_mut() {
        store(c, &keys(from..from + n));
        assert_all_there(c, from..from + n, "stored");
    }
}

#[test]
fn two_models_with_blocks_of_different_lengths_share_a_bound() {
    for layouts in BOTH {
        let root = Root::new();
        let bound = 4 << 20;
        let mut all = open(&root, bound, layouts);
        both_work(&mut all, 0, 20);
        // one's keys are nothing to the other
        store(&mut all[0], &keys(100..110));
        assert_eq!(
            (count(&mut all[0], 100..110), count(&mut all[1], 100..110)),
            (10, 0)
        );
        store(&mut all[1], &keys(100..105));
        assert_eq!(
            (count(&mut all[0], 100..110), count(&mut all[1], 100..110)),
            (10, 5)
        );
        for n in 0..24 {
            for c in &mut all {
                pour(c, 1000 + n * 50..1050 + n * 50);
                assert!(root.du() <= bound, "{layouts:?}: {} of {bound}", root.du());
            }
        }
        let [a, b] = [0, 1].map(|n: usize| all[n].tier.stats());
        assert_eq!(
            (a.blocks, a.resident_bytes),
            (b.blocks, b.resident_bytes),
            "the root's"
        );
        assert!(
            a.evicted_blocks.iter().sum::<u64>() > 500,
            "{layouts:?}: it was full"
        );
        assert_eq!(
            (a.stored_blocks, b.stored_blocks),
            (20 + 10 + 1200, 20 + 5 + 1200)
        );
        assert_eq!((a.loaded_blocks, b.loaded_blocks), (20, 20));
        let held = count(&mut all[0], 0..4000) + count(&mut all[1], 0..4000);
        assert_eq!(
            held, a.blocks,
            "{layouts:?}: together they hold what the root does"
        );
        assert_settled(&mut all[0], &root);
        both_work(&mut all, 5000, 20);
        shut(all);
    }
}

/// Once the second could store nothing beside extents of the first, or took what the first held in files.
#[test]
fn who_comes_to_a_full_root_gets_its_share_and_leaves_the_other_its_own() {
    for layouts in BOTH {
        for first in [0, 1] {
            let root = Root::new();
            let bound = 8 << 20;
            let mut all = open(&root, bound, layouts);
            // what a block takes, with its share of directories where it has a file
            let len = |n: usize| match layouts[n] {
                Layout::Pack => [LEN, SMALL][n] as u64,
                _ => [LEN, SMALL][n] as u64 + 4096 + 8192,
            };
            let second = 1 - first;
            pour(&mut all[first], 0..bound / len(first));
            let alone = count(&mut all[first], 0..bound / len(first));
            pour(&mut all[second], 0..bound / len(second));
            let (kept, got) = (
                count(&mut all[first], 0..bound / len(first)),
                count(&mut all[second], 0..bound / len(second)),
            );
            let what = format!("{layouts:?}, {first} first: {alone} alone, then {kept} beside {got}");
            assert!(root.du() <= bound, "{what}");
            if layouts == [Layout::Fs, Layout::Fs] {
                // the least recent of all goes, whosever it is
                assert!(kept == 0 && got > 0, "{what}");
                continue;
            }
            assert!(got * len(second) * 4 > bound, "{what}: the second has no share");
            assert!(kept * 4 > alone, "{what}: the first lost its share");
            // and back: who was there first stores again, and both keep about half
            pour(&mut all[first], 10_000..10_000 + bound / len(first));
            let left = count(&mut all[second], 0..bound / len(second));
            assert!(left * 2 > got, "{what}: then {left}");
            assert_settled(&mut all[0], &root);
            shut(all);
        }
    }
}

#[test]
fn a_restart_finds_the_blocks_of_all_by_the_journal_and_by_a_walk() {
    for layouts in BOTH {
        let root = Root::new();
        let bound = 16 << 20;
        let mut all = open(&root, bound, layouts);
        both_work(&mut all, 0, 50);
        shut(all);
        for walk in [false, true] {
            if walk {
                root.forget_journal();
            }
            let mut all = open(&root, bound, layouts);
            let s = all[0].tier.stats();
            assert_eq!(
                (s.recovered_blocks, s.blocks),
                (100, 100),
                "{layouts:?}, walk {walk}"
            );
            for c in &mut all {
                assert_all_there(c, 0..50, &format!("{layouts:?}, walk {walk}"));
            }
            assert_settled(&mut all[0], &root);
            both_work(&mut all, 100, 10);
            for c in &mut all {
                c.tier.on_request_finished(R, &[]);
            }
            shut(all);
            // those are gone again for the next round
            if !walk {
                let mut all = open(&root, bound, layouts);
                assert_eq!((count(&mut all[0], 0..200), count(&mut all[1], 0..200)), (60, 60));
                shut(all);
                std::fs::remove_dir_all(root.path()).unwrap();
                let mut all = open(&root, bound, layouts);
                both_work(&mut all, 0, 50);
                shut(all);
            }
        }
    }
}

#[test]
fn each_model_alone_finds_its_own_after_both_and_both_after_each_alone() {
    for layouts in BOTH {
        let root = Root::new();
        let bound = 16 << 20;
        let mut all = open(&root, bound, layouts);
        both_work(&mut all, 0, 50);
        shut(all);
        for (n, (name, len)) in [("b", SMALL), ("a", LEN)].into_iter().enumerate() {
            let mut settings = root.settings(bound);
            settings.layout = layouts[1 - n];
            let mut c = client_of(builder(settings, name, len), len);
            assert_all_there(&mut c, 0..50, &format!("{layouts:?}: {name} alone"));
            assert_settled(&mut c, &root);
        }
        let mut all = open(&root, bound, layouts);
        for c in &mut all {
            assert_all_there(c, 0..50, &format!("{layouts:?}: both again"));
        }
        shut(all);
    }
}

#[test]
fn one_request_id_in_two_tiers_is_two_requests() {
    for layouts in BOTH {
        let root = Root::new();
        let mut all = open(&root, 16 << 20, layouts);
        both_work(&mut all, 0, 10);
        let r = RequestId(7);
        for c in &mut all {
            assert!(keys(0..10).iter().all(|k| c.lookup(k, r)));
        }
        assert_eq!(all[0].tier.stats().pinned_blocks, 20);
        all[0].tier.on_request_finished(r, &[]);
        assert_eq!(all[0].tier.stats().pinned_blocks, 10, "the other's pins stay");
        let job = all[1].submit_load(r, &keys(0..10));
        all_ok(&all[1].wait(job).blocks);
        all[1].tier.on_request_finished(r, &[]);
        assert_eq!(all[1].tier.stats().pinned_blocks, 0);
        store(&mut all[0], &keys(10..13));
        for (c, n) in all.iter_mut().zip([13, 10]) {
            assert_eq!(
                c.replay_events().len(),
                n,
                "{layouts:?}: each is told of its own blocks"
            );
        }
        shut(all);
    }
}

#[test]
fn a_tier_that_is_shut_down_leaves_the_others_working_and_its_blocks_to_be_evicted() {
    for layouts in BOTH {
        let root = Root::new();
        let bound = 4 << 20;
        let [mut a, mut b] = open(&root, bound, layouts);
        store(&mut a, &keys(0..100));
        store(&mut b, &keys(0..10));
        a.tier.shutdown();
        let job = a.submit_store(R, &keys(100..101));
        assert_eq!(a.wait(job).blocks, [BlockOutcome::Failed(ErrorKind::Closed)]);
        assert!(!a.holds(&keys(0..1)[0]), "nothing of a closed tier can be loaded");
        assert_eq!(count(&mut b, 0..10), 10);
        drop(a);
        // the root is claimed still
        let lone = builder(root.settings(bound * 2), "a", LEN).open();
        assert_eq!(lone.unwrap_err().kind(), ErrorKind::Busy);
        let all = bound / SMALL as u64;
        pour(&mut b, 1000..1000 + 2 * all);
        let held = count(&mut b, 1000..1000 + 2 * all);
        // a file takes a trailer and directories beside the block
        let cost = match layouts[1] {
            Layout::Pack => SMALL as u64,
            _ => SMALL as u64 + 4096 + 8192,
        };
        assert!(held * cost * 4 > bound * 3, "{layouts:?}: {held}");
        assert_settled(&mut b, &root);
        b.tier.shutdown();
        drop(b);
        // and let go with the last
        shut(open(&root, bound * 2, layouts));
    }
}

#[test]
fn drain_waits_for_and_cancels_its_own_only() {
    let root = Root::new();
    let [mut a, mut b] = open(&root, 16 << 20, BOTH[2]);
    let stores: Vec<_> = (0..6)
        .map(|n| b.submit_store(R, &keys(n * 10..n * 10 + 10)))
        .collect();
    a.tier.drain();
    for job in stores {
        all_ok(&b.wait(job).blocks);
    }
    shut([a, b]);
}

#[test]
fn what_cannot_be_served_together_is_refused_with_a_reason() {
    let root = Root::new();
    let bound = 16 << 20;
    let one = || builder(root.settings(bound), "a", LEN).name("a");
    let b = || FsSpace::new("b", ns("b"), SMALL);
    let refused = |b: FsBuilder, what: &str| {
        let e = b.open_all().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
        assert!(e.to_string().contains(what), "{e}");
        assert!(!root.path().exists(), "{what}: nothing was made");
    };
    refused(one().beside(FsSpace::new("a", ns("b"), SMALL)), "called \"a\"");
    refused(
        one().beside(FsSpace::new("b", ns("a"), SMALL)),
        "two tiers serve the namespace",
    );
    refused(one().beside(FsSpace::new("b", ns("b"), 0)), "block length 0");
    let e = one().beside(b()).open().unwrap_err();
    assert!(
        e.kind() == ErrorKind::Invalid && e.to_string().contains("open_all"),
        "{e}"
    );
    let least = kvweir::fs::min_bound(LEN) + 1000;
    let tight = builder(root.settings(least), "a", LEN).beside(FsSpace::new("b", ns("b"), SMALL));
    let e = tight.open_all().unwrap_err();
    assert!(
        e.kind() == ErrorKind::Invalid && e.to_string().contains("together they need"),
        "{e}"
    );
    refused(one().beside(FsSpace::new("", ns("b"), SMALL)), "no name");
    let many = (0..20).fold(one(), |all, n| {
        all.beside(FsSpace::new(format!("m{n}"), ns(&format!("m{n}")), SMALL).layout(Layout::Pack))
    });
    let e = many.open_all().unwrap_err();
    assert!(e.kind() == ErrorKind::Invalid, "{e}");
    shut(clients(one().beside(b())));
}

/// A disk whose writes take 20 ms, and two tiers in front of it with one worker that stores.
fn slow_pair(root: &Root, timeout: Duration) -> [Fs; 2] {
    let disk = faulty();
    let mut settings = root.settings(16 << 20);
    settings.layout = Layout::Fs;
    settings.io_timeout = Some(timeout);
    settings.pool = PoolSize::new(1, 1);
    let first = builder(settings, "a", LEN).name("a").disk(Arc::new(disk.clone()));
    let all = clients(first.beside(FsSpace::new("b", ns("b"), SMALL)));
    disk.add(Rule::new(Op::Write, Fault::Slow(Duration::from_millis(20))).path(".bin"));
    all
}

/// Once each tier had a device of its own in its books: two beside each other made a healthy disk look half as fast.
#[test]
fn the_devices_time_is_shared_out_among_all_tiers_on_it() {
    let root = Root::new();
    let mut all = slow_pair(&root, Duration::from_secs(30));
    let clock = SystemClock::new();
    let began = clock.now();
    let jobs = [0, 1].map(|n: usize| all[n].submit_store(R, &keys(0..20)));
    for (c, job) in all.iter_mut().zip(jobs) {
        all_ok(&c.wait(job).blocks);
    }
    let wall = clock.now().since(began);
    let charged: Duration = all.iter().map(|c| c.tier.stats().store_device_time).sum();
    assert!(charged <= wall, "{charged:?} of {wall:?} were charged");
    assert!(
        charged >= Duration::from_millis(400),
        "{charged:?}: 40 writes of 20 ms"
    );
    shut(all);
}

/// Once a job that waited behind another tier's was given up, and the breaker of its tier opened, on a disk that works.
#[test]
fn a_tier_that_waits_behind_another_is_not_given_up_while_the_device_works() {
    let root = Root::new();
    let [mut a, mut b] = slow_pair(&root, Duration::from_millis(300));
    let long = a.submit_store(R, &keys(0..50));
    let short = b.submit_store(R, &keys(0..1));
    all_ok(&b.wait(short).blocks);
    all_ok(&a.wait(long).blocks);
    for c in [&a, &b] {
        let s = c.tier.stats();
        assert_eq!((s.jobs_timed_out, s.breaker_opened), (0, 0));
    }
    shut([a, b]);
}

#[test]
fn unbounded_and_read_only_roots_serve_several_too() {
    let root = Root::new();
    let fs = [Layout::Fs, Layout::Fs];
    let mut all = clients(pair(&root, 0, fs));
    both_work(&mut all, 0, 20);
    shut(all);
    let mut settings = root.settings(0);
    settings.read_only = true;
    let reader = builder(settings, "a", LEN)
        .name("a")
        .beside(FsSpace::new("b", ns("b"), SMALL));
    let mut all = clients(reader);
    for c in &mut all {
        for k in keys(0..20) {
            until("it is found on disk", || c.holds(&k));
        }
        all_ok(&c.load(R, &keys(0..20)));
        assert_eq!(
            c.store(R, &keys(30..31)),
            [BlockOutcome::Failed(ErrorKind::Closed)]
        );
    }
    shut(all);
}

#[test]
fn others_of_the_same_namespaces_see_what_both_store() {
    let root = Root::new();
    let bound = 32 << 20;
    let fs = [Layout::Fs, Layout::Fs];
    let mut all = open(&root, bound, fs);
    both_work(&mut all, 0, 10);
    let mut alone = client_of(builder(root.settings(bound), "b", SMALL), SMALL);
    until("it sees what was there", || count(&mut alone, 0..10) == 10);
    store(&mut all[1], &keys(10..20));
    until("and what comes", || count(&mut alone, 0..20) == 20);
    all_ok(&alone.load(R, &keys(0..20)));
    alone.tier.on_request_finished(R, &[]);
    store(&mut alone, &keys(50..60));
    until("both see what it stores", || count(&mut all[1], 50..60) == 10);
    assert_eq!(count(&mut all[0], 50..60), 0, "another model's");
    all_ok(&all[1].load(R, &keys(50..60)));
    all[1].tier.on_request_finished(R, &[]);
    drop(alone);
    shut(all);
}

#[test]
fn a_removed_directory_of_one_costs_its_blocks_and_not_the_others() {
    let root = Root::new();
    let mut all = open(&root, 32 << 20, [Layout::Fs, Layout::Fs]);
    both_work(&mut all, 0, 20);
    let gone = all[1].tier.namespace_dir().to_owned();
    std::fs::remove_dir_all(&gone).unwrap();
    until("its blocks are forgotten", || count(&mut all[1], 0..20) == 0);
    assert_eq!(count(&mut all[0], 0..20), 20);
    until("its directory is there again", || gone.exists());
    both_work(&mut all, 100, 20);
    until("the account agrees", || {
        all[0].tier.stats().resident_bytes == root.du()
    });
    shut(all);
}

/// The process dies after so many steps of a store; the next life finds all that was acknowledged, of both.
#[test]
fn what_was_acknowledged_is_there_after_a_death_at_any_step() {
    const TOP: &str = "/sim";
    for layouts in BOTH {
        for steps in (0..60).step_by(7) {
            let disk = SimDisk::new(std::path::Path::new(TOP), None);
            let builder_on = |disk: &SimDisk| {
                let settings = kvweir::fs::FsSettings {
                    max_bytes: Some(4 << 20),
                    layout: layouts[0],
                    events: true,
                    ..kvweir::fs::FsSettings::new("/sim/kv")
                };
                FsBuilder::new(settings, ns("a"), LEN)
                    .name("a")
                    .disk(Arc::new(disk.clone()))
                    .boot_id([1; 16])
                    .walk_patience(Duration::from_secs(60))
                    .beside(FsSpace::new("b", ns("b"), SMALL).layout(layouts[1]))
            };
            let mut all = clients(builder_on(&disk));
            both_work(&mut all, 0, 20);
            disk.die_at(disk.steps() + steps);
            let acknowledged = [0, 1].map(|n: usize| {
                let got = all[n].store(R, &keys(20..30));
                let ok = keys(20..30).into_iter().zip(got).filter(|(_, o)| o.is_ok());
                ok.map(|(k, _)| k).collect::<Vec<_>>()
            });
            shut(all);
            let disk = disk.next_life();
            let mut all = clients(builder_on(&disk));
            for (c, more) in all.iter_mut().zip(acknowledged) {
                assert_eq!(count(c, 0..20), 20, "{layouts:?}, {steps}");
                all_ok(&c.load(R, &keys(0..20)));
                if !more.is_empty() {
                    assert!(more.iter().all(|k| c.holds(k)), "{layouts:?}, {steps}");
                    all_ok(&c.load(R, &more));
                }
                c.tier.on_request_finished(R, &[]);
            }
            shut(all);
        }
    }
}
