//! The snapshot of a generation, being written: all that was there when it began.

use std::io;

use super::{
    out::Out,
    path,
    record::{At, Facts, Record},
    rotate::Rotation,
    write::Journal,
};
use crate::{block::Fingerprint, io::disk::OpenMode, root::names::DirClass, root::names::Prefix};

/// Bytes of a snapshot written at once.
const WRITE_BYTES: usize = 256 << 10;

/// Writes the snapshot of a generation.
#[derive(Debug)]
pub(crate) struct Snapshot {
    out: Out,
    records: u64,
    limit: u64,
}

impl Snapshot {
    /// Begins the snapshot of `rotation`'s generation, of at most `limit` bytes.
    pub(crate) fn start(journal: &Journal, rotation: &Rotation, limit: u64) -> io::Result<Self> {
        let header = rotation.header;
        let to = path(&journal.root, true, header.member, header.generation);
        let file = journal.disk.open(&to, OpenMode::CreateNew, false)?;
        let mut out = Out::new(file, header, 0, rotation.names.clone());
        out.buf = header.encode().to_vec();
        Ok(Self {
            out,
            records: 0,
            limit,
        })
    }

    pub(crate) fn stored(
        &mut self,
        fp: Fingerprint,
        (class, prefix): (DirClass, Prefix),
        facts: Facts,
        key: Option<&[u8]>,
    ) -> io::Result<()> {
        self.put(class, |class| {
            Record::Stored(At { fp, class, prefix }, facts, key)
        })
    }

    pub(crate) fn dir(&mut self, class: DirClass, level: u16, prefix: Prefix, cost: u32) -> io::Result<()> {
        self.put(class, |class| Record::Dir {
            class,
            level,
            prefix,
            cost,
        })
    }

    fn put<'a>(&mut self, class: DirClass, record: impl FnOnce(u16) -> Record<'a>) -> io::Result<()> {
        let (n, new) = self.out.class(class);
        self.out.put(&record(n));
        self.records += 1 + u64::from(new);
        if self.out.len + self.out.buf.len() as u64 + 64 > self.limit {
            return Err(io::ErrorKind::StorageFull.into());
        }
        if self.out.buf.len() >= WRITE_BYTES {
            self.out.write()
        } else {
            Ok(())
        }
    }

    /// Closes the snapshot; returns its length in bytes.
    pub(crate) fn end(mut self) -> io::Result<u64> {
        self.out.put(&Record::End {
            records: self.records,
        });
        self.out.write()?;
        Ok(self.out.len)
    }
}
