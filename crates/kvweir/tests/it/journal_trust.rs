//! What a start makes of journals that are damaged, cut, another's, or cannot be read just now: the bound holds and
//! whoever comes is let in (I1, I6), and what is only a moment's failure costs nothing.

use std::{
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use kvweir::{
    ErrorKind,
    admin::{Admin, Fault as AdminFault, LedgerState, VerifyOptions},
    fs::{FsBuilder, FsSettings, Layout},
    io::fault::{Fault, FaultDisk, Op, Rule},
    tier::Tier,
};

use crate::{
    shared_root::{join, pour},
    support::*,
};

const BOUND: u64 = 2 << 20;

fn on(root: &Root, disk: &FaultDisk, model: &str) -> FsBuilder {
    FsBuilder::new(root.settings(BOUND), ns(model), LEN).disk(Arc::new(disk.clone()))
}

/// Whether the namespace's own directory was listed: only a walk does that.
fn walked(disk: &FaultDisk, root: &Root, model: &str) -> bool {
    let own = root.path().join(ns(model).dir());
    disk.take_record()
        .iter()
        .any(|(op, p)| *op == Op::List && *p == own)
}

/// The journals of a root, newest last.
fn journals(root: &Root) -> Vec<PathBuf> {
    let mut all = files(&root.path().join(".kvweir"));
    all.retain(|p| p.to_string_lossy().contains("/journal-"));
    all.sort();
    all
}

fn flip_in_the_middle(path: &Path) {
    flip(path, fs::metadata(path).unwrap().len() / 2);
}

/// Opens `model`, which must be able to store, and must keep to the bound with all that lies there.
fn opens_and_stores(root: &Root, model: &str, what: &str) {
    let b = FsBuilder::new(root.settings(BOUND), ns(model), LEN);
    let tier = b.walk_patience(std::time::Duration::from_secs(60)).open();
    let tier = tier.unwrap_or_else(|e| panic!("{what}: not opened: {e}"));
    let mut c = Fs::new(Box::new(tier), 64, LEN);
    assert!(pour(&mut c, 5000..5150) > 100, "{what}: stores are refused");
    assert!(root.du() <= BOUND, "{what}: {} of {BOUND}", root.du());
    all_is_counted(&mut c, root, what);
}

/// The account is what lies there. Of extents that another model left it may be what they take, and not what they might
/// come to take.
fn all_is_counted(c: &mut Fs, root: &Root, what: &str) {
    c.wait_all();
    until(what, || {
        let told = c.tier.stats().resident_bytes;
        (root.du()..=root.counted()).contains(&told) && c.tier.stats().reserved_bytes == 0
    });
}

/// One bit of a dead member's journal kept every other model out of the root, for ever: what the dead one leased could
/// be taken over by nobody, and nobody walked.
fn one_unusable_journal_of_a_dead_model_keeps_nobody_out(layout: Layout) {
    type Harm = fn(&Path);
    let harms: [(&str, Harm); 4] = [
        ("a bit", flip_in_the_middle),
        ("gone", |p| fs::remove_file(p).unwrap()),
        ("empty", |p| fs::write(p, b"").unwrap()),
        ("no header", |p| fs::write(p, [7; 500]).unwrap()),
    ];
    for (what, harm) in harms {
        let root = Root::of(layout);
        let mut a = join(&root, BOUND, "a");
        pour(&mut a, 0..200);
        drop(a);
        harm(journals(&root).last().unwrap());
        opens_and_stores(&root, "b", what);
        opens_and_stores(&root, "a", what);
    }
}

/// Of two dead members the other's journal is damaged, and the one that opens has its own: it must not forget that.
fn a_damaged_journal_of_another_costs_the_owner_of_a_whole_one_nothing(layout: Layout) {
    let root = Root::of(layout);
    let mut a = join(&root, BOUND, "a");
    assert_eq!(pour(&mut a, 0..30), 30);
    let mut b = join(&root, BOUND, "b");
    until("b has a share", || {
        pour(&mut b, 0..30) == 30 && keys(0..30).iter().all(|k| b.holds(k))
    });
    drop(a);
    drop(b);
    let first = journals(&root)
        .into_iter()
        .find(|p| p.to_string_lossy().contains("-00-"));
    flip_in_the_middle(&first.unwrap());
    let mut b = join(&root, BOUND, "b");
    all_ok(&b.load(R, &keys(0..30)));
    b.tier.on_request_finished(R, &[]);
    all_is_counted(&mut b, &root, "b's account");
    drop(b);
    let mut a = join(&root, BOUND, "a");
    all_ok(&a.load(R, &keys(0..30)));
}

/// EMFILE, ENOMEM or EIO once, on whatever touches the journals at start, was taken for damage: the tree was walked,
/// and another model's leavings were counted as lost.
fn a_journal_that_cannot_be_read_once_is_read_again(layout: Layout) {
    for errno in [24, 12, 5] {
        for op in [Op::Open, Op::Read, Op::Stat] {
            let root = Root::of(layout);
            for model in ["a", "b"] {
                let mut c = join(&root, BOUND, model);
                assert_eq!(pour(&mut c, 0..40), 40);
            }
            let disk = faulty();
            disk.add(Rule::new(op, Fault::Errno(errno)).path("/journal-").times(1));
            disk.add(Rule::new(op, Fault::Errno(errno)).path("/snapshot-").times(1));
            disk.add(
                Rule::new(Op::List, Fault::Errno(errno))
                    .path("/.kvweir")
                    .after(1)
                    .times(1),
            );
            disk.record();
            let mut b = client(on(&root, &disk, "b"));
            assert!(!disk.met().is_empty(), "{op:?} {errno}: the test tests nothing");
            assert!(!walked(&disk, &root, "b"), "{op:?} {errno}: walked");
            all_ok(&b.load(R, &keys(0..40)));
            b.tier.on_request_finished(R, &[]);
            assert_settled(&mut b, &root);
            drop(b);
            let mut a = join(&root, BOUND, "a");
            all_ok(&a.load(R, &keys(0..40)));
        }
    }
}

/// Where the process has no file descriptors left for as long as it tries, opening fails and says so; nothing is given
/// up for that.
fn without_file_descriptors_a_start_fails_and_gives_nothing_up(layout: Layout) {
    for model in ["a", "b"] {
        let root = Root::of(layout);
        let mut a = join(&root, BOUND, "a");
        assert_eq!(pour(&mut a, 0..40), 40);
        drop(a);
        let before = journals(&root);
        let disk = faulty();
        disk.add(Rule::new(Op::Open, Fault::Errno(24)).path("/journal-00"));
        let error = on(&root, &disk, model).open().map(|_| ()).unwrap_err();
        assert_eq!(error.errno(), Some(24), "{error}");
        assert!(
            before.iter().all(|p| p.exists()),
            "{model}: its journal was removed"
        );
        let disk = faulty();
        disk.record();
        let mut a = client(on(&root, &disk, "a"));
        assert!(!walked(&disk, &root, "a"));
        all_ok(&a.load(R, &keys(0..40)));
    }
}

/// What a dead member left was taken over, and the journal of the one that took it could not be written: the second try
/// found the blocks known, wrote none of them down, and removed the only journal that told of them.
#[test]
fn a_take_over_that_fails_half_way_is_ended_later_and_loses_nothing() {
    for skip in 0..2 {
        let root = Root::new();
        let disk = faulty();
        let mut b = client(on(&root, &disk, "model"));
        let mut a = join(&root, BOUND, "model");
        until("a has a share", || {
            pour(&mut a, 0..40) == 40 && keys(0..40).iter().all(|k| a.holds(k))
        });
        drop(a);
        disk.add(
            Rule::new(Op::Write, Fault::Errno(28))
                .path("/journal-00")
                .after(skip)
                .times(2),
        );
        until("the writes failed", || disk.met().len() == 2);
        until("b takes over what a left", || b.tier.stats().blocks == 40);
        until("it is written down", || journals(&root).len() == 1);
        assert_settled(&mut b, &root);
        drop(b);
        let disk = faulty();
        disk.record();
        let mut c = client(on(&root, &disk, "model"));
        assert!(!walked(&disk, &root, "model"));
        all_ok(&c.load(R, &keys(0..40)));
        c.tier.on_request_finished(R, &[]);
        assert_settled(&mut c, &root);
    }
}

/// `truncate -s 512` on a journal: what came before was believed and the rest of the root counted by nobody, for good.
fn a_journal_that_is_shorter_than_its_ledger_says_is_not_believed(layout: Layout) {
    for part in [1, 4, 9] {
        for model in ["a", "b"] {
            let root = Root::of(layout);
            let mut a = join(&root, BOUND, "a");
            pour(&mut a, 0..200);
            drop(a);
            let journal = journals(&root).pop().unwrap();
            let len = fs::metadata(&journal).unwrap().len();
            let file = fs::OpenOptions::new().write(true).open(&journal).unwrap();
            file.set_len((len * part / 10).max(512)).unwrap();
            opens_and_stores(&root, model, &format!("{part} tenths, {model}"));
        }
    }
}

/// The journal of another root, or an older state of the same, is whole and tells of blocks that are not there.
fn a_journal_of_another_root_or_of_an_earlier_day_is_not_believed(layout: Layout) {
    let other = Root::of(layout);
    let mut c = join(&other, BOUND, "a");
    pour(&mut c, 0..3);
    c.tier.compact();
    c.tier.compact();
    drop(c);
    for model in ["a", "b"] {
        let root = Root::of(layout);
        let mut a = join(&root, BOUND, "a");
        pour(&mut a, 0..3);
        drop(a);
        let old = journals(&root).pop().unwrap();
        let bytes = fs::read(&old).unwrap();
        let mut a = join(&root, BOUND, "a");
        pour(&mut a, 3..200);
        drop(a);
        for p in files(&root.path().join(".kvweir")) {
            let name = p.file_name().unwrap().to_string_lossy().into_owned();
            if name.starts_with("journal-") || name.starts_with("snapshot-") {
                fs::remove_file(p).unwrap();
            }
        }
        if model == "a" {
            fs::write(&old, &bytes).unwrap();
        } else {
            for p in files(&other.path().join(".kvweir")) {
                let name = p.file_name().unwrap().to_string_lossy().into_owned();
                if name.starts_with("journal-") || name.starts_with("snapshot-") {
                    fs::copy(&p, root.path().join(".kvweir").join(name)).unwrap();
                }
            }
        }
        opens_and_stores(&root, "a", "replaced");
        opens_and_stores(&root, model, "replaced, the next");
    }
}

/// A ledger that an older version wrote tells nothing of journals: they are believed as they were.
fn a_ledger_without_marks_is_taken_as_it_was(layout: Layout) {
    let root = Root::of(layout);
    let mut a = join(&root, BOUND, "a");
    assert_eq!(pour(&mut a, 0..40), 40);
    drop(a);
    let ledger = root.path().join(".kvweir/ledger");
    let mut bytes = fs::read(&ledger).unwrap();
    bytes[128..4096].fill(0);
    fs::write(&ledger, bytes).unwrap();
    let disk = faulty();
    disk.record();
    let mut a = client(on(&root, &disk, "a"));
    assert!(!walked(&disk, &root, "a"));
    all_ok(&a.load(R, &keys(0..40)));
    a.tier.on_request_finished(R, &[]);
    assert_settled(&mut a, &root);
}

/// It was taken for damage, and written over, beside members that the later version may have there.
fn a_ledger_of_a_later_version_is_left_alone_and_its_root_refused(layout: Layout) {
    let root = Root::of(layout);
    let mut a = join(&root, BOUND, "a");
    assert_eq!(pour(&mut a, 0..20), 20);
    drop(a);
    let path = root.path().join(".kvweir/ledger");
    let mut bytes = fs::read(&path).unwrap();
    let today = bytes.clone();
    bytes[8] += 1;
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes[..120]);
    bytes[120..128].copy_from_slice(&sum.to_le_bytes());
    fs::write(&path, &bytes).unwrap();
    let before = files(&root.path());

    let unbounded = FsSettings {
        max_bytes: None,
        layout: Layout::Fs,
        ..root.settings(BOUND)
    };
    for settings in [root.settings(BOUND), unbounded] {
        let e = FsBuilder::new(settings, ns("a"), LEN).open().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
        let text = e.to_string();
        assert!(
            text.contains("version 2") && text.contains("later version of kvweir"),
            "{text}"
        );
    }
    let admin = Admin::new(root.path()).unwrap();
    let e = admin.claim().map(drop).unwrap_err();
    assert!(e.to_string().contains("later version of kvweir"), "{e}");
    assert_eq!(admin.inspect().unwrap().ledger.state, LedgerState::Newer);
    let v = admin.verify(&VerifyOptions::default(), &|_| {}).unwrap();
    assert_eq!(
        v.findings.iter().map(|f| f.fault).collect::<Vec<_>>(),
        [AdminFault::NewerFormat]
    );
    assert_eq!(
        (fs::read(&path).unwrap(), files(&root.path())),
        (bytes.clone(), before)
    );

    // a version that is none: the header's sum is not right
    bytes[9] ^= 1;
    fs::write(&path, &bytes).unwrap();
    let mut a = join(&root, BOUND, "a");
    all_ok(&a.load(R, &keys(0..20)));
    a.tier.on_request_finished(R, &[]);
    drop(a);
    fs::write(&path, &today).unwrap();
    let mut a = join(&root, BOUND, "a");
    assert!(keys(0..20).iter().all(|k| a.holds(k)));
    assert_settled(&mut a, &root);
}

/// Whatever numbers a ledger tells, with the right sums: nobody panics, and the bound holds.
fn absurd_numbers_in_a_whole_ledger_break_nothing(layout: Layout) {
    let root = Root::of(layout);
    let mut a = join(&root, BOUND, "a");
    assert_eq!(pour(&mut a, 0..20), 20);
    drop(a);
    let path = root.path().join(".kvweir/ledger");
    let summed = |bytes: &mut [u8], record: usize| {
        let sum = xxhash_rust::xxh3::xxh3_64(&bytes[record..record + 120]);
        bytes[record + 120..record + 128].copy_from_slice(&sum.to_le_bytes());
    };
    // common and deep of the root; lease, held and want of two members that are dead
    for (at, members) in [(24, 0), (48, 0), (8, 2), (16, 2), (24, 2)] {
        drop(join(&root, BOUND, "a"));
        let mut bytes = fs::read(&path).unwrap();
        let records: Vec<usize> = match members {
            0 => vec![0],
            n => (10..10 + n).map(|m| 4096 + 128 * m).collect(),
        };
        for &r in &records {
            if members > 0 {
                bytes[r] = 1;
            }
            bytes[r + at..r + at + 8].copy_from_slice(&(u64::MAX - 3).to_le_bytes());
            summed(&mut bytes, r);
        }
        fs::write(&path, &bytes).unwrap();
        let tier = FsBuilder::new(root.settings(BOUND), ns("a"), LEN)
            .walk_patience(std::time::Duration::from_secs(60))
            .open();
        // whoever cannot be given room is told so
        if let Ok(tier) = tier {
            let mut c = kvweir::tier::conformance::Client::new(Box::new(tier), 64, LEN);
            for k in keys(20..60) {
                c.store(R, std::slice::from_ref(&k));
            }
            assert!(root.du() <= BOUND, "{at} {members}");
            drop(c);
        }
        root.forget_journal();
    }
}

in_both_layouts! {
    absurd_numbers_in_a_whole_ledger_break_nothing,
    a_ledger_of_a_later_version_is_left_alone_and_its_root_refused,
    one_unusable_journal_of_a_dead_model_keeps_nobody_out,
    a_damaged_journal_of_another_costs_the_owner_of_a_whole_one_nothing,
    a_journal_that_cannot_be_read_once_is_read_again,
    without_file_descriptors_a_start_fails_and_gives_nothing_up,
    a_journal_that_is_shorter_than_its_ledger_says_is_not_believed,
    a_journal_of_another_root_or_of_an_earlier_day_is_not_believed,
    a_ledger_without_marks_is_taken_as_it_was,
}

/// `set_len(1 << 36)` on a journal: 36 GB were reserved for the blocks that so long a file might tell of, and the
/// process was aborted.
#[test]
fn a_sparse_journal_reserves_no_memory_for_what_it_does_not_tell() {
    let root = Root::new();
    let mut a = join(&root, BOUND, "a");
    assert_eq!(pour(&mut a, 0..40), 40);
    drop(a);
    let journal = journals(&root).pop().unwrap();
    let file = fs::OpenOptions::new().write(true).open(&journal).unwrap();
    file.set_len(1 << 42).unwrap();
    let mut a = join(&root, BOUND, "a");
    all_ok(&a.load(R, &keys(0..40)));
    a.tier.on_request_finished(R, &[]);
    assert_settled(&mut a, &root);
}
