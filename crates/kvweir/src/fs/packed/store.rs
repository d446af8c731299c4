//! Storing packed blocks: the units of a job that a worker took, together. Per block: present or being written by
//! somebody else? then nothing is written. The others get slots, in runs; of each run the old records are taken away,
//! the blocks written with one operation, and their new records with one more; only then they are hits (I2, I6).

use std::{collections::VecDeque, io, sync::Arc};

use super::{
    Pack,
    extent::Extent,
    format::{Header, RECORD_BYTES, Record, block_sum, tag},
    free::SlotRun,
    room::NoSlots,
};
use crate::{
    error::{ErrorKind, IoClass, classify},
    fs::{
        body::SlotBody,
        space::Space,
        written::{Fresh, Placed, Written},
    },
    io::{
        Disk, SlotRead,
        disk::write_all_at,
        engine::{Engine, Run, WriteRun},
        is_aligned,
    },
    jobs::StoreRun,
    sync::atomic::Ordering,
};

/// A block of a run on its way.
struct Moving {
    fresh: Fresh,
    slot: SlotRead,
    sum: u128,
}

/// Slots that were handed out and hold no block yet. Given back when dropped, which also a panic does.
struct Slots<'a> {
    pack: &'a Pack,
    handed: VecDeque<(Arc<Extent>, SlotRun)>,
    /// Slots that are being written.
    into: Vec<SlotRun>,
}

impl Slots<'_> {
    /// Gives unused slots back.
    fn give(&self, run: SlotRun) {
        let mut slots: Vec<u32> = (run.first..run.first + run.len).collect();
        self.pack.give(&mut slots);
    }
}

impl Drop for Slots<'_> {
    fn drop(&mut self) {
        let handed = std::mem::take(&mut self.handed).into_iter().map(|(_, r)| r);
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

/// A batch of blocks on its way into slots.
struct Packing<'a> {
    pack: &'a Pack,
    s: &'a Space,
    run: &'a StoreRun<Space>,
}

/// Writes blocks into slots.
pub(super) fn store<'s>(
    pack: &Pack,
    s: &'s Space,
    run: &StoreRun<Space>,
    fresh: Vec<Fresh>,
    engine: &mut dyn Engine,
) -> Vec<Written<'s>> {
    let packing = Packing { pack, s, run };
    let mut left = VecDeque::from(fresh);
    let mut written = Vec::with_capacity(left.len());
    let mut slots = Slots {
        pack,
        handed: VecDeque::new(),
        into: Vec::new(),
    };
    while !left.is_empty() {
        let n = u32::try_from(left.len()).unwrap_or(u32::MAX);
        if let Err(no) = pack.take_slots(s, n, run.req, &mut slots.handed) {
            let blocks = left.len() as u64;
            let kind = match no {
                NoSlots::Room(no) => {
                    run.count_refused(no.0, blocks);
                    no.kind()
                }
                NoSlots::Disk(e) => s.not_written(run, &e, blocks),
            };
            written.extend(left.drain(..).map(|f| failed(f, kind)));
            break;
        }
        packing.store_runs(&mut left, &mut slots, engine, &mut written);
    }
    written
}

fn failed<'s>(f: Fresh, kind: ErrorKind) -> Written<'s> {
    Written {
        unit: f.unit,
        id: f.id,
        end: Err(kind),
    }
}

impl Packing<'_> {
    /// Writes the next blocks of `left` into the slots that were handed out.
    fn store_runs<'s>(
        &self,
        left: &mut VecDeque<Fresh>,
        slots: &mut Slots<'_>,
        engine: &mut dyn Engine,
        written: &mut Vec<Written<'s>>,
    ) {
        let s = self.s;
        let mut writing: Vec<Writing> = Vec::with_capacity(slots.handed.len());
        while let Some((extent, run)) = slots.handed.pop_front() {
            slots.into.push(run);
            let w = self.fill_run(extent, run, left, slots, written);
            if !w.blocks.is_empty() {
                writing.push(w);
            }
        }
        if writing.is_empty() {
            return;
        }
        let progress = &self.run.progress;
        progress.begin_io(s.clock.now());
        let cleared: Vec<_> = writing.iter().map(Writing::clear_records).collect();
        let came = self.write_slots(&writing, cleared, engine);
        let published: Vec<_> = writing
            .iter()
            .zip(came)
            .map(|(w, r)| {
                r.and_then(|()| progress.check())
                    .and_then(|()| self.write_records(w))
            })
            .collect();
        let good: usize = writing
            .iter()
            .zip(&published)
            .filter(|(_, r)| r.is_ok())
            .map(|(w, _)| w.blocks.len())
            .sum();
        let block_len = s.params.block_len as u64;
        progress.end_io(s.clock.now(), good as u64 * block_len);
        slots.into.clear();
        for (w, published) in writing.into_iter().zip(published) {
            let first = w.first;
            let kind = published.err().map(|e| {
                self.pack
                    .give(&mut (first..).take(w.blocks.len()).collect::<Vec<u32>>());
                s.not_written(self.run, &e, w.blocks.len() as u64)
            });
            // no I/O touches their memory any more (I5)
            for (m, slot) in w.blocks.into_iter().zip(first..) {
                let key = self.run.keys.get(m.fresh.unit);
                let end = match (kind, key) {
                    (None, Some(key)) => Ok(Placed {
                        body: SlotBody {
                            store: self.pack.store,
                            slot,
                            tag: tag(m.sum, key),
                        }
                        .body(),
                        bytes: block_len,
                        bill: None,
                    }),
                    (kind, _) => Err(kind.unwrap_or(ErrorKind::Invalid)),
                };
                written.push(Written {
                    unit: m.fresh.unit,
                    id: m.fresh.id,
                    end,
                });
            }
        }
    }

    /// Chooses the next blocks for a run of slots, with their checksums; gives back slots that are too many.
    fn fill_run(
        &self,
        extent: Arc<Extent>,
        run: SlotRun,
        left: &mut VecDeque<Fresh>,
        slots: &mut Slots<'_>,
        written: &mut Vec<Written<'_>>,
    ) -> Writing {
        let mut blocks: Vec<Moving> = Vec::with_capacity(run.len as usize);
        while blocks.len() < run.len as usize
            && let Some(f) = left.pop_front()
        {
            let summed = self.run.take_slot(f.unit).and_then(|slot| {
                let sum = self.run.progress.with_memory(|| block_sum(&slot)).ok()?;
                Some((slot, sum))
            });
            match summed {
                Some((slot, sum)) => blocks.push(Moving { fresh: f, slot, sum }),
                // given up before
                None => written.push(failed(f, ErrorKind::Unavailable)),
            }
        }
        let used = u32::try_from(blocks.len()).unwrap_or(run.len);
        if let Some(last) = slots.into.last_mut() {
            last.len = used;
        }
        slots.give(SlotRun {
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
        let disk = &*self.s.root.disk;
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

    fn write_records(&self, w: &Writing) -> io::Result<()> {
        let sequence = self.pack.next_sequence(w.blocks.len() as u64);
        let written_at = u32::try_from(self.s.clock.unix_seconds()).unwrap_or(u32::MAX);
        let first = Extent::place(w.first);
        let mut table = vec![0; w.blocks.len() * RECORD_BYTES];
        let (records, _) = table.as_chunks_mut::<RECORD_BYTES>();
        for (((out, m), place), sequence) in records.iter_mut().zip(&w.blocks).zip(first..).zip(sequence..) {
            let Some(key) = self.run.keys.get(m.fresh.unit) else {
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
        let Err(late) = self.run.progress.check() else {
            return Ok(());
        };
        // reported failed while this hung: taken back; where that fails it stays, and is what was to be stored
        table.fill(0);
        match write_all_at(&*w.extent.table, &table, Header::record_at(first)) {
            Ok(()) => Err(late),
            Err(_) => Ok(()),
        }
    }
}
