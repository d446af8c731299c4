//! A claim keeps engines out, and whatever changed a root leaves it so that the next start is exact.

use std::{fs, path::Path, sync::Arc, time::Duration};

use kvweir::{
    ErrorKind,
    admin::{Admin, Claim, GcOptions, ImportOptions, LedgerState, VerifyOptions},
    fs::FsBuilder,
    io::fault::{Fault as Planned, Op, Rule},
    tier::conformance::key,
};

use super::{BOUND, admin, age, made, stock};
use crate::support::{
    LEN, Root, assert_settled, builder, client, du, faulty, file_of, keys, ns, pause, store,
};

fn journals(root: &Root) -> usize {
    fs::read_dir(root.path().join(".kvweir")).map_or(0, |d| {
        d.flatten()
            .filter(|e| {
                let name = e.file_name().to_string_lossy().into_owned();
                name.starts_with("journal-") || name.starts_with("snapshot-")
            })
            .count()
    })
}

fn ledger(root: &Root) -> Vec<u8> {
    fs::read(root.path().join(".kvweir/ledger")).unwrap()
}

/// A copy of a root as it is now, whatever its engine does: what a kill would leave.
fn as_if_killed(root: &Root) -> Root {
    let copy = Root::new();
    let done = std::process::Command::new("cp")
        .arg("-a")
        .args([root.path(), copy.path()])
        .status();
    assert!(done.unwrap().success());
    copy
}

#[test]
fn an_engine_that_opens_beside_a_claim_waits_and_is_told_what_holds_the_root() {
    let (root, _) = made(5);
    let claim = admin(&root).claim().unwrap();
    let refused = FsBuilder::new(root.settings(BOUND), ns("model"), LEN)
        .open()
        .unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Busy);
    assert!(
        refused.to_string().contains("an operator command")
            && refused.to_string().contains("another process"),
        "{refused}"
    );
    let second = admin(&root).claim().unwrap_err();
    assert_eq!(second.kind(), ErrorKind::Busy);
    assert!(
        second.to_string().contains("another operator command"),
        "{second}"
    );
    assert!(admin(&root).inspect().unwrap().ledger.claimed);
    let beside = admin(&root).verify(&VerifyOptions::default(), &|_| {}).unwrap();
    assert!(beside.journals.why_not.unwrap().contains("operator command"));
    // one that waits has it as soon as the claim goes
    std::thread::scope(|s| {
        let opens = s.spawn(|| root.open(BOUND).holds(&key(3)));
        pause(500);
        drop(claim);
        assert!(opens.join().unwrap());
    });
}

#[test]
fn a_claim_that_changes_nothing_leaves_journals_and_ledger_as_they_are() {
    let (root, _) = made(20);
    let before = ledger(&root);
    let admin = admin(&root);
    let claim = admin.claim().unwrap();
    let own = VerifyOptions {
        claim: Some(&claim),
        ..VerifyOptions::default()
    };
    let report = admin.verify(&own, &|_| {}).unwrap();
    assert!(report.journals.compared && report.is_clean(), "{report:?}");
    assert!(!admin.repair(&report, Some(&claim)).unwrap().next_start_walks);
    assert!(admin.trim(BOUND, Some(&claim)).unwrap().is_reached());
    let no_shm = GcOptions {
        shm: None,
        ..GcOptions::default()
    };
    admin.gc(&no_shm, Some(&claim)).unwrap();
    admin
        .import(None, &ImportOptions::default(), &|_| {}, Some(&claim))
        .unwrap();
    drop(claim);
    assert_eq!((ledger(&root), journals(&root)), (before, 1));
}

/// What changes a root.
type Change = (&'static str, fn(&Admin, &Claim));

const CHANGES: [Change; 5] = [
    ("trim", |a, c| {
        let t = a.trim(du(a.root()) / 2, Some(c)).unwrap();
        assert!(
            t.is_reached() && t.blocks.files > 0 && t.journal_bytes > 0,
            "{t:?}"
        );
    }),
    ("repair", |a, c| {
        let found = a.verify(&VerifyOptions::default(), &|_| {}).unwrap();
        let r = a.repair(&found, Some(c)).unwrap();
        assert!(r.files.files == 1 && r.next_start_walks, "{r:?}");
    }),
    ("gc", |a, c| {
        let hour = GcOptions {
            older_than: Some(Duration::from_secs(3600)),
            shm: None,
            ..GcOptions::default()
        };
        let g = a.gc(&hour, Some(c)).unwrap();
        assert_eq!(g.namespaces.len(), 1, "{g:?}");
    }),
    ("import in place", |a, c| {
        let i = a
            .import(None, &ImportOptions::default(), &|_| {}, Some(c))
            .unwrap();
        let n: u64 = i.namespaces.iter().map(|n| n.imported).sum();
        assert_eq!(n, 30, "{i:?}");
    }),
    ("import of another root", |a, c| {
        let from = Root::new();
        fs::create_dir(from.path()).unwrap();
        for n in 500..530 {
            stock(&from.path(), "model", &key(n));
        }
        let from = Admin::new(from.path()).unwrap();
        let i = a
            .import(Some(&from), &ImportOptions::default(), &|_| {}, Some(c))
            .unwrap();
        assert_eq!(i.namespaces[0].imported, 30, "{i:?}");
    }),
];

/// A root of two members, with an old namespace, a damaged block and blocks without trailer in it.
fn to_change() -> Root {
    let (root, dir) = made(60);
    let mut old = client(builder(root.settings(BOUND), "old", LEN));
    store(&mut old, &keys(0..30));
    drop(old);
    // 30 blocks as a stock tier would have written them, known to the journal
    for n in 0..30 {
        let f = fs::OpenOptions::new()
            .write(true)
            .open(file_of(&dir, &key(n)))
            .unwrap();
        f.set_len(LEN as u64).unwrap();
        age(&file_of(&root.path().join(ns("old").dir()), &key(n)), 7200);
    }
    fs::write(file_of(&dir, &key(40)), b"").unwrap();
    root
}

#[test]
fn after_each_command_the_next_start_counts_what_is_there_and_holds_its_bound() {
    for (what, change) in CHANGES {
        let root = to_change();
        let admin = admin(&root);
        let claim = admin.claim().unwrap();
        change(&admin, &claim);
        let left = root.du();
        drop(claim);
        assert_eq!(journals(&root), 0, "{what}");
        assert!(ledger(&root).iter().all(|&b| b == 0), "{what}");
        assert_eq!(admin.inspect().unwrap().ledger.state, LedgerState::None, "{what}");
        // the very size: the new journal has to find room
        let mut c = root.open(left);
        assert_settled(&mut c, &root);
        assert!(root.du() <= left, "{what}: {} of {left}", root.du());
        store(&mut c, &keys(1000..1020));
        assert_settled(&mut c, &root);
        assert!(root.du() <= left, "{what}: {} of {left}", root.du());
        drop(c);
        let after = admin.verify(&VerifyOptions::default(), &|_| {}).unwrap();
        let of_journals = after.findings.iter().filter(|f| f.fault.is_of_journals()).count();
        assert!(after.journals.compared && of_journals == 0, "{what}: {after:?}");
    }
}

#[test]
fn a_command_that_is_killed_at_its_first_removal_has_given_the_journals_up_already() {
    let (root, _) = made(50);
    let disk = faulty();
    disk.add(Rule::new(Op::Remove, Planned::Errno(5)).path(".bin"));
    let a = admin(&root).disk(Arc::new(disk));
    let claim = a.claim().unwrap();
    let t = a.trim(0, Some(&claim)).unwrap();
    assert_eq!((t.failed.len(), journals(&root)), (50, 0));
    assert!(ledger(&root).iter().all(|&b| b == 0));
    // and one that cannot give them up changes nothing
    let (root, _) = made(50);
    let disk = faulty();
    disk.add(Rule::new(Op::Write, Planned::Errno(5)).path("ledger"));
    let a = admin(&root).disk(Arc::new(disk));
    let claim = a.claim().unwrap();
    a.trim(0, Some(&claim)).unwrap_err();
    drop(claim);
    let mut c = root.open(BOUND);
    assert!((0..50).all(|n| c.holds(&key(n))));
    assert_settled(&mut c, &root);
}

#[test]
fn the_ledger_of_an_engine_that_was_killed_is_no_hindrance() {
    let root = Root::new();
    let mut c = root.open(BOUND);
    store(&mut c, &keys(0..60));
    let killed = as_if_killed(&root);
    drop(c);
    let a = admin(&killed);
    let i = a.inspect().unwrap();
    let m = &i.members[0];
    assert_eq!((m.holder.live, m.ended_in_order), (Some(false), Some(false)));
    assert_eq!(m.holder.pid, Some(std::process::id()));
    let v = a.verify(&VerifyOptions::default(), &|_| {}).unwrap();
    assert!(v.journals.compared && v.is_clean(), "{v:?}");
    assert_eq!(v.journals.blocks, 60);
    let to = killed.du() / 2;
    let claim = a.claim().unwrap();
    assert!(a.trim(to, Some(&claim)).unwrap().is_reached());
    drop(claim);
    let mut c = killed.open(to);
    assert_settled(&mut c, &killed);
    assert!(killed.du() <= to);
}

#[test]
fn a_claim_of_a_directory_without_engines_leaves_an_empty_ledger_that_the_first_engine_takes() {
    let root = Root::new();
    fs::create_dir(root.path()).unwrap();
    for n in 0..10 {
        stock(&root.path(), "model", &key(n));
    }
    assert!(!Path::new(&root.path().join(".kvweir")).exists());
    let a = admin(&root);
    a.require_idle().unwrap();
    assert!(!root.path().join(".kvweir").exists(), "looking makes nothing");
    let claim = a.claim().unwrap();
    a.import(None, &ImportOptions::default(), &|_| {}, Some(&claim))
        .unwrap();
    drop(claim);
    assert_eq!(ledger(&root), b"");
    let mut c = root.open(BOUND);
    assert!((0..10).all(|n| c.holds(&key(n))));
    assert_settled(&mut c, &root);
}
