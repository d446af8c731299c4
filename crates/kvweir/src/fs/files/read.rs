//! A block is read. Bytes go straight into the slot, or, where the file system may hang, into a buffer and from there;
//! size, trailer, full key, namespace and, with `verify`, the checksum are compared before the block is good (I2). A
//! file of exactly a block's length is a stock tier's and has nothing to be compared with but its size, unless it is
//! known to have had a trailer.

use std::{io, path::Path};

use crate::{
    block::Key,
    error::{IoClass, classify},
    fs::{
        body::FileBody,
        files::pieces::{READ_PIECE, read_in_pieces},
        space::Space,
        written::{Flaw, Wanted},
    },
    io::{
        disk::{OpenMode, read_full},
        engine::Engine,
        is_aligned,
        pool::Worker,
    },
    jobs::LoadRun,
    root::trailer::{TRAILER_BYTES, decode, payload_sum, version},
    sync::atomic::Ordering,
    tier::Verified,
};

/// What a read brought: bytes read, and how they were checked.
type Good = (usize, Verified);

/// Reads a block into its memory.
pub(super) fn read(
    s: &Space,
    run: &LoadRun<Space>,
    w: &Wanted,
    worker: &mut Worker,
) -> Result<Verified, Flaw> {
    let Some(key) = run.keys.get(w.unit) else {
        return Err(Flaw::Failed(io::ErrorKind::InvalidInput.into()));
    };
    let trailed = FileBody::of(&w.body).is_some_and(|f| f.trailer);
    run.progress.begin_io(s.clock.now());
    let read = if s.bounce.on {
        read_bounced(s, run, (w.unit, key), trailed, worker)
    } else {
        // the worker has the memory until its I/O has ended, reported or not (I5)
        match run.take_slot(w.unit) {
            Some(mut slot) => read_into(s, key, trailed, &mut slot, worker),
            None => Err(Flaw::too_late()),
        }
    };
    run.progress
        .end_io(s.clock.now(), read.as_ref().map_or(0, |&(n, _)| n as u64));
    read.map(|good| good.1)
}

/// Reads into a buffer of the tier. The caller's memory is touched only while the job cannot be given up.
fn read_bounced(
    s: &Space,
    run: &LoadRun<Space>,
    (unit, key): (usize, &Key),
    trailed: bool,
    worker: &mut Worker,
) -> Result<Good, Flaw> {
    let read = s.bounce.with(|buffer| {
        let good = read_into(s, key, trailed, buffer, worker)?;
        let copied = run.progress.with_memory(|| {
            let mut slot = run.take_slot(unit)?;
            slot.copy_from_slice(buffer);
            Some(())
        });
        match copied {
            Ok(Some(())) => Ok(good),
            Ok(None) => Err(Flaw::too_late()),
            Err(e) => Err(Flaw::Failed(e)),
        }
    });
    read.unwrap_or_else(|e| Err(Flaw::Failed(e)))
}

/// Reads the file and compares everything.
fn read_into(
    s: &Space,
    key: &Key,
    trailed: bool,
    slot: &mut [u8],
    worker: &mut Worker,
) -> Result<Good, Flaw> {
    let path = s.root.path_of(&s.location(key));
    let (engine, page) = (&mut *worker.engine, worker.scratch.as_mut_slice());
    let page = page.get_mut(..TRAILER_BYTES).unwrap_or_default();
    let (n, sum) = read_file(s, &path, slot, page, engine)?;
    let (len, whole) = (slot.len(), slot.len() + TRAILER_BYTES);
    if n == len && !trailed {
        return Ok((n, Verified::SizeOnly));
    }
    if n != whole {
        return Err(Flaw::Corrupt("the file has the wrong size"));
    }
    let Some(t) = decode(page) else {
        let claims = page.first_chunk().and_then(version);
        return Err(claims.map_or(Flaw::Corrupt("the trailer is damaged"), Flaw::Newer));
    };
    if t.key != *key || t.namespace != *s.ns.digest() || t.block_len != len as u64 {
        return Err(Flaw::Corrupt("the file holds another block"));
    }
    if !s.params.verify {
        return Ok((n, Verified::SizeOnly));
    }
    if sum.unwrap_or_else(|| payload_sum(slot)) != t.payload_sum {
        return Err(Flaw::Corrupt("the checksum does not match"));
    }
    Ok((n, Verified::Checksum))
}

/// The bytes read and, where it could be had on the way, the checksum of the block.
fn read_file(
    s: &Space,
    path: &Path,
    slot: &mut [u8],
    page: &mut [u8],
    engine: &mut dyn Engine,
) -> Result<(usize, Option<u128>), Flaw> {
    let aligned = is_aligned(slot);
    let mut attempt = |direct: bool| -> io::Result<_> {
        let file = s.root.disk.open(path, OpenMode::Read, direct)?;
        // through the page cache a plain call is cheaper
        if direct && engine.overlaps() && slot.len() > READ_PIECE {
            return read_in_pieces(&*file, slot, page, engine, s.params.verify);
        }
        Ok((read_full(&*file, slot, page)?, None))
    };
    let mut read = Err(io::ErrorKind::Unsupported.into());
    if aligned && s.root.direct.load(Ordering::Relaxed) {
        read = attempt(true);
    }
    if matches!(&read, Err(e) if classify(e) == IoClass::Invalid) {
        read = attempt(false);
    }
    read.map_err(|e| match classify(&e) {
        IoClass::Gone => Flaw::Gone,
        IoClass::Corrupt => Flaw::Corrupt("the file system says that its bytes are lost"),
        _ => Flaw::Failed(e),
    })
}
