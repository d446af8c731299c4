//! Opening a root of many large sparse files: by its journal, by a walk in the background, and with the bound cut to a
//! tenth.

use std::{
    fs::File,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use kvweir::{
    clock::Clock,
    fs::{FsBuilder, FsSettings, FsTier, Layout},
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

/// Options of `start`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to write; a temporary directory inside it is made and removed.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Block files.
    #[arg(long, default_value_t = 500_000)]
    files: u64,
    /// Bytes of a block; files are sparse.
    #[arg(long, default_value_t = 2 << 20)]
    block_bytes: usize,
    /// Seed of the names.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// A tier being opened, with what it took.
struct Opened {
    tier: FsTier,
    open_s: f64,
    lookup_s: f64,
    all_s: f64,
    /// The most that was counted at any look while it was getting ready.
    above: u64,
}

fn open(args: &Args, clock: &Arc<dyn Clock>, root: &Path, bound: u64, boot: Option<u8>) -> Result<Opened> {
    let settings = FsSettings {
        max_bytes: Some(bound),
        layout: Layout::Fs,
        ..FsSettings::new(root)
    };
    let began = clock.now();
    let since = || clock.now().since(began).as_secs_f64();
    let ns = Namespace::new(&Identity::default())?;
    let mut b = FsBuilder::new(settings, ns, args.block_bytes).clock(Arc::clone(clock));
    if let Some(n) = boot {
        b = b.boot_id([n; 16]);
    }
    let mut tier = b.open().context("open the root")?;
    let open_s = since();
    tier.lookup(&key(args.seed, 0)?, RequestId(1));
    let lookup_s = since();
    tier.on_request_finished(RequestId(1), &[]);
    let bell = Bell::default();
    let mut above = 0;
    while tier.is_trimming() {
        above = above.max(tier.stats().resident_bytes);
        bell.wait(0, Duration::from_millis(2));
    }
    Ok(Opened {
        tier,
        open_s,
        lookup_s,
        all_s: since(),
        above,
    })
}

pub(crate) fn run(args: &Args, clock: &Arc<dyn Clock>) -> Result<()> {
    let dir = args.dir.canonicalize()?;
    env::tell(&**clock, args.seed, Some(&dir));
    let temp = tempfile::Builder::new().prefix("kvweir-lab-").tempdir_in(&dir)?;
    let root = temp.path().join("kv");
    let began = clock.now();
    let ns = root.join(Namespace::new(&Identity::default())?.dir());
    files::make(&ns, args.seed, args.files, |path| {
        File::create_new(path)?.set_len(args.block_bytes as u64)
    })?;
    let made = clock.now().since(began).as_secs_f64();
    say(&format!("{} files made in {made:.1} s", args.files));
    let bound = 4 * args.files * (args.block_bytes as u64 + 16384);

    let mut walk = open(args, clock, &root, bound, None)?;
    let all = walk.tier.stats();
    walk.tier.shutdown();
    let mut journal = open(args, clock, &root, bound, None)?;
    let again = journal.tier.stats();
    journal.tier.shutdown();
    ensure!(
        (again.blocks, again.resident_bytes / args.block_bytes as u64)
            == (all.blocks, all.resident_bytes / args.block_bytes as u64),
        "journal and walk disagree: {again:?} {all:?}"
    );
    let boot = open(args, clock, &root, bound, Some(7))?;
    let mut cut_from = boot.tier;
    let boot_all_s = boot.all_s;
    cut_from.shutdown();
    let tenth = all.resident_bytes / 10;
    let mut cut = open(args, clock, &root, tenth, Some(7))?;
    let after = cut.tier.stats();
    let evicted = after
        .evicted_blocks
        .get(EvictReason::Trim as usize)
        .copied()
        .unwrap_or(0);
    ensure!(after.resident_bytes <= tenth, "above the bound after the trim");
    ensure!(
        cut.above <= all.resident_bytes + (64 << 20),
        "it grew while it was trimmed"
    );
    cut.tier.shutdown();
    let row = |name: &str, value: String| vec![name.to_owned(), value];
    let ms = |s: f64| format!("{:.0} ms", s * 1e3);
    table(&[
        row("blocks", all.blocks.to_string()),
        row("bytes counted", all.resident_bytes.to_string()),
        row("walk: open returns after", ms(walk.open_s)),
        row("walk: first lookup after", ms(walk.lookup_s)),
        row("walk: everything known after", ms(walk.all_s)),
        row(
            "walk again (another boot): everything known after",
            ms(boot_all_s),
        ),
        row("journal: open returns after", ms(journal.open_s)),
        row("journal: first lookup after", ms(journal.lookup_s)),
        row("journal: everything known after", ms(journal.all_s)),
        row("bound cut to a tenth: open returns after", ms(cut.open_s)),
        row("bound cut to a tenth: first lookup after", ms(cut.lookup_s)),
        row("bound cut to a tenth: trimmed after", ms(cut.all_s)),
        row(
            "trim rate",
            format!(
                "{:.0} files/s",
                evicted as f64 / (cut.all_s - cut.open_s).max(1e-9)
            ),
        ),
        row("evicted", evicted.to_string()),
        row(
            "account after / bound",
            format!("{:.4}", after.resident_bytes as f64 / tenth as f64),
        ),
    ]);
    Ok(())
}
