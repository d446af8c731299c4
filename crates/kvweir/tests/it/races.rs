//! Races and faults that a review found, each once a failing test: who joined is told, what is pinned stays, one bad
//! moment does not end service for good.

use std::{
    io,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    time::Duration,
};

use kvweir::{
    ErrorKind, Key,
    clock::ManualClock,
    fs::{FsBuilder, FsSettings},
    io::{
        fault::{Fault, Op, Rule},
        pool::PoolSize,
    },
    metrics::EvictReason,
    tier::{BlockOutcome, RequestId, Tier, conformance::key},
};

use crate::{hook::hook, support::*};

const BOUND: u64 = 8 << 20;
const MIB: u64 = 1 << 20;
const EPERM: i32 = 1;
const EACCES: i32 = 13;
const ENOSPC: i32 = 28;
const ENOLCK: i32 = 37;
const ENOSYS: i32 = 38;

fn is_block(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "bin")
}

fn is_temporary(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "kvweir")
}

/// A place in which the first thread to come waits until the test lets it go.
struct Stop {
    armed: AtomicBool,
    arrives: SyncSender<()>,
    go: Mutex<Receiver<()>>,
}

impl Stop {
    /// The place, who hears of the arrival, and what lets go.
    fn new(armed: bool) -> (Arc<Self>, Receiver<()>, SyncSender<()>) {
        let (arrives, arrived) = sync_channel(1);
        let (let_go, go) = sync_channel(1);
        let stop = Self {
            armed: AtomicBool::new(armed),
            arrives,
            go: Mutex::new(go),
        };
        (Arc::new(stop), arrived, let_go)
    }

    /// Whether this thread was the one that waited.
    fn pass(&self) -> bool {
        let first = self.armed.swap(false, SeqCst);
        if first {
            self.arrives.send(()).unwrap();
            self.go.lock().unwrap().recv().unwrap();
        }
        first
    }
}

#[test]
fn a_panicking_writer_tells_those_who_joined() {
    let root = Root::new();
    let (stop, arrived, let_go) = Stop::new(true);
    let disk = hook(move |op, path| {
        let panics = op == Op::Rename && is_block(path) && stop.pass();
        assert!(!panics, "a bug of the disk");
        Ok(())
    });
    let mut c = client(root.on(disk, BOUND));
    let writes = c.submit_store(R, &[key(1)]);
    arrived.recv().unwrap();
    let joins = c.submit_store(RequestId(2), &[key(1)]);
    pause(100); // for a worker to take it up
    let_go.send(()).unwrap();
    for (job, who) in [(writes, "the writer"), (joins, "who joined")] {
        let told = c.wait(job).blocks;
        assert!(matches!(told[..], [BlockOutcome::Failed(_)]), "{who}: {told:?}");
    }
    c.tier.drain();
    c.collect();
    assert_eq!(c.outstanding(), 0, "jobs of which nobody ever hears");
    assert_eq!(c.tier.stats().reserved_bytes, 0, "what the writer had reserved");
    assert_eq!(
        c.store(R, &[key(1)]),
        [BlockOutcome::Stored],
        "the next one writes it"
    );
}

/// Block files of another program, of the right length and without a trailer.
fn plant(root: &Root, n: u64) {
    let dir = root.path().join(ns("model").dir());
    for k in keys(0..n) {
        let file = file_of(&dir, &k);
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, [7u8; LEN]).unwrap();
    }
}

#[test]
fn a_trim_of_files_that_cannot_be_removed_ends() {
    let root = Root::new();
    plant(&root, 500);
    let clock = Arc::new(ManualClock::new());
    let removals = Arc::new(AtomicU64::new(0));
    let disk = hook({
        let (clock, removals) = (Arc::clone(&clock), Arc::clone(&removals));
        move |op, path| {
            if op == Op::Remove && is_block(path) {
                removals.fetch_add(1, SeqCst);
                clock.advance(Duration::from_millis(100));
                return Err(io::Error::from_raw_os_error(EPERM));
            }
            Ok(())
        }
    });
    let builder = root.on(disk, 2 * MIB).clock(clock);
    let (tell, told) = sync_channel(1);
    let opener = std::thread::Builder::new().name("opener".into());
    let opener = opener.spawn(move || tell.send(builder.open().map(drop))).unwrap();
    let opened = told
        .recv_timeout(Duration::from_secs(60))
        .expect("the start never ends");
    opener.join().unwrap().unwrap();
    let refused = opened.unwrap_err();
    assert_eq!(
        refused.kind(),
        ErrorKind::Full,
        "no tier fits beside files that stay: {refused}"
    );
    let tries = removals.load(SeqCst);
    assert!((1..=1000).contains(&tries), "{tries} tries to remove 500 files");
}

#[test]
fn the_floor_of_free_bytes_evicts_only_what_is_missing() {
    const DEVICE: u64 = 40 * MIB;
    const FLOOR: u64 = 20 * MIB;
    let root = Root::new();
    let others = Arc::new(AtomicU64::new(0));
    let slow = Arc::new(AtomicBool::new(false));
    let disk = hook({
        let slow = Arc::clone(&slow);
        move |op, _| {
            if op == Op::Remove && slow.load(SeqCst) {
                pause(5);
            }
            Ok(())
        }
    });
    let disk = disk.free({
        let (others, path) = (Arc::clone(&others), root.path());
        move || DEVICE.saturating_sub(du(&path) + others.load(SeqCst))
    });
    let settings = FsSettings {
        pool: PoolSize::new(2, 8),
        min_free_bytes: Some(FLOOR),
        ..root.settings(64 * MIB)
    };
    let mut c = client(FsBuilder::new(settings, ns("model"), LEN).disk(Arc::new(disk)));
    store(&mut c, &keys(0..500));
    assert_eq!(
        c.tier.stats().evicted_blocks,
        [0; EvictReason::ALL.len()],
        "all have room"
    );
    // somebody else takes so much that one MiB is missing
    let free = DEVICE - root.du();
    others.store(free - FLOOR + MIB, SeqCst);
    slow.store(true, SeqCst);
    pause(100);
    let outcomes = c.store(R, &keys(1000..1008));
    let evicted = c.tier.stats().evicted_blocks[EvictReason::NoSpace as usize];
    let missing = MIB / FILE;
    assert!(
        (1..200).contains(&evicted),
        "{evicted} blocks evicted where about {missing} are missing; stores: {outcomes:?}"
    );
    all_ok(&outcomes);
}

/// Keys whose files lie in one directory.
fn of_one_leaf(n: u8) -> Key {
    let mut bytes = [0; 36];
    bytes[0] = 1;
    bytes[3] = n;
    bytes[4] = n;
    Key::new(&bytes).unwrap()
}

#[test]
fn a_leaf_removed_behind_our_back_is_made_again() {
    for bound in [0, BOUND] {
        let root = Root::new();
        let mut c = root.open(bound);
        store(&mut c, &[of_one_leaf(1)]);
        let file = file_of(c.tier.namespace_dir(), &of_one_leaf(1));
        let leaf = file.parent().unwrap();
        std::fs::remove_dir_all(leaf).unwrap();
        let later: Vec<Key> = (2..6).map(of_one_leaf).collect();
        for k in &later {
            let outcome = c.store(R, std::slice::from_ref(k));
            assert_eq!(outcome, [BlockOutcome::Stored], "bound {bound}: {k}");
            assert!(
                file_of(c.tier.namespace_dir(), k).starts_with(leaf),
                "{k} lies elsewhere"
            );
        }
        all_ok(&c.load(R, &later));
    }
}

#[test]
fn a_foreign_directory_that_cannot_be_read_does_not_stop_the_start() {
    let root = Root::new();
    std::fs::create_dir_all(root.path().join("lost+found")).unwrap();
    let disk = faulty();
    disk.add(Rule::new(Op::List, Fault::Errno(EACCES)).path("lost+found"));
    let mut c = client(root.on(disk.clone(), BOUND));
    assert!(!disk.met().is_empty(), "nobody listed it");
    store(&mut c, &[key(1)]);
}

#[test]
fn a_shared_root_without_file_locks_still_stores() {
    for errno in [ENOLCK, ENOSYS] {
        let root = Root::new();
        let disk = hook(move |op, _| match op {
            Op::Lock => Err(io::Error::from_raw_os_error(errno)),
            _ => Ok(()),
        });
        let mut c = client(root.on(disk, 0));
        assert_eq!(c.store(R, &[key(1)]), [BlockOutcome::Stored], "errno {errno}");
    }
}

#[test]
fn the_presence_check_never_removes_a_pinned_file() {
    let root = Root::new();
    let (stop, arrived, let_go) = Stop::new(false);
    let disk = hook(|_, _| Ok(())).on_missing({
        let stop = Arc::clone(&stop);
        move |path| {
            if is_block(path) {
                stop.pass();
            }
        }
    });
    let mut c = client(root.on(disk, BOUND));
    store(&mut c, &[key(1)]);
    stop.armed.store(true, SeqCst);
    std::fs::remove_file(file_of(c.tier.namespace_dir(), &key(1))).unwrap(); // stands for an eviction
    let checks = c.submit_store(RequestId(5), &[key(1)]);
    arrived.recv().unwrap();
    // it has seen that the file is gone; meanwhile the entry goes, and another writes the block and pins it
    assert!(!c.load(R, &[key(1)])[0].is_ok(), "nothing is there to load");
    assert_eq!(c.store(RequestId(6), &[key(1)]), [BlockOutcome::Stored]);
    assert!(c.lookup(&key(1), RequestId(7)), "pinned");
    let_go.send(()).unwrap();
    all_ok(&c.wait(checks).blocks);
    assert_eq!(
        c.tier.stats().evicted_blocks[EvictReason::External as usize],
        1,
        "only the first, lost file; a pinned one was removed"
    );
    all_ok(&c.load(RequestId(7), &[key(1)]));
}

#[test]
fn a_directory_that_cannot_be_made_on_a_full_device_does_not_empty_the_cache() {
    let root = Root::new();
    let disk = faulty();
    let mut c = client(root.on(disk.clone(), BOUND));
    store(&mut c, &keys(0..60));
    disk.add(Rule::new(Op::CreateDir, Fault::Errno(ENOSPC)));
    for n in 100..140 {
        assert_eq!(c.store(R, &[key(n)]), [BlockOutcome::Failed(ErrorKind::Full)]);
    }
    let stats = c.tier.stats();
    let evicted = stats.evicted_blocks[EvictReason::NoSpace as usize];
    assert!(
        evicted <= 5,
        "{evicted} blocks evicted for directories that are not made"
    );
    assert_eq!(stats.blocks, 60 - evicted, "the others stay");
}

fn opened_beside(root: &Root, bound: u64) -> kvweir::Result<()> {
    FsBuilder::new(root.settings(bound), ns("model"), LEN)
        .open()
        .map(drop)
}

#[test]
fn what_a_hung_write_may_still_use_is_not_given_away() {
    let root = Root::new();
    let (stop, arrived, let_go) = Stop::new(true);
    let disk = hook(move |op, path| {
        if op == Op::Write && is_temporary(path) {
            stop.pass();
        }
        Ok(())
    });
    let mut c = client(root.on(disk, MIB));
    c.submit_store(R, &[key(1)]);
    arrived.recv().unwrap();
    c.tier.shutdown();
    assert!(
        c.tier.stats().resident_bytes > 0,
        "what it holds and was promised stays its own"
    );
    opened_beside(&root, MIB).expect("others may come in");
    let other_bound = opened_beside(&root, MIB + 1).unwrap_err();
    assert_eq!(other_bound.kind(), ErrorKind::Busy, "somebody lives there");
    let_go.send(()).unwrap();
    pause(300); // for the write to end
    assert!(root.du() <= MIB, "{} bytes of {MIB}", root.du());
}

/// A full device: a removed block gives room for one write, unless somebody else takes it.
#[derive(Default)]
struct FullDevice {
    full: AtomicBool,
    stolen: AtomicBool,
    room: AtomicU64,
}

impl FullDevice {
    fn before(&self, op: Op, path: &Path) -> io::Result<()> {
        if !self.full.load(SeqCst) {
            return Ok(());
        }
        if op == Op::Remove && is_block(path) && !self.stolen.load(SeqCst) {
            self.room.fetch_add(1, SeqCst);
        }
        let takes = || self.room.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1));
        if op == Op::Write && is_temporary(path) && takes().is_err() {
            return Err(io::Error::from_raw_os_error(ENOSPC));
        }
        Ok(())
    }
}

#[test]
fn one_stolen_retry_on_a_full_device_does_not_end_stores_for_good() {
    let root = Root::new();
    let device = Arc::new(FullDevice::default());
    let disk = hook({
        let device = Arc::clone(&device);
        move |op, path| device.before(op, path)
    });
    let clock = Arc::new(ManualClock::new());
    let mut c = client(root.on(disk, BOUND).clock(Arc::clone(&clock) as _));
    store(&mut c, &keys(0..60));
    device.full.store(true, SeqCst);
    assert_eq!(c.store(R, &[key(100)]), [BlockOutcome::Stored], "evicting helps");
    clock.advance(Duration::from_secs(31));
    device.room.store(0, SeqCst);
    device.stolen.store(true, SeqCst);
    let stolen = c.store(R, &[key(101)]);
    assert_eq!(
        stolen,
        [BlockOutcome::Failed(ErrorKind::Full)],
        "what it frees, another takes"
    );
    device.stolen.store(false, SeqCst);
    // in the next 100 minutes
    for k in keys(200..300) {
        clock.advance(Duration::from_secs(60));
        assert_eq!(
            c.store(R, std::slice::from_ref(&k)),
            [BlockOutcome::Stored],
            "{k}"
        );
    }
}
