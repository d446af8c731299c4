//! Blocks into slots: written, made durable and read back, and only then their files go.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    path::PathBuf,
};

use foldhash::fast::FixedState;

use super::{
    packing::{Block, Packing},
    place::{Open, OpenExtents, runs},
    work::Work,
};
use crate::{
    admin::extents::map_parallel,
    fs::packed::format::{Header, RECORD_BYTES, Record},
    io::disk::write_all_at,
};

impl Work<'_> {
    /// Writes blocks into free slots, then their records; when both are durable, and read back as they should be, the
    /// files go.
    pub(super) fn write_batch(&mut self, p: &mut Packing<'_>, blocks: Vec<Block>) -> io::Result<()> {
        let (present, extents, blocks) = self.already_packed(p, blocks)?;
        let mut placed: Vec<(usize, u32, Block)> = Vec::with_capacity(blocks.len());
        for b in blocks {
            if let Some((extent, place)) = p.free.pop() {
                placed.push((extent, place, b));
            }
        }
        placed.sort_by_key(|b| b.0);
        for part in placed.chunk_by(|a, b| a.0 == b.0) {
            let Some(open) = part.first().and_then(|f| p.place.open.get(f.0)) else {
                continue;
            };
            let before = open.allocated();
            let written = write_slots(open, part, &mut p.sequence).and_then(|()| open.sync());
            self.room.change(before, open.allocated());
            written?;
        }
        // a run before this one may have been killed before it made them durable
        for open in extents.into_iter().filter_map(|n| p.place.open.get(n)) {
            open.sync()?;
        }
        if std::mem::take(&mut p.made) {
            self.sync()?;
        }
        let mut gone = present;
        gone.extend(self.read_back(p, placed)?);
        self.remove_files(&gone);
        Ok(())
    }

    /// Sorts blocks by whether a slot holds them too, which is read: those in both places, their extents, and those to
    /// be written. A record whose slot does not hold its block goes, and the file takes its place.
    fn already_packed(
        &self,
        p: &mut Packing<'_>,
        blocks: Vec<Block>,
    ) -> io::Result<(Vec<Block>, BTreeSet<usize>, Vec<Block>)> {
        let place = &p.place;
        let of = |b: &Block| p.packed.get(&b.key.fingerprint(p.t.seed));
        let copies = map_parallel(self.admin.threads, &blocks, |b| copy_of(place, of(b), b));
        let (mut present, mut extents, mut rest) = (Vec::new(), BTreeSet::new(), Vec::new());
        for (b, copy) in blocks.into_iter().zip(copies) {
            for &n in &copy.bad {
                let Some(at) = p.place.records.get(n) else {
                    continue;
                };
                if let Some(open) = p.place.open.get(at.extent) {
                    open.forget(at.place, 1)?;
                    p.free.push((at.extent, at.place));
                }
            }
            p.t.report.rescued += u64::from(!copy.bad.is_empty());
            if let Some(of) = p.packed.get_mut(&b.key.fingerprint(p.t.seed)) {
                of.retain(|n| !copy.bad.contains(n));
            }
            match copy.found {
                Ok(Some((extent, sum))) if sum == b.sum => {
                    p.t.report.present += 1;
                    extents.insert(extent);
                    present.push(b);
                }
                Ok(Some(_)) => p.t.report.kept += 1,
                Ok(None) => rest.push(b),
                Err(e) => self.failed(&b.path, e),
            }
        }
        Ok((present, extents, rest))
    }

    /// Reads what was written; returns the blocks whose slots hold them. The others stay in their files.
    fn read_back(&self, p: &mut Packing<'_>, placed: Vec<(usize, u32, Block)>) -> io::Result<Vec<Block>> {
        let open = &p.place.open;
        let right = map_parallel(self.admin.threads, &placed, |(extent, place, b)| {
            let open = open.get(*extent).ok_or(io::ErrorKind::InvalidInput)?;
            open.holds(*place, &b.key, b.sum)
        });
        let mut out = Vec::with_capacity(placed.len());
        for ((extent, place, b), right) in placed.into_iter().zip(right) {
            match right {
                Ok(true) => {
                    p.t.report.moved += 1;
                    p.t.report.unverified += u64::from(!b.trailer);
                    out.push(b);
                }
                Ok(false) => {
                    self.failed(
                        &b.path,
                        "its slot reads back otherwise than it was written: the file stays",
                    );
                    if let Some(open) = open.get(extent) {
                        open.forget(place, 1)?;
                    }
                }
                Err(e) => self.failed(&b.path, e),
            }
        }
        Ok(out)
    }

    /// Removes the files of blocks that are packed, and directories that become empty.
    fn remove_files(&mut self, gone: &[Block]) {
        let removed = map_parallel(self.admin.threads, gone, |b| {
            let removed = self.admin.disk.remove_file(&b.path);
            if let Err(e) = removed {
                self.failed(&b.path, e);
                return 0;
            }
            b.allocated
        });
        let mut bytes: u64 = removed.iter().sum();
        let dirs: BTreeSet<&PathBuf> = gone.iter().map(|b| &b.dir).collect();
        for d in dirs {
            bytes += self.admin.remove_empty(d).bytes;
        }
        self.room.change(bytes, 0);
    }
}

/// What slots hold of a key.
struct Copy {
    /// Records, by number, whose slots do not hold their block.
    bad: Vec<usize>,
    /// The extent that holds it, and its sum.
    found: io::Result<Option<(usize, u128)>>,
}

/// Reads what slots hold of the key of `b`: the latest record that has its block counts.
fn copy_of(place: &OpenExtents, records: Option<&Vec<usize>>, b: &Block) -> Copy {
    let mut bad = Vec::new();
    for &n in records.into_iter().flatten() {
        let Some(at) = place.records.get(n).filter(|at| at.record.key == b.key) else {
            continue;
        };
        let open = place.open.get(at.extent).ok_or(io::ErrorKind::InvalidInput);
        let found = match open
            .map_err(io::Error::from)
            .and_then(|o| o.block(at.place, at.record.sum))
        {
            Ok(None) => {
                bad.push(n);
                continue;
            }
            Ok(Some(_)) => Ok(Some((at.extent, at.record.sum))),
            Err(e) => Err(e),
        };
        return Copy { bad, found };
    }
    Copy { bad, found: Ok(None) }
}

/// Writes the blocks of one extent in the order of their slots, then their records in runs.
fn write_slots(open: &Open, part: &[(usize, u32, Block)], sequence: &mut u64) -> io::Result<()> {
    let by_place: BTreeMap<u32, &Block> = part.iter().map(|(_, at, b)| (*at, b)).collect();
    let mut numbers: HashMap<u32, u64, FixedState> = HashMap::default();
    for (_, place, _) in part {
        *sequence = sequence.saturating_sub(1);
        numbers.insert(*place, *sequence);
    }
    let runs = runs(by_place.keys().copied());
    for (&at, b) in &by_place {
        write_all_at(&*open.data, &b.bytes, open.header.slot_at(at))?;
    }
    for &(first, len) in &runs {
        let mut records = vec![0; len as usize * RECORD_BYTES];
        let (parts, _) = records.as_chunks_mut::<RECORD_BYTES>();
        for (out, at) in parts.iter_mut().zip(first..) {
            if let (Some(b), Some(&sequence)) = (by_place.get(&at), numbers.get(&at)) {
                let record = Record {
                    key: b.key.clone(),
                    written_at: b.written_at,
                    sequence,
                    sum: b.sum,
                };
                record.encode(open.header.nonce, at, out);
            }
        }
        write_all_at(&*open.table, &records, Header::record_at(first))?;
    }
    Ok(())
}
