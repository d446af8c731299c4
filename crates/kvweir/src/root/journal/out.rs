//! The journal file being written: what it surely holds, what is still buffered, and the files that count beside it.

use std::{
    collections::{HashMap, HashSet},
    io,
};

use foldhash::fast::FixedState;

use super::{
    header::Header,
    mark::Mark,
    record::{DirCosts, FRAME_BYTES, Record},
};
use crate::{
    block::Fingerprint,
    io::{DiskFile, disk::write_all_at, round_up, tree::most_allocated},
    root::{
        journal::older::Older,
        names::{DirClass, Prefix},
    },
};

/// Most bytes in one record that covers what could not be cut off.
const COVER: usize = 32 << 10;
static COVERED: [u8; COVER] = [0; COVER];

/// A journal's file, or a snapshot's.
#[derive(Debug)]
pub(super) struct Out {
    pub(super) file: Box<dyn DiskFile>,
    pub(super) header: Header,
    pub(super) len: u64,
    /// Bytes counted for it beyond those of its length.
    pub(super) extra: u64,
    /// The other files that a replay would read: the snapshot, and journals that no snapshot has taken in yet. Also
    /// what could not be removed.
    pub(super) older: Vec<Older>,
    pub(super) classes: HashMap<DirClass, u16, FixedState>,
    /// Those of them whose definition is in `buf` and not in the file.
    pub(super) fresh: Vec<DirClass>,
    /// An append failed, and what it left behind `len` could not be cut off: nothing is written before that is.
    pub(super) torn: bool,
    /// Up to where bytes may lie that a failed append left and that could not be cut off.
    behind: u64,
    /// What was begun and has not ended: said again at the start of each generation.
    pub(super) open: HashSet<(Fingerprint, DirClass, Prefix), FixedState>,
    /// Removals that are not written yet: they go before any other record.
    pub(super) owed: Vec<(Fingerprint, (DirClass, Prefix), DirCosts)>,
    /// Names of namespaces by number.
    pub(super) names: Vec<String>,
    pub(super) buf: Vec<u8>,
}

impl Out {
    /// A file of which `len` bytes are whole.
    pub(super) fn new(file: Box<dyn DiskFile>, header: Header, len: u64, names: Vec<String>) -> Self {
        Self {
            file,
            header,
            len,
            extra: 0,
            older: Vec::new(),
            classes: HashMap::default(),
            fresh: Vec::new(),
            torn: false,
            behind: 0,
            open: HashSet::default(),
            owed: Vec::new(),
            names,
            buf: Vec::new(),
        }
    }

    /// Goes on in the file of the next generation, which has its header.
    pub(super) fn turn_to(&mut self, file: Box<dyn DiskFile>, header: Header, len: u64) {
        self.file = file;
        self.header = header;
        self.len = len;
        self.extra = 0;
        self.classes.clear();
        self.fresh.clear();
        self.torn = false;
        self.behind = 0;
    }

    /// Writes what is in `buf`. Where that fails nothing of it counts: the file is cut to what it held before, or is
    /// torn, and classes that were defined in it are not.
    pub(super) fn write(&mut self) -> io::Result<()> {
        let done = write_all_at(&*self.file, &self.buf, self.len);
        match &done {
            Ok(()) => {
                self.len += self.buf.len() as u64;
                self.fresh.clear();
                self.buf.clear();
            }
            Err(_) => {
                // part of it may be there: the next, shorter, would lie before the rest of it
                self.torn = true;
                let _ = self.mend();
                self.take_back();
            }
        }
        done
    }

    /// Forgets what is in `buf`.
    pub(super) fn take_back(&mut self) {
        for class in self.fresh.drain(..) {
            self.classes.remove(&class);
        }
        self.buf.clear();
    }

    /// Cuts off what a failed append left; on a disk that cannot cut, the next record covers it.
    pub(super) fn mend(&mut self) -> io::Result<()> {
        if self.torn {
            match self.file.set_len(self.len) {
                Err(e) if e.kind() == io::ErrorKind::Unsupported => self.behind = self.file.stat()?.len,
                r => r?,
            }
            self.torn = false;
        }
        Ok(())
    }

    /// Whether what is in `buf` covers what could not be cut off.
    pub(super) fn covers(&self) -> io::Result<()> {
        match self.len + self.buf.len() as u64 >= self.behind {
            true => Ok(()),
            false => Err(io::ErrorKind::Interrupted.into()),
        }
    }

    /// What a later start may compare the journal with.
    pub(super) fn mark(&self) -> Mark {
        Mark {
            generation: self.header.generation,
            nonce: self.header.nonce,
            line: self.header.line,
            len: self.len,
            ..Mark::default()
        }
    }

    pub(super) fn older_bytes(&self) -> u64 {
        self.older.iter().map(|o| o.bytes).sum()
    }

    /// Bytes counted.
    pub(super) fn bytes(&self, fs_block: u64) -> u64 {
        round_up(self.len, fs_block) + self.extra + self.older_bytes()
    }

    pub(super) fn total(&self) -> u64 {
        self.len + self.older_bytes()
    }

    /// Bytes that the file system may yet take beyond those counted, when the journal has grown by what is reserved for
    /// that.
    pub(super) fn spare(&self, fs_block: u64) -> u64 {
        let grown = round_up(self.len, fs_block) + CREDIT_BLOCKS * fs_block;
        let current = (most_allocated(grown, fs_block) - grown).saturating_sub(self.extra);
        let older = |o: &Older| most_allocated(o.len, fs_block).saturating_sub(o.bytes);
        current + self.older.iter().map(older).sum::<u64>()
    }

    /// The number of a class in this file, defining it first where it is new.
    pub(super) fn class(&mut self, class: DirClass) -> (u16, bool) {
        if let Some(&n) = self.classes.get(&class) {
            return (n, false);
        }
        let n = u16::try_from(self.classes.len()).unwrap_or(u16::MAX);
        let dir = self
            .names
            .get(usize::from(class.namespace))
            .cloned()
            .unwrap_or_default();
        self.put(&Record::DirClass {
            number: n,
            leaf: class.leaf,
            dir: &dir,
        });
        self.classes.insert(class, n);
        self.fresh.push(class);
        (n, true)
    }

    pub(super) fn put(&mut self, record: &Record<'_>) {
        let end = |out: &Self| out.len + out.buf.len() as u64;
        while end(self) < self.behind {
            // uses of nothing, over what lies there
            let bytes = (self.behind - end(self)).saturating_sub(FRAME_BYTES as u64);
            let bytes = bytes.next_multiple_of(8).min(COVER as u64) as usize;
            let (nonce, at) = (self.header.nonce, end(self));
            Record::Touch(COVERED.get(..bytes).unwrap_or_default()).encode(nonce, at, &mut self.buf);
        }
        let at = end(self);
        record.encode(self.header.nonce, at, &mut self.buf);
    }
}

/// File system blocks reserved for a journal to grow by.
pub(crate) const CREDIT_BLOCKS: u64 = 4;

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::super::{
        header::HEADER_BYTES,
        record::{At, Frame, decode},
    };
    use super::*;
    use crate::io::Stat;
    use crate::{
        block::Fingerprint,
        io::{
            Disk,
            disk::{OpenMode, read_full, write_full},
            sim::SimDisk,
        },
    };

    /// A file of a disk that cannot cut.
    #[derive(Debug)]
    struct Uncut(Box<dyn DiskFile>);

    impl DiskFile for Uncut {
        fn read_at(&self, bufs: &mut [io::IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
            self.0.read_at(bufs, offset)
        }
        fn write_at(&self, bufs: &[io::IoSlice<'_>], offset: u64) -> io::Result<usize> {
            self.0.write_at(bufs, offset)
        }
        fn allocate(&self, len: u64) -> io::Result<()> {
            self.0.allocate(len)
        }
        fn sync(&self) -> io::Result<()> {
            self.0.sync()
        }
        fn stat(&self) -> io::Result<Stat> {
            self.0.stat()
        }
        fn try_lock(&self) -> io::Result<bool> {
            self.0.try_lock()
        }
    }

    fn frames(file: &dyn DiskFile, header: &Header) -> (usize, bool) {
        let mut bytes = vec![0; 1 << 20];
        let n = read_full(file, &mut bytes, &mut []).unwrap();
        let (mut pos, mut read) = (HEADER_BYTES, 0);
        loop {
            match decode(header.nonce, pos as u64, &bytes[pos..n]) {
                Frame::Record(_, len) => {
                    read += 1;
                    pos += len;
                }
                Frame::End => return (read, true),
                Frame::Damaged => return (read, false),
            }
        }
    }

    /// A long record fails half way, and the file cannot be cut: what comes next is read all the same.
    #[test]
    fn on_a_disk_that_cannot_cut_the_next_record_covers_what_is_left() {
        for (long, cuts) in [
            (20, true),
            (20, false),
            (30_000, true),
            (30_000, false),
            (65_000, false),
        ] {
            let disk = SimDisk::new(Path::new("/d"), None);
            let file = disk.open(Path::new("/d/j"), OpenMode::CreateNew, false).unwrap();
            let header = Header {
                snapshot: false,
                member: 0,
                generation: 0,
                nonce: 5,
                block_len: 4096,
                line: 5,
            };
            write_full(&*file, &header.encode(), &[]).unwrap();
            let file = if cuts { file } else { Box::new(Uncut(file)) };
            let mut out = Out::new(file, header, HEADER_BYTES as u64, Vec::new());
            let at = At {
                fp: Fingerprint(1),
                class: 0,
                prefix: Prefix(0),
            };
            for _ in 0..3 {
                out.put(&Record::Touch(&vec![9; long / 8 * 8]));
                disk.fail_at(disk.steps(), crate::io::sim::SimFault::Torn(28));
                assert!(out.write().is_err());
                out.put(&Record::Begin(at));
                out.write().unwrap();
                let (_, whole) = frames(&*out.file, &header);
                assert!(whole, "{long} bytes, cuts: {cuts}");
            }
            let (read, whole) = frames(&*out.file, &header);
            assert!(whole && read >= 3, "{read}");
        }
    }
}
