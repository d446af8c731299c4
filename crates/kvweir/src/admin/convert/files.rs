//! Extents into files. What a slot held is given back to the file system as soon as its file is durable, so that no
//! more room is needed than for the blocks between two syncs.

use std::{
    cmp::Reverse,
    collections::{BTreeSet, VecDeque},
    io,
    path::{Path, PathBuf},
};

use super::{
    place::{At, OpenExtents, runs},
    work::{Target, Work},
};
use crate::{
    admin::{check::whole_block, extents::map_parallel},
    error::{IoClass, classify},
    fs::{files::cost::write_cost, packed::format::Record},
    io::{disk::write_full, round_up},
    root::{
        names::{Location, leaf_dir},
        trailer::{TRAILER_BYTES, Trailer, encode},
    },
    sync::atomic::Ordering,
};

/// Blocks dropped at once where there is no room.
const DROP_AT_ONCE: usize = 16;
/// Blocks for which there shall be room at once, if they take less than this part of the bound.
const FEW: usize = 64;
const PART: u64 = 128;

/// A block to be moved, and the time that its file gets.
struct Item {
    at: At,
    mtime_ns: u64,
}

/// What became of a block.
enum Done {
    /// Its file takes so many bytes, and took so many before.
    Written(u64, u64),
    Present,
    Damaged,
    /// It stays where it is.
    Failed,
}

impl Work<'_> {
    pub(super) fn unpack(&mut self, t: &mut Target) -> io::Result<()> {
        let mut place = self.extents(t)?;
        let records = std::mem::take(&mut place.records);
        let (items, stale) = self.in_order(t, &place, records);
        *self.of_blocks.get_mut() += items.len() as u64;
        let slot_bytes = place.open.first().map_or(1, |o| u64::from(o.header.slot_bytes));
        let len = usize::try_from(t.len).map_err(io::Error::other)?;
        let cost = write_cost(len, self.unit);
        let growth = round_up(t.len + TRAILER_BYTES as u64, self.unit).saturating_sub(slot_bytes);
        let bound = self.room.used() + self.room.left();
        let least = usize::try_from(bound / PART / cost).unwrap_or(1).clamp(1, FEW);
        if !self.apply {
            self.plan_files(t, &place, items.len() as u64, cost);
            return Ok(());
        }
        // slots of evicted blocks and those that hold nothing come first
        self.forget(&place, &stale)?;
        let gives_back = self.give_free_back(&place)?;
        let mut items: VecDeque<Item> = items.into();
        while !items.is_empty() {
            self.still_runs()?;
            let fits = usize::try_from(self.room.left() / cost).unwrap_or(usize::MAX);
            // one block at a time would be one sync per block; only what must go anyway goes for that
            let doomed = (items.len() as u64).saturating_mul(growth) > self.room.left();
            if fits == 0 || doomed && gives_back && fits < least.min(items.len()) {
                if !gives_back {
                    self.failed(
                        &t.dir.clone(),
                        "no room within the bound, and this file system cannot give back parts of an extent: the \
                         rest stays packed; raise the bound",
                    );
                    return Ok(());
                }
                let n = DROP_AT_ONCE.min(items.len());
                let oldest: Vec<Item> = items.drain(..n).collect();
                self.forget(&place, &oldest)?;
                t.report.dropped += n as u64;
                self.done(n as u64);
                continue;
            }
            let n = Self::batch(slot_bytes).min(fits).min(items.len());
            let mut batch: Vec<Item> = items.drain(items.len() - n..).collect();
            batch.sort_unstable_by_key(|i| (i.at.extent, i.at.place));
            self.move_batch(t, &place, batch)?;
        }
        self.remove_empty_extents(t, &place)
    }

    fn plan_files(&mut self, t: &mut Target, place: &OpenExtents, blocks: u64, cost: u64) {
        let extents: u64 = place.open.iter().map(super::place::Open::allocated).sum();
        self.room.change(extents, 0);
        // of the slack, as a rule a directory and a half per block
        let a_file = cost.saturating_sub(6 * self.unit);
        let fit = (self.room.left() / a_file.max(1)).min(blocks);
        t.report.moved = fit;
        t.report.dropped = blocks - fit;
        t.report.extents = place.open.len() as u64;
        self.room.change(0, fit * a_file);
    }

    /// Takes records away and gives their slots back.
    fn forget(&mut self, place: &OpenExtents, items: &[Item]) -> io::Result<()> {
        for (n, open) in place.open.iter().enumerate() {
            let mine = items.iter().filter(|i| i.at.extent == n).map(|i| i.at.place);
            let runs = runs(mine);
            if runs.is_empty() {
                continue;
            }
            let before = open.allocated();
            for &(first, len) in &runs {
                open.forget(first, len)?;
            }
            for (first, len) in runs {
                open.give_back(first, len)?;
            }
            self.room.change(before, open.allocated());
        }
        Ok(())
    }

    /// Gives slots without a record back; returns whether the file system can.
    fn give_free_back(&mut self, place: &OpenExtents) -> io::Result<bool> {
        let mut can = true;
        for (n, open) in place.open.iter().enumerate() {
            let before = open.allocated();
            let free = place.free.iter().filter(|f| f.0 == n).map(|f| f.1);
            for (first, len) in runs(free) {
                can &= open.give_back(first, len)?;
            }
            self.room.change(before, open.allocated());
        }
        Ok(can)
    }

    fn move_batch(&mut self, t: &mut Target, place: &OpenExtents, batch: Vec<Item>) -> io::Result<()> {
        let mut dirs: BTreeSet<PathBuf> = BTreeSet::from([t.dir.clone()]);
        for i in &batch {
            let at = Location::of(&i.at.record.key);
            let dir = leaf_dir(&t.dir, at.prefix, at.leaf);
            dirs.extend(dir.parent().map(Path::to_owned));
            dirs.insert(dir);
        }
        let before = self.dirs_bytes(dirs.iter().map(|d| &**d));
        let done = map_parallel(self.admin.threads, &batch, |item| {
            self.move_one(t, place, item).unwrap_or_else(|e| {
                let key = &item.at.record.key;
                self.failed(&t.dir.join(format!("key {key}")), e);
                Done::Failed
            })
        });
        let now = self.dirs_bytes(dirs.iter().map(|d| &**d));
        self.room.change(before, now);
        self.sync()?;
        let mut leave = Vec::with_capacity(batch.len());
        for (item, done) in batch.into_iter().zip(done) {
            match done {
                Done::Written(bytes, replaced) => {
                    self.room.change(replaced, bytes);
                    t.report.moved += 1;
                }
                Done::Present => t.report.present += 1,
                Done::Damaged => t.report.damaged += 1,
                Done::Failed => continue,
            }
            leave.push(item);
        }
        self.forget(place, &leave)?;
        self.done(leave.len() as u64);
        Ok(())
    }

    /// Writes one block's file.
    fn move_one(&self, t: &Target, place: &OpenExtents, item: &Item) -> io::Result<Done> {
        let open = place
            .open
            .get(item.at.extent)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let record: &Record = &item.at.record;
        let block = open.block(item.at.place, record.sum)?;
        self.bytes.fetch_add(t.len, Ordering::Relaxed);
        let at = Location::of(&record.key);
        let dir = leaf_dir(&t.dir, at.prefix, at.leaf);
        let to = dir.join(at.file_name());
        let disk = &*self.admin.disk;
        let there = match disk.stat(&to) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => None,
            r => Some(r?),
        };
        let is_it = |f: &Trailer| {
            let same = f.key == record.key && f.payload_sum == record.sum;
            same && f.namespace == t.digest && f.block_len == t.len
        };
        if there.is_some() && whole_block(disk, &to, false)?.is_some_and(|f| is_it(&f)) {
            return Ok(Done::Present);
        }
        let Some(block) = block else {
            return Ok(Done::Damaged);
        };
        let mut page = [0; TRAILER_BYTES];
        let trailer = Trailer {
            key: record.key.clone(),
            block_len: t.len,
            payload_sum: record.sum,
            namespace: t.digest,
            written_at: u64::from(record.written_at),
        };
        encode(&trailer, &mut page);
        self.make_dirs(&dir)?;
        let (temp, f) = self.temps.create(disk, &dir, &at.file_name(), false)?;
        let write = || {
            write_full(&*f, &block, &page)?;
            // the order of eviction after a start; without it the block only seems young
            let _ = f.set_modified(item.mtime_ns);
            let bytes = f.stat()?.allocated;
            if !whole_block(disk, &temp, false)?.is_some_and(|f| is_it(&f)) {
                return Err(io::Error::other("what was written reads back otherwise"));
            }
            disk.rename(&temp, &to)?;
            Ok(bytes)
        };
        match write() {
            Ok(bytes) => Ok(Done::Written(bytes, there.map_or(0, |s| s.allocated))),
            Err(e) => {
                let _ = disk.remove_file(&temp);
                Err(e)
            }
        }
    }

    /// Removes extents without a record, and their directory with the last.
    fn remove_empty_extents(&mut self, t: &mut Target, place: &OpenExtents) -> io::Result<()> {
        for open in &place.open {
            if !open.is_empty()? {
                continue;
            }
            let bytes = open.allocated();
            for path in &open.paths {
                match self.admin.disk.remove_file(path) {
                    Err(e) if classify(&e) != IoClass::Gone => return Err(e),
                    _ => {}
                }
            }
            let [path, _] = &open.paths;
            let dirs = path.parent().map_or(0, |d| self.admin.remove_empty(d).bytes);
            self.room.change(bytes + dirs, 0);
            t.report.extents += 1;
        }
        Ok(())
    }

    /// For each key the latest record that has its block, oldest first, with a time that keeps this order; and the
    /// other records. A plan takes the latest, unread.
    fn in_order(&self, t: &Target, place: &OpenExtents, mut records: Vec<At>) -> (Vec<Item>, Vec<Item>) {
        let order = |r: &At| (r.record.key.fingerprint(t.seed), Reverse(r.record.sequence));
        records.sort_by_cached_key(order);
        let (mut items, mut stale) = (Vec::with_capacity(records.len()), Vec::new());
        let mut records = records.into_iter().peekable();
        while let Some(first) = records.next() {
            let mut of_key = vec![first];
            while let Some(next) = records.next_if(|n| of_key.iter().any(|o| o.record.key == n.record.key)) {
                of_key.push(next);
            }
            let chosen = match of_key.len() {
                1 => 0,
                _ if !self.apply => 0,
                _ => match first_good(place, &of_key) {
                    Ok(n) => n,
                    Err(e) => {
                        let key = of_key.first().map(|o| o.record.key.to_string());
                        self.failed(&t.dir.join(format!("key {}", key.unwrap_or_default())), e);
                        continue;
                    }
                },
            };
            for (n, at) in of_key.into_iter().enumerate() {
                let list = if n == chosen { &mut items } else { &mut stale };
                list.push(Item { at, mtime_ns: 0 });
            }
        }
        items.sort_unstable_by_key(|i: &Item| i.at.record.sequence);
        let mut last = 0;
        for i in &mut items {
            let written = u64::from(i.at.record.written_at) * 1_000_000_000;
            last = written.max(last + 1);
            i.mtime_ns = last;
        }
        (items, stale)
    }
}

/// The first of the records whose slot holds its block; the first of all where none does.
fn first_good(place: &OpenExtents, records: &[At]) -> io::Result<usize> {
    for (n, at) in records.iter().enumerate() {
        let open = place.open.get(at.extent).ok_or(io::ErrorKind::InvalidInput)?;
        if open.block(at.place, at.record.sum)?.is_some() {
            return Ok(n);
        }
    }
    Ok(0)
}
