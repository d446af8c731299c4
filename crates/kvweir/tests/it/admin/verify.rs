//! Every planted fault is found and nothing else; repair removes just those.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    sync::Arc,
};

use kvweir::{
    admin::{Fault, Verification, VerifyOptions},
    fs::FsBuilder,
    io::fault::{Fault as Planned, Op, Rule},
    tier::conformance::{key, long_key},
};

use super::{BOUND, admin, made, stock, verify};
use crate::support::{
    FILE, LEN, R, Root, all_ok, client, cut, faulty, file_of, files, flip, keys, ns, store,
};

const EACH: u64 = 100;

/// What is wrong, and where below the root.
type Planted = BTreeSet<(Fault, String)>;

/// A root with blocks of two models, one of which is to be harmed; the directories of both.
fn field() -> (Root, PathBuf, PathBuf) {
    let root = Root::new();
    let mut other = client(FsBuilder::new(root.settings(BOUND), ns("other"), LEN));
    store(&mut other, &keys(3 * EACH..4 * EACH));
    let other_dir = other.tier.namespace_dir().to_owned();
    drop(other);
    let mut c = root.open(BOUND);
    store(&mut c, &keys(0..6 * EACH));
    store(&mut c, &keys(1000..1800));
    all_ok(&c.store(R, &[long_key(1, 200), long_key(2, 3)]));
    let dir = root
        .path()
        .canonicalize()
        .unwrap()
        .join(c.tier.namespace_dir().file_name().unwrap());
    (root, dir, other_dir)
}

/// A hundred faults of each kind in `dir`, a namespace of `root`.
fn plant_all(root: &Root, dir: &Path, other_dir: &Path) -> Planted {
    let mut planted = Planted::new();
    let mut plant = |fault: Fault, path: &Path| {
        let path = path.strip_prefix(root.path().canonicalize().unwrap()).unwrap();
        planted.insert((fault, path.display().to_string()));
    };
    let len = LEN as u64;
    let good = |n: u64| file_of(dir, &key(1000 + n));
    for n in 0..EACH {
        let of = |kind: u64| file_of(dir, &key(kind * EACH + n));
        flip(&of(0), len + [0, 12, 16, 24, 40, 80, 400, 4090][n as usize % 8]);
        plant(Fault::DamagedTrailer, &of(0));
        flip(&of(1), n * 81);
        plant(Fault::DamagedPayload, &of(1));
        fs::copy(good(n), of(2)).unwrap();
        plant(Fault::WrongKey, &of(2));
        fs::copy(file_of(other_dir, &key(3 * EACH + n)), of(3)).unwrap();
        plant(Fault::WrongNamespace, &of(3));
        cut(&of(4), [1, 4096, len - 1, len + 1, FILE - 1][n as usize % 5]);
        plant(Fault::WrongSize, &of(4));
        cut(&of(5), 0);
        plant(Fault::ZeroLength, &of(5));
        let temp = good(n).with_extension(format!("bin.{n:016x}.kvweir"));
        fs::write(&temp, b"half").unwrap();
        plant(Fault::LeftoverTemporary, &temp);
        let empty = dir.join(format!("{n:03x}/ff_g7"));
        fs::create_dir_all(&empty).unwrap();
        plant(Fault::EmptyDirectory, &empty);
    }
    planted
}

/// Just what was planted is found.
fn assert_found(report: &Verification, planted: &Planted) {
    let found: Planted = report
        .findings
        .iter()
        .map(|f| (f.fault, f.path.clone()))
        .collect();
    let none = Vec::<&(Fault, String)>::new();
    assert_eq!(found.difference(planted).collect::<Vec<_>>(), none, "not planted");
    assert_eq!(planted.difference(&found).collect::<Vec<_>>(), none, "not found");
    assert_eq!(found.len(), report.findings.len());
    assert_eq!((report.faults.len(), report.findings.len() as u64), (8, 8 * EACH));
    assert!(report.faults.values().all(|&n| n == EACH), "{:?}", report.faults);
}

#[test]
fn every_planted_fault_is_found_and_nothing_else_and_repair_removes_just_those() {
    let (root, dir, other_dir) = field();
    assert!(verify(&root).is_clean());
    let planted = plant_all(&root, &dir, &other_dir);
    let report = verify(&root);
    assert_found(&report, &planted);
    assert_eq!(
        (report.good, report.unverified, report.vanished),
        (EACH + 802, 0, 0)
    );

    let state = root.path().join(".kvweir");
    let blocks = || -> BTreeSet<PathBuf> {
        let all = files(&root.path()).into_iter();
        all.filter(|p| !p.starts_with(&state)).collect()
    };
    let before = blocks();
    let plan = admin(&root).repair(&report, None).unwrap();
    assert!(
        !plan.done && plan.files.files == 7 * EACH && plan.directories == EACH,
        "{plan:?}"
    );
    assert_eq!(before, blocks(), "nothing was removed");
    let admin = admin(&root);
    let claim = admin.claim().unwrap();
    let own = VerifyOptions {
        claim: Some(&claim),
        ..VerifyOptions::default()
    };
    let again = admin.verify(&own, &|_| {}).unwrap();
    assert_eq!(
        again.findings, report.findings,
        "our own hold of the root hides nothing"
    );
    let done = admin.repair(&report, Some(&claim)).unwrap();
    drop(claim);
    assert!(
        done.done && done.failed.is_empty() && done.files == plan.files,
        "{done:?}"
    );
    let gone: BTreeSet<_> = planted
        .iter()
        .filter(|(f, _)| *f != Fault::EmptyDirectory)
        .map(|(_, p)| root.path().join(p))
        .collect();
    let after = blocks();
    assert_eq!(before.difference(&after).cloned().collect::<BTreeSet<_>>(), gone);
    assert!(after.is_subset(&before));
    let again = verify(&root);
    assert!(again.is_clean(), "{:?}", again.findings.first());
    assert_eq!(again.good, report.good);
}

#[test]
fn a_file_that_goes_is_no_fault_and_one_that_cannot_be_read_is_one_that_stays() {
    let (root, dir) = made(40);
    let disk = faulty();
    let name = |n: u64| {
        file_of(&dir, &key(n))
            .file_name()
            .unwrap()
            .to_string_lossy()
            .into_owned()
    };
    for n in 0..5 {
        disk.add(Rule::new(Op::Open, Planned::Errno(2)).path(name(n)));
        disk.add(Rule::new(Op::Read, Planned::Errno(5)).path(name(10 + n)));
    }
    let admin = admin(&root).disk(Arc::new(disk));
    let r = admin.verify(&VerifyOptions::default(), &|_| {}).unwrap();
    assert_eq!((r.vanished, r.good, r.findings.len()), (5, 30, 5));
    assert!(
        r.findings.iter().all(|f| f.fault == Fault::Unreadable),
        "{:?}",
        r.findings
    );
    let claim = admin.claim().unwrap();
    let repaired = admin.repair(&r, Some(&claim)).unwrap();
    assert_eq!((repaired.kept, repaired.files.files), (5, 0));
    assert_eq!(verify(&root).good, 40);
}

#[test]
fn short_reads_and_refused_direct_io_change_nothing() {
    let (root, _) = made(10);
    for rule in [
        Rule::new(Op::Read, Planned::Short(4096)),
        Rule::new(Op::Open, Planned::Errno(22)).direct(),
        Rule::new(Op::Read, Planned::Errno(4)).times(3),
    ] {
        let disk = faulty();
        disk.add(rule);
        let r = admin(&root)
            .disk(Arc::new(disk))
            .verify(&VerifyOptions::default(), &|_| {});
        let r = r.unwrap();
        assert_eq!(
            (r.good, r.findings.len(), r.bytes),
            (10, 0, 10 * FILE),
            "{:?}",
            r.findings
        );
    }
}

#[test]
fn blocks_longer_than_a_read_are_summed_whole() {
    let root = Root::new();
    let len = (17 << 20) + 8192;
    let b = FsBuilder::new(root.settings(BOUND), ns("model"), len);
    let mut c = kvweir::tier::conformance::Client::new(Box::new(b.open().unwrap()), 2, len);
    all_ok(&c.store(R, &keys(0..2)));
    let dir = c.tier.namespace_dir().to_owned();
    drop(c);
    assert_eq!(verify(&root).good, 2);
    for at in [8 << 20, len as u64 - 1] {
        flip(&file_of(&dir, &key(0)), at);
        let r = verify(&root);
        assert_eq!((r.good, r.findings[0].fault), (1, Fault::DamagedPayload));
        flip(&file_of(&dir, &key(0)), at);
    }
    flip(&file_of(&dir, &key(0)), len as u64);
    assert_eq!(verify(&root).findings[0].fault, Fault::DamagedTrailer);
}

#[test]
fn stock_blocks_cannot_be_verified_and_are_no_fault_but_short_ones_are() {
    let root = Root::new();
    fs::create_dir(root.path()).unwrap();
    let all: Vec<_> = (0..20).map(|n| stock(&root.path(), "model", &key(n))).collect();
    assert_eq!(verify(&root).unverified, 20);
    cut(&all[3], 4096);
    let r = verify(&root);
    assert_eq!(
        (r.unverified, r.findings.len(), r.findings[0].fault),
        (19, 1, Fault::WrongSize)
    );
}

#[test]
fn whole_blocks_of_another_size_or_version_are_told_and_never_removed() {
    let (root, dir) = made(20);
    let big = Root::new();
    let b = FsBuilder::new(big.settings(BOUND), ns("model"), 3 * LEN);
    let mut c = kvweir::tier::conformance::Client::new(Box::new(b.open().unwrap()), 2, 3 * LEN);
    all_ok(&c.store(R, &[key(100)]));
    let to = file_of(&dir, &key(100));
    fs::create_dir_all(to.parent().unwrap()).unwrap();
    fs::copy(file_of(c.tier.namespace_dir(), &key(100)), &to).unwrap();
    let newer = file_of(&dir, &key(7));
    let mut bytes = fs::read(&newer).unwrap();
    bytes[LEN + 8] = 2;
    let sum = xxhash_rust::xxh3::xxh3_64(&bytes[LEN..LEN + 4088]);
    bytes[LEN + 4088..].copy_from_slice(&sum.to_le_bytes());
    fs::write(&newer, bytes).unwrap();
    let r = verify(&root);
    let faults: Vec<_> = r.findings.iter().map(|f| f.fault).collect();
    let told = [Fault::OtherSize, Fault::NewerFormat, Fault::NotInJournal];
    assert_eq!((r.good, &faults[..]), (19, &told[..]));
    let admin = admin(&root);
    let claim = admin.claim().unwrap();
    assert_eq!(admin.repair(&r, Some(&claim)).unwrap().kept, 2);
    assert!(to.exists() && newer.exists());
}

#[test]
fn one_namespace_can_be_chosen_and_one_that_is_not_there_is_refused() {
    let (root, dir) = made(10);
    let mut other = client(FsBuilder::new(root.settings(BOUND), ns("other"), LEN));
    store(&mut other, &keys(0..4));
    drop(other);
    flip(&file_of(&dir, &key(1)), 9);
    fn only(name: &str) -> VerifyOptions<'_> {
        VerifyOptions {
            namespace: Some(name),
            claim: None,
        }
    }
    let admin = admin(&root).threads(1);
    let r = admin.verify(&only(ns("other").dir()), &|_| {}).unwrap();
    assert_eq!((r.good, r.findings.len()), (4, 0));
    let r = admin.verify(&only(ns("model").dir()), &|_| {}).unwrap();
    assert_eq!((r.good, r.findings.len()), (9, 1));
    assert!(admin.verify(&only("none_0123456789ab_r0"), &|_| {}).is_err());
}

#[test]
fn a_temporary_that_a_live_writer_holds_is_no_leftover() {
    let (root, dir) = made(5);
    let temp = file_of(&dir, &key(1)).with_extension("bin.00000000000000aa.kvweir");
    let f = fs::File::create(&temp).unwrap();
    f.lock().unwrap();
    let r = verify(&root);
    assert_eq!((r.being_written, r.findings.len()), (1, 0));
    drop(f);
    assert_eq!(verify(&root).faults["leftover_temporary"], 1);
}
