//! The journal's hand-over: writers append while the keeper begins the next generation and folds the last one. What is
//! read back at the next start is what was published (I6), and no step of it is above the bound (I1).

use std::{path::Path, sync::Arc};

use kvweir::{
    clock::ManualClock,
    fs::Layout,
    io::{
        fault::{FaultDisk, Op},
        sim::{SimDisk, SimFault},
    },
    tier::{BlockOutcome, RequestId, Tier},
};

use crate::{explore::explore, support::*};

/// Opens what the last life left; it must not need a walk.
fn reopen(layout: Layout, disk: &SimDisk, bound: u64) -> (Fs, SimDisk) {
    let disk = disk.next_life();
    let seen = FaultDisk::new(Arc::new(disk.clone()));
    seen.record();
    let c = client(builder_of(
        settings_of(layout, bound),
        seen.clone(),
        &Arc::default(),
    ));
    let own = Path::new(ROOT).join(ns("model").dir());
    let walked = seen
        .take_record()
        .iter()
        .any(|(op, p)| *op == Op::List && *p == own);
    assert!(!walked, "the journal was not believed");
    (c, disk)
}

/// Loads all of `there`, which are held.
fn all_load(c: &mut Fs, there: &[u64]) {
    for &n in there {
        assert!(c.lookup(&key(n), RequestId(1)), "key {n} is held");
        let got = c.load(RequestId(1), &[key(n)]);
        assert!(got[0].is_ok(), "key {n}: {got:?}");
    }
    c.tier.on_request_finished(RequestId(1), &[]);
}

#[test]
fn what_is_appended_while_the_journal_is_handed_over_is_there_after_a_restart() {
    explore(|seed| {
        let mut rng = Rng(seed);
        // with room for all, or with evictions
        let layout = layout_of(seed);
        let bound = bound_of(layout, if rng.below(2) == 0 { 60 } else { 1 });
        let mut disk = disk();
        let mut c = open_as(layout, &disk, bound);
        for round in 0..3 {
            let from = 10 * round;
            c.submit_store(RequestId(1), &keys(from..from + 3));
            c.submit_store(RequestId(2), &keys(from + 2..from + 6));
            pause(rng.below(60));
            c.tier.compact();
            c.submit_store(RequestId(3), &keys(from + 6..from + 8));
            if rng.below(2) == 0 {
                c.tier.compact();
            }
            if let Some(&n) = held(&mut c, from + 8).first() {
                c.tier.on_request_finished(RequestId(4), &[key(n)]);
            }
            c.wait_all();
            (1..4).for_each(|n| c.tier.on_request_finished(RequestId(n), &[]));
        }
        quiet(&mut c, &disk, bound, 30);
        let published = held(&mut c, 30);
        assert!(!published.is_empty());
        c.tier.shutdown();
        drop(c);
        (c, disk) = reopen(layout, &disk, bound);
        assert_eq!(held(&mut c, 30), published);
        all_load(&mut c, &published);
        quiet(&mut c, &disk, bound, 30);
    });
}

#[test]
fn a_death_at_any_step_of_the_hand_over_loses_nothing_that_was_acknowledged() {
    explore(|seed| {
        let mut rng = Rng(seed);
        let layout = layout_of(seed);
        let bound = bound_of(layout, 60);
        let mut disk = disk();
        let mut c = open_as(layout, &disk, bound);
        store(&mut c, &keys(0..4));
        disk.die_at(disk.steps() + rng.below(160));
        let mut acknowledged = vec![0, 1, 2, 3];
        let mut jobs = Vec::new();
        for n in 1..4 {
            let ns = 10 * n..10 * n + 3;
            jobs.push((ns.clone(), c.submit_store(RequestId(n), &keys(ns))));
            if rng.below(2) == 0 {
                c.tier.compact();
            }
        }
        for (ns, job) in jobs {
            let told = c.wait(job).blocks;
            let good = ns.zip(told).filter(|(_, o)| o.is_ok()).map(|(n, _)| n);
            acknowledged.extend(good);
        }
        drop(c);
        within(&disk, bound);
        (c, disk) = reopen(layout, &disk, bound);
        let there = held(&mut c, 40);
        let tried = |n: &u64| *n < 4 || n % 10 < 3;
        assert!(there.iter().all(tried), "{there:?} were never stored");
        assert!(
            acknowledged.iter().all(|n| there.contains(n)),
            "acknowledged {acknowledged:?}, there {there:?}"
        );
        all_load(&mut c, &there);
        quiet(&mut c, &disk, bound, 40);
        let got = c.store(RequestId(1), &keys(50..52));
        assert!(got.iter().all(|o| *o == BlockOutcome::Stored), "{got:?}");
        c.tier.on_request_finished(RequestId(1), &[]);
        within(&disk, bound);
    });
}

/// Part of a record was written when the append failed; others appended meanwhile, and the next generation began.
#[test]
fn an_append_that_fails_half_way_beside_the_hand_over_does_not_cost_the_journal() {
    explore(|seed| {
        let mut rng = Rng(seed);
        let layout = layout_of(seed);
        let bound = bound_of(layout, 60);
        let mut disk = disk();
        let mut c = open_as(layout, &disk, bound);
        store(&mut c, &keys(0..4));
        let at = disk.steps() + rng.below(160);
        // ENOSPC, EIO
        disk.fail_at(at, SimFault::Torn(if rng.below(2) == 0 { 28 } else { 5 }));
        let mut jobs = Vec::new();
        for n in 1..4 {
            let ns = 10 * n..10 * n + 3;
            jobs.push(c.submit_store(RequestId(n), &keys(ns)));
            if rng.below(2) == 0 {
                c.tier.compact();
            }
        }
        for job in jobs {
            c.wait(job);
        }
        disk.heal();
        (1..4).for_each(|n| c.tier.on_request_finished(RequestId(n), &[key(0)]));
        c.tier.compact();
        let published = held(&mut c, 40);
        assert!(!published.is_empty());
        c.tier.shutdown();
        drop(c);
        (c, disk) = reopen(layout, &disk, bound);
        let there = held(&mut c, 40);
        assert!(
            published.iter().all(|n| there.contains(n)),
            "{published:?}, there {there:?}"
        );
        all_load(&mut c, &there);
        quiet(&mut c, &disk, bound, 40);
    });
}

/// Two of one namespace: one stores and folds its journal again and again, the other reads it at its own pace.
#[test]
fn who_follows_comes_to_know_all_whatever_is_folded_meanwhile() {
    explore(|seed| {
        let mut rng = Rng(seed);
        let (disk, clock, bound) = (disk(), Arc::new(ManualClock::new()), bound(60));
        let mut a = client(builder(disk.clone(), &clock, bound));
        store(&mut a, &keys(0..4));
        let mut b = client(builder(disk.clone(), &clock, bound));
        for n in 1..6 {
            store(&mut a, &keys(5 * n..5 * n + 2));
            if rng.below(3) > 0 {
                a.tier.compact();
            }
            pause(rng.below(200));
        }
        let there = held(&mut a, 40);
        soon("the other knows all of it", &clock, || {
            there.iter().all(|&n| b.holds(&key(n)))
        });
        within(&disk, bound);
    });
}
