//! Slots for a store: free ones, then a new extent while the bound has room for one, then evicted ones. Where the
//! root has one space, blocks that have files of their own go before packed ones: what they cost becomes extents.

use std::{collections::VecDeque, io, sync::Arc};

use super::{
    Pack,
    extent::{Extent, FEW_SLOTS, extent_bytes, extent_cost},
    extents::MAX_EXTENTS,
    format::Header,
    free::SlotRun,
};
use crate::{
    catalog::body::Rank,
    clock::Instant,
    error::{IoClass, classify},
    fs::{promise::Promise, room::NoRoom, shares::Giver, space::Space},
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

impl Pack {
    /// Takes up to `n` slots for `req`, evicting as needed, and adds them to `out`; some, or none and the reason. Never
    /// waits for anybody but who makes an extent.
    pub(crate) fn take_slots(
        &self,
        s: &Space,
        n: u32,
        req: RequestId,
        out: &mut VecDeque<(Arc<Extent>, SlotRun)>,
    ) -> Result<(), NoSlots> {
        if lock(&s.core).account.trimming {
            return Err(NoSlots::Room(NoRoom(RefuseReason::Trimming)));
        }
        self.free_forgotten(s);
        let (mut got, mut failed, mut full) = (0, None, false);
        loop {
            let from = out.len();
            got += self.take(n - got, req, out);
            let lost = self.give_lost(s, out, from);
            got -= lost;
            if got >= n {
                return Ok(());
            }
            if lost > 0 {
                continue;
            }
            if failed.is_none() {
                match self.grow(s) {
                    Grown::Yes => continue,
                    Grown::NoRoom => {}
                    Grown::NoSpace | Grown::Floor => full = true,
                    Grown::Failed(e) => failed = Some(e),
                }
            }
            if !self.reopen_if_free(s) && !self.evict_slots(s, n - got, failed.is_none()) {
                break;
            }
        }
        match failed {
            _ if got > 0 => Ok(()),
            Some(e) => Err(NoSlots::Disk(e)),
            None if full => Err(NoSlots::Room(NoRoom(RefuseReason::NoSpace))),
            None => Err(NoSlots::Room(NoRoom(lock(&s.core).account.why_no_room()))),
        }
    }

    /// Takes slots of extents that were to be given back and are not any more.
    fn reopen_if_free(&self, s: &Space) -> bool {
        lock(&s.core).account.budget.above_bound() == 0 && self.reopen()
    }

    /// Evicts about `n` blocks, those with files of their own first where their bytes can become an extent; `false`
    /// when nothing can go.
    fn evict_slots(&self, s: &Space, n: u32, mut files_help: bool) -> bool {
        if files_help && s.has_shares() {
            match s.giver(Some(s.id)) {
                Some(Giver::Extents(other)) if other.give_back(EvictReason::Capacity) => return true,
                Some(Giver::Files) => {}
                // whoever has its share keeps its files; what nobody here serves goes
                _ => files_help = lock(&s.core).catalog.has_orphans(),
            }
        }
        let n = u64::from(n.max(EVICT_AT_ONCE));
        let (mut freed, mut files) = (Vec::new(), Vec::new());
        let now = s.clock.now();
        {
            let mut core = lock(&s.core);
            core.account.pressure += n * self.slot_bytes;
            let mut want = n * self.slot_bytes;
            if !files_help || core.catalog.is_empty(Rank::Whole) {
                want = 0;
            }
            while want > 0 && !core.choose_victims(want, now, &mut files) {
                want /= 2;
            }
            if files.is_empty() {
                core.evict_slots(self.store, (n, self.slot_bytes), now, &mut freed);
            }
        }
        let any = !freed.is_empty() || !files.is_empty();
        self.give(&mut freed);
        for v in &files {
            s.remove_victim(v, EvictReason::Capacity, false);
        }
        any
    }

    /// Makes an extent if the bound has room for one.
    fn grow(&self, s: &Space) -> Grown {
        let _turn = lock(&self.grow);
        if self.free() > 0 {
            // somebody else made one, or gave slots back, meanwhile
            return Grown::Yes;
        }
        let now = s.clock.now();
        if lock(&s.core)
            .account
            .no_help_until
            .is_some_and(|until| now < until)
        {
            return Grown::Failed(io::ErrorKind::StorageFull.into());
        }
        let beside = BESIDE_BLOCKS * s.root.unit;
        let (Some(number), Some(slots)) = (self.free_number(), self.slots_that_fit(s, beside)) else {
            return Grown::NoRoom;
        };
        let smallest = self.smallest().min(slots);
        let mut slots = self.slots_with_space(s, slots, smallest, beside);
        loop {
            match self.grow_by(s, number, slots, beside) {
                // what the file system tells as free is not always to be had
                Grown::NoSpace if slots / 2 >= smallest => slots /= 2,
                Grown::NoSpace => return self.full(s, now),
                grown => return grown,
            }
        }
    }

    /// The device has no space for an extent of any size.
    fn full(&self, s: &Space, now: Instant) -> Grown {
        let error = io::Error::from(io::ErrorKind::StorageFull);
        let first = {
            let mut core = lock(&s.core);
            let first = core.account.budget.effective() == core.account.budget.bound();
            if !first {
                // what was evicted for it since did not help
                core.account.eviction_does_not_help(now);
            }
            first
        };
        if first {
            s.device_full(&error);
            return Grown::NoSpace;
        }
        Grown::Failed(error)
    }

    /// Makes an extent of `slots` slots.
    fn grow_by(&self, s: &Space, number: u32, slots: u32, beside: u64) -> Grown {
        let cost = extent_cost(slots, self.slot_bytes, s.root.unit) + beside;
        if s.keep_floor(cost).is_err() {
            return Grown::Floor;
        }
        {
            let mut core = lock(&s.core);
            if core.account.budget.room() < cost {
                return Grown::NoRoom;
            }
            core.account.budget.grant(cost);
        }
        match self.make_extent(s, number, slots, Promise::of(&s.core, cost)) {
            Ok(()) => Grown::Yes,
            Err(e) if classify(&e) == IoClass::Full => Grown::NoSpace,
            Err(e) => {
                let what = "no extent could be made";
                if s.root.told.is_new(what, s.clock.now(), 1) {
                    tracing::warn!(tier = %s.params.name, error = %e, "{what}");
                }
                Grown::Failed(e)
            }
        }
    }

    /// Slots of the smallest extent worth making where the device has little space, as long as there are few extents:
    /// when it has more, there shall be numbers left for large ones.
    fn smallest(&self) -> u32 {
        if self.len() < MAX_EXTENTS / 2 {
            FEW_SLOTS
        } else {
            Header::slots_in(self.nominal / SMALLEST_PART, self.slot_bytes).max(FEW_SLOTS)
        }
    }

    /// `slots`, halved until the device has space for them above the floor, but no less than `smallest`.
    fn slots_with_space(&self, s: &Space, mut slots: u32, smallest: u32, beside: u64) -> u32 {
        let free = s.free_bytes(0, false);
        let space = free.saturating_sub(s.min_free.unwrap_or(0));
        let cost = |slots| extent_cost(slots, self.slot_bytes, s.root.unit) + beside;
        while slots / 2 >= smallest && cost(slots) > space {
            slots /= 2;
        }
        slots
    }

    /// Slots of the extent that the bound has room for, with `beside` bytes left.
    fn slots_that_fit(&self, s: &Space, beside: u64) -> Option<u32> {
        let credit = s.credit();
        let room = {
            let mut core = lock(&s.core);
            core.account.budget.restore(s.clock.now());
            core.account.top_up(credit);
            core.account.budget.room().saturating_sub(beside)
        };
        let cost = |slots| extent_cost(slots, self.slot_bytes, s.root.unit);
        let mut slots = Header::slots_in(self.nominal.min(room), self.slot_bytes);
        while slots > 0 && cost(slots) > room {
            slots -= (slots / 64).max(1);
        }
        (extent_bytes(slots, self.slot_bytes) >= self.nominal / SMALLEST_PART && slots > 0).then_some(slots)
    }
}
