//! What somebody else removes while a tier has it open. Extents without a name were served and written until the tier
//! was closed, and were gone then, stores that had been acknowledged included; a root that was removed lost the
//! stores of one layout for good and those of the other at the next start.

use std::{fs, time::Duration};

use kvweir::{
    Key,
    fs::Layout,
    metrics::EvictReason,
    tier::{RequestId, Tier},
};

use crate::support::*;

const BOUND: u64 = 16 << 20;

/// What is done to an extent, by its table.
type Damage = fn(&std::path::Path);

fn filled(layout: Layout, blocks: u64) -> (Root, Fs) {
    let root = Root::of(layout);
    let mut c = root.open(BOUND);
    for part in keys(0..blocks).chunks(20) {
        all_ok(&c.store(R, part));
    }
    c.tier.on_request_finished(R, &[]);
    assert_settled(&mut c, &root);
    (root, c)
}

fn external(c: &Fs) -> u64 {
    c.tier.stats().evicted_blocks[EvictReason::External as usize]
}

fn held(c: &mut Fs, all: &[Key]) -> Vec<Key> {
    let held: Vec<Key> = all.iter().filter(|k| c.lookup(k, R)).cloned().collect();
    c.tier.on_request_finished(R, &[]);
    held
}

/// What hits now can be loaded, is all that events tell of, and is all that the next start finds.
fn is_true_and_stays(mut c: Fs, root: &Root, all: &[Key]) -> Vec<Key> {
    let now = held(&mut c, all);
    for part in now.chunks(20) {
        all_ok(&c.load(R, part));
        c.tier.on_request_finished(R, &[]);
    }
    let told = c.replay_events();
    assert_eq!(told.len(), now.len(), "events tell of other blocks");
    assert!(now.iter().all(|k| told.contains(k)));
    assert_settled(&mut c, root);
    drop(c);
    let mut c = root.open(BOUND);
    assert_eq!(held(&mut c, all), now, "the next start finds others");
    assert_settled(&mut c, root);
    now
}

#[test]
fn an_extent_of_which_a_file_is_removed_or_cut_is_dropped_with_its_blocks_and_its_bytes() {
    let damage: [(&str, Damage); 4] = [
        ("table removed", |t| fs::remove_file(t).unwrap()),
        ("data removed", |t| fs::remove_file(data_of(t)).unwrap()),
        ("table emptied", |t| fs::write(t, []).unwrap()),
        ("replaced by a copy", |t| {
            let copy = t.with_extension("copy");
            fs::copy(t, &copy).unwrap();
            fs::rename(&copy, t).unwrap();
        }),
    ];
    for (what, damage) in damage {
        let (root, mut c) = filled(Layout::Pack, 200);
        let (before, all) = (c.tier.stats(), extents(&root.path()));
        assert!(all.len() > 2);
        damage(&all[0]);
        assert!(in_time(|| external(&c) > 0), "{what}: nobody noticed");
        assert!(
            in_time(|| !all[0].exists() && !data_of(&all[0]).exists()),
            "{what}: the rest of it stays"
        );
        assert!(
            in_time(|| c.tier.stats().resident_bytes < before.resident_bytes),
            "{what}"
        );
        let lost = external(&c);
        assert_eq!(before.blocks - lost, c.tier.stats().blocks, "{what}");
        assert!(lost < 200, "{what}: the other extents stay");
        all_ok(&c.store(R, &keys(1000..1010)));
        let now = is_true_and_stays(c, &root, &keys(0..1010));
        assert_eq!(now.len() as u64, 210 - lost, "{what}");
    }
}

#[test]
fn an_extent_whose_slots_are_cut_is_made_whole_and_what_is_stored_next_stays() {
    let (root, mut c) = filled(Layout::Pack, 100);
    for t in extents(&root.path()) {
        fs::write(data_of(&t), []).unwrap();
    }
    let slots = |t: &std::path::Path| u64::from(slots_of(t).unwrap()) * LEN as u64;
    assert!(in_time(|| {
        let all = extents(&root.path());
        all.iter()
            .all(|t| fs::metadata(data_of(t)).unwrap().len() >= slots(t))
    }));
    for part in keys(0..100).chunks(20) {
        assert!(part.iter().all(|k| c.lookup(k, R)));
        assert!(c.load(R, part).iter().all(|o| !o.is_ok()));
        all_ok(&c.store(R, part));
    }
    c.tier.on_request_finished(R, &[]);
    assert_eq!(is_true_and_stays(c, &root, &keys(0..100)), keys(0..100));
}

#[test]
fn after_all_extents_are_removed_what_is_stored_next_stays() {
    let (root, mut c) = filled(Layout::Pack, 300);
    for f in extent_files(&root.path()) {
        fs::remove_file(f).unwrap();
    }
    // at once, before a keeper can have looked
    for part in keys(1000..1400).chunks(20) {
        all_ok(&c.store(R, part));
    }
    c.tier.on_request_finished(R, &[]);
    assert!(in_time(|| external(&c) == 300), "{}", external(&c));
    let now = is_true_and_stays(c, &root, &keys(0..1400));
    assert_eq!(now, keys(1000..1400));
}

#[test]
fn a_lost_extent_whose_blocks_are_pinned_is_given_back_when_they_are_not() {
    let (root, mut c) = filled(Layout::Pack, 100);
    let (r, pinned) = (RequestId(7), keys(0..100));
    assert!(pinned.iter().all(|k| c.lookup(k, r)));
    for f in extent_files(&root.path()) {
        fs::remove_file(f).unwrap();
    }
    assert!(in_time(|| external(&c) == 100));
    assert!(pinned.iter().all(|k| !c.holds(k)), "a miss for whoever asks now");
    // who pinned them before may still read what is open
    c.load(r, &pinned[..20]);
    c.tier.on_request_finished(r, &[]);
    assert!(in_time(|| c.tier.stats().resident_bytes == root.counted()));
    for part in pinned.chunks(20) {
        all_ok(&c.store(R, part));
    }
    assert_eq!(is_true_and_stays(c, &root, &pinned), pinned);
}

fn a_root_that_is_removed_is_made_again_and_keeps_what_is_stored_next(layout: Layout) {
    for wait in [false, true] {
        let (root, mut c) = filled(layout, 100);
        fs::remove_dir_all(root.path()).unwrap();
        if wait {
            assert!(in_time(|| external(&c) == 100), "{}", external(&c));
            assert!(in_time(|| root.path().join(".kvweir/ledger").exists()));
        }
        for n in 0..20 {
            all_ok(&c.store(R, &keys(1000 + n * 10..1010 + n * 10)));
        }
        c.tier.on_request_finished(R, &[]);
        assert_eq!(c.tier.stats().breaker_opened, 0, "wait: {wait}");
        assert!(in_time(|| external(&c) == 100), "wait: {wait}: {}", external(&c));
        assert!(in_time(|| root.path().join(".kvweir/ledger").exists()));
        let config = root.path().join(ns("model").config_dir()).join("config.json");
        assert!(in_time(|| config.exists()), "it tells again what it is");
        let now = is_true_and_stays(c, &root, &keys(0..1200));
        assert_eq!(now, keys(1000..1200), "wait: {wait}");
    }
}

fn who_opens_a_root_that_was_made_again_shares_its_bound(layout: Layout) {
    let (root, mut c) = filled(layout, 50);
    fs::remove_dir_all(root.path()).unwrap();
    assert!(in_time(|| root.path().join(".kvweir/ledger").exists()));
    assert!(in_time(|| {
        let other = builder(root.settings(BOUND / 2), "other", LEN).open();
        other.is_err_and(|e| e.to_string().contains(&format!("pid {}", std::process::id())))
    }));
    let mut d = client(builder(root.settings(BOUND), "other", LEN));
    for part in keys(2000..4000).chunks(20) {
        c.store(R, part);
        d.store(R, part);
        assert!(root.du() <= BOUND, "{}", root.du());
    }
    c.tier.on_request_finished(R, &[]);
    d.tier.on_request_finished(R, &[]);
    assert!(c.tier.stats().blocks > 100 && d.tier.stats().blocks > 100);
}

#[test]
fn directories_that_are_removed_cost_their_blocks_and_are_made_again() {
    let dir = |root: &Root| root.path().join(ns("model").dir());
    for whole in [true, false] {
        let (root, mut c) = filled(Layout::Fs, 100);
        let own = dir(&root);
        if whole {
            fs::remove_dir_all(&own).unwrap();
        } else {
            // all first-level directories: nothing tells but the stores that miss them
            for e in fs::read_dir(&own).unwrap() {
                fs::remove_dir_all(e.unwrap().path()).unwrap();
            }
            for part in keys(0..100).chunks(20) {
                let got = c.store(R, part);
                all_ok(&got);
            }
        }
        if whole {
            assert!(in_time(|| external(&c) == 100), "{}", external(&c));
        }
        all_ok(&c.store(R, &keys(0..60)));
        c.tier.on_request_finished(R, &[]);
        assert!(in_time(|| c.tier.stats().resident_bytes == root.counted()));
        let now = is_true_and_stays(c, &root, &keys(0..100));
        assert_eq!(now.len(), if whole { 60 } else { 100 });
    }
}

#[test]
fn an_unbounded_root_that_is_removed_is_made_again() {
    let root = Root::new();
    let mut c = root.open(0);
    all_ok(&c.store(R, &keys(0..30)));
    fs::remove_dir_all(root.path()).unwrap();
    for n in 0..10 {
        all_ok(&c.store(R, &keys(100 + n * 3..103 + n * 3)));
    }
    assert_eq!(c.tier.stats().breaker_opened, 0);
    assert!(keys(100..130).iter().all(|k| c.holds(k)));
}

#[test]
fn where_the_roots_parent_is_gone_stores_fail_until_it_is_back_and_no_longer() {
    for layout in [Layout::Fs, Layout::Pack] {
        let top = tempfile::tempdir().unwrap();
        let parent = top.path().join("mount");
        fs::create_dir(&parent).unwrap();
        let root = Root(tempfile::tempdir_in(&parent).unwrap(), layout);
        let mut settings = root.settings(BOUND);
        settings.breaker.cooldown = Duration::from_millis(50);
        settings.breaker.max_cooldown = Duration::from_millis(50);
        let mut c = client(builder(settings, "model", LEN));
        store(&mut c, &keys(0..10));
        fs::remove_dir_all(root.0.path()).unwrap();
        for n in 10..40 {
            c.store(R, &keys(n..n + 1));
        }
        fs::create_dir(root.0.path()).unwrap();
        assert!(in_time(|| {
            let mut looked = Vec::new();
            c.tier.poll(&mut looked);
            c.store(R, &keys(50..51))[0].is_ok()
        }));
        c.tier.on_request_finished(R, &[]);
        assert!(in_time(
            || c.holds(&keys(50..51)[0]) || c.store(R, &keys(50..51))[0].is_ok()
        ));
    }
}

in_both_layouts! {
    a_root_that_is_removed_is_made_again_and_keeps_what_is_stored_next,
    who_opens_a_root_that_was_made_again_shares_its_bound,
}
