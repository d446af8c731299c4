//! Blocks go from files into extents and back: byte for byte, within the bound, also after a kill.

use std::{
    collections::BTreeMap,
    fs,
    path::PathBuf,
    process::{Command, Stdio},
    sync::atomic::{AtomicBool, AtomicU64, Ordering},
    time::Duration,
};

use kvweir::{
    ErrorKind,
    admin::{Admin, ConvertOptions, Converted, VerifyOptions},
    fs::{FsBuilder, Layout},
    sync::Bell,
    tier::{
        Tier,
        conformance::{content, key, long_key},
    },
};

use super::{
    BOUND, admin, age,
    packed::{made as packed, open},
    stock,
};
use crate::{
    pack::{bound, settings},
    support::{LEN, R, Root, all_ok, block_files, client, data_of, du, extents, file_of, keys, ns, store},
};

fn options(to: Layout, max: u64) -> ConvertOptions<'static> {
    ConvertOptions {
        to,
        namespace: None,
        max_bytes: Some(max),
    }
}

fn convert(admin: &Admin, to: Layout, max: u64) -> Converted {
    let claim = admin.claim().unwrap();
    admin.convert(&options(to, max), &|_| {}, Some(&claim)).unwrap()
}

/// Every block file: its bytes.
fn contents(root: &Root) -> BTreeMap<PathBuf, Vec<u8>> {
    let all = block_files(&root.path()).into_iter();
    all.map(|p| (p.clone(), fs::read(&p).unwrap())).collect()
}

fn verified(root: &Root) -> u64 {
    let r = admin(root).verify(&VerifyOptions::default(), &|_| {}).unwrap();
    assert!(r.is_clean(), "{:?}", r.findings);
    r.good
}

/// A root with `n` block files, each a minute younger than the one before.
fn filed(n: u64) -> Root {
    let root = Root::new();
    let mut c = client(FsBuilder::new(
        settings(&root, BOUND, Layout::Fs),
        ns("model"),
        LEN,
    ));
    store(&mut c, &keys(0..n));
    all_ok(&c.store(R, &[long_key(1, 30), long_key(2, 3), long_key(3, 200)]));
    let dir = c.tier.namespace_dir().to_owned();
    drop(c);
    for k in 0..n {
        age(&file_of(&dir, &key(k)), 100_000 - k * 60);
    }
    root
}

/// Keys of the files there, oldest first by time.
fn by_time(root: &Root, n: u64) -> Vec<u64> {
    let dir = root.path().join(ns("model").dir());
    let mut all: Vec<_> = (0..n)
        .filter_map(|k| Some((fs::metadata(file_of(&dir, &key(k))).ok()?.modified().ok()?, k)))
        .collect();
    all.sort();
    all.into_iter().map(|a| a.1).collect()
}

#[test]
fn there_and_back_every_file_is_as_it_was_and_the_order_is_kept() {
    let root = filed(300);
    let before = contents(&root);
    let admin = admin(&root);
    let plan = admin
        .convert(&options(Layout::Pack, BOUND), &|_| {}, None)
        .unwrap();
    assert_eq!((plan.done, contents(&root) == before), (false, true));
    assert_eq!(plan.namespaces[0].moved, 302);
    let r = convert(&admin, Layout::Pack, BOUND);
    assert!(r.is_whole() && r.done, "{r:?}");
    let n = &r.namespaces[0];
    assert_eq!((n.moved, n.kept, n.extents), (302, 1, plan.namespaces[0].extents));
    assert_eq!(
        (contents(&root).len(), r.after_bytes),
        (1, root.du()),
        "the key too long for a record has a file"
    );
    assert!(r.peak_bytes <= BOUND);
    assert_eq!(verified(&root), 303);
    // a tier that packs serves them
    let mut c = open(&root, BOUND, Layout::Pack, "model");
    for part in keys(0..300).chunks(50) {
        all_ok(&c.load(R, part));
    }
    all_ok(&c.load(R, &[long_key(1, 30), long_key(2, 3), long_key(3, 200)]));
    c.tier.on_request_finished(R, &[]);
    drop(c);
    let r = convert(&admin, Layout::Fs, BOUND);
    assert!(r.is_whole(), "{r:?}");
    assert_eq!((r.namespaces[0].moved, r.after_bytes), (302, root.du()));
    assert!(extents(&root.path()).is_empty());
    assert_eq!(contents(&root), before);
    assert_eq!(by_time(&root, 300), (0..300).collect::<Vec<_>>());
    assert_eq!(verified(&root), 303);
    // nothing to do: nothing changes, and nobody has to walk
    let mut c = open(&root, BOUND, Layout::Fs, "model");
    for part in keys(0..300).chunks(50) {
        all_ok(&c.load(R, part));
    }
    c.tier.on_request_finished(R, &[]);
    drop(c);
    assert!(convert(&admin, Layout::Fs, BOUND).namespaces.is_empty());
    assert!(
        admin
            .verify(&VerifyOptions::default(), &|_| {})
            .unwrap()
            .journals
            .compared
    );
}

#[test]
fn the_oldest_goes_first_also_after_a_conversion() {
    let root = filed(200);
    let max = root.du() + (128 << 10);
    let r = convert(&admin(&root), Layout::Pack, max);
    assert_eq!((r.is_whole(), r.namespaces[0].dropped), (true, 0));
    assert!(r.peak_bytes <= max);
    let mut c = open(&root, max, Layout::Pack, "model");
    for part in keys(1000..1400).chunks(10) {
        all_ok(&c.store(R, part));
        let held: Vec<u64> = (0..200).filter(|&n| c.holds(&key(n))).collect();
        let gone = 200 - held.len() as u64;
        assert_eq!(held, (gone..200).collect::<Vec<_>>());
    }
    assert!(!c.holds(&key(100)));
}

#[test]
fn blocks_of_a_stock_tier_get_checksums_and_stay_readable_to_it() {
    let root = Root::new();
    fs::create_dir(root.path()).unwrap();
    let all: Vec<_> = (0..60)
        .map(|n| {
            let file = stock(&root.path(), "model", &key(n));
            age(&file, 5000 - n);
            file
        })
        .collect();
    let admin = admin(&root);
    let unknown = ConvertOptions {
        max_bytes: None,
        ..options(Layout::Pack, 0)
    };
    let refused = admin.convert(&unknown, &|_| {}, None).unwrap_err();
    assert!(
        refused.to_string().contains("the bound is not known"),
        "{refused}"
    );
    let r = convert(&admin, Layout::Pack, BOUND);
    assert_eq!((r.namespaces[0].moved, r.namespaces[0].unverified), (60, 60));
    let r = convert(&admin, Layout::Fs, BOUND);
    assert!(r.is_whole());
    for (n, file) in all.iter().enumerate() {
        let bytes = fs::read(file).unwrap();
        assert_eq!(
            bytes[..LEN],
            content(&key(n as u64), LEN)[..],
            "what a stock reader reads"
        );
    }
    assert_eq!(by_time(&root, 60), (0..60).collect::<Vec<_>>());
    assert_eq!(verified(&root), 60);
}

#[test]
fn the_bound_holds_at_every_moment_and_the_oldest_are_dropped_where_there_is_no_room() {
    let root = packed(400, bound(420));
    let all = admin(&root).inspect().unwrap().packed_blocks;
    let max = root.du() + (64 << 10);
    let over = AtomicBool::new(false);
    let most = AtomicU64::new(0);
    let r = std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                most.fetch_max(du(&root.path()), Ordering::Relaxed);
            }
        });
        let r = convert(&admin(&root), Layout::Fs, max);
        over.store(true, Ordering::Relaxed);
        r
    });
    let n = &r.namespaces[0];
    assert!(
        n.dropped > 50 && n.moved > 100 && n.moved + n.dropped == all,
        "{n:?}"
    );
    assert!(most.load(Ordering::Relaxed) <= max, "{most:?} of {max}");
    assert!(r.peak_bytes <= max && root.du() == r.after_bytes && !r.is_whole());
    let left = by_time(&root, 400);
    assert_eq!(left, (400 - n.moved..400).collect::<Vec<_>>(), "the newest stay");
    assert_eq!(verified(&root), n.moved);
    // full of files, and back: no block is lost
    let r = convert(&admin(&root), Layout::Pack, root.du() + (256 << 10));
    assert!(r.is_whole() && r.peak_bytes <= r.bound_bytes, "{r:?}");
    assert_eq!(verified(&root), left.len() as u64);
}

#[test]
fn what_is_damaged_is_not_moved() {
    let root = filed(40);
    let dir = root.path().join(ns("model").dir());
    let bad = file_of(&dir, &key(7));
    let mut bytes = fs::read(&bad).unwrap();
    bytes[77] ^= 1;
    fs::write(&bad, bytes).unwrap();
    let r = convert(&admin(&root), Layout::Pack, BOUND);
    assert_eq!(
        (r.namespaces[0].damaged, r.namespaces[0].moved, r.is_whole()),
        (1, 41, false)
    );
    assert!(bad.exists());
    let data = data_of(&extents(&root.path())[0]);
    let mut bytes = fs::read(&data).unwrap();
    bytes[5] ^= 1;
    fs::write(&data, bytes).unwrap();
    let r = convert(&admin(&root), Layout::Fs, BOUND);
    assert_eq!((r.namespaces[0].damaged, r.namespaces[0].moved), (1, 40));
    assert!(extents(&root.path()).is_empty());
}

#[test]
fn beside_a_live_engine_it_is_refused_and_bounds_that_cannot_be_are_too() {
    let root = filed(20);
    let admin = admin(&root);
    let c = open(&root, BOUND, Layout::Fs, "model");
    assert_eq!(admin.claim().unwrap_err().kind(), ErrorKind::Busy);
    drop(c);
    let small = admin.convert(&options(Layout::Fs, root.du() - 1), &|_| {}, None);
    assert_eq!(small.unwrap_err().kind(), ErrorKind::Full);
    assert!(
        admin
            .convert(&options(Layout::Auto, BOUND), &|_| {}, None)
            .is_err()
    );
    let nobody = ConvertOptions {
        namespace: Some("none_0123456789ab_r0"),
        ..options(Layout::Pack, BOUND)
    };
    assert!(admin.convert(&nobody, &|_| {}, None).is_err());
}

/// Started by the test below in a process of its own, to be killed.
#[test]
fn convert_until_killed() {
    let Ok(root) = std::env::var("KVWEIR_CONVERT_ROOT") else {
        return;
    };
    let to = std::env::var("KVWEIR_CONVERT_TO").unwrap().parse().unwrap();
    let max = std::env::var("KVWEIR_CONVERT_MAX").unwrap().parse().unwrap();
    let admin = Admin::new(root).unwrap();
    let claim = admin.claim().unwrap();
    admin.convert(&options(to, max), &|_| {}, Some(&claim)).unwrap();
}

#[test]
fn killed_at_any_moment_it_goes_on_and_nothing_is_lost() {
    const N: u64 = 1500;
    let root = filed(N);
    let before = contents(&root);
    // little room: many batches
    let max = root.du() + (1 << 20);
    let (mut kills, mut halfway) = (0, 0);
    for to in [Layout::Pack, Layout::Fs] {
        for n in 0..20u64 {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["convert_until_killed", "--exact", "--nocapture"])
                .arg("admin::convert::convert_until_killed")
                .env("KVWEIR_CONVERT_ROOT", root.path())
                .env("KVWEIR_CONVERT_TO", to.as_str())
                .env("KVWEIR_CONVERT_MAX", max.to_string())
                .stdout(Stdio::null())
                .stderr(Stdio::null())
                .spawn()
                .unwrap();
            Bell::default().wait(0, Duration::from_millis(15 + n * 12));
            child.kill().unwrap();
            kills += u64::from(!child.wait().unwrap().success());
            let r = admin(&root).verify(&VerifyOptions::default(), &|_| {}).unwrap();
            let odd = |f: &&kvweir::admin::Finding| {
                !["leftover_temporary", "empty_directory", "half_extent"].contains(&f.fault.as_str())
            };
            assert_eq!(r.findings.iter().find(odd), None);
            assert!(r.good >= N + 3, "{} of {N}", r.good);
            assert!(root.du() <= max);
            let packed = admin(&root).inspect().unwrap().packed_blocks;
            halfway += u64::from(packed > 0 && contents(&root).len() > 1);
        }
        let r = convert(&admin(&root), to, max);
        assert!(r.peak_bytes <= max, "{r:?}");
        assert!(
            r.failed.is_empty() && r.namespaces.iter().all(|n| n.damaged + n.dropped == 0),
            "{r:?}"
        );
        if to == Layout::Pack {
            assert_eq!(contents(&root).len(), 1);
            let mut c = open(&root, BOUND, Layout::Pack, "model");
            for part in keys(0..N).chunks(50) {
                all_ok(&c.load(R, part));
            }
            c.tier.on_request_finished(R, &[]);
        }
    }
    println!("{kills} kills, {halfway} of them with blocks in both layouts");
    assert!(
        kills > 5 && halfway > 3,
        "{kills} kills, {halfway} with blocks in both layouts"
    );
    assert_eq!(contents(&root), before);
    assert_eq!(by_time(&root, N), (0..N).collect::<Vec<_>>());
}
