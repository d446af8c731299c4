//! A disk that fails on demand, for tests: rules choose calls by kind, path and count, and answer with an errno, move
//! less than asked, flip a bit, run full, take long, or hang until they are released. Calls are counted and, on
//! request, recorded, so that a test can go through every step of an operation.

#[cfg(test)]
mod tests;

use std::{
    ffi::{OsStr, OsString},
    io::{self, IoSlice, IoSliceMut},
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{
    PageBuffer,
    disk::{Disk, DiskFile, FileKind, OpenMode, Space, Stat},
};
use crate::sync::{
    Bell, Condvar, Mutex,
    atomic::{AtomicU64, Ordering},
    lock, wait, wait_while,
};

/// ENOSPC.
const FULL: i32 = 28;

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// [`Disk::open`] of an existing file.
    Open,
    /// [`Disk::open`] of a file that must not exist.
    Create,
    /// [`DiskFile::read_at`].
    Read,
    /// [`DiskFile::write_at`].
    Write,
    /// [`Disk::rename`]; the path is the destination.
    Rename,
    /// [`Disk::remove_file`].
    Remove,
    /// [`Disk::create_dir`].
    CreateDir,
    /// [`Disk::remove_dir`].
    RemoveDir,
    /// [`Disk::stat`] and [`DiskFile::stat`].
    Stat,
    /// [`Disk::list`].
    List,
    /// [`DiskFile::allocate`] and [`DiskFile::set_len`].
    Allocate,
    /// [`DiskFile::punch`].
    Punch,
    /// [`DiskFile::set_modified`].
    SetModified,
    /// [`DiskFile::sync`] and [`Disk::sync_all`].
    Sync,
    /// [`DiskFile::try_lock`].
    Lock,
    /// [`Disk::space`].
    Space,
}

/// What happens instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails with this errno and does nothing.
    Errno(i32),
    /// A read or write moves at most this many bytes.
    Short(usize),
    /// The call waits for [`FaultDisk::release`] or [`FaultDisk::heal`], then does what it should.
    Hang,
    /// The call waits for so long, then does what it should.
    Slow(Duration),
    /// A read or write moves one bit wrong, in the middle of its first buffer.
    Flip,
    /// Writes fail with ENOSPC once the files written through this disk, less those removed, hold so many bytes.
    FullAt(u64),
}

/// Which calls fail, and how.
#[derive(Debug, Clone)]
pub struct Rule {
    /// `None`: every kind.
    op: Option<Op>,
    fault: Fault,
    skip: u64,
    times: u64,
    path: Option<OsString>,
    direct_only: bool,
}

impl Rule {
    /// Every call of kind `op` meets `fault`.
    pub fn new(op: Op, fault: Fault) -> Self {
        Self {
            op: Some(op),
            ..Self::any(fault)
        }
    }

    /// Every call of any kind meets `fault`.
    pub fn any(fault: Fault) -> Self {
        Self {
            op: None,
            fault,
            skip: 0,
            times: u64::MAX,
            path: None,
            direct_only: false,
        }
    }

    /// The `n`-th call from now, of any kind, meets `fault`; the first is number 0.
    pub fn nth(n: u64, fault: Fault) -> Self {
        Self::any(fault).after(n).times(1)
    }

    /// Lets the first `n` matching calls pass.
    #[must_use]
    pub fn after(mut self, n: u64) -> Self {
        self.skip = n;
        self
    }

    /// At most `n` calls fail.
    #[must_use]
    pub fn times(mut self, n: u64) -> Self {
        self.times = n;
        self
    }

    /// Only calls whose path contains `part`.
    #[must_use]
    pub fn path(mut self, part: impl Into<OsString>) -> Self {
        self.path = Some(part.into());
        self
    }

    /// Only calls on files opened for direct I/O.
    #[must_use]
    pub fn direct(mut self) -> Self {
        self.direct_only = true;
        self
    }
}

#[derive(Debug, Default)]
struct Rules {
    rules: Vec<Rule>,
    met: Vec<(Op, PathBuf)>,
    /// Every call since recording began.
    log: Option<Vec<(Op, PathBuf)>>,
}

/// Where calls hang.
#[derive(Debug, Default)]
struct Gate {
    /// How often it was opened, and how many wait.
    state: Mutex<(u64, usize)>,
    moved: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut g = lock(&self.state);
        let seen = g.0;
        g.1 += 1;
        self.moved.notify_all();
        while g.0 == seen {
            g = wait(&self.moved, g);
        }
        g.1 -= 1;
        self.moved.notify_all();
    }

    fn open(&self) {
        lock(&self.state).0 += 1;
        self.moved.notify_all();
    }
}

/// Rules shared by a disk and its open files.
#[derive(Debug, Clone, Default)]
struct Plan(Arc<Shared>);

#[derive(Debug, Default)]
struct Shared {
    rules: Mutex<Rules>,
    gate: Gate,
    calls: AtomicU64,
    /// Bytes of files written, less those removed.
    held: AtomicU64,
}

/// How much a read or write may move, and whether a bit of it is wrong.
struct Limit {
    bytes: usize,
    flip: bool,
}

impl Plan {
    fn fault(&self, op: Op, path: &Path, direct: bool) -> Option<Fault> {
        self.0.calls.fetch_add(1, Ordering::Relaxed);
        let mut plan = lock(&self.0.rules);
        if let Some(log) = &mut plan.log {
            log.push((op, path.to_owned()));
        }
        let hit = plan.rules.iter_mut().find_map(|r| {
            let applies = r.op.is_none_or(|o| o == op)
                && (direct || !r.direct_only)
                && r.path.as_ref().is_none_or(|p| contains(path.as_os_str(), p));
            if !applies || r.times == 0 {
                return None;
            }
            if r.skip > 0 {
                r.skip -= 1;
                return None;
            }
            if let Fault::FullAt(n) = r.fault
                && self.0.held.load(Ordering::Relaxed) < n
            {
                return None;
            }
            r.times -= 1;
            Some(r.fault)
        });
        if hit.is_some() {
            plan.met.push((op, path.to_owned()));
        }
        hit
    }

    /// The call may go on, or fails with the planned errno.
    fn check(&self, op: Op, path: &Path, direct: bool) -> io::Result<()> {
        self.limit(op, path, direct).map(|_| ())
    }

    /// How many bytes the call may move; waits where it is to hang.
    fn limit(&self, op: Op, path: &Path, direct: bool) -> io::Result<Limit> {
        let mut limit = Limit {
            bytes: usize::MAX,
            flip: false,
        };
        match self.fault(op, path, direct) {
            Some(Fault::Errno(n)) => return Err(io::Error::from_raw_os_error(n)),
            Some(Fault::FullAt(_)) if op == Op::Write => return Err(io::Error::from_raw_os_error(FULL)),
            Some(Fault::Short(n)) => limit.bytes = n,
            Some(Fault::Hang) => self.0.gate.pass(),
            Some(Fault::Slow(d)) => {
                Bell::default().wait(0, d);
            }
            Some(Fault::Flip) => limit.flip = true,
            Some(Fault::FullAt(_)) | None => {}
        }
        Ok(limit)
    }

    /// Bytes left on a disk that is to run full.
    fn room(&self) -> Option<u64> {
        let plan = lock(&self.0.rules);
        let full_at = plan.rules.iter().find_map(|r| match r.fault {
            Fault::FullAt(n) => Some(n),
            _ => None,
        });
        full_at.map(|n| n.saturating_sub(self.0.held.load(Ordering::Relaxed)))
    }
}

/// Whether the bytes of `part` stand somewhere in `path`.
fn contains(path: &OsStr, part: &OsStr) -> bool {
    let (path, part) = (path.as_bytes(), part.as_bytes());
    part.is_empty() || path.windows(part.len()).any(|w| w == part)
}

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
