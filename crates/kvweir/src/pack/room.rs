//! Slots for a store: free ones, then a new extent while the bound has room for one, then evicted ones. Blocks that have
//! files of their own go before packed ones: what they cost becomes extents.

use std::{
    io,
    sync::{Arc, atomic::AtomicU32},
};

use super::{
    Pack,
    extents::{Extent, extent_bytes, extent_cost},
    format::Header,
    free::Run,
};
use crate::{
    block::Fingerprint,
    error::{IoClass, classify},
    evict::Id,
    fs::{
        index::State,
        journal::{Facts, units},
        layout::{Location, leaf_dir, temp_name},
        shared::{NoRoom, Shared},
    },
    io::{
        DiskFile, PAGE,
        disk::{OpenMode, write_all_at},
    },
    metrics::{EvictReason, RefuseReason},
    sync::lock,
    tier::RequestId,
};

/// An extent that is smaller than the nominal one divided by this is not worth making.
const SMALLEST_PART: u64 = 8;
/// Blocks evicted at once, at least: their slots make longer runs.
const EVICT_AT_ONCE: u32 = 32;
/// Bytes beside the extent itself that making one may take: its directories and their growth.
const BESIDE_BLOCKS: u64 = 8;
/// Bytes of zeros written at once where a file system cannot preallocate.
const ZEROS: usize = 1 << 20;

impl Shared {
    /// Takes up to `n` slots for `req`, evicting as needed; some, or none and the reason. Never waits for anybody but who
    /// makes an extent.
    pub(crate) fn take_slots(
        &self,
        pack: &Pack,
        n: u32,
        req: RequestId,
    ) -> Result<Vec<(Arc<Extent>, Run)>, NoRoom> {
        let mut runs = Vec::new();
        let mut got = 0;
        if lock(&self.core).trimming {
            return Err(NoRoom(RefuseReason::Trimming));
        }
        loop {
            got += pack.take(n - got, req, &mut runs);
            if got >= n || !self.grow(pack) && !self.evict_slots(pack, n - got) {
                break;
            }
        }
        if got == 0 {
            return Err(NoRoom(RefuseReason::NoRoom));
        }
        Ok(runs)
    }

    /// Evicts about `n` blocks; `false` when nothing can go.
    fn evict_slots(&self, pack: &Pack, n: u32) -> bool {
        let n = u64::from(n.max(EVICT_AT_ONCE));
        let (mut freed, mut files) = (Vec::new(), Vec::new());
        let now = self.clock.now();
        {
            let mut core = lock(&self.core);
            core.pressure += n * pack.slot_bytes;
            let mut want = n * pack.slot_bytes;
            if core.orphans.is_empty() && core.policy.is_empty() {
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

    /// Makes an extent if the bound has room for one; `false` if not.
    fn grow(&self, pack: &Pack) -> bool {
        let _turn = lock(&pack.grow);
        if pack.free() > 0 {
            // somebody else made one, or gave slots back, meanwhile
            return true;
        }
        let fs_block = self.params.fs_block;
        let beside = BESIDE_BLOCKS * fs_block;
        let Some(slots) = self.slots_that_fit(pack, beside) else {
            return false;
        };
        let cost = extent_cost(slots, pack.slot_bytes, fs_block) + beside;
        if self.keep_floor(cost).is_err() {
            return false;
        }
        {
            let mut core = lock(&self.core);
            if core.budget.room() < cost {
                return false;
            }
            core.budget.grant(cost);
        }
        match self.make_extent(pack, slots, cost) {
            Ok(()) => true,
            Err(e) => {
                if classify(&e) == IoClass::Full {
                    self.device_full(&e);
                } else {
                    tracing::warn!(tier = %self.params.name, error = %e, "no extent could be made");
                }
                false
            }
        }
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
    fn make_extent(&self, pack: &Pack, slots: u32, reserved: u64) -> io::Result<()> {
        let named = self.name_extent(pack, slots);
        let (number, header, at, fp, id) =
            named.inspect_err(|_| lock(&self.core).budget.release(reserved))?;
        let (change, made) = self.write_extent(&at, fp, &header);
        let mut core = lock(&self.core);
        core.budget.release(reserved);
        core.budget.change(change.before, change.now);
        let files = match made {
            Ok(files) => files,
            Err(e) => {
                core.index.remove(id);
                return Err(e);
            }
        };
        let cost = extent_cost(slots, pack.slot_bytes, self.params.fs_block);
        core.budget.add_resident(cost);
        core.index.set_cost(id, cost);
        core.index.set_state(id, State::Extent);
        core.index.set_written_at(id, header.made_at);
        core.no_help_until = None;
        drop(core);
        let all = Run { first: 0, len: slots };
        pack.add(Arc::new(files.into_extent(number, header, id, 0)), 0, [all]);
        Ok(())
    }

    /// Number, header, place and entry of a new extent.
    fn name_extent(&self, pack: &Pack, slots: u32) -> io::Result<(u32, Header, Location, Fingerprint, Id)> {
        let number = pack.free_number().ok_or(io::ErrorKind::QuotaExceeded)?;
        let nonce = self.nonce();
        let at = Location::of_extent(nonce);
        let header = Header {
            slots,
            slot_bytes: u32::try_from(pack.slot_bytes).map_err(|_| io::ErrorKind::InvalidInput)?,
            block_len: self.params.block_len as u64,
            nonce,
            namespace: *self.ns.digest(),
            made_at: self.clock.unix_seconds(),
        };
        let (shelf, fan) = at.shelf();
        let fp = Fingerprint::of(at.file_name().as_bytes(), self.ns.seed());
        let id = {
            let mut core = lock(&self.core);
            let shelf = core.index.shelf_id(shelf).ok_or(io::ErrorKind::QuotaExceeded)?;
            let id = core.index.insert(fp, shelf, fan, State::Writing, 0);
            id.ok_or(io::ErrorKind::OutOfMemory)?
        };
        Ok((number, header, at, fp, id))
    }

    fn write_extent(
        &self,
        at: &Location,
        fp: Fingerprint,
        header: &Header,
    ) -> (crate::fs::dirs::Change, io::Result<Files>) {
        let (shelf, fan) = at.shelf();
        if let Some(j) = self.journal.get()
            && let Err(e) = j.begin(&self.core, fp, (shelf, fan))
        {
            return (crate::fs::dirs::Change::default(), Err(e));
        }
        let (mut change, entered) = self.dirs.enter(&*self.disk, self.own_dir(), 0, fan, at.leaf);
        let made = entered.and_then(|()| {
            let made = self.publish_extent(at, header);
            let more = match &made {
                Ok(_) => self.dirs.grown(&*self.disk, self.own_dir(), 0, fan, at.leaf),
                Err(_) => self.dirs.leave(&*self.disk, self.own_dir(), 0, fan, at.leaf),
            };
            change.add(more);
            made
        });
        if let Some(j) = self.journal.get() {
            let facts = Facts {
                trailer: false,
                bad: false,
                cost: units(extent_cost(
                    header.slots,
                    u64::from(header.slot_bytes),
                    self.params.fs_block,
                )),
                written_at: u32::try_from(header.made_at).unwrap_or(u32::MAX),
                dirs: self.dirs.costs(0, fan, at.leaf),
            };
            match &made {
                Ok(_) => {
                    if let Err(error) = j.stored(&self.core, fp, (shelf, fan), facts, None) {
                        // its begin stands: the next owner looks
                        tracing::debug!(%error, "an extent is in doubt in the journal");
                    }
                }
                Err(_) if lock(&self.core).leftovers.is_empty() => self.journal_gone(fp, shelf, fan),
                Err(_) => {}
            }
        }
        (change, made)
    }

    /// Preallocates and writes the file under a temporary name, and publishes it.
    fn publish_extent(&self, at: &Location, header: &Header) -> io::Result<Files> {
        let dir = leaf_dir(self.own_dir(), at.fan, at.leaf);
        let to = dir.join(at.file_name());
        let (temp, file) = loop {
            let temp = dir.join(temp_name(&at.file_name(), self.next_temp()));
            match self.disk.open(&temp, OpenMode::CreateNew, false) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                r => break (temp, r?),
            }
        };
        let published = preallocate(&*file, header.file_len())
            .and_then(|()| write_all_at(&*file, &header.encode(), 0))
            .and_then(|()| self.disk.rename(&temp, &to));
        if let Err(e) = published {
            self.discard(temp, file.stat().map_or(header.file_len(), |st| st.allocated));
            return Err(e);
        }
        match self.open_extent(&to) {
            Ok(files) => Ok(files),
            Err(e) => {
                self.discard(to, file.stat().map_or(header.file_len(), |st| st.allocated));
                Err(e)
            }
        }
    }

    /// Opens the files of an extent.
    pub(crate) fn open_extent(&self, path: &std::path::Path) -> io::Result<Files> {
        let table = self.disk.open(path, OpenMode::ReadWrite, false)?;
        let wanted = self.direct.load(std::sync::atomic::Ordering::Relaxed)
            && self.params.block_len.is_multiple_of(PAGE);
        let direct = match wanted.then(|| self.disk.open(path, OpenMode::ReadWrite, true)) {
            Some(Ok(f)) => Some(f),
            Some(Err(e)) if classify(&e) != IoClass::Invalid => return Err(e),
            _ => None,
        };
        Ok(Files { table, direct })
    }
}

/// An extent's open files.
pub(crate) struct Files {
    pub(crate) table: Box<dyn DiskFile>,
    pub(crate) direct: Option<Box<dyn DiskFile>>,
}

impl Files {
    pub(crate) fn into_extent(self, number: u32, header: Header, id: Id, fresh_from: u32) -> Extent {
        Extent {
            number,
            header,
            id,
            table: self.table,
            direct: self.direct,
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
