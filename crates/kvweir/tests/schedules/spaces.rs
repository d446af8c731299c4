//! Two spaces of one root under every schedule: each job is reported once, whoever shuts down first; no byte is above
//! the bound while one takes room from the other.

use std::sync::Arc;

use kvweir::{
    fs::{FsSpace, Layout},
    io::sim::SimDisk,
    tier::{RequestId, Tier, conformance::Client},
};

use crate::{explore::explore, support::*};

/// Names a request.
fn req(n: u64) -> RequestId {
    RequestId(n)
}

/// Layouts of the two, all pairs in turn.
fn layouts_of(seed: u64) -> [Layout; 2] {
    [layout_of(seed), layout_of(seed / 2)]
}

fn open_both(seed: u64, disk: &SimDisk, bound: u64) -> [Fs; 2] {
    let [a, b] = layouts_of(seed);
    let first = builder_of(settings_of(a, bound), disk.clone(), &Arc::default()).name("a");
    let tiers = first
        .beside(FsSpace::new("b", ns("b"), LEN / 2).layout(b))
        .open_all();
    let mut tiers = tiers.unwrap().into_iter();
    [LEN, LEN / 2].map(|len| Client::new(Box::new(tiers.next().unwrap()), 32, len))
}

/// A bound that two can just live in.
fn both_fit() -> u64 {
    2 * bound_of(Layout::Pack, 0).max(bound_of(Layout::Fs, 0))
}

#[test]
fn one_that_shuts_down_beside_the_other_reports_its_jobs_once_and_costs_the_other_none() {
    explore(|seed| {
        let mut rng = Rng(seed);
        let (disk, bound) = (disk(), both_fit());
        let [mut a, mut b] = open_both(seed, &disk, bound);
        store(&mut a, &keys(0..3));
        store(&mut b, &keys(0..3));
        let jobs = [
            b.submit_store(req(1), &keys(3..6)),
            a.submit_store(req(1), &keys(3..6)),
        ];
        pause(rng.below(200));
        a.tier.shutdown();
        a.collect();
        assert_eq!(a.outstanding(), 0, "jobs without a report (I4)");
        drop(a);
        all_ok(&b.wait(jobs[0]).blocks);
        for k in keys(0..6) {
            assert!(b.holds(&k), "the other goes on");
        }
        store(&mut b, &keys(6..9));
        b.tier.on_request_finished(req(1), &[]);
        quiet(&mut b, &disk, bound, 9);
        b.tier.shutdown();
        drop(b);
        // the root is free, and what was left is whole
        let disk = disk.next_life();
        for (mut c, n) in open_both(seed, &disk, bound).into_iter().zip([3, 9]) {
            for k in held(&mut c, n) {
                all_ok(&c.load(req(1), &[key(k)]));
            }
            c.tier.shutdown();
        }
    });
}

#[test]
fn two_that_fill_one_bound_stay_below_it_at_every_step_and_each_keeps_some() {
    explore(|seed| {
        let (disk, bound) = (disk(), both_fit());
        let [mut a, mut b] = open_both(seed, &disk, bound);
        let n = bound / LEN as u64;
        for c in [&mut a, &mut b] {
            for k in 0..n {
                c.store(req(1), &[key(k)]);
            }
            c.tier.on_request_finished(req(1), &[]);
        }
        // both at once
        for k in n..n + 6 {
            a.submit_store(req(1), &[key(k)]);
            b.submit_store(req(1), &[key(k)]);
        }
        for c in [&mut a, &mut b] {
            c.wait_all();
            c.tier.on_request_finished(req(1), &[]);
        }
        within(&disk, bound);
        assert!(!held(&mut b, n + 6).is_empty(), "the second has a share");
        quiet(&mut a, &disk, bound, n + 6);
        for c in [&mut a, &mut b] {
            for k in held(c, n + 6) {
                all_ok(&c.load(req(2), &[key(k)]));
            }
            c.tier.on_request_finished(req(2), &[]);
            c.tier.shutdown();
        }
    });
}
