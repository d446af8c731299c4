//! Opening a root: check, lock, walk, index oldest first, trim to the bound in one pass, write what identifies the
//! namespace. A large trim goes on in the background; until it ends no store is admitted above the bound.

use std::{
    collections::HashSet,
    io,
    path::Path,
    sync::{
        Arc, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::JoinHandle,
};

use super::{
    core::{Core, weight},
    dirs::Dirs,
    index::{Index, Shelf, State},
    lockfile::{RootLock, host_name, unusable},
    progress::Meter,
    settings::FsSettings,
    shared::{Params, Shared},
    walk::{Survey, Walk},
};
use crate::{
    budget::Budget,
    clock::Clock,
    error::{Error, ErrorKind, IoClass, Result, classify},
    events::{EventLog, Medium},
    evict::RequestTag,
    io::{
        Disk,
        disk::{FileKind, OpenMode, read_full, write_full},
        pool::usable_cpus,
    },
    metrics::EvictReason,
    namespace::Namespace,
    sync::{Bell, lock},
};

/// Trims of at most this many blocks are done before the tier opens.
const TRIM_AT_ONCE: usize = 2000;
/// Victims chosen under one hold of the lock.
const TRIM_BATCH: u64 = 256;
/// What names a namespace's identity, in the directory of its configuration.
pub(crate) const CONFIG_FILE: &str = "config.json";

/// A root that is open.
pub(crate) struct Opened {
    pub(crate) shared: Arc<Shared>,
    pub(crate) lock: Option<Arc<RootLock>>,
    pub(crate) trimmer: Option<JoinHandle<()>>,
}

/// What the builder brings in.
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) settings: FsSettings,
    pub(crate) ns: Namespace,
    pub(crate) block_len: usize,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) bell: Arc<Bell>,
}

/// Opens the root of `parts`.
pub(crate) fn open(parts: Parts) -> Result<Opened> {
    let Parts {
        name,
        settings,
        ns,
        block_len,
        disk,
        clock,
        bell,
    } = parts;
    settings.validate(block_len)?;
    let began = clock.now();
    let root = settings.root.clone();
    make_root(&*disk, &root)?;
    let space = disk
        .space(&root)
        .map_err(|e| Error::io("ask for space", root.display(), e))?;
    let bounded = settings.max_bytes.is_some();
    let root_lock = if bounded {
        Some(Arc::new(RootLock::acquire(&*disk, &root)?))
    } else {
        None
    };
    if let Some(l) = root_lock.as_ref().filter(|l| l.has_content()) {
        // in place: costs nothing
        l.name_holder(std::process::id(), &host_name())
            .map_err(|e| unusable(&*disk, &root, e))?;
    }
    let dirs = Dirs::new();
    let (survey, namespaces) = if bounded {
        let walk = Walk {
            disk: &*disk,
            root: &root,
            own: ns.dir(),
            block_len: block_len as u64,
            fs_block: space.block,
            want_keys: settings.events,
            threads: (usable_cpus() * 2).clamp(2, 16),
            watch: None,
        };
        walk.run(&dirs)?
    } else {
        tracing::warn!(tier = %name, root = %root.display(), "no max_bytes is set: this tier grows without bound");
        (Survey::default(), vec![root.join(ns.dir())])
    };
    let mut core = Core::new(
        Index::new(settings.events),
        settings
            .policy
            .build(settings.max_bytes.map_or(u64::from(u32::MAX), weight)),
        Budget::new(settings.max_bytes),
        EventLog::new(settings.events, Medium::Storage, settings.locality),
    );
    fill(&mut core, survey);
    let params = Params {
        name,
        root,
        block_len,
        verify: settings.verify,
        bounded,
        min_free: settings.min_free_bytes,
        locality: settings.locality,
        pin_ttl: settings.pin_ttl,
        miss_ttl: settings.miss_ttl,
        fs_block: space.block,
    };
    // unlike those of any other process and of our own last life
    let first_temp = u64::from(std::process::id()) << 40 ^ clock.unix_seconds() << 20;
    let shared = Arc::new(Shared {
        params,
        ns,
        disk,
        clock,
        core: Mutex::new(core),
        settled: Condvar::new(),
        dirs,
        meter: Arc::new(Meter::default()),
        namespaces,
        done: Mutex::default(),
        bell,
        direct: AtomicBool::new(settings.direct),
        stop: AtomicBool::new(false),
        temp_counter: AtomicU64::new(first_temp),
        probes: Mutex::default(),
        floor: Mutex::default(),
        free: Mutex::new(None),
    });
    let trimmer = trim_or_spawn(&shared, root_lock.as_ref())?;
    {
        let mut core = lock(&shared.core);
        core.stats.startup_seconds = shared.clock.now().since(began).as_secs_f64();
        let s = &core.stats;
        tracing::info!(
            tier = %shared.params.name, root = %shared.params.root.display(), bound_bytes = settings.max_bytes,
            recovered = s.recovered_blocks, swept = s.swept_files, foreign = s.foreign_files,
            resident_bytes = core.budget.resident(), seconds = s.startup_seconds, "tier is open"
        );
    }
    Ok(Opened {
        shared,
        lock: root_lock,
        trimmer,
    })
}

/// Makes the root if its parent exists, and refuses what cannot be one.
fn make_root(disk: &dyn Disk, root: &Path) -> Result<()> {
    match disk.stat(root) {
        Ok(s) if s.kind == FileKind::Dir => Ok(()),
        // the user's own link to a directory is the user's choice
        Ok(s) if s.kind == FileKind::Other && root.is_dir() => Ok(()),
        Ok(_) => Err(Error::invalid(
            "open root",
            format!("root {} is a file; it must be a directory", root.display()),
        )),
        Err(e) if e.kind() == io::ErrorKind::NotFound => disk.create_dir(root).map_err(|e| {
            let parent = root.parent().unwrap_or(root);
            match e.kind() {
                io::ErrorKind::NotFound => Error::invalid(
                    "open root",
                    format!("{} does not exist; make it first", parent.display()),
                ),
                _ => unusable(disk, parent, e),
            }
        }),
        Err(e) => Err(Error::io("open root", root.display(), e).with_kind(ErrorKind::Invalid)),
    }
}

/// Puts what the walk found into index, policy and budget, oldest first.
fn fill(core: &mut Core, mut survey: Survey) {
    survey.blocks.sort_unstable_by_key(|b| (b.mtime_ns, b.fp));
    core.budget.add_resident(survey.other_bytes + survey.dir_bytes);
    core.stats.swept_files = survey.swept;
    core.stats.foreign_files = survey.foreign_files;
    for b in &survey.blocks {
        core.budget.add_resident(b.cost);
        let state = if b.bad { State::Bad } else { State::Ready };
        let shelf = core.index.shelf_id(Shelf {
            namespace: b.namespace,
            leaf: b.leaf,
        });
        let Some(id) = shelf.and_then(|s| core.index.insert(b.fp, s, b.fan, state, b.cost)) else {
            // more kinds of leaves than an index can name: counted, not served
            core.stats.foreign_files += 1;
            continue;
        };
        core.index.set_has_trailer(id, b.trailer);
        core.index
            .set_written_at(id, u64::try_from(b.mtime_ns / 1_000_000_000).unwrap_or(0));
        if let Some(k) = &b.key {
            core.index.set_key(id, k);
            if !b.bad {
                core.events.stored(k);
            }
        }
        core.policy.insert(
            id,
            b.fp,
            u32::try_from(weight(b.cost)).unwrap_or(u32::MAX),
            RequestTag::NONE,
        );
        core.stats.blocks += u64::from(!b.bad);
        core.stats.recovered_blocks += u64::from(!b.bad && b.namespace == 0);
    }
}

/// Brings the root below its bound, here if little is to do, else in a thread of its own.
fn trim_or_spawn(shared: &Arc<Shared>, root_lock: Option<&Arc<RootLock>>) -> Result<Option<JoinHandle<()>>> {
    let (excess, blocks, bytes) = {
        let core = lock(&shared.core);
        (core.budget.excess(), core.stats.blocks, core.budget.resident())
    };
    let average = bytes / blocks.max(1);
    if excess == 0 || excess / average.max(1) <= TRIM_AT_ONCE as u64 {
        trim(shared);
        return identify(shared, root_lock.map(AsRef::as_ref)).map(|()| None);
    }
    lock(&shared.core).trimming = true;
    let (shared, root_lock) = (Arc::clone(shared), root_lock.cloned());
    let work = move || {
        trim(&shared);
        lock(&shared.core).trimming = false;
        if shared.stop.load(Ordering::Relaxed) {
            return;
        }
        if let Err(error) = identify(&shared, root_lock.as_deref()) {
            tracing::error!(%error, "the namespace's directory cannot be made; stores will fail");
        }
    };
    std::thread::Builder::new()
        .name("kvweir-trim".into())
        .spawn(work)
        .map(Some)
        .map_err(|e| Error::io("start trimmer", "thread", e))
}

/// Evicts oldest first until the root is within its bound; each candidate is tried once.
fn trim(shared: &Shared) {
    let began = shared.clock.now();
    let (mut tried, mut stuck) = (HashSet::<u32>::new(), 0u64);
    let mut batch = Vec::new();
    while !shared.stop.load(Ordering::Relaxed) {
        {
            let mut core = lock(&shared.core);
            let excess = core.budget.excess();
            if excess == 0 {
                break;
            }
            let step = (core.budget.resident() / core.stats.blocks.max(1)).saturating_mul(TRIM_BATCH);
            let now = shared.clock.now();
            let mut want = excess.min(step.max(1));
            // near the end of what can be evicted, take what there is
            while want > 0 && !core.choose_victims(want, now, &mut batch) {
                want /= 2;
            }
        }
        // files that could not be removed come round again after a while: not in this trim
        if batch.iter().all(|v| tried.contains(&v.id)) {
            let mut core = lock(&shared.core);
            batch.drain(..).for_each(|v| core.keep(v.id, false));
            break;
        }
        for v in batch.drain(..) {
            if shared.stop.load(Ordering::Relaxed) {
                lock(&shared.core).keep(v.id, false);
                continue;
            }
            let failures = lock(&shared.core).stats.unlink_failures;
            tried.insert(v.id);
            shared.remove_victim(&v, EvictReason::Trim, false);
            stuck += u64::from(lock(&shared.core).stats.unlink_failures > failures);
        }
    }
    let mut core = lock(&shared.core);
    core.stats.trim_candidates = tried.len() as u64;
    if !tried.is_empty() {
        let seconds = shared.clock.now().since(began).as_secs_f64();
        tracing::info!(
            tier = %shared.params.name, tried = tried.len(), stuck, seconds,
            excess_bytes = core.budget.excess(), "trimmed to the bound"
        );
    }
}

/// Makes the namespace's directory, writes its `config.json` and the lock's holder, all within the bound; refuses a
/// directory that another identity wrote.
fn identify(shared: &Shared, root_lock: Option<&RootLock>) -> Result<()> {
    let (disk, root) = (&*shared.disk, &shared.params.root);
    let cost = shared.params.fs_block * 16;
    let granted = shared.make_room(cost, EvictReason::Trim).map_err(|no| {
        Error::new(
            ErrorKind::Full,
            "open root",
            format!("no room within the bound for {cost} bytes: {}", no.0.as_str()),
        )
    })?;
    let config_dir = root.join(shared.ns.config_dir());
    let config = config_dir.join(CONFIG_FILE);
    let mut touched = vec![
        root.clone(),
        config_dir.clone(),
        config.clone(),
        root.join(super::lockfile::LOCK_FILE),
    ];
    // one that is there was counted by the walk, and stores may make it grow meanwhile
    let own_is_new = disk.stat(shared.own_dir()).is_err();
    if own_is_new {
        touched.push(shared.own_dir().to_owned());
    }
    let measure = || {
        touched
            .iter()
            .map(|p| disk.stat(p).map_or(0, |s| s.allocated))
            .sum::<u64>()
    };
    let before = measure();
    let done = (|| {
        if let Some(l) = root_lock.filter(|l| !l.has_content()) {
            l.name_holder(std::process::id(), &host_name())?;
        }
        for d in [shared.own_dir(), &config_dir] {
            match disk.create_dir(d) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        match disk.open(&config, OpenMode::CreateNew, false) {
            Ok(f) => write_full(&*f, shared.ns.config().as_bytes(), &[]),
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                same_identity(disk, &config, shared.ns.config())
            }
            Err(e) => Err(e),
        }
    })();
    if own_is_new && let Ok(s) = disk.stat(shared.own_dir()) {
        shared.dirs.found_top(0, s.allocated);
    }
    {
        let now = measure();
        let mut core = lock(&shared.core);
        core.budget.release(granted);
        core.budget.change(before, now);
    }
    match done {
        // stores will be refused; what is there can be served
        Err(error) if classify(&error) == IoClass::Full => {
            tracing::warn!(tier = %shared.params.name, %error, "the device is full; the namespace is not written down");
            Ok(())
        }
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(Error::invalid("open root", e.to_string())),
        r => r.map_err(|e| unusable(disk, root, e)),
    }
}

/// Refuses a directory that another identity with the same short digest wrote. Text that is no identity (an empty file
/// of a crash) is replaced by ours at the next chance and harms nobody: trailers carry the whole digest.
fn same_identity(disk: &dyn Disk, config: &Path, ours: &str) -> io::Result<()> {
    let file = disk.open(config, OpenMode::Read, false)?;
    let mut text = vec![0; 1 << 20];
    let n = read_full(&*file, &mut text, &mut [])?;
    let parse = |t: &[u8]| serde_json::from_slice::<serde_json::Value>(t).ok();
    match (parse(text.get(..n).unwrap_or_default()), parse(ours.as_bytes())) {
        (Some(theirs), Some(ours)) if theirs != ours => Err(io::Error::new(
            io::ErrorKind::InvalidData,
            format!(
                "{} describes another namespace than this engine's; use another root, or remove that directory and the \
                 block directories beside it",
                config.display()
            ),
        )),
        _ => Ok(()),
    }
}
