//! Blocks of a stock tier get trailers: kvweir serves them checked, stock readers read on, a crash loses nothing.

use std::{collections::BTreeMap, fs, path::PathBuf, sync::Arc};

use kvweir::{
    ErrorKind,
    admin::{Admin, ImportOptions, Imported},
    io::fault::{Fault, Op, Rule},
    tier::{
        BlockOutcome, Tier, Verified,
        conformance::{content, key},
    },
};

use super::{BOUND, admin, age, stock};
use crate::support::{FILE, LEN, R, Root, assert_settled, faulty, file_of, files, ns, temps};

const N: u64 = 40;

fn stock_root() -> Root {
    let root = Root::new();
    fs::create_dir(root.path()).unwrap();
    for n in 0..N {
        age(&stock(&root.path(), "model", &key(n)), 1000 + n);
    }
    root
}

fn import(into: &Admin, from: Option<&Admin>, options: &ImportOptions) -> kvweir::Result<Imported> {
    let claim = into.claim().unwrap();
    into.import(from, options, &|_| {}, Some(&claim))
}

/// Every file below a root: content and time.
fn snapshot(root: &Root) -> BTreeMap<PathBuf, (Vec<u8>, std::time::SystemTime)> {
    let of = |p: PathBuf| {
        let at = fs::metadata(&p).unwrap().modified().unwrap();
        let bytes = fs::read(&p).unwrap();
        (p, (bytes, at))
    };
    files(&root.path()).into_iter().map(of).collect()
}

/// kvweir serves all blocks, each compared with its checksum; a stock reader finds the same bytes first.
fn assert_served(root: &Root) {
    let mut c = root.open(BOUND);
    for n in 0..N {
        let file = file_of(c.tier.namespace_dir(), &key(n));
        let bytes = fs::read(&file).unwrap();
        assert_eq!(bytes.len() as u64, FILE);
        assert_eq!(
            bytes[..LEN],
            content(&key(n), LEN)[..],
            "what a stock reader reads"
        );
        assert!(c.lookup(&key(n), R));
        assert_eq!(c.load(R, &[key(n)]), [BlockOutcome::Loaded(Verified::Checksum)]);
    }
    c.tier.on_request_finished(R, &[]);
    assert_settled(&mut c, root);
}

#[test]
fn in_place_every_block_gets_a_trailer_keeps_its_age_and_is_served_checked() {
    let root = stock_root();
    let admin = admin(&root);
    let before = snapshot(&root);
    let plan = admin
        .import(None, &ImportOptions::default(), &|_| {}, None)
        .unwrap();
    assert_eq!(
        (plan.done, plan.namespaces[0].imported, plan.bytes),
        (false, N, 0)
    );
    assert_eq!(snapshot(&root), before, "a dry run changes nothing");
    let r = import(&admin, None, &ImportOptions::default()).unwrap();
    assert!(r.is_whole() && r.done, "{r:?}");
    assert_eq!(
        (r.namespaces[0].imported, r.namespaces[0].block_bytes),
        (N, Some(LEN as u64))
    );
    let after = snapshot(&root);
    for (path, (_, at)) in &before {
        assert_eq!(after[path].1, *at, "{path:?}");
    }
    assert_eq!(temps(&root.path()), Vec::<PathBuf>::new());
    assert!(admin.verify(&Default::default(), &|_| {}).unwrap().good == N);
    let again = import(&admin, None, &ImportOptions::default()).unwrap();
    assert_eq!(
        (again.namespaces[0].imported, again.namespaces[0].present),
        (0, N)
    );
    assert_served(&root);
}

#[test]
fn into_another_root_the_source_is_not_touched() {
    let (from, into) = (stock_root(), Root::new());
    fs::create_dir(into.path()).unwrap();
    let before = snapshot(&from);
    for imported in [N, 0] {
        let r = import(&admin(&into), Some(&admin(&from)), &ImportOptions::default()).unwrap();
        assert!(r.is_whole(), "{r:?}");
        let n = &r.namespaces[0];
        assert_eq!((n.imported, n.present), (imported, N - imported));
        assert_eq!(snapshot(&from), before);
    }
    assert_served(&into);
    // a root of ours is copied too, what is damaged in it is not
    let third = Root::new();
    fs::create_dir(third.path()).unwrap();
    let bad = file_of(&into.path().join(ns("model").dir()), &key(3));
    let mut bytes = fs::read(&bad).unwrap();
    bytes[77] ^= 1;
    fs::write(&bad, bytes).unwrap();
    let r = import(&admin(&third), Some(&admin(&into)), &ImportOptions::default()).unwrap();
    let n = &r.namespaces[0];
    assert_eq!((n.imported, n.damaged, r.is_whole()), (N - 1, 1, false));
    assert_eq!(
        admin(&third).verify(&Default::default(), &|_| {}).unwrap().good,
        N - 1
    );
}

#[test]
fn stopped_anywhere_each_file_is_the_old_or_the_new_one_and_a_second_run_completes() {
    for (op, errno) in [(Op::Rename, 5), (Op::Write, 28), (Op::Create, 28), (Op::Read, 5)] {
        let root = stock_root();
        let disk = faulty();
        // the first opens and reads are those of the survey
        disk.add(
            Rule::new(op, Fault::Errno(errno))
                .path(".bin")
                .after(20 + if op == Op::Read { N } else { 0 }),
        );
        let failing = admin(&root).disk(Arc::new(disk)).threads(1);
        let r = import(&failing, None, &ImportOptions::default()).unwrap();
        let n = &r.namespaces[0];
        assert!(
            n.imported > 0 && !r.failed.is_empty() && !r.is_whole(),
            "{op:?}: {r:?}"
        );
        assert_eq!(n.imported + r.failed.len() as u64, N, "{op:?}");
        let dir = root.path().join(ns("model").dir());
        for k in 0..N {
            let bytes = fs::read(file_of(&dir, &key(k))).unwrap();
            assert!([LEN as u64, FILE].contains(&(bytes.len() as u64)), "{op:?}");
            assert_eq!(bytes[..LEN], content(&key(k), LEN)[..], "{op:?}");
        }
        let r = import(&admin(&root), None, &ImportOptions::default()).unwrap();
        assert!(r.is_whole(), "{op:?}: {r:?}");
        assert_served(&root);
    }
}

#[test]
fn without_its_identity_or_of_another_length_nothing_is_imported() {
    let root = stock_root();
    let dir = root.path().join(ns("model").dir());
    let short = file_of(&dir, &key(1));
    fs::write(&short, vec![0; LEN - 1]).unwrap();
    // an identity of another directory, and none
    let base = root.path();
    fs::create_dir_all(base.join("x_0123456789ab_r0/001/12_g0")).unwrap();
    fs::write(base.join("x_0123456789ab_r0/001/12_g0/0011223344.bin"), b"bytes").unwrap();
    fs::create_dir_all(base.join("x_0123456789ab")).unwrap();
    fs::write(base.join("x_0123456789ab/config.json"), ns("model").config()).unwrap();
    fs::create_dir_all(base.join("y_0123456789ab_r0/001/12_g0")).unwrap();
    fs::write(base.join("y_0123456789ab_r0/001/12_g0/0011223344.bin"), b"bytes").unwrap();
    let r = import(&admin(&root), None, &ImportOptions::default()).unwrap();
    assert!(!r.is_whole() && r.failed.is_empty());
    let [model, x, y] = &r.namespaces[..] else {
        panic!("{r:?}")
    };
    assert_eq!((model.imported, model.wrong_size), (N - 1, 1));
    assert_eq!(fs::read(&short).unwrap().len(), LEN - 1);
    assert!(
        x.passed_over.as_ref().unwrap().contains("is the identity of"),
        "{x:?}"
    );
    assert!(
        y.passed_over.as_ref().unwrap().contains("no config.json"),
        "{y:?}"
    );
    let wrong = ImportOptions {
        block_bytes: Some(4096),
    };
    let other = stock_root();
    let r = import(&admin(&other), None, &wrong).unwrap();
    assert_eq!((r.namespaces[0].imported, r.namespaces[0].wrong_size), (0, N));
}

#[test]
fn a_root_that_is_held_or_has_no_room_is_refused() {
    let (from, into) = (stock_root(), Root::new());
    let c = into.open(BOUND);
    assert_eq!(admin(&into).claim().unwrap_err().kind(), ErrorKind::Busy);
    drop(c);
    let Some(small) = crate::support::Tmpfs::new("256k") else {
        println!("skipped: no tmpfs may be mounted");
        return;
    };
    let small = Admin::new(small.path()).unwrap();
    let refused = import(&small, Some(&admin(&from)), &ImportOptions::default()).unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Full, "{refused}");
}
