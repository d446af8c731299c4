//! A disk that fails on demand, for tests: rules choose calls by kind, path and count, and answer with an errno or
//! move less than asked.

use std::{
    io::{self, IoSlice, IoSliceMut},
    path::{Path, PathBuf},
    sync::{Arc, Mutex},
};

use super::disk::{Disk, DiskFile, FileKind, OpenMode, Space, Stat};
use crate::sync::lock;

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
}

/// What happens instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails with this errno and does nothing.
    Errno(i32),
    /// A read or write moves at most this many bytes.
    Short(usize),
}

/// Which calls fail, and how.
#[derive(Debug, Clone)]
pub struct Rule {
    op: Op,
    fault: Fault,
    skip: u64,
    times: u64,
    path: Option<String>,
    direct_only: bool,
}

impl Rule {
    /// Every call of kind `op` meets `fault`.
    pub fn new(op: Op, fault: Fault) -> Self {
        Self {
            op,
            fault,
            skip: 0,
            times: u64::MAX,
            path: None,
            direct_only: false,
        }
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
    pub fn path(mut self, part: impl Into<String>) -> Self {
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
}

/// Rules shared by a disk and its open files.
#[derive(Debug, Clone, Default)]
struct Plan(Arc<Mutex<Rules>>);

impl Plan {
    fn fault(&self, op: Op, path: &Path, direct: bool) -> Option<Fault> {
        let mut plan = lock(&self.0);
        let text = path.to_string_lossy();
        let hit = plan.rules.iter_mut().find_map(|r| {
            let applies = r.op == op
                && (direct || !r.direct_only)
                && r.path.as_ref().is_none_or(|p| text.contains(p.as_str()));
            if !applies || r.times == 0 {
                return None;
            }
            if r.skip > 0 {
                r.skip -= 1;
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
        match self.fault(op, path, direct) {
            Some(Fault::Errno(n)) => Err(io::Error::from_raw_os_error(n)),
            _ => Ok(()),
        }
    }

    /// How many bytes the call may move.
    fn limit(&self, op: Op, path: &Path, direct: bool) -> io::Result<usize> {
        match self.fault(op, path, direct) {
            Some(Fault::Errno(n)) => Err(io::Error::from_raw_os_error(n)),
            Some(Fault::Short(n)) => Ok(n),
            None => Ok(usize::MAX),
        }
    }
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
        lock(&self.plan.0).rules.push(rule);
    }

    /// Drops all rules.
    pub fn heal(&self) {
        lock(&self.plan.0).rules.clear();
    }

    /// The calls that met a fault so far.
    pub fn met(&self) -> Vec<(Op, PathBuf)> {
        lock(&self.plan.0).met.clone()
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
        self.inner.remove_file(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.plan.check(Op::CreateDir, path, false)?;
        self.inner.create_dir(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.plan.check(Op::RemoveDir, path, false)?;
        self.inner.remove_dir(path)
    }

    fn list(&self, path: &Path, each: &mut dyn FnMut(&str, Option<FileKind>)) -> io::Result<()> {
        self.plan.check(Op::List, path, false)?;
        self.inner.list(path, each)
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.plan.check(Op::Stat, path, false)?;
        self.inner.stat(path)
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.inner.space(path)
    }
}

impl DiskFile for FaultFile {
    fn read_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let limit = self.plan.limit(Op::Read, &self.path, self.direct)?;
        match bufs.iter_mut().find(|b| !b.is_empty()) {
            Some(first) if limit < usize::MAX => {
                let part = first.get_mut(..).map(|b| b.split_at_mut(limit.min(b.len())).0);
                self.inner
                    .read_at(&mut [IoSliceMut::new(part.unwrap_or_default())], offset)
            }
            _ => self.inner.read_at(bufs, offset),
        }
    }

    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let limit = self.plan.limit(Op::Write, &self.path, self.direct)?;
        match bufs.iter().find(|b| !b.is_empty()) {
            Some(first) if limit < usize::MAX => {
                let part = first.get(..limit.min(first.len())).unwrap_or_default();
                self.inner.write_at(&[IoSlice::new(part)], offset)
            }
            _ => self.inner.write_at(bufs, offset),
        }
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.inner.allocate(len)
    }

    fn sync(&self) -> io::Result<()> {
        self.inner.sync()
    }

    fn stat(&self) -> io::Result<Stat> {
        self.plan.check(Op::Stat, &self.path, self.direct)?;
        self.inner.stat()
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.inner.try_lock()
    }
}
