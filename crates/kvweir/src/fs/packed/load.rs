//! Loading packed blocks: the units of a job that a worker took, together. Slots that follow each other are read with one
//! operation, straight into the engine's memory; then each block is compared with its tag (I2). What is provably wrong
//! loses its record; what could not be read is a miss until it is stored again.

use std::{io, ops::Range, sync::Arc};

use super::{
    Pack,
    extents::Extent,
    format::{Header, RECORD_BYTES, block_sum, tag},
};
use crate::{
    catalog::index::State,
    error::{ErrorKind, IoClass, classify},
    evict::Id,
    fs::{files::pieces::PIECE, load::LoadRun},
    io::{
        SlotWrite,
        disk::{read_all_at, write_all_at},
        engine::{Engine, ReadRun, Run},
        is_aligned,
        pool::Worker,
    },
    metrics::EvictReason,
    sync::lock,
    tier::{BlockOutcome, Verified},
};

/// A block that is to be read.
#[derive(Debug, Clone, Copy)]
struct Wanted {
    unit: usize,
    id: Id,
    slot: u32,
    tag: u64,
}

/// Blocks whose slots follow each other, with the memory they go to.
struct Reading {
    extent: Arc<Extent>,
    blocks: Vec<(Wanted, SlotWrite)>,
    /// Their checksums, as far as they were taken while others were still on their way.
    sums: Vec<Option<u128>>,
}

impl LoadRun {
    /// Loads `units`.
    pub(crate) fn load_packed(&self, pack: &Pack, units: Range<usize>, worker: &mut Worker) {
        let s = &*self.shared;
        let now = s.clock.now();
        let mut wanted = Vec::with_capacity(units.len());
        let mut others = Vec::new();
        let started = self.progress.start_all(units, now);
        {
            let core = lock(&s.core);
            for unit in started {
                let id = self.ids.get(unit).and_then(|i| *lock(i));
                match id
                    .and_then(|id| Some((id, core.index.packed(id)?)))
                    .filter(|_| self.fits(unit))
                {
                    Some((id, (slot, tag))) => wanted.push(Wanted { unit, id, slot, tag }),
                    None => others.push(unit),
                }
            }
        }
        wanted.sort_unstable_by_key(|w| w.slot);
        if s.bounce.on {
            self.load_bounced(pack, &wanted);
        } else if !wanted.is_empty() {
            self.load_runs(pack, &wanted, &mut *worker.engine);
        }
        for unit in others {
            let outcome = self.load(unit, worker);
            self.finish(unit, outcome);
        }
    }

    /// Loads blocks one by one through buffers of the tier.
    fn load_bounced(&self, pack: &Pack, wanted: &[Wanted]) {
        let s = &*self.shared;
        for w in wanted {
            let Some(extent) = pack.extent_of(w.slot) else {
                self.finish(w.unit, BlockOutcome::Failed(ErrorKind::Unavailable));
                continue;
            };
            self.progress.begin_io(s.clock.now());
            let read = self.read_packed_bounced(&extent, w);
            let bytes = u64::from(read.is_ok()) * s.params.block_len as u64;
            self.progress.end_io(s.clock.now(), bytes);
            self.settle_read(pack, &extent, w, read);
        }
    }

    /// Loads blocks straight into their slots of memory; `wanted` is in the order of their slots on disk.
    fn load_runs(&self, pack: &Pack, wanted: &[Wanted], engine: &mut dyn Engine) {
        let s = &*self.shared;
        // what has several under way at once has the less to wait for the shorter they are
        let most = match engine.overlaps() {
            true => (PIECE / s.params.block_len).max(1),
            false => usize::MAX,
        };
        let mut runs = self.claim_runs(pack, wanted, most);
        self.progress.begin_io(s.clock.now());
        let reads = self.read_runs(&mut runs, engine);
        let mut good = 0;
        let mut outcomes = Vec::with_capacity(wanted.len());
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
                outcomes.push((Arc::clone(&extent), w, read));
            }
        }
        self.progress.end_io(s.clock.now(), good);
        let mut loaded = Vec::with_capacity(outcomes.len());
        for (extent, w, read) in outcomes {
            match read {
                Ok(verified) => loaded.push((w.unit, BlockOutcome::Loaded(verified))),
                Err(_) => self.settle_read(pack, &extent, &w, read),
            }
        }
        if !loaded.is_empty() {
            self.finish_all(&loaded);
        }
    }

    /// Takes the memory that the blocks go to, by runs of slots that follow each other, `most` at
    /// most. The worker has it until its I/O
    /// has ended, reported or not (I5).
    fn claim_runs(&self, pack: &Pack, wanted: &[Wanted], most: usize) -> Vec<Reading> {
        let mut runs: Vec<Reading> = Vec::new();
        for w in wanted {
            let next = runs.last_mut().filter(|r| {
                let end = r.blocks.last().map(|(l, _)| l.slot + 1);
                end == Some(w.slot) && Extent::place(w.slot) != 0 && r.blocks.len() < most
            });
            let extent = match &next {
                Some(r) => Some(Arc::clone(&r.extent)),
                None => pack.extent_of(w.slot),
            };
            match (extent, self.take_slot(w.unit)) {
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
                _ => self.finish(w.unit, BlockOutcome::Failed(ErrorKind::Unavailable)),
            }
        }
        runs
    }

    /// Reads all runs; one answer each. What direct I/O cannot do is an error.
    fn read_runs(&self, runs: &mut [Reading], engine: &mut dyn Engine) -> Vec<io::Result<()>> {
        let disk = &*self.shared.disk;
        let all = runs.len();
        let verify = self.shared.params.verify;
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

    fn settle_read(&self, pack: &Pack, extent: &Extent, w: &Wanted, read: io::Result<Verified>) {
        let outcome = match read {
            Ok(verified) => BlockOutcome::Loaded(verified),
            Err(e) => self.not_read(extent, w, &e),
        };
        self.finish(w.unit, outcome);
        if !outcome.is_ok() {
            self.drop_bad(pack, w.id);
        }
    }

    /// Reads one block, through the page cache where its memory or length asks for that.
    fn read_one(&self, extent: &Extent, w: &Wanted, to: &mut [u8]) -> io::Result<Verified> {
        let at = extent.header.slot_at(Extent::place(w.slot));
        let aligned = is_aligned(to);
        let mut attempt = |direct| {
            let file = extent.data.file(&*self.shared.disk, direct)?;
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
    fn read_packed_bounced(&self, extent: &Extent, w: &Wanted) -> io::Result<Verified> {
        self.shared.bounce.with(|buffer| {
            let verified = self.read_one(extent, w, buffer)?;
            let copied = self.progress.touch(|| {
                let mut slot = self.take_slot(w.unit)?;
                slot.copy_from_slice(buffer);
                Some(())
            })?;
            copied
                .map(|()| verified)
                .ok_or_else(|| io::ErrorKind::TimedOut.into())
        })?
    }

    /// Compares a block with its tag, by its checksum if that is known already.
    fn compare(&self, w: &Wanted, block: &[u8], sum: Option<u128>) -> io::Result<Verified> {
        if !self.shared.params.verify {
            return Ok(Verified::SizeOnly);
        }
        let key = self.keys.get(w.unit).ok_or(io::ErrorKind::InvalidInput)?;
        if tag(sum.unwrap_or_else(|| block_sum(block)), key) == w.tag {
            Ok(Verified::Checksum)
        } else {
            Err(io::ErrorKind::InvalidData.into())
        }
    }

    /// Makes a block that did not load a miss.
    fn not_read(&self, extent: &Extent, w: &Wanted, e: &io::Error) -> BlockOutcome {
        let s = &*self.shared;
        let lost = e.kind() == io::ErrorKind::InvalidData || classify(e) == IoClass::Corrupt;
        let kind = match classify(e) {
            _ if lost => ErrorKind::Corrupt,
            IoClass::Transient => ErrorKind::Busy,
            _ => ErrorKind::Unavailable,
        };
        if !lost && classify(e).blames_device() {
            self.progress.blame();
        }
        let what = match lost {
            true => "a packed block is damaged: a miss until it is stored again",
            false => "a packed block could not be read: a miss until it is stored again",
        };
        if let Some(key) = self.keys.get(w.unit)
            && s.told.is_new(what, s.clock.now(), 1)
        {
            tracing::warn!(tier = %s.params.name, %key, error = %e, "{what}");
        }
        if lost {
            let at = Header::record_at(Extent::place(w.slot));
            if let Err(error) = write_all_at(&*extent.table, &[0; RECORD_BYTES], at) {
                tracing::debug!(%error, "the record of a bad block stays; its checksum will tell");
            }
        }
        let mut core = lock(&s.core);
        core.stats.verification_failures += u64::from(lost);
        if core.index.state(w.id) == State::Ready {
            core.packed.remove(w.id);
            core.keep(w.id, true);
        }
        BlockOutcome::Failed(kind)
    }

    /// Frees the slot of a bad block that nobody pins any more.
    fn drop_bad(&self, pack: &Pack, id: Id) {
        let mut freed = Vec::new();
        {
            let mut core = lock(&self.shared.core);
            let bad = core.index.state(id) == State::Bad && core.index.packed(id).is_some();
            if bad && core.is_evictable(id) {
                core.packed.remove(id);
                core.drop_packed(id, EvictReason::Corrupt, pack.slot_bytes, &mut freed);
            }
        }
        pack.give(&mut freed);
    }
}
