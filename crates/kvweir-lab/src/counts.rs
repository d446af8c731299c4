//! Work whose instructions `scripts/counts` counts: the calls that a scheduler makes, each kind so many times in a
//! function of its own that is never inlined, `counted_*`. Keys, order and clock are fixed and only the calling thread
//! is counted, so that a count repeats; what is counted does no I/O. Run by hand it only checks that every call answers
//! what it should.

use std::{hint::black_box, sync::Arc, time::Duration};

use anyhow::{Result, ensure};
use kvweir::{
    Key,
    budget::Budget,
    clock::{Clock, ManualClock},
    evict::PolicyKind,
    fs::{FsBuilder, FsSettings, FsTier, Layout},
    io::Region,
    manager::{Manager, NewRequest},
    namespace::{Identity, Namespace},
    primary::Primary,
    sync::Bell,
    tier::{Lookup, RequestId, Tier},
};

use crate::{keys, print::say};

/// Requests of a pass.
const REQUESTS: u64 = 8;
/// Keys of a request.
const KEYS: u64 = 256;
/// Operations of each kind in a pass, a key each.
const OPERATIONS: u64 = REQUESTS * KEYS;
/// Blocks, without files, that the tier knows that is asked.
const BLOCKS: u64 = 20_000;
/// Bytes of a block.
const BLOCK: usize = 4096;
/// Seed of keys and order.
const SEED: u64 = 1;
/// How often reports of a pass are waited for, so long each.
const WAITS: u32 = 60_000;
const WAIT: Duration = Duration::from_millis(10);

/// Options of `counts`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Passes. The first two write the blocks that all others find stored, every other pass the same.
    #[arg(long, default_value_t = 4)]
    passes: u64,
}

/// Keys of one request.
type Batch = (RequestId, Vec<Key>);

/// Does the work.
pub(crate) fn run(args: &Args) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let clock: Arc<dyn Clock> = Arc::new(ManualClock::new());
    let bell = Arc::new(Bell::default());
    let open = |name: &str| {
        let settings = FsSettings {
            max_bytes: Some(1 << 30),
            layout: Layout::Auto,
            ..FsSettings::new(dir.path().join(name))
        };
        let ns = Namespace::new(&Identity::default())?;
        let tier = FsBuilder::new(settings, ns, BLOCK)
            .clock(Arc::clone(&clock))
            .bell(Arc::clone(&bell));
        tier.open()
    };
    let mut tier = open("asked")?;
    let all = (0..BLOCKS).filter_map(|n| keys::key(SEED, n).ok());
    let added = tier.add_phantoms(all, BLOCK as u64);
    ensure!(added == BLOCKS, "{added} of {BLOCKS} keys were added");
    let region = Region::new(u32::try_from(OPERATIONS)?, BLOCK, false)?;
    let primary = Primary::new(region, PolicyKind::Lru, false);
    let mut manager = Manager::new(primary).clock(Arc::clone(&clock));
    manager.add_tier(Box::new(open("stored")?), None);
    let mut budget = Budget::new(Some(OPERATIONS * BLOCK as u64));
    for pass in 0..args.passes {
        asked(&mut tier, pass)?;
        stored(&mut manager, &bell, pass)?;
        let granted = counted_grant(black_box(&mut budget), black_box(OPERATIONS));
        ensure!(
            granted == OPERATIONS * BLOCK as u64,
            "{granted} bytes were granted"
        );
    }
    manager.shutdown();
    tier.shutdown();
    say(&format!("operations of each kind in a pass: {OPERATIONS}"));
    Ok(())
}

/// Requests `n * REQUESTS` and on of a pass, with keys that `key` makes of their number.
fn batches(n: u64, key: impl Fn(u64) -> u64) -> Result<Vec<Batch>> {
    (0..REQUESTS)
        .map(|r| {
            let keys = (r * KEYS..(r + 1) * KEYS).map(|i| keys::key(SEED, key(i)));
            Ok((
                RequestId(n * REQUESTS + r + 1),
                keys.collect::<kvweir::Result<_>>()?,
            ))
        })
        .collect()
}

/// Lookups in the file tier, marks of use, ends of requests.
fn asked(tier: &mut FsTier, pass: u64) -> Result<()> {
    let anywhere = |i| keys::mix(pass * OPERATIONS + i) % BLOCKS;
    let n = OPERATIONS as usize;
    let single = batches(3 * pass, anywhere)?;
    let hits = counted_lookup_hit(tier, &single);
    ensure!(hits == n, "{hits} hits of {n}");
    counted_finish(tier, &single);
    ensure!(tier.stats().pinned_blocks == 0, "pins are left");
    let batched = batches(3 * pass + 1, anywhere)?;
    let hits = counted_lookup_prefix(tier, &batched);
    ensure!(hits == n, "{hits} hits of {n} in batches");
    batched
        .iter()
        .for_each(|(req, _)| tier.on_request_finished(*req, &[]));
    let unknown = batches(3 * pass + 2, |i| BLOCKS + anywhere(i))?;
    let misses = counted_lookup_miss(tier, &unknown);
    ensure!(misses == n, "{misses} misses of {n}");
    counted_touch(tier, &single);
    Ok(())
}

/// Stores of blocks through the manager, which the file tier has already but for the first two passes.
fn stored(manager: &mut Manager, bell: &Bell, pass: u64) -> Result<()> {
    let all = batches(pass, |i| pass % 2 * OPERATIONS + i)?;
    for (req, _) in &all {
        manager.on_new_request(*req, NewRequest::default());
    }
    let slots = counted_reserve(manager, &all);
    ensure!(slots == OPERATIONS as usize, "{slots} slots of {OPERATIONS}");
    // one report per request; all are taken in below
    let want = bell.rings() + REQUESTS;
    counted_complete(manager, &all);
    let mut rings = bell.rings();
    for _ in 0..WAITS {
        if rings >= want {
            break;
        }
        rings = bell.wait(rings, WAIT);
    }
    ensure!(rings >= want, "{} stores were not reported", want - rings);
    counted_settle(manager);
    // workers may still be on their way out of the last job
    manager.drain();
    ensure!(!manager.has_pending_work(), "stores are left");
    manager.on_schedule_end();
    all.iter()
        .for_each(|(req, keys)| manager.on_request_finished(*req, keys));
    Ok(())
}

/// A key that the tier holds is looked up and pinned.
#[inline(never)]
fn counted_lookup_hit(tier: &mut FsTier, all: &[Batch]) -> usize {
    let mut hits = 0;
    for (req, keys) in all {
        for key in keys {
            hits += usize::from(tier.lookup(key, *req) == Lookup::Hit);
        }
    }
    hits
}

/// A key that the tier does not hold is looked up.
#[inline(never)]
fn counted_lookup_miss(tier: &mut FsTier, all: &[Batch]) -> usize {
    let mut misses = 0;
    for (req, keys) in all {
        for key in keys {
            misses += usize::from(tier.lookup(key, *req) == Lookup::Miss);
        }
    }
    misses
}

/// The keys of a request are looked up and pinned together.
#[inline(never)]
fn counted_lookup_prefix(tier: &mut FsTier, all: &[Batch]) -> usize {
    let mut hits = 0;
    for (req, keys) in all {
        hits += tier.lookup_prefix(keys, *req);
    }
    hits
}

/// A request ends: its blocks are released and marked as used.
#[inline(never)]
fn counted_finish(tier: &mut FsTier, all: &[Batch]) {
    for (req, keys) in all {
        tier.on_request_finished(*req, keys);
    }
}

/// Blocks are marked as used.
#[inline(never)]
fn counted_touch(tier: &mut FsTier, all: &[Batch]) {
    for (req, keys) in all {
        tier.touch(keys, *req);
    }
}

/// Bytes are reserved, and stay or come back.
#[inline(never)]
fn counted_grant(budget: &mut Budget, n: u64) -> u64 {
    let mut granted = 0;
    for i in 0..n {
        let got = black_box(&mut *budget).grant(BLOCK as u64);
        granted += got;
        budget.release(got);
        if i % 2 == 0 {
            budget.add_resident(got);
        } else {
            budget.remove_resident(got);
        }
    }
    granted
}

/// Slots are reserved for blocks that are new, others being evicted for them.
#[inline(never)]
fn counted_reserve(manager: &mut Manager, all: &[Batch]) -> usize {
    let mut slots = 0;
    for (req, keys) in all {
        slots += manager.prepare_store(keys, *req).map_or(0, |p| p.to_store.len());
    }
    slots
}

/// Blocks become readable and go down to the file tier.
#[inline(never)]
fn counted_complete(manager: &mut Manager, all: &[Batch]) {
    for (req, keys) in all {
        manager.complete_store(keys, *req, true);
    }
}

/// What the file tier reports is taken in.
#[inline(never)]
fn counted_settle(manager: &mut Manager) {
    manager.poll();
}
