//! The device without a tier, as a contender.

use std::{
    io::{IoSlice, IoSliceMut},
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use anyhow::{Context, Result, ensure};
use kvweir::{
    clock::Clock,
    io::{Disk, DiskFile, OsDisk, Region, disk::OpenMode, pool::PoolSize},
};

use super::side::{Side, Took, Work, cpu_seconds};

/// The device: preallocated files, one run of blocks per job, the tier's threads. Every tier that is not full writes
/// where nothing of it was before, so the device does too: each round writes a new file, in which a load finds the same
/// round's blocks. With `again` it is one file, written over in each round: what a tier at its bound can reach. A disk
/// may treat the two differently, above all one that is thinly provisioned below a file system that discards.
#[derive(Debug)]
pub(super) struct Raw {
    path: PathBuf,
    files: u64,
    again: bool,
    file: Box<dyn DiskFile>,
    clock: Arc<dyn Clock>,
    region: Region,
    bytes: u64,
}

impl Raw {
    pub(super) fn new(
        path: &Path,
        blocks: u32,
        region: &Region,
        clock: &Arc<dyn Clock>,
        again: bool,
    ) -> Result<Self> {
        let bytes = u64::from(blocks) * region.block_len() as u64;
        let path = path.to_owned();
        let raw = Self {
            file: Self::make(&path, 0, bytes)?,
            path,
            files: 1,
            again,
            clock: Arc::clone(clock),
            region: region.clone(),
            bytes,
        };
        let once = Work {
            salt: 0,
            first: 0,
            slot: 0,
            blocks,
            batch: 16,
            depth: usize::MAX,
        };
        if again {
            raw.spread(once, false)?;
        }
        Ok(raw)
    }

    fn make(path: &Path, number: u64, bytes: u64) -> Result<Box<dyn DiskFile>> {
        let path = path.with_extension(number.to_string());
        let file = OsDisk.open(&path, OpenMode::ReadWrite, true)?;
        file.allocate(bytes)
            .with_context(|| format!("preallocate {}", path.display()))?;
        Ok(file)
    }

    fn spread(&self, w: Work, is_load: bool) -> Result<Took> {
        let pool = PoolSize::default();
        let most = if is_load { pool.threads } else { pool.store_threads };
        let (next, times) = (AtomicU64::new(0), Mutex::new(Vec::new()));
        let jobs = u64::from(w.blocks.div_ceil(w.batch));
        let work = || -> Result<()> {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= jobs {
                    return Ok(());
                }
                let at = n as u32 * w.batch;
                let began = self.clock.now();
                self.once(w.slot + at, at, w.batch.min(w.blocks - at), is_load)?;
                let took = self.clock.now().since(began).as_secs_f64();
                times.lock().unwrap_or_else(PoisonError::into_inner).push(took);
            }
        };
        let (began, cpu) = (self.clock.now(), cpu_seconds());
        std::thread::scope(|s| {
            let all: Vec<_> = (0..most.min(w.depth)).map(|_| s.spawn(work)).collect();
            all.into_iter()
                .try_for_each(|t| t.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
        })?;
        Ok(Took {
            seconds: self.clock.now().since(began).as_secs_f64(),
            cpu_s: cpu_seconds() - cpu,
            jobs_s: times.into_inner().unwrap_or_else(PoisonError::into_inner),
        })
    }

    fn once(&self, slot: u32, at: u32, blocks: u32, is_load: bool) -> Result<()> {
        let len = self.region.block_len();
        let (slots, offset) = (slot..slot + blocks, u64::from(at) * len as u64);
        let done = if is_load {
            let mut held = slots
                .map(|n| self.region.write(n))
                .collect::<kvweir::Result<Vec<_>>>()?;
            let mut bufs: Vec<_> = held.iter_mut().map(|s| IoSliceMut::new(s)).collect();
            self.file.read_at(&mut bufs, offset)?
        } else {
            let held = slots
                .map(|n| self.region.read(n))
                .collect::<kvweir::Result<Vec<_>>>()?;
            let bufs: Vec<_> = held.iter().map(|s| IoSlice::new(s)).collect();
            self.file.write_at(&bufs, offset)?
        };
        ensure!(done == blocks as usize * len, "the device moved less");
        Ok(())
    }
}

impl Side for Raw {
    fn store(&mut self, work: Work) -> Result<Took> {
        if !self.again {
            // as all others, it keeps what earlier rounds wrote
            self.file = Self::make(&self.path, self.files, self.bytes)?;
            self.files += 1;
        }
        self.spread(work, false)
    }

    fn load(&mut self, work: Work) -> Result<Took> {
        self.spread(work, true)
    }

    fn duel(&mut self, _: Work, _: Work, _: usize) -> Result<Took> {
        anyhow::bail!("the device alone has no queue of its own")
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}
