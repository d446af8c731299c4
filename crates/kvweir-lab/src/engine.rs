//! Threads against io_uring: direct reads and writes of blocks of one preallocated and written file, in interleaved
//! rounds of one run. Threads move one block at a time each; rings keep `--depth` under way each.

use std::{
    path::PathBuf,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context, Result};
use kvweir::{
    clock::Clock,
    io::{
        DiskFile, PAGE, PageBuffer, Region, SlotWrite,
        engine::{Engine, ReadRun, RingEngine, Run, ThreadEngine, WriteRun, probe},
        pool::PoolSize,
    },
};

use crate::{
    env::{self, cpu_seconds},
    keys::{fill, mix},
    print::{heading, median, say, table},
    raw,
};

/// Blocks that a thread takes at once, as a worker of the pool does.
const THREAD_BATCH: usize = 8;
/// Bytes of a ring's batch, between one and four times its depth in blocks.
const RING_BATCH: usize = 32 << 20;

/// Options of `engine`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to write; a temporary directory inside it is made and removed.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Block sizes in KiB.
    #[arg(long, value_delimiter = ',', default_value = "16,64,1024")]
    block_kib: Vec<u64>,
    /// MiB of the file, all of which each contender reads and writes in each round.
    #[arg(long, default_value_t = 512)]
    mib: u64,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Threads that make plain calls [default: those of a tier]
    #[arg(long)]
    threads: Option<usize>,
    /// Operations that each ring has under way.
    #[arg(long, default_value_t = 32)]
    depth: u32,
    /// Seed of contents and order.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Engines beside the memory of each.
struct Contender {
    name: String,
    workers: Vec<Worker>,
    batch: usize,
    /// Seconds and CPU seconds, a round each.
    times: Vec<(f64, f64)>,
}

struct Worker {
    engine: Box<dyn Engine>,
    slots: Vec<SlotWrite>,
}

/// What is done to the file.
#[derive(Clone, Copy)]
struct Task<'a> {
    file: &'a dyn DiskFile,
    order: &'a [u64],
    block: usize,
    write: bool,
}

pub(crate) fn run(args: &Args, clock: &Arc<dyn Clock>) -> Result<()> {
    let dir = args
        .dir
        .canonicalize()
        .with_context(|| format!("directory {}", args.dir.display()))?;
    env::tell(&**clock, args.seed, Some(&dir));
    let threads = args.threads.unwrap_or(PoolSize::default().threads);
    say(&format!(
        "rounds    {} of {} MiB each; {threads} threads, rings of {} operations; io_uring: {}\n",
        args.rounds,
        args.mib,
        args.depth,
        probe().err().unwrap_or_else(|| "works".into())
    ));
    let temp = tempfile::Builder::new().prefix("kvweir-lab-").tempdir_in(&dir)?;
    let file = raw::big_file(&temp.path().join("big"), args.mib << 20)?;
    write_once(&*file, args)?;
    for &kib in &args.block_kib {
        for (write, random) in [(false, false), (false, true), (true, false), (true, true)] {
            let block = usize::try_from(kib << 10)?;
            anyhow::ensure!(block.is_multiple_of(PAGE) && block > 0, "blocks are whole pages");
            let mut contenders = contenders(args, threads, block)?;
            for round in 0..args.rounds {
                let order = order((args.mib << 20) / block as u64, random, args.seed ^ round);
                let task = Task {
                    file: &*file,
                    order: &order,
                    block,
                    write,
                };
                let n = contenders.len();
                for turn in 0..n {
                    // who begins changes from round to round
                    let Some(c) = contenders.get_mut((turn + round as usize) % n) else {
                        continue;
                    };
                    let (wall, cpu) = (clock.now(), cpu_seconds());
                    c.go(task).with_context(|| c.name.clone())?;
                    let spent = (clock.now().since(wall).as_secs_f64(), cpu_seconds() - cpu);
                    c.times.push(spent);
                }
            }
            print_table(
                &format!(
                    "{kib} KiB, {} {}",
                    if random { "random" } else { "contiguous" },
                    if write { "writes" } else { "reads" }
                ),
                (args.mib << 20) as f64,
                &mut contenders,
            );
        }
    }
    Ok(())
}

/// Fills the file, so that no write of the contest makes blocks out of reserved room.
fn write_once(file: &dyn DiskFile, args: &Args) -> Result<()> {
    let mut page = PageBuffer::new(1 << 20)?;
    fill(args.seed, page.as_mut_slice());
    for at in 0..args.mib {
        let n = file.write_at(&[std::io::IoSlice::new(page.as_slice())], at << 20)?;
        anyhow::ensure!(n == 1 << 20, "short write");
    }
    Ok(file.sync()?)
}

fn contenders(args: &Args, threads: usize, block: usize) -> Result<Vec<Contender>> {
    let mut out = vec![Contender::new(
        format!("threads x{threads}"),
        (threads, THREAD_BATCH.min(RING_BATCH / block).max(1), block),
        |_| Ok(Box::new(ThreadEngine)),
    )?];
    if probe().is_err() {
        return Ok(out);
    }
    let depth = args.depth as usize;
    let batch = (RING_BATCH / block).clamp(depth, 4 * depth);
    for (rings, registered) in [(1, false), (2, false), (1, true), (2, true)] {
        let suffix = if registered { ", registered" } else { "" };
        let contender = Contender::new(
            format!("io_uring x{rings}{suffix}"),
            (rings, batch, block),
            |region| {
                let mut ring = RingEngine::new(args.depth)?;
                if registered {
                    anyhow::ensure!(ring.register(region), "memory cannot be registered (ulimit -l)");
                }
                Ok(Box::new(ring))
            },
        );
        match contender {
            Ok(c) => out.push(c),
            Err(e) => say(&format!("left out: io_uring x{rings}{suffix}: {e:#}")),
        }
    }
    Ok(out)
}

/// The order in which blocks are moved.
fn order(n: u64, random: bool, seed: u64) -> Vec<u64> {
    let mut all: Vec<u64> = (0..n).collect();
    if random {
        all.sort_by_key(|&i| mix(seed ^ mix(i)));
    }
    all
}

impl Contender {
    fn new(
        name: String,
        (workers, batch, block): (usize, usize, usize),
        make: impl Fn(&Region) -> Result<Box<dyn Engine>>,
    ) -> Result<Self> {
        let region = Region::new(u32::try_from(workers * batch)?, block, false)?;
        let worker = |w: usize| {
            let slots = (w * batch..(w + 1) * batch).map(|s| {
                let mut slot = region.write(s as u32)?;
                fill(s as u64, &mut slot);
                Ok(slot)
            });
            Ok(Worker {
                slots: slots.collect::<kvweir::Result<_>>()?,
                engine: make(&region)?,
            })
        };
        Ok(Self {
            workers: (0..workers).map(worker).collect::<Result<_>>()?,
            name,
            batch,
            times: Vec::new(),
        })
    }

    /// Moves all blocks once.
    fn go(&mut self, task: Task<'_>) -> Result<()> {
        let (next, batch) = (&AtomicUsize::new(0), self.batch);
        std::thread::scope(|s| {
            let all: Vec<_> = self
                .workers
                .iter_mut()
                .map(|w| {
                    s.spawn(move || -> Result<()> {
                        loop {
                            let from = next.fetch_add(batch, Ordering::Relaxed);
                            let end = task.order.len().min(from + batch);
                            match task.order.get(from..end) {
                                Some(mine) if !mine.is_empty() => w.batch(task, mine)?,
                                _ => return Ok(()),
                            }
                        }
                    })
                })
                .collect();
            all.into_iter()
                .try_for_each(|t| t.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
        })
    }
}

impl Worker {
    fn batch(&mut self, task: Task<'_>, blocks: &[u64]) -> Result<()> {
        let at = |i: &u64| i * task.block as u64;
        let whole = |ended: Result<(), std::io::Error>| ended.context("a block did not move");
        if task.write {
            let runs = blocks
                .iter()
                .zip(&self.slots)
                .map(|(i, slot)| WriteRun::new(task.file, at(i)).with(slot));
            let mut runs: Vec<_> = runs.collect();
            self.engine.write(&mut runs);
            runs.into_iter().map(Run::into_whole).try_for_each(whole)
        } else {
            let runs = blocks
                .iter()
                .zip(&mut self.slots)
                .map(|(i, slot)| ReadRun::new(task.file, at(i)).with(slot));
            let mut runs: Vec<_> = runs.collect();
            self.engine.read(&mut runs);
            runs.into_iter().map(Run::into_whole).try_for_each(whole)
        }
    }
}

fn print_table(title: &str, bytes: f64, contenders: &mut [Contender]) {
    let mut rows = vec![heading(&[
        title,
        "GB/s",
        "min",
        "max",
        "/ threads",
        "CPU s/GiB",
        "/ threads",
    ])];
    let rate = |s: f64| bytes / 1e9 / s;
    let mut base = None;
    for c in contenders {
        let mut wall: Vec<f64> = c.times.iter().map(|t| t.0).collect();
        let speed = rate(median(&mut wall));
        let cpu =
            median(&mut c.times.iter().map(|t| t.1).collect::<Vec<_>>()) / (bytes / (1u64 << 30) as f64);
        let (speed0, cpu0) = *base.get_or_insert((speed, cpu));
        rows.push(vec![
            c.name.clone(),
            format!("{speed:.2}"),
            format!("{:.2}", rate(wall.last().copied().unwrap_or(f64::NAN))),
            format!("{:.2}", rate(wall.first().copied().unwrap_or(f64::NAN))),
            format!("{:.2}", speed / speed0),
            format!("{cpu:.3}"),
            format!("{:.2}", cpu / cpu0),
        ]);
    }
    table(&rows);
}
