//! Disks that hang or fail as a whole: jobs are reported by their deadline and once (I4), memory that was reported is
//! left alone (I5), what comes late is not published, the tier misses meanwhile and comes back by itself (I10).

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::Relaxed},
    },
    time::Duration,
};

use kvweir::{
    ErrorKind, Key,
    clock::{Clock, ManualClock, SystemClock},
    fs::{BounceMode, FsBuilder, FsSettings, Layout},
    io::{
        fault::{Fault, FaultDisk, Op, Rule},
        pool::PoolSize,
    },
    metrics::RefuseReason,
    tier::{
        BlockOutcome, JobId, LoadBlock, LoadJob, Lookup, Report, RequestId, Tier,
        conformance::{content, key},
    },
};

use crate::support::{
    Fs, LEN, R, Root, all_ok, assert_settled, client, faulty, file_of, fill_slots, in_both_layouts, keys, ns,
    pause, store, temps, until,
};

pub(crate) const BOUND: u64 = 8 << 20;
const TIMEOUT: Duration = Duration::from_secs(30);
const LONG: Duration = Duration::from_secs(20);
pub(crate) const LOST: BlockOutcome = BlockOutcome::Failed(ErrorKind::Unavailable);
pub(crate) const EIO: i32 = 5;

/// A tier on a disk that can be broken, ten blocks in it, and a clock that stands still.
pub(crate) struct Bench {
    pub(crate) root: Root,
    pub(crate) disk: FaultDisk,
    pub(crate) clock: Arc<ManualClock>,
    pub(crate) c: Fs,
}

pub(crate) fn bench(layout: Layout, change: impl FnOnce(&mut FsSettings), honours: bool) -> Bench {
    let (root, disk, clock) = (Root::of(layout), faulty(), Arc::new(ManualClock::new()));
    let mut settings = root.settings(BOUND);
    change(&mut settings);
    if settings.max_bytes.is_none() {
        settings.layout = Layout::Fs;
    }
    let b = FsBuilder::new(settings, ns("model"), LEN)
        .disk(Arc::new(disk.clone()))
        .slots_outlive_reports(honours)
        .clock(Arc::clone(&clock) as _);
    let mut c = client(b);
    c.allow_late_slots();
    store(&mut c, &keys(0..10));
    Bench { root, disk, clock, c }
}

/// The call with which a store begins: a packed one makes nothing.
fn first_op(layout: Layout) -> Op {
    match layout {
        Layout::Pack => Op::Write,
        _ => Op::Create,
    }
}

impl Bench {
    fn hang(&self, op: Op) {
        self.disk.add(Rule::new(op, Fault::Hang));
    }

    fn wait_hanging(&self, n: usize) {
        assert!(
            self.disk.wait_hanging(n, LONG),
            "{} hang, not {n}",
            self.disk.hanging()
        );
    }

    /// Loads `key` into `slot` under a number of our own.
    fn load_into(&mut self, id: u64, key: &Key, slot: u32) {
        let slot = self.c.region().write(slot).unwrap();
        let blocks = vec![LoadBlock {
            key: key.clone(),
            slot,
        }];
        self.c.tier.submit_load(LoadJob {
            id: JobId(id),
            req: R,
            blocks,
        });
    }

    fn poll(&mut self) -> Vec<Report> {
        let mut out = Vec::new();
        self.c.tier.poll(&mut out);
        out
    }

    pub(crate) fn hits(&mut self, range: std::ops::Range<u64>) -> usize {
        let n = keys(range).iter().filter(|k| self.c.holds(k)).count();
        self.c.tier.on_request_finished(R, &[]);
        n
    }

    pub(crate) fn state(&self) -> u64 {
        self.c.tier.stats().breaker_state
    }

    /// What hung returns; the tier comes back by being polled, and everything works and adds up.
    pub(crate) fn recover(&mut self) {
        self.disk.heal();
        until("the breaker closes", || {
            self.c.collect();
            self.state() == 0
        });
        until("what hung returns", || self.c.tier.stats().hung_operations == 0);
        store(&mut self.c, &keys(900..905));
        all_ok(&self.c.load(R, &keys(900..905)));
        self.c.tier.on_request_finished(R, &[]);
        assert_settled(&mut self.c, &self.root);
    }
}

fn at_the_deadline_and_not_before_the_job_is_reported_and_lookups_miss(layout: Layout) {
    for bounce in [BounceMode::Always, BounceMode::Never] {
        let mut b = bench(layout, |s| s.bounce = bounce, true);
        b.hang(Op::Read);
        assert!(b.c.lookup(&key(1), R));
        let job = b.c.submit_load(R, &[key(1)]);
        b.wait_hanging(1);
        b.clock.advance(TIMEOUT - Duration::from_millis(1));
        b.c.collect();
        assert!(b.c.outstanding() == 1 && b.c.tier.has_pending_work());
        assert_eq!((b.hits(0..10), b.state()), (10, 0), "it may only be slow");
        b.clock.advance(TIMEOUT / 32);
        assert_eq!(b.hits(0..10), 0, "a lookup alone sees that the time is over");
        b.c.collect();
        assert_eq!(b.c.wait(job).blocks, [LOST]);
        let s = b.c.tier.stats();
        assert_eq!((s.breaker_state, s.breaker_opened), (2, 1));
        assert_eq!((s.jobs_timed_out, s.hung_operations), (1, 1));
        assert!(!b.c.tier.has_pending_work(), "nothing is left to report");
        b.recover();
        let s = b.c.tier.stats();
        assert_eq!((s.load_failures, s.breaker_opened, s.pinned_blocks), (1, 1, 0));
        assert!(
            !b.c.holds(&key(1)),
            "a block that did not load is a miss until it is stored again"
        );
        store(&mut b.c, &[key(1)]);
        assert_eq!(b.hits(0..10), 10);
    }
}

fn jobs_that_wait_behind_hung_workers_are_reported_too_each_once(layout: Layout) {
    let mut b = bench(layout, |_| (), true);
    let ops: &[Op] = match layout {
        Layout::Pack => &[Op::Read, Op::Write],
        _ => &[Op::Open, Op::Create, Op::Stat],
    };
    ops.iter().for_each(|&op| b.hang(op));
    for n in 0..12 {
        b.c.submit_store(RequestId(50 + n), &keys(100 + n * 2..102 + n * 2));
        // of a key that somebody else writes already
        b.c.submit_store(RequestId(70 + n), &keys(100 + n * 2..101 + n * 2));
    }
    for n in 0..10 {
        assert!(b.c.lookup(&key(n), R));
        b.c.submit_load(R, &[key(n)]);
    }
    b.wait_hanging(4);
    b.clock.advance(TIMEOUT);
    // Client checks that each is reported once and none twice
    b.c.collect();
    assert_eq!((b.c.outstanding(), b.c.tier.has_pending_work()), (0, false));
    assert!(
        b.c.take_reports()
            .iter()
            .all(|r| r.blocks.iter().all(|&o| o == LOST))
    );
    let s = b.c.tier.stats();
    // a worker that packs may have two blocks
    let most = if layout == Layout::Pack { 6 } else { 4 };
    assert!(
        (4..=most).contains(&s.hung_operations) && s.queued_blocks == 0,
        "{s:?}"
    );
    let lost = s.refused_blocks;
    assert_eq!(
        lost[RefuseReason::Timeout as usize] + lost[RefuseReason::Breaker as usize],
        36
    );
    b.recover();
    assert_eq!(b.c.tier.stats().pinned_blocks, 0);
}

fn a_store_that_waits_for_a_write_that_hangs_is_reported_too(layout: Layout) {
    let mut b = bench(layout, |_| (), true);
    b.hang(first_op(layout));
    b.c.submit_store(R, &[key(100)]);
    b.wait_hanging(1);
    b.c.submit_store(RequestId(50), &[key(100)]);
    until("a worker takes it", || b.c.tier.stats().queued_blocks == 0);
    // it has left the pool then: only the write that hangs knows it
    pause(50);
    b.clock.advance(TIMEOUT);
    b.c.collect();
    assert_eq!((b.c.outstanding(), b.c.tier.has_pending_work()), (0, false));
    let reports = b.c.take_reports();
    assert!(reports.len() == 2 && reports.iter().all(|r| r.blocks == [LOST]));
    b.recover();
}

fn a_job_that_no_worker_reached_is_reported_at_its_deadline_and_made_once(layout: Layout) {
    let mut b = bench(layout, |_| (), true);
    b.hang(Op::Read);
    for n in 1..5 {
        assert!(b.c.lookup(&key(n), R));
        b.load_into(n, &key(n), n as u32);
    }
    b.wait_hanging(4);
    let (made, theirs) = (Arc::new(AtomicUsize::new(0)), RequestId(77));
    assert!(b.c.lookup(&key(8), theirs) && b.c.lookup(&key(9), theirs));
    let (count, region) = (Arc::clone(&made), b.c.region().clone());
    b.c.tier.load_later(JobId(9), theirs, 1, move || {
        count.fetch_add(1, Relaxed);
        Ok(vec![LoadBlock {
            key: key(8),
            slot: region.write(60)?,
        }])
    });
    b.clock.advance(TIMEOUT - Duration::from_millis(1));
    assert!(b.poll().is_empty() && b.c.tier.has_pending_work());
    assert_eq!(made.load(Relaxed), 0);
    b.clock.advance(TIMEOUT / 32);
    let mut got: Vec<_> = b.poll().into_iter().map(|r| (r.id.0, r.blocks)).collect();
    got.sort_unstable_by_key(|r| r.0);
    assert_eq!(got, [1, 2, 3, 4, 9].map(|id| (id, vec![LOST])));
    assert!(!b.c.tier.has_pending_work() && b.c.region().is_free(60));
    b.disk.heal();
    until("what hung returns", || b.c.tier.stats().hung_operations == 0);
    assert!(b.poll().is_empty(), "reported twice");
    assert_eq!(made.load(Relaxed), 1);
    b.c.tier.on_request_finished(theirs, &[]);
    b.recover();
}

fn a_load_that_returns_late_leaves_memory_alone_that_was_reported(layout: Layout) {
    for honours in [true, false] {
        let mut b = bench(layout, |s| s.bounce = BounceMode::Always, honours);
        b.hang(Op::Read);
        assert!(b.c.lookup(&key(1), R));
        b.load_into(7, &key(1), 60);
        b.wait_hanging(1);
        assert!(!b.c.region().is_free(60));
        b.clock.advance(TIMEOUT);
        assert_eq!(b.poll().len(), 1);
        // the engine has its memory back and uses it
        b.c.region().write(60).unwrap().fill(0x5a);
        b.disk.heal();
        until("the read returns", || b.c.tier.stats().hung_operations == 0);
        assert!(b.c.region().read(60).unwrap().iter().all(|&x| x == 0x5a));
        assert!(b.poll().is_empty(), "reported twice");
        b.recover();
    }
}

fn a_load_straight_into_a_slot_keeps_it_claimed_until_its_io_ends(layout: Layout) {
    let mut b = bench(layout, |s| s.bounce = BounceMode::Never, true);
    b.hang(Op::Read);
    assert!(b.c.lookup(&key(1), R));
    b.load_into(7, &key(1), 60);
    b.wait_hanging(1);
    b.clock.advance(TIMEOUT);
    assert_eq!(b.poll()[0].blocks, [LOST]);
    assert!(!b.c.region().is_free(60) && b.c.region().write(60).is_err());
    b.disk.heal();
    until("the slot is free", || b.c.region().is_free(60));
    assert!(b.poll().is_empty(), "reported twice");
    b.recover();
}

fn where_nothing_else_protects_the_memory_a_load_into_it_is_reported_when_its_io_ended(layout: Layout) {
    let mut b = bench(layout, |s| s.bounce = BounceMode::Never, false);
    b.hang(Op::Read);
    for n in 1..6 {
        assert!(b.c.lookup(&key(n), R));
        b.load_into(n, &key(n), n as u32);
    }
    b.wait_hanging(4);
    b.clock.advance(TIMEOUT);
    let got = b.poll();
    assert_eq!((got.len(), got[0].id), (1, JobId(5)), "what only waited: {got:?}");
    assert!(b.c.tier.has_pending_work());
    assert_eq!((b.hits(0..10), b.c.tier.stats().hung_operations), (0, 4));
    b.disk.heal();
    let mut got = Vec::new();
    until("the others are reported", || {
        got.extend(b.poll());
        got.len() == 4
    });
    assert!(got.iter().all(Report::all_ok), "{got:?}");
    for n in 1..5 {
        let slot = b.c.region().read(n).unwrap();
        assert_eq!(*slot, *content(&key(n.into()), LEN));
    }
    b.recover();
}

fn a_store_that_returns_late_is_not_published(layout: Layout) {
    // of a packed store its bytes, then its record
    let steps: &[(Op, u64)] = match layout {
        Layout::Pack => &[(Op::Write, 0), (Op::Write, 1)],
        _ => &[
            (Op::CreateDir, 0),
            (Op::Create, 0),
            (Op::Write, 0),
            (Op::Rename, 0),
        ],
    };
    for &(op, skip) in steps {
        for honours in [true, false] {
            let mut b = bench(layout, |_| (), honours);
            b.disk.add(Rule::new(op, Fault::Hang).after(skip).times(1));
            let job = b.c.submit_store(R, &[key(100)]);
            b.wait_hanging(1);
            b.clock.advance(TIMEOUT);
            b.c.collect();
            assert_eq!(b.c.wait(job).blocks, [LOST], "{op:?}");
            b.disk.heal();
            until("it returns", || b.c.tier.stats().hung_operations == 0);
            let file = file_of(b.c.tier.namespace_dir(), &key(100));
            assert!(!file.exists(), "{op:?}: published after its report");
            assert_eq!(temps(&b.root.path()), Vec::<PathBuf>::new(), "{op:?}");
            b.recover();
            assert!(!b.c.holds(&key(100)) && !b.c.replay_events().contains(&key(100)));
            assert_eq!(b.c.tier.stats().stored_blocks, 15, "{op:?}");
            assert_eq!(b.c.store(R, &[key(100)]), [BlockOutcome::Stored]);
        }
    }
}

fn with_all_workers_hung_the_tier_comes_back_as_soon_as_they_return(layout: Layout) {
    let mut b = bench(layout, |_| (), true);
    for op in [Op::Read, first_op(layout)] {
        b.hang(op);
    }
    for n in 0..4 {
        assert!(b.c.lookup(&key(n), R));
        b.c.submit_load(R, &[key(n)]);
    }
    for k in keys(100..104) {
        b.c.submit_store(R, &[k]);
    }
    b.wait_hanging(4);
    for _ in 0..60 {
        b.clock.advance(Duration::from_secs(10));
        b.c.collect();
        assert!(b.c.tier.lookup(&key(9), R) != Lookup::Hit || b.state() == 0);
    }
    assert_eq!(b.c.outstanding(), 0);
    assert_ne!(b.state(), 0, "nobody can have asked the device");
    // the clock does not move any more: no cool-down is waited for
    b.recover();
    assert!(b.hits(5..10) == 5);
}

fn where_all_workers_that_store_hang_for_good_a_store_is_reported_though_loads_go_on(layout: Layout) {
    let mut b = bench(layout, |_| (), true);
    b.disk.add(Rule::new(first_op(layout), Fault::Hang).times(2));
    b.c.submit_store(R, &keys(100..101));
    b.c.submit_store(R, &keys(101..102));
    b.wait_hanging(2);
    b.clock.advance(TIMEOUT);
    b.c.collect();
    assert_eq!((b.c.outstanding(), b.state()), (0, 2));
    b.clock.advance(Duration::from_secs(1));
    until("the probe closes it", || {
        b.c.collect();
        b.state() == 0
    });
    b.c.submit_store(R, &[key(200)]);
    for n in 0..6 {
        assert_eq!(b.c.outstanding(), 1);
        b.clock.advance(TIMEOUT / 6);
        if n < 5 {
            assert!(b.c.lookup(&key(n), R));
            let load = b.c.submit_load(R, &[key(n)]);
            assert!(b.c.wait(load).all_ok());
        }
    }
    b.c.collect();
    assert_eq!(b.c.outstanding(), 0, "it waits for ever");
    b.recover();
}

fn a_device_that_is_only_slow_loses_nothing(layout: Layout) {
    let (root, disk) = (Root::of(layout), faulty());
    let settings = FsSettings {
        io_timeout: Some(Duration::from_millis(400)),
        pool: PoolSize::new(1, 1),
        ..root.settings(BOUND)
    };
    let mut c = client(FsBuilder::new(settings, ns("model"), LEN).disk(Arc::new(disk.clone())));
    disk.add(Rule::new(Op::Write, Fault::Slow(Duration::from_millis(30))));
    // the last one waits for three times the deadline
    for n in 0..40 {
        c.submit_store(R, &[key(n)]);
    }
    let reports = c.wait_all();
    assert!(reports.len() == 40 && reports.iter().all(Report::all_ok));
    let s = c.tier.stats();
    assert_eq!((s.breaker_opened, s.jobs_timed_out), (0, 0));
    assert_settled(&mut c, &root);
}

fn a_drain_waits_for_the_deadline_and_no_longer(layout: Layout) {
    let (root, disk, clock) = (Root::of(layout), faulty(), SystemClock::new());
    let settings = FsSettings {
        io_timeout: Some(Duration::from_millis(300)),
        ..root.settings(BOUND)
    };
    let mut c = client(FsBuilder::new(settings, ns("model"), LEN).disk(Arc::new(disk.clone())));
    c.allow_late_slots();
    disk.add(Rule::new(Op::Write, Fault::Hang));
    for n in 0..10 {
        c.submit_store(R, &[key(n)]);
    }
    let began = clock.now();
    c.tier.drain();
    let took = clock.now().since(began);
    assert!(took < Duration::from_secs(3), "{took:?}");
    c.collect();
    assert_eq!(c.outstanding(), 0);
    disk.heal();
}

fn a_shutdown_over_hung_io_is_bounded_reports_all_and_keeps_the_root(layout: Layout) {
    // writes of two blocks, and of the journal, for which the other waits
    let places: &[(&str, usize)] = match layout {
        // a packed store writes no journal
        Layout::Pack => &[(".bin", 3)],
        _ => &[(".bin", 3), ("journal", 2)],
    };
    for &(path, hanging) in places {
        let mut b = bench(layout, |_| (), true);
        b.disk.add(Rule::new(Op::Write, Fault::Hang).path(path));
        b.hang(Op::Read);
        for n in 100..105 {
            b.c.submit_store(R, &[key(n)]);
        }
        assert!(b.c.lookup(&key(1), R));
        b.c.submit_load(R, &[key(1)]);
        b.wait_hanging(hanging);
        let clock = SystemClock::new();
        let began = clock.now();
        b.c.tier.shutdown();
        let took = clock.now().since(began);
        assert!(took < Duration::from_secs(12), "{took:?}");
        let closed = |r: &Report| r.blocks.iter().all(|o| !o.is_ok());
        let mut reports = Vec::new();
        b.c.tier.poll(&mut reports);
        assert!(reports.len() == 6 && reports.iter().all(closed), "{reports:?}");
        assert_eq!(b.c.tier.stats().pinned_blocks, 1, "only what is still being read");
        let other = FsBuilder::new(b.root.settings(BOUND + 1), ns("model"), LEN);
        assert_eq!(
            other.open().unwrap_err().kind(),
            ErrorKind::Busy,
            "somebody is there"
        );
        b.disk.heal();
        until("what hung returns", || b.c.tier.stats().hung_operations == 0);
        assert_eq!(b.c.tier.stats().pinned_blocks, 0);
        assert_eq!(temps(&b.root.path()), Vec::<PathBuf>::new());
    }
}

#[test]
fn a_key_that_is_looked_for_on_a_hung_disk_becomes_a_miss() {
    let mut b = bench(Layout::Fs, |s| s.max_bytes = None, true);
    b.disk.add(Rule::new(Op::Stat, Fault::Hang));
    assert_eq!(b.c.tier.lookup(&key(500), R), Lookup::Retry);
    b.wait_hanging(1);
    assert!(b.c.tier.has_pending_work());
    b.clock.advance(TIMEOUT);
    assert_eq!(b.c.tier.lookup(&key(500), R), Lookup::Miss);
    assert!(!b.c.tier.has_pending_work());
    b.disk.heal();
    b.clock.advance(Duration::from_secs(2));
    until("the breaker closes", || {
        b.c.collect();
        b.state() == 0
    });
    assert!(!b.c.holds(&key(500)) && b.c.holds(&key(3)));
}

fn every_step_of_a_store_may_fail_or_hang_once(layout: Layout) {
    // packed: into a free slot, and into a new extent
    let before: &[bool] = match layout {
        Layout::Pack => &[false, true],
        _ => &[false],
    };
    for &full in before {
        let bench = || {
            let mut b = bench(layout, |_| (), true);
            if full {
                fill_slots(&mut b.c, &b.root, 10);
            }
            b
        };
        let steps = {
            let mut b = bench();
            b.disk.record();
            all_ok(&b.c.store(R, &[key(100)]));
            b.disk.take_record()
        };
        let least = if layout == Layout::Pack && !full { 2 } else { 7 };
        assert!(steps.len() >= least, "{steps:?}");
        // the keeper tells the journal of uses when it likes: a call of its own may be among those that were
        // recorded, and another time it may be the one that is met, or none is
        let journal = |p: &PathBuf| p.to_string_lossy().contains("/.kvweir/");
        let (mut failed, mut hung) = (0, 0);
        for (n, (op, _)) in steps.iter().enumerate() {
            let what = format!("{layout}, full: {full}, step {n}: {op:?}");
            let mut b = bench();
            b.disk.add(Rule::nth(n as u64, Fault::Errno(EIO)));
            let got = b.c.store(R, &[key(100)])[0];
            failed += b.disk.met().len();
            assert!(b.disk.met().len() <= 1, "{what}");
            assert_eq!(b.c.holds(&key(100)), got.is_ok(), "{what}: a hit means stored");
            b.recover();

            let mut b = bench();
            b.disk.add(Rule::nth(n as u64, Fault::Hang));
            let job = b.c.submit_store(R, &[key(100)]);
            until("it hangs or ends", || {
                b.c.collect();
                b.disk.hanging() == 1 || b.c.outstanding() == 0
            });
            if b.c.outstanding() > 0 {
                b.clock.advance(TIMEOUT);
            }
            b.c.collect();
            let got = b.c.wait(job).blocks;
            hung += b.disk.met().len();
            if got == [BlockOutcome::Stored] {
                assert!(b.disk.met().iter().all(|(_, p)| journal(p)), "{what}");
                b.recover();
                continue;
            }
            assert_eq!(got, [LOST], "{what}");
            b.recover();
            assert!(!b.c.holds(&key(100)), "{what}: published late");
        }
        assert!(
            failed >= least && hung >= least,
            "{failed} failed and {hung} hung of {steps:?}"
        );
    }
}

in_both_layouts! {
    at_the_deadline_and_not_before_the_job_is_reported_and_lookups_miss,
    jobs_that_wait_behind_hung_workers_are_reported_too_each_once,
    a_store_that_waits_for_a_write_that_hangs_is_reported_too,
    a_job_that_no_worker_reached_is_reported_at_its_deadline_and_made_once,
    a_load_that_returns_late_leaves_memory_alone_that_was_reported,
    a_load_straight_into_a_slot_keeps_it_claimed_until_its_io_ends,
    where_nothing_else_protects_the_memory_a_load_into_it_is_reported_when_its_io_ended,
    a_store_that_returns_late_is_not_published,
    with_all_workers_hung_the_tier_comes_back_as_soon_as_they_return,
    where_all_workers_that_store_hang_for_good_a_store_is_reported_though_loads_go_on,
    a_device_that_is_only_slow_loses_nothing,
    a_drain_waits_for_the_deadline_and_no_longer,
    a_shutdown_over_hung_io_is_bounded_reports_all_and_keeps_the_root,
    every_step_of_a_store_may_fail_or_hang_once,
}
