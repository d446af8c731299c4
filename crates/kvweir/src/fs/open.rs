//! Opening a root: check, join, hand over to the keeper, which loads, trims and writes what identifies the namespace.
//! What is quickly done is done before the tier opens; a walk or a large trim goes on while it serves. Until it ends
//! no store is admitted.

use std::{io, path::Path, sync::Arc, time::Duration};

use super::{
    core::Core,
    layouts,
    packed::Pack,
    settings::{FsSettings, Layout, PACK_BELOW, allocation_unit, min_bound_in, min_pack_bound_in},
    shared::{Params, Shared},
};
use crate::{
    budget::COST_UNIT,
    catalog::{Catalog, index::Index},
    clock::{Clock, Instant},
    error::{Error, ErrorKind, Result},
    events::{EventLog, Locality, Medium},
    fs::{
        body::weigh, files::Files, identify::recognise, keeper::Keeping, layouts::Layouts, phase::Phase,
        recover::opening::Opening,
    },
    io::{Disk, disk::FileKind, os::boot_id},
    jobs::{Runner, bounce::Bounce, watchdog::Watchdog},
    namespace::Namespace,
    root::{
        Root, RootSettings,
        account::Account,
        around::{above, enter_unbounded, refuse_above, refuse_below},
        member::{Joined, Joiner, Member, Start, join},
        names::first_temp,
        ownership::unusable,
    },
    sync::{
        Bell, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64},
        lock, wait_while,
    },
};

/// Trims of at most this many blocks are done before the tier opens.
pub(crate) const TRIM_AT_ONCE: u64 = 2000;

/// A root that is open.
pub(crate) struct Opened {
    pub(crate) shared: Arc<Shared>,
    pub(crate) keeper: Option<Keeping>,
}

/// What the builder brings in.
#[derive(Debug)]
pub(crate) struct Parts {
    pub(crate) name: String,
    pub(crate) settings: FsSettings,
    pub(crate) ns: Namespace,
    pub(crate) block_len: usize,
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) clock: Arc<dyn Clock>,
    pub(crate) bell: Arc<Bell>,
    pub(crate) slots_outlive_reports: bool,
    /// The machine's current boot; `None`: as the system says.
    pub(crate) boot: Option<[u8; 16]>,
    pub(crate) patience: Duration,
}

/// A root that was entered: what is known of it before the tier is built.
struct Entered {
    /// Unit of allocation of its file system, in bytes.
    unit: u64,
    /// The membership of a bounded root.
    joined: Option<Joined>,
    /// A number for this life of the process.
    nonce: u64,
    /// The file system is another machine's or process's.
    may_hang: bool,
}

/// Opens the root of `parts`.
pub(crate) fn open(parts: Parts) -> Result<Opened> {
    let began = parts.clock.now();
    let (bound, patience) = (parts.settings.max_bytes, parts.patience);
    let mut entered = enter(&parts)?;
    let joined = entered.joined.take();
    let shared = Arc::new(build(parts, &entered, joined.as_ref(), began)?);
    if shared.root.read_only {
        recognise(&shared)?;
    }
    let keeper = joined
        .map(|j| Keeping::start(Opening::new(Arc::clone(&shared), j)))
        .transpose()?;
    if keeper.is_some()
        && let Some(e) = wait_open(&shared, patience)
    {
        return Err(e);
    }
    let seconds = shared.clock.now().since(began).as_secs_f64();
    {
        let mut core = lock(&shared.core);
        core.catalog.stats.startup_seconds = seconds;
        let s = &core.catalog.stats;
        tracing::info!(
            tier = %shared.params.name, root = %shared.root.path.display(), bound_bytes = bound,
            recovered = s.recovered_blocks, swept = s.swept_files, foreign = s.foreign_files,
            resident_bytes = core.account.budget.resident(), seconds, "tier is open"
        );
    }
    Ok(Opened { shared, keeper })
}

/// Checks settings and root, and joins it.
fn enter(parts: &Parts) -> Result<Entered> {
    let (settings, disk) = (&parts.settings, &parts.disk);
    settings.validate(parts.block_len)?;
    let root = &settings.root;
    let bound = settings.max_bytes.filter(|_| !settings.read_only);
    if !settings.read_only {
        refuse_above(disk, root, bound.is_some())?;
    }
    make_root(&**disk, root, settings.read_only)?;
    let space = disk
        .space(root)
        .map_err(|e| Error::io("ask for space", root.display(), e))?;
    let unit = match settings.read_only {
        true => space.block,
        false => allocation_unit(&**disk, root, space.block),
    };
    check_unit(settings, parts.block_len, unit)?;
    let nonce = nonce(&*parts.clock, root);
    let joined = match bound {
        Some(bound) => Some(enter_bounded(&Joiner {
            disk,
            root,
            bound,
            seed: parts.ns.seed(),
            boot: parts.boot.unwrap_or_else(boot_id),
            nonce,
        })?),
        None if settings.read_only => None,
        None => {
            enter_unbounded(disk, root)?;
            tracing::warn!(
                tier = %parts.name, root = %root.display(), "no max_bytes is set: this tier grows without bound"
            );
            None
        }
    };
    Ok(Entered {
        unit,
        joined,
        nonce,
        may_hang: settings.locality == Locality::Remote || disk.is_remote(root),
    })
}

/// What handle, workers and keeper will share.
fn build(parts: Parts, entered: &Entered, joined: Option<&Joined>, began: Instant) -> Result<Shared> {
    let Parts {
        name,
        settings,
        ns,
        block_len,
        clock,
        ..
    } = parts;
    let pack = choose_layout(&name, &settings, (block_len, entered.unit), entered.may_hang)?;
    let watchdog = Watchdog::new(
        settings.io_timeout,
        settings.breaker,
        parts.slots_outlive_reports,
        began,
    );
    let life = joined.map(|j| &j.member);
    let root = Root::new(
        parts.disk,
        RootSettings {
            unit: entered.unit,
            bounded: joined.is_some(),
            read_only: settings.read_only,
            keep_keys: settings.events,
            direct: settings.direct,
            own: (ns.dir().to_owned(), ns.seed()),
            first: (first_temp_of(life, &*clock), nonce_of(life, entered.nonce)),
            path: settings.root.clone(),
        },
    );
    let above = match root.bounded || root.read_only {
        true => Vec::new(),
        false => above(&root.path).into_iter().collect(),
    };
    Ok(Shared {
        params: Params {
            name: name.clone(),
            block_len,
            verify: settings.verify,
            min_free: settings.min_free_bytes,
            locality: settings.locality,
            pin_ttl: settings.pin_ttl,
            miss_ttl: settings.miss_ttl,
        },
        ns,
        runner: Runner::new(name, Arc::clone(&clock), parts.bell, watchdog),
        clock,
        core: Mutex::new(core(&settings, pack.as_ref(), root.bounded)),
        root,
        settled: Condvar::new(),
        layouts: layouts(pack),
        bounce: Bounce::new(settings.bounce.applies(entered.may_hang), block_len),
        probes: Mutex::default(),
        keeper: Bell::default(),
        compact_asked: AtomicU64::new(0),
        compact_tried: AtomicU64::new(0),
        phase: Mutex::default(),
        phase_changed: Condvar::new(),
        stop: AtomicBool::new(false),
        gave_way: AtomicBool::new(false),
        above,
        floor: Mutex::default(),
        free: Mutex::new(None),
    })
}

/// An empty catalog and account.
fn core(settings: &FsSettings, pack: Option<&Pack>, bounded: bool) -> Core {
    let slots = pack
        .zip(settings.max_bytes)
        .map_or(0, |(p, bound)| bound / p.slot_bytes);
    let weight = settings
        .max_bytes
        .map_or(u64::from(u32::MAX), |b| b.div_ceil(COST_UNIT));
    let catalog = Catalog::new(
        Index::new(settings.events),
        [settings.policy.build(weight), settings.policy.build(slots)],
        weigh,
        EventLog::new(settings.events, Medium::Storage, settings.locality),
    );
    let account = Account::new(settings.max_bytes, bounded);
    Core::new(catalog, account, pack.is_some())
}

/// Joins a root that lies neither below another nor above one.
fn enter_bounded(j: &Joiner<'_>) -> Result<Joined> {
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

/// The layouts of a tier: where packing was chosen, what does not fit a slot gets a file.
fn layouts(pack: Option<Pack>) -> Layouts<Shared> {
    let packed = pack.map(|p| Box::new(p) as Box<dyn layouts::Layout<Shared>>);
    Layouts::new(packed.into_iter().chain([Box::new(Files) as _]).collect())
}

/// The first number of a temporary: unlike those of any other process and of our own last life.
fn first_temp_of(member: Option<&Member>, clock: &dyn Clock) -> u64 {
    match member {
        Some(m) => first_temp(m.number, m.incarnation),
        None => u64::from(std::process::id()) << 40 ^ clock.unix_seconds() << 20,
    }
}

/// The first nonce of this life.
fn nonce_of(member: Option<&Member>, nonce: u64) -> u64 {
    member.map_or(nonce, |m| {
        let life = u64::from(m.incarnation) << 32 | u64::from(m.number);
        nonce ^ xxhash_rust::xxh3::xxh3_64(&life.to_le_bytes())
    })
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
