//! An open file.

use std::{
    io::{self, IoSlice, IoSliceMut},
    sync::Arc,
};

use super::{
    SimDisk,
    data::Data,
    tree::{SimFault, errno},
};
use crate::{
    io::{
        PAGE,
        disk::{DiskFile, FileKind, Stat},
    },
    sync::{Mutex, lock},
};

/// An open file: its bytes, and by which handle it is locked.
#[derive(Debug)]
pub(super) struct SimFile {
    pub(super) disk: SimDisk,
    pub(super) data: Arc<Mutex<Data>>,
    pub(super) handle: u64,
}

/// What a file system says of a file.
pub(super) fn stat_of(d: &Data) -> Stat {
    Stat {
        len: d.bytes.len() as u64,
        allocated: d.taken(),
        mtime_ns: d.mtime_ns,
        kind: FileKind::File,
        uid: 0,
        mode: 0o600,
        links: u64::from(!d.unlinked),
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let t = self.disk.tree()?;
        let d = lock(&self.data);
        let mut left = d.bytes.get(offset as usize..).unwrap_or_default();
        let here = t.here();
        if here == Some(SimFault::Short) {
            left = left.get(..1.min(left.len())).unwrap_or_default();
        }
        let mut done = 0;
        for b in bufs {
            let n = b.len().min(left.len());
            let (now, rest) = left.split_at(n);
            if let Some(to) = b.get_mut(..n) {
                to.copy_from_slice(now);
            }
            if here == Some(SimFault::Flip)
                && done == 0
                && let Some(byte) = b.first_mut()
            {
                *byte ^= 4;
            }
            left = rest;
            done += n;
        }
        Ok(done)
    }

    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let mut t = self.disk.step(true)?;
        let mut d = lock(&self.data);
        let mut all: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        match (t.here(), all.first_mut()) {
            (Some(SimFault::Short), _) => all.truncate(1),
            (Some(SimFault::Flip), Some(byte)) => *byte ^= 4,
            (Some(SimFault::Torn(_)), _) => all.truncate(all.len() / 2),
            _ => {}
        }
        let end = offset as usize + all.len();
        let now = d.bytes.len().max(end);
        t.fill(&mut d, now, offset as usize..end)?;
        d.keep_before(offset as usize..end);
        if let Some(to) = d.bytes.get_mut(offset as usize..end) {
            to.copy_from_slice(&all);
        }
        t.clock += 1;
        d.mtime_ns = t.clock;
        match t.here() {
            Some(SimFault::Torn(e)) => Err(errno(e)),
            _ => Ok(all.len()),
        }
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut t = self.disk.tree()?;
        let mut d = lock(&self.data);
        let now = d.bytes.len().max(len as usize);
        t.fill(&mut d, now, 0..len as usize)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut t = self.disk.tree()?;
        let mut d = lock(&self.data);
        t.fill(&mut d, len as usize, 0..0)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut t = self.disk.tree()?;
        let mut d = lock(&self.data);
        let (from, end) = (offset as usize, (offset + len).min(d.bytes.len() as u64) as usize);
        d.keep_before(from..end);
        if let Some(bytes) = d.bytes.get_mut(from..end) {
            bytes.fill(0);
        }
        let before = d.taken();
        d.holes.extend(from.div_ceil(PAGE)..end / PAGE);
        t.allocated = t.allocated - before + d.taken();
        Ok(())
    }

    fn set_modified(&self, unix_ns: u64) -> io::Result<()> {
        let _t = self.disk.tree()?;
        lock(&self.data).mtime_ns = i128::from(unix_ns);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let _t = self.disk.tree()?;
        lock(&self.data).sync();
        Ok(())
    }

    fn stat(&self) -> io::Result<Stat> {
        let _t = self.disk.tree()?;
        Ok(stat_of(&lock(&self.data)))
    }

    fn try_lock(&self) -> io::Result<bool> {
        let t = self.disk.tree()?;
        let mut d = lock(&self.data);
        let free = d.lock.is_none_or(|(h, life)| h == self.handle || life != t.life);
        if free {
            d.lock = Some((self.handle, t.life));
        }
        Ok(free)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut d = lock(&self.data);
        if d.lock.is_some_and(|(h, _)| h == self.handle) {
            d.lock = None;
        }
    }
}
