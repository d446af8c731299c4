//! A disk that fails: each errno has its documented outcome, the account equals `du` afterwards, and the tier goes
//! on when the fault ends (I1, I3, I10).

use std::sync::Arc;

use kvweir::{
    ErrorKind,
    clock::ManualClock,
    fs::{FsBuilder, Layout, min_bound},
    io::fault::{Fault, FaultDisk, Op, Rule},
    metrics::{EvictReason, RefuseReason},
    tier::{BlockOutcome, Tier, conformance::key},
};

use crate::support::{
    FILE, Fs, LEN, R, Root, all_ok, assert_settled, client, faulty, file_of, in_both_layouts, keys, ns,
    store, temps,
};

const EPERM: i32 = 1;
pub(crate) const EIO: i32 = 5;
const EACCES: i32 = 13;
const EEXIST: i32 = 17;
pub(crate) const EINVAL: i32 = 22;
const EMFILE: i32 = 24;
pub(crate) const ENOSPC: i32 = 28;
pub(crate) const ETIMEDOUT: i32 = 110;
pub(crate) const ESTALE: i32 = 116;
const EDQUOT: i32 = 122;

pub(crate) const BOUND: u64 = 8 << 20;

pub(crate) struct Bench {
    pub(crate) root: Root,
    pub(crate) disk: FaultDisk,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) c: Fs,
}

fn bench(bound: u64) -> Bench {
    bench_of(Layout::Fs, bound)
}

/// A tier on a disk that can be broken, with ten blocks.
pub(crate) fn bench_of(layout: Layout, bound: u64) -> Bench {
    let (root, disk, clock) = (Root::of(layout), faulty(), Arc::new(ManualClock::new()));
    let b = FsBuilder::new(root.settings(bound), ns("model"), LEN)
        .disk(Arc::new(disk.clone()))
        .clock(Arc::clone(&clock) as _);
    let mut c = client(b);
    store(&mut c, &keys(0..10));
    Bench { root, disk, clock, c }
}

impl Bench {
    /// The fault is over: everything settles and works.
    pub(crate) fn heal(&mut self) {
        self.disk.heal();
        assert_settled(&mut self.c, &self.root);
        store(&mut self.c, &keys(900..905));
        for k in keys(900..905) {
            assert!(self.c.lookup(&k, R));
        }
        all_ok(&self.c.load(R, &keys(900..905)));
        assert_settled(&mut self.c, &self.root);
    }
}

/// A fault, how often it strikes (0: always), and how the store of one block ends.
type StoreCase = (Op, Fault, u64, Result<(), ErrorKind>);

#[test]
fn store_faults_end_as_documented_and_leave_nothing() {
    use ErrorKind::{Busy, Full, Unavailable};
    let err = Fault::Errno;
    let table: Vec<StoreCase> = vec![
        (Op::Create, err(EMFILE), 0, Err(Busy)),
        (Op::Create, err(EIO), 0, Err(Unavailable)),
        (Op::Create, err(EACCES), 0, Err(Unavailable)),
        (Op::Create, err(EEXIST), 1, Ok(())),
        (Op::Create, err(ENOSPC), 1, Ok(())),
        (Op::Create, err(ENOSPC), 0, Err(Full)),
        (Op::Write, err(EIO), 0, Err(Unavailable)),
        (Op::Write, err(ENOSPC), 1, Ok(())),
        (Op::Write, err(EDQUOT), 1, Ok(())),
        (Op::Write, err(ENOSPC), 0, Err(Full)),
        (Op::Write, err(ETIMEDOUT), 0, Err(Busy)),
        (Op::Write, err(4), 3, Ok(())),
        (Op::Write, Fault::Short(0), 0, Err(Unavailable)),
        (Op::Write, Fault::Short(1000), 2, Ok(())),
        (Op::Write, Fault::Short(4096), 0, Ok(())),
        (Op::Rename, err(EACCES), 0, Err(Unavailable)),
        (Op::Rename, err(EEXIST), 0, Err(Unavailable)),
        (Op::Rename, err(EIO), 0, Err(Unavailable)),
        (Op::Rename, err(ENOSPC), 1, Ok(())),
        (Op::CreateDir, err(EIO), 0, Err(Unavailable)),
        (Op::CreateDir, err(EMFILE), 0, Err(Busy)),
        (Op::CreateDir, err(ENOSPC), 1, Ok(())),
        (Op::CreateDir, err(ENOSPC), 0, Err(Full)),
        (Op::Stat, err(EIO), 1, Err(Unavailable)),
    ];
    for (n, (op, fault, times, want)) in table.into_iter().enumerate() {
        for skip in 0..3 {
            let what = format!("{op:?} {fault:?} x{times} after {skip}");
            let mut b = bench(BOUND);
            let times = if times == 0 { u64::MAX } else { times };
            b.disk.add(Rule::new(op, fault).times(times).after(skip));
            let k = key(100 + n as u64);
            let got = b.c.store(R, std::slice::from_ref(&k))[0];
            if skip == 0 {
                match want {
                    Ok(()) => assert_eq!(got, BlockOutcome::Stored, "{what}"),
                    Err(kind) => assert_eq!(got, BlockOutcome::Failed(kind), "{what}"),
                }
            }
            b.disk.heal();
            assert_eq!(b.c.lookup(&k, R), got.is_ok(), "{what}: a hit means stored");
            if got.is_ok() {
                all_ok(&b.c.load(R, &[k]));
            }
            b.heal();
        }
    }
}

#[test]
fn load_faults_fail_one_block_and_transient_ones_keep_the_file() {
    let table = [
        (Op::Open, EMFILE, ErrorKind::Busy, true),
        (Op::Open, ETIMEDOUT, ErrorKind::Busy, true),
        (Op::Open, ESTALE, ErrorKind::Unavailable, false),
        (Op::Open, EACCES, ErrorKind::Unavailable, true),
        (Op::Read, EIO, ErrorKind::Unavailable, true),
        (Op::Read, ESTALE, ErrorKind::Unavailable, false),
    ];
    for (op, errno, kind, kept) in table {
        let mut b = bench(BOUND);
        let file = file_of(b.c.tier.namespace_dir(), &key(4));
        b.disk
            .add(Rule::new(op, Fault::Errno(errno)).path(file.to_str().unwrap()));
        for k in keys(3..6) {
            assert!(b.c.lookup(&k, R));
        }
        let got = b.c.load(R, &keys(3..6));
        assert!(got[0].is_ok() && got[2].is_ok(), "{op:?} {errno}: {got:?}");
        assert_eq!(got[1], BlockOutcome::Failed(kind), "{op:?} {errno}");
        assert!(!b.c.holds(&key(4)) && !b.c.replay_events().contains(&key(4)));
        assert_eq!(file.exists(), kept, "{op:?} {errno}");
        b.disk.heal();
        assert_settled(&mut b.c, &b.root);
        assert_eq!(b.c.store(R, &[key(4)]), [BlockOutcome::Stored]);
        assert!(b.c.lookup(&key(4), R) && b.c.load(R, &[key(4)])[0].is_ok());
        b.heal();
    }
}

fn short_reads_and_interrupts_are_looped_over(layout: Layout) {
    for fault in [Fault::Short(1), Fault::Short(4096), Fault::Errno(4)] {
        let mut b = bench_of(layout, BOUND);
        b.disk.add(Rule::new(Op::Read, fault).times(40));
        assert!(b.c.lookup(&key(2), R));
        all_ok(&b.c.load(R, &[key(2)]));
        b.heal();
    }
}

fn direct_io_refused_at_open_write_or_read_falls_back_to_buffered(layout: Layout) {
    for op in [Op::Create, Op::Write, Op::Open, Op::Read] {
        let mut b = bench_of(layout, BOUND);
        b.disk.add(Rule::new(op, Fault::Errno(EINVAL)).direct());
        store(&mut b.c, &keys(50..60));
        for k in keys(50..60) {
            assert!(b.c.lookup(&k, R), "{op:?}");
        }
        all_ok(&b.c.load(R, &keys(50..60)));
        assert_settled(&mut b.c, &b.root);
        b.heal();
    }
}

#[test]
fn a_full_device_evicts_lowers_the_bound_for_a_while_and_keeps_serving() {
    let mut b = bench(BOUND);
    store(&mut b.c, &keys(10..60));
    let full = b.c.tier.stats().resident_bytes;
    b.disk.add(Rule::new(Op::Write, Fault::Errno(ENOSPC)).times(1));
    assert_eq!(b.c.store(R, &[key(100)]), [BlockOutcome::Stored]);
    let s = b.c.tier.stats();
    assert!(s.evicted_blocks[EvictReason::NoSpace as usize] > 0);
    assert!(
        s.effective_bound_bytes.unwrap() <= full && s.bound_bytes == Some(BOUND),
        "{s:?}"
    );
    // stores go on below the lowered bound, by eviction
    store(&mut b.c, &keys(200..240));
    assert!(b.c.tier.stats().resident_bytes <= full);
    assert_settled(&mut b.c, &b.root);
    b.clock.advance(std::time::Duration::from_secs(31));
    store(&mut b.c, &keys(300..340));
    let s = b.c.tier.stats();
    assert_eq!(s.effective_bound_bytes, Some(BOUND));
    assert!(s.resident_bytes > full, "the bound stays lowered for ever");
    b.heal();
}

#[test]
fn a_device_that_stays_full_fails_stores_and_keeps_what_it_can() {
    let mut b = bench(BOUND);
    store(&mut b.c, &keys(10..60));
    b.disk.add(Rule::new(Op::Write, Fault::Errno(ENOSPC)));
    for n in 100..110 {
        assert_eq!(b.c.store(R, &[key(n)]), [BlockOutcome::Failed(ErrorKind::Full)]);
    }
    assert!(b.c.tier.stats().refused_blocks[RefuseReason::NoSpace as usize] > 0);
    // the first failed store evicts what one write reserves; that did not help, so the others evict nothing
    let s = b.c.tier.stats();
    assert!(
        s.blocks > 0 && s.evicted_blocks[EvictReason::NoSpace as usize] <= 5,
        "{s:?}"
    );
    for k in keys(50..60) {
        assert!(b.c.lookup(&k, R), "the newest blocks are still served");
    }
    all_ok(&b.c.load(R, &keys(50..60)));
    b.heal();
}

#[test]
fn a_temporary_that_cannot_be_removed_stays_counted_until_it_can() {
    let mut b = bench(min_bound(LEN) + 20 * (FILE + 8192));
    b.disk.add(Rule::new(Op::Write, Fault::Errno(EIO)).after(1));
    b.disk.add(Rule::new(Op::Write, Fault::Short(4096)).times(1));
    b.disk
        .add(Rule::new(Op::Remove, Fault::Errno(EIO)).path(".kvweir"));
    assert!(!b.c.store(R, &[key(100)])[0].is_ok());
    assert_eq!(temps(&b.root.path()).len(), 1);
    let s = b.c.tier.stats();
    assert_eq!(
        (s.resident_bytes, s.reserved_bytes, s.unlink_failures),
        (b.root.du(), 0, 1)
    );
    assert!(s.peak_bytes <= s.bound_bytes.unwrap());
    b.disk.heal();
    // when room is short of everything else it goes
    store(&mut b.c, &keys(200..260));
    assert_eq!(b.c.tier.stats().resident_bytes, b.root.du());
    // the next start sweeps it at the latest
    let Bench { root, c, .. } = b;
    drop(c);
    let mut c = root.open(BOUND);
    assert_settled(&mut c, &root);
}

#[test]
fn an_old_file_that_cannot_be_removed_is_skipped_and_tried_once_a_call() {
    let mut b = bench(min_bound(LEN) + 20 * (FILE + 8192));
    let file = file_of(b.c.tier.namespace_dir(), &key(0));
    b.disk
        .add(Rule::new(Op::Remove, Fault::Errno(EPERM)).path(file.to_str().unwrap()));
    store(&mut b.c, &keys(100..200));
    let tries = b.disk.met().len();
    assert_eq!(tries, 1, "one stuck file was tried {tries} times in one go");
    assert_eq!(b.c.tier.stats().unlink_failures, 1);
    assert!(b.c.holds(&key(0)), "it is still there and good");
    assert_settled(&mut b.c, &b.root);
    b.clock.advance(std::time::Duration::from_secs(31));
    store(&mut b.c, &keys(300..340));
    b.disk.heal();
    b.clock.advance(std::time::Duration::from_secs(31));
    store(&mut b.c, &keys(400..450));
    assert!(!file.exists(), "it is removed when it can be");
    b.heal();
}

#[test]
fn nothing_can_be_removed_and_stores_fail_without_end_of_service() {
    let mut b = bench(min_bound(LEN) + 20 * (FILE + 8192));
    store(&mut b.c, &keys(100..140));
    b.disk.add(Rule::new(Op::Remove, Fault::Errno(EIO)));
    let mut failed = 0;
    for n in 200..230 {
        failed += u64::from(!b.c.store(R, &[key(n)])[0].is_ok());
    }
    assert!(failed >= 20);
    let held: Vec<_> = keys(100..140).into_iter().filter(|k| b.c.lookup(k, R)).collect();
    assert!(!held.is_empty());
    all_ok(&b.c.load(R, &held));
    b.disk.heal();
    b.clock.advance(std::time::Duration::from_secs(31));
    b.heal();
}

#[test]
fn rename_says_eexist_over_a_whole_file_and_that_is_success() {
    let mut b = bench(BOUND);
    let dir = b.c.tier.namespace_dir().to_owned();
    // some network file systems publish and then say EEXIST: the destination is there and whole
    let (k, good) = (key(100), file_of(&dir, &key(100)));
    store(&mut b.c, std::slice::from_ref(&k));
    let saved = std::fs::read(&good).unwrap();
    std::fs::remove_file(&good).unwrap();
    assert!(!b.c.load(R, std::slice::from_ref(&k))[0].is_ok());
    std::fs::create_dir_all(good.parent().unwrap()).unwrap();
    std::fs::write(&good, saved).unwrap();
    b.disk.add(Rule::new(Op::Rename, Fault::Errno(EEXIST)));
    assert_eq!(b.c.store(R, std::slice::from_ref(&k)), [BlockOutcome::Stored]);
    assert!(b.c.lookup(&k, R));
    all_ok(&b.c.load(R, &[k]));
    b.heal();
}

#[test]
fn a_walk_that_fails_refuses_the_start_and_keeps_the_errno() {
    let b = bench(BOUND);
    let Bench { root, disk, c, .. } = b;
    drop(c);
    disk.add(Rule::new(Op::List, Fault::Errno(EIO)).after(1));
    let e = FsBuilder::new(root.settings(BOUND), ns("model"), LEN)
        .disk(Arc::new(disk.clone()))
        .open()
        .unwrap_err();
    assert_eq!(e.errno(), Some(EIO), "{e}");
    disk.heal();
    let mut c = root.open(BOUND);
    assert_eq!(c.tier.stats().recovered_blocks, 10);
    assert_settled(&mut c, &root);
}

in_both_layouts! {
    short_reads_and_interrupts_are_looped_over,
    direct_io_refused_at_open_write_or_read_falls_back_to_buffered,
}
