//! Extents that a conversion holds open, and the bytes below the root.

use std::{
    collections::BTreeSet,
    io,
    path::{Path, PathBuf},
};

use super::work::{Target, Work};
use crate::{
    admin::extents::{ExtentState, Slot, look, other_part, table},
    block::Key,
    error::{IoClass, classify},
    fs::packed::{
        format::{Header, RECORD_BYTES, Record, block_sum},
        slot_bytes,
    },
    io::{
        Disk, DiskFile,
        disk::{OpenMode, read_all_at, write_all_at},
    },
};

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

    /// The block in a slot, if it is the one whose sum a record tells; `None`: it is not, looked at twice.
    pub(super) fn block(&self, place: u32, sum: u128) -> io::Result<Option<Vec<u8>>> {
        let len = usize::try_from(self.header.block_len).map_err(io::Error::other)?;
        let mut block = memory(len)?;
        for _ in 0..2 {
            let n = read_all_at(&*self.data, &mut block, self.header.slot_at(place))?;
            if n == len && block_sum(&block) == sum {
                return Ok(Some(block));
            }
        }
        Ok(None)
    }

    /// Whether the table says that a block lies in a slot, and it does.
    pub(super) fn holds(&self, place: u32, key: &Key, sum: u128) -> io::Result<bool> {
        let mut bytes = [0; RECORD_BYTES];
        for _ in 0..2 {
            read_all_at(&*self.table, &mut bytes, Header::record_at(place))?;
            let record = Record::decode(&bytes, self.header.nonce, place);
            if record.is_some_and(|r| r.key == *key && r.sum == sum) {
                return Ok(self.block(place, sum)?.is_some());
            }
        }
        Ok(false)
    }

    /// Whether no slot has a record that can be read, looked at twice where one cannot.
    pub(super) fn is_empty(&self) -> io::Result<bool> {
        for _ in 0..2 {
            let (mut blocks, mut damaged) = (0, 0);
            table(&*self.table, &self.header, &mut |_, _, slot| match slot {
                Slot::Block(_) => blocks += 1,
                Slot::Damaged => damaged += 1,
                Slot::Empty => {}
            })?;
            if blocks > 0 || damaged == 0 {
                return Ok(blocks == 0);
            }
        }
        Ok(true)
    }

    /// Takes the records of `len` slots away.
    pub(super) fn forget(&self, first: u32, len: u32) -> io::Result<()> {
        let zeros = vec![0; len as usize * RECORD_BYTES];
        write_all_at(&*self.table, &zeros, Header::record_at(first))
    }

    /// Gives the bytes of `len` slots back; `false` where the file system cannot.
    pub(super) fn give_back(&self, first: u32, len: u32) -> io::Result<bool> {
        let bytes = u64::from(len) * u64::from(self.header.slot_bytes);
        match self.data.punch(self.header.slot_at(first), bytes) {
            Err(e) if classify(&e) == IoClass::Invalid => Ok(false),
            r => r.map(|()| true),
        }
    }
}

/// Zeros, if there is so much memory.
pub(super) fn memory(len: usize) -> io::Result<Vec<u8>> {
    let mut out = Vec::new();
    out.try_reserve_exact(len)
        .map_err(|_| io::ErrorKind::OutOfMemory)?;
    out.resize(len, 0);
    Ok(out)
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
pub(super) struct OpenExtents {
    pub(super) open: Vec<Open>,
    pub(super) records: Vec<At>,
    /// Slots without a record.
    pub(super) free: Vec<(usize, u32)>,
}

/// Whether the other file of the extent that has `path` is provably not there.
fn is_alone(disk: &dyn Disk, path: &Path) -> bool {
    let gone = |e: io::Error| e.kind() == io::ErrorKind::NotFound;
    other_part(path).is_some_and(|other| disk.stat(&other).is_err_and(gone))
}

impl Work<'_> {
    /// Opens the extents of a namespace; counts those that cannot be used.
    pub(super) fn extents(&mut self, t: &mut Target) -> io::Result<OpenExtents> {
        let mut out = OpenExtents::default();
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
                (ExtentState::Whole(h), Some(file)) if usable(&h) => (h, file),
                // its making was interrupted, and nobody else is here
                (ExtentState::Half(path), _) if self.apply && is_alone(disk, &path) => {
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

    /// An error once file descriptors or memory ran out: nothing is dropped for what could not be read.
    pub(super) fn still_runs(&self) -> io::Result<()> {
        self.admin.notes.check("convert", "").map_err(io::Error::other)
    }

    /// Makes all that was written below the root survive a power loss.
    pub(super) fn sync(&self) -> io::Result<()> {
        self.admin.disk.sync_all(&self.admin.root)
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
