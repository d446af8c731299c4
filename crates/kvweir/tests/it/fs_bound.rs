//! I1: at every instant `du` below the root is within the bound, and at rest it is what the tier says.

use std::{
    fs,
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use kvweir::{
    ErrorKind, Key,
    evict::PolicyKind,
    fs::{FsBuilder, FsSettings, Layout, min_bound},
    tier::{
        BlockOutcome, RequestId, Tier,
        conformance::{key, long_key},
    },
};

use crate::support::{
    FILE, LEN, R, Rng, Root, all_ok, assert_settled, client, client_of, du, file_of, in_both_layouts, keys,
    ns, room_for, store,
};

/// Samples `du` until dropped.
pub(crate) struct Watcher {
    stop: Arc<AtomicBool>,
    most: Arc<AtomicU64>,
    samples: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Watcher {
    pub(crate) fn start(path: PathBuf) -> Self {
        let (stop, most, samples) = (
            Arc::<AtomicBool>::default(),
            Arc::<AtomicU64>::default(),
            Arc::<AtomicU64>::default(),
        );
        let (s, m, n) = (Arc::clone(&stop), Arc::clone(&most), Arc::clone(&samples));
        let work = move || {
            while !s.load(Ordering::Relaxed) {
                // a walk is no snapshot: only files that were there at one time count against a bound
                m.fetch_max(du(&path), Ordering::Relaxed);
                n.fetch_add(1, Ordering::Relaxed);
                std::thread::park_timeout(std::time::Duration::from_millis(1));
            }
        };
        let thread = std::thread::Builder::new()
            .name("watcher".into())
            .spawn(work)
            .ok();
        Self {
            stop,
            most,
            samples,
            thread,
        }
    }

    /// The most that was seen.
    pub(crate) fn end(mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
        assert!(self.samples.load(Ordering::Relaxed) > 0);
        self.most.load(Ordering::Relaxed)
    }
}

fn du_never_exceeds_the_bound_while_many_jobs_store(layout: Layout) {
    let mut rng = Rng(7);
    for policy in PolicyKind::ALL {
        let root = Root::of(layout);
        let bound = room_for(rng.below(40), layout) + rng.below(4096);
        let settings = FsSettings {
            policy,
            ..root.settings(bound)
        };
        let mut c = client(FsBuilder::new(settings, ns("model"), LEN));
        // between operations: while jobs run, a walk may count a file that moved twice, so it pauses the stores
        for round in 0..60 {
            for n in 0..6 {
                let from = rng.below(400);
                c.submit_store(RequestId(n), &keys(from..from + 1 + rng.below(6)));
            }
            c.wait_all();
            // the account is what lies there
            let s = crate::support::agreed(&mut c, &root);
            let now = root.du();
            assert!(
                now <= bound && s.peak_bytes <= bound,
                "{policy} round {round}: {now} of {bound}"
            );
        }
        assert_settled(&mut c, &root);
    }
}

fn the_account_equals_du_after_stores_evictions_and_reopenings(layout: Layout) {
    let root = Root::of(layout);
    let mut rng = Rng(11);
    for round in 0..6 {
        let bound = room_for(20 + rng.below(30), layout);
        let mut c = root.open(bound);
        assert_settled(&mut c, &root);
        for _ in 0..60 {
            let from = rng.below(300);
            c.submit_store(R, &keys(from..from + 3));
        }
        c.wait_all();
        let k = key(rng.below(300));
        if layout != Layout::Pack && c.holds(&k) {
            fs::write(file_of(c.tier.namespace_dir(), &k), b"damage").unwrap();
            c.load(R, &[k]);
        }
        assert_settled(&mut c, &root);
        assert!(c.tier.stats().blocks > 3, "round {round}");
    }
}

#[test]
fn directories_that_grow_are_counted() {
    // some thousand first-level directories, and a leaf full of long names
    let root = Root::new();
    let mut c = client_of(FsBuilder::new(root.settings(1 << 30), ns("model"), 512), 512);
    for n in 0..60 {
        all_ok(&c.store(R, &keys(n * 50..n * 50 + 50)));
    }
    let same_leaf: Vec<Key> = (0..60u64)
        .map(|n| {
            let mut bytes = long_key(n, 104).as_bytes().to_vec();
            bytes[..4].copy_from_slice(&[1, 2, 3, 4]);
            Key::new(&bytes).unwrap()
        })
        .collect();
    for k in &same_leaf {
        all_ok(&c.store(R, std::slice::from_ref(k)));
        assert_eq!(c.tier.stats().resident_bytes, root.du());
    }
    assert_settled(&mut c, &root);
    drop(c);
    // a lower bound at the next start removes most again
    let mut c = client_of(FsBuilder::new(root.settings(4 << 20), ns("model"), 512), 512);
    while c.tier.is_trimming() {
        std::thread::park_timeout(std::time::Duration::from_millis(5));
    }
    assert_settled(&mut c, &root);
}

#[test]
fn a_bound_below_one_block_is_refused_and_the_least_bound_holds_one() {
    let root = Root::new();
    let b = FsBuilder::new(root.settings(min_bound(LEN) - 1), ns("model"), LEN);
    let e = b.open().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    assert!(e.to_string().contains(&min_bound(LEN).to_string()), "{e}");
    assert!(!root.path().exists(), "nothing is made for a bad setting");
    let mut c = root.open(min_bound(LEN));
    for n in 0..20 {
        assert_eq!(c.store(R, &[key(n)]), [BlockOutcome::Stored]);
        assert!(c.holds(&key(n)));
    }
    assert_settled(&mut c, &root);
}

fn with_everything_pinned_a_store_fails_full_and_evicts_nothing(layout: Layout) {
    let root = Root::of(layout);
    let mut c = root.open(room_for(12, layout));
    store(&mut c, &keys(0..100));
    let held: Vec<_> = keys(0..100).into_iter().filter(|k| c.lookup(k, R)).collect();
    let evicted = c.tier.stats().evicted_blocks;
    let mut refused = 0;
    // slots are evicted many at a time: some are free
    for n in 200..300 {
        match c.store(RequestId(2), &[key(n)])[0] {
            BlockOutcome::Failed(kind) => {
                assert_eq!(kind, ErrorKind::Full);
                refused += 1;
            }
            // what room was left between the blocks
            _ => assert!(c.lookup(&key(n), R)),
        }
    }
    assert!(refused >= 20, "{refused}");
    assert_eq!(
        c.tier.stats().evicted_blocks,
        evicted,
        "something in use was evicted"
    );
    all_ok(&c.load(R, &held));
    c.tier.on_request_finished(R, &[]);
    store(&mut c, &keys(300..310));
    assert_settled(&mut c, &root);
}

#[test]
fn a_lower_bound_trims_at_start_oldest_first() {
    let root = Root::new();
    let mut c = root.open(64 << 20);
    for n in 0..40 {
        store(&mut c, &[key(n)]);
        set_mtime(&file_of(c.tier.namespace_dir(), &key(n)), 1_000_000 + n);
    }
    drop(c);
    let bound = min_bound(LEN) + 15 * (FILE + 8192);
    let mut c = root.open(bound);
    let held: Vec<_> = (0..40).filter(|&n| c.holds(&key(n))).collect();
    let first = held[0];
    assert!(first > 5 && held == (first..40).collect::<Vec<_>>(), "{held:?}");
    let s = c.tier.stats();
    assert_eq!((s.recovered_blocks, s.trim_candidates), (40, first));
    assert_settled(&mut c, &root);
}

fn set_mtime(path: &std::path::Path, seconds: u64) {
    let t = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
    fs::File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_modified(t)
        .unwrap();
}

#[test]
fn foreign_files_are_counted_and_left_alone() {
    let root = Root::new();
    fs::create_dir_all(root.path().join("notes/deep")).unwrap();
    fs::write(root.path().join("notes/deep/a.txt"), vec![1; 50_000]).unwrap();
    fs::write(root.path().join("README"), b"hello").unwrap();
    let bound = min_bound(LEN) + 80_000 + 4 * (FILE + 8192);
    let mut c = root.open(bound);
    assert_eq!(c.tier.stats().foreign_files, 2);
    store(&mut c, &keys(0..50));
    assert_settled(&mut c, &root);
    assert_eq!(
        fs::read(root.path().join("notes/deep/a.txt")).unwrap(),
        vec![1; 50_000]
    );
    assert!(root.path().join("README").exists());
}

#[test]
fn blocks_of_other_namespaces_count_and_can_be_evicted() {
    let root = Root::new();
    let bound = min_bound(LEN) + 20 * (FILE + 8192);
    let mut other = client(FsBuilder::new(root.settings(bound), ns("other"), LEN));
    store(&mut other, &keys(0..20));
    let dir = other.tier.namespace_dir().to_owned();
    drop(other);
    let mut c = root.open(bound);
    assert_settled(&mut c, &root);
    assert!(!c.holds(&key(1)), "another namespace's block hits");
    store(&mut c, &keys(100..140));
    assert_eq!(c.tier.stats().refused_blocks.iter().sum::<u64>(), 0);
    let left = crate::support::files(&dir).len();
    assert_eq!(left, 0, "the older blocks of the other namespace went first");
    assert_settled(&mut c, &root);
}

fn a_deep_walk_sees_the_bound_hold_while_jobs_run(layout: Layout) {
    let root = Root::of(layout);
    let bound = room_for(60, layout);
    let mut c = root.open(bound);
    let w = Watcher::start(root.path());
    for n in 0..400u64 {
        c.submit_store(RequestId(n), &keys(n * 3..n * 3 + 3));
    }
    c.wait_all();
    // a walk is not atomic: blocks evicted behind it and stored before it are counted both
    let (seen, moving) = (w.end(), 4 * (FILE + 8192) * 8);
    assert!(seen <= bound + moving, "{seen} of {bound}");
    assert!(c.tier.stats().peak_bytes <= bound);
    assert_settled(&mut c, &root);
}

fn stores_that_evict_beside_each_other_are_not_refused_while_nothing_is_pinned(layout: Layout) {
    let root = Root::of(layout);
    let mut c = root.open(room_for(40, layout));
    store(&mut c, &keys(0..80));
    for n in 0..200u64 {
        c.submit_store(RequestId(n), &keys(1000 + n * 2..1002 + n * 2));
    }
    let reports = c.wait_all();
    let refused = reports
        .iter()
        .flat_map(|r| &r.blocks)
        .filter(|b| !b.is_ok())
        .count();
    assert_eq!(refused, 0, "of 400 blocks");
    assert_settled(&mut c, &root);
}

in_both_layouts! {
    du_never_exceeds_the_bound_while_many_jobs_store,
    the_account_equals_du_after_stores_evictions_and_reopenings,
    with_everything_pinned_a_store_fails_full_and_evicts_nothing,
    a_deep_walk_sees_the_bound_hold_while_jobs_run,
    stores_that_evict_beside_each_other_are_not_refused_while_nothing_is_pinned,
}
