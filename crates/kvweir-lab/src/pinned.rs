//! Eviction while most blocks are pinned: what stores into a full file tier, and room made in a full primary tier, cost
//! with none and with nine tenths of the blocks pinned, and what a lookup beside the stores waits.

use std::sync::Arc;

use anyhow::Result;
use kvweir::{
    Key,
    clock::Clock,
    evict::PolicyKind,
    fs::{FsBuilder, FsSettings},
    io::{Region, pool::PoolSize},
    namespace::{Identity, Namespace},
    primary::Primary,
    tier::{JobId, RequestId, StoreBlock, StoreJob, Tier},
};

use crate::{
    env,
    keys::key,
    print::{heading, table},
};

const BLOCK: usize = 4096;

/// Options of `pinned`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Blocks that are there; they have no files.
    #[arg(long, default_value_t = 60_000)]
    blocks: u64,
    /// How many of them are pinned.
    #[arg(long, default_value_t = 54_000)]
    pinned: u64,
    /// Blocks stored.
    #[arg(long, default_value_t = 256)]
    stores: u64,
    /// Seed of the keys.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: &Args, clock: &Arc<dyn Clock>) -> Result<()> {
    env::tell(&**clock, args.seed, None);
    let mut rows = vec![heading(&[
        "policy",
        "pinned",
        "stores, ms",
        "lookup beside, mean us",
        "worst us",
        "primary, ns per slot",
    ])];
    for kind in PolicyKind::ALL {
        for pinned in [0, args.pinned] {
            let [stores, mean, worst] = file_tier(args, kind, pinned, &**clock)?;
            let slot = primary(args, kind, pinned, &**clock)?;
            rows.push(vec![
                kind.to_string(),
                pinned.to_string(),
                format!("{:.1}", stores * 1e3),
                format!("{:.1}", mean * 1e6),
                format!("{:.0}", worst * 1e6),
                format!("{:.0}", slot * 1e9),
            ]);
        }
    }
    table(&rows);
    Ok(())
}

/// Seconds that the stores take, and that a lookup beside them takes in the mean and at worst.
fn file_tier(args: &Args, kind: PolicyKind, pinned: u64, clock: &dyn Clock) -> Result<[f64; 3]> {
    let dir = tempfile::tempdir_in("/dev/shm").or_else(|_| tempfile::tempdir())?;
    let file = 2 * BLOCK as u64;
    let settings = FsSettings {
        max_bytes: Some(args.blocks * file + (64 << 20)),
        policy: kind,
        pool: PoolSize::new(1, 2),
        ..FsSettings::new(dir.path().join("kv"))
    };
    let ns = Namespace::new(&Identity::default())?;
    let mut tier = FsBuilder::new(settings, ns, BLOCK).open()?;
    let mut known = args.blocks;
    tier.add_phantoms((0..known).filter_map(|i| key(args.seed, i).ok()), file);
    // directories and the journal take what they take: filled until something has to go
    while tier.stats().resident_bytes + 8 * file < args.blocks * file + (64 << 20) {
        let more = (args.blocks * file + (64 << 20) - tier.stats().resident_bytes) / (2 * file);
        if tier.add_phantoms(
            (known..known + more.max(1)).filter_map(|i| key(args.seed, i).ok()),
            file,
        ) == 0
        {
            break;
        }
        known += more.max(1);
    }
    for i in 0..pinned {
        tier.lookup(&key(args.seed, i)?, RequestId(1));
    }
    let region = Region::new(1, BLOCK, false)?;
    let (mut sum, mut worst, mut asked, mut reported) = (0.0, 0.0_f64, 0u32, 0);
    let mut reports = Vec::new();
    let began = clock.now();
    for n in 0..args.stores {
        let block = StoreBlock {
            key: key(args.seed, 1 << 40 | n)?,
            slot: region.read(0)?,
        };
        tier.submit_store(StoreJob {
            id: JobId(n),
            req: RequestId(2),
            blocks: vec![block],
        });
    }
    while reported < args.stores {
        let asks = clock.now();
        tier.lookup(&key(args.seed, known - 1)?, RequestId(3));
        let took = clock.now().since(asks).as_secs_f64();
        (sum, worst, asked) = (sum + took, worst.max(took), asked + 1);
        tier.poll(&mut reports);
        reported += reports.drain(..).count() as u64;
    }
    let stores = clock.now().since(began).as_secs_f64();
    tier.shutdown();
    Ok([stores, sum / f64::from(asked.max(1)), worst])
}

/// Seconds that room for one block takes in a full primary tier.
fn primary(args: &Args, kind: PolicyKind, pinned: u64, clock: &dyn Clock) -> Result<f64> {
    let slots = u32::try_from(args.blocks)?;
    let mut primary = Primary::new(Region::new(slots, 64, false)?, kind, false);
    let all: Vec<Key> = (0..args.blocks + args.stores)
        .map(|i| key(args.seed, i))
        .collect::<kvweir::Result<_>>()?;
    let (there, new) = all.split_at(args.blocks as usize);
    // head last, so that the first blocks go first
    for keys in there.chunks(256) {
        primary.prepare_store(keys, RequestId(1));
        primary.complete_store(keys, true);
    }
    primary.end_step();
    primary.prepare_load(there.get(..pinned as usize).unwrap_or_default())?;
    let began = clock.now();
    for key in new {
        let room = primary.prepare_store(std::slice::from_ref(key), RequestId(2));
        anyhow::ensure!(room.is_some(), "something can go");
        primary.complete_store(std::slice::from_ref(key), true);
        primary.end_step();
    }
    Ok(clock.now().since(began).as_secs_f64() / args.stores as f64)
}
