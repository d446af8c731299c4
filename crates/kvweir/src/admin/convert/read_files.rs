//! Block files, read whole and compared with what their trailers say.

use std::{io, path::PathBuf};

use super::{
    packing::{Block, BlockFile, Packing},
    place::memory,
    work::{Target, Work},
};
use crate::{
    admin::extents::map_parallel,
    error::{IoClass, classify},
    fs::packed::format::{MAX_PACKED_KEY, block_sum},
    io::disk::{OpenMode, read_full},
    root::{
        names::{Location, Parsed, leaf_dir, parse_file},
        trailer::{TRAILER_BYTES, decode},
    },
    sync::atomic::Ordering,
};

/// What a file turned out to be.
enum FileRead {
    Block(Box<Block>),
    Gone,
    Damaged,
    /// No block that a slot can hold.
    Other,
}

impl Work<'_> {
    /// Reads files and compares them with their trailers; counts those that are no blocks.
    pub(super) fn read_batch(&self, p: &mut Packing<'_>, batch: &[BlockFile]) -> Vec<Block> {
        let (t, slot_bytes) = (&*p.t, p.slot_bytes as usize);
        let found = map_parallel(self.admin.threads, batch, |f| {
            let dir = leaf_dir(&t.dir, f.prefix, f.leaf);
            let path = dir.join(&*f.name);
            match self.read_file(t, f, path.clone(), dir, slot_bytes) {
                Err(e) if classify(&e) == IoClass::Gone => FileRead::Gone,
                Err(e) => {
                    self.failed(&path, e);
                    FileRead::Gone
                }
                Ok(found) => found,
            }
        });
        let mut out = Vec::with_capacity(found.len());
        let report = &mut p.t.report;
        for f in found {
            match f {
                FileRead::Block(b) => out.push(*b),
                FileRead::Gone => {}
                FileRead::Damaged => report.damaged += 1,
                FileRead::Other => report.kept += 1,
            }
        }
        out
    }

    fn read_file(
        &self,
        t: &Target,
        f: &BlockFile,
        path: PathBuf,
        dir: PathBuf,
        slot_bytes: usize,
    ) -> io::Result<FileRead> {
        let file = self.admin.disk.open(&path, OpenMode::Read, false)?;
        let stat = file.stat()?;
        let len = usize::try_from(t.len).map_err(io::Error::other)?;
        let whole = t.len + TRAILER_BYTES as u64;
        if stat.len != t.len && stat.len != whole {
            return Ok(FileRead::Other);
        }
        let (mut bytes, mut page) = (memory(slot_bytes)?, [0; TRAILER_BYTES]);
        let block = bytes.get_mut(..len).unwrap_or_default();
        if read_full(&*file, block, &mut page)? as u64 != stat.len {
            return Ok(FileRead::Other);
        }
        self.bytes.fetch_add(stat.len, Ordering::Relaxed);
        let sum = block_sum(block);
        let (key, written_at, trailer) = if stat.len == whole {
            let right = decode(&page).filter(|r| {
                let at = Location::of(&r.key);
                r.payload_sum == sum
                    && r.namespace == t.digest
                    && r.block_len == t.len
                    && (at.prefix, at.leaf) == (f.prefix, f.leaf)
                    && at.file_name() == *f.name
            });
            let Some(r) = right else {
                return Ok(FileRead::Damaged);
            };
            (r.key, r.written_at, true)
        } else {
            let Parsed::Block(Some(key)) = parse_file(&f.name, f.prefix, f.leaf) else {
                return Ok(FileRead::Other);
            };
            // without a checksum of its own, only a second read tells what the file holds
            let mut again = memory(len)?;
            if read_full(&*file, &mut again, &mut [])? != len || block_sum(&again) != sum {
                return Err(io::Error::other(
                    "the file reads differently when it is read again: it stays",
                ));
            }
            let seconds = u64::try_from(stat.mtime_ns / 1_000_000_000).unwrap_or(0);
            (key, seconds, false)
        };
        if key.as_bytes().len() > MAX_PACKED_KEY {
            return Ok(FileRead::Other);
        }
        Ok(FileRead::Block(Box::new(Block {
            path,
            dir,
            allocated: stat.allocated,
            key,
            sum,
            written_at: u32::try_from(written_at).unwrap_or(u32::MAX),
            trailer,
            bytes,
        })))
    }
}
