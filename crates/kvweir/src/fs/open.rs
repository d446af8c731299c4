//! Opening a root: check, join, hand over to the keeper, which loads, trims and writes what identifies the namespace.
//! What is quickly done is done before the tier opens; a walk or a large trim goes on while it serves. Until it ends
//! no store is admitted.

use std::{io, path::Path, sync::Arc, time::Duration};

use super::{
    core::{Core, weight},
    keeper::Keeper,
    keeping::{End, Keeping},
    packed::Pack,
    settings::{FsSettings, Layout, PACK_BELOW, allocation_unit, min_bound_in, min_pack_bound_in},
    shared::{Params, Shared},
};
use crate::{
    budget::Budget,
    catalog::index::Index,
    clock::Clock,
    error::{Error, ErrorKind, IoClass, Result, classify},
    events::{EventLog, Locality, Medium},
    fs::phase::Phase,
    io::{
        Disk,
        disk::{FileKind, OpenMode, read_full, write_full},
    },
    jobs::{bounce::Bounce, progress::Meter, watchdog::Guard},
    metrics::EvictReason,
    namespace::Namespace,
    root::{
        around::{above, enter_unbounded, refuse_above, refuse_below},
        dirs::Dirs,
        ledger::Look,
        member::{Joined, Joiner, Member, Start, join},
        names::{CONFIG_FILE, first_temp},
        ownership::unusable,
    },
    sync::{
        Bell, Condvar, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64},
        lock, wait_while,
    },
    told::Told,
};

/// Trims of at most this many blocks are done before the tier opens.
pub(crate) const TRIM_AT_ONCE: u64 = 2000;

/// A root that is open.
pub(crate) struct Opened {
    pub(crate) shared: Arc<Shared>,
    pub(crate) keeper: Option<Keeping>,
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
    pub(crate) honours_guards: bool,
    pub(crate) boot: [u8; 16],
    pub(crate) patience: Duration,
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
        honours_guards,
        boot,
        patience,
    } = parts;
    settings.validate(block_len)?;
    let began = clock.now();
    let root = settings.root.clone();
    let bound = settings.max_bytes.filter(|_| !settings.read_only);
    if !settings.read_only {
        refuse_above(&disk, &root, bound.is_some())?;
    }
    make_root(&*disk, &root, settings.read_only)?;
    let space = disk
        .space(&root)
        .map_err(|e| Error::io("ask for space", root.display(), e))?;
    let unit = match settings.read_only {
        true => space.block,
        false => allocation_unit(&*disk, &root, space.block),
    };
    check_unit(&settings, block_len, unit)?;
    let nonce = nonce(&*clock, &root);
    let joined = match bound {
        Some(bound) => Some(enter(&Joiner {
            disk: &disk,
            root: &root,
            bound,
            seed: ns.seed(),
            boot,
            nonce,
        })?),
        None => {
            if !settings.read_only {
                enter_unbounded(&disk, &root)?;
                tracing::warn!(tier = %name, root = %root.display(), "no max_bytes is set: this tier grows without bound");
            }
            None
        }
    };
    let may_hang = settings.locality == Locality::Remote || disk.is_remote(&root);
    let pack = choose_layout(&name, &settings, (block_len, unit), may_hang)?;
    let slots = pack
        .as_ref()
        .zip(settings.max_bytes)
        .map_or(0, |(p, bound)| bound / p.slot_bytes);
    let mut core = Core::new(
        Index::new(settings.events),
        [
            settings
                .policy
                .build(settings.max_bytes.map_or(u64::from(u32::MAX), weight)),
            settings.policy.build(slots),
        ],
        // nothing until it is known what is there
        Budget::new(settings.max_bytes.map(|_| 0)),
        EventLog::new(settings.events, Medium::Storage, settings.locality),
    );
    core.root_bound = settings.max_bytes;
    core.trimming = joined.is_some();
    core.packs = pack.is_some();
    let guard = Guard::new(settings.io_timeout, settings.breaker, honours_guards, began);
    let params = Params {
        name,
        root,
        block_len,
        verify: settings.verify,
        bounded: joined.is_some(),
        read_only: settings.read_only,
        min_free: settings.min_free_bytes,
        locality: settings.locality,
        pin_ttl: settings.pin_ttl,
        miss_ttl: settings.miss_ttl,
        fs_block: unit,
        keep_keys: settings.events,
    };
    // unlike those of any other process and of our own last life
    let first = match &joined {
        Some(j) => first_temp(j.member.number, j.member.incarnation),
        None => u64::from(std::process::id()) << 40 ^ clock.unix_seconds() << 20,
    };
    let nonce = joined.as_ref().map_or(nonce, |j| {
        let life = u64::from(j.member.incarnation) << 32 | u64::from(j.member.number);
        nonce ^ xxhash_rust::xxh3::xxh3_64(&life.to_le_bytes())
    });
    let own = params.root.join(ns.dir());
    let above = match params.bounded || params.read_only {
        true => Vec::new(),
        false => above(&params.root).into_iter().collect(),
    };
    let shared = Arc::new(Shared {
        params,
        ns,
        disk,
        clock,
        core: Mutex::new(core),
        settled: Condvar::new(),
        dirs: Dirs::new(),
        meter: Arc::new(Meter::default()),
        namespaces: Mutex::new(vec![own.clone()]),
        own,
        journal: OnceLock::new(),
        keeper: Bell::default(),
        compact_asked: AtomicU64::new(0),
        compact_tried: AtomicU64::new(0),
        phase: Mutex::default(),
        phase_changed: Condvar::new(),
        done: Mutex::default(),
        bell,
        direct: AtomicBool::new(settings.direct),
        stop: AtomicBool::new(false),
        gave_way: AtomicBool::new(false),
        above,
        temp_counter: AtomicU64::new(first),
        nonces: AtomicU64::new(nonce),
        probes: Mutex::default(),
        pack,
        guard,
        told: Told::default(),
        bounce: Bounce::new(settings.bounce.applies(may_hang), block_len),
        floor: Mutex::default(),
        free: Mutex::new(None),
    });
    if shared.params.read_only {
        recognise(&shared)?;
    }
    let keeper = joined.map(|j| keep(&shared, j)).transpose()?;
    if keeper.is_some()
        && let Some(e) = wait_open(&shared, patience)
    {
        return Err(e);
    }
    let seconds = shared.clock.now().since(began).as_secs_f64();
    {
        let mut core = lock(&shared.core);
        core.stats.startup_seconds = seconds;
        let s = &core.stats;
        tracing::info!(
            tier = %shared.params.name, root = %shared.params.root.display(), bound_bytes = settings.max_bytes,
            recovered = s.recovered_blocks, swept = s.swept_files, foreign = s.foreign_files,
            resident_bytes = core.budget.resident(), seconds, "tier is open"
        );
    }
    Ok(Opened { shared, keeper })
}

/// Joins a root that lies neither below another nor above one.
fn enter(j: &Joiner<'_>) -> Result<Joined> {
    refuse_below(j.disk, j.root)?;
    let joined = join(j)?;
    if joined.start == Start::Walk {
        // who became one at the same time sees us, or we see it
        refuse_above(j.disk, j.root, true)?;
        refuse_below(j.disk, j.root)?;
    }
    Ok(joined)
}

/// Whether new blocks are packed; says why.
fn choose_layout(
    name: &str,
    settings: &FsSettings,
    (block_len, unit): (usize, u64),
    may_hang: bool,
) -> Result<Option<Pack>> {
    let owned = settings.max_bytes.filter(|_| !settings.read_only);
    let (pack, why) = match (settings.layout, owned) {
        (Layout::Fs, _) => (None, "asked for"),
        (Layout::Pack, Some(bound)) => (Some(bound), "asked for"),
        // `validate` has refused it
        (Layout::Pack, None) | (Layout::Auto, None) => {
            (None, "the root is not owned: no max_bytes, or read_only")
        }
        (Layout::Auto, Some(_)) if may_hang => (None, "the file system is another machine's or process's"),
        (Layout::Auto, Some(_)) if block_len >= PACK_BELOW => (None, "blocks are not small"),
        (Layout::Auto, Some(bound)) if bound < min_pack_bound_in(block_len, unit) => {
            (None, "max_bytes is small")
        }
        (Layout::Auto, Some(bound)) => (Some(bound), "the root is owned and blocks are small"),
    };
    let layout = if pack.is_some() { Layout::Pack } else { Layout::Fs };
    tracing::info!(tier = name, %layout, why, block_len, "layout of new blocks");
    Ok(pack.map(|bound| Pack::new(block_len, bound)))
}

/// Refuses a bound that cannot be kept in units of `unit` bytes.
fn check_unit(settings: &FsSettings, block_len: usize, unit: u64) -> Result<()> {
    let Some(bound) = settings.max_bytes.filter(|_| !settings.read_only) else {
        return Ok(());
    };
    let least = match settings.layout {
        Layout::Pack => min_pack_bound_in(block_len, unit),
        _ => min_bound_in(block_len, unit),
    };
    if bound >= least {
        return Ok(());
    }
    Err(Error::invalid(
        "open root",
        format!(
            "max_bytes {bound} is too small for {}: its file system gives out space in units of {unit} bytes, so layout \
             {} with blocks of {block_len} bytes needs at least {least}; raise it, or use a file system with smaller \
             units (no bigalloc clusters, no huge pages)",
            settings.root.display(),
            settings.layout,
        ),
    ))
}

/// Starts the keeper.
fn keep(shared: &Arc<Shared>, j: Joined) -> Result<Keeping> {
    Keeping::start(Keeper {
        shared: Arc::clone(shared),
        member: j.member,
        start: j.start,
        alone: j.alone,
        end: Arc::new(End::default()),
        followers: Default::default(),
        readings: 0,
        mark: j.mark,
        read: Default::default(),
        adopting: None,
        above: None,
        emptied: Default::default(),
        dead: Default::default(),
        unusable: Default::default(),
        compact_at: 0,
        compact_now: false,
        other_walks: false,
        ledger_told: false,
        lost: false,
        claim_rest: (0, 0),
        looks: Default::default(),
    })
}

/// Waits until the root is loaded, or a walk has taken `patience`, or a large trim begins. Returns why it failed.
fn wait_open(shared: &Shared, patience: Duration) -> Option<Error> {
    let loading = |p: &mut Phase| matches!(p, Phase::Loading);
    let mut phase = lock(&shared.phase);
    while loading(&mut phase) {
        phase = wait_while(&shared.phase_changed, phase, Duration::from_secs(1), loading);
    }
    let walking = |p: &mut Phase| matches!(p, Phase::Walking);
    phase = wait_while(&shared.phase_changed, phase, patience, walking);
    match &mut *phase {
        Phase::Failed(e) => e.take(),
        _ => None,
    }
}

/// A number for this life of a process. Another one may have it that began in the same second with the same process id (in
/// containers that is 1): what the ledger tells of this life goes into it too.
fn nonce(clock: &dyn Clock, root: &Path) -> u64 {
    let mut bytes = root.as_os_str().as_encoded_bytes().to_vec();
    bytes.extend(clock.unix_seconds().to_le_bytes());
    bytes.extend(clock.now().as_nanos().to_le_bytes());
    bytes.extend(std::process::id().to_le_bytes());
    xxhash_rust::xxh3::xxh3_64(&bytes)
}

/// Makes the root if its parent exists, and refuses what cannot be one.
fn make_root(disk: &dyn Disk, root: &Path, read_only: bool) -> Result<()> {
    match disk.stat(root) {
        Ok(s) if s.kind == FileKind::Dir => Ok(()),
        // the user's own link to a directory is the user's choice
        Ok(s) if s.kind == FileKind::Other && root.is_dir() => Ok(()),
        Ok(_) => Err(Error::invalid(
            "open root",
            format!("root {} is a file; it must be a directory", root.display()),
        )),
        Err(e) if e.kind() == io::ErrorKind::NotFound && read_only => Err(Error::invalid(
            "open root",
            format!("{} does not exist, and read_only makes nothing", root.display()),
        )),
        Err(e) if e.kind() == io::ErrorKind::NotFound => make_dir(disk, root).map_err(|e| {
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

/// Makes `root`, unless somebody else just did.
fn make_dir(disk: &dyn Disk, root: &Path) -> io::Result<()> {
    match disk.create_dir(root) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && disk.stat(root)?.kind == FileKind::Dir => {
            Ok(())
        }
        r => r,
    }
}

/// Makes the namespace's directory and writes its `config.json`, within the bound; refuses a directory that another
/// identity wrote. What is not a member's own passes from its lease to the common bytes, before it is made.
pub(crate) fn identify(shared: &Shared, member: &Member) -> Result<()> {
    let (disk, root) = (&*shared.disk, &shared.params.root);
    let cost = shared.params.fs_block * 12;
    let config_dir = root.join(shared.ns.config_dir());
    let config = config_dir.join(CONFIG_FILE);
    let own = disk.stat(shared.own_dir());
    if own.as_ref().is_ok_and(|st| st.kind != FileKind::Dir) {
        let own = shared.own_dir().display();
        return Err(Error::invalid(
            "open root",
            format!(
                "{own} is a file or a link; it must be a directory, since what lies behind a link is neither counted nor \
                 found again: use a root on that other file system"
            ),
        ));
    }
    let own_is_new = own.is_err();
    let is_there = !own_is_new && disk.stat(&config).is_ok();
    if is_there {
        let same = same_identity(disk, &config, shared.ns.config());
        if !matches!(same, Ok(false)) {
            count_own(shared);
            return answer(shared, same.map(drop));
        }
    }
    let granted = match shared.make_room(cost, EvictReason::Trim) {
        // what it is can be told at another start
        Err(_) if is_there => {
            count_own(shared);
            return Ok(());
        }
        r => r,
    };
    let granted = granted.map_err(|no| {
        Error::new(
            ErrorKind::Full,
            "open root",
            format!(
                "no room within the bound for {cost} bytes: {}{}",
                no.0.as_str(),
                others(shared, member)
            ),
        )
    })?;
    let touched = [root.clone(), config_dir.clone(), config.clone()];
    let measure = || {
        touched
            .iter()
            .map(|p| {
                disk.stat(p).map_or(0, |s| match s.kind {
                    FileKind::File => s.counted(shared.params.fs_block),
                    _ => s.allocated,
                })
            })
            .sum::<u64>()
    };
    let before = measure();
    pass(shared, member, i64::try_from(cost).unwrap_or(0), granted)?;
    let done = (|| {
        for d in [shared.own_dir(), &config_dir] {
            match disk.create_dir(d) {
                Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(e),
                _ => {}
            }
        }
        let write = || {
            let file = disk.open(&config, OpenMode::CreateNew, false)?;
            write_full(&*file, shared.ns.config().as_bytes(), &[])
        };
        match write() {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                if same_identity(disk, &config, shared.ns.config())? {
                    return Ok(());
                }
                disk.remove_file(&config)?;
                write()
            }
            r => r,
        }
    })();
    let grown = measure().saturating_sub(before);
    pass(
        shared,
        member,
        i64::try_from(grown).unwrap_or(0) - i64::try_from(cost).unwrap_or(0),
        0,
    )?;
    count_own(shared);
    answer(shared, done)
}

/// Who else has how much of the root, for a message.
fn others(shared: &Shared, member: &Member) -> String {
    let Ok(Look::Page(page)) = member.ledger.look() else {
        return String::new();
    };
    let all: Vec<String> = page
        .used()
        .filter(|&(n, e)| n != member.number && e.lease > 0)
        .map(|(_, e)| format!("{} bytes are held by {}", e.lease, e.who()))
        .collect();
    let root = shared.params.root.display();
    match all.is_empty() {
        true => String::new(),
        false => format!(
            "; {}. What a dead one left beside living ones with a journal that cannot be used stays so until all of them \
             have ended and {root} is opened again",
            all.join(", ")
        ),
    }
}

/// Counts our namespace's own directory, unless it is counted.
fn count_own(shared: &Shared) {
    if let Ok(st) = shared.disk.stat(shared.own_dir()) {
        let new = shared.dirs.also_top(0, st.allocated);
        lock(&shared.core).budget.add_resident(new);
    }
}

/// Passes bytes from this member's lease to the common ones; `reserved` of them were reserved.
fn pass(shared: &Shared, member: &Member, bytes: i64, reserved: u64) -> Result<()> {
    let moved = |n: u64, by: i64| n.saturating_add_signed(by);
    let done = member.change_within(crate::root::member::OPEN_PATIENCE, |p| {
        p.head.common = moved(p.head.common, bytes);
        if let Some(Some(e)) = p.member_mut(member.number) {
            e.lease = moved(e.lease, -bytes);
        }
        let mut core = lock(&shared.core);
        core.common = p.head.common;
        core.budget.release(reserved);
        let bound = core.budget.bound().unwrap_or(0);
        core.budget.set_bound(Some(moved(bound, -bytes)));
    });
    match done {
        Ok(Some(())) => Ok(()),
        Ok(None) => Err(Error::new(
            ErrorKind::Busy,
            "open root",
            "the ledger is held by somebody who does not let go",
        )),
        Err(e) => Err(Error::io("write the ledger", shared.params.root.display(), e)),
    }
}

fn answer(shared: &Shared, done: io::Result<()>) -> Result<()> {
    let (disk, root) = (&*shared.disk, &shared.params.root);
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

/// What [`identify`] checks, without making anything.
fn recognise(shared: &Shared) -> Result<()> {
    let config = shared.params.root.join(shared.ns.config_dir()).join(CONFIG_FILE);
    match same_identity(&*shared.disk, &config, shared.ns.config()) {
        Err(e) if e.kind() == io::ErrorKind::InvalidData => Err(Error::invalid("open root", e.to_string())),
        Err(e) if e.kind() != io::ErrorKind::NotFound => Err(Error::io("open root", config.display(), e)),
        _ => Ok(()),
    }
}

/// Refuses a directory that another identity with the same short digest wrote. `false`: it is no identity, such as the
/// empty file of a crash, which the next start replaces; till then it harms nobody: trailers carry the whole digest.
fn same_identity(disk: &dyn Disk, config: &Path, ours: &str) -> io::Result<bool> {
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
        (theirs, _) => Ok(theirs.is_some()),
    }
}
