//! An extent's open files, the numbers of its slots (the extent's own, and the place in it), and what it takes on disk.

use std::{io, path::PathBuf};

use super::format::Header;
use crate::{
    evict::Id,
    io::{Disk, DiskFile, PAGE, disk::OpenMode, round_up, tree::most_allocated},
    sync::{OnceLock, atomic::AtomicU32},
};

/// Bits of a slot's number that tell its place in its extent.
pub(super) const SHIFT: u32 = 22;
/// Most slots an extent can have.
pub(crate) const MAX_SLOTS: u32 = 1 << SHIFT;
/// Fewest slots of an extent, where there is room.
pub(crate) const FEW_SLOTS: u32 = 16;

/// Bytes of the slot of a block of `block_len` bytes.
pub(crate) fn slot_bytes(block_len: usize) -> u64 {
    round_up(block_len as u64, PAGE as u64)
}

/// An extent's open files.
#[derive(Debug)]
pub(crate) struct Extent {
    pub(crate) number: u32,
    pub(crate) header: Header,
    /// The index entries of table and data file.
    pub(crate) ids: [Id; 2],
    /// Records, through the page cache.
    pub(crate) table: Box<dyn DiskFile>,
    /// Slots: past it where that works.
    pub(crate) data: Data,
    /// Slots from here on never had a record.
    pub(crate) fresh_from: AtomicU32,
}

/// The data file, open one way or both.
#[derive(Debug)]
pub(crate) struct Data {
    pub(crate) path: PathBuf,
    pub(crate) direct: Option<Box<dyn DiskFile>>,
    /// Opened when a block's memory or length first asks for it.
    pub(crate) cached: OnceLock<Box<dyn DiskFile>>,
}

impl Data {
    /// The file to use for memory that is aligned for direct I/O, or is not.
    pub(crate) fn file(&self, disk: &dyn Disk, aligned: bool) -> io::Result<&dyn DiskFile> {
        if let Some(f) = self.direct.as_deref().filter(|_| aligned) {
            return Ok(f);
        }
        match self.cached.get() {
            Some(f) => Ok(&**f),
            None => {
                let f = disk.open(&self.path, OpenMode::Existing, false)?;
                Ok(&**self.cached.get_or_init(|| f))
            }
        }
    }
}

impl Extent {
    /// The number of its slot `place` among all slots.
    pub(crate) fn slot(&self, place: u32) -> u32 {
        self.number << SHIFT | place
    }

    fn data_files(&self) -> impl Iterator<Item = &dyn DiskFile> {
        let direct = self.data.direct.as_deref();
        direct.into_iter().chain(self.data.cached.get().map(|f| &**f))
    }

    /// Whether a file of it was removed behind our back: what it holds ends with it.
    pub(crate) fn is_removed(&self) -> bool {
        let gone = |f: &dyn DiskFile| f.stat().is_ok_and(|s| s.links == 0);
        gone(&*self.table) || self.data_files().any(gone)
    }

    /// Whether its table was cut: the next start could not use it.
    pub(crate) fn is_cut(&self) -> bool {
        self.table.stat().is_ok_and(|s| s.len < self.header.table_len())
    }

    /// Gives its data file the whole length again, if that was cut. The blocks that lay there are found out when they
    /// are read.
    pub(crate) fn mend(&self) {
        let need = self.header.data_len();
        for f in self.data_files() {
            if f.stat().is_ok_and(|s| s.len < need)
                && let Err(error) = f.allocate(need)
            {
                tracing::debug!(%error, "an extent that was cut stays so");
            }
        }
    }

    /// The place of `slot` in its extent.
    pub(crate) fn place(slot: u32) -> u32 {
        slot & (MAX_SLOTS - 1)
    }
}

/// Bytes of the two files of an extent of `slots` slots.
pub(crate) fn extent_bytes(slots: u32, slot_bytes: u64) -> u64 {
    Header::record_at(slots) + u64::from(slots) * slot_bytes
}

/// What the table file of `slots` slots is counted as: its bytes, and what its file system needs to keep track of them,
/// each block a run of its own. So it comes to be by the free space there was, and by what was written and what was
/// not.
pub(crate) fn table_cost(slots: u32, fs_block: u64) -> u64 {
    most_allocated(Header::record_at(slots), fs_block)
}

/// What the data file of `slots` slots is counted as, in the same way.
pub(crate) fn data_cost(slots: u32, slot_bytes: u64, fs_block: u64) -> u64 {
    most_allocated(u64::from(slots) * slot_bytes, fs_block)
}

/// What an extent of `slots` slots is counted as.
pub(crate) fn extent_cost(slots: u32, slot_bytes: u64, fs_block: u64) -> u64 {
    table_cost(slots, fs_block) + data_cost(slots, slot_bytes, fs_block)
}

/// Bytes that the smallest extent worth making takes.
pub(crate) fn least_bytes(block_len: usize, fs_block: u64) -> u64 {
    extent_cost(FEW_SLOTS, slot_bytes(block_len), fs_block) + 16 * fs_block
}
