//! What these tests share: a disk in memory, a tier on it, what must be so when all is quiet.

use std::{path::Path, sync::Arc, time::Duration};

use kvweir::{
    Key,
    clock::ManualClock,
    fs::{FsBuilder, FsSettings, Layout, min_bound, min_pack_bound},
    io::{Disk, pool::PoolSize, sim::SimDisk},
    tier::{RequestId, Tier, conformance::Client},
};

pub(crate) use crate::common::*;
pub(crate) use kvweir::tier::conformance::key;

pub(crate) const LEN: usize = 4096;
/// Bytes of a file of ours, its directories included.
pub(crate) const FILE: u64 = LEN as u64 + 3 * 4096;
pub(crate) const TOP: &str = "/sim";
pub(crate) const ROOT: &str = "/sim/kv";

/// A disk with the directory above the root.
pub(crate) fn disk() -> SimDisk {
    SimDisk::new(Path::new(TOP), None)
}

/// A bound with room for so many blocks and some ten more.
pub(crate) fn bound(blocks: u64) -> u64 {
    min_bound(LEN) + blocks * FILE
}

/// As [`bound`], for either layout.
pub(crate) fn bound_of(layout: Layout, blocks: u64) -> u64 {
    match layout {
        Layout::Pack => min_pack_bound(LEN) + blocks * (LEN as u64 + 256),
        _ => bound(blocks),
    }
}

/// Every second seed packs its blocks.
pub(crate) fn layout_of(seed: u64) -> Layout {
    match seed % 2 {
        0 => Layout::Fs,
        _ => Layout::Pack,
    }
}

pub(crate) fn settings(bound: u64) -> FsSettings {
    FsSettings {
        max_bytes: Some(bound),
        layout: Layout::Fs,
        events: true,
        pool: PoolSize::new(1, 2),
        ..FsSettings::new(ROOT)
    }
}

/// As [`settings`], with a layout.
pub(crate) fn settings_of(layout: Layout, bound: u64) -> FsSettings {
    FsSettings {
        layout,
        ..settings(bound)
    }
}

pub(crate) fn builder(disk: impl Disk + 'static, clock: &Arc<ManualClock>, bound: u64) -> FsBuilder {
    builder_of(settings(bound), disk, clock)
}

/// As [`builder`], with other settings.
pub(crate) fn builder_of(
    settings: FsSettings,
    disk: impl Disk + 'static,
    clock: &Arc<ManualClock>,
) -> FsBuilder {
    FsBuilder::new(settings, ns("model"), LEN)
        .disk(Arc::new(disk))
        .clock(Arc::clone(clock) as _)
        .boot_id([1; 16])
        .walk_patience(Duration::from_secs(60))
}

pub(crate) fn client(b: FsBuilder) -> Fs {
    Client::new(Box::new(b.open().unwrap()), 32, LEN)
}

/// A client of a tier on `disk`.
pub(crate) fn open_as(layout: Layout, disk: &SimDisk, bound: u64) -> Fs {
    client(builder_of(
        settings_of(layout, bound),
        disk.clone(),
        &Arc::default(),
    ))
}

/// Stores `keys`, all of which must be held then, and ends the request.
pub(crate) fn store(c: &mut Fs, keys: &[Key]) {
    let req = RequestId(999);
    let outcomes = c.store(req, keys);
    all_ok(&outcomes);
    c.tier.on_request_finished(req, &[]);
}

/// Until `good`; the clock goes on meanwhile.
pub(crate) fn soon(what: &str, clock: &ManualClock, mut good: impl FnMut() -> bool) {
    for _ in 0..1000 {
        if good() {
            return;
        }
        clock.advance(Duration::from_millis(50));
        pause(50);
    }
    panic!("it does not come to that: {what}");
}

/// Which of the first `n` keys are held.
pub(crate) fn held(c: &mut Fs, n: u64) -> Vec<u64> {
    (0..n).filter(|&k| c.holds(&key(k))).collect()
}

/// Nothing runs: no pins and reservations, the account is what lies there, and no byte was ever above the bound
/// (I1, I3); the events tell what is held (I7).
pub(crate) fn quiet(c: &mut Fs, disk: &SimDisk, bound: u64, n: u64) {
    c.wait_all();
    let mut last = (0, 0, 0);
    for _ in 0..200 {
        let s = c.tier.stats();
        assert_eq!(s.pinned_blocks, 0, "pins without a request (I3)");
        last = (s.resident_bytes, s.reserved_bytes, counted(disk));
        if (last.0, last.1) == (last.2, 0) {
            break;
        }
        pause(10);
    }
    assert_eq!((last.0, last.1), (last.2, 0), "account, reserved and du (I1)");
    within(disk, bound);
    let held: Vec<Key> = held(c, n).into_iter().map(key).collect();
    let told = c.replay_events();
    for k in keys(0..n) {
        assert_eq!(
            told.contains(&k),
            held.contains(&k),
            "event and lookup of {k} (I7)"
        );
    }
}

/// What the account is to say: what lies there, and what the trees of extents may come to need.
pub(crate) fn counted(disk: &SimDisk) -> u64 {
    counted_on(disk, Path::new(ROOT))
}

/// The most that ever lay below the root is within its bound (I1).
pub(crate) fn within(disk: &SimDisk, bound: u64) {
    let (peak, _) = disk.bytes();
    assert!(peak <= bound, "{peak} bytes of {bound} (I1)");
}
