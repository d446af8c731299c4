//! Opening: what is found, swept, refused; who owns a root.

use std::{fs, os::unix::fs::PermissionsExt, process::Command};

use kvweir::{
    ErrorKind,
    fs::{FsBuilder, FsSettings, Layout, min_bound},
    tier::{Tier, conformance::key},
};

use crate::support::{FILE, LEN, R, Root, all_ok, assert_settled, client, file_of, files, keys, ns, store};

const BOUND: u64 = 16 << 20;

fn refused(s: FsSettings) -> kvweir::Error {
    FsBuilder::new(s, ns("model"), LEN).open().unwrap_err()
}

#[test]
fn reopening_finds_everything_with_recency_by_mtime() {
    let root = Root::new();
    let mut c = root.open(BOUND);
    store(&mut c, &keys(0..30));
    let dir = c.tier.namespace_dir().to_owned();
    drop(c);
    root.forget_journal();
    // the later the key, the older the file
    for n in 0..30 {
        let t = std::time::UNIX_EPOCH + std::time::Duration::from_secs(2_000_000 - n);
        let f = fs::File::options()
            .write(true)
            .open(file_of(&dir, &key(n)))
            .unwrap();
        f.set_modified(t).unwrap();
    }
    let mut c = root.open(BOUND);
    let s = c.tier.stats();
    assert_eq!((s.recovered_blocks, s.blocks, s.swept_files), (30, 30, 0));
    assert_eq!(c.replay_events().len(), 30);
    for k in keys(0..30) {
        assert!(c.lookup(&k, R));
    }
    all_ok(&c.load(R, &keys(0..30)));
    assert_settled(&mut c, &root);
    drop(c);
    let mut c = root.open(min_bound(LEN) + 12 * (FILE + 8192));
    let held: Vec<_> = (0..30).filter(|&n| c.holds(&key(n))).collect();
    assert!(!held.is_empty() && held == (0..held.len() as u64).collect::<Vec<_>>());
    assert_settled(&mut c, &root);
}

#[test]
fn only_our_own_leftovers_are_swept() {
    let root = Root::new();
    let mut c = root.open(BOUND);
    store(&mut c, &keys(0..5));
    let file = file_of(c.tier.namespace_dir(), &key(1));
    drop(c);
    let name = file.file_name().unwrap().to_str().unwrap();
    let beside = |n: &str| file.with_file_name(format!("{name}{n}"));
    let ours = [
        beside(".0123456789abcdef.kvweir"),
        beside(".0000000000000000.kvweir"),
    ];
    let foreign = [
        beside("_123.tmp"),
        beside(".tmp"),
        beside(".0123456789abcdeg.kvweir"),
    ];
    for p in ours.iter().chain(&foreign) {
        fs::write(p, vec![1; 5000]).unwrap();
    }
    root.forget_journal();
    let before = root.open(BOUND).tier.stats();
    assert_eq!(before.swept_files, 2);
    assert!(before.foreign_files >= 3 && before.recovered_blocks == 5);
    assert!(ours.iter().all(|p| !p.exists()) && foreign.iter().all(|p| p.exists()));
    let mut c = root.open(BOUND);
    assert_eq!(c.tier.stats().swept_files, 0);
    assert_eq!(c.tier.stats().resident_bytes, root.du());
    store(&mut c, &keys(0..9));
}

#[test]
fn a_leftover_that_cannot_be_removed_refuses_the_start_and_is_named() {
    let root = Root::new();
    let mut c = root.open(BOUND);
    store(&mut c, &keys(0..2));
    let file = file_of(c.tier.namespace_dir(), &key(1));
    drop(c);
    let left = file.with_extension("bin.0123456789abcdef.kvweir");
    fs::write(&left, b"x").unwrap();
    root.forget_journal();
    let chattr = |flag: &str| {
        Command::new("chattr")
            .arg(flag)
            .arg(&left)
            .stderr(std::process::Stdio::null())
            .status()
    };
    if !chattr("+i").is_ok_and(|s| s.success()) {
        println!("skipped: chattr +i does not work here");
        return;
    }
    let e = refused(root.settings(BOUND));
    chattr("-i").unwrap();
    assert!(e.to_string().contains("0123456789abcdef.kvweir"), "{e}");
    assert_eq!(e.errno(), Some(1));
    assert_eq!(root.open(BOUND).tier.stats().swept_files, 1);
}

#[test]
fn a_bounded_root_has_one_bound_and_who_uses_it_is_named() {
    let root = Root::new();
    let mut first = root.open(BOUND);
    let e = refused(root.settings(BOUND + 1));
    assert_eq!(e.kind(), ErrorKind::Busy);
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap();
    let text = e.to_string();
    for part in [
        &std::process::id().to_string(),
        host.trim(),
        &BOUND.to_string(),
        &(BOUND + 1).to_string(),
    ] {
        assert!(text.contains(part), "{text}");
    }
    store(&mut first, &keys(0..3));
    first.tier.shutdown();
    root.open(BOUND + 1);
    drop(first);
    let mut again = root.open(BOUND);
    assert!(again.holds(&key(1)));
}

#[test]
fn unbounded_roots_are_shared() {
    let root = Root::new();
    let (mut a, mut b) = (root.open(0), root.open(0));
    store(&mut a, &keys(0..3));
    assert!(b.lookup(&key(1), R));
    all_ok(&b.load(R, &[key(1)]));
}

#[test]
fn what_cannot_be_a_root_is_refused_with_the_reason() {
    let root = Root::new();
    let with = |p: std::path::PathBuf| FsSettings {
        root: p,
        ..root.settings(BOUND)
    };
    let file = root.0.path().join("file");
    fs::write(&file, b"x").unwrap();
    let e = refused(with(file.clone()));
    assert!(
        e.kind() == ErrorKind::Invalid && e.to_string().contains("is a file"),
        "{e}"
    );
    assert_eq!(fs::read(&file).unwrap(), b"x");
    let e = refused(with(root.0.path().join("no/such")));
    assert!(
        e.kind() == ErrorKind::Invalid && e.to_string().contains("does not exist"),
        "{e}"
    );
    assert!(!root.0.path().join("no").exists());
    let e = refused(with(file.join("below")));
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
    if rustix::process::geteuid().is_root() {
        println!("skipped: a read-only directory (root writes everywhere)");
        return;
    }
    let locked = root.0.path().join("locked");
    fs::create_dir(&locked).unwrap();
    fs::set_permissions(&locked, fs::Permissions::from_mode(0o555)).unwrap();
    for p in [locked.clone(), locked.join("kv")] {
        let e = refused(with(p));
        let uid = rustix::process::geteuid().as_raw();
        assert!(
            e.kind() == ErrorKind::Invalid && e.to_string().contains("0555"),
            "{e}"
        );
        assert!(e.to_string().contains(&uid.to_string()), "{e}");
    }
}

#[test]
fn namespaces_in_one_root_do_not_see_each_other() {
    let root = Root::new();
    let open = |model: &str| client(FsBuilder::new(root.settings(BOUND), ns(model), LEN));
    let mut a = open("a");
    store(&mut a, &keys(0..10));
    drop(a);
    let mut b = open("b");
    assert!(keys(0..10).iter().all(|k| !b.holds(k)));
    assert!(b.replay_events().is_empty());
    store(&mut b, &keys(5..15));
    assert_settled(&mut b, &root);
    drop(b);
    let mut a = open("a");
    assert_eq!(
        (0..20).filter(|&n| a.holds(&key(n))).collect::<Vec<_>>(),
        (0..10).collect::<Vec<_>>()
    );
    all_ok(&a.load(R, &keys(0..10)));
    assert_settled(&mut a, &root);
}

#[test]
fn another_block_length_finds_misses_and_replaces() {
    let root = Root::new();
    let mut c = root.open(BOUND);
    store(&mut c, &keys(0..10));
    drop(c);
    let b = FsBuilder::new(root.settings(BOUND), ns("model"), 4096);
    let mut c = kvweir::tier::conformance::Client::new(Box::new(b.open().unwrap()), 16, 4096);
    assert!(keys(0..10).iter().all(|k| !c.holds(k)));
    store(&mut c, &keys(0..10));
    all_ok(&c.load(R, &keys(0..10)));
    assert_settled(&mut c, &root);
}

#[test]
fn a_crash_leaves_nothing_that_the_next_start_does_not_count() {
    let root = Root::new();
    let mut c = root.open(BOUND);
    store(&mut c, &keys(0..5));
    let dir = c.tier.namespace_dir().to_owned();
    drop(c);
    // emptied directories and a half-written file, as after a kill
    fs::create_dir_all(dir.join("abc/de_g0")).unwrap();
    fs::create_dir_all(dir.join("abd")).unwrap();
    let half = file_of(&dir, &key(50));
    fs::create_dir_all(half.parent().unwrap()).unwrap();
    fs::write(half.with_extension("bin.00000000000000ff.kvweir"), vec![0; 3000]).unwrap();
    root.forget_journal();
    let mut c = root.open(BOUND);
    assert_settled(&mut c, &root);
    assert!(!dir.join("abd").exists() && !dir.join("abc/de_g0").exists());
    store(&mut c, &keys(50..52));
    assert_settled(&mut c, &root);
    assert_eq!(files(&dir).len(), 7);
}

#[test]
fn the_tiers_own_files_are_not_foreign_and_bad_files_are_not_loadable_blocks() {
    let root = Root::new();
    let mut c = root.open(BOUND);
    store(&mut c, &keys(0..5));
    let dir = c.tier.namespace_dir().to_owned();
    drop(c);
    fs::write(file_of(&dir, &key(1)), b"?").unwrap();
    root.forget_journal();
    let mut c = root.open(BOUND);
    let s = c.tier.stats();
    assert_eq!(
        (s.foreign_files, s.recovered_blocks, s.blocks),
        (0, 4, 4),
        "foreign, recovered, loadable"
    );
    assert!(!c.holds(&key(1)));
    store(&mut c, &[key(1)]);
    assert_eq!(c.tier.stats().blocks, 5);
    assert_settled(&mut c, &root);
}

#[test]
fn a_directory_that_describes_another_namespace_is_refused() {
    let root = Root::new();
    drop(root.open(BOUND));
    let ours = ns("model");
    let config = root.path().join(ours.config_dir()).join("config.json");
    let theirs = ours
        .config()
        .replace("\"model_name\":\"model\"", "\"model_name\":\"collides\"");
    fs::write(&config, theirs).unwrap();
    let e = refused(root.settings(BOUND));
    assert_eq!(e.kind(), ErrorKind::Invalid);
    assert!(e.to_string().contains("another namespace"), "{e}");
    // the same identity written with other spaces is the same, and a torn file is nobody's
    let spaced = ours.config().replace(':', ": ");
    for text in [spaced.as_str(), "", "{\"model_na"] {
        fs::write(&config, text).unwrap();
        root.open(BOUND);
    }
}

#[test]
fn the_next_start_writes_an_identity_again_that_a_crash_left_torn() {
    // once it stayed empty for good, and `convert` and `import` did not know whose the blocks were
    let root = Root::new();
    let mut c = root.open(BOUND);
    store(&mut c, &keys(0..20));
    drop(c);
    let ours = ns("model");
    let config = root.path().join(ours.config_dir()).join("config.json");
    for text in ["", "{\"model_na"] {
        fs::write(&config, text).unwrap();
        let mut c = root.open(BOUND);
        assert_eq!(fs::read_to_string(&config).unwrap(), ours.config(), "{text:?}");
        assert_eq!(c.tier.stats().recovered_blocks, 20);
        assert_settled(&mut c, &root);
    }
}

#[test]
fn a_link_or_a_file_where_the_namespace_belongs_is_refused() {
    // once a tier stored behind the link, beside its bound, and no walk found that again
    let root = Root::new();
    drop(root.open(BOUND));
    let (own, away) = (root.path().join(ns("model").dir()), root.0.path().join("away"));
    fs::rename(&own, &away).unwrap();
    for link in [true, false] {
        match link {
            true => std::os::unix::fs::symlink(&away, &own).unwrap(),
            false => fs::write(&own, "").unwrap(),
        }
        let e = refused(root.settings(BOUND));
        assert_eq!(e.kind(), ErrorKind::Invalid);
        assert!(e.message().contains(&*own.to_string_lossy()), "{e}");
        fs::remove_file(&own).unwrap();
    }
    fs::rename(&away, &own).unwrap();
    drop(root.open(BOUND));
}

#[test]
fn a_root_on_a_full_device_opens_and_serves() {
    let Some(mount) = crate::support::Tmpfs::new("256k") else {
        println!("skipped: no right to mount a tmpfs");
        return;
    };
    let fill = |n: usize| fs::write(mount.path().join("fill"), vec![1; n]);
    let settings = || FsSettings {
        max_bytes: Some(BOUND),
        layout: Layout::Fs,
        ..FsSettings::new(mount.path().join("kv"))
    };
    let mut c = client(FsBuilder::new(settings(), ns("model"), LEN));
    store(&mut c, &keys(0..3));
    drop(c);
    assert!(fill(1 << 20).is_err(), "the device is full now");
    fs::remove_dir_all(mount.path().join("kv").join(ns("model").config_dir())).unwrap();
    assert!(fill(1 << 20).is_err());
    let mut c = client(FsBuilder::new(settings(), ns("model"), LEN));
    all_ok(&c.load(R, &keys(0..3)));
    assert!(!c.store(R, &[key(9)])[0].is_ok() || c.tier.stats().blocks <= 3);
    fs::remove_file(mount.path().join("fill")).unwrap();
    all_ok(&c.store(R, &[key(10)]));
    all_ok(&c.load(R, &[key(10)]));
}
