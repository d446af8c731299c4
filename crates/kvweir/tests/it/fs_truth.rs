//! I2: a block whose file was damaged is a miss, alone, until it is stored again; the account follows.

use std::{
    fs,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
};

use kvweir::{
    ErrorKind, Key,
    fs::FsBuilder,
    tier::{
        BlockOutcome, Tier, Verified,
        conformance::{content, key, long_key},
    },
};

use crate::support::{
    FILE, Fs, LEN, R, Root, all_ok, assert_settled, client, cut, file_of, flip, keys, ns, store,
};

const BOUND: u64 = 64 << 20;

struct Case {
    file: PathBuf,
    other: PathBuf,
    foreign: PathBuf,
}

type Damage = Box<dyn Fn(&Case)>;

fn flipped(at: u64) -> Damage {
    Box::new(move |c: &Case| flip(&c.file, at))
}

fn cut_to(len: u64) -> Damage {
    Box::new(move |c: &Case| cut(&c.file, len))
}

fn replaced(with: impl Fn(&Case) + 'static) -> Damage {
    Box::new(move |c: &Case| {
        fs::remove_file(&c.file).unwrap();
        with(c);
    })
}

fn table() -> Vec<(&'static str, Damage, bool)> {
    let len = LEN as u64;
    let mut t: Vec<(&'static str, Damage, bool)> = vec![
        ("first bit", flipped(0), true),
        ("middle of the payload", flipped(len / 2), true),
        ("last byte of the payload", flipped(len - 1), true),
        ("magic", flipped(len), true),
        ("key length", flipped(len + 12), true),
        ("block length", flipped(len + 16), true),
        ("payload checksum", flipped(len + 24), true),
        ("namespace", flipped(len + 40), true),
        ("key", flipped(len + 80), true),
        ("padding", flipped(len + 400), true),
        ("checksum of the trailer", flipped(len + 4095), true),
        ("empty", cut_to(0), true),
        ("one byte", cut_to(1), true),
        ("cut before the end of the payload", cut_to(len - 1), true),
        ("cut after the payload", cut_to(len), true),
        ("cut in the trailer", cut_to(len + 4095), true),
        (
            "a foreign byte",
            replaced(|c| fs::write(&c.file, b"x").unwrap()),
            true,
        ),
        (
            "another key's file",
            replaced(|c| {
                fs::copy(&c.other, &c.file).unwrap();
            }),
            true,
        ),
        (
            "another namespace's file",
            replaced(|c| {
                fs::copy(&c.foreign, &c.file).unwrap();
            }),
            true,
        ),
        (
            "zeros of the right size",
            replaced(|c| fs::write(&c.file, vec![0; FILE as usize]).unwrap()),
            true,
        ),
        ("deleted", replaced(|_| {}), false),
        (
            "a symbolic link to a good file",
            replaced(|c| std::os::unix::fs::symlink(&c.other, &c.file).unwrap()),
            false,
        ),
    ];
    if rustix::process::geteuid().is_root() {
        println!("skipped: mode 000 (root reads everything)");
    } else {
        let no_mode = |c: &Case| fs::set_permissions(&c.file, fs::Permissions::from_mode(0o000)).unwrap();
        t.push(("mode 000", Box::new(no_mode), false));
    }
    t
}

/// Stores `n` blocks of the model and, first, the same keys under another model; returns a path maker.
fn filled(root: &Root, n: u64) -> (Fs, PathBuf, PathBuf) {
    let mut other = client(FsBuilder::new(root.settings(BOUND), ns("other"), LEN));
    store(&mut other, &keys(0..n));
    let other_dir = other.tier.namespace_dir().to_owned();
    drop(other);
    let mut c = root.open(BOUND);
    store(&mut c, &keys(0..n));
    let dir = c.tier.namespace_dir().to_owned();
    (c, dir, other_dir)
}

fn case(dir: &Path, other: &Path, k: &Key) -> Case {
    Case {
        file: file_of(dir, k),
        other: file_of(dir, &key(0)),
        foreign: file_of(other, k),
    }
}

#[test]
fn every_kind_of_damage_is_one_miss_until_stored_again() {
    let root = Root::new();
    let table = table();
    let (mut c, dir, other) = filled(&root, 60);
    let mut failures = 0;
    for (n, (what, damage, provable)) in table.iter().enumerate() {
        let bad = key(n as u64 + 10);
        damage(&case(&dir, &other, &bad));
        let job = [key(1), bad.clone(), key(2)];
        for k in &job {
            assert!(c.lookup(k, R), "{what}");
        }
        let got = c.load(R, &job);
        assert!(
            got[0].is_ok() && !got[1].is_ok() && got[2].is_ok(),
            "{what}: {got:?}"
        );
        failures += u64::from(*provable);
        let s = c.tier.stats();
        assert_eq!(
            (s.verification_failures, s.pinned_blocks),
            (failures, 0),
            "{what}"
        );
        let kind = if *provable {
            ErrorKind::Corrupt
        } else {
            ErrorKind::Unavailable
        };
        assert_eq!(got[1], BlockOutcome::Failed(kind), "{what}");
        assert!(!c.holds(&bad), "{what}: still a hit");
        assert!(
            !c.replay_events().contains(&bad),
            "{what}: no removal was announced"
        );
        if *provable {
            assert!(!file_of(&dir, &bad).exists(), "{what}: a provably bad file stays");
            assert_eq!(c.tier.stats().resident_bytes, root.du(), "{what}");
        }
        assert_eq!(
            c.store(R, std::slice::from_ref(&bad)),
            [BlockOutcome::Stored],
            "{what}"
        );
        assert!(c.lookup(&bad, R), "{what}");
        assert_eq!(
            c.load(R, &[bad]),
            [BlockOutcome::Loaded(Verified::Checksum)],
            "{what}"
        );
        assert_settled(&mut c, &root);
    }
}

#[test]
fn damage_found_at_start_is_never_served() {
    let root = Root::new();
    let table = table();
    let (c, dir, other) = filled(&root, 60);
    drop(c);
    for (n, (_, damage, _)) in table.iter().enumerate() {
        damage(&case(&dir, &other, &key(n as u64 + 10)));
    }
    let mut c = root.open(BOUND);
    for (n, (what, ..)) in table.iter().enumerate() {
        let bad = key(n as u64 + 10);
        let hit = c.lookup(&bad, R);
        if hit && c.load(R, std::slice::from_ref(&bad))[0].is_ok() {
            // cut to the stock length: without its trailer it is a file of the stock layout
            assert_eq!(*what, "cut after the payload");
        }
        store(&mut c, std::slice::from_ref(&bad));
        assert!(
            c.lookup(&bad, R) && c.load(R, &[bad])[0].is_ok(),
            "{what}: not restored"
        );
    }
    // the link, a block of its own on this file system, was counted as foreign and is replaced by now
    drop(c);
    assert_settled(&mut root.open(BOUND), &root);
}

#[test]
fn a_failed_block_fails_for_every_request_that_pins_it_and_is_released_once() {
    let root = Root::new();
    let (mut c, dir, _) = filled(&root, 2);
    let k = key(1);
    flipped(5)(&case(&dir, &dir, &k));
    for r in 1..=4 {
        assert!(c.lookup(&k, kvweir::tier::RequestId(r)));
    }
    for r in 1..=3 {
        let got = c.load(kvweir::tier::RequestId(r), &[k.clone(), k.clone()]);
        assert!(got.iter().all(|o| !o.is_ok()), "{got:?}");
    }
    store(&mut c, std::slice::from_ref(&k));
    for r in 2..=4 {
        c.tier.on_request_finished(kvweir::tier::RequestId(r), &[]);
    }
    assert!(c.load(R, &[k])[0].is_ok());
    assert_settled(&mut c, &root);
}

#[test]
fn something_that_cannot_be_removed_under_a_final_name_fails_the_store_and_nothing_hangs() {
    let root = Root::new();
    let (mut c, dir, _) = filled(&root, 3);
    let k = key(1);
    let file = file_of(&dir, &k);
    fs::remove_file(&file).unwrap();
    fs::create_dir(&file).unwrap();
    fs::write(file.join("inside"), b"x").unwrap();
    assert!(c.lookup(&k, R));
    assert!(!c.load(R, std::slice::from_ref(&k))[0].is_ok());
    assert!(!c.holds(&k));
    for _ in 0..2 {
        assert!(!c.store(R, std::slice::from_ref(&k))[0].is_ok());
    }
    store(&mut c, &keys(10..14));
    fs::remove_dir_all(&file).unwrap();
    store(&mut c, std::slice::from_ref(&k));
    assert!(c.load(R, &[k])[0].is_ok());
    assert_settled(&mut c, &root);
}

#[test]
fn a_stock_file_without_trailer_is_adopted_unverified() {
    for bound in [BOUND, 0] {
        let root = Root::new();
        let dir = root.path().join(ns("model").dir());
        let stock = [key(1), long_key(2, 12), long_key(3, 100)];
        for k in &stock {
            let file = file_of(&dir, k);
            fs::create_dir_all(file.parent().unwrap()).unwrap();
            fs::write(&file, content(k, LEN)).unwrap();
        }
        let mut c = root.open(bound);
        for k in &stock {
            assert!(c.lookup(k, R), "{k:?}");
            assert_eq!(
                c.load(R, std::slice::from_ref(k)),
                [BlockOutcome::Loaded(Verified::SizeOnly)]
            );
            assert_eq!(c.store(R, std::slice::from_ref(k)), [BlockOutcome::Present]);
        }
        all_ok(&c.store(R, &keys(10..14)));
        if bound > 0 {
            assert_settled(&mut c, &root);
        }
    }
}

#[test]
fn a_foreign_file_of_another_size_does_not_block_a_store() {
    for bound in [BOUND, 0] {
        let root = Root::new();
        let dir = root.path().join(ns("model").dir());
        let file = file_of(&dir, &key(1));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, b"x").unwrap();
        let mut c = root.open(bound);
        assert!(!c.holds(&key(1)));
        assert_eq!(c.store(R, &[key(1)]), [BlockOutcome::Stored]);
        assert!(c.lookup(&key(1), R) && c.load(R, &[key(1)])[0].is_ok());
        // and one that comes while the tier runs
        let file = file_of(&dir, &key(2));
        fs::create_dir_all(file.parent().unwrap()).unwrap();
        fs::write(&file, b"x").unwrap();
        assert_eq!(c.store(R, &[key(2)]), [BlockOutcome::Stored]);
        assert!(c.lookup(&key(2), R) && c.load(R, &[key(2)])[0].is_ok());
        if bound > 0 {
            assert_settled(&mut c, &root);
        }
    }
}
