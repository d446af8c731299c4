//! The scheduler's handle of a local tier: answers from memory, leaves all I/O to workers (I8).

use std::{
    fmt,
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use crate::{
    block::{Fingerprint, Key},
    catalog::{body::Rank, index::BATCH},
    clock::Instant,
    error::Result,
    events::{Event, Locality, Medium},
    fs::{probe::Probe, running::Running, settings::Layout, space::Space},
    io::{
        pool::{Class, PoolShare},
        process::Home,
    },
    jobs::{
        Backend, LoadRun, StoreRun,
        deferred::{mark_used, mark_used_later, submit},
        look::look_after,
    },
    metrics::TierStats,
    sync::lock,
    tier::{Direction, JobId, LoadBlock, LoadJob, Lookup, Report, RequestId, StoreBlock, StoreJob, Tier},
};

/// Longest wait of a drain for stores that are queued; what has not begun by then is cancelled.
const DRAIN_PATIENCE: Duration = Duration::from_secs(5);
/// How often a drain looks after deadlines.
const DRAIN_LOOK: Duration = Duration::from_millis(20);

/// A tier of blocks of one namespace below a directory. Dropping it shuts it down. In a child that is forked from the
/// process that opened it every lookup misses, every job is reported [`Closed`](crate::ErrorKind::Closed), and nothing
/// else is done.
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
    pub(super) space: Arc<Space>,
    pub(super) pool: PoolShare,
    pub(super) running: Arc<Running>,
    /// The process that opened it.
    pub(super) home: Home,
    /// Reports of jobs that were submitted in another.
    pub(super) refused: Vec<Report>,
    /// Who asked last, when, and how many more lookups of it may take that for now. Any other call ends it.
    pub(super) asked: Option<(RequestId, Instant, usize)>,
}

impl fmt::Debug for FsTier {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("FsTier")
            .field("name", &self.space.params.name)
            .field("root", &self.space.root.path)
            .finish_non_exhaustive()
    }
}

impl FsTier {
    /// A tier that is open.
    pub(super) fn new(space: Arc<Space>, running: &Arc<Running>) -> Self {
        Self {
            space,
            pool: running.share(),
            running: Arc::clone(running),
            home: Home::here(),
            refused: Vec::new(),
            asked: None,
        }
    }

    /// Heap bytes of index, policy and directory table, and those of them that hold full keys for events.
    pub fn index_memory(&self) -> (usize, usize) {
        if self.is_surely_abroad() {
            return (0, 0);
        }
        let (index, policy, keys) = lock(&self.space.core).catalog.memory_bytes();
        // not under the core lock: a worker may hold a stripe across I/O
        (index + policy + self.space.root.dirs.memory_bytes(), keys)
    }

    /// Whether stores still wait for a walk or trim begun at start.
    pub fn is_trimming(&self) -> bool {
        !self.is_surely_abroad() && lock(&self.space.core).account.trimming
    }

    /// The directory, below the root, that holds this tier's blocks.
    pub fn namespace_dir(&self) -> &std::path::Path {
        self.space.root.own_dir(self.space.id.0)
    }

    /// How many leading keys of `keys` can be loaded; each of them is pinned for `req`. One hold of the lock for all,
    /// so that the memory accesses of the lookups overlap. Only for bounded roots: elsewhere an unknown key is taken
    /// as a miss.
    pub fn lookup_prefix(&mut self, keys: &[Key], req: RequestId) -> usize {
        let hits = self.pin_ahead(keys, req);
        if self.is_abroad() {
            return 0;
        }
        let mut core = lock(&self.space.core);
        let stats = &mut core.catalog.space(self.space.id).stats;
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
        let s = &*self.space;
        let all = keys.len();
        let mut fps = [Fingerprint(0); BATCH];
        let mut ids = [None; BATCH];
        let now = s.clock.now();
        look_after(&self.space, &self.pool, now);
        let mut core = lock(&s.core);
        if core.catalog.is_closed(s.id) {
            return 0;
        }
        core.catalog.expire_leases(s.id, now, s.params.pin_ttl);
        if s.runner.watchdog.is_tripped() {
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
            core.catalog.find_ready(fps, ids);
            let found = ids.iter().map_while(|&id| id);
            let n = found.clone().count();
            core.catalog.pin_all_for((s.id, req), found, now, all - begun);
            hits += n;
            if n < keys.len() {
                break;
            }
        }
        hits
    }

    /// Whether each of `keys` can be loaded, as far as memory tells: nothing is pinned, counted or looked for on disk.
    /// In a root that others write to, a key that is not known may be there: it counts as held.
    pub fn held(&self, keys: &[Key]) -> Vec<bool> {
        let s = &*self.space;
        let mut fps = [Fingerprint(0); BATCH];
        let mut ids = [None; BATCH];
        let mut held = Vec::with_capacity(keys.len());
        for keys in keys.chunks(BATCH) {
            for (fp, key) in fps.iter_mut().zip(keys) {
                *fp = s.fingerprint(key);
            }
            let core = lock(&s.core);
            let away = core.catalog.is_closed(s.id) || s.runner.watchdog.is_tripped();
            let (fps, ids) = (
                fps.get(..keys.len()).unwrap_or_default(),
                ids.get_mut(..keys.len()).unwrap_or_default(),
            );
            core.catalog.find_ready(fps, ids);
            held.extend(fps.iter().zip(ids.iter()).map(|(&fp, id)| {
                !away && (id.is_some() || !s.root.bounded && core.catalog.find(fp).is_none())
            }));
        }
        held
    }

    /// Keys that [`pin_ahead`](Self::pin_ahead) pinned were asked for.
    pub fn count_hits(&mut self, hits: u64) {
        if self.is_abroad() {
            return;
        }
        let s = &self.space;
        lock(&s.core).catalog.space(s.id).stats.lookup_hits += hits;
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
        submit::<StoreRun<Space>>(&self.space, &self.pool, (id, req), blocks, make);
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
        submit::<LoadRun<Space>>(&self.space, &self.pool, (id, req), blocks, make);
    }

    /// The request is over: its pins are released now, and a worker marks the blocks that `keys` names, in prefix
    /// order, as used.
    pub fn finish_later(&mut self, req: RequestId, keys: impl FnOnce() -> Vec<Key> + Send + 'static) {
        if self.is_surely_abroad() {
            return;
        }
        self.asked = None;
        self.end_request(req);
        mark_used_later(&self.space, &self.pool, req, keys);
    }

    /// Which layout new blocks get.
    pub fn layout(&self) -> Layout {
        match self.space.layouts.first_rank() {
            Rank::Slot(_) => Layout::Pack,
            Rank::Whole => Layout::Fs,
        }
    }

    /// What a request held is free: pins, and slots kept for its next blocks.
    fn end_request(&self, req: RequestId) {
        lock(&self.space.core).catalog.end_request((self.space.id, req));
        self.space.layouts.iter().for_each(|l| l.end_request(req));
    }

    /// The time, which lookups of one request that follow each other read for every [`BATCH`]th of them only: a clock
    /// costs a fifth of a lookup. And whether it was read.
    fn asked_at(&mut self, req: RequestId) -> (Instant, bool) {
        match &mut self.asked {
            Some((r, at, left)) if *r == req && *left > 0 => {
                *left -= 1;
                (*at, false)
            }
            _ => {
                let now = self.space.clock.now();
                self.asked = Some((req, now, BATCH));
                (now, true)
            }
        }
    }

    /// Looks for a key that the index of a shared root does not know.
    fn probe(&self, key: &Key) -> Lookup {
        let s = &self.space;
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
            space: Arc::clone(s),
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
        &self.space.params.name
    }

    fn medium(&self) -> Medium {
        Medium::Storage
    }

    fn locality(&self) -> Locality {
        self.space.params.locality
    }

    fn lookup(&mut self, key: &Key, req: RequestId) -> Lookup {
        if self.is_abroad() {
            return Lookup::Miss;
        }
        let (now, is_new) = self.asked_at(req);
        look_after(&self.space, &self.pool, now);
        let s = &*self.space;
        {
            let fp = s.fingerprint(key);
            let mut core = lock(&s.core);
            if is_new {
                core.catalog.expire_leases(s.id, now, s.params.pin_ttl);
            }
            // nothing can be loaded after a shutdown, and nobody would release the pin; a device that failed is left
            // alone
            let away = core.catalog.is_closed(s.id) || s.runner.watchdog.is_tripped();
            if let Some(id) = core.catalog.ready(fp).filter(|_| !away) {
                core.catalog.pin_for((s.id, req), id, now);
                core.catalog.space(s.id).stats.lookup_hits += 1;
                return Lookup::Hit;
            }
            // known, but being written, removed or found bad; or the index is the whole truth
            if s.root.bounded || away || core.catalog.find(fp).is_some() {
                core.catalog.space(s.id).stats.lookup_misses += 1;
                return Lookup::Miss;
            }
        }
        let answer = self.probe(key);
        // it is asked again when time has passed
        self.asked = None;
        let mut core = lock(&s.core);
        let stats = &mut core.catalog.space(s.id).stats;
        match answer {
            Lookup::Hit => stats.lookup_hits += 1,
            Lookup::Miss => stats.lookup_misses += 1,
            Lookup::Retry => stats.lookup_retries += 1,
        }
        answer
    }

    fn lookup_run(&mut self, keys: &[Key], req: RequestId) -> (usize, Lookup) {
        let hits = self.pin_ahead(keys, req);
        self.count_hits(hits as u64);
        match keys.get(hits) {
            Some(next) => match self.lookup(next, req) {
                // it came meanwhile
                Lookup::Hit => (hits + 1, Lookup::Hit),
                other => (hits, other),
            },
            None => (hits, Lookup::Hit),
        }
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
        look_after(&self.space, &self.pool, self.space.clock.now());
        self.space.runner.take_reports(reports);
    }

    fn touch(&mut self, keys: &[Key], req: RequestId) {
        if self.is_surely_abroad() {
            return;
        }
        let s = &*self.space;
        let fps: Vec<_> = keys.iter().map(|k| s.fingerprint(k)).collect();
        mark_used(s, req, &fps);
    }

    fn on_request_finished(&mut self, req: RequestId, keys: &[Key]) {
        if self.is_surely_abroad() {
            return;
        }
        self.asked = None;
        self.end_request(req);
        let s = &*self.space;
        let fps: Vec<_> = keys.iter().map(|k| s.fingerprint(k)).collect();
        mark_used(s, req, &fps);
    }

    fn take_events(&mut self, events: &mut Vec<Event>) {
        if self.is_surely_abroad() {
            return;
        }
        let s = &self.space;
        lock(&s.core).catalog.take_events(s.id, events);
    }

    fn has_pending_work(&self) -> bool {
        if self.is_abroad() {
            return !self.refused.is_empty();
        }
        // not what workers do: one that hangs has nothing to report
        let s = &*self.space;
        s.runner.owes_reports() || !lock(&s.probes).running.is_empty()
    }

    fn drain(&mut self) {
        if self.is_surely_abroad() {
            return;
        }
        let g = &self.space.runner.watchdog;
        self.pool.cancel_queued(Class::Load);
        for look in 1u32.. {
            if self.pool.wait_idle(DRAIN_LOOK) {
                return;
            }
            if DRAIN_LOOK * look > DRAIN_PATIENCE {
                self.pool.cancel_queued(Class::Store);
            }
            look_after(&self.space, &self.pool, self.space.clock.now());
            if g.has_hung() && !g.owes_reports() {
                return;
            }
        }
    }

    fn shutdown(&mut self) {
        if self.is_surely_abroad() {
            return;
        }
        let s = &*self.space;
        if s.ended.swap(true, Ordering::Relaxed) {
            return;
        }
        lock(&s.core).catalog.close(s.id);
        let (last, ended) = self.running.leave(s, &self.pool);
        s.runner.give_all_up();
        s.root.told.tell(&s.params.name, s.clock.now(), true);
        lock(&s.core).catalog.end_all_requests(s.id);
        if !ended {
            // whoever owned the root now would race our own writer: it stays claimed until this process ends (I1)
            tracing::error!(tier = %s.params.name, "I/O still runs at shutdown; its slots and the root stay claimed");
        }
        if last {
            self.running.end_keeper(ended);
        }
    }

    fn stats(&self) -> TierStats {
        if self.is_surely_abroad() {
            return TierStats::default();
        }
        let s = &*self.space;
        let mut t = lock(&s.core).snapshot(s.id, s.clock.unix_seconds());
        t.queued_blocks = self.pool.queued() as u64;
        t.stores_held = self.pool.held_stores();
        s.runner.watchdog.fill(&mut t);
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
