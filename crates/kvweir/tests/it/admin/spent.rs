//! With 8 file descriptors `verify` once told of 4,206 unreadable blocks, and `convert` budgeted a tree that it could
//! not list. Where file descriptors or memory run out, at whatever call, a command ends with that error: nothing is
//! judged, and nothing goes for what was not seen.

use std::{collections::BTreeSet, path::PathBuf, sync::Arc, time::Duration};

use kvweir::{
    ErrorKind, Result,
    admin::{Admin, ConvertOptions, Fault, GcOptions, ImportOptions, VerifyOptions},
    fs::Layout,
    io::fault::{Fault as Met, FaultDisk, Op, Rule},
    tier::conformance::key,
};

use super::{BOUND, made, packed::open, stock};
use crate::support::{Root, all_ok, extents, faulty, file_of, files, keys, ns};

const EIO: i32 = 5;

/// Blocks in files, in slots, and of a stock tier, and a leftover.
fn mixed() -> Root {
    let (root, dir) = made(6);
    let mut c = open(&root, BOUND, Layout::Pack, "other");
    all_ok(&c.store(crate::support::R, &keys(0..6)));
    drop(c);
    for n in 0..3 {
        stock(&root.path(), "stock", &key(n));
    }
    let temp = file_of(&dir, &key(0)).with_extension("bin.00000000000000aa.kvweir");
    std::fs::write(temp, b"x").unwrap();
    root
}

fn admin(root: &Root) -> (Admin, FaultDisk) {
    let disk = faulty();
    let admin = Admin::new(root.path()).unwrap();
    (admin.disk(Arc::new(disk.clone())).threads(1), disk)
}

/// All files but those that a claim gives up.
fn there(root: &Root) -> BTreeSet<PathBuf> {
    let mut all = files(&root.path());
    all.retain(|p| !p.starts_with(root.path().join(".kvweir")));
    all.into_iter().collect()
}

type Command = (&'static str, fn(&Admin) -> Result<()>);

/// Commands that change nothing on this root, some of them with the right to.
const COMMANDS: [Command; 8] = [
    ("inspect", |a| a.inspect().map(|_| ())),
    ("doctor", |a| a.doctor().map(|_| ())),
    ("verify", |a| {
        a.verify(&VerifyOptions::default(), &|_| {}).map(|r| {
            // blocks of the stock tier came behind the engines' backs
            let mut all: Vec<_> = r.findings.iter().map(|f| f.fault).collect();
            all.retain(|f| *f != Fault::NotInJournal);
            assert_eq!(all, [Fault::LeftoverTemporary]);
        })
    }),
    ("trim", |a| a.trim(BOUND, Some(&a.claim()?)).map(|_| ())),
    ("trim, a plan", |a| a.trim(0, None).map(|_| ())),
    ("gc", |a| {
        let options = GcOptions {
            older_than: Some(Duration::from_secs(3600)),
            shm: None,
            ..GcOptions::default()
        };
        a.gc(&options, Some(&a.claim()?)).map(|_| ())
    }),
    ("convert, a plan", |a| {
        let options = ConvertOptions {
            to: Layout::Pack,
            namespace: None,
            max_bytes: Some(BOUND),
        };
        a.convert(&options, &|_| {}, None).map(|_| ())
    }),
    ("import, a plan", |a| {
        a.import(None, &ImportOptions::default(), &|_| {}, None)
            .map(|_| ())
    }),
];

#[test]
fn whichever_call_finds_no_descriptor_or_memory_the_command_ends_with_that() {
    let root = mixed();
    let before = there(&root);
    for (name, run) in COMMANDS {
        let (a, disk) = admin(&root);
        run(&a).unwrap_or_else(|e| panic!("{name}: {e}"));
        let calls = disk.calls();
        assert!(calls > 20, "{name}: {calls} calls");
        for (n, errno) in (0..calls).zip([24, 12, 23].into_iter().cycle()) {
            let (a, disk) = admin(&root);
            disk.add(Rule::nth(n, Met::Errno(errno)));
            let told = run(&a).expect_err(name);
            assert_eq!(told.errno(), Some(errno), "{name}, call {n}: {told}");
            assert_eq!(there(&root), before, "{name}, call {n}");
        }
    }
}

#[test]
fn a_repair_by_what_was_seen_removes_nothing_when_descriptors_run_out() {
    let root = mixed();
    let before = there(&root);
    let (a, disk) = admin(&root);
    let claim = a.claim().unwrap();
    let options = VerifyOptions {
        claim: Some(&claim),
        ..VerifyOptions::default()
    };
    disk.add(Rule::new(Op::Open, Met::Errno(24)).path(".bin"));
    assert_eq!(
        a.verify(&options, &|_| {}).unwrap_err().errno(),
        Some(24),
        "none of these blocks is called unreadable"
    );
    assert_eq!(there(&root), before);
}

#[test]
fn a_root_of_which_part_cannot_be_read_is_neither_trimmed_nor_converted() {
    let root = mixed();
    let before = there(&root);
    let (a, disk) = admin(&root);
    let leaf = file_of(&root.path().join(ns("model").dir()), &key(1));
    let leaf = leaf.parent().unwrap().to_str().unwrap().to_owned();
    disk.add(Rule::new(Op::List, Met::Errno(EIO)).path(leaf));
    let claim = a.claim().unwrap();
    let options = ConvertOptions {
        to: Layout::Fs,
        namespace: None,
        max_bytes: Some(BOUND),
    };
    let refused = [
        a.trim(0, Some(&claim)).unwrap_err(),
        a.convert(&options, &|_| {}, Some(&claim)).unwrap_err(),
    ];
    for e in refused {
        assert_eq!(e.kind(), ErrorKind::Unavailable, "{e}");
        assert!(e.to_string().contains("could not be read"), "{e}");
    }
    // its newest block may lie there
    let options = GcOptions {
        older_than: Some(Duration::ZERO),
        shm: None,
        grace: Duration::from_secs(3600),
        ..GcOptions::default()
    };
    let r = a.gc(&options, Some(&claim)).unwrap();
    assert!(r.failed.iter().any(|f| f.contains("stays")), "{:?}", r.failed);
    let model = root.path().join(ns("model").dir());
    let kept = |all: &BTreeSet<PathBuf>| all.iter().filter(|p| p.starts_with(&model)).count();
    assert_eq!(kept(&there(&root)), kept(&before));
    assert_eq!(r.namespaces.len(), 2, "the others are out of use");
}

#[test]
fn an_extent_that_cannot_be_read_is_not_the_first_to_go() {
    let root = mixed();
    let (a, disk) = admin(&root);
    let table = extents(&root.path()).remove(0);
    let name = table.file_name().unwrap().to_str().unwrap().to_owned();
    disk.add(Rule::new(Op::Read, Met::Errno(EIO)).path(name));
    let claim = a.claim().unwrap();
    let r = a.trim(0, Some(&claim)).unwrap();
    assert!(table.exists() && !r.failed.is_empty() && !r.is_reached(), "{r:?}");
    assert_eq!(r.blocks.files, 9);
}
