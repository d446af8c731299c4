//! Storing packed blocks: the units of a job that a worker took, together. Per block: present or being written by somebody
//! else? then nothing is written. The others get slots, in runs; of each run the old records are taken away, the blocks
//! written with one operation, and their new records with one more; only then they are hits (I2, I6).

use std::{collections::VecDeque, io, ops::Range, sync::Arc};

use super::{
    Pack,
    extents::Extent,
    format::{Header, MAX_PACKED_KEY, RECORD_BYTES, Record, block_sum, tag},
    free::Run as SlotRun,
    room::NoSlots,
};
use crate::{
    catalog::index::State,
    error::{ErrorKind, IoClass, classify},
    evict::Id,
    fs::store::StoreRun,
    io::{
        Disk, SlotRead,
        disk::write_all_at,
        engine::{Engine, Run, WriteRun},
        is_aligned,
        pool::Worker,
    },
    metrics::{EvictReason, RefuseReason},
    sync::{atomic::Ordering, lock},
    tier::{BlockOutcome, Direction},
};

/// What to do about one block.
enum Begin {
    /// Write it: an entry is reserved.
    Write(Id),
    /// It is there already.
    Present,
    /// Another worker writes it and will tell.
    Joined,
    /// It has, or needs, a file of its own.
    File,
    /// It cannot be stored now.
    Refused(ErrorKind),
}

/// A block that is to be written.
struct Fresh {
    unit: usize,
    id: Id,
}

/// A block of a run on its way.
struct Moving {
    unit: usize,
    id: Id,
    slot: SlotRead,
    sum: u128,
}

/// Entries that are reserved and not settled. Dropped with any left only by a panic: they are then given back, and
/// those who joined are told (I4).
struct Claims<'a> {
    run: &'a StoreRun,
    pack: &'a Pack,
    left: VecDeque<Fresh>,
    /// Slots that were handed out and have no blocks yet.
    slots: VecDeque<(Arc<Extent>, SlotRun)>,
    /// Blocks that are being written, and their slots.
    moving: Vec<Id>,
    into: Vec<SlotRun>,
}

impl Claims<'_> {
    /// Gives slots back of which nothing became.
    fn give(&self, run: SlotRun) {
        let mut slots: Vec<u32> = (run.first..run.first + run.len).collect();
        self.pack.give(&mut slots);
    }
}

impl Drop for Claims<'_> {
    fn drop(&mut self) {
        let ids = self.moving.drain(..).chain(self.left.drain(..).map(|f| f.id));
        ids.for_each(|id| self.run.abort(id, ErrorKind::Unavailable));
        let handed = std::mem::take(&mut self.slots).into_iter().map(|(_, r)| r);
        let runs = std::mem::take(&mut self.into).into_iter().chain(handed);
        runs.for_each(|r| self.give(r));
    }
}

/// A run of slots and the blocks that go there.
struct Writing {
    extent: Arc<Extent>,
    first: u32,
    blocks: Vec<Moving>,
}

impl Writing {
    /// Takes the records of its slots away, where there may be any.
    fn clear_records(&self) -> io::Result<()> {
        let first = Extent::place(self.first);
        let end = first + u32::try_from(self.blocks.len()).unwrap_or(0);
        if first >= self.extent.fresh_from.fetch_max(end, Ordering::Relaxed) {
            return Ok(());
        }
        let zeros = vec![0; self.blocks.len() * RECORD_BYTES];
        write_all_at(&*self.extent.table, &zeros, Header::record_at(first))
    }

    /// Writes block by block through the page cache.
    fn write_cached(&self, disk: &dyn Disk) -> io::Result<()> {
        let file = self.extent.data.file(disk, false)?;
        let header = &self.extent.header;
        self.blocks
            .iter()
            .zip(Extent::place(self.first)..)
            .try_for_each(|(m, place)| write_all_at(file, &m.slot, header.slot_at(place)))
    }
}

impl StoreRun {
    /// Stores `units`.
    pub(crate) fn store_packed(&self, pack: &Pack, units: Range<usize>, worker: &mut Worker) {
        let s = &*self.shared;
        let mut claims = Claims {
            run: self,
            pack,
            left: VecDeque::with_capacity(units.len()),
            slots: VecDeque::new(),
            moving: Vec::new(),
            into: Vec::new(),
        };
        let coming = self.fps.get(units.clone()).unwrap_or_default();
        lock(&s.core).index.warm_places(coming.iter().copied());
        for unit in self.progress.start_all(units, s.clock.now()) {
            match self.begin_packed(pack, unit) {
                Begin::Write(id) => claims.left.push_back(Fresh { unit, id }),
                Begin::Present => self.finish(unit, BlockOutcome::Present),
                Begin::Joined => self.leave(unit),
                Begin::File => self.store_file(unit, &mut worker.scratch),
                Begin::Refused(kind) => self.finish(unit, BlockOutcome::Failed(kind)),
            }
        }
        while !claims.left.is_empty() {
            let n = u32::try_from(claims.left.len()).unwrap_or(u32::MAX);
            if let Err(no) = s.take_slots(pack, n, self.req, &mut claims.slots) {
                let blocks = claims.left.len() as u64;
                let kind = match no {
                    NoSlots::Room(no) => {
                        lock(&s.core).stats.refused(no.0, blocks);
                        no.kind()
                    }
                    NoSlots::Disk(e) => self.not_written(&e, blocks),
                };
                while let Some(f) = claims.left.pop_front() {
                    self.abort(f.id, kind);
                    self.finish(f.unit, BlockOutcome::Failed(kind));
                }
                break;
            }
            self.store_runs(pack, &mut claims, &mut *worker.engine);
            claims.moving.clear();
        }
    }

    /// Looks the block up and reserves its entry.
    fn begin_packed(&self, pack: &Pack, unit: usize) -> Begin {
        let s = &*self.shared;
        let (Some(key), Some(&fp)) = (self.keys.get(unit), self.fps.get(unit)) else {
            return Begin::Refused(ErrorKind::Invalid);
        };
        if !self.fits(unit) {
            return Begin::Refused(ErrorKind::Invalid);
        }
        let mut freed = Vec::new();
        let begun = {
            let mut core = lock(&s.core);
            if core.closed {
                return Begin::Refused(ErrorKind::Closed);
            }
            if let Some(id) = core.index.find(fp) {
                let packed = core.index.packed(id).is_some();
                match core.index.state(id) {
                    State::Ready if packed => {
                        core.stats.present_blocks += 1;
                        return Begin::Present;
                    }
                    State::Writing => {
                        let waits = self.wait_for(unit);
                        core.waiters.entry(id).or_default().extend(waits);
                        return Begin::Joined;
                    }
                    // who still reads what is bad there keeps its slot until then
                    State::Bad if packed => {
                        core.packed.remove(id);
                        core.drop_packed(id, EvictReason::Corrupt, pack.slot_bytes, &mut freed);
                    }
                    State::Free | State::Dead => {}
                    _ => return Begin::File,
                }
            }
            if key.as_bytes().len() > MAX_PACKED_KEY {
                Begin::File
            } else {
                match core.index.insert_packed(fp, State::Writing, u32::MAX, 0) {
                    Some(id) => Begin::Write(id),
                    None => {
                        core.stats.refused(RefuseReason::NoRoom, 1);
                        Begin::Refused(ErrorKind::Full)
                    }
                }
            }
        };
        pack.give(&mut freed);
        begun
    }

    /// Writes the next blocks of `claims` into its slots.
    fn store_runs(&self, pack: &Pack, claims: &mut Claims<'_>, engine: &mut dyn Engine) {
        let s = &*self.shared;
        let mut writing: Vec<Writing> = Vec::with_capacity(claims.slots.len());
        while let Some((extent, run)) = claims.slots.pop_front() {
            claims.into.push(run);
            let w = self.fill_run(extent, run, claims);
            if !w.blocks.is_empty() {
                writing.push(w);
            }
        }
        if writing.is_empty() {
            return;
        }
        self.progress.begin_io(s.clock.now());
        let cleared: Vec<_> = writing.iter().map(Writing::clear_records).collect();
        let written = self.write_slots(&writing, cleared, engine);
        let published: Vec<_> = writing
            .iter()
            .zip(written)
            .map(|(w, r)| {
                r.and_then(|()| self.progress.check())
                    .and_then(|()| self.write_records(pack, w))
            })
            .collect();
        let good: usize = writing
            .iter()
            .zip(&published)
            .filter(|(_, r)| r.is_ok())
            .map(|(w, _)| w.blocks.len())
            .sum();
        self.progress
            .end_io(s.clock.now(), good as u64 * s.params.block_len as u64);
        claims.into.clear();
        for (w, published) in writing.drain(..).zip(published) {
            let first = w.first;
            // no I/O touches their memory any more (I5)
            let blocks: Vec<(usize, Id, u128)> =
                w.blocks.into_iter().map(|m| (m.unit, m.id, m.sum)).collect();
            match published {
                Ok(()) => self.settle_run(first, &blocks),
                Err(e) => {
                    pack.give(&mut (first..).take(blocks.len()).collect::<Vec<u32>>());
                    let kind = self.not_written(&e, blocks.len() as u64);
                    for (unit, id, _) in blocks {
                        self.abort(id, kind);
                        self.finish(unit, BlockOutcome::Failed(kind));
                    }
                }
            }
        }
    }

    /// Chooses the next blocks for a run of slots, with their checksums; gives back slots that are too many.
    fn fill_run(&self, extent: Arc<Extent>, run: SlotRun, claims: &mut Claims<'_>) -> Writing {
        let mut blocks: Vec<Moving> = Vec::with_capacity(run.len as usize);
        while blocks.len() < run.len as usize
            && let Some(f) = claims.left.pop_front()
        {
            let slot = self.slots.get(f.unit).and_then(|s| lock(s).take());
            let summed = slot.and_then(|slot| {
                let sum = self.progress.touch(|| block_sum(&slot)).ok()?;
                Some((slot, sum))
            });
            match summed {
                Some((slot, sum)) => {
                    claims.moving.push(f.id);
                    blocks.push(Moving {
                        unit: f.unit,
                        id: f.id,
                        slot,
                        sum,
                    });
                }
                // given up before
                None => {
                    self.abort(f.id, ErrorKind::Unavailable);
                    self.finish(f.unit, BlockOutcome::Failed(ErrorKind::Unavailable));
                }
            }
        }
        let used = u32::try_from(blocks.len()).unwrap_or(run.len);
        if let Some(last) = claims.into.last_mut() {
            last.len = used;
        }
        claims.give(SlotRun {
            first: run.first + used,
            len: run.len - used,
        });
        Writing {
            extent,
            first: run.first,
            blocks,
        }
    }

    /// Writes the blocks of all runs whose records were cleared; one answer each.
    fn write_slots(
        &self,
        writing: &[Writing],
        cleared: Vec<io::Result<()>>,
        engine: &mut dyn Engine,
    ) -> Vec<io::Result<()>> {
        let disk = &*self.shared.disk;
        let mut batch = Vec::with_capacity(writing.len());
        let mut answers = Vec::with_capacity(writing.len());
        for (w, cleared) in writing.iter().zip(cleared) {
            let header = &w.extent.header;
            let padded = header.block_len != u64::from(header.slot_bytes);
            let aligned = w.blocks.iter().all(|m| is_aligned(&m.slot));
            let file = cleared.and_then(|()| w.extent.data.file(disk, aligned));
            answers.push(match file {
                Ok(file) if !padded => {
                    let mut run = WriteRun::new(file, header.slot_at(Extent::place(w.first)));
                    w.blocks.iter().for_each(|m| run.push(&m.slot));
                    batch.push(run);
                    None
                }
                Ok(_) => Some(w.write_cached(disk)),
                Err(e) => Some(Err(e)),
            });
        }
        engine.write(&mut batch);
        let mut ended = batch.into_iter().map(Run::into_whole);
        let all = writing.iter().zip(answers);
        all.map(|(w, answer)| match answer.or_else(|| ended.next()) {
            Some(Err(e)) if classify(&e) == IoClass::Invalid => w.write_cached(disk),
            Some(r) => r,
            None => Err(io::ErrorKind::Other.into()),
        })
        .collect()
    }

    fn write_records(&self, pack: &Pack, w: &Writing) -> io::Result<()> {
        let sequence = pack.next_sequence(w.blocks.len() as u64);
        let written_at = u32::try_from(self.shared.clock.unix_seconds()).unwrap_or(u32::MAX);
        let first = Extent::place(w.first);
        let mut table = vec![0; w.blocks.len() * RECORD_BYTES];
        let (records, _) = table.as_chunks_mut::<RECORD_BYTES>();
        for (((out, m), place), sequence) in records.iter_mut().zip(&w.blocks).zip(first..).zip(sequence..) {
            let Some(key) = self.keys.get(m.unit) else {
                continue;
            };
            let record = Record {
                key: key.clone(),
                written_at,
                sequence,
                sum: m.sum,
            };
            record.encode(w.extent.header.nonce, place, out);
        }
        write_all_at(&*w.extent.table, &table, Header::record_at(first))?;
        let Err(late) = self.progress.check() else {
            return Ok(());
        };
        // reported failed while this hung: taken back; where that fails it stays, and is what was to be stored
        table.fill(0);
        match write_all_at(&*w.extent.table, &table, Header::record_at(first)) {
            Ok(()) => Err(late),
            Err(_) => Ok(()),
        }
    }

    /// Makes blocks that were written hits.
    fn settle_run(&self, first: u32, blocks: &[(usize, Id, u128)]) {
        let s = &*self.shared;
        let mut waiters = Vec::new();
        {
            let mut core = lock(&s.core);
            for (&(unit, id, sum), slot) in blocks.iter().zip(first..) {
                let (Some(key), Some(&fp)) = (self.keys.get(unit), self.fps.get(unit)) else {
                    continue;
                };
                core.index.set_packed(id, slot, tag(sum, key));
                core.index.set_state(id, State::Ready);
                core.index.set_key(id, key);
                core.packed.insert(id, fp, 1, self.req.tag());
                core.stats.blocks += 1;
                core.stats.stored_blocks += 1;
                core.stats.stored_bytes += s.params.block_len as u64;
                core.events.stored(key);
                waiters.extend(core.waiters.remove(&id).into_iter().flatten());
            }
        }
        for w in waiters {
            w(BlockOutcome::Present);
        }
        let ends: Vec<_> = blocks
            .iter()
            .map(|&(unit, ..)| (unit, BlockOutcome::Stored))
            .collect();
        let end = self.progress.finish_all(&ends);
        s.end_units(end, Direction::Store, self.req, &self.fps);
    }
}
