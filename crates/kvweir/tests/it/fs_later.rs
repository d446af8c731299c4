//! Jobs whose blocks a worker makes: each is reported once, and no pin or slot is left, whatever making them does.

use std::time::{Duration, Instant as Wall};

use kvweir::{
    ErrorKind, Key,
    error::Error,
    fs::{FsBuilder, FsTier, Layout},
    io::Region,
    tier::{BlockOutcome, JobId, LoadBlock, Lookup, Report, RequestId, StoreBlock, Tier},
};

use crate::support::{LEN, R, Root, in_both_layouts, keys, ns};

fn open(root: &Root) -> (FsTier, Region) {
    let tier = FsBuilder::new(root.settings(64 << 20), ns("model"), LEN)
        .open()
        .unwrap();
    (tier, Region::new(64, LEN, false).unwrap())
}

#[expect(clippy::disallowed_methods, reason = "waits for threads")]
fn wait(tier: &mut FsTier) -> Report {
    let end = Wall::now() + Duration::from_secs(20);
    let mut reports = Vec::new();
    while reports.is_empty() {
        assert!(Wall::now() < end, "no report came");
        tier.poll(&mut reports);
        std::thread::sleep(Duration::from_millis(1));
    }
    assert_eq!(reports.len(), 1);
    reports.remove(0)
}

fn loads(region: &Region, keys: &[Key]) -> kvweir::Result<Vec<LoadBlock>> {
    let blocks = keys.iter().zip(0..);
    blocks
        .map(|(key, slot)| {
            Ok(LoadBlock {
                key: key.clone(),
                slot: region.write(slot)?,
            })
        })
        .collect()
}

fn store(tier: &mut FsTier, region: &Region, keys: Vec<Key>) {
    let region = region.clone();
    tier.store_later(JobId(0), R, keys.len(), move || {
        keys.into_iter()
            .zip(0..)
            .map(|(key, slot)| {
                Ok(StoreBlock {
                    key,
                    slot: region.read(slot)?,
                })
            })
            .collect()
    });
    assert!(wait(tier).all_ok());
}

fn is_quiet(tier: &mut FsTier, region: &Region) {
    tier.drain();
    let mut more = Vec::new();
    tier.poll(&mut more);
    assert!(more.is_empty(), "a job was reported twice");
    assert!((0..region.num_slots()).all(|s| region.is_free(s)));
}

fn a_job_whose_blocks_cannot_be_made_fails_once_and_its_pins_go_back(layout: Layout) {
    type Make = fn(&Region, &[Key]) -> kvweir::Result<Vec<LoadBlock>>;
    let makes: [(&str, Make); 3] = [
        ("fails", |_, _| Err(Error::invalid("make blocks", "no"))),
        ("gives fewer", |r, k| loads(r, &k[..3])),
        ("panics", |_, _| panic!("a test panics in making blocks")),
    ];
    let root = Root::of(layout);
    let (mut tier, region) = open(&root);
    store(&mut tier, &region, keys(0..8));
    for (n, (what, make)) in makes.into_iter().enumerate() {
        for k in keys(0..8) {
            assert_eq!(tier.lookup(&k, R), Lookup::Hit);
        }
        let theirs = region.clone();
        tier.load_later(JobId(n as u64), R, 8, move || make(&theirs, &keys(0..8)));
        let report = wait(&mut tier);
        assert_eq!(
            report.blocks,
            [BlockOutcome::Failed(ErrorKind::Invalid); 8],
            "{what}"
        );
        is_quiet(&mut tier, &region);
        assert_eq!(tier.stats().pinned_blocks, 8, "{what}");
        tier.on_request_finished(R, &[]);
        assert_eq!(tier.stats().pinned_blocks, 0, "{what}");
    }
    assert_eq!(tier.lookup_prefix(&keys(0..8), R), 8);
}

fn blocks_that_are_made_after_a_shutdown_began_are_reported_closed(layout: Layout) {
    let root = Root::of(layout);
    let (mut tier, region) = open(&root);
    store(&mut tier, &region, keys(0..8));
    for job in 0..20 {
        let theirs = region.clone();
        for k in keys(0..8) {
            tier.lookup(&k, RequestId(job));
        }
        // rows are shared by all these jobs: most of them cannot be made
        tier.load_later(JobId(job), RequestId(job), 8, move || loads(&theirs, &keys(0..8)));
    }
    tier.shutdown();
    let mut reports = Vec::new();
    tier.poll(&mut reports);
    let mut ids: Vec<u64> = reports.iter().map(|r| r.id.0).collect();
    ids.sort_unstable();
    assert_eq!(ids, (0..20).collect::<Vec<_>>());
    assert!(reports.iter().all(|r| r.blocks.len() == 8));
    is_quiet(&mut tier, &region);
    assert_eq!(tier.stats().pinned_blocks, 0);
}

fn keys_pinned_ahead_are_counted_when_they_are_asked_for(layout: Layout) {
    let root = Root::of(layout);
    let (mut tier, region) = open(&root);
    store(&mut tier, &region, keys(0..8));
    let before = tier.stats();
    assert_eq!(tier.pin_ahead(&keys(0..10), R), 8);
    let now = tier.stats();
    assert_eq!(
        (now.pinned_blocks, now.lookup_hits, now.lookup_misses),
        (8, before.lookup_hits, before.lookup_misses)
    );
    tier.count_hits(3);
    assert_eq!(tier.stats().lookup_hits, before.lookup_hits + 3);
    tier.finish_later(R, || keys(0..8));
    assert_eq!(tier.stats().pinned_blocks, 0);
    is_quiet(&mut tier, &region);
}

in_both_layouts! {
    a_job_whose_blocks_cannot_be_made_fails_once_and_its_pins_go_back,
    blocks_that_are_made_after_a_shutdown_began_are_reported_closed,
    keys_pinned_ahead_are_counted_when_they_are_asked_for,
}
