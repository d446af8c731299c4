//! A file read front to back, through a reused buffer.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    io::{
        Disk, DiskFile,
        disk::{OpenMode, read_all_at},
    },
    root::journal::older::Older,
};

/// Bytes of a file read at once.
pub(crate) const WINDOW: usize = 1 << 20;

/// A file read front to back.
pub(crate) struct Window {
    file: Box<dyn DiskFile>,
    bytes: Vec<u8>,
    /// What of `bytes` is used up, and where it ends.
    used: usize,
    end: usize,
    /// Bytes of the file read so far.
    pub(crate) read: u64,
}

impl Window {
    pub(crate) fn open(disk: &dyn Disk, path: &Path) -> io::Result<Self> {
        let mut window = Self {
            file: disk.open(path, OpenMode::Read, false)?,
            bytes: vec![0; WINDOW],
            used: 0,
            end: 0,
            read: 0,
        };
        window.more()?;
        Ok(window)
    }

    /// What was read and not used up.
    pub(crate) fn rest(&self) -> &[u8] {
        self.bytes.get(self.used..self.end).unwrap_or_default()
    }

    pub(crate) fn advance(&mut self, bytes: usize) {
        self.used += bytes;
    }

    /// Reads on; `false` at the end of the file.
    pub(crate) fn more(&mut self) -> io::Result<bool> {
        self.bytes.copy_within(self.used..self.end, 0);
        self.end -= self.used;
        self.used = 0;
        let room = self.bytes.get_mut(self.end..).unwrap_or_default();
        let n = read_all_at(&*self.file, room, self.read)?;
        self.end += n;
        self.read += n as u64;
        Ok(n > 0)
    }

    /// The file as one that counts.
    pub(crate) fn counts(&self, path: PathBuf, fs_block: u64) -> io::Result<Older> {
        Ok(Older::by(path, &self.file.stat()?, fs_block))
    }

    /// Bytes of the whole file.
    pub(crate) fn len(&self) -> io::Result<u64> {
        Ok(self.file.stat()?.len)
    }
}
