//! SIGKILL at seeded random moments under 32 concurrent writers, reopened and verified, again and again: what was
//! acknowledged and not evicted is there, no byte is wrong, none leaks, and the bound held throughout (I1, I2, I6).
//!
//! 50 kills; `KVWEIR_KILLS=1000` for more, `KVWEIR_SEED` to repeat a run.

use std::{
    collections::HashMap,
    io::{BufRead, BufReader, Write},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use kvweir::{
    Key,
    fs::{FsBuilder, FsSettings, Layout},
    io::pool::PoolSize,
    metrics::TierStats,
    tier::{BlockOutcome, RequestId, Tier, conformance::key},
};

use crate::support::*;

const ROOT: &str = "KVWEIR_TEST_ROOT";
const PACKED: &str = "KVWEIR_TEST_PACKED";
const SIZE: u64 = 48 << 20;
/// A block with its trailer and two directories of its own.
const EACH: u64 = FILE + 8192;
/// Blocks of a store, and stores that the child has under way.
const BLOCKS: u64 = 8;
const OUTSTANDING: usize = 12;

fn settings(root: &Path, bound: u64, layout: Layout) -> FsSettings {
    FsSettings {
        max_bytes: Some(bound),
        layout,
        events: false,
        pool: PoolSize::new(4, 32),
        ..FsSettings::new(root)
    }
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

/// The process that is killed: stores until then, and says which keys were acknowledged, in order.
#[test]
#[ignore = "the child of another test"]
fn child() {
    let Ok(root) = std::env::var(ROOT) else { return };
    let (bound, range, seed) = (
        number("KVWEIR_TEST_BOUND").unwrap(),
        number("KVWEIR_TEST_KEYS").unwrap(),
        number("KVWEIR_TEST_SEED").unwrap(),
    );
    let layout = if std::env::var_os(PACKED).is_some() {
        Layout::Pack
    } else {
        Layout::Fs
    };
    let tier = FsBuilder::new(settings(Path::new(&root), bound, layout), ns("model"), LEN)
        .walk_patience(Duration::from_secs(60))
        .open()
        .unwrap();
    let mut c = kvweir::tier::conformance::Client::new(Box::new(tier), 256, LEN);
    let mut out = std::io::stdout().lock();
    writeln!(out, "\nready").unwrap();
    out.flush().unwrap();
    let mut rng = Rng(seed);
    let mut jobs = HashMap::new();
    for n in 0u64.. {
        let numbers: Vec<u64> = (0..BLOCKS).map(|_| rng.below(range)).collect();
        let keys: Vec<Key> = numbers.iter().map(|&n| key(n)).collect();
        // some are used, so that recency changes
        if n % 3 == 0 {
            let asked = RequestId(1 << 40 | n);
            let held: Vec<Key> = keys
                .iter()
                .take(2)
                .filter(|k| c.lookup(k, asked))
                .cloned()
                .collect();
            if !held.is_empty() {
                c.submit_load(asked, &held);
            }
            c.tier.on_request_finished(asked, &held);
        }
        jobs.insert(c.submit_store(RequestId(n), &keys), numbers);
        if c.outstanding() >= OUTSTANDING {
            c.collect();
        }
        for r in c.take_reports() {
            let Some(numbers) = jobs.remove(&r.id) else {
                continue;
            };
            let mut line = String::new();
            for (n, o) in numbers.iter().zip(&r.blocks) {
                // what was there already is more recent now, which a crash may forget
                if *o == BlockOutcome::Stored {
                    line += &format!("{n} ");
                }
            }
            // one write per line: what the parent reads whole was acknowledged
            out.write_all(format!("ack {line}.\n").as_bytes()).unwrap();
            out.flush().unwrap();
        }
    }
}

pub(crate) fn spawn(root: &Path, bound: u64, range: u64, seed: u64) -> Child {
    spawn_with(Layout::Fs, root, bound, range, seed)
}

fn spawn_with(layout: Layout, root: &Path, bound: u64, range: u64, seed: u64) -> Child {
    let mut child = Command::new(std::env::current_exe().unwrap());
    if layout == Layout::Pack {
        child.env(PACKED, "1");
    }
    child
        .args(["--exact", "crash::child", "--ignored", "--nocapture"])
        .env(ROOT, root)
        .env("KVWEIR_TEST_BOUND", bound.to_string())
        .env("KVWEIR_TEST_KEYS", range.to_string())
        .env("KVWEIR_TEST_SEED", seed.to_string())
        .stdout(Stdio::piped())
        .stderr(Stdio::null())
        .spawn()
        .unwrap()
}

/// What an outside watcher sees on a file system of its own.
struct Watch {
    stop: Arc<AtomicBool>,
    worst: Arc<AtomicU64>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Watch {
    fn start(at: PathBuf) -> Self {
        let (stop, worst) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let (s, w) = (Arc::clone(&stop), Arc::clone(&worst));
        let thread = std::thread::Builder::new()
            .name("watch".into())
            .spawn(move || {
                while !s.load(Ordering::Relaxed) {
                    let Ok(v) = rustix::fs::statvfs(&at) else { break };
                    w.fetch_max((v.f_blocks - v.f_bfree) * v.f_frsize, Ordering::Relaxed);
                    kvweir::sync::Bell::default().wait(0, Duration::from_micros(200));
                }
            })
            .unwrap();
        Self {
            stop,
            worst,
            thread: Some(thread),
        }
    }

    fn end(&mut self) -> u64 {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(t) = self.thread.take() {
            t.join().unwrap();
        }
        self.worst.load(Ordering::Relaxed)
    }
}

#[derive(Debug, Default)]
struct Counts {
    kills: u64,
    acknowledged: u64,
    owed: u64,
    found: u64,
    loaded: u64,
    worst: u64,
    swept: u64,
    replayed: u64,
}

/// Every file belongs to an entry, and every entry to a file or a slot.
fn assert_files_belong(root: &Path, layout: Layout, s: &TierStats) {
    let on_disk = files(root)
        .iter()
        .filter(|p| p.extension().is_some_and(|e| e == "bin"))
        .count() as u64;
    let slots: Vec<u64> = extents(root)
        .iter()
        .filter_map(|e| slots_of(e).map(u64::from))
        .collect();
    match layout {
        Layout::Pack => assert!(
            on_disk == 2 * slots.len() as u64 && slots.iter().sum::<u64>() >= s.blocks,
            "{on_disk} files, {} of them extents, of {slots:?} slots, {} blocks",
            slots.len(),
            s.blocks
        ),
        _ => assert_eq!(
            on_disk, s.blocks,
            "files without an entry, or entries without a file"
        ),
    }
}

/// The account is to the byte what lies there, soon: the journal may be being compacted.
fn assert_counted(tier: &Fs, root: &Path) {
    let mut agreed = false;
    for _ in 0..250 {
        let (before, there) = (tier.tier.stats().resident_bytes, counted(root));
        agreed = before == there && tier.tier.stats().resident_bytes == there;
        if agreed {
            break;
        }
        pause(10);
    }
    let s = tier.tier.stats();
    assert!(
        agreed,
        "account {} and what lies there, {}, disagree: leaked bytes",
        s.resident_bytes,
        counted(root)
    );
}

/// A root whose writer is killed again and again.
struct Killing {
    layout: Layout,
    root: PathBuf,
    bound: u64,
    /// Keys that are stored, and how many of those acknowledged last must be there.
    range: u64,
    recent: u64,
    seed: u64,
    rng: Rng,
    /// What was acknowledged in all lives, with the order in which it was.
    known: HashMap<u64, u64>,
    order: u64,
    counts: Counts,
}

impl Killing {
    /// With `evicts` the keys are three times what fits.
    fn new(layout: Layout, evicts: bool, root: PathBuf, seed: u64) -> Self {
        let bound = SIZE / 4;
        let fits = match layout {
            // with the records and trees of the extents
            Layout::Pack => bound / (LEN as u64 + 512),
            _ => bound / EACH,
        };
        Self {
            layout,
            root,
            bound,
            range: if evicts { fits * 3 } else { fits / 3 },
            // the bound may have evicted what was acknowledged long ago, in the child and in the pause for our own
            // start
            recent: if evicts { fits / 2 } else { u64::MAX },
            seed,
            rng: Rng(seed),
            known: HashMap::new(),
            order: 0,
            counts: Counts::default(),
        }
    }

    /// One life of a writer, and what it acknowledged.
    fn live_and_die(&mut self) {
        let seed = self.rng.next();
        let mut child = spawn_with(self.layout, &self.root, self.bound, self.range, seed);
        let out = child.stdout.take().unwrap();
        let mut lines = BufReader::new(out).lines().map_while(Result::ok);
        assert!(lines.any(|l| l == "ready"), "the child does not open the root");
        // every second one is killed when it has come to something, however slow the machine is
        let first = self
            .counts
            .kills
            .is_multiple_of(2)
            .then(|| lines.next())
            .flatten();
        pause(1 + self.rng.below(60));
        child.kill().unwrap();
        child.wait().unwrap();
        for l in first.into_iter().chain(lines) {
            let Some(told) = l.strip_prefix("ack ").and_then(|l| l.strip_suffix('.')) else {
                continue;
            };
            for n in told.split_whitespace() {
                self.order += 1;
                self.counts.acknowledged += 1;
                self.known.insert(n.parse().unwrap(), self.order);
            }
        }
        self.counts.kills += 1;
        // what was stored and not told any more is more recent too
        self.order += BLOCKS * OUTSTANDING as u64;
    }

    /// What lies there belongs to the account to the byte, and loads as it was stored.
    fn look(&mut self) {
        let builder = FsBuilder::new(settings(&self.root, self.bound, self.layout), ns("model"), LEN);
        let mut tier = client(builder);
        let s = tier.tier.stats();
        self.counts.swept += s.swept_files;
        self.counts.replayed += u64::from(s.startup_seconds < 10.0);
        assert_eq!(temps(&self.root), Vec::<PathBuf>::new(), "temporaries are left");
        assert_files_belong(&self.root, self.layout, &s);
        assert_counted(&tier, &self.root);
        let s = tier.tier.stats();
        assert!(s.resident_bytes <= self.bound);
        let c = &mut self.counts;
        c.found += s.blocks;
        for (&n, &at) in &self.known {
            let held = tier.holds(&key(n));
            if self.order - at < self.recent {
                c.owed += 1;
                assert!(
                    held,
                    "key {n}, acknowledged, is gone (seed {}, kill {})",
                    self.seed, c.kills
                );
            }
            if held && (n + c.kills).is_multiple_of(7) {
                let got = tier.load(R, &[key(n)]);
                assert!(matches!(got[..], [BlockOutcome::Loaded(_)]), "key {n}: {got:?}");
                c.loaded += 1;
            }
        }
        tier.tier.on_request_finished(R, &[]);
        assert_eq!(tier.tier.stats().verification_failures, 0);
    }
}

/// Kills the child `kills` times; with `evicts`, the keys are three times what fits.
fn kill_again_and_again(layout: Layout, evicts: bool, kills: u64, seed: u64) -> Counts {
    let mount = Tmpfs::new("256m");
    let plain = Root::new();
    let root = mount.as_ref().map_or(plain.path(), |m| m.path().join("kv"));
    if mount.is_none() {
        println!("no right to mount a tmpfs: the bound is compared with the account and du only");
    }
    let mut k = Killing::new(layout, evicts, root, seed);
    for n in 0..kills {
        if !evicts && n % 10 == 9 {
            // all keys are there by now: begin again, so that there is something to store
            std::fs::remove_dir_all(&k.root).unwrap();
            k.known.clear();
        }
        let mut watch = mount.as_ref().map(|m| Watch::start(m.path().to_owned()));
        k.live_and_die();
        k.look();
        if let Some(w) = &mut watch {
            k.counts.worst = k.counts.worst.max(w.end());
            assert!(
                k.counts.worst <= k.bound,
                "{} bytes of {} were seen",
                k.counts.worst,
                k.bound
            );
        }
    }
    k.counts
}

fn killed_at_any_moment_nothing_acknowledged_is_lost_and_no_byte_leaks(layout: Layout) {
    let kills = number("KVWEIR_KILLS").unwrap_or(match layout {
        Layout::Pack => 30,
        _ => 50,
    });
    let seed = number("KVWEIR_SEED").unwrap_or(20261129);
    println!("KVWEIR_SEED={seed}");
    for (evicts, kills) in [(false, kills / 2), (true, kills - kills / 2)] {
        let c = kill_again_and_again(layout, evicts, kills, seed);
        println!(
            "{layout}, {} kills, {}: {} blocks acknowledged, {} owed after a kill and all there, {} found, {} loaded \
             and compared, 0 wrong, 0 leaked bytes, {} temporaries swept, at most {} of {} bytes seen from outside",
            c.kills,
            if evicts { "evicting" } else { "without eviction" },
            c.acknowledged,
            c.owed,
            c.found,
            c.loaded,
            c.swept,
            c.worst,
            SIZE / 4
        );
        assert_eq!(c.replayed, c.kills);
        assert!(
            c.acknowledged > kills && c.owed > 0 && c.loaded > 0,
            "the test tests nothing"
        );
    }
}

in_both_layouts! {
    killed_at_any_moment_nothing_acknowledged_is_lost_and_no_byte_leaks,
}
