//! A disk that asks the test before every operation, for faults that no rule of a `FaultDisk` can describe: those that
//! depend on who calls, on what happened before, or on other threads.

use std::{
    ffi::OsStr,
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
};

use kvweir::io::{
    Disk, DiskFile, OsDisk, Space, Stat,
    disk::{FileKind, OpenMode},
    fault::Op,
};

type Before = dyn Fn(Op, &Path) -> io::Result<()> + Send + Sync;
type Missing = dyn Fn(&Path) + Send + Sync;
type Free = dyn Fn() -> u64 + Send + Sync;

/// The system's disk behind closures of the test.
#[derive(Clone)]
pub(crate) struct HookedDisk {
    before: Arc<Before>,
    missing: Option<Arc<Missing>>,
    free: Option<Arc<Free>>,
}

/// A disk that calls `before` with what is about to be done to which path; an error is returned instead.
pub(crate) fn hook(before: impl Fn(Op, &Path) -> io::Result<()> + Send + Sync + 'static) -> HookedDisk {
    HookedDisk {
        before: Arc::new(before),
        missing: None,
        free: None,
    }
}

impl HookedDisk {
    /// Calls `missing` with every path that was looked up and is not there, before the caller learns that.
    pub(crate) fn on_missing(mut self, missing: impl Fn(&Path) + Send + Sync + 'static) -> Self {
        self.missing = Some(Arc::new(missing));
        self
    }

    /// Free bytes as the test tells them.
    pub(crate) fn free(mut self, free: impl Fn() -> u64 + Send + Sync + 'static) -> Self {
        self.free = Some(Arc::new(free));
        self
    }
}

impl fmt::Debug for HookedDisk {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("HookedDisk")
    }
}

impl Disk for HookedDisk {
    fn open(&self, path: &Path, mode: OpenMode, direct: bool) -> io::Result<Box<dyn DiskFile>> {
        let op = match mode {
            OpenMode::CreateNew => Op::Create,
            _ => Op::Open,
        };
        (self.before)(op, path)?;
        Ok(Box::new(HookedFile {
            file: OsDisk.open(path, mode, direct)?,
            before: Arc::clone(&self.before),
            path: path.to_owned(),
        }))
    }
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        (self.before)(Op::Rename, to)?;
        OsDisk.rename(from, to)
    }
    fn remove_file(&self, path: &Path) -> io::Result<()> {
        (self.before)(Op::Remove, path)?;
        OsDisk.remove_file(path)
    }
    fn create_dir(&self, path: &Path) -> io::Result<()> {
        (self.before)(Op::CreateDir, path)?;
        OsDisk.create_dir(path)
    }
    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        (self.before)(Op::RemoveDir, path)?;
        OsDisk.remove_dir(path)
    }
    fn list(&self, path: &Path, each: &mut dyn FnMut(&OsStr, Option<FileKind>)) -> io::Result<()> {
        (self.before)(Op::List, path)?;
        OsDisk.list(path, each)
    }
    fn stat(&self, path: &Path) -> io::Result<Stat> {
        (self.before)(Op::Stat, path)?;
        let stat = OsDisk.stat(path);
        if let (Err(_), Some(missing)) = (&stat, &self.missing) {
            missing(path);
        }
        stat
    }
    fn space(&self, path: &Path) -> io::Result<Space> {
        (self.before)(Op::Space, path)?;
        let mut space = OsDisk.space(path)?;
        if let Some(free) = &self.free {
            space.available = free();
        }
        Ok(space)
    }
}

/// A file of a [`HookedDisk`].
struct HookedFile {
    file: Box<dyn DiskFile>,
    before: Arc<Before>,
    path: PathBuf,
}

impl fmt::Debug for HookedFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "HookedFile({:?})", self.path)
    }
}

impl DiskFile for HookedFile {
    fn read_at(&self, bufs: &mut [io::IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        (self.before)(Op::Read, &self.path)?;
        self.file.read_at(bufs, offset)
    }
    fn write_at(&self, bufs: &[io::IoSlice<'_>], offset: u64) -> io::Result<usize> {
        (self.before)(Op::Write, &self.path)?;
        self.file.write_at(bufs, offset)
    }
    fn allocate(&self, len: u64) -> io::Result<()> {
        (self.before)(Op::Allocate, &self.path)?;
        self.file.allocate(len)
    }
    fn sync(&self) -> io::Result<()> {
        (self.before)(Op::Sync, &self.path)?;
        self.file.sync()
    }
    fn stat(&self) -> io::Result<Stat> {
        (self.before)(Op::Stat, &self.path)?;
        self.file.stat()
    }
    fn try_lock(&self) -> io::Result<bool> {
        (self.before)(Op::Lock, &self.path)?;
        self.file.try_lock()
    }
}
