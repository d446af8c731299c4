//! A disk that fails on demand, for tests: rules choose calls by kind, path and count, and answer with an errno, move
//! less than asked, flip a bit, run full, take long, or hang until they are released. Calls are counted and, on
//! request, recorded, so that a test can go through every step of an operation.
//!
//! | file | what it holds |
//! |---|---|
//! | `rule.rs` | [`Op`], [`Fault`], [`Rule`]: which calls fail, and how |
//! | `plan.rs` | what that makes of a call |

mod plan;
mod rule;
#[cfg(test)]
mod tests;

use std::{
    ffi::OsStr,
    io::{self, IoSlice, IoSliceMut},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use self::plan::Plan;
pub use self::rule::{Fault, Op, Rule};
use super::{
    PageBuffer,
    disk::{Disk, DiskFile, FileKind, OpenMode, Space, Stat},
};
use crate::sync::{atomic::Ordering, lock, wait_while};

/// A disk over another one. Clones share the rules.
#[derive(Debug, Clone)]
pub struct FaultDisk {
    inner: Arc<dyn Disk>,
    plan: Plan,
}

impl FaultDisk {
    /// A disk that does what `inner` does until rules are added.
    pub fn new(inner: Arc<dyn Disk>) -> Self {
        Self {
            inner,
            plan: Plan::default(),
        }
    }

    /// Adds a rule; the first one that applies wins.
    pub fn add(&self, rule: Rule) {
        lock(&self.plan.0.rules).rules.push(rule);
    }

    /// Drops all rules and lets go on what hangs.
    pub fn heal(&self) {
        lock(&self.plan.0.rules).rules.clear();
        self.release();
    }

    /// Lets the calls go on that hang now; the rules stay.
    pub fn release(&self) {
        self.plan.0.gate.open();
    }

    /// How many calls hang now.
    pub fn hanging(&self) -> usize {
        lock(&self.plan.0.gate.state).1
    }

    /// Waits until at least `n` calls hang, at most `patience`; returns whether they do.
    pub fn wait_hanging(&self, n: usize, patience: Duration) -> bool {
        let gate = &self.plan.0.gate;
        let g = wait_while(&gate.moved, lock(&gate.state), patience, |g| g.1 < n);
        g.1 >= n
    }

    /// The calls that met a fault so far.
    pub fn met(&self) -> Vec<(Op, PathBuf)> {
        lock(&self.plan.0.rules).met.clone()
    }

    /// Calls so far, of all kinds.
    pub fn calls(&self) -> u64 {
        self.plan.0.calls.load(Ordering::Relaxed)
    }

    /// Records calls from now on.
    pub fn record(&self) {
        lock(&self.plan.0.rules).log = Some(Vec::new());
    }

    /// Ends recording; returns the calls, in the order in which they began.
    pub fn take_record(&self) -> Vec<(Op, PathBuf)> {
        lock(&self.plan.0.rules).log.take().unwrap_or_default()
    }
}

#[derive(Debug)]
struct FaultFile {
    inner: Box<dyn DiskFile>,
    path: PathBuf,
    direct: bool,
    plan: Plan,
}

impl Disk for FaultDisk {
    fn open(&self, path: &Path, mode: OpenMode, direct: bool) -> io::Result<Box<dyn DiskFile>> {
        let op = if mode == OpenMode::CreateNew {
            Op::Create
        } else {
            Op::Open
        };
        self.plan.check(op, path, direct)?;
        let inner = self.inner.open(path, mode, direct)?;
        let (path, plan) = (path.to_owned(), self.plan.clone());
        Ok(Box::new(FaultFile {
            inner,
            path,
            direct,
            plan,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.plan.check(Op::Rename, to, false)?;
        self.inner.rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.plan.check(Op::Remove, path, false)?;
        let len = self.inner.stat(path).map_or(0, |s| s.len);
        self.inner.remove_file(path)?;
        let less = |n: u64| Some(n.saturating_sub(len));
        let _ = self
            .plan
            .0
            .held
            .fetch_update(Ordering::Relaxed, Ordering::Relaxed, less);
        Ok(())
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.plan.check(Op::CreateDir, path, false)?;
        self.inner.create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.plan.check(Op::RemoveDir, path, false)?;
        self.inner.remove_dir(path)
    }

    fn list(&self, path: &Path, each: &mut dyn FnMut(&OsStr, Option<FileKind>)) -> io::Result<()> {
        self.plan.check(Op::List, path, false)?;
        self.inner.list(path, each)
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.plan.check(Op::Stat, path, false)?;
        self.inner.stat(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.plan.check(Op::Space, path, false)?;
        let mut space = self.inner.space(path)?;
        if let Some(room) = self.plan.room() {
            space.available = space.available.min(room);
        }
        Ok(space)
    }

    fn sync_all(&self, path: &Path) -> io::Result<()> {
        self.plan.check(Op::Sync, path, false)?;
        self.inner.sync_all(path)
    }

    fn unit(&self, path: &Path) -> io::Result<u64> {
        self.plan.check(Op::Space, path, false)?;
        self.inner.unit(path)
    }

    fn is_remote(&self, path: &Path) -> bool {
        self.inner.is_remote(path)
    }
}

impl DiskFile for FaultFile {
    fn read_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let limit = self.plan.limit(Op::Read, &self.path, self.direct)?;
        let Some(first) = bufs.iter_mut().find(|b| !b.is_empty()) else {
            return self.inner.read_at(bufs, offset);
        };
        if limit.bytes == usize::MAX && !limit.flip {
            return self.inner.read_at(bufs, offset);
        }
        let part = first
            .get_mut(..)
            .map(|b| b.split_at_mut(limit.bytes.min(b.len())).0);
        let part = part.unwrap_or_default();
        let n = self.inner.read_at(&mut [IoSliceMut::new(part)], offset)?;
        if limit.flip
            && let Some(byte) = part.get_mut(n / 2)
        {
            *byte ^= 1;
        }
        Ok(n)
    }

    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let limit = self.plan.limit(Op::Write, &self.path, self.direct)?;
        let first = bufs.iter().find(|b| !b.is_empty());
        let n = match first {
            Some(first) if limit.flip => {
                // a copy that direct I/O takes too
                let mut copy = PageBuffer::new(first.len()).map_err(|_| io::ErrorKind::OutOfMemory)?;
                let bytes = copy.as_mut_slice().get_mut(..first.len()).unwrap_or_default();
                bytes.copy_from_slice(first);
                if let Some(byte) = bytes.get_mut(first.len() / 2) {
                    *byte ^= 1;
                }
                self.inner.write_at(&[IoSlice::new(bytes)], offset)?
            }
            Some(first) if limit.bytes < usize::MAX => {
                let part = first.get(..limit.bytes.min(first.len())).unwrap_or_default();
                self.inner.write_at(&[IoSlice::new(part)], offset)?
            }
            _ => self.inner.write_at(bufs, offset)?,
        };
        self.plan.0.held.fetch_add(n as u64, Ordering::Relaxed);
        Ok(n)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.plan.check(Op::Allocate, &self.path, self.direct)?;
        self.inner.allocate(len)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.plan.check(Op::Allocate, &self.path, self.direct)?;
        self.inner.set_len(len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.plan.check(Op::Punch, &self.path, self.direct)?;
        self.inner.punch(offset, len)
    }

    fn set_modified(&self, unix_ns: u64) -> io::Result<()> {
        self.plan.check(Op::SetModified, &self.path, self.direct)?;
        self.inner.set_modified(unix_ns)
    }

    fn sync(&self) -> io::Result<()> {
        self.plan.check(Op::Sync, &self.path, self.direct)?;
        self.inner.sync()
    }

    fn stat(&self) -> io::Result<Stat> {
        self.plan.check(Op::Stat, &self.path, self.direct)?;
        self.inner.stat()
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.plan.check(Op::Lock, &self.path, self.direct)?;
        self.inner.try_lock()
    }
}
