//! Breakage by the operating system itself: a frozen file system, one that turned read-only, a quota that runs out, a
//! file that cannot be removed, no file descriptors. Where this process may not break something, the test says so and
//! passes.

use std::{
    path::{Path, PathBuf},
    process::Command,
    sync::Arc,
    time::Duration,
};

use kvweir::{
    ErrorKind,
    clock::{Clock, ManualClock, SystemClock},
    fs::{BounceMode, FsBuilder, FsSettings, Layout, min_bound},
    io::pool::PoolSize,
    tier::{BlockOutcome, Report, Tier, conformance::key},
};

use nix::sys::fanotify::{EventFFlags, Fanotify, InitFlags, MarkFlags, MaskFlags};

use crate::support::{
    Ext4, FILE, Fs, LEN, R, Root, Tmpfs, all_ok, assert_settled, client, counted, du, file_of,
    in_both_layouts, keys, ns, runs, skip, store, temps, until,
};

const BOUND: u64 = 8 << 20;

/// A btrfs file system in a file, with a quota on its directory `kv`: one that root may not exceed either.
struct Quota {
    dir: tempfile::TempDir,
}

impl Quota {
    fn new(bytes: u64) -> Option<Self> {
        let fs = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        let (image, at) = (fs.dir.path().join("image"), fs.dir.path().join("at"));
        std::fs::create_dir(&at).unwrap();
        std::fs::File::create(&image).unwrap().set_len(256 << 20).unwrap();
        let made = runs("mkfs.btrfs", &["-q", "-f"], &image)
            && runs("mount", &["-o", "loop", image.to_str().unwrap()], &at)
            && runs("btrfs", &["-q", "quota", "enable"], &at)
            && runs("btrfs", &["-q", "subvolume", "create"], &fs.kv());
        (made && fs.allow(bytes)).then_some(fs)
    }

    fn kv(&self) -> PathBuf {
        self.dir.path().join("at/kv")
    }

    fn allow(&self, bytes: u64) -> bool {
        // the first subvolume by its number: asked from inside, the change itself counts against the quota
        let args = ["-q", "qgroup", "limit", &bytes.to_string(), "0/256"];
        runs("btrfs", &args, &self.dir.path().join("at"))
    }
}

impl Drop for Quota {
    fn drop(&mut self) {
        runs("umount", &["-l"], &self.dir.path().join("at"));
    }
}

#[test]
fn a_quota_that_runs_out_is_a_full_device_and_a_raised_one_is_used_again() {
    const ALLOWED: u64 = 6 << 20;
    let Some(fs) = Quota::new(ALLOWED) else {
        return skip("no btrfs with quotas can be made and mounted here");
    };
    let clock = Arc::new(ManualClock::new());
    let settings = FsSettings {
        max_bytes: Some(4 * BOUND),
        layout: Layout::Fs,
        ..FsSettings::new(fs.kv())
    };
    let b = FsBuilder::new(settings, ns("model"), LEN).clock(Arc::clone(&clock) as _);
    let mut c = client(b);
    store(&mut c, &keys(0..10));
    // ten MiB of blocks: some go, so that others fit
    let full = BlockOutcome::Failed(ErrorKind::Full);
    for n in 1000..1800 {
        let got = c.store(R, &[key(n)]);
        assert!(got == [full] || got == [BlockOutcome::Stored], "{got:?}");
        let s = c.tier.stats();
        assert!(s.resident_bytes + s.reserved_bytes <= 4 * BOUND, "{s:?}");
    }
    let s = c.tier.stats();
    assert!(s.resident_bytes <= ALLOWED + (1 << 20), "{s:?}");
    let before = s.blocks;
    // so little that the room of a block or two helps nobody
    assert!(fs.allow(1 << 20));
    for n in 2000..2010 {
        assert_eq!(c.store(R, &[key(n)]), [full]);
    }
    let s = c.tier.stats();
    assert_eq!(s.breaker_opened, 0, "nothing is wrong with the device");
    assert!(
        s.blocks > 200 && s.blocks + 10 > before,
        "the cache is not emptied for nothing: {before} blocks, then {s:?}"
    );
    let held: Vec<_> = (1000..1800).filter(|&n| c.holds(&key(n))).take(20).collect();
    assert_eq!(held.len(), 20);
    for &n in &held {
        assert!(c.lookup(&key(n), R));
    }
    let held: Vec<_> = held.into_iter().map(key).collect();
    all_ok(&c.load(R, &held));
    c.tier.on_request_finished(R, &[]);

    assert!(fs.allow(8 * BOUND));
    clock.advance(Duration::from_secs(31));
    store(&mut c, &keys(5000..5600));
    for k in keys(5000..5600) {
        assert!(c.holds(&k));
    }
    let s = c.tier.stats();
    assert_eq!(
        (s.resident_bytes, s.reserved_bytes, s.pinned_blocks),
        (du(&fs.kv()), 0, 0)
    );
    assert_eq!(temps(&fs.kv()), Vec::<PathBuf>::new());
}

/// A file system that takes no writes until this is dropped.
struct Frozen(PathBuf);

impl Frozen {
    fn new(at: &Path) -> Option<Self> {
        runs("fsfreeze", &["-f"], at).then(|| Self(at.to_owned()))
    }
}

impl Drop for Frozen {
    fn drop(&mut self) {
        runs("fsfreeze", &["-u"], &self.0);
    }
}

fn a_frozen_file_system_costs_one_deadline_and_is_used_again_when_it_thaws(layout: Layout) {
    let Some(fs) = Ext4::new() else {
        return skip("no ext4 can be mounted here");
    };
    let timeout = Duration::from_millis(500);
    let settings = FsSettings {
        max_bytes: Some(BOUND),
        layout,
        io_timeout: Some(timeout),
        pool: PoolSize::new(2, 2),
        ..FsSettings::new(fs.at().join("kv"))
    };
    let mut c = client(FsBuilder::new(settings, ns("model"), LEN));
    c.allow_late_slots();
    store(&mut c, &keys(0..10));
    let Some(frozen) = Frozen::new(&fs.at()) else {
        return skip("no file system can be frozen here");
    };
    let clock = SystemClock::new();
    let began = clock.now();
    for n in 0..6 {
        c.submit_store(R, &keys(100 + n * 2..102 + n * 2));
    }
    let reports = c.wait_all();
    let took = clock.now().since(began);
    let lost = BlockOutcome::Failed(ErrorKind::Unavailable);
    assert!(
        reports.iter().flat_map(|r| &r.blocks).all(|&o| o == lost),
        "{reports:?}"
    );
    assert!(took >= timeout && took < timeout * 4, "{took:?}");
    let s = c.tier.stats();
    // two workers, of which one that packs has both blocks of a job
    let most = if layout == Layout::Pack { 4 } else { 2 };
    assert!(
        s.breaker_opened == 1 && (2..=most).contains(&s.hung_operations),
        "{s:?}"
    );
    assert!(!c.holds(&key(1)), "what hangs misses");
    drop(frozen);
    until("it thaws", || {
        c.collect();
        let s = c.tier.stats();
        (s.breaker_state, s.hung_operations) == (0, 0)
    });
    assert!(
        (100..112).all(|n| !c.holds(&key(n))),
        "published after its report"
    );
    store(&mut c, &keys(200..205));
    for k in keys(0..10) {
        assert!(c.lookup(&k, R));
    }
    all_ok(&c.load(R, &keys(0..10)));
    c.tier.on_request_finished(R, &[]);
    c.wait_all();
    let s = c.tier.stats();
    let kv = fs.at().join("kv");
    assert_eq!(
        (s.resident_bytes, s.reserved_bytes, s.pinned_blocks),
        (counted(&kv), 0, 0)
    );
    assert_eq!(temps(&kv), Vec::<PathBuf>::new());
}

fn a_file_system_that_turns_read_only_still_serves_what_it_holds(layout: Layout) {
    let Some(fs) = Ext4::new() else {
        return skip("no ext4 can be mounted here");
    };
    let settings = FsSettings {
        max_bytes: Some(BOUND),
        layout,
        ..FsSettings::new(fs.at().join("kv"))
    };
    let mut c = client(FsBuilder::new(settings, ns("model"), LEN));
    store(&mut c, &keys(0..10));
    runs("sync", &["-f"], &fs.at());
    // what the kernel does after an error, on request
    if !runs("mount", &["-o", "remount,abort"], &fs.at()) || std::fs::write(fs.at().join("x"), b"x").is_ok() {
        return skip("no file system can be turned read-only here");
    }
    for n in 100..112 {
        let got = c.store(R, &[key(n)]);
        assert_eq!(got, [BlockOutcome::Failed(ErrorKind::Unavailable)]);
    }
    for k in keys(0..10) {
        assert!(c.lookup(&k, R), "stores that are refused do not stop loads");
    }
    all_ok(&c.load(R, &keys(0..10)));
    assert_eq!(c.tier.stats().breaker_opened, 0);
}

#[test]
fn a_read_only_mount_is_refused_with_the_way_out_and_served_with_read_only() {
    let Some(fs) = Tmpfs::new("64m") else {
        return skip("no tmpfs can be mounted here");
    };
    let settings = FsSettings {
        max_bytes: Some(BOUND),
        layout: Layout::Fs,
        ..FsSettings::new(fs.path().join("kv"))
    };
    let open = |read_only| {
        let s = FsSettings {
            read_only,
            ..settings.clone()
        };
        FsBuilder::new(s, ns("model"), LEN)
    };
    let mut c = client(open(false));
    store(&mut c, &keys(0..10));
    drop(c);
    assert!(runs("mount", &["-o", "remount,ro"], fs.path()));
    let e = open(false).open().unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid);
    assert!(
        e.to_string().contains("Read-only file system") && e.to_string().contains("read_only"),
        "{e}"
    );
    let mut c = client(open(true));
    for k in keys(0..10) {
        assert!(c.lookup(&k, R));
    }
    all_ok(&c.load(R, &keys(0..10)));
}

/// Who opens the file waits in the kernel, as one does for a file of a dead server, until this is dropped; needs
/// rights.
fn opening_waits(file: &Path) -> nix::Result<Fanotify> {
    let asked = Fanotify::init(
        InitFlags::FAN_CLASS_CONTENT | InitFlags::FAN_CLOEXEC,
        EventFFlags::O_RDONLY,
    )?;
    asked.mark(
        MarkFlags::FAN_MARK_ADD,
        MaskFlags::FAN_OPEN_PERM,
        nix::fcntl::AT_FDCWD,
        Some(file),
    )?;
    Ok(asked)
}

#[test]
fn a_load_that_waits_in_the_kernel_is_given_up_and_a_shutdown_does_not_wait_for_it() {
    for shut_down in [false, true] {
        let root = Root::new();
        let timeout = Duration::from_millis(300);
        let settings = FsSettings {
            io_timeout: Some(timeout),
            bounce: BounceMode::Always,
            ..root.settings(BOUND)
        };
        let mut c = client(FsBuilder::new(settings, ns("model"), LEN).slots_outlive_reports(false));
        store(&mut c, &keys(0..10));
        let file = file_of(c.tier.namespace_dir(), &key(1));
        let Ok(unanswered) = opening_waits(&file) else {
            return skip("no right to be asked before a file is opened");
        };
        assert!(c.lookup(&key(1), R));
        let clock = SystemClock::new();
        let began = clock.now();
        let load = c.submit_load(R, &[key(1)]);
        if shut_down {
            c.tier.shutdown();
        }
        let report = c.wait(load);
        let took = clock.now().since(began);
        assert!(!report.all_ok() && took < Duration::from_secs(8), "{took:?}");
        assert!(shut_down || took < timeout * 4, "{took:?}");
        assert!(!c.holds(&key(2)), "what hangs misses");
        drop(unanswered);
        until("the load returns", || c.tier.stats().hung_operations == 0);
        if !shut_down {
            until("the breaker closes", || {
                c.collect();
                c.tier.stats().breaker_state == 0
            });
            store(&mut c, &keys(100..105));
            // what did not load is no block any more
            assert!(c.holds(&key(2)) && !c.holds(&key(1)));
            assert_settled(&mut c, &root);
        }
    }
}

/// A file that nobody may remove until this is dropped.
struct Immutable(PathBuf);

impl Immutable {
    fn new(path: PathBuf) -> Option<Self> {
        runs("chattr", &["+i"], &path).then_some(Self(path))
    }
}

impl Drop for Immutable {
    fn drop(&mut self) {
        runs("chattr", &["-i"], &self.0);
    }
}

#[test]
fn an_immutable_oldest_file_is_passed_over_and_goes_when_it_can() {
    let (root, clock) = (Root::new(), Arc::new(ManualClock::new()));
    let bound = min_bound(LEN) + 20 * (FILE + 8192);
    let b = FsBuilder::new(root.settings(bound), ns("model"), LEN).clock(Arc::clone(&clock) as _);
    let mut c = client(b);
    store(&mut c, &keys(0..10));
    let file = file_of(c.tier.namespace_dir(), &key(0));
    let Some(immutable) = Immutable::new(file.clone()) else {
        return skip("no file can be made immutable here");
    };
    store(&mut c, &keys(100..200));
    assert!(file.exists() && c.holds(&key(0)), "it is there and good");
    assert_eq!(c.tier.stats().unlink_failures, 1);
    assert_eq!(c.tier.stats().breaker_opened, 0);
    assert_settled(&mut c, &root);
    drop(immutable);
    clock.advance(Duration::from_secs(31));
    store(&mut c, &keys(300..350));
    assert!(!file.exists());
    assert_settled(&mut c, &root);
}

const CHILD: &str = "KVWEIR_TEST_CHILD";

/// Opens files until no more can be.
fn use_up() -> Vec<std::fs::File> {
    std::iter::from_fn(|| std::fs::File::open("/dev/null").ok()).collect()
}

#[test]
fn without_file_descriptors_blocks_are_busy_and_nothing_is_lost() {
    if std::env::var_os(CHILD).is_none() {
        let me = std::env::current_exe().unwrap();
        let name = "broken_os::without_file_descriptors_blocks_are_busy_and_nothing_is_lost";
        let mut child = Command::new(me);
        let done = child
            .args(["--exact", name, "--nocapture"])
            .env(CHILD, "1")
            .output();
        let done = done.unwrap();
        let text = String::from_utf8_lossy(&done.stdout);
        assert!(
            done.status.success() && text.contains("1 passed"),
            "{text}{}",
            String::from_utf8_lossy(&done.stderr)
        );
        return;
    }
    use rustix::process::{Resource, getrlimit, setrlimit};
    let mut limit = getrlimit(Resource::Nofile);
    limit.current = Some(32);
    setrlimit(Resource::Nofile, limit).unwrap();
    let root = Root::new();
    let settings = FsSettings {
        pool: PoolSize::new(8, 8),
        ..root.settings(BOUND)
    };
    let mut c: Fs = client(FsBuilder::new(settings, ns("model"), LEN));
    store(&mut c, &keys(0..10));
    let mut held = use_up();
    let outcomes = |c: &mut Fs| -> Vec<BlockOutcome> {
        let reports: Vec<Report> = c.wait_all();
        reports.into_iter().flat_map(|r| r.blocks).collect()
    };
    let busy = BlockOutcome::Failed(ErrorKind::Busy);
    for n in 0..8 {
        c.submit_store(R, &keys(100 + n * 4..104 + n * 4));
    }
    assert!(outcomes(&mut c).iter().all(|&o| o == busy), "none is left");
    held.truncate(held.len() - 2);
    for n in 0..8 {
        c.submit_store(R, &keys(200 + n * 4..204 + n * 4));
    }
    let got = outcomes(&mut c);
    assert!(
        got.iter().all(|&o| o == busy || o == BlockOutcome::Stored),
        "{got:?}"
    );
    assert!(
        got.iter().any(|o| o.is_ok()),
        "two are left, and 16 workers get nowhere"
    );
    drop(held);
    assert_eq!(
        c.tier.stats().breaker_opened,
        0,
        "nothing is wrong with the device"
    );
    store(&mut c, &keys(300..310));
    for k in keys(0..10) {
        assert!(c.lookup(&k, R));
    }
    all_ok(&c.load(R, &keys(0..10)));
    c.tier.on_request_finished(R, &[]);
    assert_settled(&mut c, &root);
}

in_both_layouts! {
    a_frozen_file_system_costs_one_deadline_and_is_used_again_when_it_thaws,
    a_file_system_that_turns_read_only_still_serves_what_it_holds,
}
