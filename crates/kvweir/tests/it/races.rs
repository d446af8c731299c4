//! Races and faults that a review found, each once a failing test: who joined is told, what is pinned stays, one bad
//! moment does not end service for good.

use crate::support::*;
use kvweir::{
    ErrorKind, Key,
    clock::ManualClock,
    fs::{FsBuilder, FsSettings},
    io::{
        Disk, DiskFile, OsDisk, Space, Stat,
        disk::{FileKind, OpenMode},
        fault::{Fault, FaultDisk, Op, Rule},
        pool::PoolSize,
    },
    metrics::EvictReason,
    tier::{BlockOutcome, RequestId, Tier, conformance::key},
};
use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering::SeqCst},
        mpsc,
    },
    time::Duration,
};

/// Free bytes as a test tells them.
type Free = Arc<dyn Fn(&Path) -> u64 + Send + Sync>;
type F = Arc<dyn Fn(&str, &Path) -> io::Result<()> + Send + Sync>;
#[derive(Clone)]
pub(crate) struct Hook {
    f: F,
    space: Option<Free>,
}
impl std::fmt::Debug for Hook {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Hook")
    }
}
pub(crate) fn hook(f: impl Fn(&str, &Path) -> io::Result<()> + Send + Sync + 'static) -> Hook {
    Hook {
        f: Arc::new(f),
        space: None,
    }
}
#[derive(Debug)]
struct HF {
    i: Box<dyn DiskFile>,
    h: Hook,
    p: PathBuf,
}
impl Disk for Hook {
    fn open(&self, p: &Path, m: OpenMode, d: bool) -> io::Result<Box<dyn DiskFile>> {
        (self.f)(
            if m == OpenMode::CreateNew {
                "create"
            } else {
                "open"
            },
            p,
        )?;
        Ok(Box::new(HF {
            i: OsDisk.open(p, m, d)?,
            h: self.clone(),
            p: p.to_owned(),
        }))
    }
    fn rename(&self, a: &Path, b: &Path) -> io::Result<()> {
        (self.f)("rename", b)?;
        OsDisk.rename(a, b)
    }
    fn remove_file(&self, p: &Path) -> io::Result<()> {
        (self.f)("remove", p)?;
        OsDisk.remove_file(p)
    }
    fn create_dir(&self, p: &Path) -> io::Result<()> {
        (self.f)("mkdir", p)?;
        OsDisk.create_dir(p)
    }
    fn remove_dir(&self, p: &Path) -> io::Result<()> {
        OsDisk.remove_dir(p)
    }
    fn list(&self, p: &Path, e: &mut dyn FnMut(&std::ffi::OsStr, Option<FileKind>)) -> io::Result<()> {
        (self.f)("list", p)?;
        OsDisk.list(p, e)
    }
    fn stat(&self, p: &Path) -> io::Result<Stat> {
        let r = OsDisk.stat(p);
        (self.f)(if r.is_ok() { "stat" } else { "stat-none" }, p)?;
        r
    }
    fn space(&self, p: &Path) -> io::Result<Space> {
        let mut s = OsDisk.space(p)?;
        if let Some(f) = &self.space {
            s.available = f(p);
        }
        Ok(s)
    }
}
impl DiskFile for HF {
    fn read_at(&self, b: &mut [io::IoSliceMut<'_>], o: u64) -> io::Result<usize> {
        (self.h.f)("read", &self.p)?;
        self.i.read_at(b, o)
    }
    fn write_at(&self, b: &[io::IoSlice<'_>], o: u64) -> io::Result<usize> {
        (self.h.f)("write", &self.p)?;
        self.i.write_at(b, o)
    }
    fn allocate(&self, l: u64) -> io::Result<()> {
        self.i.allocate(l)
    }
    fn sync(&self) -> io::Result<()> {
        self.i.sync()
    }
    fn stat(&self) -> io::Result<Stat> {
        self.i.stat()
    }
    fn try_lock(&self) -> io::Result<bool> {
        (self.h.f)("lock", &self.p)?;
        self.i.try_lock()
    }
}
pub(crate) fn builder(root: &Root, max: u64, threads: usize, d: impl Disk + 'static) -> FsBuilder {
    let s = FsSettings {
        pool: PoolSize::new(2, threads),
        ..root.settings(max)
    };
    FsBuilder::new(s, ns("model"), LEN).disk(Arc::new(d))
}
fn sleep(ms: u64) {
    pause(ms);
}

/// Waits, since a test has nothing to wait for.
fn pause(ms: u64) {
    kvweir::sync::Bell::default().wait(0, Duration::from_millis(ms));
}

/// Keys of one leaf directory.
fn near(n: u8) -> Key {
    let mut b = [0u8; 36];
    b[0] = 1;
    b[3] = n;
    b[4] = n;
    Key::new(&b).unwrap()
}

#[test]
fn a_panicking_writer_tells_those_who_joined() {
    let root = Root::new();
    let once = AtomicBool::new(true);
    let d = hook(move |op, _| {
        if op == "rename" && once.swap(false, SeqCst) {
            pause(300);
            panic!("disk bug");
        }
        Ok(())
    });
    let mut c = client(builder(&root, 8 << 20, 2, d));
    c.submit_store(R, &[key(1)]);
    sleep(50);
    c.submit_store(RequestId(2), &[key(1)]);
    sleep(600);
    c.tier.drain();
    c.collect();
    let s = c.tier.stats();
    println!(
        "outstanding {} reserved {} then store: ",
        c.outstanding(),
        s.reserved_bytes
    );
    let bad = c.outstanding();
    std::mem::forget(c);
    assert_eq!(bad, 0);
}

fn plant(root: &Root, n: u64) {
    let dir = root.path().join(ns("model").dir());
    for i in 0..n {
        let f = file_of(&dir, &key(i));
        std::fs::create_dir_all(f.parent().unwrap()).unwrap();
        std::fs::write(&f, [7u8; LEN]).unwrap();
    }
}

#[test]
fn a_trim_of_files_that_cannot_be_removed_ends() {
    let root = Root::new();
    plant(&root, 500);
    let clock = Arc::new(ManualClock::new());
    let k = Arc::clone(&clock);
    let n = Arc::new(AtomicU64::new(0));
    let m = Arc::clone(&n);
    let d = hook(move |op, p| {
        if op == "remove" && p.extension().is_some_and(|e| e == "bin") {
            m.fetch_add(1, SeqCst);
            k.advance(Duration::from_millis(100));
            return Err(io::Error::from_raw_os_error(1));
        }
        Ok(())
    });
    let b = builder(&root, 2 << 20, 2, d).clock(clock);
    let (tx, rx) = mpsc::sync_channel(4096);
    let opener = std::thread::Builder::new().name("opener".into());
    let _opener = opener.spawn(move || {
        let r = b.open();
        let _ = tx.send(r.is_ok());
    });
    let r = rx.recv_timeout(Duration::from_secs(60));
    println!("open {r:?}, {} removals of 500 files", n.load(SeqCst));
    assert!(r.is_ok());
}

#[test]
fn the_floor_of_free_bytes_evicts_only_what_is_missing() {
    let root = Root::new();
    let filler = Arc::new(AtomicU64::new(0));
    let (f2, slow) = (Arc::clone(&filler), Arc::new(AtomicBool::new(false)));
    let s2 = Arc::clone(&slow);
    let path = root.path();
    let mut d = hook(move |op, _| {
        if op == "remove" && s2.load(SeqCst) {
            pause(5);
        }
        Ok(())
    });
    d.space = Some(Arc::new(move |_| {
        (40u64 << 20).saturating_sub(du(&path) + f2.load(SeqCst))
    }));
    let s = FsSettings {
        pool: PoolSize::new(2, 8),
        min_free_bytes: Some(20 << 20),
        ..root.settings(64 << 20)
    };
    let mut c = client(FsBuilder::new(s, ns("model"), LEN).disk(Arc::new(d)));
    store(&mut c, &keys(0..500));
    let (blocks, free) = (c.tier.stats().blocks, (40u64 << 20) - root.du());
    let over = (free - (20 << 20)) + (1 << 20); // one MiB below the floor: about 50 blocks
    filler.store(over, SeqCst);
    slow.store(true, SeqCst);
    sleep(100);
    let out = c.store(R, &keys(1000..1008));
    let s = c.tier.stats();
    println!(
        "blocks {blocks}; evicted {} for 1 MiB missing (~{} blocks)",
        s.evicted_blocks[EvictReason::NoSpace as usize],
        (1u64 << 20) / FILE
    );
    println!("{out:?}");
    assert!(s.evicted_blocks[EvictReason::NoSpace as usize] < 200);
}

#[test]
fn a_leaf_removed_behind_our_back_is_made_again() {
    for bound in [0, 8 << 20] {
        let root = Root::new();
        let mut c = root.open(bound);
        store(&mut c, &[near(1)]);
        let leaf = file_of(c.tier.namespace_dir(), &near(1))
            .parent()
            .unwrap()
            .to_owned();
        std::fs::remove_dir_all(&leaf).unwrap();
        let got: Vec<_> = (2..6).map(|n| c.store(R, &[near(n)])[0]).collect();
        println!("bound {bound}: {got:?}");
        assert!(got.iter().any(|o| o.is_ok()));
    }
}

#[test]
fn a_foreign_directory_that_cannot_be_read_does_not_stop_the_start() {
    let root = Root::new();
    std::fs::create_dir_all(root.path().join("lost+found")).unwrap();
    let d = FaultDisk::new(Arc::new(OsDisk));
    d.add(Rule::new(Op::List, Fault::Errno(13)).path("lost+found"));
    let r = builder(&root, 8 << 20, 2, d).open();
    println!("{:?}", r.as_ref().err().map(ToString::to_string));
    assert!(r.is_ok());
}

#[test]
fn a_shared_root_without_file_locks_still_stores() {
    for errno in [37, 38] {
        let root = Root::new();
        let d = hook(move |op, _| {
            if op == "lock" {
                Err(io::Error::from_raw_os_error(errno))
            } else {
                Ok(())
            }
        });
        let mut c = client(builder(&root, 0, 2, d));
        let got = c.store(R, &[key(1)]);
        println!("errno {errno}: {got:?}");
        assert!(got[0].is_ok());
    }
}

#[test]
fn the_presence_check_never_removes_a_pinned_file() {
    let root = Root::new();
    let gate: Arc<Mutex<Option<mpsc::Receiver<()>>>> = Arc::default();
    let g = Arc::clone(&gate);
    let (at, arrived) = mpsc::sync_channel(4096);
    let at = Mutex::new(at);
    let d = hook(move |op, p| {
        if op == "stat-none"
            && p.extension().is_some_and(|e| e == "bin")
            && let Some(rx) = g.lock().unwrap().take()
        {
            at.lock().unwrap().send(()).unwrap();
            rx.recv().unwrap();
        }
        Ok(())
    });
    let mut c = client(builder(&root, 8 << 20, 2, d));
    store(&mut c, &[key(1)]);
    let (go, rx) = mpsc::sync_channel(4096);
    *gate.lock().unwrap() = Some(rx);
    std::fs::remove_file(file_of(c.tier.namespace_dir(), &key(1))).unwrap(); // stands for an eviction
    let a = c.submit_store(RequestId(5), &[key(1)]);
    arrived.recv().unwrap();
    assert!(!c.load(R, &[key(1)])[0].is_ok()); // the entry goes
    assert_eq!(c.store(RequestId(6), &[key(1)]), [BlockOutcome::Stored]);
    assert!(c.lookup(&key(1), RequestId(7)), "pinned");
    go.send(()).unwrap();
    let r = c.wait(a);
    println!(
        "A: {:?}; evicted external {}",
        r.blocks,
        c.tier.stats().evicted_blocks[EvictReason::External as usize]
    );
    assert_eq!(
        c.tier.stats().evicted_blocks[EvictReason::External as usize],
        1,
        "only the first, lost file; a pinned one was removed"
    );
}

#[test]
fn a_directory_that_cannot_be_made_on_a_full_device_does_not_empty_the_cache() {
    let root = Root::new();
    let d = FaultDisk::new(Arc::new(OsDisk));
    let mut c = client(builder(&root, 8 << 20, 2, d.clone()));
    store(&mut c, &keys(0..60));
    d.add(Rule::new(Op::CreateDir, Fault::Errno(28)));
    for n in 100..140 {
        assert_eq!(c.store(R, &[key(n)]), [BlockOutcome::Failed(ErrorKind::Full)]);
    }
    let s = c.tier.stats();
    println!(
        "blocks {} evicted {}",
        s.blocks,
        s.evicted_blocks[EvictReason::NoSpace as usize]
    );
    assert!(s.evicted_blocks[EvictReason::NoSpace as usize] <= 5);
}

#[test]
fn what_a_hung_write_may_still_use_is_not_given_away() {
    let root = Root::new();
    let (go, rx) = mpsc::sync_channel::<()>(4096);
    let rx = Mutex::new(Some(rx));
    let d = hook(move |op, p| {
        if op == "write"
            && p.extension().is_some_and(|e| e == "kvweir")
            && let Some(rx) = rx.lock().unwrap().take()
        {
            let _ = rx.recv();
        }
        Ok(())
    });
    let bound = 1 << 20;
    let mut c = client(builder(&root, bound, 2, d));
    c.submit_store(R, &[key(1)]);
    sleep(100);
    c.tier.shutdown();
    let held = c.tier.stats().resident_bytes;
    // others may come in, but what the first holds and was promised stays its own
    let second = FsBuilder::new(root.settings(bound), ns("model"), LEN).open();
    println!(
        "second opener while the write runs: {:?}",
        second.as_ref().map(|_| ())
    );
    assert!(refused_bound(&root, bound + 1), "somebody lives there");
    go.send(()).unwrap();
    sleep(300);
    std::mem::forget(c);
    assert!(root.du() <= bound && held > 0);
}

fn refused_bound(root: &Root, bound: u64) -> bool {
    let other = FsBuilder::new(root.settings(bound), ns("model"), LEN).open();
    other.is_err_and(|e| e.kind() == ErrorKind::Busy)
}

#[test]
fn one_stolen_retry_on_a_full_device_does_not_end_stores_for_good() {
    let root = Root::new();
    let (credit, steal, full) = (
        Arc::new(AtomicU64::new(0)),
        Arc::new(AtomicBool::new(false)),
        Arc::new(AtomicBool::new(false)),
    );
    let (c2, s2, f2) = (Arc::clone(&credit), Arc::clone(&steal), Arc::clone(&full));
    let d = hook(move |op, p| {
        if !f2.load(SeqCst) {
            return Ok(());
        }
        let ext = p.extension().and_then(|e| e.to_str()).unwrap_or("");
        if op == "remove" && ext == "bin" && !s2.load(SeqCst) {
            c2.fetch_add(1, SeqCst);
        }
        if op == "write" && ext == "kvweir" && c2.fetch_update(SeqCst, SeqCst, |n| n.checked_sub(1)).is_err()
        {
            return Err(io::Error::from_raw_os_error(28));
        }
        Ok(())
    });
    let clock = Arc::new(ManualClock::new());
    let mut c = client(builder(&root, 8 << 20, 2, d).clock(Arc::clone(&clock) as _));
    store(&mut c, &keys(0..60));
    full.store(true, SeqCst);
    assert!(c.store(R, &[key(100)])[0].is_ok(), "evicting helps");
    clock.advance(Duration::from_secs(31));
    credit.store(0, SeqCst);
    steal.store(true, SeqCst); // what this one frees, somebody else takes
    assert!(!c.store(R, &[key(101)])[0].is_ok());
    steal.store(false, SeqCst);
    let mut ok = 0;
    for n in 200..300 {
        clock.advance(Duration::from_secs(60));
        ok += u32::from(c.store(R, &[key(n)])[0].is_ok());
    }
    println!(
        "{ok} of 100 stores in the next 100 minutes, {} blocks held",
        c.tier.stats().blocks
    );
    assert!(ok > 0);
}
