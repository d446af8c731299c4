//! Checks of what begins and ends: pins, drains, shutdown.

use super::{
    client::{key, keys},
    setup::{CAPACITY, Caller, Make, end, open, store_all},
};
use crate::{
    error::ErrorKind,
    tier::{BlockOutcome, RequestId},
};

/// Pins (I3): asking twice pins once, for each request.
pub fn asking_twice_pins_once(make: Make<'_>) {
    let mut c = open(make, 8);
    store_all(&mut c, RequestId(9), &keys(0..2));
    for _ in 0..3 {
        assert!(c.lookup(&key(0), RequestId(1)) && c.lookup(&key(0), RequestId(2)));
    }
    assert_eq!(
        c.tier.stats().pinned_blocks,
        1,
        "contract broken: Pins (I3): one block is pinned"
    );
    c.load(RequestId(1), &[key(0)]);
    assert_eq!(
        c.tier.stats().pinned_blocks,
        1,
        "contract broken: Pins (I3): the other request still pins it"
    );
    c.tier.on_request_finished(RequestId(2), &[]);
    assert_eq!(
        c.tier.stats().pinned_blocks,
        0,
        "contract broken: Pins (I3): asking twice pinned twice"
    );
    end(c);
}

/// Pins (I3): a block answered Hit is not evicted, however much is stored, until its load ends.
pub fn pinned_blocks_survive_store_pressure(make: Make<'_>) {
    let (mut c, r) = (open(make, 16), RequestId(1));
    let pinned = keys(0..4);
    store_all(&mut c, RequestId(2), &pinned);
    for k in &pinned {
        assert!(
            c.lookup(k, r),
            "contract broken: Truth (I2): {k:?} is lost below the capacity"
        );
    }
    for n in 1..=CAPACITY {
        c.submit_store(RequestId(2), &keys(n * 10..n * 10 + 6));
    }
    c.wait_all();
    let loaded = c.load(r, &pinned);
    assert!(
        loaded.iter().all(|o| o.is_ok()),
        "contract broken: Pins (I3): a pinned block was evicted: {loaded:?}"
    );
    end(c);
}

/// Pins (I3): a pin ends with the load, with the request, and with the tier.
pub fn pins_end(make: Make<'_>) {
    let mut c = open(make, 16);
    store_all(&mut c, RequestId(9), &keys(0..4));
    let pinned = |c: &Caller| c.tier.stats().pinned_blocks;
    assert!(c.lookup(&key(0), RequestId(1)));
    c.tier.on_request_finished(RequestId(1), &[]);
    assert_eq!(
        pinned(&c),
        0,
        "contract broken: Pins (I3): pinned after the request finished without a load"
    );
    assert!(c.lookup(&key(0), RequestId(2)));
    c.load(RequestId(2), &[key(0)]);
    assert_eq!(
        pinned(&c),
        0,
        "contract broken: Pins (I3): pinned after the load ended"
    );
    c.load(RequestId(3), &[key(0), key(77)]);
    assert_eq!(
        pinned(&c),
        0,
        "contract broken: Pins (I3): pinned after a load without lookup, or of a miss"
    );
    assert!(c.lookup(&key(1), RequestId(4)));
    let job = c.submit_load(RequestId(4), &[key(1)]);
    c.tier.on_request_finished(RequestId(4), &[]);
    c.wait(job);
    assert_eq!(
        pinned(&c),
        0,
        "contract broken: Pins (I3): pinned after a request finished before its load"
    );
    assert!(c.lookup(&key(2), RequestId(5)));
    c.submit_load(RequestId(5), &[key(2), key(3)]);
    assert!(c.lookup(&key(3), RequestId(6)));
    c.tier.shutdown();
    c.wait_all();
    assert_eq!(pinned(&c), 0, "contract broken: Pins (I3): pinned after shutdown");
    end(c);
}

/// Once (I4), Slots (I5): after a drain every job is in the next poll, also what was queued, with its slots free.
pub fn drain_reports_everything(make: Make<'_>) {
    let mut c = open(make, 256);
    store_all(&mut c, RequestId(1), &keys(0..4));
    for n in 0..20 {
        c.submit_store(RequestId(2), &keys(n * 8..n * 8 + 8));
        c.submit_load(RequestId(3), &keys(0..4));
    }
    c.tier.drain();
    c.collect();
    assert_eq!(
        c.outstanding(),
        0,
        "contract broken: Once (I4): jobs are not reported after drain"
    );
    assert!(
        (0..256).all(|s| c.region().is_free(s)),
        "contract broken: Slots (I5): slots claimed after drain"
    );
    c.take_reports();
    assert!(
        !c.tier.has_pending_work(),
        "contract broken: Once (I4): work is pending after drain"
    );
    store_all(&mut c, RequestId(4), &keys(500..502));
    end(c);
}

/// Shutdown: what runs is reported, later jobs are reported closed, lookups miss, and it may be called again.
pub fn shutdown_refuses_and_misses(make: Make<'_>) {
    let mut c = open(make, 64);
    store_all(&mut c, RequestId(1), &keys(0..2));
    for n in 0..10 {
        c.submit_store(RequestId(2), &keys(n * 4..n * 4 + 4));
    }
    c.tier.shutdown();
    c.collect();
    assert_eq!(
        c.outstanding(),
        0,
        "contract broken: Once (I4): jobs are not reported after shutdown"
    );
    let closed = [BlockOutcome::Failed(ErrorKind::Closed); 2];
    assert_eq!(
        c.store(RequestId(3), &keys(0..2)),
        closed,
        "contract broken: Shutdown: a store ran"
    );
    assert_eq!(
        c.load(RequestId(3), &keys(0..2)),
        closed,
        "contract broken: Shutdown: a load ran"
    );
    assert!(
        !c.lookup(&key(0), RequestId(4)),
        "contract broken: Shutdown: a lookup hits what cannot be loaded"
    );
    c.tier.shutdown();
    end(c);
}
