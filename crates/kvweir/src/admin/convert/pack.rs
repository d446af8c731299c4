//! Files into extents. A new extent has its whole length at once and takes bytes as its slots are written, so that no
//! more room is needed than for the blocks between two syncs.

use std::{
    cmp::Reverse,
    collections::{BTreeMap, BTreeSet, HashMap},
    io,
    path::{Path, PathBuf},
};

use foldhash::fast::FixedState;

use super::{
    place::{Open, Place, memory, runs},
    work::{Target, Work},
};
use crate::{
    admin::{
        extents::{ExtentFiles, Look, look, map_parallel},
        survey::last_page,
    },
    block::{Fingerprint, Key},
    error::{IoClass, classify},
    fs::packed::{
        FIRST_SEQUENCE, MAX_EXTENTS, Pack, extent_cost,
        format::{Header, MAX_PACKED_KEY, RECORD_BYTES, Record, block_sum},
        slot_bytes,
    },
    io::{
        DiskFile,
        disk::{OpenMode, read_full, write_all_at},
        round_up,
    },
    root::{
        names::{Fan, Leaf, Location, Parsed, Part, leaf_dir, parse_file},
        trailer::{TRAILER_BYTES, decode},
        visitor::{Met, Watch},
    },
    sync::{Mutex, atomic::Ordering, lock},
};

/// Units of allocation kept beside what slots take: directories, and what a file system needs to keep track of them.
const BESIDE: u64 = 12;

/// A block file.
struct BlockFile {
    mtime_ns: i128,
    fan: Fan,
    leaf: Leaf,
    name: Box<str>,
}

struct Files<'a> {
    namespace: &'a str,
    all: Mutex<Vec<BlockFile>>,
}

impl Watch for Files<'_> {
    fn wants(&self, namespace: &str) -> bool {
        namespace == self.namespace
    }

    fn met(&self, what: Met<'_>) {
        if let Met::Block(f) = what
            && f.leaf != Leaf::Extent
        {
            lock(&self.all).push(BlockFile {
                mtime_ns: f.stat.mtime_ns,
                fan: f.fan,
                leaf: f.leaf,
                name: f.name.into(),
            });
        }
    }
}

/// What a file turned out to be.
enum Found {
    Block(Box<Block>),
    Gone,
    Damaged,
    /// No block that a slot can hold.
    Other,
}

struct Block {
    path: PathBuf,
    dir: PathBuf,
    allocated: u64,
    key: Key,
    sum: u128,
    written_at: u32,
    trailer: bool,
    /// The block, padded to a slot.
    bytes: Vec<u8>,
}

/// The state of one namespace.
struct Packing<'t> {
    t: &'t mut Target,
    place: Place,
    /// Free slots, next one last.
    free: Vec<(usize, u32)>,
    /// Where keys have records, by their numbers in `place`, latest first.
    packed: HashMap<Fingerprint, Vec<usize>, FixedState>,
    /// Whether an extent was made since all was made durable.
    made: bool,
    /// The number of the next record: lower than all before.
    sequence: u64,
    slot_bytes: u64,
    nominal: u32,
}

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
            nominal: Header::slots_in(Pack::new(len, bound).nominal, slot_bytes).max(1),
            place,
            slot_bytes,
            t,
        };
        if !self.apply {
            self.plan_pack(&mut p, &files);
            return Ok(());
        }
        let mut left = std::collections::VecDeque::from(files);
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
            let dir = leaf_dir(&p.t.dir, f.fan, f.leaf);
            let Ok(stat) = self.admin.disk.stat(&dir.join(&*f.name)) else {
                continue;
            };
            let path = dir.join(&*f.name);
            let key = match parse_file(&f.name, f.fan, f.leaf) {
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
        left: &mut std::collections::VecDeque<BlockFile>,
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
            let dir = leaf_dir(&p.t.dir, f.fan, f.leaf);
            let path = dir.join(&*f.name);
            let bytes = self.admin.disk.stat(&path).map_or(0, |s| s.allocated);
            self.admin.disk.remove_file(&path)?;
            let gone = bytes + self.admin.remove_empty(&dir).bytes;
            self.room.change(gone, 0);
            p.t.report.dropped += 1;
            self.done(1);
        }
    }

    /// Makes an extent whose slots take no bytes yet.
    fn make_extent(&mut self, p: &mut Packing<'_>, slots: u32) -> io::Result<()> {
        let disk = &*self.admin.disk;
        let (mut nonce, at) = (self.nonce(p), Location::of_extent(Part::Table, 0));
        let dir = leaf_dir(&p.t.dir, at.fan, at.leaf);
        let above: Vec<PathBuf> = dir.ancestors().take(3).map(Into::into).collect();
        let dirs_before = self.dirs_bytes(above.iter().map(|p| &**p));
        self.make_dirs(&dir)?;
        let name = |part, nonce| Location::of_extent(part, nonce).file_name();
        while [Part::Table, Part::Data]
            .iter()
            .any(|&part| disk.stat(&dir.join(name(part, nonce))).is_ok())
        {
            nonce = nonce.wrapping_add(1);
        }
        let header = Header {
            slots,
            slot_bytes: u32::try_from(p.slot_bytes).map_err(io::Error::other)?,
            block_len: p.t.len,
            nonce,
            namespace: p.t.digest,
            made_at: self.admin.clock.unix_seconds(),
        };
        // without its table a data file is nothing: the table comes last
        let data = self.make_part(&dir, &name(Part::Data, nonce), &|f| f.set_len(header.data_len()))?;
        let table = self.make_part(&dir, &name(Part::Table, nonce), &|f| {
            match f.allocate(header.table_len()) {
                Err(e) if classify(&e) != IoClass::Invalid => return Err(e),
                Err(_) => write_all_at(f, &vec![0; header.table_len() as usize], 0)?,
                Ok(()) => {}
            }
            write_all_at(f, &header.encode(), 0)
        });
        let table = table.inspect_err(|_| {
            let _ = disk.remove_file(&data);
        })?;
        let files = ExtentFiles {
            nonce,
            table: Some(table.clone()),
            data: Some(data.clone()),
        };
        let right = match look(disk, &files, OpenMode::ReadWrite)? {
            (Look::Whole(found), Some(file)) if found == header => Some(file),
            _ => None,
        };
        let Some(file) = right else {
            for part in [&table, &data] {
                disk.remove_file(part)?;
            }
            return Err(io::Error::other(
                "a new extent reads back otherwise than it was written",
            ));
        };
        let open = Open {
            table: file,
            data: disk.open(&data, OpenMode::ReadWrite, false)?,
            paths: [table, data],
            header,
        };
        let dirs_now = self.dirs_bytes(above.iter().map(|p| &**p));
        self.room.change(dirs_before, dirs_now + open.allocated());
        let number = p.place.open.len();
        p.free.extend((0..slots).rev().map(|place| (number, place)));
        p.place.open.push(open);
        p.made = true;
        p.t.report.extents += 1;
        Ok(())
    }

    /// Makes one file under a temporary name, and publishes it.
    fn make_part(
        &self,
        dir: &Path,
        name: &str,
        fill: &dyn Fn(&dyn DiskFile) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        let disk = &*self.admin.disk;
        let path = dir.join(name);
        let (temp, f) = self.temps.create(disk, dir, name, false)?;
        let made = fill(&*f)
            .and_then(|()| f.sync())
            .and_then(|()| disk.rename(&temp, &path));
        match made {
            Ok(()) => Ok(path),
            Err(e) => {
                let _ = disk.remove_file(&temp);
                Err(e)
            }
        }
    }

    /// A number unlike those of the extents there.
    fn nonce(&self, p: &Packing<'_>) -> u64 {
        let mut bytes = p.t.report.directory.clone().into_bytes();
        bytes.extend(self.admin.clock.unix_seconds().to_le_bytes());
        bytes.extend(self.admin.clock.now().as_nanos().to_le_bytes());
        bytes.extend(std::process::id().to_le_bytes());
        bytes.extend(p.place.open.len().to_le_bytes());
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }

    /// Reads files and compares them with their trailers; counts those that are no blocks.
    fn read_batch(&self, p: &mut Packing<'_>, batch: &[BlockFile]) -> Vec<Block> {
        let (t, slot_bytes) = (&*p.t, p.slot_bytes as usize);
        let found = map_parallel(self.admin.threads, batch, |f| {
            let dir = leaf_dir(&t.dir, f.fan, f.leaf);
            let path = dir.join(&*f.name);
            match self.read_file(t, f, path.clone(), dir, slot_bytes) {
                Err(e) if classify(&e) == IoClass::Gone => Found::Gone,
                Err(e) => {
                    self.failed(&path, e);
                    Found::Gone
                }
                Ok(found) => found,
            }
        });
        let mut out = Vec::with_capacity(found.len());
        let report = &mut p.t.report;
        for f in found {
            match f {
                Found::Block(b) => out.push(*b),
                Found::Gone => {}
                Found::Damaged => report.damaged += 1,
                Found::Other => report.kept += 1,
            }
        }
        out
    }

    fn read_file(
        &self,
        t: &Target,
        f: &BlockFile,
        path: PathBuf,
        dir: PathBuf,
        slot_bytes: usize,
    ) -> io::Result<Found> {
        let file = self.admin.disk.open(&path, OpenMode::Read, false)?;
        let stat = file.stat()?;
        let len = usize::try_from(t.len).map_err(io::Error::other)?;
        let whole = t.len + TRAILER_BYTES as u64;
        if stat.len != t.len && stat.len != whole {
            return Ok(Found::Other);
        }
        let (mut bytes, mut page) = (memory(slot_bytes)?, [0; TRAILER_BYTES]);
        let block = bytes.get_mut(..len).unwrap_or_default();
        if read_full(&*file, block, &mut page)? as u64 != stat.len {
            return Ok(Found::Other);
        }
        self.bytes.fetch_add(stat.len, Ordering::Relaxed);
        let sum = block_sum(block);
        let (key, written_at, trailer) = if stat.len == whole {
            let right = decode(&page).filter(|r| {
                let at = Location::of(&r.key);
                r.payload_sum == sum
                    && r.namespace == t.digest
                    && r.block_len == t.len
                    && (at.fan, at.leaf) == (f.fan, f.leaf)
                    && at.file_name() == *f.name
            });
            let Some(r) = right else {
                return Ok(Found::Damaged);
            };
            (r.key, r.written_at, true)
        } else {
            let Parsed::Block(Some(key)) = parse_file(&f.name, f.fan, f.leaf) else {
                return Ok(Found::Other);
            };
            // without a checksum of its own, only a second look tells what the file holds
            let mut again = memory(len)?;
            if read_full(&*file, &mut again, &mut [])? != len || block_sum(&again) != sum {
                return Err(io::Error::other(
                    "the file reads differently when it is read again: it stays",
                ));
            }
            let seconds = u64::try_from(stat.mtime_ns / 1_000_000_000).unwrap_or(0);
            (key, seconds, false)
        };
        if key.as_bytes().len() > MAX_PACKED_KEY {
            return Ok(Found::Other);
        }
        Ok(Found::Block(Box::new(Block {
            path,
            dir,
            allocated: stat.allocated,
            key,
            sum,
            written_at: u32::try_from(written_at).unwrap_or(u32::MAX),
            trailer,
            bytes,
        })))
    }

    /// Writes blocks into free slots, then their records; when both are durable, and read back as they should be, the
    /// files go.
    fn write_batch(&mut self, p: &mut Packing<'_>, blocks: Vec<Block>) -> io::Result<()> {
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

    /// Sorts blocks by whether a slot holds them too, which is read: those in both places, their extents, and those to be
    /// written. A record whose slot does not hold its block goes, and the file takes its place.
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

    /// Allocates what slots without a block have not got, where there is room: later stores shall not run out of it.
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

/// What slots hold of a key.
struct Copy {
    /// Records, by number, whose slots do not hold their block.
    bad: Vec<usize>,
    /// The extent that holds it, and its sum.
    found: io::Result<Option<(usize, u128)>>,
}

/// Reads what slots hold of the key of `b`: the latest record that has its block counts.
fn copy_of(place: &Place, records: Option<&Vec<usize>>, b: &Block) -> Copy {
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
