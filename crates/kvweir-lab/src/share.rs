//! Processes that share one root: two models, load, one process killed and restarted every so often, and a watcher
//! that asks the file system alone what is used.

use std::{
    io::{BufRead, BufReader, Write},
    path::PathBuf,
    process::{Child, Command, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use kvweir::{
    Key,
    clock::Clock,
    fs::{FsBuilder, FsSettings, Layout},
    namespace::{Identity, Namespace},
    sync::Bell,
    tier::{
        RequestId, Tier,
        conformance::{Client, key},
    },
};

use crate::{
    env,
    print::{say, table},
};

/// Blocks of one job.
const BATCH: u64 = 16;

/// Options of `share`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// A mount point that holds nothing else; the root is made inside it.
    #[arg(long)]
    mount: PathBuf,
    /// The root's bound in bytes.
    #[arg(long, default_value_t = 1 << 30)]
    bound: u64,
    /// Processes.
    #[arg(long, default_value_t = 4)]
    processes: usize,
    /// Seconds.
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Seconds between two kills.
    #[arg(long, default_value_t = 20)]
    kill_every: u64,
    /// Bytes of a block.
    #[arg(long, default_value_t = 65536)]
    block_bytes: usize,
    /// How the processes lay blocks out.
    #[arg(long, default_value_t = Layout::Fs)]
    layout: Layout,
    /// Seed of keys and choices.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Options of one process.
#[derive(Debug, Clone, clap::Args)]
pub(crate) struct WorkerArgs {
    #[arg(long)]
    root: PathBuf,
    #[arg(long)]
    bound: u64,
    #[arg(long)]
    model: String,
    #[arg(long)]
    block_bytes: usize,
    #[arg(long)]
    layout: Layout,
    #[arg(long)]
    seed: u64,
}

/// Stores and loads until it is killed; tells its counts once a second.
pub(crate) fn work(args: &WorkerArgs, clock: &Arc<dyn Clock>) -> Result<()> {
    let settings = FsSettings {
        max_bytes: Some(args.bound),
        layout: args.layout,
        ..FsSettings::new(&args.root)
    };
    let ns = Namespace::new(&Identity {
        model_name: args.model.clone(),
        ..Identity::default()
    })?;
    let tier = FsBuilder::new(settings, ns, args.block_bytes).open()?;
    let mut c = Client::new(Box::new(tier), 256, args.block_bytes);
    // twice what half of the root holds
    let range = args.bound / args.block_bytes as u64;
    let mut state = args.seed;
    let mut next = || {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        state >> 33
    };
    let (mut stored, mut hits, mut asked, mut good) = (0u64, 0u64, 0u64, 0u64);
    let mut told = clock.now();
    for n in 1u64.. {
        let from = next() % range;
        let keys: Vec<Key> = (from..from + BATCH).map(key).collect();
        let req = RequestId(n);
        let held: Vec<Key> = keys.iter().take_while(|k| c.lookup(k, req)).cloned().collect();
        asked += keys.len() as u64;
        hits += held.len() as u64;
        if !held.is_empty() {
            // the client compares every byte that was loaded
            good += c.load(req, &held).iter().filter(|o| o.is_ok()).count() as u64;
        }
        if let Some(missing) = keys.get(held.len()..).filter(|m| !m.is_empty()) {
            stored += c.store(req, missing).iter().filter(|o| o.is_ok()).count() as u64;
        }
        c.tier.on_request_finished(req, &keys);
        if clock.now().since(told) > Duration::from_secs(1) {
            told = clock.now();
            let s = c.tier.stats();
            let mut out = std::io::stdout().lock();
            writeln!(
                out,
                "{stored} {asked} {hits} {good} {} {} {}",
                s.resident_bytes, s.blocks, s.verification_failures
            )?;
            out.flush()?;
        }
    }
    Ok(())
}

/// One process and what it told last.
struct Worker {
    child: Child,
    told: Arc<Mutex<Vec<u64>>>,
    lines: Arc<AtomicU64>,
}

fn spawn(args: &Args, number: usize, life: u64) -> Result<Worker> {
    let model = if number.is_multiple_of(2) { "a" } else { "b" };
    let mut child = Command::new(std::env::current_exe()?)
        .arg("share-worker")
        .arg("--root")
        .arg(args.mount.join("kv"))
        .args(["--bound", &args.bound.to_string(), "--model", model])
        .args(["--block-bytes", &args.block_bytes.to_string()])
        .args(["--layout", args.layout.as_str()])
        .args([
            "--seed",
            &(args.seed * 1000 + number as u64 * 100 + life).to_string(),
        ])
        .stdout(Stdio::piped())
        .spawn()
        .context("start a process")?;
    let out = child.stdout.take().context("its output")?;
    let (told, lines) = (Arc::<Mutex<Vec<u64>>>::default(), Arc::<AtomicU64>::default());
    let (t, l) = (Arc::clone(&told), Arc::clone(&lines));
    std::thread::Builder::new().name("read".into()).spawn(move || {
        for line in BufReader::new(out).lines().map_while(std::result::Result::ok) {
            let numbers = line.split(' ').filter_map(|n| n.parse().ok()).collect();
            *t.lock().unwrap_or_else(std::sync::PoisonError::into_inner) = numbers;
            l.fetch_add(1, Ordering::Relaxed);
        }
    })?;
    Ok(Worker { child, told, lines })
}

pub(crate) fn run(args: &Args, clock: &Arc<dyn Clock>) -> Result<()> {
    env::tell(&**clock, args.seed, Some(&args.mount));
    let used = {
        let at = args.mount.clone();
        move || -> u64 { rustix::fs::statvfs(&at).map_or(0, |v| (v.f_blocks - v.f_bfree) * v.f_frsize) }
    };
    let empty = used();
    let stop = Arc::new(AtomicBool::new(false));
    let (worst, looks) = (Arc::<AtomicU64>::default(), Arc::<AtomicU64>::default());
    let watcher = {
        let (stop, worst, looks) = (Arc::clone(&stop), Arc::clone(&worst), Arc::clone(&looks));
        std::thread::Builder::new().name("watch".into()).spawn(move || {
            let pause = Bell::default();
            while !stop.load(Ordering::Relaxed) {
                worst.fetch_max(used().saturating_sub(empty), Ordering::Relaxed);
                looks.fetch_add(1, Ordering::Relaxed);
                pause.wait(0, Duration::from_micros(500));
            }
        })?
    };
    let mut workers = Vec::new();
    for n in 0..args.processes {
        workers.push(spawn(args, n, 0)?);
    }
    let began = clock.now();
    let pause = Bell::default();
    let (mut kills, mut sums) = (0u64, vec![[0u64; 4]; args.processes]);
    let mut silent = 0.0f64;
    let mut last = vec![(clock.now(), 0u64); args.processes];
    while clock.now().since(began) < Duration::from_secs(args.seconds) {
        pause.wait(0, Duration::from_millis(200));
        for ((n, w), seen) in workers.iter_mut().enumerate().zip(&mut last) {
            ensure!(w.child.try_wait()?.is_none(), "process {n} ended by itself");
            let lines = w.lines.load(Ordering::Relaxed);
            if lines != seen.1 {
                *seen = (clock.now(), lines);
            }
            silent = silent.max(clock.now().since(seen.0).as_secs_f64());
        }
        let due = clock.now().since(began).as_secs() / args.kill_every.max(1);
        if due > kills {
            let n = (kills as usize) % args.processes;
            kills = due;
            if let (Some(w), Some(sum)) = (workers.get_mut(n), sums.get_mut(n)) {
                w.child.kill()?;
                w.child.wait()?;
                add(
                    sum,
                    &w.told.lock().unwrap_or_else(std::sync::PoisonError::into_inner),
                );
                *w = spawn(args, n, kills)?;
            }
            if let Some(seen) = last.get_mut(n) {
                *seen = (clock.now(), 0);
            }
        }
    }
    let wrong = result(&mut workers, &mut sums)?;
    stop.store(true, Ordering::Relaxed);
    watcher
        .join()
        .map_err(|_| anyhow::anyhow!("the watcher panicked"))?;
    let (worst, looks) = (worst.load(Ordering::Relaxed), looks.load(Ordering::Relaxed));
    say(&format!(
        "{kills} kills in {} s; at most {worst} of {} bytes in {looks} looks ({:.4}); longest silence of a process {silent:.1} s",
        args.seconds,
        args.bound,
        worst as f64 / args.bound as f64
    ));
    ensure!(worst <= args.bound, "the bound was exceeded");
    ensure!(wrong == 0, "wrong bytes");
    Ok(())
}

/// Adds what a process told to its sums.
fn add(sum: &mut [u64; 4], told: &[u64]) {
    sum.iter_mut().zip(told).for_each(|(s, t)| *s += t);
}

/// Ends all processes and prints one row for each; the wrong blocks of all.
fn result(workers: &mut [Worker], sums: &mut [[u64; 4]]) -> Result<u64> {
    let mut rows = vec![
        [
            "process",
            "stored",
            "asked",
            "hits",
            "loaded good",
            "blocks now",
            "wrong",
        ]
        .map(str::to_owned)
        .to_vec(),
    ];
    let mut wrong = 0;
    for ((n, w), sum) in workers.iter_mut().enumerate().zip(sums) {
        w.child.kill()?;
        w.child.wait()?;
        let told = w
            .told
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner)
            .clone();
        add(sum, &told);
        let now = |i: usize| told.get(i).copied().unwrap_or(0);
        wrong += now(6);
        let [stored, asked, hits, good] = *sum;
        ensure!(stored > 0 && good > 0, "process {n} made no progress");
        rows.push(
            [n as u64, stored, asked, hits, good, now(5), now(6)]
                .map(|v| v.to_string())
                .to_vec(),
        );
    }
    table(&rows);
    Ok(wrong)
}
