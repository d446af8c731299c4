//! Disks that fail, lie, or may only be read: what opens the breaker and what does not (I10), what is never served
//! (I2), and a read-only root that stays as it is.

use std::{path::PathBuf, sync::Arc, time::Duration};

use kvweir::{
    ErrorKind,
    fs::{FsBuilder, FsSettings, Layout},
    io::{
        fault::{Fault, Op, Rule},
        pool::PoolSize,
    },
    metrics::{EvictReason, RefuseReason},
    tier::{BlockOutcome, Tier, conformance::key},
};

use crate::{
    broken::{BOUND, Bench, EIO, LOST, bench},
    support::{
        LEN, R, Root, all_ok, client, faulty, file_of, files, in_both_layouts, keys, ns, store, until,
    },
};

fn five_failed_jobs_in_a_row_open_the_breaker_and_no_io_follows(layout: Layout) {
    let mut b = bench(layout, |_| (), true);
    b.disk.add(Rule::new(Op::Write, Fault::Errno(EIO)));
    for n in 100..105 {
        assert_eq!(b.state(), 0);
        assert_eq!(b.c.store(R, &[key(n)]), [LOST]);
    }
    assert_eq!(b.state(), 2);
    let calls = b.disk.calls();
    assert_eq!(b.c.store(R, &keys(200..203)), [LOST; 3]);
    assert_eq!(b.c.load(R, &keys(0..3)), [LOST; 3]);
    assert_eq!(b.hits(0..10), 0);
    assert_eq!(b.disk.calls(), calls, "I/O on a device that is to be left alone");
    assert_eq!(b.c.tier.stats().refused_blocks[RefuseReason::Breaker as usize], 3);
    // the device answers the probe and still writes nothing: each failed job closes it for twice as long
    for (n, wait) in [(300, 1), (301, 2), (302, 4)] {
        b.clock.advance(Duration::from_millis(wait * 1000 - 1));
        b.c.collect();
        assert_eq!(
            (b.state(), b.hits(0..10)),
            (2, 0),
            "before its cool-down of {wait} s is over"
        );
        b.clock.advance(Duration::from_millis(11));
        until("the probe closes it", || {
            b.c.collect();
            b.state() == 0
        });
        assert_eq!(b.hits(0..10), 10);
        assert_eq!((b.c.store(R, &[key(n)])[0], b.state()), (LOST, 2));
    }
    b.disk.heal();
    b.clock.advance(Duration::from_secs(9));
    b.recover();
    assert_eq!(b.hits(0..10), 10, "nothing was lost");
}

fn what_waits_when_the_breaker_opens_is_not_tried_any_more(layout: Layout) {
    let mut b = bench(layout, |s| s.pool = PoolSize::new(1, 1), true);
    // writes of blocks: the keeper writes to the journal when it likes
    b.disk.add(Rule::new(Op::Write, Fault::Errno(EIO)).path(".bin"));
    // nobody polls meanwhile
    for n in 100..120 {
        b.c.submit_store(R, &[key(n)]);
    }
    until("all ended", || b.c.tier.stats().queued_blocks == 0);
    b.c.wait_all();
    assert_eq!(b.disk.met().len(), 5, "I/O on a device that is to be left alone");
    b.clock.advance(Duration::from_secs(1));
    b.recover();
}

fn a_probe_that_fails_keeps_it_open(layout: Layout) {
    let mut b = bench(layout, |_| (), true);
    for op in [Op::Write, Op::Space] {
        b.disk.add(Rule::new(op, Fault::Errno(EIO)));
    }
    for n in 100..105 {
        b.c.store(R, &[key(n)]);
    }
    let probes = |b: &Bench| b.disk.met().iter().filter(|m| m.0 == Op::Space).count();
    for n in 1..5 {
        b.clock.advance(Duration::from_secs(60));
        until("the probe ends", || {
            b.c.collect();
            probes(&b) == n && b.state() == 2
        });
    }
    assert_eq!(b.c.tier.stats().breaker_opened, 1);
    b.clock.advance(Duration::from_secs(60));
    b.recover();
}

fn errors_that_do_not_speak_against_the_device_do_not_open_it(layout: Layout) {
    for errno in [28, 24, 11, 110, 30, 13, 1, 117, 84] {
        let mut b = bench(layout, |_| (), true);
        let op = if layout == Layout::Pack {
            Op::Write
        } else {
            Op::Create
        };
        b.disk.add(Rule::new(op, Fault::Errno(errno)));
        for n in 100..112 {
            assert!(!b.c.store(R, &[key(n)])[0].is_ok());
        }
        assert_eq!(
            (b.state(), b.c.tier.stats().breaker_opened),
            (0, 0),
            "errno {errno}"
        );
        b.recover();
    }
    let mut b = bench(layout, |_| (), true);
    b.disk.add(Rule::new(Op::Read, Fault::Errno(117)));
    for n in 0..8 {
        assert!(b.c.lookup(&key(n), R) && !b.c.load(R, &[key(n)])[0].is_ok());
    }
    assert_eq!(b.state(), 0, "corrupt blocks");
    b.recover();
}

#[test]
fn a_block_that_the_file_system_calls_corrupt_is_removed() {
    for errno in [74, 117, 84, 61] {
        for op in [Op::Open, Op::Read] {
            let mut b = bench(Layout::Fs, |_| (), true);
            let file = file_of(b.c.tier.namespace_dir(), &key(4));
            let rule = Rule::new(op, Fault::Errno(errno)).path(file.to_str().unwrap());
            b.disk.add(rule);
            assert!(b.c.lookup(&key(4), R));
            let got = b.c.load(R, &[key(4)]);
            assert_eq!(got, [BlockOutcome::Failed(ErrorKind::Corrupt)], "{op:?} {errno}");
            assert!(!file.exists() && !b.c.holds(&key(4)));
            let s = b.c.tier.stats();
            assert_eq!(s.verification_failures, 1);
            assert_eq!(s.evicted_blocks[EvictReason::Corrupt as usize], 1);
            b.recover();
        }
    }
}

fn one_flipped_bit_is_never_served(layout: Layout) {
    for op in [Op::Read, Op::Write] {
        let mut b = bench(layout, |_| (), true);
        // a packed block is written before its record
        b.disk.add(Rule::new(op, Fault::Flip).path(".bin").times(1));
        store(&mut b.c, &[key(100)]);
        assert!(b.c.lookup(&key(100), R));
        let got = b.c.load(R, &[key(100)]);
        assert_eq!(got, [BlockOutcome::Failed(ErrorKind::Corrupt)], "{op:?}");
        assert!(!b.c.holds(&key(100)));
        b.recover();
    }
}

#[test]
fn a_disk_that_runs_full_below_the_bound_goes_on_with_what_it_holds() {
    let mut b = bench(Layout::Fs, |_| (), true);
    b.disk
        .add(Rule::new(Op::Write, Fault::FullAt(30 * (LEN as u64 + 4096))));
    let stored = keys(100..160)
        .iter()
        .filter(|k| b.c.store(R, std::slice::from_ref(k))[0].is_ok())
        .count();
    assert!(stored >= 50, "{stored}");
    let s = b.c.tier.stats();
    assert!(
        s.blocks <= 31 && s.evicted_blocks[EvictReason::NoSpace as usize] > 0,
        "{s:?}"
    );
    assert_eq!(b.state(), 0);
    b.recover();
}

/// Everything below a directory with length, blocks and times.
pub(crate) fn tree(root: &std::path::Path) -> Vec<(PathBuf, u64, std::time::SystemTime)> {
    let mut all: Vec<_> = files(root)
        .into_iter()
        .map(|p| {
            let m = std::fs::metadata(&p).unwrap();
            (p, m.len(), m.modified().unwrap())
        })
        .collect();
    all.sort();
    all
}

#[test]
fn a_read_only_root_is_served_and_left_as_it_is() {
    let b = bench(Layout::Fs, |_| (), true);
    let Bench { root, c, .. } = b;
    // not the owner's, whose keeper goes on
    let disk = faulty();
    // what a sweep would take, an empty directory, and a block that is provably wrong
    let leaf = file_of(c.tier.namespace_dir(), &key(1))
        .parent()
        .unwrap()
        .to_owned();
    std::fs::write(
        leaf.join(format!("{}.bin.0123456789abcdef.kvweir", "a".repeat(64))),
        b"x",
    )
    .unwrap();
    std::fs::create_dir(root.path().join("empty")).unwrap();
    let wrong = file_of(c.tier.namespace_dir(), &key(2));
    let mut bytes = std::fs::read(&wrong).unwrap();
    bytes[77] ^= 1;
    std::fs::write(&wrong, bytes).unwrap();
    let away = file_of(c.tier.namespace_dir(), &key(9));
    // all but its keeper's journal, which it writes when it likes
    let blocks = || {
        let mut all = tree(&root.path());
        all.retain(|(path, ..)| !path.to_string_lossy().contains("/.kvweir/"));
        all
    };
    let before = blocks();
    let settings = FsSettings {
        read_only: true,
        ..root.settings(BOUND)
    };
    disk.record();
    // beside its owner, which still has it open
    let mut r = client(FsBuilder::new(settings.clone(), ns("model"), LEN).disk(Arc::new(disk.clone())));
    for k in keys(3..10) {
        assert!(r.lookup(&k, R));
    }
    all_ok(&r.load(R, &keys(3..10)));
    assert!(r.lookup(&key(2), R));
    assert_eq!(r.load(R, &[key(2)]), [BlockOutcome::Failed(ErrorKind::Corrupt)]);
    assert!(!r.holds(&key(2)) && !r.holds(&key(77)));
    // the owner takes one away and brings it back
    let aside = root.0.path().join("aside");
    assert!(r.lookup(&key(9), R));
    std::fs::rename(&away, &aside).unwrap();
    assert_eq!(r.load(R, &[key(9)]), [LOST]);
    std::fs::rename(&aside, &away).unwrap();
    assert!(r.holds(&key(9)));
    assert_eq!(
        r.store(R, &keys(50..53)),
        [BlockOutcome::Failed(ErrorKind::Closed); 3]
    );
    assert_eq!(r.tier.stats().refused_blocks[RefuseReason::ReadOnly as usize], 3);
    r.tier.on_request_finished(R, &[]);
    // another identity wrote a directory of the same name: its blocks are not ours
    let config = files(&root.path())
        .into_iter()
        .find(|f| f.ends_with("config.json"));
    let config = config.unwrap();
    let text = std::fs::read_to_string(&config).unwrap();
    let modified = std::fs::metadata(&config).unwrap().modified().unwrap();
    std::fs::write(&config, text.replace("model", "other")).unwrap();
    let e = FsBuilder::new(settings, ns("model"), LEN).open().unwrap_err();
    assert!(e.to_string().contains("another namespace"), "{e}");
    std::fs::write(&config, text).unwrap();
    let f = std::fs::File::options().write(true).open(&config).unwrap();
    f.set_modified(modified).unwrap();
    r.tier.shutdown();
    let reads = [Op::Open, Op::Read, Op::Stat, Op::Space, Op::List];
    let calls = disk.take_record();
    assert!(calls.iter().all(|(op, _)| reads.contains(op)), "{calls:?}");
    assert_eq!(blocks(), before);
}

#[test]
fn a_read_only_root_must_exist() {
    let root = Root::new();
    let settings = FsSettings {
        read_only: true,
        ..root.settings(0)
    };
    let e = FsBuilder::new(settings, ns("model"), LEN).open().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    assert!(
        e.to_string().contains("does not exist") && !root.path().exists(),
        "{e}"
    );
}

in_both_layouts! {
    five_failed_jobs_in_a_row_open_the_breaker_and_no_io_follows,
    what_waits_when_the_breaker_opens_is_not_tried_any_more,
    a_probe_that_fails_keeps_it_open,
    errors_that_do_not_speak_against_the_device_do_not_open_it,
    one_flipped_bit_is_never_served,
}
