//! What runs out while a command runs: file descriptors and memory. Nothing is wrong with a root then, and nothing may
//! be judged, budgeted or removed by what was seen of it. So a command's disk notes the first such error, wherever it
//! is met; from then on walks end, and the command ends with that error and no report.

use std::{
    ffi::OsStr,
    io::{self, IoSlice, IoSliceMut},
    os::fd::BorrowedFd,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::Admin;
use crate::{
    admin::notes::Notes,
    error::Result,
    io::{
        Disk, DiskFile, Stat,
        disk::{FileKind, OpenMode, Space},
    },
};

/// A disk whose errors are noted.
#[derive(Debug)]
pub(super) struct NotingDisk {
    pub(super) inner: Arc<dyn Disk>,
    pub(super) notes: Arc<Notes>,
}

#[derive(Debug)]
struct NotingFile {
    inner: Box<dyn DiskFile>,
    path: PathBuf,
    notes: Arc<Notes>,
}

impl NotingDisk {
    fn seen<T>(&self, path: &Path, r: io::Result<T>) -> io::Result<T> {
        r.inspect_err(|e| self.notes.note(path, e))
    }
}

impl Disk for NotingDisk {
    fn open(&self, path: &Path, mode: OpenMode, direct: bool) -> io::Result<Box<dyn DiskFile>> {
        let inner = self.seen(path, self.inner.open(path, mode, direct))?;
        Ok(Box::new(NotingFile {
            inner,
            path: path.to_owned(),
            notes: Arc::clone(&self.notes),
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        self.seen(to, self.inner.rename(from, to))
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        self.seen(path, self.inner.remove_file(path))
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        self.seen(path, self.inner.create_dir(path))
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        self.seen(path, self.inner.remove_dir(path))
    }

    fn list(&self, path: &Path, each: &mut dyn FnMut(&OsStr, Option<FileKind>)) -> io::Result<()> {
        self.seen(path, self.inner.list(path, each))
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        self.seen(path, self.inner.stat(path))
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        self.seen(path, self.inner.space(path))
    }

    fn sync_all(&self, path: &Path) -> io::Result<()> {
        self.seen(path, self.inner.sync_all(path))
    }

    fn unit(&self, path: &Path) -> io::Result<u64> {
        self.seen(path, self.inner.unit(path))
    }

    fn is_remote(&self, path: &Path) -> bool {
        self.inner.is_remote(path)
    }
}

impl NotingFile {
    fn seen<T>(&self, r: io::Result<T>) -> io::Result<T> {
        r.inspect_err(|e| self.notes.note(&self.path, e))
    }
}

impl DiskFile for NotingFile {
    fn read_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        self.seen(self.inner.read_at(bufs, offset))
    }

    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        self.seen(self.inner.write_at(bufs, offset))
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        self.seen(self.inner.allocate(len))
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.seen(self.inner.set_len(len))
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        self.seen(self.inner.punch(offset, len))
    }

    fn set_modified(&self, unix_ns: u64) -> io::Result<()> {
        self.seen(self.inner.set_modified(unix_ns))
    }

    fn sync(&self) -> io::Result<()> {
        self.seen(self.inner.sync())
    }

    fn stat(&self) -> io::Result<Stat> {
        self.seen(self.inner.stat())
    }

    fn try_lock(&self) -> io::Result<bool> {
        self.seen(self.inner.try_lock())
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.inner.fd()
    }
}

impl Admin {
    /// The same root with `notes`, for one command.
    pub(super) fn noting(&self, notes: &Arc<Notes>) -> Self {
        Self {
            disk: Arc::new(NotingDisk {
                inner: Arc::clone(&self.plain),
                notes: Arc::clone(notes),
            }),
            notes: Arc::clone(notes),
            ..self.clone()
        }
    }

    /// Runs a command. What ran out on the way is its error, and what it returned tells how far it came.
    pub(super) fn command<T>(
        &self,
        op: &'static str,
        far: impl FnOnce(&T) -> String,
        run: impl FnOnce(&Self) -> Result<T>,
    ) -> Result<T> {
        let admin = self.noting(&Arc::default());
        let done = run(&admin);
        let came = done.as_ref().map_or_else(|_| String::new(), far);
        admin.notes.check(op, &came)?;
        done
    }
}
