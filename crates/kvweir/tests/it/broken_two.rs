//! A tier that hangs beside one that works, behind one manager: the other goes on, and the engine waits for nobody.

use std::{sync::Arc, time::Duration};

use kvweir::{
    Key,
    evict::PolicyKind,
    fs::{FsBuilder, FsSettings, Layout},
    io::{
        Region,
        fault::{Fault, Op, Rule},
    },
    manager::{Found, Manager, NewRequest},
    primary::Primary,
    tier::{RequestId, conformance::content},
};

use crate::support::{LEN, Root, faulty, in_both_layouts, keys, ns, pause};

fn store(m: &mut Manager, req: RequestId, ks: &[Key]) {
    let p = m.prepare_store(ks, req).expect("room in the primary");
    for (k, slot) in p.to_store {
        m.primary()
            .region()
            .write(slot)
            .unwrap()
            .copy_from_slice(&content(&k, LEN));
    }
    m.complete_store(ks, req, true);
    m.on_schedule_end();
}

fn settle(m: &mut Manager) {
    for _ in 0..10_000 {
        m.poll();
        if !m.has_pending_work() {
            return;
        }
        pause(1);
    }
    panic!("the tiers never come to rest");
}

/// Steps until nothing is pending; how many leading keys are readable.
fn resolve(m: &mut Manager, req: RequestId, ks: &[Key]) -> usize {
    for _ in 0..10_000 {
        let found: Vec<Found> = ks.iter().map(|k| m.lookup(k, req)).collect();
        m.on_schedule_end();
        m.poll();
        if !found
            .iter()
            .any(|f| matches!(f, Found::HitPending | Found::Retry))
        {
            return found.iter().take_while(|f| **f == Found::Hit).count();
        }
        pause(1);
    }
    panic!("lookups never settle");
}

fn a_tier_that_hangs_costs_one_deadline_and_the_other_tier_serves(layout: Layout) {
    let (near, far) = (Root::of(layout), Root::of(layout));
    let disk = faulty();
    let settings = |root: &Root| FsSettings {
        events: false,
        io_timeout: Some(Duration::from_millis(300)),
        ..root.settings(8 << 20)
    };
    let hung = FsBuilder::new(settings(&near), ns("model"), LEN)
        .name("near")
        .disk(Arc::new(disk.clone()))
        .open()
        .unwrap();
    let good = FsBuilder::new(settings(&far), ns("model"), LEN)
        .name("far")
        .open()
        .unwrap();
    let region = Region::new(64, LEN, false).unwrap();
    let mut m = Manager::new(Primary::new(region, PolicyKind::Lru, true));
    m.add_tier(Box::new(hung), None);
    m.add_tier(Box::new(good), None);
    let ks = keys(0..8);
    let first = RequestId(1);
    m.on_new_request(first, NewRequest::default());
    store(&mut m, first, &ks);
    m.on_request_finished(first, &ks);
    settle(&mut m);

    m.reset();
    m.on_reset_flushed();
    disk.add(Rule::new(Op::Read, Fault::Hang));
    disk.add(Rule::new(Op::Write, Fault::Hang));
    // the first to ask waits for the deadline at most; then the breaker is open and the other tier answers
    let mut served = 0;
    for n in 2..6 {
        let req = RequestId(n);
        m.on_new_request(req, NewRequest::default());
        served = resolve(&mut m, req, &ks);
        if served == ks.len() {
            for k in &ks {
                assert_eq!(m.lookup(k, req), Found::Hit);
            }
            m.on_request_finished(req, &ks);
            break;
        }
        m.on_request_finished(req, &ks);
    }
    assert_eq!(served, ks.len(), "the other tier holds them all");
    assert!(m.tier_hits()[1] >= ks.len() as u64);
    let slots = m.prepare_load(&ks).unwrap();
    for (k, &slot) in ks.iter().zip(&slots) {
        assert_eq!(
            &*m.primary().region().read(slot).unwrap(),
            content(k, LEN).as_slice()
        );
    }
    m.complete_load(&ks);
    // it takes stores again when it comes back
    let stats = |m: &Manager| m.tier_stats()[0].1.clone();
    assert!(stats(&m).breaker_opened > 0 && stats(&m).jobs_timed_out > 0);
    disk.heal();
    disk.release();
    for _ in 0..10_000 {
        m.poll();
        if stats(&m).breaker_state == 0 {
            break;
        }
        let asks = RequestId(99);
        m.on_new_request(asks, NewRequest::default());
        let _ = m.lookup(&ks[0], asks);
        m.on_request_finished(asks, &[]);
        pause(2);
    }
    let last = RequestId(100);
    let more = keys(20..24);
    m.on_new_request(last, NewRequest::default());
    store(&mut m, last, &more);
    m.on_request_finished(last, &more);
    settle(&mut m);
    assert!(stats(&m).stored_blocks >= 12, "{:?}", stats(&m));
    m.shutdown();
}

in_both_layouts! {
    a_tier_that_hangs_costs_one_deadline_and_the_other_tier_serves,
}
