//! What the scheduler's handle and the I/O workers of a file tier share, and the calls both make: paths, room,
//! removal, reports.

use std::{
    fmt, io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use super::{
    core::{Core, Victim},
    packed::Pack,
    phase::Phase,
    settings::min_bound_in,
};
use crate::{
    block::{Fingerprint, Key},
    budget::Change,
    clock::{Clock, Instant},
    error::ErrorKind,
    events::Locality,
    fs::{files::cost::write_cost, probes::Probes},
    io::Disk,
    jobs::{bounce::Bounce, progress::Meter, watchdog::Guard},
    metrics::{EvictReason, RefuseReason},
    namespace::{Namespace, dir_seed},
    root::{
        dirs::Dirs,
        journal::{CREDIT_BLOCKS, Journal},
        names::{Fan, Location, MAX_NAMESPACES, Shelf, fingerprint, leaf_dir, name_fingerprint},
        trailer::TRAILER_BYTES,
    },
    sync::{
        Bell, Condvar, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        lock,
    },
    tier::{Direction, Report, RequestId},
    told::Told,
};

/// How old an answer about free space may be.
const FREE_FRESH_FOR: Duration = Duration::from_millis(50);
/// How long the bound stays lowered after the device ran full.
const LOWERED_FOR: Duration = Duration::from_secs(30);

/// Parameters that do not change in a tier's life.
#[derive(Debug, Clone)]
pub(crate) struct Params {
    pub(crate) name: String,
    pub(crate) root: PathBuf,
    pub(crate) block_len: usize,
    pub(crate) verify: bool,
    pub(crate) bounded: bool,
    /// Nothing below the root is changed.
    pub(crate) read_only: bool,
    /// Bytes of the file system to leave free.
    pub(crate) min_free: Option<u64>,
    pub(crate) locality: Locality,
    pub(crate) pin_ttl: Duration,
    pub(crate) miss_ttl: Duration,
    /// Unit of allocation of the file system, in bytes.
    pub(crate) fs_block: u64,
    /// Whether full keys are kept, for events.
    pub(crate) keep_keys: bool,
}

/// Shared by handle and workers.
pub(crate) struct Shared {
    pub(crate) params: Params,
    pub(crate) ns: Namespace,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) core: Mutex<Core>,
    /// Signalled whenever an eviction was settled.
    pub(crate) settled: Condvar,
    pub(crate) dirs: Dirs,
    pub(crate) meter: Arc<Meter>,
    /// The directory of our namespace.
    pub(crate) own: PathBuf,
    /// Directories of all namespaces found below the root; ours is number 0.
    pub(crate) namespaces: Mutex<Vec<PathBuf>>,
    /// What this member owns, told to the next owner. Bounded roots only.
    pub(crate) journal: OnceLock<Journal>,
    /// Woken when there is something to do for the keeper.
    pub(crate) keeper: Bell,
    /// Compactions asked for by tests, and those tried.
    pub(crate) compact_asked: AtomicU64,
    pub(crate) compact_tried: AtomicU64,
    /// How far opening is.
    pub(crate) phase: Mutex<Phase>,
    pub(crate) phase_changed: Condvar,
    pub(crate) nonces: AtomicU64,
    pub(crate) done: Mutex<Vec<Report>>,
    pub(crate) bell: Arc<Bell>,
    /// Whether direct I/O is worth trying on this file system.
    pub(crate) direct: AtomicBool,
    pub(crate) stop: AtomicBool,
    /// Whether this tier, which has no bound, stopped to store for those who have one.
    pub(crate) gave_way: AtomicBool,
    /// For a tier without a bound, the directories above its root: one of them may become a root that has one.
    pub(crate) above: Vec<PathBuf>,
    pub(crate) temp_counter: AtomicU64,
    pub(crate) probes: Mutex<Probes>,
    /// Where new blocks are packed; `None`: each gets a file.
    pub(crate) pack: Option<Pack>,
    pub(crate) guard: Guard,
    /// What the log was told of.
    pub(crate) told: Told,
    pub(crate) bounce: Bounce,
    /// Held by the worker that makes room above the floor; taken before every other lock.
    pub(crate) floor: Mutex<()>,
    /// When the file system was last asked for its free bytes, and what it said less what was reserved since.
    pub(crate) free: Mutex<Option<(Instant, u64)>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}

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

/// What came of removing a file.
enum Removed {
    Gone(Change, Option<Key>),
    Stuck(io::Error),
}

impl Shared {
    pub(crate) fn fingerprint(&self, key: &Key) -> Fingerprint {
        fingerprint(key, self.ns.seed())
    }

    /// The directory of this tier's own namespace.
    pub(crate) fn own_dir(&self) -> &Path {
        &self.own
    }

    /// The directory of a namespace by number.
    pub(crate) fn namespace(&self, number: u16) -> Option<PathBuf> {
        lock(&self.namespaces).get(usize::from(number)).cloned()
    }

    /// The number of the namespace in directory `dir`, new where it is not known; `None` when an index can name no more.
    pub(crate) fn number_of(&self, dir: &str) -> Option<u16> {
        let path = self.params.root.join(dir);
        let mut all = lock(&self.namespaces);
        let at = all.iter().position(|p| *p == path).unwrap_or(all.len());
        let number = u16::try_from(at).ok().filter(|&n| n < MAX_NAMESPACES)?;
        if at == all.len() {
            all.push(path);
        }
        drop(all);
        if let Some(j) = self.journal.get() {
            j.name(number, dir);
        }
        Some(number)
    }

    pub(crate) fn leaf_of(&self, at: &Location) -> PathBuf {
        leaf_dir(self.own_dir(), at.fan, at.leaf)
    }

    pub(crate) fn set_phase(&self, phase: Phase) {
        *lock(&self.phase) = phase;
        self.phase_changed.notify_all();
    }

    /// A number unlike those before.
    pub(crate) fn nonce(&self) -> u64 {
        self.nonces.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }

    /// Bytes by which a journal may outgrow what it stands on before it is compacted.
    pub(crate) fn compact_base(&self) -> u64 {
        let bound = lock(&self.core).root_bound.unwrap_or(u64::MAX);
        (bound / 64).clamp(2 * self.params.fs_block, 4 << 20)
    }

    /// Bytes of a published file of ours.
    pub(crate) fn file_len(&self) -> u64 {
        (self.params.block_len + TRAILER_BYTES) as u64
    }

    /// Bytes to reserve before writing one block.
    pub(crate) fn write_cost(&self) -> u64 {
        write_cost(self.params.block_len, self.params.fs_block)
    }

    /// Reserves `bytes`, evicting oldest unpinned blocks as needed: all of it, or none and the reason. Never waits
    /// for anybody. Each file that cannot be removed is tried once and then left alone for a while.
    pub(crate) fn make_room(&self, bytes: u64, reason: EvictReason) -> Result<u64, NoRoom> {
        self.keep_floor(bytes)?;
        let credit = self.credit();
        let mut granted = 0;
        let mut victims = Vec::new();
        loop {
            {
                let now = self.clock.now();
                let mut core = lock(&self.core);
                core.budget.restore(now);
                let unpaid = core.top_up(credit);
                granted += core.budget.grant(bytes - granted);
                if granted == bytes {
                    return Ok(granted);
                }
                let (refused, extents_help) = if core.budget.bound().is_some_and(|b| bytes > b) {
                    (Some(RefuseReason::TooLarge), false)
                } else if core.budget.effective().is_some_and(|b| bytes > b) {
                    (Some(RefuseReason::NoSpace), false)
                } else if core.trimming {
                    (Some(RefuseReason::Trimming), false)
                } else {
                    core.pressure += bytes - granted;
                    let missing = bytes - granted + unpaid + core.budget.excess();
                    let none = !core.choose_victims(missing, now, &mut victims);
                    (none.then(|| core.why_no_room()), true)
                };
                if let Some(r) = refused {
                    core.budget.release(granted);
                    granted = 0;
                    drop(core);
                    let extents = self.pack.as_ref().filter(|_| extents_help);
                    let more = self.retry_leftovers() || extents.is_some_and(|p| self.drop_extent(p, reason));
                    if !more {
                        return Err(NoRoom(r));
                    }
                }
            }
            for v in victims.drain(..) {
                let removed = self.remove_file(&v);
                let mut core = lock(&self.core);
                self.settle(&mut core, &v, removed, reason, false);
                granted += core.budget.grant(bytes - granted);
            }
            self.settled.notify_all();
        }
    }

    /// Bytes to hold ready for the journal: to grow by, for its next snapshot, and for what the file system may come to
    /// take for either.
    pub(crate) fn credit(&self) -> u64 {
        self.least_credit() + self.journal.get().map_or(0, Journal::claims)
    }

    /// Bytes without which a member can store nothing.
    pub(crate) fn least_share(&self) -> u64 {
        min_bound_in(self.params.block_len, self.params.fs_block)
    }

    pub(crate) fn least_credit(&self) -> u64 {
        CREDIT_BLOCKS * self.params.fs_block
    }

    /// Keeps the file system's free bytes above the floor: evicts what is missing, else refuses.
    pub(crate) fn keep_floor(&self, bytes: u64) -> Result<(), NoRoom> {
        let Some(floor) = self.params.min_free else {
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
                    .disk
                    .space(&self.params.root)
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

    /// Tries again to remove temporaries that could not be removed; returns whether any went.
    fn retry_leftovers(&self) -> bool {
        let left = std::mem::take(&mut lock(&self.core).leftovers);
        let before = left.len();
        let mut kept = Vec::new();
        for (path, bytes) in left {
            match self.disk.remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => kept.push((path, bytes)),
                _ => lock(&self.core).budget.remove_resident(bytes),
            }
        }
        let any = kept.len() < before;
        lock(&self.core).leftovers.extend(kept);
        any
    }

    /// Removes the file of an entry that is `Evicting` and settles. With `bad`, a file that cannot be removed is
    /// never a hit again.
    pub(crate) fn remove_victim(&self, v: &Victim, reason: EvictReason, bad: bool) {
        let removed = self.remove_file(v);
        self.settle(&mut lock(&self.core), v, removed, reason, bad);
        self.settled.notify_all();
    }

    /// Removes a temporary; what cannot be removed stays counted until it can.
    pub(crate) fn discard(&self, temp: PathBuf, bytes: u64) {
        match self.disk.remove_file(&temp) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                let mut core = lock(&self.core);
                core.stats.unlink_failures += 1;
                core.budget.add_resident(bytes);
                core.leftovers.push((temp, bytes));
            }
            _ => {}
        }
    }

    fn settle(&self, core: &mut Core, v: &Victim, removed: Removed, reason: EvictReason, bad: bool) {
        match removed {
            Removed::Gone(dirs, key) => core.settle_removed(v.id, key.as_ref(), reason, dirs),
            Removed::Stuck(error) => {
                let (what, now) = (
                    "a block file cannot be removed; it stays counted",
                    self.clock.now(),
                );
                if self.told.is_new(what, now, 1) {
                    tracing::warn!(tier = %self.params.name, %error, "{what}");
                }
                core.settle_stuck(v.id, bad, now);
            }
        }
    }

    fn remove_file(&self, v: &Victim) -> Removed {
        if self.params.read_only {
            return Removed::Gone(Change::default(), None);
        }
        let Some(ns) = self.namespace(v.namespace) else {
            return Removed::Gone(Change::default(), None);
        };
        let shelf = Shelf {
            namespace: v.namespace,
            leaf: v.leaf,
        };
        let dir = leaf_dir(&ns, v.fan, v.leaf);
        let file = match &v.key {
            Some(k) => Ok(Some(Location::of(k).file_name())),
            None => self.find_name(&ns, &dir, v),
        };
        if let Some(j) = self.journal.get()
            && let Err(error) = j.evict(&self.core, v.fp, (shelf, v.fan))
        {
            // the next owner will miss the block and find that out; room is needed now
            tracing::debug!(%error, "a removal is not in the journal");
        }
        let gone = match file {
            Ok(Some(name)) => self.disk.remove_file(&dir.join(name)),
            Ok(None) => Ok(()),
            Err(e) => Err(e),
        };
        match gone {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Removed::Stuck(e),
            _ => {
                let change = self.dirs.leave(&*self.disk, &ns, v.namespace, v.fan, v.leaf);
                self.journal_gone(v.fp, shelf, v.fan);
                Removed::Gone(change, None)
            }
        }
    }

    /// Tells the journal that nothing of a block is there any more.
    pub(crate) fn journal_gone(&self, fp: Fingerprint, shelf: Shelf, fan: Fan) {
        if let Some(j) = self.journal.get() {
            let costs = self.dirs.costs(shelf.namespace, fan, shelf.leaf);
            j.gone(&self.core, fp, (shelf, fan), costs);
        }
    }

    /// The name, in its leaf directory, of a block of which only the fingerprint is known. Leaves hold a handful of
    /// files, so this costs about as much as the removal itself; it is what keeps full keys out of memory.
    fn find_name(&self, ns: &Path, dir: &Path, v: &Victim) -> io::Result<Option<String>> {
        let dir_text = ns
            .file_name()
            .map(|n| n.to_string_lossy().into_owned())
            .unwrap_or_default();
        let seed = if v.namespace == 0 {
            self.ns.seed()
        } else {
            dir_seed(&dir_text)
        };
        let mut found = None;
        self.disk.list(dir, &mut |name, _| {
            let is_it = |n: &&str| name_fingerprint(n, v.fan, v.leaf, seed) == Some(v.fp);
            if found.is_none() {
                found = name.to_str().filter(is_it).map(str::to_owned);
            }
        })?;
        Ok(found)
    }

    /// The device ran full below the bound: from now on, for a while, the bound is what fits.
    pub(crate) fn device_full(&self, error: &io::Error) {
        let mut core = lock(&self.core);
        if core.budget.effective() == core.budget.bound() {
            tracing::warn!(
                tier = %self.params.name, %error, resident_bytes = core.budget.resident(),
                "the device is full below the bound; the bound is lowered for a while"
            );
        }
        core.budget.lower(self.clock.now(), LOWERED_FOR);
    }

    /// Hands a finished job to the scheduler.
    pub(crate) fn report(&self, report: Report, req: RequestId, fps: &[Fingerprint]) {
        {
            let mut core = lock(&self.core);
            match report.direction {
                Direction::Store => core.stats.store_device_time += report.device_time,
                Direction::Load => core.stats.load_device_time += report.device_time,
            }
        }
        self.touch(req, fps);
        lock(&self.done).push(report);
        self.bell.ring();
    }

    pub(crate) fn next_temp(&self) -> u64 {
        self.temp_counter.fetch_add(1, Ordering::Relaxed)
    }
}
