//! Large blocks read in pieces that are under way together, so that one block fills the device, and checked piece by
//! piece while the rest comes (I2).

use std::io;

use crate::{
    io::{
        DiskFile,
        engine::{Engine, ReadRun},
    },
    root::trailer::Summing,
};

/// Bytes of a piece: as much as devices take with one command.
pub(crate) const READ_PIECE: usize = 512 << 10;

/// Reads a block and what follows it, from the beginning of `file` as far as it goes. Returns the bytes read and, with
/// `sum`, the checksum of the block, if all of it came and came in order enough to be told on the way.
///
/// # Errors
/// The system's error, with its errno.
pub(crate) fn read_in_pieces(
    file: &dyn DiskFile,
    block: &mut [u8],
    page: &mut [u8],
    engine: &mut dyn Engine,
    sum: bool,
) -> io::Result<(usize, Option<u128>)> {
    let mut batch: Vec<ReadRun<'_>> = Vec::with_capacity(block.len().div_ceil(READ_PIECE));
    for (piece, offset) in block.chunks_mut(READ_PIECE).zip((0..).step_by(READ_PIECE)) {
        batch.push(ReadRun::new(file, offset).with(piece));
    }
    if let Some(last) = batch.last_mut() {
        last.push(page);
    }
    let (mut summing, mut next) = (Summing::default(), 0);
    engine.read_each(&mut batch, &mut |runs, _| {
        // a checksum goes from the beginning to the end
        while sum && let Some(piece) = runs.get(next).and_then(come) {
            summing.add(piece);
            next += 1;
        }
    });
    let whole = (sum && next == batch.len()).then(|| summing.end());
    let mut read = 0;
    for run in batch {
        let asked = run.asked();
        let n = run.into_result()?;
        read += n;
        if n < asked {
            break;
        }
    }
    Ok((read, whole))
}

/// The bytes of the block that a run brought, all of them.
fn come<'r>(run: &'r ReadRun<'_>) -> Option<&'r [u8]> {
    let piece = run.pieces()?.first()?;
    let &Ok(n) = run.result()? else { return None };
    (n >= piece.len()).then_some(piece)
}

#[cfg(test)]
mod tests {
    use std::{path::Path, sync::Arc};

    use super::*;
    use crate::io::{
        Disk, OsDisk, PageBuffer,
        disk::OpenMode,
        engine::{EngineKind, Engines},
        fault::{Fault, FaultDisk, Op, Rule},
    };
    use crate::root::trailer::{TRAILER_BYTES, payload_sum};

    const BLOCK: usize = 4 * READ_PIECE + 3 * 4096;

    fn bytes() -> Vec<u8> {
        (0..BLOCK + TRAILER_BYTES)
            .map(|n| (n as u64).wrapping_mul(0x9e37_79b9_7f4a_7c15).to_le_bytes()[7])
            .collect()
    }

    /// What both engines read of a file, whose bytes are `held`.
    fn read(disk: &dyn Disk, path: &Path, direct: bool, held: &[u8]) -> Vec<(usize, Option<u128>)> {
        let kinds = [EngineKind::Threads, EngineKind::IoUring];
        let engines = kinds.map(|k| Engines::choose(k).engine());
        let mut all = Vec::new();
        for mut engine in engines {
            let mut block = PageBuffer::new(BLOCK).unwrap();
            let mut page = PageBuffer::new(TRAILER_BYTES).unwrap();
            let file = disk.open(path, OpenMode::Read, direct).unwrap();
            let (to, behind) = (block.as_mut_slice(), page.as_mut_slice());
            let got = read_in_pieces(&*file, to, behind, &mut *engine, true).unwrap();
            let came = [block.as_slice(), page.as_slice()].concat();
            assert_eq!(came[..got.0], held[..got.0], "{}", engine.name());
            all.push(got);
        }
        all
    }

    #[test]
    fn pieces_are_the_block_its_trailer_and_its_checksum() {
        let dir = tempfile::tempdir().unwrap();
        let (path, held) = (dir.path().join("f"), bytes());
        std::fs::write(&path, &held).unwrap();
        let sum = payload_sum(&held[..BLOCK]);
        for got in read(&OsDisk, &path, false, &held) {
            assert_eq!(got, (held.len(), Some(sum)));
        }
    }

    #[test]
    fn reads_that_stop_short_bring_the_same_bytes_and_never_a_wrong_checksum() {
        let dir = tempfile::tempdir().unwrap();
        let (path, held) = (dir.path().join("f"), bytes());
        std::fs::write(&path, &held).unwrap();
        let disk = FaultDisk::new(Arc::new(OsDisk));
        disk.add(Rule::new(Op::Read, Fault::Short(5000)).times(3));
        for (n, sum) in read(&disk, &path, false, &held) {
            assert_eq!(n, held.len());
            assert!(sum.is_none_or(|s| s == payload_sum(&held[..BLOCK])));
        }
    }

    #[test]
    fn a_file_that_ends_early_is_told_by_its_length_and_has_no_checksum() {
        let dir = tempfile::tempdir().unwrap();
        let (path, held) = (dir.path().join("f"), bytes());
        for len in [BLOCK, BLOCK - 1, 2 * READ_PIECE + 4096, 2 * READ_PIECE, 5, 0] {
            std::fs::write(&path, &held[..len]).unwrap();
            for (n, sum) in read(&OsDisk, &path, false, &held) {
                let whole = (len == BLOCK).then(|| payload_sum(&held[..BLOCK]));
                assert_eq!((n, sum), (len, whole));
            }
        }
    }
}
