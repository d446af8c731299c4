//! Opening a root: check, join, hand over to the keeper, which loads, trims and writes what identifies its namespaces.
//! What is quickly done is done before the tiers open; a walk or a large trim goes on while they serve. Until it ends
//! no store is admitted.

use std::{collections::HashSet, io, path::Path, sync::Arc, time::Duration};

use super::{
    parts::{Entered, FsSpace, Parts},
    settings::{USUAL_FS_BLOCK, allocation_unit, least_bound},
    shared::Shared,
    space::Space,
};
use crate::{
    clock::Clock,
    error::{Error, ErrorKind, Result},
    events::Locality,
    fs::{build::build, identify::recognise, keeper::Keeping, phase::Phase, recover::opening::Opening},
    io::{Disk, disk::FileKind, os::boot_id},
    root::{
        around::{enter_unbounded, refuse_above, refuse_below},
        member::{Joined, Joiner, Start, join},
        ownership::unusable,
    },
    sync::{lock, wait_while},
};

/// Trims of at most this many blocks are done before the tiers open.
pub(crate) const TRIM_AT_ONCE: u64 = 2000;

/// A root that is open.
pub(crate) struct Opened {
    pub(crate) spaces: Vec<Arc<Space>>,
    pub(crate) keeper: Option<Keeping>,
}

/// Opens the root of `parts`.
pub(crate) fn open(parts: Parts) -> Result<Opened> {
    let began = parts.clock.now();
    let (bound, patience) = (parts.settings.max_bytes, parts.patience);
    let mut entered = enter(&parts)?;
    let joined = entered.joined.take();
    let (shared, spaces) = build(parts, &entered, joined.as_ref(), began)?;
    if shared.root.read_only {
        recognise(&shared)?;
    }
    let keeper = joined
        .map(|j| Keeping::start(Opening::new(Arc::clone(&shared), j), spaces.clone()))
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
            tier = %shared.name, root = %shared.root.path.display(), bound_bytes = bound,
            recovered = s.recovered_blocks, swept = s.swept_files, foreign = s.foreign_files,
            resident_bytes = core.account.budget.resident(), seconds, "tier is open"
        );
    }
    Ok(Opened { spaces, keeper })
}

/// Checks settings and root, and joins it.
fn enter(parts: &Parts) -> Result<Entered> {
    let (settings, disk) = (&parts.settings, &parts.disk);
    check_spaces(parts)?;
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
    check_unit(parts, unit)?;
    let nonce = nonce(&*parts.clock, root);
    let joined = match bound {
        Some(bound) => Some(enter_bounded(&Joiner {
            disk,
            root,
            bound,
            seed: parts.first.ns.seed(),
            boot: parts.boot.unwrap_or_else(boot_id),
            nonce,
        })?),
        None if settings.read_only => None,
        None => {
            enter_unbounded(disk, root)?;
            tracing::warn!(
                tier = %parts.first.name, root = %root.display(), "no max_bytes is set: this tier grows without bound"
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

/// Checks settings that need no disk: each space's, and that no two are one.
fn check_spaces(parts: &Parts) -> Result<()> {
    let no = |m: String| Err(Error::invalid("check settings", m));
    check_sum(parts, USUAL_FS_BLOCK)?;
    let (mut names, mut dirs) = (HashSet::new(), HashSet::new());
    for space in parts.spaces() {
        if space.name.is_empty() {
            return no("a tier has no name: metrics and logs tell tiers by it".into());
        }
        space.settings(&parts.settings).validate(space.block_len)?;
        if !names.insert(&space.name) {
            return no(format!(
                "two tiers are called {:?}: give each a name of its own",
                space.name
            ));
        }
        if !dirs.insert(space.ns.dir()) {
            return no(format!(
                "two tiers serve the namespace {}: leave one out",
                space.ns.dir()
            ));
        }
    }
    Ok(())
}

/// Refuses a bound that cannot be kept in units of `unit` bytes, or has no room for a block of each space.
fn check_unit(parts: &Parts, unit: u64) -> Result<()> {
    let settings = &parts.settings;
    let Some(bound) = settings.max_bytes.filter(|_| !settings.read_only) else {
        return Ok(());
    };
    let root = settings.root.display();
    check_sum(parts, unit)?;
    for space in parts.spaces() {
        let (layout, block_len) = (space.settings(settings).layout, space.block_len);
        let least = least_bound(layout, block_len, unit);
        if bound < least {
            return Err(Error::invalid(
                "open root",
                format!(
                    "max_bytes {bound} is too small for {root}: its file system gives out space in units of {unit} bytes, \
                     so layout {layout} with blocks of {block_len} bytes needs at least {least}; raise it, or use a file \
                     system with smaller units (no bigalloc clusters, no huge pages)"
                ),
            ));
        }
    }
    Ok(())
}

/// Refuses a bound that has no room for a block of each of several spaces, in units of `unit` bytes.
fn check_sum(parts: &Parts, unit: u64) -> Result<()> {
    let settings = &parts.settings;
    let Some(bound) = settings.max_bytes.filter(|_| !settings.read_only) else {
        return Ok(());
    };
    let each = |s: &FsSpace| least_bound(s.settings(settings).layout, s.block_len, unit);
    let all: u64 = parts.spaces().map(each).sum();
    if parts.others.is_empty() || bound >= all {
        return Ok(());
    }
    let needs: Vec<String> = parts
        .spaces()
        .map(|s| format!("{} bytes for {} with blocks of {}", each(s), s.name, s.block_len))
        .collect();
    Err(Error::invalid(
        "open root",
        format!(
            "max_bytes {bound} is too small for {} tiers: together they need at least {all}: {}",
            needs.len(),
            needs.join(", ")
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

/// A number for this life of a process. Another one may have it that began in the same second with the same process id
/// (in containers that is 1): what the ledger tells of this life goes into it too.
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
