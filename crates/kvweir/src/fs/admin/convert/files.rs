//! Extents into files. What a slot held is given back to the file system as soon as its file is durable, so that no
//! more room is needed than for the blocks between two syncs.

use std::{
    collections::{BTreeSet, HashSet, VecDeque},
    fs::File,
    io,
    path::{Path, PathBuf},
    time::{Duration, UNIX_EPOCH},
};

use foldhash::fast::FixedState;

use super::{
    Target, Work,
    place::{At, Place, runs},
};
use crate::{
    block::Fingerprint,
    error::{IoClass, classify},
    fs::{
        admin::{extents::map_parallel, survey::last_page},
        layout::{Location, leaf_dir, temp_name},
        shared::write_cost,
        trailer::{TRAILER_BYTES, Trailer, decode, encode},
    },
    io::{
        disk::{OpenMode, read_all_at, write_full},
        round_up,
    },
    pack::format::{Record, block_sum},
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
        let (items, stale) = in_order(std::mem::take(&mut place.records), t.seed);
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
            let fits = usize::try_from(self.room.left() / cost).unwrap_or(usize::MAX);
            // one block at a time would be one sync a block; only what must go anyway goes for that
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

    fn plan_files(&mut self, t: &mut Target, place: &Place, blocks: u64, cost: u64) {
        let extents: u64 = place.open.iter().map(super::place::Open::allocated).sum();
        self.room.change(extents, 0);
        // of the slack, a directory and a half a block as a rule
        let a_file = cost.saturating_sub(6 * self.unit);
        let fit = (self.room.left() / a_file.max(1)).min(blocks);
        t.report.moved = fit;
        t.report.dropped = blocks - fit;
        t.report.extents = place.open.len() as u64;
        self.room.change(0, fit * a_file);
    }

    /// Takes records away and gives their slots back.
    fn forget(&mut self, place: &Place, items: &[Item]) -> io::Result<()> {
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
    fn give_free_back(&mut self, place: &Place) -> io::Result<bool> {
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

    fn move_batch(&mut self, t: &mut Target, place: &Place, batch: Vec<Item>) -> io::Result<()> {
        let mut dirs: BTreeSet<PathBuf> = BTreeSet::from([t.dir.clone()]);
        for i in &batch {
            let at = Location::of(&i.at.record.key);
            let dir = leaf_dir(&t.dir, at.fan, at.leaf);
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
    fn move_one(&self, t: &Target, place: &Place, item: &Item) -> io::Result<Done> {
        let open = place
            .open
            .get(item.at.extent)
            .ok_or(io::ErrorKind::InvalidInput)?;
        let record: &Record = &item.at.record;
        let mut block = vec![0; usize::try_from(t.len).map_err(io::Error::other)?];
        let n = read_all_at(&*open.data, &mut block, open.header.slot_at(item.at.place))?;
        self.bytes.fetch_add(n as u64, Ordering::Relaxed);
        if n != block.len() || block_sum(&block) != record.sum {
            return Ok(Done::Damaged);
        }
        let at = Location::of(&record.key);
        let dir = leaf_dir(&t.dir, at.fan, at.leaf);
        let to = dir.join(at.file_name());
        let disk = &*self.admin.disk;
        let whole = t.len + TRAILER_BYTES as u64;
        let there = disk.stat(&to).ok();
        if there.is_some_and(|s| s.len == whole)
            && last_page(disk, &to, whole)
                .and_then(|p| decode(&p))
                .is_some_and(|r| {
                    r.key == record.key && r.payload_sum == record.sum && r.namespace == t.digest
                })
        {
            return Ok(Done::Present);
        }
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
        let n = self.temps.fetch_add(1, Ordering::Relaxed);
        let temp = dir.join(temp_name(&at.file_name(), n));
        let written = disk.open(&temp, OpenMode::CreateNew, false).and_then(|f| {
            let _ = f.try_lock();
            write_full(&*f, &block, &page)?;
            // the order of eviction after a start; without it the block only seems young
            let age = Duration::from_nanos(item.mtime_ns);
            let _ = File::open(&temp).and_then(|f| f.set_modified(UNIX_EPOCH + age));
            let bytes = f.stat()?.allocated;
            disk.rename(&temp, &to)?;
            Ok(bytes)
        });
        match written {
            Ok(bytes) => Ok(Done::Written(bytes, there.map_or(0, |s| s.allocated))),
            Err(e) => {
                let _ = disk.remove_file(&temp);
                Err(e)
            }
        }
    }

    /// Removes extents without a record, and their directory with the last.
    fn remove_empty_extents(&mut self, t: &mut Target, place: &Place) -> io::Result<()> {
        for open in &place.open {
            let mut empty = true;
            crate::fs::admin::extents::table(&*open.table, &open.header, &mut |_, _, slot| {
                empty &= !matches!(slot, crate::fs::admin::extents::Slot::Block(_));
            })?;
            if !empty {
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
}

/// The latest record of each key, oldest first, with a time that keeps this order; and the other records.
fn in_order(mut records: Vec<At>, seed: u64) -> (Vec<Item>, Vec<Item>) {
    let mut keys: HashSet<Fingerprint, FixedState> = HashSet::default();
    records.sort_unstable_by_key(|r| std::cmp::Reverse(r.record.sequence));
    let (mut items, mut stale) = (Vec::with_capacity(records.len()), Vec::new());
    for at in records {
        let new = keys.insert(at.record.key.fingerprint(seed));
        let list = if new { &mut items } else { &mut stale };
        list.push(Item { at, mtime_ns: 0 });
    }
    items.reverse();
    let mut last = 0;
    for i in &mut items {
        let written = u64::from(i.at.record.written_at) * 1_000_000_000;
        last = written.max(last + 1);
        i.mtime_ns = last;
    }
    (items, stale)
}
