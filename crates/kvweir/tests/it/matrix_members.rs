//! Faults of the moment where members meet: every step of a start on what dead members left, and calls of those who
//! follow a live one's journal. Whatever the step and the fault, no block is lost, no journal given up, and who follows
//! comes to know what is there (I1, I6).

use std::{path::Path, sync::Arc, time::Duration};

use kvweir::{
    fs::{FsBuilder, FsSettings, FsTier, Layout},
    io::{
        Disk,
        fault::{Fault, FaultDisk, Op, Rule},
        pool::PoolSize,
        sim::{SimDisk, SimFault},
    },
    tier::{Tier, conformance::Client},
};

use crate::{
    shared_root::{join, pour},
    support::*,
};

const ROOT: &str = "/sim/kv";
const BLOCKS: u64 = 12;

/// 1: no step is left out.
fn stride(usual: u64) -> u64 {
    match std::env::var("KVWEIR_MATRIX").as_deref() {
        Ok("all") => 1,
        _ => usual,
    }
}

fn open(disk: &(impl Disk + Clone + 'static), layout: Layout, model: &str) -> kvweir::Result<Client<FsTier>> {
    let settings = FsSettings {
        max_bytes: Some(room_for(BLOCKS * 6, layout)),
        layout,
        events: true,
        pool: PoolSize::new(1, 1),
        ..FsSettings::new(ROOT)
    };
    let tier = FsBuilder::new(settings, ns(model), LEN)
        .disk(Arc::new(disk.clone()))
        .boot_id([1; 16])
        .walk_patience(Duration::from_secs(60))
        .open()?;
    Ok(Client::new(Box::new(tier), 32, LEN))
}

/// Two members of two models that died with blocks, one of them in the middle of something.
fn left_by_two(layout: Layout) -> SimDisk {
    let disk = SimDisk::new(Path::new("/sim"), None);
    let mut a = open(&disk, layout, "a").unwrap();
    all_ok(&a.store(R, &keys(0..BLOCKS)));
    let mut b = open(&disk, layout, "b").unwrap();
    until("b has a share", || {
        let stored = b.store(R, &keys(0..BLOCKS)).iter().all(|o| o.is_ok());
        stored && keys(0..BLOCKS).iter().all(|k| b.holds(k))
    });
    a.tier.compact();
    all_ok(&a.store(R, &keys(0..BLOCKS)));
    assert!(
        keys(0..BLOCKS).iter().all(|k| a.holds(k)),
        "the test tests nothing"
    );
    disk.die_at(disk.steps());
    a.submit_store(R, &keys(100..101));
    drop(a);
    drop(b);
    disk.next_life()
}

/// All of `model`'s blocks are there and right, by the journals.
fn has_all(disk: &SimDisk, layout: Layout, model: &str, what: &str) {
    let next = disk.next_life();
    let seen = FaultDisk::new(Arc::new(next.clone()));
    seen.record();
    let mut c = open(&seen, layout, model).unwrap_or_else(|e| panic!("{what}: {model} does not open: {e}"));
    let own = Path::new(ROOT).join(ns(model).dir());
    let listed = seen
        .take_record()
        .iter()
        .any(|(op, p)| *op == Op::List && *p == own);
    assert!(!listed, "{what}: {model} walked");
    let lost: Vec<u64> = (0..BLOCKS).filter(|&n| !c.holds(&keys(n..n + 1)[0])).collect();
    assert!(lost.is_empty(), "{what}: {model} lost {lost:?}");
    all_ok(&c.load(R, &keys(0..BLOCKS)));
    c.tier.on_request_finished(R, &[]);
    until(what, || {
        let s = c.tier.stats();
        let (least, most) = (next.du(Path::new(ROOT)), counted_on(&next, Path::new(ROOT)));
        (least..=most).contains(&s.resident_bytes) && s.reserved_bytes == 0
    });
}

fn every_step_of_a_start_meets_every_fault_of_the_moment_and_nothing_is_lost(layout: Layout) {
    let clean = left_by_two(layout);
    drop(open(&clean, layout, "a").unwrap());
    let steps = clean.steps();
    let mut faults = vec![SimFault::Die, SimFault::Short];
    // EMFILE ENOMEM EIO ENOSPC
    faults.extend([24, 12, 5, 28].map(SimFault::Once));
    faults.extend([5, 28].map(SimFault::Torn));
    let stride = stride(17);
    let mut runs = 0;
    for (i, &fault) in faults.iter().enumerate() {
        for n in (i as u64 * 3 % stride..steps).step_by(stride as usize) {
            let disk = left_by_two(layout);
            disk.fail_at(n, fault);
            // whether it opens or fails is no matter here
            drop(open(&disk, layout, "a"));
            let what = format!("{fault:?} at step {n} of {steps} of a start");
            has_all(&disk, layout, "a", &what);
            has_all(&disk, layout, "b", &what);
            runs += 1;
        }
    }
    println!(
        "{layout}: {steps} steps of a start, {} faults, {runs} runs, nothing lost",
        faults.len()
    );
    assert!(runs > 20);
}

in_both_layouts! {
    every_step_of_a_start_meets_every_fault_of_the_moment_and_nothing_is_lost,
}

#[test]
fn whatever_call_of_a_follower_fails_it_comes_to_know_what_the_other_has() {
    const AT_ONCE: u64 = 6;
    let (mut runs, mut met) = (0, 0);
    for (i, fault) in [Fault::Errno(24), Fault::Errno(5), Fault::Short(1)]
        .into_iter()
        .enumerate()
    {
        // some ticks' calls
        for from in (0..360).step_by((AT_ONCE * stride(30)) as usize) {
            let root = Root::new();
            let mut a = join(&root, 8 << 20, "model");
            store(&mut a, &keys(0..20));
            let mut followers = Vec::new();
            for n in 0..AT_ONCE {
                let disk = faulty();
                let b = FsBuilder::new(root.settings(8 << 20), ns("model"), LEN);
                let mut b = client(b.disk(Arc::new(disk.clone())));
                until("it follows", || keys(15..20).iter().all(|k| b.holds(k)));
                disk.add(Rule::nth(from + n * 7 + i as u64, fault));
                followers.push((disk, b));
            }
            let mut n = 1000;
            while keys(0..5).iter().any(|k| a.holds(k)) {
                pour(&mut a, n..n + 10);
                n += 10;
                a.tier.compact();
            }
            pour(&mut a, n..n + 3);
            for (disk, b) in &mut followers {
                let what = format!("{fault:?}, {from}: {:?}", disk.met());
                let has: Vec<_> = keys(1000..n + 3).into_iter().filter(|k| a.holds(k)).collect();
                assert!(has.len() > 3);
                until(&what, || has.iter().all(|k| b.holds(k)));
                until(&what, || keys(0..5).iter().all(|k| !b.holds(k)));
                met += disk.met().len();
                runs += 1;
            }
            drop(followers);
            drop(a);
            let mut c = join(&root, 8 << 20, "model");
            assert_settled(&mut c, &root);
        }
    }
    println!("{runs} followers, {met} of them met their fault, all know what is there");
    assert!(met > 0);
}
