//! Files into extents, newest first: which files, how many at a time, and what is dropped where the bound has no room.

use std::{
    cmp::Reverse,
    collections::{HashMap, VecDeque},
    io,
};

use foldhash::fast::FixedState;

use super::{
    packing::{BlockFile, Files, Packing},
    work::{Target, Work},
};
use crate::{
    admin::survey::last_page,
    block::Fingerprint,
    error::{IoClass, classify},
    fs::packed::{
        FIRST_SEQUENCE, MAX_EXTENTS, Pack, extent_cost,
        format::{Header, MAX_PACKED_KEY, RECORD_BYTES},
        slot_bytes,
    },
    io::round_up,
    root::{
        names::{Parsed, leaf_dir, parse_file},
        trailer::{TRAILER_BYTES, decode},
    },
    sync::Mutex,
};

/// Units of allocation kept beside what slots take: directories, and what a file system needs to keep track of them.
const BESIDE: u64 = 12;

impl Work<'_> {
    pub(super) fn pack(&mut self, t: &mut Target) -> io::Result<()> {
        let name = t.report.directory.clone();
        let files = Files {
            namespace: &name,
            all: Mutex::default(),
        };
        self.admin
            .walk(self.admin.threads, &files)
            .map_err(io::Error::other)?;
        let mut files = files
            .all
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        // the newest last: taken first
        files.sort_unstable_by(|a, b| (a.mtime_ns, &a.name).cmp(&(b.mtime_ns, &b.name)));
        *self.of_blocks.get_mut() += files.len() as u64;
        let mut place = self.extents(t)?;
        place.records.sort_unstable_by_key(|r| Reverse(r.record.sequence));
        let mut packed: HashMap<Fingerprint, Vec<usize>, FixedState> = HashMap::default();
        for (n, r) in place.records.iter().enumerate() {
            packed
                .entry(r.record.key.fingerprint(t.seed))
                .or_default()
                .push(n);
        }
        let len = usize::try_from(t.len).map_err(io::Error::other)?;
        let slot_bytes = slot_bytes(len);
        let bound = self.room.used() + self.room.left();
        let oldest = place.records.iter().map(|r| r.record.sequence).min();
        let mut p = Packing {
            free: place.free.iter().rev().copied().collect(),
            packed,
            made: false,
            sequence: oldest.unwrap_or(FIRST_SEQUENCE).min(FIRST_SEQUENCE),
            nominal: Header::slots_in(Pack::new(0, len, bound, 1).nominal, slot_bytes).max(1),
            place,
            slot_bytes,
            t,
        };
        if !self.apply {
            self.plan_pack(&mut p, &files);
            return Ok(());
        }
        let mut left = VecDeque::from(files);
        while !left.is_empty() {
            self.still_runs()?;
            let Some(n) = self.make_room(&mut p, &mut left)? else {
                break;
            };
            let at = left.len().saturating_sub(n);
            let batch: Vec<BlockFile> = left.drain(at..).rev().collect();
            let blocks = self.read_batch(&mut p, &batch);
            self.write_batch(&mut p, blocks)?;
            self.done(batch.len() as u64);
        }
        self.fill_up(&p)
    }

    /// Counts what would be done.
    fn plan_pack(&mut self, p: &mut Packing<'_>, files: &[BlockFile]) {
        for f in files {
            let dir = leaf_dir(&p.t.dir, f.prefix, f.leaf);
            let Ok(stat) = self.admin.disk.stat(&dir.join(&*f.name)) else {
                continue;
            };
            let path = dir.join(&*f.name);
            let key = match parse_file(&f.name, f.prefix, f.leaf) {
                Parsed::Block(Some(key)) => Some(key),
                _ => last_page(&*self.admin.disk, &path, stat.len)
                    .and_then(|p| decode(&p))
                    .map(|r| r.key),
            };
            let long = key.is_none_or(|k| k.as_bytes().len() > MAX_PACKED_KEY);
            let trailed = stat.len == p.t.len + TRAILER_BYTES as u64;
            if long || !trailed && stat.len != p.t.len {
                p.t.report.kept += 1;
                continue;
            }
            p.t.report.moved += 1;
            p.t.report.unverified += u64::from(!trailed);
            self.room
                .change(stat.allocated, p.slot_bytes + RECORD_BYTES as u64);
        }
        p.t.report.extents =
            p.t.report
                .moved
                .saturating_sub(p.free.len() as u64)
                .div_ceil(u64::from(p.nominal));
    }

    /// How many files can be packed now; makes an extent, and drops the oldest files, as needed. `None`: no more.
    fn make_room(
        &mut self,
        p: &mut Packing<'_>,
        left: &mut VecDeque<BlockFile>,
    ) -> io::Result<Option<usize>> {
        let beside = BESIDE * self.unit;
        loop {
            let room = self.room.left().saturating_sub(beside);
            let slots = p.nominal.min(u32::try_from(left.len()).unwrap_or(u32::MAX));
            let head = round_up(Header::record_at(slots), self.unit);
            let fits = |room: u64| usize::try_from(room / p.slot_bytes).unwrap_or(usize::MAX);
            if !p.free.is_empty() && fits(room) > 0 {
                let n = Self::batch(p.slot_bytes).min(left.len());
                return Ok(Some(n.min(p.free.len()).min(fits(room))));
            }
            if p.free.is_empty() && fits(room.saturating_sub(head)) > 0 {
                if p.place.open.len() + 1 >= MAX_EXTENTS {
                    self.failed(
                        &p.t.dir.clone(),
                        "there are too many extents: the rest stays in files",
                    );
                    return Ok(None);
                }
                self.make_extent(p, slots)?;
                continue;
            }
            let Some(f) = left.pop_front() else {
                return Ok(None);
            };
            let dir = leaf_dir(&p.t.dir, f.prefix, f.leaf);
            let path = dir.join(&*f.name);
            let bytes = self.admin.disk.stat(&path).map_or(0, |s| s.allocated);
            self.admin.disk.remove_file(&path)?;
            let gone = bytes + self.admin.remove_empty(&dir).bytes;
            self.room.change(gone, 0);
            p.t.report.dropped += 1;
            self.done(1);
        }
    }

    /// Preallocates slots without a block, where there is room, so that later stores do not run out of it.
    fn fill_up(&mut self, p: &Packing<'_>) -> io::Result<()> {
        for e in &p.place.open {
            let before = e.allocated();
            let need = extent_cost(e.header.slots, p.slot_bytes, self.unit).saturating_sub(before);
            if before >= e.header.table_len() + e.header.data_len() || need > self.room.left() {
                continue;
            }
            let done = e.data.allocate(e.header.data_len());
            self.room.change(before, e.allocated());
            match done {
                Err(error) if classify(&error) != IoClass::Invalid => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }
}
