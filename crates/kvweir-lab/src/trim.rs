//! Opening a root far above its bound: many small block files of the stock layout, a bound of a tenth of them.

use std::{path::PathBuf, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use kvweir::{
    clock::Clock,
    fs::{FsBuilder, FsSettings, Layout},
    io::{Disk, OsDisk, disk::FileKind},
    metrics::EvictReason,
    namespace::{Identity, Namespace},
    sync::Bell,
    tier::{RequestId, Tier},
};

use crate::{
    env, files,
    keys::key,
    print::{say, table},
};

/// Options of `trim`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to write; a temporary directory inside it is made and removed.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Block files.
    #[arg(long, default_value_t = 200_000)]
    files: u64,
    /// Bytes of a block.
    #[arg(long, default_value_t = 4096)]
    block_bytes: usize,
    /// Seed of the names.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: &Args, clock: &Arc<dyn Clock>) -> Result<()> {
    let dir = args.dir.canonicalize()?;
    env::tell(&**clock, args.seed, Some(&dir));
    let temp = tempfile::Builder::new().prefix("kvweir-lab-").tempdir_in(&dir)?;
    let root = temp.path().join("kv");
    let ns = Namespace::new(&Identity::default())?;
    let began = clock.now();
    let bytes = vec![7u8; args.block_bytes];
    files::make(&root.join(ns.dir()), args.seed, args.files, |path| {
        std::fs::write(path, &bytes)
    })?;
    let made = clock.now().since(began).as_secs_f64();
    let before = du(&root)?;
    let bound = before / 10;

    let began = clock.now();
    let since = || clock.now().since(began).as_secs_f64();
    let settings = FsSettings {
        max_bytes: Some(bound),
        layout: Layout::Fs,
        ..FsSettings::new(&root)
    };
    let mut tier = FsBuilder::new(settings, ns, args.block_bytes)
        .clock(Arc::clone(clock))
        .open()
        .context("open the root")?;
    let opened = since();
    tier.lookup(&key(args.seed, 0)?, RequestId(1));
    let answered = since();
    let bell = Bell::default();
    while tier.is_trimming() {
        bell.wait(0, Duration::from_millis(5));
    }
    let trimmed = since();
    let stats = tier.stats();
    let evicted = stats
        .evicted_blocks
        .get(EvictReason::Trim as usize)
        .copied()
        .unwrap_or(0);
    let after = du(&root)?;
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    table(&[
        row("files made", format!("{} in {made:.1} s", args.files)),
        row("bytes before", before.to_string()),
        row("bound", bound.to_string()),
        row("opened after", format!("{opened:.2} s")),
        row("first lookup after", format!("{answered:.2} s")),
        row("recovered", stats.recovered_blocks.to_string()),
        row("trimmed after", format!("{trimmed:.2} s")),
        row(
            "trim rate",
            format!("{:.0} files/s", evicted as f64 / (trimmed - opened).max(1e-9)),
        ),
        row("candidates tried", stats.trim_candidates.to_string()),
        row("evicted", evicted.to_string()),
        row("unlink failures", stats.unlink_failures.to_string()),
        row("bytes after (du)", after.to_string()),
        row("bytes after (account)", stats.resident_bytes.to_string()),
        row("du / bound", format!("{:.4}", after as f64 / bound as f64)),
    ]);
    anyhow::ensure!(after <= bound, "du says {after}, the bound is {bound}");
    anyhow::ensure!(after == stats.resident_bytes, "the account is wrong");
    anyhow::ensure!(
        stats.trim_candidates == evicted + stats.unlink_failures,
        "a candidate was tried twice"
    );
    say("one pass, each candidate tried at most once, below the bound");
    Ok(())
}

/// Allocated bytes below and including `path`, by an independent walk.
fn du(path: &std::path::Path) -> Result<u64> {
    let stat = OsDisk.stat(path)?;
    let mut sum = stat.allocated;
    if stat.kind == FileKind::Dir {
        let mut names = Vec::new();
        OsDisk.list(path, &mut |name, _| names.push(name.to_owned()))?;
        for n in names {
            sum += du(&path.join(n))?;
        }
    }
    Ok(sum)
}
