//! Packed blocks on a disk that fails: what is lost is what had to be, everything else is given back, and the account
//! stays exact (I1, I2, I4, I10).

use std::sync::{
    Arc,
    atomic::{AtomicU64, Ordering::SeqCst},
};

use kvweir::{
    ErrorKind,
    fs::{FsBuilder, FsSettings, Layout, min_pack_bound},
    io::fault::{Fault, Op, Rule},
    metrics::EvictReason,
    tier::{BlockOutcome, RequestId, Tier, conformance::key},
};

use crate::{
    broken_errors::tree,
    fs_faults::{BOUND, Bench, EINVAL, EIO, ENOSPC, ESTALE, ETIMEDOUT, bench_of},
    hook::hook,
    support::*,
};

const EOPNOTSUPP: i32 = 95;

/// A fault, how often it strikes (0: always), and how the store of one block ends.
type Case = (Op, Fault, u64, Result<(), ErrorKind>);

fn run(table: &[Case], filled: bool, pinned: bool) {
    for &(op, fault, times, want) in table {
        for skip in 0..3 {
            let what = format!("{op:?} {fault:?} x{times} after {skip}, filled: {filled}, pinned: {pinned}");
            let mut b = bench_of(Layout::Pack, BOUND);
            let end = match filled {
                true => fill_slots(&mut b.c, &b.root, 10),
                false => 10,
            };
            if pinned {
                assert!(keys(0..end).iter().all(|k| b.c.lookup(k, RequestId(7))));
            }
            let times = if times == 0 { u64::MAX } else { times };
            b.disk.add(Rule::new(op, fault).times(times).after(skip));
            let got = b.c.store(R, &[key(100)])[0];
            if skip == 0 {
                let want = want.map_or_else(BlockOutcome::Failed, |()| BlockOutcome::Stored);
                assert_eq!(got, want, "{what}");
            }
            b.disk.heal();
            assert_eq!(
                b.c.lookup(&key(100), R),
                got.is_ok(),
                "{what}: a hit means stored"
            );
            if got.is_ok() {
                all_ok(&b.c.load(R, &[key(100)]));
            }
            b.c.tier.on_request_finished(RequestId(7), &[]);
            b.c.tier.on_request_finished(R, &[]);
            b.heal();
        }
    }
}

#[test]
fn faults_of_a_store_into_a_slot_end_as_documented_and_leave_nothing() {
    use ErrorKind::{Busy, Full, Unavailable};
    let err = Fault::Errno;
    let table: [Case; 8] = [
        (Op::Write, err(EIO), 0, Err(Unavailable)),
        (Op::Write, err(ENOSPC), 0, Err(Full)),
        (Op::Write, err(ETIMEDOUT), 0, Err(Busy)),
        (Op::Write, err(4), 3, Ok(())),
        (Op::Write, err(EIO), 1, Err(Unavailable)),
        (Op::Write, Fault::Short(0), 0, Err(Unavailable)),
        (Op::Write, Fault::Short(1000), 2, Ok(())),
        (Op::Write, Fault::Short(4096), 0, Ok(())),
    ];
    run(&table, false, false);
}

#[test]
fn where_no_extent_can_be_made_slots_are_used_again() {
    let err = Fault::Errno;
    let mut table: Vec<Case> = vec![(Op::Allocate, err(EOPNOTSUPP), 0, Ok(()))];
    for op in [Op::Create, Op::Allocate, Op::Rename, Op::Open] {
        for errno in [EIO, ENOSPC, EINVAL, ETIMEDOUT] {
            table.push((op, err(errno), 0, Ok(())));
            table.push((op, err(errno), 1, Ok(())));
        }
    }
    run(&table, true, false);
}

#[test]
fn where_no_extent_can_be_made_and_all_is_pinned_the_error_is_told() {
    use ErrorKind::{Busy, Full, Unavailable};
    let err = Fault::Errno;
    let table: [Case; 6] = [
        (Op::Create, err(EIO), 0, Err(Unavailable)),
        (Op::Create, err(24), 0, Err(Busy)),
        (Op::Allocate, err(ENOSPC), 0, Err(Full)),
        (Op::Allocate, err(EIO), 0, Err(Unavailable)),
        (Op::Allocate, err(EOPNOTSUPP), 0, Ok(())),
        (Op::Rename, err(EIO), 0, Err(Unavailable)),
    ];
    run(&table, true, true);
}

#[test]
fn without_preallocation_an_extent_is_filled_with_zeros_and_counted_whole() {
    let mut b = bench_of(Layout::Pack, BOUND);
    b.disk.add(Rule::new(Op::Allocate, Fault::Errno(EOPNOTSUPP)));
    store(&mut b.c, &keys(10..100));
    for e in extent_files(&b.root.path()) {
        use std::os::unix::fs::MetadataExt;
        let m = std::fs::metadata(&e).unwrap();
        assert!(m.blocks() * 512 >= m.len(), "{e:?} has holes");
    }
    for part in keys(0..100).chunks(20) {
        all_ok(&b.c.load(R, part));
    }
    b.c.tier.on_request_finished(R, &[]);
    b.heal();
}

#[test]
fn one_bad_sector_costs_one_block_of_those_read_together() {
    for errno in [EIO, ESTALE, ETIMEDOUT] {
        let mut b = bench_of(Layout::Pack, BOUND);
        // all three together, then the second of them
        b.disk.add(Rule::new(Op::Read, Fault::Errno(errno)).times(1));
        b.disk
            .add(Rule::new(Op::Read, Fault::Errno(errno)).after(1).times(1));
        for k in keys(3..6) {
            assert!(b.c.lookup(&k, R));
        }
        let got = b.c.load(R, &keys(3..6));
        assert_eq!(got.iter().filter(|o| !o.is_ok()).count(), 1, "{errno}: {got:?}");
        b.c.tier.on_request_finished(R, &[]);
        let lost: Vec<_> = keys(3..6).into_iter().filter(|k| !b.c.holds(k)).collect();
        assert_eq!(lost.len(), 1);
        assert!(!b.c.replay_events().contains(&lost[0]));
        assert_eq!(b.c.store(R, &lost), [BlockOutcome::Stored]);
        all_ok(&b.c.load(R, &keys(0..10)));
        b.c.tier.on_request_finished(R, &[]);
        b.heal();
    }
}

#[test]
fn an_extent_that_cannot_be_made_does_not_cost_the_blocks_that_have_files() {
    for (errno, most) in [(ENOSPC, 60), (EIO, 0), (30, 0)] {
        let root = Root::of(Layout::Fs);
        let bound = 4 << 20;
        let mut c = root.open(bound);
        let mut n = 0;
        // the bound is used up by files
        while c.tier.stats().evicted_blocks.iter().sum::<u64>() == 0 {
            store(&mut c, &[key(n)]);
            n += 1;
        }
        drop(c);
        let disk = faulty();
        disk.add(Rule::new(Op::Allocate, Fault::Errno(errno)));
        let settings = FsSettings {
            layout: Layout::Pack,
            ..root.settings(bound)
        };
        let mut c = client(FsBuilder::new(settings, ns("model"), LEN).disk(Arc::new(disk)));
        let before = c.tier.stats().blocks;
        for n in 1000..1020 {
            assert!(!c.store(R, &[key(n)])[0].is_ok());
        }
        let lost = before - c.tier.stats().blocks;
        // room for the smallest extent that is worth it, and once more below what fitted
        assert!(
            lost <= most + 64,
            "errno {errno}: {lost} of {before} files are gone"
        );
        assert!(c.tier.stats().blocks > before / 2, "errno {errno}");
        assert_settled(&mut c, &root);
    }
}

#[test]
fn an_extent_that_cannot_be_removed_costs_its_own_blocks_only() {
    let mut b = bench_of(Layout::Pack, BOUND);
    for part in keys(10..800).chunks(10) {
        all_ok(&b.c.store(R, part));
    }
    b.c.tier.on_request_finished(R, &[]);
    let before = b.c.tier.stats().blocks;
    b.disk.add(Rule::new(Op::Remove, Fault::Errno(1)).path(".bin"));
    // blocks with files of their own want room
    for n in 0..20 {
        b.c.store(R, &[kvweir::tier::conformance::long_key(n, 65)]);
    }
    let lost = before.saturating_sub(b.c.tier.stats().blocks);
    assert!(lost <= 14, "{lost} blocks of {before} went for nothing");
    b.clock.advance(std::time::Duration::from_secs(31));
    b.heal();
}

#[test]
fn a_panic_in_the_middle_of_a_batch_gives_slots_and_entries_back() {
    for at in 0..6 {
        let root = Root::of(Layout::Pack);
        let (armed, left) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(at)));
        let (a, l) = (Arc::clone(&armed), Arc::clone(&left));
        let disk = hook(move |op, p| {
            // bytes and records, not an extent that is being made
            let counts = op == Op::Write && p.extension().is_some_and(|e| e == "bin");
            if counts && a.load(SeqCst) == 1 && l.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_err()
            {
                a.store(0, SeqCst);
                panic!("disk bug");
            }
            Ok(())
        });
        let bound = room_for(40, Layout::Pack);
        let mut c = client(root.on(disk, bound));
        store(&mut c, &keys(0..3));
        armed.store(1, SeqCst);
        let job = c.submit_store(RequestId(3), &keys(100..120));
        // of the same keys, so that they join
        let joins = c.submit_store(RequestId(4), &keys(100..120));
        let failed = c.wait(job).blocks.iter().filter(|o| !o.is_ok()).count();
        c.wait(joins);
        assert_eq!(armed.swap(0, SeqCst) == 0, failed > 0, "{at}");
        for r in [RequestId(3), RequestId(4)] {
            c.tier.on_request_finished(r, &[]);
        }
        let mut most = 0;
        for n in 200..400 {
            store(&mut c, &[key(n)]);
            most = most.max(c.tier.stats().blocks);
        }
        let slots: u32 = extents(&root.path()).iter().filter_map(|e| slots_of(e)).sum();
        assert_eq!(most, u64::from(slots), "step {at}: every slot is in use again");
        assert_settled(&mut c, &root);
    }
}

#[test]
fn a_pin_in_every_extent_costs_few_others_when_room_is_needed_and_stores_go_on() {
    let root = Root::of(Layout::Pack);
    let bound = 4 << 20;
    let mut c = root.open(bound);
    let mut n = 0;
    while c.tier.stats().evicted_blocks.iter().sum::<u64>() == 0 {
        store(&mut c, &[key(n)]);
        n += 1;
    }
    let held: Vec<_> = keys(0..n).into_iter().filter(|k| c.holds(k)).collect();
    // every fifth, so that each extent, of eight slots and more, has one
    for k in held.iter().step_by(5) {
        assert!(c.lookup(k, RequestId(7)));
    }
    let before = c.tier.stats().blocks;
    for n in 0..10 {
        c.store(R, &[kvweir::tier::conformance::long_key(n, 65)]);
    }
    let lost = before - c.tier.stats().blocks.min(before);
    assert!(lost <= before / 4, "{lost} of {before} blocks are gone");
    for part in keys(1000..1100).chunks(4) {
        all_ok(&c.store(R, part));
    }
    for k in held.iter().step_by(5) {
        assert!(c.load(RequestId(7), std::slice::from_ref(k))[0].is_ok());
    }
    c.tier.on_request_finished(RequestId(7), &[]);
    c.tier.on_request_finished(R, &[]);
    assert_settled(&mut c, &root);
}

#[test]
fn uses_of_packed_blocks_do_not_grow_the_journal() {
    let root = Root::of(Layout::Pack);
    let mut c = root.open(BOUND);
    for part in keys(0..500).chunks(20) {
        all_ok(&c.store(R, part));
    }
    let journal = || {
        files(&root.path().join(".kvweir"))
            .iter()
            .map(|p| du(p))
            .sum::<u64>()
    };
    agreed(&mut c, &root);
    let before = journal();
    for _ in 0..50 {
        c.tier.on_request_finished(R, &keys(0..500));
        pause(10);
    }
    assert!(journal() <= before, "{} and {before}", journal());
}

#[test]
fn a_bound_of_the_least_size_holds_packed_blocks_through_restarts() {
    let root = Root::of(Layout::Pack);
    let bound = min_pack_bound(LEN);
    for life in 0..4u64 {
        let mut c = root.open(bound);
        for n in 0..30 {
            assert_eq!(c.store(R, &[key(life * 100 + n)]), [BlockOutcome::Stored]);
            assert!(c.holds(&key(life * 100 + n)));
        }
        c.tier.on_request_finished(R, &[]);
        assert!(root.du() <= bound);
        assert_settled(&mut c, &root);
    }
}

#[test]
fn a_failing_disk_leaves_extents_as_they_were() {
    let Bench {
        root, disk, mut c, ..
    } = bench_of(Layout::Pack, BOUND);
    disk.add(Rule::new(Op::Write, Fault::Errno(30)));
    let before: Vec<_> = tree(&root.path()).into_iter().map(|t| (t.0, t.1)).collect();
    assert!(c.store(R, &keys(100..102)).iter().all(|o| !o.is_ok()));
    assert_eq!(c.tier.stats().evicted_blocks[EvictReason::Capacity as usize], 0);
    let after: Vec<_> = tree(&root.path()).into_iter().map(|t| (t.0, t.1)).collect();
    assert_eq!(before, after);
    all_ok(&c.load(R, &keys(0..10)));
}
