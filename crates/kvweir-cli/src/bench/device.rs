//! What the device gives without a tier: direct reads and writes in one preallocated file, of whole jobs as contiguous
//! runs and of single blocks, from the same memory.

use std::{
    io::{self, IoSlice, IoSliceMut},
    path::Path,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result, ensure};
use kvweir::io::{Disk, DiskFile, OsDisk, Region, disk::OpenMode};

use super::{
    content::scatter,
    meter::{Meter, Phase, Spent},
};

/// The file and the memory beside it.
#[derive(Debug)]
pub(super) struct Device<'a> {
    file: Box<dyn DiskFile>,
    /// Whether the page cache is bypassed.
    pub(super) direct: bool,
    source: &'a Region,
    target: &'a Region,
    /// Blocks in the file.
    blocks: u64,
}

/// How the file is used.
#[derive(Debug, Clone, Copy)]
pub(super) struct Use {
    /// Blocks of one read or write.
    pub(super) run: u64,
    /// Threads, each with one read or write under way.
    pub(super) threads: usize,
    /// Percentage of reads.
    pub(super) loads: u64,
    /// Seed of order and choices.
    pub(super) seed: u64,
}

/// Writes, reads, and what both together took.
pub(super) type Both = (Meter, Meter, Spent);

impl<'a> Device<'a> {
    /// Makes and preallocates the file.
    pub(super) fn new(path: &Path, blocks: u64, source: &'a Region, target: &'a Region) -> Result<Self> {
        let open = |direct| OsDisk.open(path, OpenMode::ReadWrite, direct);
        let (file, direct) = match open(true) {
            Err(e) if e.kind() == io::ErrorKind::InvalidInput => (open(false)?, false),
            other => (other?, true),
        };
        file.allocate(blocks * source.block_len() as u64)
            .with_context(|| format!("reserve {}", path.display()))?;
        Ok(Self {
            file,
            direct,
            source,
            target,
            blocks,
        })
    }

    /// Runs one phase.
    pub(super) fn run(&self, how: Use, phase: &Phase<'_>, tell: &(dyn Fn(u64) + Sync)) -> Result<Both> {
        let next = AtomicU64::new(0);
        let all = Mutex::new((Meter::new()?, Meter::new()?));
        let work = |worker: usize| -> Result<()> {
            let (mut writes, mut reads) = (Meter::new()?, Meter::new()?);
            loop {
                let job = next.fetch_add(1, Ordering::Relaxed);
                if !phase.goes_on(job) {
                    break;
                }
                if worker == 0 {
                    tell(job);
                }
                let runs = (self.blocks / how.run).max(1);
                let is_load = scatter(job, how.seed, 100) < how.loads;
                let at = if is_load {
                    scatter(job, how.seed, runs)
                } else {
                    job % runs
                };
                let began = phase.now();
                let bytes = self.once(worker, how.run, at, is_load)?;
                let took = phase.now().since(began);
                let meter = if is_load { &mut reads } else { &mut writes };
                meter.add(took, bytes);
            }
            let mut all = all.lock().unwrap_or_else(PoisonError::into_inner);
            all.0.join(&writes)?;
            all.1.join(&reads)
        };
        std::thread::scope(|s| {
            let running: Vec<_> = (0..how.threads).map(|w| s.spawn(move || work(w))).collect();
            running
                .into_iter()
                .try_for_each(|t| t.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
        })?;
        let (writes, reads) = all.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok((writes, reads, phase.spent()))
    }

    /// One read or write of a run of blocks; slots of one worker are its own.
    fn once(&self, worker: usize, run: u64, at: u64, is_load: bool) -> Result<u64> {
        let len = self.source.block_len() as u64;
        let (first, offset, bytes) = (worker as u64 * run, at * run * len, run * len);
        let slots = (first..first + run).map(|n| (n % u64::from(self.source.num_slots())) as u32);
        let done = if is_load {
            let mut held = slots
                .map(|n| self.target.write(n))
                .collect::<kvweir::Result<Vec<_>>>()?;
            let mut bufs: Vec<_> = held.iter_mut().map(|s| IoSliceMut::new(s)).collect();
            self.file.read_at(&mut bufs, offset)
        } else {
            let held = slots
                .map(|n| self.source.read(n))
                .collect::<kvweir::Result<Vec<_>>>()?;
            let bufs: Vec<_> = held.iter().map(|s| IoSlice::new(s)).collect();
            self.file.write_at(&bufs, offset)
        };
        let done = done.context("use the file that shows what the device gives")?;
        ensure!(done as u64 == bytes, "the device moved {done} of {bytes} bytes");
        Ok(bytes)
    }
}
