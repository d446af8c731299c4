//! Stores and loads of the file tier beside raw direct I/O of the same sizes, in interleaved rounds of one run, so
//! that a noisy device is noisy for all. Loads read what was written in the same round. Files are kept until the end:
//! three times `--mib` for each round and size.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result};
use kvweir::{
    Key,
    clock::Clock,
    fs::{FsBuilder, FsSettings, FsTier, Layout},
    io::{PAGE, Region, engine::EngineKind, pool::PoolSize},
    namespace::{Identity, Namespace},
    sync::Bell,
    tier::{JobId, LoadBlock, LoadJob, Lookup, Report, RequestId, StoreBlock, StoreJob, Tier},
};

use crate::{
    env::{self, cpu_seconds},
    keys::{fill, key, mix},
    print::{heading, median, say, table},
    raw,
};

/// Options of `disk`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to write; a temporary directory inside it is made and removed.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Block sizes in KiB.
    #[arg(long, value_delimiter = ',', default_value = "64,512,2048")]
    block_kib: Vec<u64>,
    /// MiB written and read by each contender in each round.
    #[arg(long, default_value_t = 512)]
    mib: u64,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Give each file of the raw "one file per block" a directory of its own, as the stock layout mostly does.
    #[arg(long)]
    own_dirs: bool,
    /// Blocks of one job.
    #[arg(long, default_value_t = 64)]
    job: u32,
    /// How the tier lays blocks out; packed ones are measured against jobs written with one call.
    #[arg(long, default_value_t = Layout::Fs)]
    layout: Layout,
    /// Who moves packed blocks.
    #[arg(long, default_value_t = EngineKind::Threads)]
    engine: EngineKind,
    /// Seed of keys and contents.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Who is measured, in the order of the table.
const CONTENDERS: [&str; 7] = [
    "store: one big file",
    "store: one file per block",
    "store: kvweir",
    "load: one big file",
    "load: one file per block",
    "load: kvweir",
    "load: kvweir, verify = false",
];

/// Seconds and CPU seconds of each contender, a round each.
type Times = [Vec<(f64, f64)>; CONTENDERS.len()];

pub(crate) fn run(args: &Args, clock: &Arc<dyn Clock>) -> Result<()> {
    let dir = args
        .dir
        .canonicalize()
        .with_context(|| format!("directory {}", args.dir.display()))?;
    env::tell(&**clock, args.seed, Some(&dir));
    let pool = PoolSize::default();
    say(&format!(
        "rounds    {} of {} MiB each; {} threads store, {} load, raw and tier alike\n",
        args.rounds, args.mib, pool.store_threads, pool.threads
    ));
    // removed at the end only: ext4 looks long for an inode while many were freed a moment ago
    let mut kept = Vec::new();
    for &kib in &args.block_kib {
        let block = usize::try_from(kib * 1024)?;
        let slots = u32::try_from((args.mib << 20) / block as u64)?;
        let region = Region::new(slots, block, false)?;
        let mut times = Times::default();
        for round in 0..args.rounds {
            let temp = tempfile::Builder::new().prefix("kvweir-lab-").tempdir_in(&dir)?;
            let seed = mix(args.seed ^ mix(round));
            for s in 0..slots {
                fill(seed ^ u64::from(s), &mut region.write(s)?);
            }
            Round {
                clock,
                dir: temp.path().to_owned(),
                region: &region,
                pool,
                seed,
                order: round,
                own_dirs: args.own_dirs,
                job: args.job,
                layout: args.layout,
                engine: args.engine,
            }
            .run(&mut times)
            .with_context(|| format!("{kib} KiB, round {round}"))?;
            kept.push(temp);
        }
        print_table(kib, (u64::from(slots) * block as u64) as f64, times);
    }
    Ok(())
}

fn print_table(kib: u64, bytes: f64, mut times: Times) {
    let title = format!("{kib} KiB blocks");
    let mut rows = vec![heading(&[
        &title,
        "GB/s",
        "min",
        "max",
        "/ big file",
        "/ one file per block",
        "CPU s/GiB",
    ])];
    let medians: Vec<f64> = times
        .iter()
        .map(|t| bytes / 1e9 / median(&mut t.iter().map(|t| t.0).collect::<Vec<_>>()))
        .collect();
    for (i, (name, t)) in CONTENDERS.iter().zip(&mut times).enumerate() {
        let base = if i < 3 { 0 } else { 3 };
        let at = |n: usize| medians.get(n).copied().unwrap_or(0.0);
        let rate = |s: f64| format!("{:.2}", bytes / 1e9 / s);
        let cpu = median(&mut t.iter().map(|t| t.1).collect::<Vec<_>>()) / (bytes / (1u64 << 30) as f64);
        rows.push(vec![
            (*name).to_owned(),
            format!("{:.2}", at(i)),
            rate(t.iter().map(|t| t.0).fold(0.0, f64::max)),
            rate(t.iter().map(|t| t.0).fold(f64::MAX, f64::min)),
            format!("{:.2}", at(i) / at(base)),
            format!("{:.2}", at(i) / at(base + 1)),
            format!("{cpu:.3}"),
        ]);
    }
    table(&rows);
}

struct Round<'a> {
    clock: &'a Arc<dyn Clock>,
    dir: PathBuf,
    region: &'a Region,
    pool: PoolSize,
    seed: u64,
    order: u64,
    own_dirs: bool,
    job: u32,
    layout: Layout,
    engine: EngineKind,
}

impl Round<'_> {
    /// All contenders once; who begins changes from round to round.
    fn run(&self, times: &mut Times) -> Result<()> {
        let (stores, loads) = (self.pool.store_threads, self.pool.threads);
        let (region, files) = (self.region, self.dir.join("files"));
        raw::make_dirs(&files)?;
        let bytes = u64::from(region.num_slots()) * (region.block_len() + PAGE) as u64;
        let big = raw::big_file(&self.dir.join("big"), bytes)?;
        let keys = (0..u64::from(region.num_slots()))
            .map(|i| key(self.seed, i))
            .collect::<kvweir::Result<Vec<_>>>()?;
        let bell = Arc::<Bell>::default();
        let mut tier = self.open(true, &bell)?;
        for turn in 0..3 {
            let who = (turn + self.order) % 3;
            let spent = self.time(|| match who {
                0 if self.layout == Layout::Pack => raw::write_runs(&*big, region, self.job, stores),
                0 => raw::write_big(&*big, region, stores),
                1 => raw::write_files(&files, region, stores, self.own_dirs),
                _ => self.store(&mut tier, &keys, &bell),
            })?;
            push(times, who, spent);
        }
        for turn in 0..4 {
            let who = 3 + (turn + self.order) % 4;
            if who == 5 || who == 6 {
                tier.shutdown();
                tier = self.open(who == 5, &bell)?;
                // the pins are part of a load's life, but a lookup is measured elsewhere
                anyhow::ensure!(
                    keys.iter().all(|k| tier.lookup(k, RequestId(1)) == Lookup::Hit),
                    "a block is missing"
                );
            }
            let spent = self.time(|| match who {
                3 if self.layout == Layout::Pack => raw::read_runs(&*big, region, self.job, loads),
                3 => raw::read_big(&*big, region, loads),
                4 => raw::read_files(&files, region, loads, self.own_dirs),
                _ => self.load(&mut tier, &keys, &bell),
            })?;
            push(times, who, spent);
        }
        let mut want = vec![0; region.block_len()];
        fill(self.seed, &mut want);
        anyhow::ensure!(*region.read(0)? == *want, "the first block came back changed");
        Ok(())
    }

    fn time(&self, f: impl FnOnce() -> Result<()>) -> Result<(f64, f64)> {
        let (wall, cpu) = (self.clock.now(), cpu_seconds());
        f()?;
        Ok((self.clock.now().since(wall).as_secs_f64(), cpu_seconds() - cpu))
    }

    fn open(&self, verify: bool, bell: &Arc<Bell>) -> Result<FsTier> {
        let settings = FsSettings {
            // packed, sixty extents' room: what is made is a little more than what is written
            max_bytes: Some(match self.layout {
                Layout::Fs => 1 << 44,
                _ => 8 * u64::from(self.region.num_slots()) * self.region.block_len() as u64,
            }),
            layout: self.layout,
            engine: self.engine,
            verify,
            pool: self.pool,
            ..FsSettings::new(self.dir.join("kv"))
        };
        let ns = Namespace::new(&Identity::default())?;
        Ok(FsBuilder::new(settings, ns, self.region.block_len())
            .clock(Arc::clone(self.clock))
            .bell(Arc::clone(bell))
            .open()?)
    }

    fn store(&self, tier: &mut FsTier, keys: &[Key], bell: &Bell) -> Result<()> {
        for (job, keys) in keys.chunks(self.job as usize).enumerate() {
            let blocks = keys.iter().zip(job as u32 * self.job..).map(|(key, slot)| {
                Ok(StoreBlock {
                    key: key.clone(),
                    slot: self.region.read(slot)?,
                })
            });
            let blocks = blocks.collect::<kvweir::Result<_>>()?;
            let id = JobId(job as u64);
            let req = RequestId(job as u64 + 2);
            tier.submit_store(StoreJob { id, req, blocks });
        }
        wait(tier, keys.len().div_ceil(self.job as usize), bell)
    }

    fn load(&self, tier: &mut FsTier, keys: &[Key], bell: &Bell) -> Result<()> {
        for (job, keys) in keys.chunks(self.job as usize).enumerate() {
            let blocks = keys.iter().zip(job as u32 * self.job..).map(|(key, slot)| {
                Ok(LoadBlock {
                    key: key.clone(),
                    slot: self.region.write(slot)?,
                })
            });
            let blocks = blocks.collect::<kvweir::Result<_>>()?;
            let id = JobId(job as u64);
            tier.submit_load(LoadJob {
                id,
                req: RequestId(1),
                blocks,
            });
        }
        wait(tier, keys.len().div_ceil(self.job as usize), bell)
    }
}

fn push(times: &mut Times, who: u64, spent: (f64, f64)) {
    if let Some(t) = times.get_mut(who as usize) {
        t.push(spent);
    }
}

/// Waits for the reports of `jobs` jobs, all of whose blocks must have moved.
fn wait(tier: &mut FsTier, jobs: usize, bell: &Bell) -> Result<()> {
    let mut reports: Vec<Report> = Vec::new();
    loop {
        let seen = bell.rings();
        tier.poll(&mut reports);
        if reports.len() >= jobs {
            break;
        }
        bell.wait(seen, std::time::Duration::from_secs(1));
    }
    anyhow::ensure!(reports.iter().all(Report::all_ok), "a block did not move");
    Ok(())
}
