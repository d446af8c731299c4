//! The conformance kit: what every [`Tier`](super::Tier) must do, as checks that its author runs. Each check makes
//! tiers of its own and panics with the line of the contract that is broken.
//!
//! ```
//! use kvweir::tier::{MemoryTier, conformance::{self, Setup}};
//! conformance::run_all(&mut |s: Setup| Box::new(MemoryTier::new("memory", s.capacity_blocks as u32)));
//! ```

mod broken;
mod client;
mod life;
mod setup;

pub use client::{Client, content, fill_content, key, keys, long_key};
pub use life::{
    asking_twice_pins_once, drain_reports_everything, pinned_blocks_survive_store_pressure, pins_end,
    shutdown_refuses_and_misses,
};

pub use setup::{Make, Setup};

use self::setup::{BLOCK_LEN, CAPACITY, Caller, SETUP, end, open, store_all};
use super::{BlockOutcome, RequestId};

/// Runs every check.
pub fn run_all(make: Make<'_>) {
    stored_blocks_load_byte_exact(make);
    unknown_keys_miss(make);
    every_job_is_reported_once_with_an_outcome_per_block(make);
    asking_twice_pins_once(make);
    pinned_blocks_survive_store_pressure(make);
    pins_end(make);
    drain_reports_everything(make);
    shutdown_refuses_and_misses(make);
    a_failed_load_is_a_miss_until_stored_again(make);
    events_tell_the_truth(make);
    keys_of_1_to_255_bytes(make);
    capacity_is_held(make);
    stats_are_sane(make);
    concurrent_stores_of_one_key_are_all_good(make);
    lookups_answer_while_1000_blocks_are_queued(make);
    reopened_storage_tells_no_lies(make);
}

/// Truth (I2): a block reported loaded holds exactly the bytes that were stored, whatever its [`super::Verified`].
pub fn stored_blocks_load_byte_exact(make: Make<'_>) {
    let (mut c, r) = (open(make, 32), RequestId(1));
    let ks = keys(0..16);
    store_all(&mut c, r, &ks);
    for k in &ks {
        assert!(
            c.lookup(k, r),
            "contract broken: Truth (I2): {k:?} was stored within the capacity and misses"
        );
    }
    let loaded = c.load(r, &ks);
    assert!(
        loaded.iter().all(|o| matches!(o, BlockOutcome::Loaded(_))),
        "contract broken: Pins (I3): a block that was a hit did not load: {loaded:?}"
    );
    c.tier.on_request_finished(r, &ks);
    end(c);
}

/// Truth (I2): a key that was never stored is a miss and its load fails.
pub fn unknown_keys_miss(make: Make<'_>) {
    let (mut c, r) = (open(make, 8), RequestId(1));
    store_all(&mut c, r, &keys(0..2));
    for k in keys(100..120) {
        assert!(
            !c.lookup(&k, r),
            "contract broken: Truth (I2): {k:?} was never stored and hits"
        );
    }
    end(c);
}

/// Once (I4): one report per job, one outcome per block in order, also for empty jobs, a key twice in one job, and
/// keys that are not there. The order shows in loads that mix known and unknown keys.
pub fn every_job_is_reported_once_with_an_outcome_per_block(make: Make<'_>) {
    let (mut c, r) = (open(make, 32), RequestId(1));
    assert!(c.store(r, &[]).is_empty() && c.load(r, &[]).is_empty());
    let twice = [key(1), key(2), key(1), key(1)];
    store_all(&mut c, r, &twice);
    assert_eq!(
        c.store(r, &[key(2)]),
        [BlockOutcome::Present],
        "contract broken: a block there is not rewritten"
    );
    assert!(
        c.load(r, &twice).iter().all(|o| o.is_ok()),
        "contract broken: Once (I4): a key twice in one load"
    );
    let mixed = [key(90), key(1), key(91), key(2), key(92)];
    let outcomes: Vec<_> = c.load(r, &mixed).iter().map(|o| o.is_ok()).collect();
    assert_eq!(
        outcomes,
        [false, true, false, true, false],
        "contract broken: Once (I4): outcomes are not in the job's order, or good blocks of a job were not kept"
    );
    for n in 0..40 {
        c.submit_store(RequestId(n), &keys(n % 7..n % 7 + 3));
        c.submit_load(RequestId(n), &keys(n % 5..n % 5 + 2));
    }
    c.wait_all();
    assert!(
        !c.tier.has_pending_work(),
        "contract broken: Once (I4): work is pending after all reports"
    );
    for n in 0..40 {
        c.tier.on_request_finished(RequestId(n), &[]);
    }
    end(c);
}

/// After a failed load the block is a miss until it is stored again, and then it loads.
pub fn a_failed_load_is_a_miss_until_stored_again(make: Make<'_>) {
    let (mut c, r) = (open(make, 8), RequestId(1));
    let got = c.load(r, &[key(5)]);
    assert!(
        !got.iter().any(|o| o.is_ok()),
        "contract broken: Truth (I2): a block that was never stored loaded"
    );
    assert!(
        !c.holds(&key(5)),
        "contract broken: After a failed load: the block hits"
    );
    store_all(&mut c, r, &[key(5)]);
    assert!(
        c.lookup(&key(5), r),
        "contract broken: After a failed load: stored again, it misses"
    );
    assert!(c.load(r, &[key(5)]).iter().all(|o| o.is_ok()));
    end(c);
}

/// Events (I7): replayed into a set they say what lookups say; sequence numbers rise. Tiers without events pass.
pub fn events_tell_the_truth(make: Make<'_>) {
    let mut c = open(make, 32);
    for round in 0..12 {
        for n in 0..6 {
            c.submit_store(RequestId(n), &keys(round * 13 + n * 5..round * 13 + n * 5 + 5));
        }
        c.wait_all();
        c.replay_events();
        if c.events_seen() == 0 {
            break;
        }
        for k in keys(0..220) {
            let (said, is) = (c.replay_events().contains(&k), c.holds(&k));
            assert_eq!(
                said, is,
                "contract broken: Events (I7): events about {k:?} say {said}, a lookup {is}"
            );
        }
    }
    end(c);
}

/// Keys are opaque: any length from 1 to 255 bytes.
pub fn keys_of_1_to_255_bytes(make: Make<'_>) {
    let (mut c, r) = (open(make, 16), RequestId(1));
    for len in [
        1, 2, 3, 4, 5, 7, 8, 9, 12, 31, 32, 36, 40, 41, 100, 104, 105, 200, 254, 255,
    ] {
        let k = long_key(3, len);
        assert!(
            !c.holds(&k),
            "contract broken: Keys: {len} bytes: another key's block answers"
        );
        store_all(&mut c, r, std::slice::from_ref(&k));
        assert!(c.lookup(&k, r), "contract broken: Keys: {len} bytes: lost");
        assert!(
            c.load(r, &[k]).iter().all(|o| o.is_ok()),
            "contract broken: Keys: {len} bytes: not loaded"
        );
    }
    end(c);
}

/// Bound (I1): stores beyond the capacity evict and go on; the last one stays; the numbers keep to the bound.
pub fn capacity_is_held(make: Make<'_>) {
    let (mut c, r) = (open(make, 16), RequestId(1));
    for n in 0..CAPACITY * 4 {
        let stored = c.store(r, &[key(n)]);
        assert!(
            stored.iter().all(|o| o.is_ok()),
            "contract broken: Bound (I1): stores stop when full: {stored:?}"
        );
        assert!(
            c.holds(&key(n)),
            "contract broken: Bound (I1): the block just stored went first"
        );
        let s = c.tier.stats();
        if let Some(bound) = s.bound_bytes {
            let held = s.resident_bytes + s.reserved_bytes;
            assert!(
                held <= bound && s.peak_bytes <= bound,
                "contract broken: Bound (I1): {held} of {bound} bytes"
            );
        }
    }
    let held = (0..CAPACITY * 4).filter(|&n| c.holds(&key(n))).count() as u64;
    assert!(
        held >= CAPACITY.min(8),
        "contract broken: Bound (I1): only {held} blocks are kept"
    );
    assert_eq!(
        c.tier.stats().blocks,
        held,
        "contract broken: Stats: blocks that can be loaded"
    );
    end(c);
}

/// Stats count what was done.
pub fn stats_are_sane(make: Make<'_>) {
    let (mut c, r) = (open(make, 16), RequestId(1));
    store_all(&mut c, r, &keys(0..6));
    store_all(&mut c, r, &keys(0..3));
    let hits = keys(0..10).iter().filter(|k| c.lookup(k, r)).count() as u64;
    c.load(r, &keys(0..4));
    c.tier.on_request_finished(r, &[]);
    let s = c.tier.stats();
    let got = (
        s.blocks,
        s.stored_blocks,
        s.present_blocks,
        s.loaded_blocks,
        s.lookup_hits,
    );
    assert_eq!(
        got,
        (6, 6, 3, 4, hits),
        "contract broken: Stats: blocks, stored, present, loaded, hits"
    );
    assert!(
        s.resident_bytes >= 6 * BLOCK_LEN as u64,
        "contract broken: Stats: resident bytes"
    );
    assert_eq!(
        (s.reserved_bytes, s.queued_blocks),
        (0, 0),
        "contract broken: Stats: reserved and queued when idle"
    );
    end(c);
}

/// Jobs that store one key at the same time all succeed, and the block is whole.
pub fn concurrent_stores_of_one_key_are_all_good(make: Make<'_>) {
    let mut c = open(make, 64);
    for round in 0..10 {
        let k = key(round);
        for n in 0..6 {
            c.submit_store(RequestId(n), &[k.clone(), k.clone()]);
        }
        let outcomes: Vec<_> = c.wait_all().into_iter().flat_map(|r| r.blocks).collect();
        assert!(
            outcomes.iter().all(|o| o.is_ok()),
            "contract broken: stores of one key: {outcomes:?}"
        );
        let written = outcomes.iter().filter(|o| **o == BlockOutcome::Stored).count();
        assert_eq!(
            written,
            1,
            "contract broken: one of {} stores of a key writes it",
            outcomes.len()
        );
        assert!(
            c.load(RequestId(1), &[k]).iter().all(|o| o.is_ok()),
            "contract broken: Truth (I2)"
        );
    }
    end(c);
}

/// Never blocking (I8): lookups, touches and polls answer while 1000 blocks wait. Only that they end is checked.
pub fn lookups_answer_while_1000_blocks_are_queued(make: Make<'_>) {
    let (mut c, r) = (open(make, 1000), RequestId(1));
    for n in 0..20 {
        c.submit_store(RequestId(2), &keys(n * 50..n * 50 + 50));
    }
    for k in keys(0..1000) {
        let _ = c.tier.lookup(&k, r);
    }
    c.tier.touch(&keys(0..1000), r);
    c.tier.on_request_finished(r, &keys(0..100));
    c.collect();
    end(c);
}

/// Reopened over the same storage, a tier finds blocks or misses; what it finds loads byte-exact.
pub fn reopened_storage_tells_no_lies(make: Make<'_>) {
    let (mut c, r) = (open(make, 16), RequestId(1));
    store_all(&mut c, r, &keys(0..8));
    end(c);
    let mut c: Caller = Client::new(
        make(Setup {
            fresh: false,
            ..SETUP
        }),
        16,
        BLOCK_LEN,
    );
    let found: Vec<_> = keys(0..12).into_iter().filter(|k| c.lookup(k, r)).collect();
    let said = c.replay_events().clone();
    if c.events_seen() > 0 {
        assert!(
            said.len() == found.len() && found.iter().all(|k| said.contains(k)),
            "contract broken: Events (I7): blocks found at start are not announced"
        );
    }
    assert!(
        c.load(r, &found).iter().all(|o| o.is_ok()),
        "contract broken: Truth (I2): a block found does not load"
    );
    store_all(&mut c, RequestId(2), &keys(0..8));
    end(c);
}
