//! The seam to storage: what a disk does, and nothing of what a tier means by it. Fault kits and simulators wrap
//! it; [`OsDisk`](super::OsDisk) is the operating system.

use std::{
    ffi::OsStr,
    fmt::Debug,
    io::{self, IoSlice, IoSliceMut},
    os::fd::BorrowedFd,
    path::Path,
};

use super::round_up;

/// What `stat` tells of a file or directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Stat {
    /// Length in bytes.
    pub len: u64,
    /// Bytes the file system allocated (what `du` counts).
    pub allocated: u64,
    /// Last modification, nanoseconds since the Unix epoch.
    pub mtime_ns: i128,
    /// What it is.
    pub kind: FileKind,
    /// Owner.
    pub uid: u32,
    /// Permission bits.
    pub mode: u32,
    /// Names it has: an open file without one is gone when it is closed.
    pub links: u64,
}

impl Stat {
    /// Bytes that a file is counted with at least: those it took, and those of its length that are to come, in units of
    /// `unit` bytes.
    pub(crate) fn counted(&self, unit: u64) -> u64 {
        self.allocated.max(round_up(self.len, unit))
    }
}

/// What a directory entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FileKind {
    /// A regular file.
    File,
    /// A directory.
    Dir,
    /// Anything else (symbolic link, socket...): never followed, never touched.
    Other,
}

/// What `statvfs` tells of the file system below a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Space {
    /// Bytes in all.
    pub total: u64,
    /// Bytes an unprivileged writer may still use.
    pub available: u64,
    /// The unit of allocation, in bytes.
    pub block: u64,
}

/// An open file. Offsets and lengths in bytes; one call may move less than asked, as the system's own.
pub trait DiskFile: Send + Sync + Debug {
    /// Reads into `bufs` from `offset`.
    fn read_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize>;
    /// Writes `bufs` at `offset`.
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize>;
    /// Reserves `len` bytes on the device.
    fn allocate(&self, len: u64) -> io::Result<()>;
    /// Makes written bytes survive a power loss.
    fn sync(&self) -> io::Result<()>;
    /// What the file is now.
    fn stat(&self) -> io::Result<Stat>;
    /// Takes an exclusive advisory lock for the life of the handle; `false` if another holder has it.
    fn try_lock(&self) -> io::Result<bool>;
    /// Makes the file `len` bytes long; where it grows, without taking bytes on the device. `Unsupported` where the
    /// file system cannot.
    fn set_len(&self, len: u64) -> io::Result<()> {
        let _ = len;
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Gives `len` bytes at `offset` back to the file system; they read as zeros, and the file stays as long as it is.
    /// `Unsupported` where the file system cannot.
    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let _ = (offset, len);
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Sets the last modification, nanoseconds since the Unix epoch.
    fn set_modified(&self, unix_ns: u64) -> io::Result<()> {
        let _ = unix_ns;
        Err(io::ErrorKind::Unsupported.into())
    }
    /// The operating system's file behind this one, for engines that speak to the kernel directly; `None` for what
    /// must be called (simulated disks, fault kits).
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        None
    }
}

/// How to open a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum OpenMode {
    /// An existing file, to read.
    Read,
    /// An existing or new file, to read and write (lock and journal files).
    ReadWrite,
    /// A file that must not exist yet, to write.
    CreateNew,
    /// An existing file, to read and write.
    Existing,
}

/// A file system. Directories are made with mode 0700, files with 0600; symbolic links are not followed.
pub trait Disk: Send + Sync + Debug {
    /// Opens `path`; with `direct`, asks to bypass the page cache (EINVAL where the file system cannot).
    fn open(&self, path: &Path, mode: OpenMode, direct: bool) -> io::Result<Box<dyn DiskFile>>;
    /// Moves a file over `to` in one step.
    fn rename(&self, from: &Path, to: &Path) -> io::Result<()>;
    /// Removes a file.
    fn remove_file(&self, path: &Path) -> io::Result<()>;
    /// Makes one directory.
    fn create_dir(&self, path: &Path) -> io::Result<()>;
    /// Removes an empty directory.
    fn remove_dir(&self, path: &Path) -> io::Result<()>;
    /// Calls `each` with the name, whatever bytes it is made of, and, where the system tells it for free, the kind of
    /// every entry.
    fn list(&self, path: &Path, each: &mut dyn FnMut(&OsStr, Option<FileKind>)) -> io::Result<()>;
    /// What lies at `path`, links not followed.
    fn stat(&self, path: &Path) -> io::Result<Stat>;
    /// Space on the file system of `path`.
    fn space(&self, path: &Path) -> io::Result<Space>;
    /// Makes all that was written to the file system of `path`, names included, survive a power loss.
    fn sync_all(&self, path: &Path) -> io::Result<()> {
        let _ = path;
        Err(io::ErrorKind::Unsupported.into())
    }
    /// The bytes of which whatever lies below the directory `path` takes a multiple: measured, where that can be done
    /// without leaving anything, since [`Space::block`] may be less (clusters, huge pages).
    ///
    /// # Errors
    /// The system's error.
    fn unit(&self, path: &Path) -> io::Result<u64> {
        Ok(self.space(path)?.block)
    }
    /// Whether calls below `path` may wait for another machine or process (network and FUSE file systems), for as
    /// long as that likes.
    fn is_remote(&self, path: &Path) -> bool {
        let _ = path;
        false
    }
}

/// Reads `bufs` full from offset 0 as far as the file goes, across short reads and EINTR; returns the bytes read.
///
/// # Errors
/// The system's error, with its errno.
pub fn read_full(file: &dyn DiskFile, first: &mut [u8], second: &mut [u8]) -> io::Result<usize> {
    let (a, b) = (first.len(), second.len());
    let mut done = 0usize;
    while done < a + b {
        let x = IoSliceMut::new(first.get_mut(done.min(a)..).unwrap_or_default());
        let y = IoSliceMut::new(second.get_mut(done.saturating_sub(a)..).unwrap_or_default());
        // an empty slice has no aligned address, so direct I/O must not see one
        let moved = match (x.is_empty(), y.is_empty()) {
            (false, false) => file.read_at(&mut [x, y], done as u64),
            (false, true) => file.read_at(&mut [x], done as u64),
            (true, _) => file.read_at(&mut [y], done as u64),
        };
        match moved {
            Ok(0) => break,
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done.min(a + b))
}

/// Writes `first` then `second` from offset 0, across short writes and EINTR.
///
/// # Errors
/// The system's error with its errno; a write of nothing is `WriteZero`.
pub fn write_full(file: &dyn DiskFile, first: &[u8], second: &[u8]) -> io::Result<()> {
    let (a, b) = (first.len(), second.len());
    let mut done = 0usize;
    while done < a + b {
        let x = IoSlice::new(first.get(done.min(a)..).unwrap_or_default());
        let y = IoSlice::new(second.get(done.saturating_sub(a)..).unwrap_or_default());
        let moved = match (x.is_empty(), y.is_empty()) {
            (false, false) => file.write_at(&[x, y], done as u64),
            (false, true) => file.write_at(&[x], done as u64),
            (true, _) => file.write_at(&[y], done as u64),
        };
        match moved {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => done += n,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}

/// Reads at `offset` until `to` is full or the file ends, across short reads and EINTR; returns the bytes read.
///
/// # Errors
/// The system's error, with its errno.
pub fn read_all_at(file: &dyn DiskFile, mut to: &mut [u8], mut offset: u64) -> io::Result<usize> {
    let mut done = 0;
    while !to.is_empty() {
        match file.read_at(&mut [IoSliceMut::new(to)], offset) {
            Ok(0) => break,
            Ok(n) => {
                done += n;
                offset += n as u64;
                to = to.get_mut(n..).unwrap_or_default();
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(done)
}

/// Writes all of `bytes` at `offset`, across short writes and EINTR.
///
/// # Errors
/// The system's error with its errno; a write of nothing is `WriteZero`.
pub fn write_all_at(file: &dyn DiskFile, mut bytes: &[u8], mut offset: u64) -> io::Result<()> {
    while !bytes.is_empty() {
        match file.write_at(&[IoSlice::new(bytes)], offset) {
            Ok(0) => return Err(io::ErrorKind::WriteZero.into()),
            Ok(n) => {
                bytes = bytes.get(n..).unwrap_or_default();
                offset += n as u64;
            }
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
    }
    Ok(())
}
