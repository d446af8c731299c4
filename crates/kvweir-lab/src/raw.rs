//! Raw direct I/O with the same threads, sizes and memory as the tier under test: one big preallocated file is what
//! the device gives, one file per block is what the file system gives to any tier of files.

use std::{
    io::{self, IoSlice, IoSliceMut},
    path::{Path, PathBuf},
    sync::atomic::{AtomicU32, Ordering},
};

use anyhow::{Context, Result};
use kvweir::io::{
    Disk, DiskFile, OsDisk, PAGE, PageBuffer, Region,
    disk::{OpenMode, read_full, write_full},
};

/// Directories over which files of one block each are spread.
const DIRS: u32 = 256;

/// Runs `each` for all of `n` blocks on `threads` threads.
fn spread(threads: usize, n: u32, each: &(dyn Fn(u32, &mut PageBuffer) -> Result<()> + Sync)) -> Result<()> {
    let next = AtomicU32::new(0);
    let work = || -> Result<()> {
        let mut page = PageBuffer::new(PAGE)?;
        loop {
            let i = next.fetch_add(1, Ordering::Relaxed);
            if i >= n {
                return Ok(());
            }
            each(i, &mut page)?;
        }
    };
    std::thread::scope(|s| {
        let all: Vec<_> = (0..threads).map(|_| s.spawn(work)).collect();
        all.into_iter()
            .try_for_each(|t| t.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
    })
}

/// The big file of `bytes` bytes, made and preallocated before the clock starts.
pub(crate) fn big_file(path: &Path, bytes: u64) -> Result<Box<dyn DiskFile>> {
    let f = OsDisk.open(path, OpenMode::ReadWrite, true)?;
    f.allocate(bytes).context("preallocate")?;
    Ok(f)
}

/// Writes every slot of `region`, and a page behind each, into one file.
pub(crate) fn write_big(file: &dyn DiskFile, region: &Region, threads: usize) -> Result<()> {
    let step = (region.block_len() + PAGE) as u64;
    spread(threads, region.num_slots(), &|i, page| {
        let slot = region.read(i)?;
        let n = file.write_at(
            &[IoSlice::new(&slot), IoSlice::new(page.as_slice())],
            u64::from(i) * step,
        )?;
        anyhow::ensure!(n as u64 == step, "short write");
        Ok(())
    })
}

/// Reads back what [`write_big`] wrote.
pub(crate) fn read_big(file: &dyn DiskFile, region: &Region, threads: usize) -> Result<()> {
    let step = (region.block_len() + PAGE) as u64;
    spread(threads, region.num_slots(), &|i, page| {
        let mut slot = region.write(i)?;
        let mut bufs = [IoSliceMut::new(&mut slot), IoSliceMut::new(page.as_mut_slice())];
        let n = file.read_at(&mut bufs, u64::from(i) * step)?;
        anyhow::ensure!(n as u64 == step, "short read");
        Ok(())
    })
}

/// Calls `each` with the slots of every job of `job` blocks, on `threads` threads.
fn spread_jobs(
    region: &Region,
    job: u32,
    threads: usize,
    each: &(dyn Fn(std::ops::Range<u32>, u64) -> Result<()> + Sync),
) -> Result<()> {
    let all = region.num_slots();
    spread(threads, all.div_ceil(job), &|j, _| {
        let slots = j * job..all.min((j + 1) * job);
        each(slots, u64::from(j) * u64::from(job) * region.block_len() as u64)
    })
}

/// Writes every slot of `region`, the blocks of a job with one call.
pub(crate) fn write_runs(file: &dyn DiskFile, region: &Region, job: u32, threads: usize) -> Result<()> {
    spread_jobs(region, job, threads, &|slots, at| {
        let slots = slots
            .map(|s| region.read(s))
            .collect::<kvweir::Result<Vec<_>>>()?;
        let bufs: Vec<IoSlice<'_>> = slots.iter().map(|s| IoSlice::new(s)).collect();
        let n = file.write_at(&bufs, at)?;
        anyhow::ensure!(n == slots.len() * region.block_len(), "short write");
        Ok(())
    })
}

/// Reads back what [`write_runs`] wrote.
pub(crate) fn read_runs(file: &dyn DiskFile, region: &Region, job: u32, threads: usize) -> Result<()> {
    spread_jobs(region, job, threads, &|slots, at| {
        let mut slots = slots
            .map(|s| region.write(s))
            .collect::<kvweir::Result<Vec<_>>>()?;
        let all = slots.len() * region.block_len();
        let mut bufs: Vec<IoSliceMut<'_>> = slots.iter_mut().map(|s| IoSliceMut::new(s)).collect();
        let n = file.read_at(&mut bufs, at)?;
        anyhow::ensure!(n == all, "short read");
        Ok(())
    })
}

/// Makes the directories for one file per block.
pub(crate) fn make_dirs(dir: &Path) -> io::Result<()> {
    OsDisk.create_dir(dir)?;
    (0..DIRS).try_for_each(|d| OsDisk.create_dir(&dir.join(format!("{d:02x}"))))
}

/// Where block `i` goes; with `own_dir`, into a directory of its own, as nearly all blocks of the stock layout.
fn path(dir: &Path, i: u32, own_dir: bool) -> PathBuf {
    let dir = dir.join(format!("{:02x}", i % DIRS));
    let dir = if own_dir {
        dir.join(format!("{i:x}_g0"))
    } else {
        dir
    };
    dir.join(format!("{i:08x}.bin"))
}

/// Writes every slot into a file of its own, under a temporary name, and renames it.
pub(crate) fn write_files(dir: &Path, region: &Region, threads: usize, own_dir: bool) -> Result<()> {
    spread(threads, region.num_slots(), &|i, page| {
        let slot = region.read(i)?;
        let to = path(dir, i, own_dir);
        if let Some(own) = to.parent().filter(|_| own_dir) {
            OsDisk.create_dir(own)?;
        }
        let temp = to.with_extension("tmp");
        let f = OsDisk.open(&temp, OpenMode::CreateNew, true)?;
        write_full(&*f, &slot, page.as_slice())?;
        Ok(OsDisk.rename(&temp, &to)?)
    })
}

/// Reads back what [`write_files`] wrote.
pub(crate) fn read_files(dir: &Path, region: &Region, threads: usize, own_dir: bool) -> Result<()> {
    spread(threads, region.num_slots(), &|i, page| {
        let mut slot = region.write(i)?;
        let f = OsDisk.open(&path(dir, i, own_dir), OpenMode::Read, true)?;
        let n = read_full(&*f, &mut slot, page.as_mut_slice())?;
        anyhow::ensure!(n == region.block_len() + PAGE, "short file");
        Ok(())
    })
}
