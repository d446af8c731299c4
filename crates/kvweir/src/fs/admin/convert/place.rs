//! Extents that a conversion holds open, and the bytes below the root.

use std::{
    collections::BTreeSet,
    fs::File,
    io,
    path::{Path, PathBuf},
};

use rustix::fs::{FallocateFlags, fallocate, syncfs};

use super::{Target, Work};
use crate::{
    error::{IoClass, classify},
    fs::admin::extents::{Look, Slot, look, table},
    io::{
        DiskFile,
        disk::{OpenMode, write_all_at},
    },
    pack::{
        format::{Header, RECORD_BYTES, Record},
        slot_bytes,
    },
};

/// The bytes below the root, as `du` counts them.
#[derive(Debug)]
pub(super) struct Room {
    bound: u64,
    used: u64,
    peak: u64,
}

impl Room {
    pub(super) fn new(bound: u64, used: u64) -> Self {
        Self {
            bound,
            used,
            peak: used,
        }
    }

    pub(super) fn left(&self) -> u64 {
        self.bound.saturating_sub(self.used)
    }

    pub(super) fn used(&self) -> u64 {
        self.used
    }

    pub(super) fn peak(&self) -> u64 {
        self.peak
    }

    /// What took `before` bytes takes `now`.
    pub(super) fn change(&mut self, before: u64, now: u64) {
        self.used = (self.used + now).saturating_sub(before);
        self.peak = self.peak.max(self.used);
    }
}

/// An extent, open to be changed.
pub(super) struct Open {
    /// Table and data file.
    pub(super) paths: [PathBuf; 2],
    pub(super) table: Box<dyn DiskFile>,
    pub(super) data: Box<dyn DiskFile>,
    pub(super) header: Header,
}

impl Open {
    pub(super) fn allocated(&self) -> u64 {
        let of = |f: &dyn DiskFile| f.stat().map_or(0, |s| s.allocated);
        of(&*self.table) + of(&*self.data)
    }

    /// Makes blocks durable, then their records.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.data.sync()?;
        self.table.sync()
    }

    /// Takes the records of `len` slots away.
    pub(super) fn forget(&self, first: u32, len: u32) -> io::Result<()> {
        let zeros = vec![0; len as usize * RECORD_BYTES];
        write_all_at(&*self.table, &zeros, Header::record_at(first))
    }

    /// Gives the bytes of `len` slots back; `false` where the file system cannot.
    pub(super) fn give_back(&self, first: u32, len: u32) -> io::Result<bool> {
        let Some(fd) = self.data.fd() else {
            return Ok(false);
        };
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let bytes = u64::from(len) * u64::from(self.header.slot_bytes);
        match fallocate(fd, flags, self.header.slot_at(first), bytes).map_err(io::Error::from) {
            Err(e) if classify(&e) == IoClass::Invalid => Ok(false),
            r => r.map(|()| true),
        }
    }
}

/// Runs of places that follow each other: first and length.
pub(super) fn runs(places: impl IntoIterator<Item = u32>) -> Vec<(u32, u32)> {
    let sorted: BTreeSet<u32> = places.into_iter().collect();
    let mut out: Vec<(u32, u32)> = Vec::new();
    for p in sorted {
        match out.last_mut() {
            Some((first, len)) if *first + *len == p => *len += 1,
            _ => out.push((p, 1)),
        }
    }
    out
}

/// A record and where it lies.
pub(super) struct At {
    pub(super) extent: usize,
    pub(super) place: u32,
    pub(super) record: Record,
}

/// The extents of a namespace that can be used.
#[derive(Default)]
pub(super) struct Place {
    pub(super) open: Vec<Open>,
    pub(super) records: Vec<At>,
    /// Slots without a record.
    pub(super) free: Vec<(usize, u32)>,
}

impl Work<'_> {
    /// Opens the extents of a namespace; counts those that cannot be used.
    pub(super) fn extents(&mut self, t: &mut Target) -> io::Result<Place> {
        let mut out = Place::default();
        let mode = if self.apply {
            OpenMode::ReadWrite
        } else {
            OpenMode::Read
        };
        let disk = &*self.admin.disk;
        for files in &t.extents {
            let usable = |h: &Header| {
                h.namespace == t.digest
                    && h.block_len == t.len
                    && u64::from(h.slot_bytes) == usize::try_from(t.len).map_or(0, slot_bytes)
            };
            let (found, file) = look(disk, files, mode)?;
            let (header, file) = match (found, file) {
                (Look::Whole(h), Some(file)) if usable(&h) => (h, file),
                // its making was interrupted, and nobody else is here
                (Look::Half(path), _) if self.apply => {
                    let bytes = disk.stat(&path).map_or(0, |s| s.allocated);
                    disk.remove_file(&path)?;
                    let dirs = path.parent().map_or(0, |d| self.admin.remove_empty(d).bytes);
                    self.room.change(bytes + dirs, 0);
                    continue;
                }
                _ => {
                    t.report.unusable_extents += 1;
                    continue;
                }
            };
            let (Some(path), Some(data)) = (&files.table, &files.data) else {
                continue;
            };
            let extent = out.open.len();
            table(&*file, &header, &mut |place, _, slot| match slot {
                Slot::Empty => out.free.push((extent, place)),
                Slot::Block(record) => out.records.push(At {
                    extent,
                    place,
                    record,
                }),
                Slot::Damaged => {}
            })?;
            out.open.push(Open {
                paths: [path.clone(), data.clone()],
                table: file,
                data: disk.open(data, mode, false)?,
                header,
            });
        }
        Ok(out)
    }

    /// Makes all that was written below the root survive a power loss.
    pub(super) fn sync(&self) -> io::Result<()> {
        Ok(syncfs(File::open(&self.admin.root)?)?)
    }

    /// Allocated bytes of directories, those that are not there counting none.
    pub(super) fn dirs_bytes<'p>(&self, dirs: impl IntoIterator<Item = &'p Path>) -> u64 {
        let of = |d: &Path| self.admin.disk.stat(d).map_or(0, |s| s.allocated);
        dirs.into_iter().map(of).sum()
    }

    /// Makes a directory of the layout below a namespace, and the one above it.
    pub(super) fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        let made: Vec<_> = dir.ancestors().take(2).collect();
        for d in made.into_iter().rev() {
            match self.admin.disk.create_dir(d) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::runs;

    #[test]
    fn places_that_follow_each_other_are_one_run() {
        assert_eq!(runs([5, 1, 2, 7, 6, 3]), [(1, 3), (5, 3)]);
        assert_eq!(runs([]), []);
    }
}
