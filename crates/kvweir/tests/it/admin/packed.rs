//! Roots with packed blocks: told, verified against the journal, trimmed, collected, left alone by imports.

use std::{fs, time::Duration};

use kvweir::{
    admin::{Fault, GcOptions, ImportOptions, Layouts, VerifyOptions, Writer},
    fs::{FsBuilder, Layout},
    tier::{Tier, conformance::key},
};

use super::{BOUND, admin, age};
use crate::{
    pack::{bound, settings},
    support::{Fs, LEN, R, Root, all_ok, client, data_of, extents, file_of, keys, ns, store},
};

pub(super) fn open(root: &Root, max: u64, layout: Layout, model: &str) -> Fs {
    client(FsBuilder::new(settings(root, max, layout), ns(model), LEN))
}

/// A root with blocks `0..n` packed, closed.
pub(super) fn made(n: u64, max: u64) -> Root {
    let root = Root::new();
    let mut c = open(&root, max, Layout::Pack, "model");
    for part in keys(0..n).chunks(16) {
        all_ok(&c.store(R, part));
    }
    root
}

#[test]
fn inspect_counts_extents_slots_and_blocks() {
    let root = made(200, bound(400));
    let mut c = open(&root, bound(400), Layout::Fs, "other");
    store(&mut c, &keys(500..510));
    drop(c);
    let r = admin(&root).inspect().unwrap();
    assert_eq!(r.bytes, root.du());
    assert_eq!(
        (r.extents.files, r.packed_blocks),
        (extents(&root.path()).len() as u64, 200)
    );
    let n = r
        .namespaces
        .iter()
        .find(|n| n.directory == ns("model").dir())
        .unwrap();
    assert_eq!(
        (n.layout, n.written_by, n.blocks.files),
        (Layouts::Pack, Writer::Kvweir, 0)
    );
    assert_eq!((n.packed_blocks, n.used_slots, n.unusable_extents), (200, 200, 0));
    assert_eq!(n.slots, n.used_slots + n.free_slots);
    assert_eq!(n.block_bytes, Some(LEN as u64));
    assert!(n.newest_s.unwrap() < 600 && n.oldest_s >= n.newest_s);
    let other = r
        .namespaces
        .iter()
        .find(|n| n.directory == ns("other").dir())
        .unwrap();
    assert_eq!(
        (other.layout, other.blocks.files, other.slots),
        (Layouts::Fs, 10, 0)
    );
}

#[test]
fn verify_compares_extents_with_the_journal() {
    let verify = |root: &Root| {
        let r = admin(root).verify(&VerifyOptions::default(), &|_| {}).unwrap();
        assert!(r.journals.compared, "{:?}", r.journals.why_not);
        r.findings.iter().map(|f| f.fault).collect::<Vec<_>>()
    };
    let root = made(300, bound(400));
    assert_eq!(verify(&root), []);
    let all = extents(&root.path());
    let copy = all[0].with_file_name(format!("{:032x}.bin", 77));
    fs::copy(&all[0], &copy).unwrap();
    assert_eq!(verify(&root), [Fault::HalfExtent, Fault::NotInJournal]);
    fs::copy(data_of(&all[0]), data_of(&copy)).unwrap();
    // its header is another's
    assert_eq!(
        verify(&root),
        [Fault::DamagedHeader, Fault::NotInJournal, Fault::NotInJournal]
    );
    fs::remove_file(&copy).unwrap();
    fs::remove_file(data_of(&copy)).unwrap();
    let longer = fs::OpenOptions::new()
        .append(true)
        .open(data_of(&all[1]))
        .unwrap();
    std::io::Write::write_all(&mut &longer, &vec![1; 1 << 20]).unwrap();
    drop(longer);
    fs::remove_file(&all[2]).unwrap();
    fs::remove_file(data_of(&all[2])).unwrap();
    assert_eq!(
        verify(&root),
        [Fault::CountedTooLow, Fault::ExtentGone, Fault::ExtentGone]
    );
    let admin = admin(&root);
    let claim = admin.claim().unwrap();
    let r = admin.verify(
        &VerifyOptions {
            claim: Some(&claim),
            ..VerifyOptions::default()
        },
        &|_| {},
    );
    assert!(admin.repair(&r.unwrap(), Some(&claim)).unwrap().next_start_walks);
    drop(claim);
    let c = open(&root, bound(400) + (2 << 20), Layout::Pack, "model");
    let s = c.tier.stats();
    assert!(
        s.resident_bytes >= root.du() && s.blocks < 300 && s.blocks > 100,
        "{s:?}"
    );
}

#[test]
fn verify_beside_a_tier_that_stores_finds_nothing_wrong() {
    let root = made(100, bound(100));
    let mut c = open(&root, bound(100), Layout::Pack, "model");
    let over = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|scope| {
        let looks = scope.spawn(|| {
            let mut looks = 0;
            while !over.load(std::sync::atomic::Ordering::Relaxed) || looks == 0 {
                let r = admin(&root).verify(&VerifyOptions::default(), &|_| {}).unwrap();
                assert!(r.is_clean(), "{:?}", r.findings);
                looks += 1;
            }
            looks
        });
        for n in 0..40u64 {
            for part in keys(n * 50..n * 50 + 50).chunks(10) {
                all_ok(&c.store(R, part));
            }
        }
        over.store(true, std::sync::atomic::Ordering::Relaxed);
        assert!(looks.join().unwrap() > 0);
    });
}

#[test]
fn trim_removes_whole_extents() {
    let root = made(400, bound(500));
    let mut c = open(&root, BOUND.max(bound(500)), Layout::Fs, "old");
    store(&mut c, &keys(1000..1010));
    let old = c.tier.namespace_dir().to_owned();
    drop(c);
    for n in 1000..1010 {
        age(&file_of(&old, &key(n)), 90_000);
    }
    let admin = admin(&root);
    let all = admin.inspect().unwrap().packed_blocks;
    let (before, count) = (root.du(), extents(&root.path()).len() as u64);
    let to = before / 2;
    let plan = admin.trim(to, None).unwrap();
    assert_eq!((root.du(), plan.done), (before, false));
    let claim = admin.claim().unwrap();
    let t = admin.trim(to, Some(&claim)).unwrap();
    drop(claim);
    assert!(
        t.is_reached() && t.failed.is_empty() && root.du() == t.after_bytes,
        "{t:?}"
    );
    assert_eq!(
        (plan.blocks, plan.extents, plan.packed_blocks),
        (t.blocks, t.extents, t.packed_blocks)
    );
    assert_eq!(t.blocks.files, 10, "they are older than all extents");
    assert_eq!(t.extents.files, count - extents(&root.path()).len() as u64);
    let c = open(&root, bound(500), Layout::Pack, "model");
    assert_eq!(c.tier.stats().blocks + t.packed_blocks, all);
}

#[test]
fn gc_counts_and_removes_the_extents_of_a_namespace_out_of_use_and_leftovers_of_extents() {
    let root = made(100, bound(400));
    let mut c = open(&root, bound(400), Layout::Pack, "new");
    all_ok(&c.store(R, &keys(0..10)));
    drop(c);
    let temp = extents(&root.path())[0].with_extension("bin.00000000000000aa.kvweir");
    fs::write(&temp, b"half").unwrap();
    age(&temp, 3600);
    let admin = admin(&root);
    let options = |s| GcOptions {
        older_than: Some(Duration::from_secs(s)),
        shm: None,
        ..GcOptions::default()
    };
    let plan = admin.gc(&options(3600), None).unwrap();
    assert_eq!((plan.namespaces.len(), plan.temporaries.files), (0, 1));
    let claim = admin.claim().unwrap();
    let r = admin.gc(&options(0), Some(&claim)).unwrap();
    assert!(!temp.exists());
    let gone: u64 = r.namespaces.iter().map(|n| n.packed_blocks).sum();
    assert_eq!((r.namespaces.len(), gone, r.failed.len()), (2, 110, 0), "{r:?}");
    assert!(
        r.namespaces
            .iter()
            .all(|n| n.blocks.files == 0 && n.extents.files > 0)
    );
    assert!(extents(&root.path()).is_empty());
}

#[test]
fn import_leaves_extents_alone_and_says_so() {
    let root = made(100, bound(200));
    let admin = admin(&root);
    let claim = admin.claim().unwrap();
    let r = admin.import(None, &ImportOptions::default(), &|_| {}, Some(&claim));
    let r = r.unwrap();
    assert!(r.is_whole());
    assert_eq!(
        (
            r.namespaces[0].extents,
            r.namespaces[0].imported,
            r.namespaces[0].wrong_size
        ),
        (extents(&root.path()).len() as u64, 0, 0)
    );
}
