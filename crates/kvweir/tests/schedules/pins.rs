//! Index, pins and budget: loads that pin beside stores that have to evict and requests that end (I1, I2, I3). What a
//! report says is checked by the client as it arrives: once, with free slots and the right bytes (I2, I4, I5).

use kvweir::{
    fs::Layout,
    metrics::EvictReason,
    tier::{BlockOutcome, RequestId, Tier},
};

use crate::{explore::explore, support::*};

fn evicted(c: &Fs) -> u64 {
    c.tier.stats().evicted_blocks[EvictReason::Capacity as usize]
}

/// Names a request.
fn req(n: u64) -> RequestId {
    RequestId(n)
}

#[test]
fn a_pinned_block_is_loaded_whoever_evicts_and_whichever_request_ends() {
    explore(|seed| {
        let mut rng = Rng(seed);
        let layout = layout_of(seed);
        let (disk, bound) = (disk(), bound_of(layout, 0));
        let mut c = open_as(layout, &disk, bound);
        // more than there is room for; what is left of it goes in this order
        // packed blocks are evicted some at a time, so it takes more of them
        let (end, each) = if layout == Layout::Pack { (158, 8) } else { (50, 2) };
        keys(30..end).chunks(20).for_each(|part| store(&mut c, part));
        let there = held(&mut c, end);
        let before = evicted(&c);
        assert!(before > 0, "the test tests nothing");
        if there.len() < 3 {
            // with the journal's reserve this schedule left room for two: nothing could be evicted beside the pins
            return quiet(&mut c, &disk, bound, end);
        }
        let (mine, other) = (key(there[rng.below(2) as usize]), key(there[2]));
        // pinned for one that loads, for one that only asks, and for one that comes later
        assert!(c.lookup(&mine, req(1)) && c.lookup(&other, req(2)) && c.lookup(&mine, req(3)));
        let stores: Vec<_> = (0..3)
            .map(|n| c.submit_store(req(10 + n), &keys(end + each * n..end + each * (n + 1))))
            .collect();
        let load = c.submit_load(req(1), std::slice::from_ref(&mine));
        if rng.below(2) == 0 {
            // its pin has passed to the job
            c.tier.on_request_finished(req(1), std::slice::from_ref(&mine));
        }
        c.tier.on_request_finished(req(2), &[]);
        if rng.below(2) == 0 {
            pause(rng.below(20));
        }
        let late = c.submit_load(req(3), std::slice::from_ref(&mine));
        for n in 10..13 {
            c.tier.on_request_finished(req(n), &[]);
        }
        for job in [load, late] {
            let got = c.wait(job).blocks;
            assert!(got[0].is_ok(), "a pinned block was not loaded: {got:?} (I3)");
        }
        for job in stores {
            for o in c.wait(job).blocks {
                let full = matches!(o, BlockOutcome::Failed(kvweir::ErrorKind::Full));
                assert!(o.is_ok() || full, "{o:?}");
            }
        }
        for n in [1, 3] {
            c.tier.on_request_finished(req(n), &[]);
        }
        assert!(evicted(&c) > before, "the test tests nothing");
        quiet(&mut c, &disk, bound, end + 3 * each);
    });
}

#[test]
fn one_key_stored_by_two_and_loaded_by_a_third_is_one_block() {
    explore(|seed| {
        let mut rng = Rng(seed);
        let layout = layout_of(seed);
        let (disk, bound) = (disk(), bound_of(layout, 20));
        let mut c = open_as(layout, &disk, bound);
        let ks = keys(0..3);
        let stores = [c.submit_store(req(1), &ks), c.submit_store(req(2), &ks)];
        pause(rng.below(100));
        let mut loads = Vec::new();
        for k in &ks {
            // a hit before the report of its store is as good as any
            if c.lookup(k, req(3)) {
                loads.push(c.submit_load(req(3), std::slice::from_ref(k)));
            }
        }
        let mut written = 0;
        for job in stores {
            for o in c.wait(job).blocks {
                assert!(o.is_ok(), "{o:?}");
                written += u64::from(o == BlockOutcome::Stored);
            }
        }
        assert!(written >= 3, "{written}");
        for job in loads {
            let got = c.wait(job).blocks;
            assert!(got[0].is_ok(), "a hit was not loaded: {got:?}");
        }
        (1..4).for_each(|n| c.tier.on_request_finished(req(n), &[]));
        assert_eq!(held(&mut c, 3), [0, 1, 2]);
        assert_eq!(c.tier.stats().blocks, 3);
        quiet(&mut c, &disk, bound, 3);
    });
}

#[test]
fn a_shutdown_beside_loads_and_stores_reports_each_job_once() {
    explore(|seed| {
        let mut rng = Rng(seed);
        let layout = layout_of(seed);
        let (disk, bound) = (disk(), bound_of(layout, 0));
        let mut c = open_as(layout, &disk, bound);
        store(&mut c, &keys(0..9));
        for n in held(&mut c, 5) {
            if c.lookup(&key(n), req(n)) {
                c.submit_load(req(n), &[key(n)]);
            }
        }
        c.submit_store(req(10), &keys(10..14));
        c.submit_store(req(11), &keys(12..16));
        pause(rng.below(200));
        c.tier.shutdown();
        c.collect();
        assert_eq!(c.outstanding(), 0, "jobs without a report (I4)");
        assert_eq!(c.tier.stats().pinned_blocks, 0);
        drop(c);
        within(&disk, bound);
        // what it left is whole
        let disk = disk.next_life();
        let mut c = open_as(layout, &disk, bound);
        for n in held(&mut c, 16) {
            let got = c.load(req(1), &[key(n)]);
            assert!(got[0].is_ok(), "key {n}: {got:?}");
        }
        c.tier.on_request_finished(req(1), &[]);
        quiet(&mut c, &disk, bound, 16);
    });
}
