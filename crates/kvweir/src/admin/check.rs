//! One block file against its trailer, its name and its namespace (I2). Reads all of it, past the page cache where
//! the file system allows, in pieces that need no more memory than [`CHUNK`].

use std::{
    io::{self, IoSliceMut},
    path::Path,
};

use xxhash_rust::xxh3::Xxh3;

use super::{finding::Fault, survey::Expected};
use crate::{
    error::{IoClass, classify},
    io::{Disk, DiskFile, PAGE, PageBuffer, disk::OpenMode, round_up},
    root::{
        names::Location,
        trailer::{TRAILER_BYTES, Trailer, decode, version},
        visitor::BlockFile,
    },
};

/// Bytes read at once.
pub(super) const CHUNK: usize = 8 << 20;
const TRAILER: u64 = TRAILER_BYTES as u64;

/// What a look at a file found.
#[derive(Debug)]
pub(super) enum Outcome {
    /// Everything compared and right.
    Good,
    /// As long as a block, and there is no trailer to compare with.
    Unverified,
    /// It went while we looked.
    Vanished,
    Bad(Fault, String),
}

/// What was read.
struct Read {
    len: u64,
    sum: u128,
    page: [u8; TRAILER_BYTES],
}

/// Reads and judges `file`, twice where it seems bad: a fault in transit is not the file's. Also returns the bytes
/// read.
pub(super) fn check(
    disk: &dyn Disk,
    file: &BlockFile<'_>,
    e: &Expected,
    buf: &mut PageBuffer,
) -> (Outcome, u64) {
    let path = file.dir.join(file.name);
    let mut look = || match read(disk, &path, true, TRAILER, buf) {
        Ok(r) => (judge(&r, file, e), r.len),
        Err(e) if classify(&e) == IoClass::Gone => (Outcome::Vanished, 0),
        Err(e) => (Outcome::Bad(Fault::Unreadable, e.to_string()), 0),
    };
    match look() {
        (Outcome::Bad(..), _) => look(),
        seen => seen,
    }
}

/// The trailer of the block in the file at `path`, all of it read and compared; `None`: it is none, looked at twice.
/// With `direct`, past the page cache.
pub(super) fn whole_block(disk: &dyn Disk, path: &Path, direct: bool) -> io::Result<Option<Trailer>> {
    let len = usize::try_from(disk.stat(path)?.len).map_err(io::Error::other)?;
    let mut buf = PageBuffer::new(round_up(len.clamp(1, CHUNK) as u64, PAGE as u64) as usize)
        .map_err(|_| io::ErrorKind::OutOfMemory)?;
    for _ in 0..2 {
        let r = read(disk, path, direct, TRAILER, &mut buf)?;
        let fits = |t: &Trailer| t.payload_sum == r.sum && t.block_len + TRAILER == r.len;
        if let Some(t) = decode(&r.page).filter(|t| r.len > TRAILER && fits(t)) {
            return Ok(Some(t));
        }
    }
    Ok(None)
}

fn judge(r: &Read, file: &BlockFile<'_>, e: &Expected) -> Outcome {
    let bad = |fault, why: String| Outcome::Bad(fault, why);
    if r.len == 0 {
        return bad(Fault::ZeroLength, "the file is empty".into());
    }
    let trailer = if r.len > TRAILER { decode(&r.page) } else { None };
    let Some(t) = trailer else {
        return without_trailer(r, e);
    };
    let len = r.len - TRAILER;
    if t.block_len != len {
        let why = format!("{len} bytes before the trailer, which says {}", t.block_len);
        return bad(Fault::WrongSize, why);
    }
    if t.payload_sum != r.sum {
        let why = format!(
            "XXH3-128 is {:032x}, the trailer says {:032x}",
            r.sum, t.payload_sum
        );
        return bad(Fault::DamagedPayload, why);
    }
    if !name_fits(&t, file) {
        return bad(
            Fault::WrongKey,
            format!("the file holds the block of key {}", t.key),
        );
    }
    if e.digest.is_some_and(|d| d != t.namespace) {
        let why = format!(
            "the trailer names namespace {}",
            crate::namespace::hex(t.namespace.get(..8).unwrap_or_default())
        );
        return bad(Fault::WrongNamespace, why);
    }
    if let Some(b) = e.block_len.filter(|&b| b != len) {
        let why = format!("a whole block of {len} bytes where others have {b}");
        return bad(Fault::OtherSize, why);
    }
    Outcome::Good
}

/// Judges a file whose last page is no trailer that we can read.
fn without_trailer(r: &Read, e: &Expected) -> Outcome {
    if r.len > TRAILER
        && let Some(v) = version(&r.page)
    {
        return Outcome::Bad(Fault::NewerFormat, format!("trailer of {v}"));
    }
    match e.block_len {
        Some(b) if r.len == b => Outcome::Unverified,
        Some(b) if e.has_trailers && r.len == b + TRAILER => {
            let why = "the last page is not a whole trailer";
            Outcome::Bad(Fault::DamagedTrailer, why.into())
        }
        Some(b) => {
            let why = format!("{} bytes; a block has {b}, with trailer {}", r.len, b + TRAILER);
            Outcome::Bad(Fault::WrongSize, why)
        }
        // lengths differ so much that none of them is the right one
        None => Outcome::Unverified,
    }
}

/// Whether a block of this key belongs under this name.
fn name_fits(t: &Trailer, file: &BlockFile<'_>) -> bool {
    let at = Location::of(&t.key);
    at.prefix == file.prefix && at.leaf == file.leaf && at.file_name() == file.name
}

/// Length and sum of a file without trailer.
pub(super) fn sum_of(disk: &dyn Disk, path: &Path, direct: bool) -> io::Result<(u64, u128)> {
    let mut buf = PageBuffer::new(CHUNK).map_err(|_| io::ErrorKind::OutOfMemory)?;
    let r = read(disk, path, direct, 0, &mut buf)?;
    Ok((r.len, r.sum))
}

/// Reads a file whose last `tail` bytes are no part of the block.
fn read(disk: &dyn Disk, path: &Path, direct: bool, tail: u64, buf: &mut PageBuffer) -> io::Result<Read> {
    let attempt =
        |direct: bool, buf: &mut PageBuffer| read_open(&*disk.open(path, OpenMode::Read, direct)?, tail, buf);
    match attempt(direct, buf) {
        Err(e) if direct && classify(&e) == IoClass::Invalid => attempt(false, buf),
        r => r,
    }
}

/// Reads from the open file up to the length it has now: one that is replaced meanwhile stays whole in our hands.
fn read_open(file: &dyn DiskFile, tail: u64, buf: &mut PageBuffer) -> io::Result<Read> {
    let len = file.stat()?.len;
    let payload = len.saturating_sub(tail);
    let mut sum = Xxh3::new();
    let mut page = [0; TRAILER_BYTES];
    let mut at = 0;
    while at < len {
        let room = buf.as_slice().len() as u64;
        let want = round_up(len - at, PAGE as u64).min(room) as usize;
        let chunk = buf.as_mut_slice().get_mut(..want).unwrap_or_default();
        let n = match file.read_at(&mut [IoSliceMut::new(chunk)], at) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            r => r?,
        };
        if n == 0 {
            return Err(io::Error::new(
                io::ErrorKind::UnexpectedEof,
                format!("the file ends at {at} of {len} bytes"),
            ));
        }
        let got = chunk.get(..n).unwrap_or_default();
        let (body, tail) = got.split_at((payload.saturating_sub(at) as usize).min(n));
        sum.update(body);
        let from = (at + body.len() as u64 - payload.min(at + body.len() as u64)) as usize;
        let room = page.get_mut(from.min(TRAILER_BYTES)..).unwrap_or_default();
        room.iter_mut().zip(tail).for_each(|(to, &b)| *to = b);
        at += n as u64;
    }
    Ok(Read {
        len,
        sum: sum.digest128(),
        page,
    })
}
