//! Loading packed blocks: the units of a job that a worker took, together. Slots that follow each other are read with one
//! operation, straight into the engine's memory; then each block is compared with its tag (I2). What is provably wrong
//! loses its record; what could not be read is a miss until it is stored again.

use std::{
    io::{self, IoSliceMut},
    ops::Range,
};

use super::{
    Pack,
    extents::Extent,
    format::{Header, RECORD_BYTES, block_sum, tag},
};
use crate::{
    error::{ErrorKind, IoClass, classify},
    evict::Id,
    fs::{index::State, load::LoadRun},
    io::{
        PageBuffer, SlotWrite,
        disk::{read_slices_at, write_all_at},
        is_aligned,
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

impl LoadRun {
    /// Loads `units`.
    pub(crate) fn load_packed(&self, pack: &Pack, units: Range<usize>, scratch: &mut PageBuffer) {
        let s = &*self.shared;
        let now = s.clock.now();
        let mut wanted = Vec::with_capacity(units.len());
        let mut others = Vec::new();
        let started: Vec<usize> = units.filter(|&u| self.progress.start(u, now)).collect();
        {
            let core = lock(&s.core);
            for unit in started {
                let id = self.ids.get(unit).and_then(|i| *lock(i));
                match id.and_then(|id| Some((id, core.index.packed(id)?))) {
                    Some((id, (slot, tag))) => wanted.push(Wanted { unit, id, slot, tag }),
                    None => others.push(unit),
                }
            }
        }
        wanted.sort_unstable_by_key(|w| w.slot);
        for run in wanted.chunk_by(|a, b| a.slot + 1 == b.slot) {
            self.load_run(pack, run);
        }
        for unit in others {
            let outcome = self.load(unit, scratch);
            self.finish(unit, outcome);
        }
    }

    /// Reads blocks whose slots follow each other.
    fn load_run(&self, pack: &Pack, run: &[Wanted]) {
        let s = &*self.shared;
        let Some(extent) = run.first().and_then(|w| pack.extent_of(w.slot)) else {
            for w in run {
                self.finish(w.unit, BlockOutcome::Failed(ErrorKind::Unavailable));
            }
            return;
        };
        self.progress.begin_io(s.clock.now());
        let mut good = 0;
        let mut outcomes = Vec::with_capacity(run.len());
        if s.bounce.on {
            for w in run {
                outcomes.push((*w, self.read_packed_bounced(&extent, w)));
            }
        } else {
            // the worker has the slots until its I/O has ended, reported or not (I5)
            let mut claimed: Vec<(Wanted, SlotWrite)> = Vec::with_capacity(run.len());
            let mut late = Vec::new();
            for w in run {
                match self.take_slot(w.unit) {
                    Some(slot) => claimed.push((*w, slot)),
                    None => late.push(*w),
                }
            }
            if late.is_empty() {
                let read = self.read_run(&extent, &mut claimed);
                outcomes.extend(claimed.into_iter().zip(read).map(|((w, _), r)| (w, r)));
            } else {
                // given up: what is left is failed too
                let all = claimed.into_iter().map(|(w, _)| w).chain(late);
                outcomes.extend(all.map(|w| (w, Err(io::ErrorKind::TimedOut.into()))));
            }
        }
        for (_, r) in &outcomes {
            good += u64::from(r.is_ok()) * s.params.block_len as u64;
        }
        self.progress.end_io(s.clock.now(), good);
        for (w, read) in outcomes {
            let outcome = match read {
                Ok(verified) => BlockOutcome::Loaded(verified),
                Err(e) => self.not_read(&extent, &w, &e),
            };
            self.finish(w.unit, outcome);
            if !outcome.is_ok() {
                self.drop_bad(pack, w.id);
            }
        }
    }

    /// Reads into the slots and compares; one answer a block.
    fn read_run(&self, extent: &Extent, claimed: &mut [(Wanted, SlotWrite)]) -> Vec<io::Result<Verified>> {
        let Some(first) = claimed.first().map(|(w, _)| Extent::place(w.slot)) else {
            return Vec::new();
        };
        let padded = extent.header.block_len != u64::from(extent.header.slot_bytes);
        if padded {
            return claimed
                .iter_mut()
                .map(|(w, slot)| self.read_one(extent, w, slot))
                .collect();
        }
        let aligned = claimed.iter().all(|(_, slot)| is_aligned(slot));
        let len: usize = claimed.iter().map(|(_, slot)| slot.len()).sum();
        let at = extent.header.slot_at(first);
        let mut attempt = |direct: bool| -> io::Result<()> {
            let file = extent.data.file(&*self.shared.disk, direct)?;
            let mut bufs: Vec<IoSliceMut<'_>> = claimed
                .iter_mut()
                .map(|(_, slot)| IoSliceMut::new(slot))
                .collect();
            match read_slices_at(file, &mut bufs, at)? {
                n if n == len => Ok(()),
                _ => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        let read = match attempt(aligned) {
            Err(e) if aligned && classify(&e) == IoClass::Invalid => attempt(false),
            r => r,
        };
        match read {
            Ok(()) => claimed.iter().map(|(w, slot)| self.compare(w, slot)).collect(),
            // one bad sector must not take its neighbours with it
            Err(_) if claimed.len() > 1 => claimed
                .iter_mut()
                .map(|(w, slot)| self.read_one(extent, w, slot))
                .collect(),
            Err(e) => vec![Err(e)],
        }
    }

    /// Reads one block, through the page cache where its memory or length asks for that.
    fn read_one(&self, extent: &Extent, w: &Wanted, to: &mut [u8]) -> io::Result<Verified> {
        let at = extent.header.slot_at(Extent::place(w.slot));
        let file = extent.data.file(&*self.shared.disk, is_aligned(to))?;
        let len = to.len();
        if read_slices_at(file, &mut [IoSliceMut::new(to)], at)? != len {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        self.compare(w, to)
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

    fn compare(&self, w: &Wanted, block: &[u8]) -> io::Result<Verified> {
        if !self.shared.params.verify {
            return Ok(Verified::SizeOnly);
        }
        let key = self.keys.get(w.unit).ok_or(io::ErrorKind::InvalidInput)?;
        if tag(block_sum(block), key) == w.tag {
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
        if let Some(key) = self.keys.get(w.unit) {
            tracing::warn!(tier = %s.params.name, %key, error = %e, "a packed block did not load; it is a miss until it is stored again");
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
