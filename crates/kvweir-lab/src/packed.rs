//! Opening a root of many packed blocks: how long until the first lookup is answered and all blocks are known, by the
//! journal and by a walk, and what a block costs in memory.

use std::{path::PathBuf, sync::Arc};

use anyhow::{Context, Result};
use kvweir::{
    clock::Clock,
    fs::{FsBuilder, FsSettings, FsTier, Layout},
    io::Region,
    namespace::{Identity, Namespace},
    sync::Bell,
    tier::{JobId, Lookup, Report, RequestId, StoreBlock, StoreJob, Tier},
};

use crate::{
    env,
    keys::key,
    print::{heading, say, table},
};

/// Blocks of one job.
const JOB: u32 = 256;
/// Jobs under way at one time.
const AHEAD: usize = 16;

/// Options of `packed`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to write; a temporary directory inside it is made and removed.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Blocks.
    #[arg(long, default_value_t = 1_000_000)]
    blocks: u64,
    /// Block size in KiB.
    #[arg(long, default_value_t = 4)]
    block_kib: u64,
    /// Seed of keys.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: &Args, clock: &Arc<dyn Clock>) -> Result<()> {
    let dir = args
        .dir
        .canonicalize()
        .with_context(|| format!("directory {}", args.dir.display()))?;
    env::tell(&**clock, args.seed, Some(&dir));
    let temp = tempfile::Builder::new().prefix("kvweir-lab-").tempdir_in(&dir)?;
    let root = temp.path().join("kv");
    let block = usize::try_from(args.block_kib * 1024)?;
    let bell = Arc::<Bell>::default();
    let open = || -> Result<FsTier> {
        let settings = FsSettings {
            // a block's slot and record, and a quarter more
            max_bytes: Some((args.blocks * (block as u64 + 128)).saturating_mul(5) / 4 + (64 << 20)),
            layout: Layout::Pack,
            ..FsSettings::new(&root)
        };
        let builder = FsBuilder::new(settings, Namespace::new(&Identity::default())?, block);
        Ok(builder.clock(Arc::clone(clock)).bell(Arc::clone(&bell)).open()?)
    };
    let region = Region::new(JOB, block, false)?;
    let mut tier = open()?;
    let began = clock.now();
    store(&mut tier, &region, args, &bell)?;
    let spent = clock.now().since(began).as_secs_f64();
    say(&format!(
        "stored    {} blocks of {} KiB in {spent:.1} s\n",
        args.blocks, args.block_kib
    ));
    drop(tier);
    let mut rows = vec![heading(&[
        "opened by",
        "first lookup",
        "all known",
        "blocks",
        "bytes per block",
    ])];
    for how in ["journal", "walk"] {
        if how == "walk" {
            std::fs::remove_dir_all(root.join(".kvweir"))?;
        }
        let began = clock.now();
        let mut tier = open()?;
        tier.lookup(&key(args.seed, 0)?, RequestId(1));
        let first = clock.now().since(began).as_secs_f64();
        while tier.is_trimming() {
            bell.wait(bell.rings(), std::time::Duration::from_millis(1));
        }
        let all = clock.now().since(began).as_secs_f64();
        let blocks = tier.stats().blocks;
        anyhow::ensure!(
            blocks == args.blocks,
            "{blocks} of {} blocks were found",
            args.blocks
        );
        let last = tier.lookup(&key(args.seed, args.blocks - 1)?, RequestId(2));
        anyhow::ensure!(last == Lookup::Hit, "the last block is no hit");
        rows.push(vec![
            how.to_owned(),
            format!("{first:.3} s"),
            format!("{all:.3} s"),
            blocks.to_string(),
            format!("{:.1}", tier.index_memory().0 as f64 / blocks as f64),
        ]);
    }
    table(&rows);
    Ok(())
}

fn store(tier: &mut FsTier, region: &Region, args: &Args, bell: &Bell) -> Result<()> {
    let jobs = args.blocks.div_ceil(u64::from(JOB));
    let mut reports: Vec<Report> = Vec::new();
    let (mut sent, mut ended) = (0, 0);
    while ended < jobs {
        while sent < jobs && sent - ended < AHEAD as u64 {
            let from = sent * u64::from(JOB);
            let blocks = (from..args.blocks.min(from + u64::from(JOB)))
                .zip(0u32..)
                .map(|(n, slot)| {
                    Ok(StoreBlock {
                        key: key(args.seed, n)?,
                        slot: region.read(slot)?,
                    })
                });
            let blocks = blocks.collect::<kvweir::Result<_>>()?;
            tier.submit_store(StoreJob {
                id: JobId(sent),
                req: RequestId(sent + 10),
                blocks,
            });
            sent += 1;
        }
        let seen = bell.rings();
        reports.clear();
        tier.poll(&mut reports);
        anyhow::ensure!(reports.iter().all(Report::all_ok), "a block was not stored");
        for r in &reports {
            tier.on_request_finished(RequestId(r.id.0 + 10), &[]);
        }
        ended += reports.len() as u64;
        if reports.is_empty() {
            bell.wait(seen, std::time::Duration::from_secs(1));
        }
    }
    Ok(())
}
