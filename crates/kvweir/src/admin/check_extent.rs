//! Extents against what they should be (I2): header, namespace and length, every record, and the bytes of every slot
//! against its record. Read by several threads, in large pieces past the page cache. Beside an engine slots change
//! while they are read: what does not fit is compared again with its record as it is then.

use std::{collections::HashSet, io, path::Path, time::Duration};

use foldhash::fast::FixedState;

use super::{
    check::CHUNK,
    extents::{ExtentFiles, ExtentState, Slot, in_parallel, look, slot, table},
    finding::Fault,
    reader::Reader,
    survey::Expected,
};
use crate::{
    block::Fingerprint,
    error::{IoClass, classify},
    fs::packed::format::{HEADER_BYTES, Header, RECORD_BYTES, block_sum},
    io::{
        DiskFile, PageBuffer,
        disk::{OpenMode, read_all_at},
    },
    sync::{Bell, Mutex, lock},
};

/// Looks at a record that seems damaged before it is: an engine may be writing it.
const LOOKS: u32 = 5;
/// The longest slot that is read.
const MAX_SLOT: usize = 1 << 30;

type Keys = Mutex<HashSet<(u16, Fingerprint), FixedState>>;
type Bytes = [u8; RECORD_BYTES];

/// A slot whose block is to be compared.
struct Wanted {
    place: u32,
    bytes: Bytes,
    sum: u128,
}

struct Open<'a> {
    reader: &'a Reader<'a>,
    namespace: u16,
    /// Of the table file, by which the extent is named.
    path: &'a Path,
    header: Header,
    /// Through the page cache, as engines write it.
    table: Box<dyn DiskFile>,
    data: &'a Path,
    direct: Option<Box<dyn DiskFile>>,
}

/// Checks extents of a namespace.
pub(super) fn check_extents(
    reader: &Reader<'_>,
    threads: usize,
    namespace: (u16, &Expected),
    extents: &[ExtentFiles],
) {
    let keys = Keys::default();
    in_parallel(threads, extents, |e| {
        let failed = match check(reader, namespace, e, &keys) {
            Ok(()) => return,
            Err(e) => e,
        };
        reader.admin.notes.note(e.path(), &failed);
        if classify(&failed) == IoClass::Gone {
            lock(&reader.found).vanished += 1;
        } else {
            reader.bad(Fault::Unreadable, e.path(), failed.to_string());
        }
    });
}

fn check(
    reader: &Reader<'_>,
    (namespace, expected): (u16, &Expected),
    e: &ExtentFiles,
    keys: &Keys,
) -> io::Result<()> {
    let disk = &*reader.admin.disk;
    let (found, table) = look(disk, e, OpenMode::Read)?;
    lock(&reader.found).extents += 1;
    let bad = |fault, why: String| {
        reader.bad(fault, e.path(), why);
        Ok(())
    };
    let header = match found {
        ExtentState::Whole(h) => h,
        ExtentState::Truncated(_, path, len, need) => {
            let why = format!("{len} bytes; its slots need {need}");
            reader.bad(Fault::TruncatedExtent, &path, why);
            return Ok(());
        }
        // an engine makes one file after the other
        ExtentState::Half(_) if reader.held => {
            lock(&reader.found).being_written += 1;
            return Ok(());
        }
        ExtentState::Half(path) => {
            let why = "the other file of the extent is not there".to_owned();
            reader.bad(Fault::HalfExtent, &path, why);
            return Ok(());
        }
        ExtentState::Newer(what) => return bad(Fault::NewerFormat, format!("extent of {what}")),
        ExtentState::Damaged(why) => return bad(Fault::DamagedHeader, why.into()),
    };
    if expected.digest.is_some_and(|d| d != header.namespace) {
        let digest = crate::namespace::hex(header.namespace.get(..8).unwrap_or_default());
        return bad(
            Fault::WrongNamespace,
            format!("the header names namespace {digest}"),
        );
    }
    if let Some(b) = expected.block_len.filter(|&b| b != header.block_len) {
        let why = format!("blocks of {} bytes where others have {b}", header.block_len);
        return bad(Fault::OtherSize, why);
    }
    let (Some(table), Some(data)) = (table, &e.data) else {
        return Ok(());
    };
    let open = Open {
        reader,
        namespace,
        path: e.path(),
        header,
        table,
        data,
        direct: disk.open(data, OpenMode::Read, true).ok(),
    };
    open.slots(keys)
}

impl Open<'_> {
    fn slots(&self, keys: &Keys) -> io::Result<()> {
        let (mut wanted, mut damaged) = (Vec::new(), Vec::new());
        let (mut fps, mut empty) = (Vec::new(), 0);
        let read = table(&*self.table, &self.header, &mut |place, bytes, what| match what {
            Slot::Empty => empty += 1,
            Slot::Block(r) => {
                fps.push((self.namespace, r.key.fingerprint(0)));
                wanted.push(Wanted {
                    place,
                    bytes: *bytes,
                    sum: r.sum,
                });
            }
            Slot::Damaged => damaged.push(place),
        })?;
        self.done(empty + damaged.len() as u64, HEADER_BYTES + read);
        for place in damaged {
            self.look_again(place)?;
        }
        let superseded = {
            let mut keys = lock(keys);
            fps.into_iter().filter(|&k| !keys.insert(k)).count() as u64
        };
        lock(&self.reader.found).superseded += superseded;
        let slot_bytes = self.header.slot_bytes as usize;
        if slot_bytes > MAX_SLOT {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        let a_piece = (CHUNK / slot_bytes.max(1)).max(1) as u32;
        let mut buf =
            PageBuffer::new(slot_bytes * a_piece as usize).map_err(|_| io::ErrorKind::OutOfMemory)?;
        for piece in wanted.chunk_by(|a, b| a.place / a_piece == b.place / a_piece) {
            self.piece(piece, &mut buf);
        }
        Ok(())
    }

    /// Reads from the first to the last slot of `wanted`, and compares them.
    fn piece(&self, wanted: &[Wanted], buf: &mut PageBuffer) {
        let (Some(first), Some(last)) = (wanted.first(), wanted.last()) else {
            return;
        };
        let slot_bytes = self.header.slot_bytes as usize;
        let len = (last.place - first.place + 1) as usize * slot_bytes;
        let to = buf.as_mut_slice().get_mut(..len).unwrap_or_default();
        match self.fill(first.place, to) {
            Ok(()) => {}
            // one bad sector must not take its neighbours with it
            Err(_) if wanted.len() > 1 => {
                for w in wanted {
                    self.piece(std::slice::from_ref(w), buf);
                }
                return;
            }
            Err(e) => {
                self.reader
                    .bad_at(Fault::Unreadable, self.path, Some(first.place), e.to_string());
                self.block(false, 0);
                return;
            }
        }
        let read = buf.as_mut_slice();
        for w in wanted {
            let at = (w.place - first.place) as usize * slot_bytes;
            let block = read.get(at..at + self.header.block_len as usize);
            let good = block.is_some_and(|b| block_sum(b) == w.sum);
            self.block(good, slot_bytes as u64);
            if !good {
                self.compare_again(w, block.map_or(0, block_sum));
            }
        }
    }

    fn fill(&self, place: u32, to: &mut [u8]) -> io::Result<()> {
        let at = self.header.slot_at(place);
        let len = to.len();
        let mut from = |file: &dyn DiskFile| match read_all_at(file, to, at)? {
            n if n == len => Ok(()),
            _ => Err(io::Error::from(io::ErrorKind::UnexpectedEof)),
        };
        if let Some(direct) = self.direct.as_deref() {
            match from(direct) {
                Err(e) if classify(&e) == IoClass::Invalid => {}
                r => return r,
            }
        }
        from(&*self.reader.admin.disk.open(self.data, OpenMode::Read, false)?)
    }

    /// A slot that does not fit is damaged if its record is still the one it was compared with.
    fn compare_again(&self, w: &Wanted, sum: u128) {
        let mut now = [0; RECORD_BYTES];
        let read = read_all_at(&*self.table, &mut now, Header::record_at(w.place));
        if !matches!(read, Ok(RECORD_BYTES)) || now != w.bytes {
            lock(&self.reader.found).vanished += 1;
            return;
        }
        let why = format!("XXH3-128 is {sum:032x}, the record says {:032x}", w.sum);
        // a fault in transit is not the slot's
        if self.reads_right(w) {
            lock(&self.reader.found).good += 1;
            return;
        }
        self.reader
            .bad_at(Fault::DamagedPayload, self.path, Some(w.place), why);
    }

    /// Whether the block of a slot fits its record when it is read again.
    fn reads_right(&self, w: &Wanted) -> bool {
        let slot_bytes = self.header.slot_bytes as usize;
        let Ok(mut buf) = PageBuffer::new(slot_bytes) else {
            return false;
        };
        let to = buf.as_mut_slice().get_mut(..slot_bytes).unwrap_or_default();
        let block = self
            .fill(w.place, to)
            .ok()
            .and_then(|()| to.get(..self.header.block_len as usize));
        block.is_some_and(|b| block_sum(b) == w.sum)
    }

    /// A record that is none may be being written.
    fn look_again(&self, place: u32) -> io::Result<()> {
        let pause = Bell::default();
        let mut bytes = [0; RECORD_BYTES];
        for _ in 0..LOOKS {
            read_all_at(&*self.table, &mut bytes, Header::record_at(place))?;
            if !matches!(slot(&bytes, &self.header, place), Slot::Damaged) {
                lock(&self.reader.found).vanished += 1;
                return Ok(());
            }
            pause.wait(pause.rings(), Duration::from_millis(2));
        }
        let why = "neither a whole record of this slot nor zeros".to_owned();
        self.reader
            .bad_at(Fault::DamagedRecord, self.path, Some(place), why);
        Ok(())
    }

    fn block(&self, good: bool, bytes: u64) {
        {
            let mut found = lock(&self.reader.found);
            found.blocks += 1;
            found.packed_blocks += 1;
            found.good += u64::from(good);
        }
        self.done(1, bytes);
    }

    fn done(&self, blocks: u64, bytes: u64) {
        lock(&self.reader.found).bytes += bytes;
        self.reader.read(blocks, bytes);
    }
}
