//! What handles, workers and keeper of a root will share is put together, and each space's layout is chosen.

use std::sync::{Arc, Weak};

use super::{
    core::Core,
    layouts,
    packed::Pack,
    parts::{Entered, FsSpace, Parts},
    settings::{FsSettings, Layout, PACK_BELOW, min_bound_in, min_pack_bound_in},
    shared::{Gives, Served, Shared},
    space::{Params, Space},
};
use crate::{
    budget::COST_UNIT,
    catalog::{Catalog, body::MAX_SLOT_STORES, index::Index, space::SpaceId},
    clock::{Clock, Instant},
    error::{Error, Result},
    events::{EventLog, Medium},
    fs::{body::weigh, files::Files, layouts::Layouts},
    jobs::{Runner, bounce::Bounce, device::Device, watchdog::Watchdog},
    root::{
        Root, RootSettings,
        account::Account,
        around::above,
        member::{Joined, Member},
        names::first_temp,
    },
    sync::{
        Bell, Condvar, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64},
    },
};

/// What handles, workers and keeper will share, and the spaces.
pub(super) fn build(
    parts: Parts,
    entered: &Entered,
    joined: Option<&Joined>,
    began: Instant,
) -> Result<(Arc<Shared>, Vec<Arc<Space>>)> {
    let packs = choose_layouts(&parts, entered)?;
    let served: Vec<Served> = parts.spaces().map(served).collect();
    let Parts {
        settings,
        first,
        others,
        clock,
        ..
    } = parts;
    let life = joined.map(|j| &j.member);
    let root = Root::new(
        parts.disk,
        RootSettings {
            unit: entered.unit,
            bounded: joined.is_some(),
            read_only: settings.read_only,
            keep_keys: settings.events,
            direct: settings.direct,
            own: served
                .iter()
                .map(|s| (s.ns.dir().to_owned(), s.ns.seed()))
                .collect(),
            first: (first_temp_of(life, &*clock), nonce_of(life, entered.nonce)),
            path: settings.root.clone(),
        },
    );
    let above = match root.bounded || root.read_only {
        true => Vec::new(),
        false => above(&root.path).into_iter().collect(),
    };
    let shared = Arc::new(Shared {
        name: first.name.clone(),
        min_free: settings.min_free_bytes,
        least_share: least_share(&served, entered.unit),
        served,
        clock,
        core: Mutex::new(core(&settings, &packs, root.bounded)),
        root,
        settled: Condvar::new(),
        spaces: OnceLock::new(),
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
    });
    let device = Arc::new(Device::new(began));
    let spaces: Vec<Arc<Space>> = std::iter::once(first)
        .chain(others)
        .zip(packs)
        .zip(0..)
        .map(|((part, pack), n)| {
            let watchdog = Watchdog::new(
                settings.io_timeout,
                settings.breaker,
                parts.slots_outlive_reports,
                Arc::clone(&device),
            );
            let bounce = Bounce::new(settings.bounce.applies(entered.may_hang), part.block_len);
            Arc::new(space(
                &shared,
                SpaceId(n),
                (&settings, part),
                pack,
                (watchdog, bounce),
            ))
        })
        .collect();
    let givers = spaces.iter().map(|s| Arc::downgrade(s) as Weak<dyn Gives>);
    let _ = shared.spaces.set(givers.collect());
    Ok((shared, spaces))
}

fn space(
    shared: &Arc<Shared>,
    id: SpaceId,
    (settings, part): (&FsSettings, FsSpace),
    pack: Option<Pack>,
    (watchdog, bounce): (Watchdog, Bounce),
) -> Space {
    let clock = Arc::clone(&shared.clock);
    Space {
        shared: Arc::clone(shared),
        id,
        runner: Runner::new(part.name.clone(), clock, part.bell, watchdog),
        params: Params {
            name: part.name,
            block_len: part.block_len,
            verify: settings.verify,
            locality: settings.locality,
            pin_ttl: settings.pin_ttl,
            miss_ttl: settings.miss_ttl,
        },
        ns: part.ns,
        layouts: layouts(pack),
        bounce,
        probes: Mutex::default(),
        ended: AtomicBool::new(false),
    }
}

fn served(space: &FsSpace) -> Served {
    Served {
        ns: space.ns.clone(),
        block_len: space.block_len as u64,
    }
}

/// Bytes without which a member of these spaces can store nothing.
fn least_share(served: &[Served], unit: u64) -> u64 {
    let least = |s: &Served| min_bound_in(usize::try_from(s.block_len).unwrap_or(usize::MAX), unit);
    served.iter().map(least).fold(0, u64::saturating_add)
}

/// An empty catalog and account.
fn core(settings: &FsSettings, packs: &[Option<Pack>], bounded: bool) -> Core {
    let slots = |p: &Pack| settings.max_bytes.map_or(0, |bound| bound / p.slot_bytes);
    let weight = settings
        .max_bytes
        .map_or(u64::from(u32::MAX), |b| b.div_ceil(COST_UNIT));
    let stores = packs.iter().flatten().map(|p| settings.policy.build(slots(p)));
    let events = || EventLog::new(settings.events, Medium::Storage, settings.locality);
    let catalog = Catalog::new(
        Index::new(settings.events),
        (settings.policy.build(weight), stores.collect()),
        weigh,
        (events(), packs.iter().skip(1).map(|_| events()).collect()),
    );
    let account = Account::new(settings.max_bytes, bounded);
    Core::new(catalog, account, packs.iter().map(Option::is_some))
}

/// For each space, where its new blocks are packed, if they are.
fn choose_layouts(parts: &Parts, entered: &Entered) -> Result<Vec<Option<Pack>>> {
    let mut packs = Vec::new();
    let spaces = parts.spaces().count() as u64;
    for space in parts.spaces() {
        let store = packs.iter().flatten().count();
        let settings = space.settings(&parts.settings);
        let bound = choose_layout(space, &settings, entered, spaces);
        if bound.is_some() && store >= MAX_SLOT_STORES {
            return Err(Error::invalid(
                "open root",
                format!(
                    "at most {MAX_SLOT_STORES} namespaces of one root can be packed by one process: use layout fs for more"
                ),
            ));
        }
        let store = u8::try_from(store).unwrap_or(u8::MAX);
        packs.push(bound.map(|bound| Pack::new(store, space.block_len, bound, spaces)));
    }
    Ok(packs)
}

/// Whether new blocks of a space, one of `spaces`, are packed, below which bound; says why.
fn choose_layout(space: &FsSpace, settings: &FsSettings, entered: &Entered, spaces: u64) -> Option<u64> {
    let owned = settings.max_bytes.filter(|_| !settings.read_only);
    let block_len = space.block_len;
    let (pack, why) = match (settings.layout, owned) {
        (Layout::Fs, _) => (None, "asked for"),
        (Layout::Pack, Some(bound)) => (Some(bound), "asked for"),
        // `validate` has refused it
        (Layout::Pack, None) | (Layout::Auto, None) => {
            (None, "the root is not owned: no max_bytes, or read_only")
        }
        (Layout::Auto, Some(_)) if entered.may_hang => {
            (None, "the file system is another machine's or process's")
        }
        (Layout::Auto, Some(_)) if block_len >= PACK_BELOW => (None, "blocks are not small"),
        (Layout::Auto, Some(bound)) if bound / spaces.max(1) < min_pack_bound_in(block_len, entered.unit) => {
            (None, "max_bytes is small")
        }
        (Layout::Auto, Some(bound)) => (Some(bound), "the root is owned and blocks are small"),
    };
    let layout = if pack.is_some() { Layout::Pack } else { Layout::Fs };
    tracing::info!(tier = %space.name, %layout, why, block_len, "layout of new blocks");
    pack
}

/// The layouts of a space: where packing was chosen, what does not fit a slot gets a file.
fn layouts(pack: Option<Pack>) -> Layouts<Space> {
    let packed = pack.map(|p| Box::new(p) as Box<dyn layouts::Layout<Space>>);
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
