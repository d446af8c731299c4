//! Following a live member's journal over whatever became of its files meanwhile: what the other stored comes to be
//! known, and what it has no more is forgotten.

use std::time::Duration;

use kvweir::{
    io::fault::{Fault, FaultDisk, Op, Rule},
    tier::Tier,
};

use crate::{
    shared_root::{join, pour},
    support::*,
};

const BOUND: u64 = 8 << 20;

fn beside(root: &Root) -> (FaultDisk, Fs) {
    let disk = faulty();
    let b = client(root.on(disk.clone(), BOUND));
    (disk, b)
}

/// A member that was stopped while another compacted three times waited ever after for a generation that was folded
/// and removed long ago.
#[test]
fn who_missed_generations_of_anothers_journal_goes_on_from_its_newest_snapshot() {
    for op in [Op::Read, Op::Stat, Op::Open] {
        let root = Root::new();
        let mut a = join(&root, BOUND, "model");
        store(&mut a, &keys(0..20));
        let (disk, mut b) = beside(&root);
        until("b sees them", || keys(0..20).iter().all(|k| b.holds(k)));
        disk.add(Rule::new(op, Fault::Hang).path("/journal-00"));
        if op == Op::Open {
            a.tier.compact();
        }
        assert!(disk.wait_hanging(1, Duration::from_secs(10)));
        for n in 0..3 {
            store(&mut a, &keys(20 + 5 * n..25 + 5 * n));
            a.tier.compact();
        }
        // the oldest go
        let mut n = 1000;
        while keys(0..5).iter().any(|k| a.holds(k)) {
            pour(&mut a, n..n + 5);
            n += 5;
        }
        a.tier.compact();
        a.tier.compact();
        disk.heal();
        let has: Vec<_> = keys(0..35).into_iter().filter(|k| a.holds(k)).collect();
        until("b sees what a has", || has.iter().all(|k| b.holds(k)));
        until("b forgets what a has no more", || {
            keys(0..5).iter().all(|k| !b.holds(k))
        });
        pour(&mut a, n..n + 1);
        until("b goes on to follow", || b.holds(&keys(n..n + 1)[0]));
    }
}

/// The file that a member follows ends in bytes that are no record: the other failed to append, and could not cut them
/// off. It waited there for ever, whatever came in later generations.
#[test]
fn bytes_at_the_end_of_a_generation_that_are_no_record_hold_nobody_up() {
    let root = Root::new();
    let (disk, mut a) = beside(&root);
    store(&mut a, &keys(0..60));
    let mut b = join(&root, BOUND, "model");
    until("b sees them", || keys(0..60).iter().all(|k| b.holds(k)));
    disk.add(
        Rule::new(Op::Write, Fault::Short(300))
            .path("/journal-00")
            .times(1),
    );
    disk.add(
        Rule::new(Op::Write, Fault::Errno(28))
            .path("/journal-00")
            .times(1),
    );
    disk.add(Rule::new(Op::Allocate, Fault::Errno(5)).path("/journal-00"));
    a.tier.on_request_finished(R, &keys(0..60));
    until("the record failed", || disk.met().len() >= 2);
    a.tier.compact();
    disk.heal();
    until("a stores", || a.store(R, &keys(60..65)).iter().all(|o| o.is_ok()));
    until("b sees the next", || keys(60..65).iter().all(|k| b.holds(k)));
}

/// A member ends and comes back within a tick, having lost blocks meanwhile: what it lost is forgotten.
#[test]
fn what_a_member_has_no_more_when_it_comes_back_is_forgotten() {
    let root = Root::new();
    let mut a = join(&root, BOUND, "model");
    store(&mut a, &keys(0..10));
    let (disk, mut b) = beside(&root);
    until("b sees them", || keys(0..10).iter().all(|k| b.holds(k)));
    disk.add(Rule::new(Op::Open, Fault::Hang).path("/ledger"));
    assert!(disk.wait_hanging(1, Duration::from_secs(10)));
    drop(a);
    let mut a = join(&root, BOUND, "model");
    let mut n = 1000;
    while keys(0..5).iter().any(|k| a.holds(k)) {
        pour(&mut a, n..n + 5);
        n += 5;
    }
    a.tier.compact();
    disk.heal();
    until("b forgets what went", || keys(0..5).iter().all(|k| !b.holds(k)));
    assert!(b.holds(&keys(n - 1..n)[0]) || a.holds(&keys(n - 1..n)[0]));
}
