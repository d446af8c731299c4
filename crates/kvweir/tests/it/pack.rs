//! Packed blocks: what a tier with layout `pack` promises beyond the contract.

use kvweir::{
    fs::{FsBuilder, FsSettings, Layout, min_pack_bound},
    tier::{BlockOutcome, Tier, conformance::long_key},
};

use crate::support::{Fs, LEN, R, Root, all_ok, client, du, files, keys, ns};

/// A bound with room for about `blocks` blocks.
pub(crate) fn bound(blocks: u64) -> u64 {
    min_pack_bound(LEN) + blocks * (LEN as u64 + 256)
}

pub(crate) fn settings(root: &Root, max_bytes: u64, layout: Layout) -> FsSettings {
    FsSettings {
        layout,
        ..root.settings(max_bytes)
    }
}

fn open(root: &Root, max_bytes: u64) -> Fs {
    let settings = settings(root, max_bytes, Layout::Pack);
    client(FsBuilder::new(settings, ns("model"), LEN))
}

fn store_all(c: &mut Fs, n: u64) {
    keys(0..n).chunks(20).for_each(|part| all_ok(&c.store(R, part)));
}

fn bin_files(root: &Root) -> usize {
    files(&root.path())
        .iter()
        .filter(|p| p.extension().is_some_and(|e| e == "bin"))
        .count()
}

#[test]
fn blocks_share_few_files_and_the_account_is_never_below_du() {
    let root = Root::new();
    let mut c = open(&root, bound(500));
    for part in keys(0..400).chunks(16) {
        all_ok(&c.store(R, part));
        let s = c.tier.stats();
        assert!(root.du() <= s.resident_bytes && s.resident_bytes <= bound(500));
    }
    assert!(bin_files(&root) < 160, "{} files", bin_files(&root));
    for part in keys(0..400).chunks(16) {
        all_ok(&c.load(R, part));
    }
    assert!(
        c.tier.stats().resident_bytes - root.du() < 1 << 20,
        "what is kept for the file system's trees is little"
    );
}

#[test]
fn a_restart_finds_every_block_by_journal_and_by_walk() {
    let root = Root::new();
    for walk in [false, true] {
        let mut c = open(&root, bound(300));
        store_all(&mut c, 200);
        drop(c);
        if walk {
            root.forget_journal();
        }
        let mut c = open(&root, bound(300));
        let s = c.tier.stats();
        assert_eq!((s.blocks, s.recovered_blocks), (200, 200), "walk: {walk}");
        assert!(s.resident_bytes >= root.du() && s.resident_bytes <= bound(300));
        for part in keys(0..200).chunks(50) {
            all_ok(&c.load(R, part));
        }
        assert_eq!(c.store(R, &keys(0..1)), [BlockOutcome::Present]);
    }
}

#[test]
fn what_was_evicted_is_not_found_again_with_the_bytes_of_others() {
    let root = Root::new();
    let mut c = open(&root, bound(60));
    for part in keys(0..600).chunks(7) {
        all_ok(&c.store(R, part));
    }
    let held: Vec<_> = keys(0..600).into_iter().filter(|k| c.holds(k)).collect();
    assert!(held.len() > 40);
    drop(c);
    let mut c = open(&root, bound(60));
    assert!(c.tier.stats().blocks >= held.len() as u64);
    for k in keys(0..600) {
        if c.lookup(&k, R) {
            // the client compares the bytes
            all_ok(&c.load(R, &[k]));
        }
    }
    assert!(held.iter().all(|k| c.holds(k)));
}

#[test]
fn keys_too_long_for_a_record_get_a_file_each_and_are_served_beside() {
    let root = Root::new();
    let mut c = open(&root, bound(100));
    let mixed: Vec<_> = (0..8)
        .map(|n| long_key(n, if n % 2 == 0 { 65 } else { 64 }))
        .collect();
    all_ok(&c.store(R, &mixed));
    all_ok(&c.load(R, &mixed));
    drop(c);
    let mut c = open(&root, bound(100));
    all_ok(&c.load(R, &mixed));
}

#[test]
fn blocks_of_an_earlier_life_with_files_are_served_and_go_first() {
    let root = Root::new();
    let mut c = client(FsBuilder::new(
        settings(&root, bound(400), Layout::Fs),
        ns("model"),
        LEN,
    ));
    all_ok(&c.store(R, &keys(0..50)));
    drop(c);
    let mut c = open(&root, bound(400));
    all_ok(&c.load(R, &keys(0..50)));
    assert_eq!(c.store(R, &keys(0..1)), [BlockOutcome::Present]);
    for part in keys(100..900).chunks(16) {
        all_ok(&c.store(R, part));
    }
    assert!(keys(0..50).iter().all(|k| !c.holds(k)), "files go before slots");
    assert!(keys(880..900).iter().all(|k| c.holds(k)));
    assert!(root.du() <= bound(400));
}

#[test]
fn with_layout_fs_extents_are_counted_and_go_first() {
    let root = Root::new();
    let mut c = open(&root, bound(300));
    store_all(&mut c, 200);
    drop(c);
    let mut c = client(FsBuilder::new(
        settings(&root, bound(300), Layout::Fs),
        ns("model"),
        LEN,
    ));
    assert!(c.tier.stats().resident_bytes >= root.du());
    assert!(!c.holds(&keys(0..1)[0]));
    for part in keys(300..600).chunks(8) {
        all_ok(&c.store(R, part));
        assert!(root.du() <= bound(300));
    }
    assert!(c.holds(&keys(599..600)[0]));
}

#[test]
fn a_lower_bound_gives_whole_extents_back_and_keeps_what_fits() {
    let root = Root::new();
    let mut c = open(&root, bound(800));
    for part in keys(0..700).chunks(16) {
        all_ok(&c.store(R, part));
    }
    drop(c);
    let low = bound(200);
    let c = open(&root, low);
    let s = c.tier.stats();
    assert!(
        du(&root.path()) <= low && s.resident_bytes <= low,
        "{} of {low}",
        s.resident_bytes
    );
    assert!(s.blocks > 50, "{} blocks are left", s.blocks);
}

#[test]
fn every_flipped_byte_of_a_block_is_one_miss() {
    let root = Root::new();
    let mut c = open(&root, bound(100));
    all_ok(&c.store(R, &keys(0..40)));
    drop(c);
    let in_extents = |p: &std::path::PathBuf| p.parent().is_some_and(|d| d.ends_with("000/00_x"));
    let is_data = |p: &std::path::PathBuf| p.file_name().unwrap().to_string_lossy().as_bytes()[15] == b'1';
    let all = files(&root.path());
    let data = all.iter().find(|p| in_extents(p) && is_data(p)).unwrap();
    let mut bytes = std::fs::read(data).unwrap();
    for slot in 0..bytes.len() / LEN {
        bytes[slot * LEN + slot * 31] ^= 1;
    }
    std::fs::write(data, &bytes).unwrap();
    let mut c = open(&root, bound(100));
    let outcomes = c.load(R, &keys(0..40));
    let bad = outcomes.iter().filter(|o| !o.is_ok()).count();
    assert!((1..=bytes.len() / LEN).contains(&bad), "{bad} of {outcomes:?}");
    assert_eq!(c.tier.stats().verification_failures, bad as u64);
    let lost: Vec<_> = keys(0..40).into_iter().filter(|k| !c.holds(k)).collect();
    assert_eq!(lost.len(), bad);
    all_ok(&c.store(R, &lost));
    all_ok(&c.load(R, &keys(0..40)));
}

#[test]
fn a_pack_without_a_bound_or_with_one_too_small_is_refused() {
    let root = Root::new();
    for max in [0, min_pack_bound(LEN) - 1] {
        let s = settings(&root, max, Layout::Pack);
        let e = FsBuilder::new(s, ns("model"), LEN).open().unwrap_err();
        assert!(
            e.to_string().contains("layout pack") && e.to_string().contains("fs or auto"),
            "{e}"
        );
    }
    let auto = |max, len| {
        let s = settings(&root, max, Layout::Auto);
        FsBuilder::new(s, ns("model"), len).open().unwrap().layout()
    };
    assert_eq!(auto(0, LEN), Layout::Fs);
    assert_eq!(auto(bound(100), LEN), Layout::Pack);
    assert_eq!(auto(64 << 20, 1 << 20), Layout::Fs);
}
