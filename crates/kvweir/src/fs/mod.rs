//! The file tier: one file a block in vLLM's own directory layout, below a hard byte limit.
//!
//! | file | what it holds |
//! |---|---|
//! | `settings.rs` | the settings and their checks |
//! | `open.rs`, `load_root.rs`, `walk.rs`, `trim.rs`, `whose.rs` | opening a root: joining, journal or survey, sweep, trim, identity |
//! | `around.rs` | whose bound an engine would break: members beside it, roots above and below |
//! | `ledger.rs`, `member.rs`, `keep.rs`, `keeping.rs`, `adopt.rs` | who owns how much of a root's bytes; the thread that settles that, and how it ends; what the dead left |
//! | `journal/` | what a member wrote and removed, for its next life and for others |
//! | `layout.rs`, `trailer.rs` | the names of files and the page behind each block |
//! | `core.rs`, `index.rs`, `table.rs`, `pins.rs` | the state behind the one lock |
//! | `dirs.rs`, `leaves.rs`, `emptied.rs` | directories: made, counted, removed; a number for each; those that could not go |
//! | `shared.rs` | making room and removing files |
//! | `later.rs` | what the scheduler leaves to the workers |
//! | `lost.rs`, `again.rs` | what somebody else removed: blocks, directories, the root |
//! | `told.rs` | what the log tells of many like events |
//! | `admin/`, `watch.rs` | what operators do beside engines; walks that change nothing |
//! | `store.rs`, `load.rs`, `pieces.rs`, `probe.rs`, `progress.rs` | what workers do |
//! | `abroad.rs` | the tier in a child of its process |
//! | `guard.rs`, `bounce.rs` | deadlines, breaker, buffers: what a disk that hangs may hold up |
//!
//! Keeps I1 (reservations before bytes, directories counted), I2 (trailers compared before a block is good), I3
//! (pins), I4 (each job reported once), I5 (slot guards held until I/O ends), I7 (events), I8 (the lock guards
//! memory only), I10 (failures become misses). Lock order: directory stripe, then core.

mod abroad;
#[cfg(feature = "testing")]
mod bench;
pub(crate) mod core;
mod deferred;
pub(crate) mod files;
mod gives_way;
mod identify;
mod keeper;
pub(crate) mod load;
mod lost;
pub(crate) mod open;
pub(crate) mod packed;
pub(crate) mod phase;
mod probe;
pub(crate) mod probes;
pub(crate) mod recover;
mod runner;
pub(crate) mod settings;
pub(crate) mod shared;
pub(crate) mod store;
mod trim;

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

pub use crate::admin;
pub use crate::jobs::bounce::BounceMode;
pub use settings::{FsSettings, Layout, PACK_BELOW, min_bound, min_pack_bound};

use self::{
    files::pieces::PIECE,
    keeper::Keeping,
    load::LoadRun,
    open::{Opened, Parts},
    probe::Probe,
    shared::Shared,
    store::StoreRun,
};
use crate::{
    block::{Fingerprint, Key},
    catalog::index::BATCH,
    clock::{Clock, Instant, SystemClock},
    error::Result,
    events::{Event, Locality, Medium},
    io::{
        Disk, OsDisk,
        engine::{EngineKind, Engines},
        pool::{Class, Pool},
        process::Home,
    },
    metrics::TierStats,
    namespace::Namespace,
    sync::{Bell, lock},
    tier::{Direction, JobId, LoadBlock, LoadJob, Lookup, Report, RequestId, StoreBlock, StoreJob, Tier},
};

/// Longest wait of a drain for stores that are queued; what has not begun by then is cancelled.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);
/// How often a drain looks after deadlines.
const DRAIN_LOOK: Duration = Duration::from_millis(20);
/// Longest wait, when a tier is opened, for the walk of a root without a journal.
const OPEN_PATIENCE: Duration = Duration::from_millis(500);
/// Longest wait at shutdown for I/O that already runs.
const SHUTDOWN_PATIENCE: Duration = Duration::from_secs(5);

/// Builds an [`FsTier`]: settings are data, clock and disk are components.
#[derive(Debug)]
pub struct FsBuilder {
    name: String,
    settings: FsSettings,
    ns: Namespace,
    block_len: usize,
    disk: Arc<dyn Disk>,
    clock: Arc<dyn Clock>,
    bell: Arc<Bell>,
    honours_guards: bool,
    boot: Option<[u8; 16]>,
    patience: Duration,
}

impl FsBuilder {
    /// A tier for blocks of `block_len` bytes of namespace `ns`.
    pub fn new(settings: FsSettings, ns: Namespace, block_len: usize) -> Self {
        Self {
            name: "fs".into(),
            settings,
            ns,
            block_len,
            disk: Arc::new(OsDisk),
            clock: SystemClock::shared(),
            bell: Arc::default(),
            honours_guards: true,
            boot: None,
            patience: OPEN_PATIENCE,
        }
    }

    /// The tier's name in metrics and logs; `fs` unless set.
    #[must_use]
    pub fn name(mut self, name: impl Into<String>) -> Self {
        self.name = name.into();
        self
    }

    /// Another disk than the operating system's.
    #[must_use]
    pub fn disk(mut self, disk: Arc<dyn Disk>) -> Self {
        self.disk = disk;
        self
    }

    /// Another clock than the system's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// A bell to ring whenever a report is ready.
    #[must_use]
    pub fn bell(mut self, bell: Arc<Bell>) -> Self {
        self.bell = bell;
        self
    }

    /// Whether the engine leaves a slot alone as long as a guard of it exists, also when the job was reported:
    /// [`Primary`](crate::primary::Primary) does. If not, a load that reads straight into a slot is not reported before
    /// its I/O has ended, however long that takes; loads through a buffer (`bounce`) and stores are reported at their
    /// deadline either way.
    #[must_use]
    pub fn honours_guards(mut self, yes: bool) -> Self {
        self.honours_guards = yes;
        self
    }

    /// Another id of the machine's current boot than the system's: a journal of another boot is not believed.
    #[must_use]
    pub fn boot_id(mut self, id: [u8; 16]) -> Self {
        self.boot = Some(id);
        self
    }

    /// How long opening waits for the walk of a root whose journal cannot be used, half a second unless set. What is
    /// not found by then is a miss until it is; stores are refused until all is found.
    #[must_use]
    pub fn walk_patience(mut self, patience: Duration) -> Self {
        self.patience = patience;
        self
    }

    /// Opens the root and starts the workers.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for settings or a directory that cannot work, a bound too small
    /// for what the file system gives out space in, also for a root with a bound below or above another one; [`ErrorKind::Busy`](crate::ErrorKind::Busy) when another process uses the
    /// root, or one above, and its bound would not hold (its pid and host are named), or when the system gives no
    /// thread; [`ErrorKind::Full`](crate::ErrorKind::Full) when the bound has no room for the tier's own files; or the I/O
    /// error of the walk. Then nothing of the tier is left: no thread, and no claim on the root.
    pub fn open(self) -> Result<FsTier> {
        let Self {
            name,
            settings,
            ns,
            block_len,
            disk,
            clock,
            bell,
            honours_guards,
            boot,
            patience,
        } = self;
        let (pool_size, thread_name) = (settings.pool, format!("kvweir-{name}"));
        let engine = settings.engine;
        let Opened { shared, keeper } = open::open(Parts {
            name,
            settings,
            ns,
            block_len,
            disk,
            clock,
            bell,
            honours_guards,
            boot: boot.unwrap_or_else(crate::io::boot_id),
            patience,
        })?;
        // files of one piece are read by one call either way
        let engines = Engines::choose(match shared.pack {
            None if block_len <= PIECE => EngineKind::Threads,
            _ => engine,
        });
        let pool = Pool::start_with(&thread_name, pool_size, &engines)?;
        Ok(FsTier {
            shared,
            pool,
            keeper,
            home: Home::here(),
            refused: Vec::new(),
            asked: None,
        })
    }
}

/// A tier of files below one directory. In a child that is forked from the process that opened it every lookup misses,
/// every job is reported [`Closed`](crate::ErrorKind::Closed), and nothing else is done.
///
/// ```
/// use kvweir::{fs::{FsBuilder, FsSettings}, namespace::{Identity, Namespace}, tier::{Lookup, RequestId, Tier}, Key};
/// # fn main() -> kvweir::Result<()> {
/// # let dir = tempfile::tempdir().unwrap();
/// let settings = FsSettings { max_bytes: Some(64 << 20), ..FsSettings::new(dir.path().join("kv")) };
/// let mut tier = FsBuilder::new(settings, Namespace::new(&Identity::default())?, 64 * 1024).open()?;
/// assert_eq!(tier.lookup(&Key::new(b"some block hash")?, RequestId(1)), Lookup::Miss);
/// tier.shutdown();
/// # Ok(()) }
/// ```
pub struct FsTier {
    shared: Arc<Shared>,
    pool: Pool,
    keeper: Option<Keeping>,
    /// The process that opened it.
    home: Home,
    /// Reports of jobs that were submitted in another.
    refused: Vec<Report>,
    /// Who asked last, when, and how many more lookups of it may take that for now. Any other call ends it.
    asked: Option<(RequestId, Instant, usize)>,
}

impl fmt::Debug for FsTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FsTier")
            .field("root", &self.shared.params.root)
            .finish_non_exhaustive()
    }
}

impl FsTier {
    /// Heap bytes of index, policy and directory table, and those of them that hold full keys for events.
    pub fn index_memory(&self) -> (usize, usize) {
        if self.is_surely_abroad() {
            return (0, 0);
        }
        let (index, policy, keys) = {
            let core = lock(&self.shared.core);
            let (index, keys) = core.index.memory_bytes();
            (
                index,
                core.policy.memory_bytes() + core.packed.memory_bytes(),
                keys,
            )
        };
        // not under the core lock: a worker may hold a stripe across I/O
        (index + policy + self.shared.dirs.memory_bytes(), keys)
    }

    /// Whether stores still wait for a walk or trim begun at start.
    pub fn is_trimming(&self) -> bool {
        !self.is_surely_abroad() && lock(&self.shared.core).trimming
    }

    /// The directory, below the root, that holds this tier's blocks.
    pub fn namespace_dir(&self) -> &std::path::Path {
        self.shared.own_dir()
    }

    /// How many leading keys of `keys` can be loaded; each of them is pinned for `req`. One hold of the lock for all,
    /// so that the memory accesses of the lookups overlap. Only for bounded roots: elsewhere an unknown key is taken
    /// as a miss.
    pub fn lookup_prefix(&mut self, keys: &[Key], req: RequestId) -> usize {
        let hits = self.pin_ahead(keys, req);
        if self.is_abroad() {
            return 0;
        }
        let stats = &mut lock(&self.shared.core).stats;
        stats.lookup_hits += hits as u64;
        stats.lookup_misses += u64::from(hits < keys.len());
        hits
    }

    /// As [`lookup_prefix`](Self::lookup_prefix), for keys that will be asked for soon, in any root: nothing is counted
    /// before [`count_hits`](Self::count_hits), and a key that is not pinned must be looked up when it is asked for.
    pub fn pin_ahead(&mut self, keys: &[Key], req: RequestId) -> usize {
        if self.is_abroad() {
            return 0;
        }
        let s = &*self.shared;
        let all = keys.len();
        let mut fps = [Fingerprint(0); BATCH];
        let mut ids = [None; BATCH];
        let now = s.clock.now();
        self.look_after(now);
        let mut core = lock(&s.core);
        if core.closed {
            return 0;
        }
        core.expire_leases(now, s.params.pin_ttl);
        if s.guard.is_tripped() {
            return 0;
        }
        let mut hits = 0;
        for (keys, begun) in keys.chunks(BATCH).zip((0..).step_by(BATCH)) {
            for (fp, key) in fps.iter_mut().zip(keys) {
                *fp = s.fingerprint(key);
            }
            let (fps, ids) = (
                fps.get(..keys.len()).unwrap_or_default(),
                ids.get_mut(..keys.len()).unwrap_or_default(),
            );
            core.index.find_ready(fps, ids);
            let found = ids.iter().map_while(|&id| id);
            let n = found.clone().count();
            core.pin_all_for(req, found, now, all - begun);
            hits += n;
            if n < keys.len() {
                break;
            }
        }
        hits
    }

    /// Whether each of `keys` can be loaded, as far as memory tells: nothing is pinned, counted or looked for on disk. In
    /// a root that others write to, a key that is not known may be there: it counts as held.
    pub fn held(&self, keys: &[Key]) -> Vec<bool> {
        let s = &*self.shared;
        let mut fps = [Fingerprint(0); BATCH];
        let mut ids = [None; BATCH];
        let mut held = Vec::with_capacity(keys.len());
        for keys in keys.chunks(BATCH) {
            for (fp, key) in fps.iter_mut().zip(keys) {
                *fp = s.fingerprint(key);
            }
            let core = lock(&s.core);
            let away = core.closed || s.guard.is_tripped();
            let (fps, ids) = (
                fps.get(..keys.len()).unwrap_or_default(),
                ids.get_mut(..keys.len()).unwrap_or_default(),
            );
            core.index.find_ready(fps, ids);
            held.extend(fps.iter().zip(ids.iter()).map(|(&fp, id)| {
                !away && (id.is_some() || !s.params.bounded && core.index.find(fp).is_none())
            }));
        }
        held
    }

    /// Keys that [`pin_ahead`](Self::pin_ahead) pinned were asked for.
    pub fn count_hits(&mut self, hits: u64) {
        if self.is_abroad() {
            return;
        }
        lock(&self.shared.core).stats.lookup_hits += hits;
    }

    /// Starts storing `blocks` blocks. A worker calls `make` for them when it reaches the job: submitting costs the
    /// same for one block and for thousands. The job fails if `make` does, or gives another number of blocks.
    pub fn store_later(
        &mut self,
        id: JobId,
        req: RequestId,
        blocks: usize,
        make: impl FnOnce() -> Result<Vec<StoreBlock>> + Send + 'static,
    ) {
        if self.is_surely_abroad() {
            return self.refuse_abroad(id, Direction::Store, blocks);
        }
        self.asked = None;
        deferred::submit::<StoreRun>(&self.shared, &self.pool, (id, req), blocks, make);
    }

    /// Starts loading `blocks` blocks, made as those of [`store_later`](Self::store_later). All pins of `req` pass to
    /// the job; those on other blocks come back when a worker has reached it, or, where the request has ended, go when
    /// one has reached the last of its jobs.
    pub fn load_later(
        &mut self,
        id: JobId,
        req: RequestId,
        blocks: usize,
        make: impl FnOnce() -> Result<Vec<LoadBlock>> + Send + 'static,
    ) {
        if self.is_surely_abroad() {
            return self.refuse_abroad(id, Direction::Load, blocks);
        }
        self.asked = None;
        deferred::submit::<LoadRun>(&self.shared, &self.pool, (id, req), blocks, make);
    }

    /// The request is over: its pins are released now, and a worker marks the blocks that `keys` names, in prefix
    /// order, as used.
    pub fn finish_later(&mut self, req: RequestId, keys: impl FnOnce() -> Vec<Key> + Send + 'static) {
        if self.is_surely_abroad() {
            return;
        }
        self.asked = None;
        self.end_request(req);
        deferred::touch(&self.shared, &self.pool, req, keys);
    }

    /// Which layout new blocks get.
    pub fn layout(&self) -> Layout {
        match self.shared.pack {
            Some(_) => Layout::Pack,
            None => Layout::Fs,
        }
    }

    /// What a request held is free: pins, and slots kept for its next blocks.
    fn end_request(&self, req: RequestId) {
        lock(&self.shared.core).end_request(req);
        if let Some(p) = &self.shared.pack {
            p.end_request(req);
        }
    }

    /// The time, which lookups of one request that follow each other read for every [`BATCH`]th of them only: a clock
    /// costs a fifth of a lookup.
    fn asked_at(&mut self, req: RequestId) -> Instant {
        match &mut self.asked {
            Some((r, at, left)) if *r == req && *left > 0 => {
                *left -= 1;
                *at
            }
            _ => {
                let now = self.shared.clock.now();
                self.asked = Some((req, now, BATCH));
                now
            }
        }
    }

    /// Looks for a key that the index of a shared root does not know.
    fn probe(&self, key: &Key) -> Lookup {
        let s = &self.shared;
        let fp = s.fingerprint(key);
        {
            let mut p = lock(&s.probes);
            if p.is_known_miss(fp, s.clock.now()) {
                return Lookup::Miss;
            }
            if p.running.contains_key(&fp) {
                return Lookup::Retry;
            }
            p.running.insert(fp, s.clock.now());
        }
        let probe = Arc::new(Probe {
            shared: Arc::clone(s),
            key: key.clone(),
            fp,
        });
        if self.pool.submit(Class::Load, probe, 1).is_err() {
            lock(&s.probes).running.remove(&fp);
            return Lookup::Miss;
        }
        Lookup::Retry
    }
}

impl Tier for FsTier {
    fn name(&self) -> &str {
        &self.shared.params.name
    }

    fn medium(&self) -> Medium {
        Medium::Storage
    }

    fn locality(&self) -> Locality {
        self.shared.params.locality
    }

    fn lookup(&mut self, key: &Key, req: RequestId) -> Lookup {
        if self.is_abroad() {
            return Lookup::Miss;
        }
        let now = self.asked_at(req);
        self.look_after(now);
        let s = &*self.shared;
        {
            let fp = s.fingerprint(key);
            let mut core = lock(&s.core);
            core.expire_leases(now, s.params.pin_ttl);
            // nothing can be loaded after a shutdown, and nobody would release the pin; a device that failed is left alone
            let away = core.closed || s.guard.is_tripped();
            if let Some(id) = core.ready(fp).filter(|_| !away) {
                core.pin_for(req, id, now);
                core.stats.lookup_hits += 1;
                return Lookup::Hit;
            }
            // known, but being written, removed or found bad; or the index is the whole truth
            if s.params.bounded || away || core.index.find(fp).is_some() {
                core.stats.lookup_misses += 1;
                return Lookup::Miss;
            }
        }
        let answer = self.probe(key);
        // it is asked again when time has passed
        self.asked = None;
        let stats = &mut lock(&s.core).stats;
        match answer {
            Lookup::Hit => stats.lookup_hits += 1,
            Lookup::Miss => stats.lookup_misses += 1,
            Lookup::Retry => stats.lookup_retries += 1,
        }
        answer
    }

    fn submit_store(&mut self, job: StoreJob) {
        self.store_later(job.id, job.req, job.blocks.len(), || Ok(job.blocks));
    }

    fn submit_load(&mut self, job: LoadJob) {
        self.load_later(job.id, job.req, job.blocks.len(), || Ok(job.blocks));
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        if self.is_surely_abroad() {
            return reports.append(&mut self.refused);
        }
        self.asked = None;
        self.look_after(self.shared.clock.now());
        reports.append(&mut lock(&self.shared.done));
    }

    fn touch(&mut self, keys: &[Key], req: RequestId) {
        if self.is_surely_abroad() {
            return;
        }
        let s = &*self.shared;
        let fps: Vec<_> = keys.iter().map(|k| s.fingerprint(k)).collect();
        s.touch(req, &fps);
    }

    fn on_request_finished(&mut self, req: RequestId, keys: &[Key]) {
        if self.is_surely_abroad() {
            return;
        }
        self.asked = None;
        self.end_request(req);
        let s = &*self.shared;
        let fps: Vec<_> = keys.iter().map(|k| s.fingerprint(k)).collect();
        s.touch(req, &fps);
    }

    fn take_events(&mut self, events: &mut Vec<Event>) {
        if self.is_surely_abroad() {
            return;
        }
        lock(&self.shared.core).events.take(events);
    }

    fn has_pending_work(&self) -> bool {
        if self.is_abroad() {
            return !self.refused.is_empty();
        }
        // not what workers do: one that hangs has nothing to report
        let s = &*self.shared;
        s.guard.owes_reports() || !lock(&s.done).is_empty() || !lock(&s.probes).running.is_empty()
    }

    fn drain(&mut self) {
        if self.is_surely_abroad() {
            return;
        }
        let g = &self.shared.guard;
        self.pool.cancel_queued(Class::Load);
        for look in 1u32.. {
            if self.pool.wait_idle(DRAIN_LOOK) {
                return;
            }
            if DRAIN_LOOK * look > DRAIN_PATIENCE {
                self.pool.cancel_queued(Class::Store);
            }
            self.look_after(self.shared.clock.now());
            if g.has_hung() && !g.owes_reports() {
                return;
            }
        }
    }

    fn shutdown(&mut self) {
        if self.is_surely_abroad() {
            return;
        }
        if self.shared.stop.swap(true, Ordering::Relaxed) {
            return;
        }
        lock(&self.shared.core).closed = true;
        let ended = self.pool.stop(SHUTDOWN_PATIENCE);
        self.give_all_up();
        self.shared
            .told
            .tell(&self.shared.params.name, self.shared.clock.now(), true);
        lock(&self.shared.core).end_all_requests();
        if !ended {
            // whoever owned the root now would race our own writer: it stays claimed until this process ends (I1)
            tracing::error!(tier = %self.shared.params.name, "I/O still runs at shutdown; its slots and the root stay claimed");
        }
        if let Some(k) = &mut self.keeper {
            k.end(ended);
        }
    }

    fn stats(&self) -> TierStats {
        if self.is_surely_abroad() {
            return TierStats::default();
        }
        let s = &*self.shared;
        let mut t = lock(&s.core).snapshot(s.clock.unix_seconds());
        t.queued_blocks = self.pool.queued() as u64;
        t.stores_held = self.pool.held_stores();
        s.guard.fill(&mut t);
        t
    }
}

impl Drop for FsTier {
    fn drop(&mut self) {
        if self.is_surely_abroad() {
            return self.forget_all();
        }
        self.shutdown();
    }
}
