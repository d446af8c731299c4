//! Slots for a store: free ones, then a new extent while the bound has room for one, then evicted ones. Blocks that have
//! files of their own go before packed ones: what they cost becomes extents.

use std::{collections::VecDeque, io, sync::Arc};

use super::{
    Pack,
    extents::{Data, Extent, FEW_SLOTS, MAX_EXTENTS, data_cost, extent_bytes, extent_cost, table_cost},
    format::Header,
    free::Run,
};
use crate::{
    block::Fingerprint,
    catalog::index::State,
    clock::Instant,
    error::{IoClass, classify},
    evict::Id,
    fs::shared::{NoRoom, Shared},
    io::{
        DiskFile, PAGE,
        disk::{OpenMode, write_all_at},
    },
    metrics::{EvictReason, RefuseReason},
    root::{
        journal::{Facts, units},
        names::{Fan, Location, Part, Shelf, leaf_dir, temp_name},
    },
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
        lock,
    },
    tier::RequestId,
};

/// An extent that is smaller than the nominal one divided by this is not worth making.
const SMALLEST_PART: u64 = 8;
/// Blocks evicted at once, at least: their slots make longer runs.
const EVICT_AT_ONCE: u32 = 32;
/// Bytes beside the extent itself that making one may take: its directories and their growth.
const BESIDE_BLOCKS: u64 = 8;
/// Names tried for a new extent.
const NONCES: usize = 8;
/// Bytes of zeros written at once where a file system cannot preallocate.
const ZEROS: usize = 1 << 20;

/// Why no slots could be had.
pub(crate) enum NoSlots {
    /// Nothing more can go.
    Room(NoRoom),
    /// An extent could not be made, and nothing can go.
    Disk(io::Error),
}

/// What came of making an extent.
enum Grown {
    /// There are free slots.
    Yes,
    /// The bound has no room for one.
    NoRoom,
    /// The device has no space for one.
    NoSpace,
    /// It has, but not above the floor of free bytes.
    Floor,
    /// The disk refuses, and evicting does not help.
    Failed(io::Error),
}

/// Bytes reserved for an extent that is being made: what is left is given back when dropped, which also a panic does.
struct Promise<'a> {
    shared: &'a Shared,
    bytes: u64,
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        lock(&self.shared.core).budget.release(self.bytes);
    }
}

/// An entry of a file that is being made. Dropped only by a panic.
struct Making<'a>(&'a Shared, Id);

impl Drop for Making<'_> {
    fn drop(&mut self) {
        lock(&self.0.core).index.remove(self.1);
    }
}

impl Shared {
    /// Takes up to `n` slots for `req`, evicting as needed, and adds them to `out`; some, or none and the reason. Never
    /// waits for anybody but who makes an extent.
    pub(crate) fn take_slots(
        &self,
        pack: &Pack,
        n: u32,
        req: RequestId,
        out: &mut VecDeque<(Arc<Extent>, Run)>,
    ) -> Result<(), NoSlots> {
        if lock(&self.core).trimming {
            return Err(NoSlots::Room(NoRoom(RefuseReason::Trimming)));
        }
        self.free_forgotten(pack);
        let (mut got, mut failed, mut full) = (0, None, false);
        loop {
            let from = out.len();
            got += pack.take(n - got, req, out);
            let lost = self.give_lost(pack, out, from);
            got -= lost;
            if got >= n {
                return Ok(());
            }
            if lost > 0 {
                continue;
            }
            if failed.is_none() {
                match self.grow(pack) {
                    Grown::Yes => continue,
                    Grown::NoRoom => {}
                    Grown::NoSpace | Grown::Floor => full = true,
                    Grown::Failed(e) => failed = Some(e),
                }
            }
            if !self.reopen(pack) && !self.evict_slots(pack, n - got, failed.is_none()) {
                break;
            }
        }
        match failed {
            _ if got > 0 => Ok(()),
            Some(e) => Err(NoSlots::Disk(e)),
            None if full => Err(NoSlots::Room(NoRoom(RefuseReason::NoSpace))),
            None => Err(NoSlots::Room(NoRoom(lock(&self.core).why_no_room()))),
        }
    }

    /// Takes slots of extents that were to be given back and are not any more.
    fn reopen(&self, pack: &Pack) -> bool {
        lock(&self.core).budget.above_bound() == 0 && pack.reopen()
    }

    /// Evicts about `n` blocks, those with files of their own first where their bytes can become an extent; `false` when
    /// nothing can go.
    fn evict_slots(&self, pack: &Pack, n: u32, files_help: bool) -> bool {
        let n = u64::from(n.max(EVICT_AT_ONCE));
        let (mut freed, mut files) = (Vec::new(), Vec::new());
        let now = self.clock.now();
        {
            let mut core = lock(&self.core);
            core.pressure += n * pack.slot_bytes;
            let mut want = n * pack.slot_bytes;
            if !files_help || core.orphans.is_empty() && core.policy.is_empty() {
                want = 0;
            }
            while want > 0 && !core.choose_victims(want, now, &mut files) {
                want /= 2;
            }
            if files.is_empty() {
                core.evict_packed(n, pack.slot_bytes, now, &mut freed);
            }
        }
        let any = !freed.is_empty() || !files.is_empty();
        pack.give(&mut freed);
        for v in &files {
            self.remove_victim(v, EvictReason::Capacity, false);
        }
        any
    }

    /// Makes an extent if the bound has room for one.
    fn grow(&self, pack: &Pack) -> Grown {
        let _turn = lock(&pack.grow);
        if pack.free() > 0 {
            // somebody else made one, or gave slots back, meanwhile
            return Grown::Yes;
        }
        let now = self.clock.now();
        if lock(&self.core).no_help_until.is_some_and(|until| now < until) {
            return Grown::Failed(io::ErrorKind::StorageFull.into());
        }
        let beside = BESIDE_BLOCKS * self.params.fs_block;
        let (Some(number), Some(slots)) = (pack.free_number(), self.slots_that_fit(pack, beside)) else {
            return Grown::NoRoom;
        };
        let smallest = self.smallest(pack).min(slots);
        let mut slots = self.slots_with_space(pack, slots, smallest, beside);
        loop {
            match self.grow_by(pack, number, slots, beside) {
                // what the file system tells as free is not always to be had
                Grown::NoSpace if slots / 2 >= smallest => slots /= 2,
                Grown::NoSpace => return self.full(now),
                grown => return grown,
            }
        }
    }

    /// The device has no space for an extent of any size.
    fn full(&self, now: Instant) -> Grown {
        let error = io::Error::from(io::ErrorKind::StorageFull);
        let first = {
            let mut core = lock(&self.core);
            let first = core.budget.effective() == core.budget.bound();
            if !first {
                // what was evicted for it since did not help
                core.eviction_does_not_help(now);
            }
            first
        };
        if first {
            self.device_full(&error);
            return Grown::NoSpace;
        }
        Grown::Failed(error)
    }

    /// Makes an extent of `slots` slots.
    fn grow_by(&self, pack: &Pack, number: u32, slots: u32, beside: u64) -> Grown {
        let cost = extent_cost(slots, pack.slot_bytes, self.params.fs_block) + beside;
        if self.keep_floor(cost).is_err() {
            return Grown::Floor;
        }
        {
            let mut core = lock(&self.core);
            if core.budget.room() < cost {
                return Grown::NoRoom;
            }
            core.budget.grant(cost);
        }
        match self.make_extent(pack, number, slots, cost) {
            Ok(()) => Grown::Yes,
            Err(e) if classify(&e) == IoClass::Full => Grown::NoSpace,
            Err(e) => {
                let what = "no extent could be made";
                if self.told.is_new(what, self.clock.now(), 1) {
                    tracing::warn!(tier = %self.params.name, error = %e, "{what}");
                }
                Grown::Failed(e)
            }
        }
    }

    /// Slots of the smallest extent worth making where the device has little space, as long as there are few extents:
    /// when it has more, there shall be numbers left for large ones.
    fn smallest(&self, pack: &Pack) -> u32 {
        if pack.len() < MAX_EXTENTS / 2 {
            FEW_SLOTS
        } else {
            Header::slots_in(pack.nominal / SMALLEST_PART, pack.slot_bytes).max(FEW_SLOTS)
        }
    }

    /// `slots`, halved until the device has space for them above the floor, but no less than `smallest`.
    fn slots_with_space(&self, pack: &Pack, mut slots: u32, smallest: u32, beside: u64) -> u32 {
        let free = self.free_bytes(0, false);
        let space = free.saturating_sub(self.params.min_free.unwrap_or(0));
        let cost = |slots| extent_cost(slots, pack.slot_bytes, self.params.fs_block) + beside;
        while slots / 2 >= smallest && cost(slots) > space {
            slots /= 2;
        }
        slots
    }

    /// Slots of the extent that the bound has room for, with `beside` bytes left.
    fn slots_that_fit(&self, pack: &Pack, beside: u64) -> Option<u32> {
        let credit = self.credit();
        let room = {
            let mut core = lock(&self.core);
            core.budget.restore(self.clock.now());
            core.top_up(credit);
            core.budget.room().saturating_sub(beside)
        };
        let cost = |slots| extent_cost(slots, pack.slot_bytes, self.params.fs_block);
        let mut slots = Header::slots_in(pack.nominal.min(room), pack.slot_bytes);
        while slots > 0 && cost(slots) > room {
            slots -= (slots / 64).max(1);
        }
        (extent_bytes(slots, pack.slot_bytes) >= pack.nominal / SMALLEST_PART && slots > 0).then_some(slots)
    }

    /// Makes and opens an extent, for which `reserved` bytes are; they are given back, or counted as what became of them.
    fn make_extent(&self, pack: &Pack, number: u32, slots: u32, reserved: u64) -> io::Result<()> {
        let fs_block = self.params.fs_block;
        let mut promise = Promise {
            shared: self,
            bytes: reserved,
        };
        let header = Header {
            slots,
            slot_bytes: u32::try_from(pack.slot_bytes).map_err(|_| io::ErrorKind::InvalidInput)?,
            block_len: self.params.block_len as u64,
            nonce: self.unused_nonce()?,
            namespace: *self.ns.digest(),
            made_at: self.clock.unix_seconds(),
        };
        // without its table a data file is nothing: the table comes last
        let data_cost = data_cost(slots, pack.slot_bytes, fs_block);
        let data = self.make_part(Part::Data, &header, data_cost, &mut promise.bytes)?;
        let table_cost = table_cost(slots, fs_block);
        let table = self
            .make_part(Part::Table, &header, table_cost, &mut promise.bytes)
            .inspect_err(|_| self.remove_part(data, EvictReason::NoSpace))?;
        drop(promise);
        let ids = [table, data];
        let files = self.open_extent(header.nonce).inspect_err(|_| {
            ids.into_iter()
                .for_each(|id| self.remove_part(id, EvictReason::NoSpace));
        })?;
        lock(&self.core).no_help_until = None;
        let all = Run { first: 0, len: slots };
        let extent = files.into_extent(number, header, ids, 0);
        pack.add(Arc::new(extent), 0, [all]);
        Ok(())
    }

    /// A nonce whose files are not there: a file that is renamed would take the place of another one.
    fn unused_nonce(&self) -> io::Result<u64> {
        for _ in 0..NONCES {
            let nonce = self.nonce();
            let is_free = |part| {
                let at = Location::of_extent(part, nonce);
                let dir = leaf_dir(self.own_dir(), at.fan, at.leaf);
                match self.disk.stat(&dir.join(at.file_name())) {
                    Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
                    r => r.map(|_| false),
                }
            };
            if is_free(Part::Data)? && is_free(Part::Table)? {
                return Ok(nonce);
            }
        }
        Err(io::ErrorKind::AlreadyExists.into())
    }

    /// Removes a file of an extent.
    pub(super) fn remove_part(&self, id: Id, reason: EvictReason) {
        let victim = lock(&self.core).begin_removal(id);
        if let Some(v) = victim {
            self.remove_victim(&v, reason, true);
        }
    }

    /// Makes one file of an extent, counted as `cost` out of what is `reserved`; returns its entry.
    fn make_part(&self, part: Part, header: &Header, cost: u64, reserved: &mut u64) -> io::Result<Id> {
        let at = Location::of_extent(part, header.nonce);
        let (shelf, fan) = at.shelf();
        let fp = Fingerprint::of(at.file_name().as_bytes(), self.ns.seed());
        if let Some(j) = self.journal.get() {
            j.begin(&self.core, fp, (shelf, fan))?;
        }
        let id = {
            let mut core = lock(&self.core);
            let shelf = core.index.shelf_id(shelf).ok_or(io::ErrorKind::OutOfMemory)?;
            let id = core.index.insert(fp, shelf, fan, State::Writing, 0);
            id.ok_or(io::ErrorKind::OutOfMemory)?
        };
        let making = Making(self, id);
        let (mut change, entered) = self.dirs.enter(&*self.disk, self.own_dir(), 0, fan, at.leaf);
        let made = entered.and_then(|()| {
            let made = match self.publish_part(part, &at, header) {
                // somebody removed the directory behind our back
                Err(e) if classify(&e) == IoClass::Gone => self
                    .dirs
                    .remake(&*self.disk, self.own_dir(), fan, at.leaf)
                    .and_then(|()| self.publish_part(part, &at, header)),
                made => made,
            };
            let more = match &made {
                Ok(()) => self.dirs.grown(&*self.disk, self.own_dir(), 0, fan, at.leaf),
                Err(_) => self.dirs.leave(&*self.disk, self.own_dir(), 0, fan, at.leaf),
            };
            change.add(more);
            made
        });
        self.tell_part(&made, fp, (shelf, fan), cost, header.made_at);
        std::mem::forget(making);
        let mut core = lock(&self.core);
        let spent = if made.is_ok() { cost } else { 0 } + change.now.saturating_sub(change.before);
        let paid = spent.min(*reserved);
        *reserved -= paid;
        core.budget.release(paid);
        core.budget.apply(change);
        if let Err(e) = made {
            core.index.remove(id);
            return Err(e);
        }
        core.budget.add_resident(cost);
        core.index.set_cost(id, cost);
        core.index.set_state(id, State::Extent);
        core.index.set_written_at(id, header.made_at);
        Ok(id)
    }

    fn tell_part(
        &self,
        made: &io::Result<()>,
        fp: Fingerprint,
        (shelf, fan): (Shelf, Fan),
        cost: u64,
        made_at: u64,
    ) {
        let Some(j) = self.journal.get() else { return };
        let facts = Facts {
            trailer: false,
            bad: false,
            cost: units(cost),
            written_at: u32::try_from(made_at).unwrap_or(u32::MAX),
            dirs: self.dirs.costs(0, fan, shelf.leaf),
        };
        match made {
            Ok(()) => {
                if let Err(error) = j.stored(&self.core, fp, (shelf, fan), facts, None) {
                    // its begin stands: the next owner looks
                    tracing::debug!(%error, "an extent is in doubt in the journal");
                }
            }
            Err(_) if lock(&self.core).leftovers.is_empty() => self.journal_gone(fp, shelf, fan),
            Err(_) => {}
        }
    }

    /// Preallocates and writes a file under a temporary name, and publishes it.
    fn publish_part(&self, part: Part, at: &Location, header: &Header) -> io::Result<()> {
        let dir = leaf_dir(self.own_dir(), at.fan, at.leaf);
        let (temp, file) = loop {
            let temp = dir.join(temp_name(&at.file_name(), self.next_temp()));
            match self.disk.open(&temp, OpenMode::CreateNew, false) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                r => break (temp, r?),
            }
        };
        let (len, head) = match part {
            Part::Table => (header.table_len(), Some(header.encode())),
            Part::Data => (header.data_len(), None),
        };
        let published = preallocate(&*file, len)
            .and_then(|()| head.map_or(Ok(()), |h| write_all_at(&*file, &h, 0)))
            .and_then(|()| self.disk.rename(&temp, &dir.join(at.file_name())));
        if published.is_err() {
            self.discard(temp, file.stat().map_or(len, |st| st.allocated));
        }
        published
    }

    /// Opens the files of the extent numbered `nonce`.
    pub(super) fn open_extent(&self, nonce: u64) -> io::Result<Files> {
        let path = |part| {
            let at = Location::of_extent(part, nonce);
            leaf_dir(self.own_dir(), at.fan, at.leaf).join(at.file_name())
        };
        // what is not there must not be made
        let table = self.disk.open(&path(Part::Table), OpenMode::Existing, false)?;
        let path = path(Part::Data);
        let wanted = self.direct.load(Ordering::Relaxed) && self.params.block_len.is_multiple_of(PAGE);
        let direct = match wanted.then(|| self.disk.open(&path, OpenMode::Existing, true)) {
            Some(Ok(f)) => Some(f),
            Some(Err(e)) if classify(&e) != IoClass::Invalid => return Err(e),
            _ => None,
        };
        let data = Data {
            path,
            direct,
            cached: OnceLock::new(),
        };
        if data.direct.is_none() {
            // one way is open from the start: else nobody could tell that the file was removed
            data.file(&*self.disk, false)?;
        }
        Ok(Files { table, data })
    }
}

/// An extent's open files.
pub(super) struct Files {
    pub(super) table: Box<dyn DiskFile>,
    pub(super) data: Data,
}

impl Files {
    pub(super) fn into_extent(self, number: u32, header: Header, ids: [Id; 2], fresh_from: u32) -> Extent {
        Extent {
            number,
            header,
            ids,
            table: self.table,
            data: self.data,
            fresh_from: AtomicU32::new(fresh_from),
        }
    }
}

/// Makes the device give all bytes now, so that no later write runs out of space.
fn preallocate(file: &dyn DiskFile, len: u64) -> io::Result<()> {
    match file.allocate(len) {
        Err(e) if classify(&e) == IoClass::Invalid => {
            let zeros = vec![0; ZEROS];
            let mut at = 0;
            while at < len {
                let n = usize::try_from(len - at).unwrap_or(ZEROS).min(ZEROS);
                write_all_at(file, zeros.get(..n).unwrap_or_default(), at)?;
                at += n as u64;
            }
            Ok(())
        }
        r => r,
    }
}
