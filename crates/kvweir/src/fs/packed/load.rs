//! Loading packed blocks: the units of a job that a worker took, together. Slots that follow each other are read with
//! one operation, straight into the engine's memory; then each block is compared with its tag (I2). What is provably
//! wrong loses its record; what could not be read is a miss until it is stored again.

use std::{io, sync::Arc};

use super::{
    Pack,
    extent::Extent,
    format::{Header, RECORD_BYTES, block_sum, tag},
};
use crate::{
    error::{IoClass, classify},
    evict::Id,
    fs::{
        body::SlotBody,
        files::pieces::READ_PIECE,
        space::Space,
        written::{Flaw, Read, Wanted},
    },
    io::{
        SlotWrite,
        disk::{read_all_at, write_all_at},
        engine::{Engine, ReadRun, Run},
        is_aligned,
    },
    jobs::LoadRun,
    tier::Verified,
};

/// A block that is to be read, by its slot.
#[derive(Debug, Clone, Copy)]
struct Aim {
    unit: usize,
    id: Option<Id>,
    slot: u32,
    tag: u64,
}

impl Aim {
    fn of(w: &Wanted) -> Option<Self> {
        let SlotBody { slot, tag, .. } = SlotBody::of(&w.body)?;
        Some(Self {
            unit: w.unit,
            id: w.id,
            slot,
            tag,
        })
    }

    fn ended(&self, end: Result<Verified, Flaw>) -> Read {
        Read {
            unit: self.unit,
            id: self.id,
            end,
        }
    }
}

/// Blocks whose slots follow each other, with the memory they go to.
struct Reading {
    extent: Arc<Extent>,
    blocks: Vec<(Aim, SlotWrite)>,
    /// Their checksums, as far as they were taken while others were still on their way.
    sums: Vec<Option<u128>>,
}

/// A batch of blocks on its way out of slots.
struct Unpacking<'a> {
    pack: &'a Pack,
    s: &'a Space,
    run: &'a LoadRun<Space>,
}

/// Reads blocks out of slots.
pub(super) fn load(
    pack: &Pack,
    s: &Space,
    run: &LoadRun<Space>,
    wanted: &[Wanted],
    engine: &mut dyn Engine,
) -> Vec<Read> {
    let mut aims: Vec<Aim> = wanted.iter().filter_map(Aim::of).collect();
    aims.sort_unstable_by_key(|w| w.slot);
    let unpacking = Unpacking { pack, s, run };
    match s.bounce.on {
        true => unpacking.load_bounced(&aims),
        false => unpacking.load_runs(&aims, engine),
    }
}

impl Unpacking<'_> {
    /// Loads blocks one by one through buffers of the tier.
    fn load_bounced(&self, aims: &[Aim]) -> Vec<Read> {
        let (s, progress) = (self.s, &self.run.progress);
        let mut out = Vec::with_capacity(aims.len());
        for w in aims {
            let Some(extent) = self.pack.extent_of(w.slot) else {
                out.push(w.ended(Err(Flaw::too_late())));
                continue;
            };
            progress.begin_io(s.clock.now());
            let read = self.read_packed_bounced(&extent, w);
            let bytes = u64::from(read.is_ok()) * s.params.block_len as u64;
            progress.end_io(s.clock.now(), bytes);
            out.push(w.ended(read.map_err(|e| flaw(&extent, w, e))));
        }
        out
    }

    /// Loads blocks straight into their memory; `aims` are in the order of their slots on disk.
    fn load_runs(&self, aims: &[Aim], engine: &mut dyn Engine) -> Vec<Read> {
        let (s, progress) = (self.s, &self.run.progress);
        // what has several under way at once has the less to wait for the shorter they are
        let most = match engine.overlaps() {
            true => (READ_PIECE / s.params.block_len).max(1),
            false => usize::MAX,
        };
        let mut out = Vec::with_capacity(aims.len());
        let mut runs = self.claim_runs(aims, most, &mut out);
        progress.begin_io(s.clock.now());
        let reads = self.read_runs(&mut runs, engine);
        let mut good = 0;
        for (run, read) in runs.into_iter().zip(reads) {
            let Reading { extent, blocks, sums } = run;
            // one bad sector must not take its neighbours with it, nor memory that is not aligned
            let again = read.is_err();
            for ((w, mut slot), sum) in blocks.into_iter().zip(sums) {
                let read = if again {
                    self.read_one(&extent, &w, &mut slot)
                } else {
                    self.compare(&w, &slot, sum)
                };
                good += u64::from(read.is_ok()) * s.params.block_len as u64;
                out.push(w.ended(read.map_err(|e| flaw(&extent, &w, e))));
            }
        }
        progress.end_io(s.clock.now(), good);
        out
    }

    /// Takes the memory that the blocks go to, by runs of slots that follow each other, `most` at
    /// most. The worker has it until its I/O
    /// has ended, reported or not (I5).
    fn claim_runs(&self, aims: &[Aim], most: usize, out: &mut Vec<Read>) -> Vec<Reading> {
        let mut runs: Vec<Reading> = Vec::new();
        for w in aims {
            let next = runs.last_mut().filter(|r| {
                let end = r.blocks.last().map(|(l, _)| l.slot + 1);
                end == Some(w.slot) && Extent::place(w.slot) != 0 && r.blocks.len() < most
            });
            let extent = match &next {
                Some(r) => Some(Arc::clone(&r.extent)),
                None => self.pack.extent_of(w.slot),
            };
            match (extent, self.run.take_slot(w.unit)) {
                (Some(extent), Some(slot)) => match next {
                    Some(r) => {
                        r.blocks.push((*w, slot));
                        r.sums.push(None);
                    }
                    None => runs.push(Reading {
                        extent,
                        blocks: vec![(*w, slot)],
                        sums: vec![None],
                    }),
                },
                // given up before
                _ => out.push(w.ended(Err(Flaw::too_late()))),
            }
        }
        runs
    }

    /// Reads all runs; one answer each. What direct I/O cannot do is an error.
    fn read_runs(&self, runs: &mut [Reading], engine: &mut dyn Engine) -> Vec<io::Result<()>> {
        let disk = &*self.s.root.disk;
        let all = runs.len();
        let verify = self.s.params.verify;
        let mut batch = Vec::with_capacity(all);
        let mut sums = Vec::with_capacity(all);
        let mut refused = Vec::new();
        for (n, r) in runs.iter_mut().enumerate() {
            let header = &r.extent.header;
            let padded = header.block_len != u64::from(header.slot_bytes);
            let aligned = r.blocks.iter().all(|(_, slot)| is_aligned(slot));
            let at = r
                .blocks
                .first()
                .map_or(0, |(w, _)| header.slot_at(Extent::place(w.slot)));
            let file = match r.extent.data.file(disk, aligned) {
                Ok(f) if !padded => f,
                _ => {
                    refused.push(n);
                    continue;
                }
            };
            let mut run = ReadRun::new(file, at);
            r.blocks.iter_mut().for_each(|(_, slot)| run.push(slot));
            batch.push(run);
            sums.push(&mut r.sums);
        }
        if verify {
            engine.read_each(&mut batch, &mut |runs, n| {
                let pieces = runs.get(n).filter(|r| r.is_whole()).and_then(ReadRun::pieces);
                if let (Some(pieces), Some(sums)) = (pieces, sums.get_mut(n)) {
                    sums.iter_mut()
                        .zip(pieces)
                        .for_each(|(sum, p)| *sum = Some(block_sum(p)));
                }
            });
        } else {
            engine.read(&mut batch);
        }
        let mut ended = batch.into_iter().map(Run::into_whole);
        (0..all)
            .map(|n| match refused.contains(&n) {
                true => Err(io::ErrorKind::Unsupported.into()),
                false => ended.next().unwrap_or_else(|| Err(io::ErrorKind::Other.into())),
            })
            .collect()
    }

    /// Reads one block, through the page cache where its memory or length asks for that.
    fn read_one(&self, extent: &Extent, w: &Aim, to: &mut [u8]) -> io::Result<Verified> {
        let at = extent.header.slot_at(Extent::place(w.slot));
        let aligned = is_aligned(to);
        let mut attempt = |direct| {
            let file = extent.data.file(&*self.s.root.disk, direct)?;
            match read_all_at(file, to, at)? {
                n if n == to.len() => Ok(()),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        match attempt(aligned) {
            Err(e) if aligned && classify(&e) == IoClass::Invalid => attempt(false),
            r => r,
        }?;
        self.compare(w, to, None)
    }

    /// Reads into a buffer of the tier. The slot is touched only while the job cannot be given up.
    fn read_packed_bounced(&self, extent: &Extent, w: &Aim) -> io::Result<Verified> {
        self.s.bounce.with(|buffer| {
            let verified = self.read_one(extent, w, buffer)?;
            let copied = self.run.progress.with_memory(|| {
                let mut slot = self.run.take_slot(w.unit)?;
                slot.copy_from_slice(buffer);
                Some(())
            })?;
            copied
                .map(|()| verified)
                .ok_or_else(|| io::ErrorKind::TimedOut.into())
        })?
    }

    /// Compares a block with its tag, by its checksum if that is known already.
    fn compare(&self, w: &Aim, block: &[u8], sum: Option<u128>) -> io::Result<Verified> {
        if !self.s.params.verify {
            return Ok(Verified::SizeOnly);
        }
        let key = self.run.keys.get(w.unit).ok_or(io::ErrorKind::InvalidInput)?;
        if tag(sum.unwrap_or_else(|| block_sum(block)), key) == w.tag {
            Ok(Verified::Checksum)
        } else {
            Err(io::ErrorKind::InvalidData.into())
        }
    }
}

/// Why a block is not good. The record of one that is provably wrong goes.
fn flaw(extent: &Extent, w: &Aim, e: io::Error) -> Flaw {
    let why = match classify(&e) {
        _ if e.kind() == io::ErrorKind::InvalidData => "it does not match its tag",
        IoClass::Corrupt => "the file system says that its bytes are lost",
        _ => return Flaw::Failed(e),
    };
    let at = Header::record_at(Extent::place(w.slot));
    if let Err(error) = write_all_at(&*extent.table, &[0; RECORD_BYTES], at) {
        tracing::debug!(%error, "the record of a bad block stays; its checksum will tell");
    }
    Flaw::Corrupt(why)
}
