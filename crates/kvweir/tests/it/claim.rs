//! A claim on a root ends with its tier and a tier with its claim, on every path: a keeper that panics, workers that
//! cannot start, a process that forked and was killed (I1, I10).

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc::{Receiver, sync_channel},
    },
    time::Duration,
};

use kvweir::{
    ErrorKind,
    admin::Admin,
    fs::{FsSettings, Layout},
    io::{Region, fault::Op, pool::PoolSize, process::fork},
    tier::{BlockOutcome, JobId, LoadBlock, LoadJob, Lookup, Report, StoreBlock, StoreJob, Tier},
};

use crate::{
    hook::hook,
    shared_root::{join, pour},
    support::*,
};

const BOUND: u64 = 8 << 20;
const ROOT: &str = "KVWEIR_TEST_CLAIM";
const CLOSED: BlockOutcome = BlockOutcome::Failed(ErrorKind::Closed);

fn is_keeper() -> bool {
    std::thread::current().name() == Some("kvweir-keeper")
}

/// Pids of those who hold the root.
fn holders(root: &Path) -> Vec<Option<u32>> {
    let all = Admin::new(root).unwrap().holders().unwrap();
    all.iter().filter(|h| h.may_live()).map(|h| h.pid).collect()
}

fn a_keeper_that_panics_closes_its_tier_and_then_lets_the_root_go(layout: Layout) {
    // once its lock was free from then on, while the tier stored what it had leased, and others leased that too
    let root = Root::of(layout);
    let armed = Arc::new(AtomicBool::new(false));
    let seen = Arc::clone(&armed);
    let disk = hook(move |op, path| {
        let panics = op == Op::Lock && path.ends_with(".kvweir/ledger") && is_keeper() && seen.load(SeqCst);
        assert!(!panics, "on purpose");
        Ok(())
    });
    let mut a = client(root.on(disk, BOUND));
    store(&mut a, &keys(0..20));
    assert_eq!(holders(&root.path()).len(), 1);
    armed.store(true, SeqCst);
    until("the claim ends", || holders(&root.path()).is_empty());
    // the tier ended before: no hit, no store, no load of what it pinned
    assert_eq!(a.tier.lookup(&keys(0..1)[0], R), Lookup::Miss);
    assert_eq!(a.store(R, &keys(100..102)), [CLOSED; 2]);
    assert_eq!(a.load(R, &keys(0..2)), [CLOSED; 2]);
    // another bound, even: it is alone, and finds all
    let mut b = join(&root, BOUND / 2, "model");
    assert_eq!(b.tier.stats().recovered_blocks, 20);
    all_ok(&b.load(R, &keys(0..20)));
    b.tier.on_request_finished(R, &[]);
    pour(&mut b, 1000..1400);
    pour(&mut a, 2000..2100);
    assert!(root.du() <= BOUND / 2, "{} of {}", root.du(), BOUND / 2);
    drop(a);
    assert_settled(&mut b, &root);
}

fn a_keeper_that_panics_beside_a_job_keeps_the_root_until_that_ends(layout: Layout) {
    let root = Root::of(layout);
    let (armed, held) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicBool::new(false)));
    let (a1, h1) = (Arc::clone(&armed), Arc::clone(&held));
    let (begins, begun) = sync_channel(16);
    let disk = hook(move |op, path| {
        let panics = op == Op::Lock && path.ends_with(".kvweir/ledger") && is_keeper() && a1.load(SeqCst);
        assert!(!panics, "on purpose");
        if op == Op::Write && !path.to_string_lossy().contains(".kvweir/") && h1.load(SeqCst) {
            begins.send(()).unwrap();
            while h1.load(SeqCst) {
                std::thread::yield_now();
            }
        }
        Ok(())
    });
    let mut a = client(root.on(disk, BOUND));
    store(&mut a, &keys(0..1));
    held.store(true, SeqCst);
    a.submit_store(R, &keys(1..2));
    begun.recv().unwrap();
    armed.store(true, SeqCst);
    until("the tier is closed", || {
        a.tier.lookup(&keys(0..1)[0], R) == Lookup::Miss
    });
    a.tier.on_request_finished(R, &[]);
    // longer than two visits of a keeper
    pause(500);
    assert_eq!(holders(&root.path()).len(), 1, "its I/O still runs");
    held.store(false, SeqCst);
    until("the claim ends", || holders(&root.path()).is_empty());
    let mut b = join(&root, BOUND, "model");
    assert_settled(&mut b, &root);
}

fn a_panic_while_the_root_is_read_is_an_error_and_the_root_is_free(layout: Layout) {
    // once nobody told whoever waited for it, and `open` never returned
    for file in ["/journal-", "/snapshot-", "ledger"] {
        let root = Root::of(layout);
        let mut a = join(&root, BOUND, "model");
        store(&mut a, &keys(0..20));
        a.tier.compact();
        drop(a);
        let disk = hook(move |op, path| {
            let panics = op == Op::Read && path.to_string_lossy().contains(file) && is_keeper();
            assert!(!panics, "on purpose");
            Ok(())
        });
        let builder = root.on(disk, BOUND);
        let (tell, told) = sync_channel(1);
        let opening = std::thread::Builder::new().name("open".into());
        let opening = opening.spawn(move || tell.send(builder.open().map(drop)));
        let opened = told
            .recv_timeout(Duration::from_secs(60))
            .expect("open does not return");
        let error = opened.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "{error}");
        assert!(error.message().contains("panicked (on purpose)"), "{error}");
        opening.unwrap().join().unwrap().unwrap();
        assert_eq!(holders(&root.path()), []);
        let mut b = join(&root, BOUND, "model");
        all_ok(&b.load(R, &keys(0..20)));
        b.tier.on_request_finished(R, &[]);
        assert_settled(&mut b, &root);
    }
}

fn a_member_whose_lock_file_was_cleaned_away_takes_it_again(layout: Layout) {
    // once the next one to come took it for dead: the tier that lived was closed, and stayed so
    let root = Root::of(layout);
    let mut a = join(&root, BOUND, "model");
    store(&mut a, &keys(0..20));
    let lock = root.path().join(".kvweir/member-00.lock");
    for other in ["model", "other"] {
        std::fs::remove_file(&lock).unwrap();
        until("the lock's file is there", || lock.exists());
        until("it is held", || holders(&root.path()).len() == 1);
        let mut b = join(&root, BOUND, other);
        assert_eq!(holders(&root.path()).len(), 2);
        pour(&mut b, 1000..1400);
        pour(&mut a, 2000..2400);
        assert!(root.du() <= BOUND, "{} of {BOUND}", root.du());
        all_ok(&a.store(R, &keys(30..31)));
        all_ok(&a.load(R, &keys(30..31)));
        a.tier.on_request_finished(R, &[]);
    }
}

in_both_layouts! {
    a_member_whose_lock_file_was_cleaned_away_takes_it_again,
    a_keeper_that_panics_closes_its_tier_and_then_lets_the_root_go,
    a_keeper_that_panics_beside_a_job_keeps_the_root_until_that_ends,
    a_panic_while_the_root_is_read_is_an_error_and_the_root_is_free,
}

/// Runs a test of this file, which is ignored, in a process of its own.
fn spawn(name: &str, root: &Path) -> Child {
    Command::new(std::env::current_exe().unwrap())
        .args(["--exact", name, "--ignored", "--nocapture"])
        .env(ROOT, root)
        // one heap with room at its end: where there is no memory for a stack, there is for all else
        .env("MALLOC_ARENA_MAX", "1")
        .env("MALLOC_TOP_PAD_", (64 << 20).to_string())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::inherit())
        .spawn()
        .unwrap()
}

fn root_of_child(layout: Layout, bound: u64) -> Option<FsSettings> {
    let root = std::env::var(ROOT).ok()?;
    Some(FsSettings {
        max_bytes: Some(bound),
        layout,
        pool: PoolSize::new(2, 2),
        ..FsSettings::new(root)
    })
}

#[test]
#[ignore = "the child of another test"]
fn child_without_threads() {
    let Some(settings) = root_of_child(Layout::Auto, BOUND) else {
        return;
    };
    let open = |pool| {
        let settings = FsSettings {
            pool,
            ..settings.clone()
        };
        builder(settings, "model", LEN).open()
    };
    let space = || {
        let status = std::fs::read_to_string("/proc/self/statm").unwrap();
        status.split(' ').next().unwrap().parse::<u64>().unwrap() * 4096
    };
    let unlimited = rustix::process::getrlimit(rustix::process::Resource::As);
    // memory for some stacks, and not for all
    let limit = rustix::process::Rlimit {
        current: Some(space() + (256 << 20)),
        maximum: unlimited.maximum,
    };
    rustix::process::setrlimit(rustix::process::Resource::As, limit).unwrap();
    let error = open(PoolSize::new(256, 256)).unwrap_err();
    rustix::process::setrlimit(rustix::process::Resource::As, unlimited).unwrap();
    assert_eq!(error.op(), "start worker", "{error}");
    let threads = std::fs::read_dir("/proc/self/task").unwrap().flatten();
    let names = threads.map(|t| std::fs::read_to_string(t.path().join("comm")).unwrap_or_default());
    let left: Vec<_> = names.filter(|n| n.starts_with("kvweir-")).collect();
    assert_eq!(left, Vec::<String>::new(), "threads of a tier that is none");
    let root = &settings.root;
    assert_eq!(holders(root), []);
    let mut c = kvweir::tier::conformance::Client::new(Box::new(open(PoolSize::new(2, 2)).unwrap()), 64, LEN);
    all_ok(&c.store(R, &keys(0..20)));
    println!("\nstored");
}

#[test]
fn workers_that_cannot_start_leave_the_root_to_others() {
    // once the keeper went on, and held root and lease for as long as the process lived
    let root = Root::new();
    let child = spawn("claim::child_without_threads", &root.path());
    let out = child.wait_with_output().unwrap();
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    assert!(out.status.success() && text.contains("\nstored"), "{text}");
}

/// Calls everything in a child that was forked; whether each did nothing.
fn call_all(c: &mut Fs, region: &Region) {
    let t = &mut c.tier;
    let (key, two) = (keys(0..1).remove(0), keys(0..2));
    assert_eq!(t.lookup(&key, R), Lookup::Miss);
    assert_eq!((t.lookup_prefix(&two, R), t.pin_ahead(&two, R)), (0, 0));
    t.count_hits(1);
    let store = StoreBlock {
        key: key.clone(),
        slot: region.read(0).unwrap(),
    };
    t.submit_store(StoreJob {
        id: JobId(1 << 40),
        req: R,
        blocks: vec![store],
    });
    let load = LoadBlock {
        key: key.clone(),
        slot: region.write(1).unwrap(),
    };
    t.submit_load(LoadJob {
        id: JobId(2 << 40),
        req: R,
        blocks: vec![load],
    });
    assert!(t.has_pending_work());
    let mut reports: Vec<Report> = Vec::new();
    t.poll(&mut reports);
    let told: Vec<_> = reports.iter().map(|r| (r.id.0 >> 40, r.blocks.clone())).collect();
    assert_eq!(told, [(1, vec![CLOSED]), (2, vec![CLOSED])]);
    assert!(!t.has_pending_work() && region.is_free(0) && region.is_free(1));
    t.touch(&two, R);
    t.on_request_finished(R, &two);
    t.finish_later(R, Vec::new);
    t.take_events(&mut Vec::new());
    t.drain();
    assert_eq!((t.stats().blocks, t.index_memory()), (0, (0, 0)));
    assert!(!t.is_trimming());
    t.shutdown();
    t.shutdown();
    t.poll(&mut reports);
    assert_eq!(reports.len(), 2, "each once");
}

/// Forks again and again while workers, keeper and scheduler are busy; what is left of it is killed with the last child
/// alive.
#[test]
#[ignore = "the child of another test"]
fn child_that_forks() {
    for_layout_of_child(|settings| {
        let root = settings.root.clone();
        let mut c = client(builder(settings, "model", LEN));
        all_ok(&c.store(R, &keys(0..20)));
        let region = Region::new(2, LEN, false).unwrap();
        for n in 0..40u64 {
            c.submit_store(R, &keys(100 + n * 8..108 + n * 8));
            let pid = fork(|| {
                call_all(&mut c, &region);
                let other = root.with_extension(format!("of-{n}"));
                // a tier of its own works
                let mut own = client(builder(FsSettings::new(other), "model", LEN));
                all_ok(&own.store(R, &keys(0..2)));
                0
            });
            let ended = kvweir::io::process::wait_for(pid.unwrap()).unwrap();
            assert_eq!(ended, Some(0), "child {n}");
        }
        c.wait_all();
        let mut out = std::io::stdout();
        let last = fork(|| {
            // holds what its parent had open until it is killed
            loop {
                std::thread::park();
            }
        });
        writeln!(out, "\nforked {}", last.unwrap()).unwrap();
        out.flush().unwrap();
        std::io::stdin().lines().for_each(drop);
    });
}

fn for_layout_of_child(run: impl FnOnce(FsSettings)) {
    let Some(root) = std::env::var_os(ROOT) else {
        return;
    };
    let packed = Path::new(&root).extension().is_some_and(|e| e == "pack");
    let layout = if packed { Layout::Pack } else { Layout::Fs };
    run(root_of_child(layout, BOUND).unwrap());
}

/// The lines of a child, as they come.
fn lines(child: &mut Child) -> Receiver<String> {
    let (tell, told) = sync_channel(1024);
    let out = BufReader::new(child.stdout.take().unwrap());
    let reader = std::thread::Builder::new().name("lines".into());
    let reading = reader.spawn(move || {
        for line in out.lines().map_while(Result::ok) {
            if tell.send(line).is_err() {
                return;
            }
        }
    });
    drop(reading);
    told
}

fn a_forked_child_calls_nothing_and_keeps_nothing(layout: Layout) {
    // once calls in the child waited for threads that were not there; and when the parent was killed, whoever opened
    // the root next recovered and stored nothing until the child ended, and was told of a pid that was gone
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join(if layout == Layout::Pack {
        "kv.pack"
    } else {
        "kv.fs"
    });
    let mut child = spawn("claim::child_that_forks", &root);
    let told = lines(&mut child);
    let last = loop {
        let line = told
            .recv_timeout(Duration::from_secs(120))
            .expect("a child hangs or failed");
        if let Some(pid) = line.strip_prefix("forked ") {
            break pid.parse::<u32>().unwrap();
        }
    };
    assert_eq!(holders(&root), [Some(child.id())]);
    child.kill().unwrap();
    // not waited for yet: it has ended all the same
    until("the root is free", || holders(&root).is_empty());
    assert!(
        Path::new(&format!("/proc/{last}/stat")).exists(),
        "the test tests nothing"
    );
    let settings = FsSettings {
        max_bytes: Some(BOUND),
        layout,
        events: false,
        ..FsSettings::new(&root)
    };
    // another model first: it takes over what is not its own
    let mut b = client(builder(settings.clone(), "other", LEN));
    all_ok(&b.store(R, &keys(0..20)));
    b.tier.on_request_finished(R, &[]);
    drop(b);
    let mut c = client(builder(settings, "model", LEN));
    assert!(c.tier.stats().recovered_blocks >= 20);
    all_ok(&c.load(R, &keys(0..20)));
    all_ok(&c.store(R, &keys(5000..5020)));
    assert!(du(&root) <= BOUND);
    let killed = Command::new("kill").args(["-9", &last.to_string()]).status();
    assert!(killed.unwrap().success());
    child.wait().unwrap();
}

#[test]
fn a_forked_child_calls_nothing_and_keeps_nothing_by_file() {
    a_forked_child_calls_nothing_and_keeps_nothing(Layout::Fs);
}

#[test]
fn a_forked_child_calls_nothing_and_keeps_nothing_packed() {
    a_forked_child_calls_nothing_and_keeps_nothing(Layout::Pack);
}
