//! Room for what is to be stored: below the bound (I1), and above the floor of free bytes.

use std::{io, time::Duration};

use crate::{
    budget::Change,
    error::ErrorKind,
    fs::{
        core::{Core, Victim},
        promise::Promise,
        shared::Shared,
        shares::Giver,
    },
    metrics::{EvictReason, RefuseReason},
    root::{
        file::FileRef,
        journal::{CREDIT_BLOCKS, Journal},
    },
    sync::lock,
};

/// How old an answer about free space may be.
const FREE_FRESH_FOR: Duration = Duration::from_millis(50);
/// How long the bound stays lowered after the device ran full.
const LOWERED_FOR: Duration = Duration::from_secs(30);

/// Why no room was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct NoRoom(pub(crate) RefuseReason);

impl NoRoom {
    pub(crate) fn kind(self) -> ErrorKind {
        match self.0 {
            RefuseReason::Trimming => ErrorKind::Busy,
            _ => ErrorKind::Full,
        }
    }
}

impl Shared {
    /// Reserves `bytes`, evicting oldest unpinned blocks as needed: all of it, or none and the reason. Never waits
    /// for anybody. Each file that cannot be removed is tried once and then left alone for a while.
    pub(crate) fn make_room(&self, bytes: u64, reason: EvictReason) -> Result<Promise<'_>, NoRoom> {
        while let Err(no) = self.keep_floor(bytes) {
            match self.giver(None) {
                Some(Giver::Extents(s)) if s.give_back(reason) => {}
                _ => return Err(no),
            }
        }
        let credit = self.credit();
        let mut granted = 0;
        let mut victims = Vec::new();
        let mut ask_shares = self.has_shares();
        loop {
            {
                let now = self.clock.now();
                let mut core = lock(&self.core);
                core.account.budget.restore(now);
                let unpaid = core.account.top_up(credit);
                granted += core.account.budget.grant(bytes - granted);
                if granted == bytes {
                    return Ok(Promise::of(&self.core, granted));
                }
                let (refused, extents_help) = if core.account.budget.bound().is_some_and(|b| bytes > b) {
                    (Some(RefuseReason::TooLarge), false)
                } else if core.account.budget.effective().is_some_and(|b| bytes > b) {
                    (Some(RefuseReason::NoSpace), false)
                } else if core.account.trimming {
                    (Some(RefuseReason::Trimming), false)
                } else if ask_shares {
                    drop(core);
                    ask_shares = matches!(self.giver(None), Some(Giver::Extents(s)) if s.give_back(reason));
                    continue;
                } else {
                    core.account.pressure += bytes - granted;
                    let missing = bytes - granted + unpaid + core.account.budget.excess();
                    let none = !core.choose_victims(missing, now, &mut victims);
                    (none.then(|| core.account.why_no_room()), true)
                };
                if let Some(r) = refused {
                    core.account.budget.release(granted);
                    granted = 0;
                    drop(core);
                    let more =
                        self.root.retry_leftovers(&self.core) || extents_help && self.give_back(reason);
                    if !more {
                        return Err(NoRoom(r));
                    }
                }
            }
            for v in victims.drain(..) {
                let removed = self.unlink(&v);
                let mut core = lock(&self.core);
                self.settle_removal(&mut core, &v, removed, reason, false);
                granted += core.account.budget.grant(bytes - granted);
            }
            self.settled.notify_all();
        }
    }

    /// Bytes to hold ready for the journal: to grow by, for its next snapshot, and for what the file system may come to
    /// take for either.
    pub(crate) fn credit(&self) -> u64 {
        self.least_credit() + self.root.journal.get().map_or(0, Journal::claims)
    }

    pub(crate) fn least_credit(&self) -> u64 {
        CREDIT_BLOCKS * self.root.unit
    }

    /// Keeps the file system's free bytes above the floor: evicts what is missing, else refuses.
    pub(crate) fn keep_floor(&self, bytes: u64) -> Result<(), NoRoom> {
        let Some(floor) = self.min_free else {
            return Ok(());
        };
        let want = floor.saturating_add(bytes);
        if self.free_bytes(bytes, false) >= want {
            return Ok(());
        }
        // one worker at a time makes room, each for what is then still missing
        let _turn = lock(&self.floor);
        let missing = want.saturating_sub(self.free_bytes(bytes, true));
        if missing == 0 {
            return Ok(());
        }
        let mut victims = Vec::new();
        lock(&self.core).choose_victims(missing, self.clock.now(), &mut victims);
        for v in &victims {
            self.remove_victim(v, EvictReason::NoSpace, false);
        }
        if self.free_bytes(bytes, true) < want {
            return Err(NoRoom(RefuseReason::NoSpace));
        }
        Ok(())
    }

    /// Free bytes of the file system before `bytes` more are written: asked for at most every 50 ms, and reduced by
    /// what was let through since, unless `fresh`.
    pub(crate) fn free_bytes(&self, bytes: u64, fresh: bool) -> u64 {
        let now = self.clock.now();
        let mut known = lock(&self.free);
        let free = match *known {
            Some((at, free)) if !fresh && now.since(at) < FREE_FRESH_FOR => free,
            _ => {
                drop(known);
                let free = self
                    .root
                    .disk
                    .space(&self.root.path)
                    .map_or(u64::MAX, |s| s.available);
                known = lock(&self.free);
                free
            }
        };
        let at = known.map_or(now, |(at, _)| {
            if now.since(at) < FREE_FRESH_FOR && !fresh {
                at
            } else {
                now
            }
        });
        *known = Some((at, free.saturating_sub(bytes)));
        free
    }

    /// Removes the file of an entry that is `Evicting` and settles. With `bad`, a file that cannot be removed is
    /// never a hit again.
    pub(crate) fn remove_victim(&self, v: &Victim, reason: EvictReason, bad: bool) {
        let removed = self.unlink(v);
        self.settle_removal(&mut lock(&self.core), v, removed, reason, bad);
        self.settled.notify_all();
    }

    fn settle_removal(
        &self,
        core: &mut Core,
        v: &Victim,
        removed: io::Result<Change>,
        reason: EvictReason,
        bad: bool,
    ) {
        match removed {
            Ok(dirs) => core.settle_removed(v.id, reason, dirs),
            Err(error) => {
                let (what, now) = (
                    "a block file cannot be removed; it stays counted",
                    self.clock.now(),
                );
                if self.root.told.is_new(what, now, 1) {
                    tracing::warn!(tier = %self.name, %error, "{what}");
                }
                core.catalog.stays(v.id, bad, now);
            }
        }
    }

    /// The device ran full below the bound: from now on, for a while, the bound is what fits.
    pub(crate) fn device_full(&self, error: &io::Error) {
        let mut core = lock(&self.core);
        if core.account.budget.effective() == core.account.budget.bound() {
            tracing::warn!(
                tier = %self.name, %error, resident_bytes = core.account.budget.resident(),
                "the device is full below the bound; the bound is lowered for a while"
            );
        }
        core.account.budget.lower(self.clock.now(), LOWERED_FOR);
    }

    /// Bytes by which a journal may outgrow what it stands on before it is compacted.
    pub(crate) fn compact_base(&self) -> u64 {
        let bound = lock(&self.core).account.root_bound.unwrap_or(u64::MAX);
        (bound / 64).clamp(2 * self.root.unit, 4 << 20)
    }

    fn unlink(&self, v: &Victim) -> io::Result<Change> {
        let file = FileRef {
            fp: v.fp,
            class: v.class,
            prefix: v.prefix,
            key: v.key.as_ref(),
        };
        self.root.remove(&self.core, &file)
    }
}
