//! What operators do beside engines, on roots that real tiers made.

mod claim;
mod convert;
mod copies;
mod gc;
mod import;
mod journals;
mod matrix;
mod packed;
mod spent;
mod verify;
mod weights;

use std::{
    fs,
    path::Path,
    time::{Duration, SystemTime},
};

use kvweir::{
    ErrorKind, Key,
    admin::{Admin, Level, Verification, VerifyOptions, Writer},
    tier::conformance::{content, key},
};

use crate::support::{FILE, LEN, Root, du, file_of, keys, ns, store};

const BOUND: u64 = 256 << 20;

/// A root with blocks `0..n` of the model, closed.
fn made(n: u64) -> (Root, std::path::PathBuf) {
    let root = Root::new();
    let mut c = root.open(BOUND);
    store(&mut c, &keys(0..n));
    let dir = c.tier.namespace_dir().to_owned();
    (root, dir)
}

fn admin(root: &Root) -> Admin {
    Admin::new(root.path()).unwrap()
}

fn verify(root: &Root) -> Verification {
    admin(root).verify(&VerifyOptions::default(), &|_| {}).unwrap()
}

/// Makes a file look this old.
fn age(path: &Path, seconds: u64) {
    let at = fs::metadata(path).unwrap().modified().unwrap() - Duration::from_secs(seconds);
    set_time(path, at);
}

fn set_time(path: &Path, at: SystemTime) {
    fs::File::open(path).unwrap().set_modified(at).unwrap();
}

/// A block as a stock tier writes it, and the identity beside.
fn stock(root: &Path, model: &str, k: &Key) -> std::path::PathBuf {
    let ns = ns(model);
    let file = file_of(&root.join(ns.dir()), k);
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    fs::write(&file, content(k, LEN)).unwrap();
    let config = root.join(ns.config_dir());
    fs::create_dir_all(&config).unwrap();
    let fields: serde_json::Value = serde_json::from_str(ns.config()).unwrap();
    fs::write(config.join("config.json"), format!("{fields:#}")).unwrap();
    file
}

#[test]
fn inspect_counts_what_du_counts_and_tells_whose_it_is() {
    let (root, dir) = made(20);
    for n in 100..105 {
        stock(&root.path(), "stock", &key(n));
    }
    // a block of a stock tier in a namespace of ours
    stock(&root.path(), "model", &key(200));
    fs::write(root.path().join("notes.txt"), b"x").unwrap();
    fs::create_dir(root.path().join(".kvweir/sub")).unwrap();
    fs::write(root.path().join(".kvweir/sub/journal"), vec![1; 9000]).unwrap();
    let oldest = file_of(&dir, &key(3));
    age(&oldest, 7200);
    fs::write(oldest.with_extension("bin.00000000000000aa.kvweir"), b"x").unwrap();
    let r = admin(&root).inspect().unwrap();
    assert_eq!(r.bytes, root.du());
    assert_eq!((r.blocks.files, r.temporaries.files, r.foreign.files), (26, 1, 1));
    assert_eq!(r.foreign_examples, ["notes.txt"]);
    assert_eq!(r.unreadable, [""; 0]);
    let [ours, theirs] = &r.namespaces[..] else {
        panic!("{:?}", r.namespaces)
    };
    assert_eq!(
        (ours.directory.as_str(), ours.written_by),
        (ns("model").dir(), Writer::Both)
    );
    assert_eq!(
        (ours.with_trailer, ours.without_trailer, ours.other_length),
        (20, 1, 0)
    );
    assert_eq!(
        (ours.block_bytes, ours.files_by_length[&FILE]),
        (Some(LEN as u64), 20)
    );
    assert_eq!(ours.identity.as_ref().unwrap()["model_name"], "model");
    assert_eq!(ours.trailer_versions["1"], 20);
    assert!(ours.oldest_s.unwrap() >= 7200 && ours.median_s.unwrap() < 3600);
    assert_eq!((theirs.written_by, theirs.without_trailer), (Writer::Stock, 5));
    let m = &r.members[0];
    let h = &m.holder;
    assert_eq!((h.pid, h.live), (Some(std::process::id()), Some(false)));
    assert_eq!(m.namespace.as_deref(), Some(ns("model").dir()));
}

#[test]
fn beside_a_live_tier_looking_is_allowed_and_changing_is_refused_with_its_name() {
    let root = Root::new();
    let mut c = root.open(BOUND);
    store(&mut c, &keys(0..10));
    let admin = admin(&root);
    let r = admin.inspect().unwrap();
    assert_eq!((r.members[0].holder.live, r.blocks.files), (Some(true), 10));
    let v = admin.verify(&Default::default(), &|_| {}).unwrap();
    assert!(v.is_clean() && !v.journals.compared, "{v:?}");
    let why = v.journals.why_not.unwrap();
    assert!(why.contains("uses the root and writes its journal"), "{why}");
    for refused in [admin.claim().unwrap_err(), admin.require_idle().unwrap_err()] {
        assert_eq!(refused.kind(), ErrorKind::Busy);
        let me = format!("pid {} on ", std::process::id());
        assert!(refused.to_string().contains(&me), "{refused}");
    }
    drop(c);
    admin.claim().unwrap();
}

#[test]
fn a_lock_that_the_ledger_does_not_tell_of_holds_the_root_too() {
    let (root, _) = made(1);
    let path = root.path().join(".kvweir/member-07.lock");
    fs::write(&path, "").unwrap();
    let lock = fs::File::open(&path).unwrap();
    lock.lock().unwrap();
    let admin = admin(&root);
    for ledger in [
        fs::read(root.path().join(".kvweir/ledger")).unwrap(),
        vec![7; 12288],
    ] {
        fs::write(root.path().join(".kvweir/ledger"), ledger).unwrap();
        let refused = admin.claim().unwrap_err();
        assert!(
            refused
                .to_string()
                .contains("a process that the ledger does not tell")
                && refused.to_string().contains("member-07.lock"),
            "{refused}"
        );
        let h = admin.holders().unwrap().pop().unwrap();
        assert_eq!((h.number, h.pid, h.live), (7, None, Some(true)));
    }
    drop(lock);
    assert_eq!(
        admin.holders().unwrap(),
        [],
        "the dead of a damaged ledger are not known"
    );
    admin.claim().unwrap();
}

#[test]
fn trim_removes_the_oldest_first_and_ends_at_or_below_the_size_as_du_counts() {
    let (root, dir) = made(200);
    for n in 0..200 {
        age(&file_of(&dir, &key(n)), 10_000 - n * 10);
    }
    let admin = admin(&root);
    let before = root.du();
    let to = before / 3;
    let plan = admin.trim(to, None).unwrap();
    assert_eq!((plan.done, root.du(), plan.before_bytes), (false, before, before));
    assert!(plan.is_reached());
    let claim = admin.claim().unwrap();
    let t = admin.trim(to, Some(&claim)).unwrap();
    assert!(t.done && t.is_reached() && t.failed.is_empty(), "{t:?}");
    assert_eq!(t.after_bytes, root.du());
    assert_eq!(
        (plan.after_bytes, plan.blocks, plan.directories),
        (t.after_bytes, t.blocks, t.directories)
    );
    assert!(
        root.du() <= to && root.du() > to - 64 * 1024,
        "{} of {to}",
        root.du()
    );
    let left: Vec<u64> = (0..200).filter(|&n| file_of(&dir, &key(n)).exists()).collect();
    assert_eq!(
        left,
        (200 - left.len() as u64..200).collect::<Vec<_>>(),
        "the newest stay"
    );
    assert_eq!(t.blocks.files + left.len() as u64, 200);
    assert!(t.directories > 100, "emptied directories go: {t:?}");
    let low = admin.trim(0, Some(&claim)).unwrap();
    assert!(
        !low.is_reached() && low.after_bytes == root.du(),
        "the root itself stays"
    );
    drop(claim);
    let mut c = root.open(BOUND);
    store(&mut c, &keys(0..3));
    crate::support::assert_settled(&mut c, &root);
}

#[test]
fn trim_says_what_it_could_not_remove() {
    use kvweir::io::{
        OsDisk,
        fault::{Fault, FaultDisk, Op, Rule},
    };
    let (root, dir) = made(20);
    let stuck = file_of(&dir, &key(0));
    age(&stuck, 10_000);
    let disk = FaultDisk::new(std::sync::Arc::new(OsDisk));
    let name = stuck.file_name().unwrap().to_string_lossy().into_owned();
    disk.add(Rule::new(Op::Remove, Fault::Errno(5)).path(name));
    let admin = admin(&root).disk(std::sync::Arc::new(disk));
    let claim = admin.claim().unwrap();
    let t = admin.trim(root.du() / 2, Some(&claim)).unwrap();
    assert_eq!(t.failed.len(), 1);
    assert!(t.is_reached() && root.du() <= t.to_bytes && stuck.exists());
}

#[test]
fn doctor_finds_what_is_open_to_others_and_every_check_that_is_not_well_says_what_to_do() {
    use std::os::unix::fs::PermissionsExt;
    let (root, dir) = made(5);
    let admin = admin(&root);
    let level = |what: &str| {
        let d = admin.doctor().unwrap();
        for c in &d.checks {
            assert_eq!(c.advice.is_empty(), c.level == Level::Ok, "{c:?}");
            assert!(!c.found.is_empty(), "{c:?}");
        }
        d.checks.iter().find(|c| c.what == what).unwrap().level
    };
    for what in ["root", "file modes", "clock", "holder"] {
        assert_eq!(level(what), Level::Ok, "{what}");
    }
    for what in [
        "file system",
        "mount options",
        "direct I/O",
        "layout",
        "space",
        "inodes",
        "io_uring",
        "open files",
        "locked memory",
        "memory of the cgroup",
        "CPUs",
        "/dev/shm",
        "quota",
    ] {
        level(what);
    }
    let mode = |path: &Path, mode| fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    mode(&root.path(), 0o755);
    assert_eq!(level("root"), Level::Warn);
    mode(&root.path(), 0o777);
    assert_eq!(level("root"), Level::Bad);
    mode(&root.path(), 0o700);
    let file = file_of(&dir, &key(0));
    mode(&file, 0o644);
    assert_eq!(level("file modes"), Level::Warn);
    mode(&file, 0o600);
    set_time(&file, SystemTime::UNIX_EPOCH + Duration::from_secs(4_000_000_000));
    assert_eq!(level("clock"), Level::Warn);
    let before = du(&root.path());
    level("root");
    assert_eq!(du(&root.path()), before, "nothing is left behind");
}
