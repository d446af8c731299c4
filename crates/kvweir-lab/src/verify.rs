//! `kvweir verify` beside raw direct reads of the same files, by as many threads, in interleaved rounds of one run.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use anyhow::{Context, Result};
use kvweir::{
    admin::{Admin, VerifyOptions},
    clock::Clock,
    fs::{FsBuilder, FsSettings, Layout},
    io::{
        Disk, OsDisk, PageBuffer, Region,
        disk::{FileKind, OpenMode, read_full},
        pool::usable_cpus,
    },
    namespace::{Identity, Namespace},
    tier::{JobId, Report, RequestId, StoreBlock, StoreJob, Tier},
};

use crate::{
    env,
    keys::{fill, key},
    print::{heading, median, say, table},
};

/// Options of `verify`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to write; a temporary directory inside it is made and removed.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Block sizes in KiB.
    #[arg(long, value_delimiter = ',', default_value = "64,512,2048")]
    block_kib: Vec<u64>,
    /// MiB of blocks of each size.
    #[arg(long, default_value_t = 1024)]
    mib: u64,
    /// Rounds.
    #[arg(long, default_value_t = 5)]
    rounds: u64,
    /// Threads of both [default: those of `kvweir verify`]
    #[arg(long)]
    threads: Option<usize>,
    /// Seed of keys and contents.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

pub(crate) fn run(args: &Args, clock: &Arc<dyn Clock>) -> Result<()> {
    let dir = args.dir.canonicalize()?;
    env::tell(&**clock, args.seed, Some(&dir));
    let threads = args.threads.unwrap_or((usable_cpus() * 4).clamp(4, 16));
    say(&format!("rounds    {}, {threads} threads each\n", args.rounds));
    let mut rows = vec![heading(&[
        "blocks",
        "raw GB/s",
        "verify GB/s",
        "/ raw",
        "min",
        "max",
        "with the first walk GB/s",
    ])];
    for &kib in &args.block_kib {
        let temp = tempfile::Builder::new().prefix("kvweir-lab-").tempdir_in(&dir)?;
        let root = temp.path().join("kv");
        store(args, &root, kib)?;
        let mut files = Vec::new();
        list(&root, &mut files)?;
        let admin = Admin::new(&root)?.clock(Arc::clone(clock)).threads(threads);
        let (mut raw, mut verify, mut whole) = (Vec::new(), Vec::new(), Vec::new());
        for round in 0..args.rounds {
            for turn in 0..2 {
                let began = clock.now();
                let seconds = || clock.now().since(began).as_secs_f64();
                if (round + turn) % 2 == 0 {
                    let bytes = read(&files, threads)?;
                    raw.push(bytes as f64 / 1e9 / seconds());
                } else {
                    let report = admin.verify(&VerifyOptions::default(), &|_| {})?;
                    anyhow::ensure!(
                        report.is_clean() && report.good == files.len() as u64,
                        "{report:?}"
                    );
                    verify.push(report.gb_s());
                    whole.push(report.bytes as f64 / 1e9 / seconds());
                }
            }
        }
        let mut ratios: Vec<f64> = verify.iter().zip(&raw).map(|(v, r)| v / r).collect();
        let ratio = median(&mut ratios);
        rows.push(vec![
            format!("{} of {kib} KiB", files.len()),
            format!("{:.2}", median(&mut raw)),
            format!("{:.2}", median(&mut verify)),
            format!("{ratio:.2}"),
            format!("{:.2}", ratios.first().copied().unwrap_or(0.0)),
            format!("{:.2}", ratios.last().copied().unwrap_or(0.0)),
            format!("{:.2}", median(&mut whole)),
        ]);
    }
    table(&rows);
    Ok(())
}

/// Fills the root through a tier.
fn store(args: &Args, root: &Path, kib: u64) -> Result<()> {
    let block = usize::try_from(kib * 1024)?;
    let slots = u32::try_from((16 << 20) / block.max(1))?.max(1);
    let region = Region::new(slots, block, false)?;
    let settings = FsSettings {
        max_bytes: Some(1 << 44),
        layout: Layout::Fs,
        ..FsSettings::new(root)
    };
    let mut tier = FsBuilder::new(settings, Namespace::new(&Identity::default())?, block)
        .open()
        .context("open the root")?;
    let blocks = (args.mib << 20) / block as u64;
    let mut reports = Vec::new();
    for first in (0..blocks).step_by(slots as usize) {
        let mut job = Vec::new();
        for (n, slot) in (first..blocks).zip(0..slots) {
            fill(args.seed ^ n, &mut region.write(slot)?);
            job.push(StoreBlock {
                key: key(args.seed, n)?,
                slot: region.read(slot)?,
            });
        }
        tier.submit_store(StoreJob {
            id: JobId(first),
            req: RequestId(1),
            blocks: job,
        });
        tier.drain();
        tier.poll(&mut reports);
        anyhow::ensure!(reports.iter().all(Report::all_ok), "a block was not stored");
    }
    Ok(())
}

/// The block files.
fn list(dir: &Path, files: &mut Vec<PathBuf>) -> Result<()> {
    let mut names = Vec::new();
    OsDisk.list(dir, &mut |name, kind| names.push((dir.join(name), kind)))?;
    for (path, kind) in names {
        if kind == Some(FileKind::Dir) {
            list(&path, files)?;
        } else if path.extension().is_some_and(|e| e == "bin") {
            files.push(path);
        }
    }
    Ok(())
}

/// Reads every file whole, past the page cache, and does nothing with it. Returns the bytes.
fn read(files: &[PathBuf], threads: usize) -> Result<u64> {
    let next = AtomicUsize::new(0);
    let all = Mutex::new(0);
    let work = || -> Result<()> {
        let mut buf = PageBuffer::new(8 << 20)?;
        let mut bytes = 0;
        while let Some(path) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
            let file = OsDisk.open(path, OpenMode::Read, true)?;
            let len = usize::try_from(file.stat()?.len)?;
            let buf = buf
                .as_mut_slice()
                .get_mut(..len)
                .context("a file of more than 8 MiB")?;
            bytes += read_full(&*file, buf, &mut [])? as u64;
        }
        *all.lock().map_err(|_| anyhow::anyhow!("a thread panicked"))? += bytes;
        Ok(())
    };
    std::thread::scope(|s| {
        let running: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        running
            .into_iter()
            .try_for_each(|t| t.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
    })?;
    let bytes = all.lock().map_err(|_| anyhow::anyhow!("a thread panicked"))?;
    Ok(*bytes)
}
