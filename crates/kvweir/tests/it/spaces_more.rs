//! Spaces of one root in less usual company: in another order, with others or fewer, of other lengths and layouts than
//! last time, beside other members, on disks that hang or are full.

use std::{ops::Range, sync::Arc, time::Duration};

use kvweir::{
    ErrorKind,
    clock::{Clock, SystemClock},
    evict::PolicyKind,
    fs::{FsBuilder, FsSettings, FsSpace, FsTier, Layout},
    io::fault::{Fault, Op, Rule},
    tier::{
        RequestId, Tier,
        conformance::{Client, long_key},
    },
};

use crate::{shared_root::pour, support::*};

/// A space: name, bytes of a block, layout.
type What = (&'static str, usize, Layout);

const SMALL: usize = 4096;
const FS: Layout = Layout::Fs;
const PACK: Layout = Layout::Pack;
const BOTH: [[Layout; 2]; 4] = [[FS, FS], [PACK, PACK], [FS, PACK], [PACK, FS]];

fn build(mut settings: FsSettings, all: &[What]) -> FsBuilder {
    settings.layout = all[0].2;
    let first = builder(settings, all[0].0, all[0].1).name(all[0].0);
    all[1..].iter().fold(first, |b, &(name, len, layout)| {
        b.beside(FsSpace::new(name, ns(name), len).layout(layout))
    })
}

fn clients(b: FsBuilder, all: &[What]) -> Vec<Fs> {
    let tiers: Vec<FsTier> = b.open_all().unwrap();
    let tiers = tiers.into_iter().zip(all);
    tiers.map(|(t, w)| Client::new(Box::new(t), 64, w.1)).collect()
}

fn open(root: &Root, bound: u64, all: &[What]) -> Vec<Fs> {
    clients(build(root.settings(bound), all), all)
}

fn count(c: &mut Fs, range: Range<u64>) -> u64 {
    let n = keys(range).iter().filter(|k| c.holds(k)).count();
    c.tier.on_request_finished(R, &[]);
    n as u64
}

fn loads(c: &mut Fs, range: Range<u64>) {
    for part in keys(range).chunks(20) {
        all_ok(&c.load(R, part));
        c.tier.on_request_finished(R, &[]);
    }
}

/// The account agrees with the disk; extents that nobody opened since a walk are counted as what they take.
fn assert_counted(c: &mut Fs, root: &Root) {
    until("the account agrees with du", || {
        let s = c.tier.stats();
        (root.du()..=root.counted()).contains(&s.resident_bytes) && s.reserved_bytes == 0
    });
    assert_eq!((c.tier.stats().pinned_blocks, temps(&root.path()).len()), (0, 0));
}

fn shut(all: Vec<Fs>) {
    for mut c in all {
        c.tier.shutdown();
    }
}

#[test]
fn spaces_in_another_order_with_others_or_fewer_find_their_own() {
    for [x, y] in BOTH {
        let (a, b, c) = (("a", LEN, x), ("b", SMALL, y), ("c", 2 * LEN, x));
        let root = Root::new();
        let bound = 32 << 20;
        let mut seen = std::collections::HashMap::new();
        let orders: [&[What]; 9] = [
            &[a, b],
            &[b, a],
            &[a, c, b],
            &[c, a],
            &[b, c, a],
            &[b],
            &[a],
            &[c, b, a],
            &[a, b, c],
        ];
        for (n, order) in orders.iter().enumerate() {
            for walk in [false, true] {
                if walk && n % 3 == 2 {
                    root.forget_journal();
                }
                let mut all = open(&root, bound, order);
                for (t, w) in all.iter_mut().zip(*order) {
                    let end: u64 = *seen.get(w.0).unwrap_or(&0);
                    assert_eq!(
                        count(t, 0..end),
                        end,
                        "{x}, {y}: {} in {order:?}, walk {walk}",
                        w.0
                    );
                    if end > 0 {
                        loads(t, 0..end);
                    }
                    store(t, &keys(end..end + 5));
                    seen.insert(w.0, end + 5);
                }
                assert_counted(&mut all[0], &root);
                shut(all);
            }
        }
    }
}

#[test]
fn another_length_of_one_space_makes_its_blocks_misses_and_no_others() {
    for [x, y] in BOTH {
        for which in [0, 1] {
            for swapped in [false, true] {
                for grows in [false, true] {
                    for walk in [true, false] {
                        let what =
                            format!("{x}, {y}: of {which}, swapped {swapped}, grows {grows}, walk {walk}");
                        let root = Root::new();
                        let bound = 32 << 20;
                        let mut spaces = [("a", 2 * LEN, x), ("b", LEN, y)];
                        let mut all = open(&root, bound, &spaces);
                        for t in &mut all {
                            store(t, &keys(0..20));
                        }
                        shut(all);
                        if walk {
                            root.forget_journal();
                        }
                        spaces[which].1 = match grows {
                            true => spaces[which].1 * 2,
                            false => spaces[which].1 / 2,
                        };
                        let mut at = which;
                        if swapped {
                            spaces.reverse();
                            at = 1 - which;
                        }
                        for again in [0, 100] {
                            let mut all = open(&root, bound, &spaces);
                            let (first, file) = (which == 0, spaces[at].2 == FS);
                            if walk || first || !file {
                                assert_eq!(count(&mut all[at], 0..20), 0, "{what}, {again}");
                            } else {
                                // the journal tells the length of its first space alone: one failed load each
                                let got = all[at].load(R, &keys(0..20));
                                assert!(got.iter().all(|o| !o.is_ok()), "{what}, {again}");
                                all[at].tier.on_request_finished(R, &[]);
                                assert_eq!(count(&mut all[at], 0..20), 0, "{what}, {again}");
                            }
                            assert_eq!(count(&mut all[1 - at], 0..20), 20, "{what}, {again}");
                            loads(&mut all[1 - at], 0..20);
                            store(&mut all[at], &keys(again + 200..again + 220));
                            loads(&mut all[at], again + 200..again + 220);
                            assert_counted(&mut all[0], &root);
                            shut(all);
                        }
                    }
                }
            }
        }
    }
}

#[test]
fn another_layout_of_one_space_serves_what_files_hold() {
    for [x, y] in BOTH {
        for walk in [false, true] {
            let other = |l| if l == FS { PACK } else { FS };
            let root = Root::new();
            let bound = 32 << 20;
            let mut all = open(&root, bound, &[("a", LEN, x), ("b", SMALL, y)]);
            for t in &mut all {
                store(t, &keys(0..20));
            }
            shut(all);
            for now in [[other(x), y], [x, other(y)], [other(x), other(y)], [x, y]] {
                if walk {
                    root.forget_journal();
                }
                let mut all = open(&root, bound, &[("a", LEN, now[0]), ("b", SMALL, now[1])]);
                for t in &mut all {
                    store(t, &keys(0..20));
                    loads(t, 0..20);
                }
                assert_counted(&mut all[0], &root);
                shut(all);
            }
        }
    }
}

#[test]
fn what_a_dead_pair_left_comes_to_whoever_serves_one_of_its_namespaces() {
    for layouts in BOTH {
        for (n, name) in [(0, "a"), (1, "b")] {
            let root = Root::new();
            let bound = 32 << 20;
            let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
            let bystander = open(&root, bound, &[("z", LEN, FS)]);
            let mut all = open(&root, bound, &spaces);
            for t in &mut all {
                until("there is room", || t.store(R, &keys(0..1))[0].is_ok());
                store(t, &keys(0..20));
            }
            shut(all);
            let mut alone = open(&root, bound, &[spaces[n]]);
            until(&format!("{layouts:?}: {name} alone finds its own"), || {
                count(&mut alone[0], 0..20) == 20
            });
            loads(&mut alone[0], 0..20);
            until("it is settled", || {
                bystander[0].tier.stats().reserved_bytes == 0 && root.du() <= bound
            });
            shut(alone);
            shut(bystander);
        }
    }
}

#[test]
fn a_live_pair_takes_over_what_single_tiers_of_its_namespaces_leave() {
    for layouts in BOTH {
        for n in [0, 1] {
            let root = Root::new();
            let bound = 32 << 20;
            let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
            let mut all = open(&root, bound, &spaces);
            let mut alone = open(&root, bound, &[spaces[n]]);
            until("there is room", || alone[0].store(R, &keys(0..1))[0].is_ok());
            store(&mut alone[0], &keys(0..20));
            shut(alone);
            until(&format!("{layouts:?}: {n} has what was left"), || {
                count(&mut all[n], 0..20) == 20
            });
            loads(&mut all[n], 0..20);
            assert_eq!(count(&mut all[1 - n], 0..20), 0);
            assert_settled(&mut all[0], &root);
            shut(all);
            let mut all = open(&root, bound, &spaces);
            assert_eq!(count(&mut all[n], 0..20), 20);
            assert_settled(&mut all[0], &root);
            shut(all);
        }
    }
}

#[test]
fn tiers_that_end_at_once_from_many_threads_let_the_root_go_and_lose_nothing() {
    for layouts in BOTH {
        let root = Root::new();
        let bound = 32 << 20;
        let spaces = [
            ("a", LEN, layouts[0]),
            ("b", SMALL, layouts[1]),
            ("c", LEN, layouts[0]),
            ("d", SMALL, layouts[1]),
        ];
        let mut known: [Vec<u64>; 4] = Default::default();
        for round in 0..12u64 {
            let mut all = open(&root, bound, &spaces);
            for (t, known) in all.iter_mut().zip(&known) {
                assert!(
                    known.iter().all(|&n| t.holds(&keys(n..n + 1)[0])),
                    "{layouts:?}, {round}"
                );
                t.tier.on_request_finished(R, &[]);
            }
            let mut jobs = Vec::new();
            for t in &mut all {
                jobs.push(t.submit_store(R, &keys(round * 10..round * 10 + 10)));
            }
            std::thread::scope(|s| {
                for ((t, job), known) in all.iter_mut().zip(jobs).zip(&mut known) {
                    s.spawn(move || {
                        if round % 3 == 0 {
                            t.tier.drain();
                        }
                        t.tier.shutdown();
                        let got = t.wait(job).blocks;
                        let ok = (round * 10..).zip(got).filter(|(_, o)| o.is_ok());
                        known.extend(ok.map(|(n, _)| n));
                    });
                }
            });
            if round % 2 == 0 {
                all.reverse();
            }
            drop(all);
        }
        assert!(known.iter().all(|k| !k.is_empty()));
        let mut all = open(&root, bound, &spaces);
        assert_settled(&mut all[0], &root);
        shut(all);
    }
}

/// Tiers are dropped, not shut down, with work under way, in either order.
#[test]
fn tiers_that_are_dropped_in_any_order_let_the_root_go() {
    for layouts in BOTH {
        let root = Root::new();
        for first in [0, 1, 0, 1] {
            let mut all = open(
                &root,
                32 << 20,
                &[("a", LEN, layouts[0]), ("b", SMALL, layouts[1])],
            );
            for t in &mut all {
                t.submit_store(R, &keys(0..40));
            }
            let other = all.remove(first);
            drop(other);
            store(&mut all[0], &keys(100..110));
            drop(all);
        }
    }
}

#[test]
fn a_space_is_not_held_up_by_one_whose_reads_hang() {
    for layouts in BOTH {
        let (root, disk) = (Root::new(), faulty());
        let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
        let mut settings = root.settings(16 << 20);
        settings.io_timeout = Some(Duration::from_millis(300));
        let b = build(settings.clone(), &spaces).disk(Arc::new(disk.clone()));
        let mut all = clients(b, &spaces);
        for t in &mut all {
            t.allow_late_slots();
            store(t, &keys(0..20));
        }
        let dir = all[0].tier.namespace_dir().file_name().unwrap().to_owned();
        disk.add(Rule::new(Op::Read, Fault::Hang).path(dir).times(1));
        assert!(all[0].holds(&keys(0..1)[0]));
        let job = all[0].submit_load(R, &keys(0..1));
        assert!(disk.wait_hanging(1, Duration::from_secs(10)));
        store(&mut all[1], &keys(20..30));
        loads(&mut all[1], 0..30);
        all[1].tier.drain();
        assert!(!all[0].wait(job).blocks[0].is_ok(), "given up");
        assert_eq!(count(&mut all[0], 0..20), 0, "the breaker is open");
        assert_eq!(all[1].tier.stats().breaker_state, 0);
        assert_eq!(count(&mut all[1], 0..30), 30);
        // the one that hangs ends first
        let clock = SystemClock::new();
        let began = clock.now();
        let mut a = all.remove(0);
        a.tier.shutdown();
        assert!(clock.now().since(began) < Duration::from_secs(8));
        store(&mut all[0], &keys(30..40));
        loads(&mut all[0], 0..40);
        disk.heal();
        until("what hung returns", || disk.hanging() == 0);
        shut(all);
        drop(a);
        let mut all = clients(build(settings, &spaces), &spaces);
        assert_eq!((count(&mut all[0], 0..20), count(&mut all[1], 0..40)), (20, 40));
        assert_settled(&mut all[0], &root);
        shut(all);
    }
}

#[test]
fn all_workers_hang_in_one_space_and_the_other_comes_back_with_them() {
    for layouts in BOTH {
        let (root, disk) = (Root::new(), faulty());
        let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
        let mut settings = root.settings(16 << 20);
        settings.io_timeout = Some(Duration::from_millis(300));
        let b = build(settings.clone(), &spaces).disk(Arc::new(disk.clone()));
        let mut all = clients(b, &spaces);
        for t in &mut all {
            t.allow_late_slots();
            store(t, &keys(0..20));
        }
        let dir = all[0].tier.namespace_dir().file_name().unwrap().to_owned();
        disk.add(Rule::new(Op::Read, Fault::Hang).path(dir));
        let jobs: Vec<_> = (0..4u64)
            .map(|n| {
                assert!(all[0].holds(&keys(n..n + 1)[0]));
                all[0].submit_load(RequestId(n), &keys(n..n + 1))
            })
            .collect();
        assert!(disk.wait_hanging(2, Duration::from_secs(10)));
        let stores = all[1].submit_store(R, &keys(20..30));
        assert!(all[1].holds(&keys(0..1)[0]));
        let load = all[1].submit_load(R, &keys(0..1));
        for job in jobs {
            assert!(!all[0].wait(job).blocks[0].is_ok());
        }
        assert!(all[1].wait(stores).blocks.iter().all(|o| !o.is_ok()));
        assert!(!all[1].wait(load).blocks[0].is_ok());
        let clock = SystemClock::new();
        let began = clock.now();
        all[1].tier.drain();
        assert!(
            clock.now().since(began) < Duration::from_secs(8),
            "{:?}",
            clock.now().since(began)
        );
        disk.heal();
        for t in &mut all {
            until("the breaker closes", || {
                t.collect();
                t.tier.stats().breaker_state == 0
            });
        }
        store(&mut all[1], &keys(40..50));
        loads(&mut all[1], 0..20);
        // what hung is a miss until it is stored again
        loads(&mut all[0], 4..20);
        for t in &mut all {
            t.tier.on_request_finished(R, &[]);
            (0..4).for_each(|n| t.tier.on_request_finished(RequestId(n), &[]));
        }
        assert_settled(&mut all[0], &root);
        shut(all);
    }
}

#[test]
fn while_one_hangs_for_ever_the_last_keeps_the_root_claimed() {
    for order in [[0, 1], [1, 0]] {
        let (root, disk) = (Root::new(), faulty());
        let spaces = [("a", LEN, PACK), ("b", SMALL, FS)];
        let mut settings = root.settings(16 << 20);
        settings.io_timeout = Some(Duration::from_millis(200));
        let b = build(settings.clone(), &spaces).disk(Arc::new(disk.clone()));
        let mut all = clients(b, &spaces);
        for t in &mut all {
            t.allow_late_slots();
            store(t, &keys(0..10));
        }
        let dir = all[0].tier.namespace_dir().file_name().unwrap().to_owned();
        disk.add(Rule::new(Op::Read, Fault::Hang).path(dir));
        assert!(all[0].holds(&keys(0..1)[0]));
        let job = all[0].submit_load(R, &keys(0..1));
        assert!(disk.wait_hanging(1, Duration::from_secs(10)));
        assert!(!all[0].wait(job).blocks[0].is_ok());
        for n in order {
            all[n].tier.shutdown();
        }
        settings.max_bytes = Some(8 << 20);
        let e = build(settings.clone(), &spaces).open_all().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        disk.heal();
        drop(all);
    }
}

#[test]
fn each_of_three_gets_its_share_and_one_that_ends_leaves_it() {
    for layouts in [
        [FS, PACK, PACK],
        [PACK, PACK, PACK],
        [PACK, FS, FS],
        [FS, FS, PACK],
    ] {
        for policy in PolicyKind::ALL {
            let root = Root::new();
            let bound = 6 << 20;
            let spaces = [
                ("a", LEN, layouts[0]),
                ("b", SMALL, layouts[1]),
                ("c", 2 * LEN, layouts[2]),
            ];
            let mut settings = root.settings(bound);
            settings.policy = policy;
            let mut all = clients(build(settings, &spaces), &spaces);
            let len = |n: usize| match spaces[n].2 {
                PACK => spaces[n].1 as u64,
                _ => spaces[n].1 as u64 + 4096 + 8192,
            };
            for (n, t) in all.iter_mut().enumerate() {
                let want = bound / len(n);
                assert_eq!(pour(t, 0..want) as u64, want, "{layouts:?}, {policy:?}: {n}");
                assert!(root.du() <= bound);
            }
            for round in 0..6 {
                for (n, t) in all.iter_mut().enumerate() {
                    let (from, want) = (10_000 * (round + 1), bound / len(n) / 4);
                    assert_eq!(
                        pour(t, from..from + want) as u64,
                        want,
                        "{layouts:?}, {policy:?}: {n}"
                    );
                    assert!(root.du() <= bound);
                }
            }
            let held: Vec<u64> = (0..3).map(|n| count(&mut all[n], 0..80_000) * len(n)).collect();
            if policy == PolicyKind::Lru {
                for (n, held) in held.iter().enumerate() {
                    assert!(held * 6 > bound, "{layouts:?}, {policy:?}: {n} of {held:?}");
                }
            }
            assert_settled(&mut all[0], &root);
            let mut c = all.remove(2);
            c.tier.shutdown();
            drop(c);
            for n in [0, 1, 0, 1] {
                let want = bound / len(n);
                assert_eq!(pour(&mut all[n], 100_000..100_000 + want) as u64, want);
            }
            let held: Vec<u64> = (0..2)
                .map(|n| count(&mut all[n], 100_000..110_000) * len(n))
                .collect();
            let both: u64 = held.iter().sum();
            assert!(
                both * 10 > bound * 6,
                "{layouts:?}, {policy:?}: {held:?} of {bound}"
            );
            assert_settled(&mut all[0], &root);
            shut(all);
        }
    }
}

/// A bound of which half is no whole number of extents: each took one from the other whenever it stored, the one that it
/// had just filled.
#[test]
fn spaces_at_their_shares_do_not_take_extents_from_each_other_all_the_time() {
    for (bound, len) in [(72 << 20, 16384), (8 << 20, LEN), (13 << 20, LEN)] {
        let root = Root::new();
        let spaces = [("a", len, PACK), ("b", len, PACK)];
        let mut all = open(&root, bound, &spaces);
        let part = bound / 64 / len as u64;
        let mut at = [0; 2];
        let mut turn = |all: &mut Vec<Fs>, n: usize| {
            let range = at[n]..at[n] + part;
            at[n] += part;
            for some in keys(range.clone()).chunks(32) {
                all_ok(&all[n].store(R, some));
            }
            assert_eq!(count(&mut all[n], range), part, "what was just stored is there");
        };
        for _ in 0..70 {
            turn(&mut all, 0);
        }
        for n in (0..120).map(|n| n % 2) {
            turn(&mut all, n);
        }
        let before = extents(&root.path());
        for n in (0..120).map(|n| n % 2) {
            turn(&mut all, n);
        }
        let new = extents(&root.path());
        let new = new.iter().filter(|e| !before.contains(e)).count();
        let held = [0, 1].map(|n: usize| count(&mut all[n], 0..at[n]) * len as u64);
        assert!(
            new * 8 <= before.len(),
            "{bound}: {new} of {} are new",
            before.len()
        );
        assert!(held.iter().all(|h| h * 5 > bound * 2), "{bound}: {held:?}");
        shut(all);
    }
}

#[test]
fn one_whose_blocks_are_all_pinned_neither_starves_the_other_nor_loses_any() {
    for (mine, theirs) in [(PACK, PACK), (FS, PACK), (PACK, FS), (FS, FS)] {
        let root = Root::new();
        let bound = 8 << 20;
        let spaces = [("a", LEN, theirs), ("b", SMALL, mine)];
        let mut all = open(&root, bound, &spaces);
        let len = if theirs == PACK {
            LEN as u64
        } else {
            LEN as u64 + 4096 + 8192
        };
        // three quarters
        let n = bound * 3 / 4 / len;
        pour(&mut all[0], 0..n);
        let pinned = keys(0..n)
            .iter()
            .filter(|k| all[0].lookup(k, RequestId(9)))
            .count() as u64;
        assert_eq!(pinned, n);
        let got = pour(&mut all[1], 0..1000);
        assert_eq!(got, 1000, "{theirs}, {mine}");
        assert_eq!(count(&mut all[0], 0..n), n);
        all[0].tier.on_request_finished(RequestId(9), &[]);
        // and then it gives
        pour(&mut all[1], 2000..4000);
        let now = count(&mut all[0], 0..n);
        assert!(theirs == mine && theirs == FS || now > 0);
        assert_settled(&mut all[0], &root);
        shut(all);
    }
}

#[test]
fn at_the_smallest_bound_that_is_accepted_each_can_store() {
    for layout in [Layout::Auto, FS, PACK] {
        for n in 1..5usize {
            let names = ["a", "b", "c", "d"];
            let lens = [LEN, SMALL, LEN, 4 * LEN];
            let spaces: Vec<What> = (0..n).map(|n| (names[n], lens[n], layout)).collect();
            let root = Root::new();
            let (mut low, mut high) = (4096u64, 64 << 20);
            while high - low > 4096 {
                let mid = (low + high) / 2;
                match build(root.settings(mid), &spaces).open_all() {
                    Ok(all) => {
                        drop(all);
                        std::fs::remove_dir_all(root.path()).unwrap();
                        high = mid;
                    }
                    Err(_) => low = mid,
                }
                let _ = std::fs::remove_dir_all(root.path());
            }
            for bound in [high, high + 65536, high * 2] {
                for order in [false, true] {
                    let _ = std::fs::remove_dir_all(root.path());
                    let mut all = open(&root, bound, &spaces);
                    for round in 0..4 {
                        let mut turn: Vec<usize> = (0..n).collect();
                        if order {
                            turn.reverse();
                        }
                        for at in turn {
                            let from = round * 100;
                            let got = pour(&mut all[at], from..from + 50);
                            assert_eq!(
                                got,
                                50,
                                "{layout}, {n} spaces, bound {bound}, reversed {order}: {} ({:?}) in round {round}",
                                names[at],
                                all[at].tier.layout()
                            );
                            assert!(root.du() <= bound);
                        }
                    }
                    assert_settled(&mut all[0], &root);
                    shut(all);
                }
            }
        }
    }
}

#[test]
fn on_a_device_that_is_full_below_the_bound_a_newcomer_gets_its_part() {
    for [x, y] in BOTH {
        let Some(tmp) = Tmpfs::new("8m") else {
            return skip("no file system can be mounted here");
        };
        let spaces = [("a", LEN, x), ("b", SMALL, y)];
        let settings = FsSettings {
            max_bytes: Some(64 << 20),
            pool: kvweir::io::pool::PoolSize::new(2, 2),
            ..FsSettings::new(tmp.path().join("kv"))
        };
        let mut all = clients(build(settings, &spaces), &spaces);
        pour(&mut all[0], 0..1100);
        let alone = count(&mut all[0], 0..1100);
        let mut got = 0;
        for n in 0..40 {
            got += pour(&mut all[1], n * 10..n * 10 + 10);
            pause(5);
        }
        let left = count(&mut all[0], 0..1100);
        assert!(got >= 300, "{x}, {y}: {got}; {left} of {alone} are left");
        shut(all);
    }
}

#[test]
fn above_a_floor_of_free_bytes_a_newcomer_gets_its_part() {
    for [x, y] in BOTH {
        let Some(tmp) = Tmpfs::new("16m") else {
            return skip("no file system can be mounted here");
        };
        let spaces = [("a", LEN, x), ("b", SMALL, y)];
        let settings = FsSettings {
            max_bytes: Some(64 << 20),
            min_free_bytes: Some(8 << 20),
            pool: kvweir::io::pool::PoolSize::new(2, 2),
            ..FsSettings::new(tmp.path().join("kv"))
        };
        let mut all = clients(build(settings, &spaces), &spaces);
        pour(&mut all[0], 0..1100);
        let alone = count(&mut all[0], 0..1100);
        let mut got = 0;
        for n in 0..40 {
            got += pour(&mut all[1], n * 10..n * 10 + 10);
            pause(60);
        }
        let left = count(&mut all[0], 0..1100);
        assert!(got >= 300, "{x}, {y}: {got}; {left} of {alone} are left");
        shut(all);
    }
}

#[test]
fn a_lower_bound_at_a_start_leaves_each_its_share() {
    for layouts in [[PACK, PACK], [FS, PACK], [PACK, FS]] {
        let root = Root::new();
        let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
        let mut all = open(&root, 16 << 20, &spaces);
        for round in 0..3 {
            pour(&mut all[0], round * 1000..round * 1000 + 400);
            pour(&mut all[1], round * 1000..round * 1000 + 800);
        }
        let before = [count(&mut all[0], 0..4000), count(&mut all[1], 0..4000)];
        shut(all);
        let mut all = open(&root, 8 << 20, &spaces);
        until("trimmed", || !all[0].tier.is_trimming());
        let after = [count(&mut all[0], 0..4000), count(&mut all[1], 0..4000)];
        assert!(
            after[0] * 6 > before[0] && after[1] * 6 > before[1],
            "{layouts:?}: {before:?} then {after:?}"
        );
        assert_settled(&mut all[0], &root);
        shut(all);
    }
}

#[test]
fn beside_another_member_that_wants_its_share_each_space_keeps_some() {
    for layouts in [[PACK, PACK], [FS, PACK], [PACK, FS]] {
        let root = Root::new();
        let bound = 16 << 20;
        let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
        let mut all = open(&root, bound, &spaces);
        for round in 0..3 {
            pour(&mut all[0], round * 1000..round * 1000 + 400);
            pour(&mut all[1], round * 1000..round * 1000 + 800);
        }
        let before = [count(&mut all[0], 0..4000), count(&mut all[1], 0..4000)];
        let mut other = open(&root, bound, &[("z", LEN, PACK)]);
        let mut n = 0;
        until("it has its share", || {
            pour(&mut other[0], n..n + 50);
            n += 50;
            other[0].tier.stats().resident_bytes > bound / 2 - bound / 8
        });
        assert!(root.du() <= bound);
        let after = [count(&mut all[0], 0..4000), count(&mut all[1], 0..4000)];
        assert!(
            after[0] * 6 > before[0] && after[1] * 6 > before[1],
            "{layouts:?}: {before:?} then {after:?}"
        );
        shut(all);
        shut(other);
    }
}

#[test]
fn events_of_each_are_its_own_whoever_evicts_and_after_a_restart() {
    for layouts in BOTH {
        for walk in [false, true] {
            let root = Root::new();
            let bound = 4 << 20;
            let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
            let mut all = open(&root, bound, &spaces);
            let strange = |n: u64| long_key(n, 70);
            for t in &mut all {
                store(t, &(0..5).map(strange).collect::<Vec<_>>());
                store(t, &keys(0..20));
            }
            for n in [0, 1, 0] {
                pour(&mut all[n], 1000..1000 + bound / spaces[n].1 as u64);
            }
            let check = |all: &mut Vec<Fs>, what: &str| {
                for t in all.iter_mut() {
                    let told = t.replay_events().clone();
                    let every = keys(0..4000).into_iter().chain((0..5).map(strange));
                    for k in every {
                        assert_eq!(told.contains(&k), t.holds(&k), "{layouts:?}, {walk}, {what}: {k}");
                    }
                    t.tier.on_request_finished(R, &[]);
                }
            };
            check(&mut all, "first");
            shut(all);
            if walk {
                root.forget_journal();
            }
            // once without events, once with
            let mut off = root.settings(bound);
            off.events = false;
            let mut all = clients(build(off, &spaces), &spaces);
            for t in &mut all {
                store(t, &keys(3000..3005));
            }
            shut(all);
            let mut all = open(&root, bound, &spaces);
            check(&mut all, "again");
            for n in [1, 0, 1] {
                pour(&mut all[n], 2000..2000 + bound / spaces[n].1 as u64 / 2);
            }
            check(&mut all, "later");
            assert_settled(&mut all[0], &root);
            shut(all);
        }
    }
}

#[test]
fn extents_of_one_that_are_removed_cost_the_other_nothing() {
    for layouts in [[PACK, PACK], [FS, PACK], [PACK, FS]] {
        let root = Root::new();
        let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
        let mut all = open(&root, 16 << 20, &spaces);
        for t in &mut all {
            store(t, &keys(0..40));
        }
        let n = if layouts[1] == PACK { 1 } else { 0 };
        for file in extent_files(all[n].tier.namespace_dir()) {
            std::fs::remove_file(file).unwrap();
        }
        until("its blocks are misses", || count(&mut all[n], 0..40) == 0);
        assert_eq!(count(&mut all[1 - n], 0..40), 40);
        loads(&mut all[1 - n], 0..40);
        for t in &mut all {
            store(t, &keys(100..140));
            loads(t, 100..140);
        }
        until("the account agrees", || {
            all[0].tier.stats().resident_bytes == root.counted()
        });
        shut(all);
        let mut all = open(&root, 16 << 20, &spaces);
        assert_eq!(
            (count(&mut all[n], 0..200), count(&mut all[1 - n], 0..200)),
            (40, 80)
        );
        shut(all);
    }
}

#[test]
fn a_tier_that_was_shut_down_may_be_opened_again_beside_the_others() {
    for layouts in BOTH {
        let root = Root::new();
        let bound = 32 << 20;
        let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
        let mut all = open(&root, bound, &spaces);
        for t in &mut all {
            store(t, &keys(0..20));
        }
        let mut b = all.remove(1);
        b.tier.shutdown();
        drop(b);
        let mut again = open(&root, bound, &[spaces[1]]);
        if layouts[1] == FS {
            until("it sees what lies there", || count(&mut again[0], 0..20) == 20);
            loads(&mut again[0], 0..20);
        }
        until("there is room", || again[0].store(R, &keys(50..51))[0].is_ok());
        store(&mut again[0], &keys(50..60));
        store(&mut all[0], &keys(50..60));
        loads(&mut again[0], 50..60);
        shut(all);
        until("it has all", || count(&mut again[0], 0..20) == 20);
        loads(&mut again[0], 0..20);
        assert_settled(&mut again[0], &root);
        shut(again);
    }
}

#[test]
fn fifteen_are_packed_at_once() {
    let root = Root::new();
    let names: Vec<&'static str> = (0..15).map(|n| &*format!("m{n}").leak()).collect();
    let spaces: Vec<What> = names.iter().map(|&n| (n, SMALL, PACK)).collect();
    let bound = 64 << 20;
    for round in 0..2 {
        let mut all = open(&root, bound, &spaces);
        for t in &mut all {
            assert_eq!(count(t, 0..200), round * 100);
            store(t, &keys(round * 100..round * 100 + 100));
            loads(t, 0..round * 100 + 100);
        }
        assert_settled(&mut all[0], &root);
        shut(all);
    }
    let mut all = open(&root, bound, &spaces);
    for t in &mut all {
        assert_eq!(pour(t, 1000..1000 + bound / SMALL as u64 / 8), 2048);
    }
    let held: Vec<u64> = all.iter_mut().map(|t| count(t, 0..4000) * SMALL as u64).collect();
    assert!(held.iter().all(|h| h * 15 * 3 > bound), "{held:?}");
    shut(all);
}

/// The second start with the new length took blocks of the old one for hits.
#[test]
fn another_length_of_a_tier_alone_makes_its_blocks_misses_for_good() {
    for x in [FS, PACK] {
        for grows in [false, true] {
            let root = Root::new();
            let bound = 32 << 20;
            let mut all = open(&root, bound, &[("a", 2 * LEN, x)]);
            store(&mut all[0], &keys(0..20));
            shut(all);
            let len = if grows { 4 * LEN } else { LEN };
            for again in 0..3 {
                let mut all = open(&root, bound, &[("a", len, x)]);
                assert_eq!(count(&mut all[0], 0..20), 0, "{x}, grows {grows}, again {again}");
                store(&mut all[0], &keys(100..110));
                if again == 1 {
                    assert_counted(&mut all[0], &root);
                }
                shut(all);
            }
        }
    }
}

#[test]
fn another_layout_of_a_tier_alone_serves_what_files_hold() {
    for x in [FS, PACK] {
        for walk in [false, true] {
            let other = |l| if l == FS { PACK } else { FS };
            let root = Root::new();
            let bound = 32 << 20;
            let mut all = open(&root, bound, &[("a", LEN, x)]);
            store(&mut all[0], &keys(0..20));
            shut(all);
            for now in [other(x), x, other(x), x] {
                if walk {
                    root.forget_journal();
                }
                let mut all = open(&root, bound, &[("a", LEN, now)]);
                store(&mut all[0], &keys(0..20));
                loads(&mut all[0], 0..20);
                assert_counted(&mut all[0], &root);
                shut(all);
            }
        }
    }
}

/// Threads store, load and finish in all spaces at once within a bound so small that extents and files pass to and fro.
#[test]
fn all_at_once_from_threads_within_a_tight_bound() {
    for layouts in [
        [PACK, PACK, PACK],
        [FS, PACK, PACK],
        [PACK, FS, FS],
        [FS, PACK, FS],
    ] {
        let root = Root::new();
        let bound = 3 << 20;
        let spaces = [
            ("a", LEN, layouts[0]),
            ("b", SMALL, layouts[1]),
            ("c", 2 * LEN, layouts[2]),
        ];
        let mut settings = root.settings(bound);
        settings.pool = kvweir::io::pool::PoolSize::new(4, 3);
        let mut all = clients(build(settings, &spaces), &spaces);
        let done = std::sync::atomic::AtomicUsize::new(0);
        std::thread::scope(|s| {
            for (n, t) in all.iter_mut().enumerate() {
                let done = &done;
                s.spawn(move || {
                    let mut rng = Rng(n as u64 + 1);
                    for round in 0..400u64 {
                        let req = RequestId(round % 5);
                        let from = rng.below(600);
                        let some = keys(from..from + 1 + rng.below(8));
                        match rng.below(3) {
                            0 => {
                                let held = some.iter().take_while(|k| t.lookup(k, req)).count();
                                if held > 0 {
                                    all_ok(&t.load(req, &some[..held]));
                                }
                            }
                            1 => drop(some.iter().filter(|k| t.lookup(k, req)).count()),
                            _ => drop(t.store(req, &some)),
                        }
                        if rng.below(3) == 0 {
                            (0..5).for_each(|r| t.tier.on_request_finished(RequestId(r), &some));
                        }
                    }
                    (0..5).for_each(|r| t.tier.on_request_finished(RequestId(r), &[]));
                    done.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
                });
            }
            while done.load(std::sync::atomic::Ordering::Relaxed) < 3 {
                assert!(root.du() <= bound, "{} of {bound}", root.du());
                pause(3);
            }
        });
        assert_settled(&mut all[0], &root);
        for t in &mut all {
            assert_eq!(pour(t, 5000..5100), 100);
            t.replay_events();
        }
        assert_settled(&mut all[0], &root);
        let held: Vec<Vec<bool>> = all
            .iter_mut()
            .map(|t| keys(0..5200).iter().map(|k| t.holds(k)).collect())
            .collect();
        shut(all);
        let mut all = clients(build(root.settings(bound), &spaces), &spaces);
        for (t, held) in all.iter_mut().zip(held) {
            let now: Vec<bool> = keys(0..5200).iter().map(|k| t.holds(k)).collect();
            // a slot that was evicted and not taken again is found with what it holds
            let lost = held.iter().zip(&now).filter(|(was, is)| **was && !**is).count();
            assert_eq!(lost, 0, "{layouts:?}");
            t.tier.on_request_finished(R, &[]);
        }
        assert_settled(&mut all[0], &root);
        shut(all);
    }
}

/// The process dies at some call while extents pass between spaces: what is found is right, and counted.
#[test]
fn a_death_while_room_passes_from_one_to_another_leaves_what_is_right() {
    for layouts in [[PACK, PACK], [FS, PACK], [PACK, FS]] {
        let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
        for seed in 0..40u64 {
            let disk = kvweir::io::sim::SimDisk::new(std::path::Path::new("/sim"), None);
            let bound = 2 << 20;
            let on = |disk: &kvweir::io::sim::SimDisk| {
                let settings = FsSettings {
                    max_bytes: Some(bound),
                    events: seed % 2 == 0,
                    ..FsSettings::new("/sim/kv")
                };
                let b = build(settings, &spaces);
                clients(b.disk(Arc::new(disk.clone())).boot_id([1; 16]), &spaces)
            };
            let mut all = on(&disk);
            pour(&mut all[0], 0..200);
            disk.die_at(disk.steps() + seed * 13 % 500);
            pour(&mut all[1], 0..200);
            pour(&mut all[0], 300..330);
            shut(all);
            let disk = disk.next_life();
            let mut all = on(&disk);
            let counted = || counted_on(&disk, std::path::Path::new("/sim/kv"));
            until("the account agrees", || {
                let s = all[0].tier.stats();
                s.resident_bytes == counted() && s.reserved_bytes == 0
            });
            assert!(disk.bytes().1 <= bound + 8192);
            for t in &mut all {
                for k in keys(0..400) {
                    if t.holds(&k) {
                        all_ok(&t.load(R, &[k]));
                    }
                    t.tier.on_request_finished(R, &[]);
                }
            }
            for n in [1, 0] {
                assert!(pour(&mut all[n], 1000..1100) == 100, "{layouts:?}, {seed}: {n}");
            }
            shut(all);
        }
    }
}

#[test]
fn members_that_serve_some_of_the_same_namespaces_live_beside_each_other() {
    for [x, y] in BOTH {
        let (a, b, c) = (("a", LEN, x), ("b", SMALL, y), ("c", LEN, x));
        let root = Root::new();
        let bound = 24 << 20;
        let orders: [&[What]; 4] = [&[a, b], &[b, c], &[c, a, b], &[b]];
        let mut members: Vec<Vec<Fs>> = Vec::new();
        for o in orders {
            members.push(open(&root, bound, o));
        }
        for round in 0..6u64 {
            for (m, all) in members.iter_mut().enumerate() {
                for t in all {
                    let from = round * 100 + m as u64 * 20;
                    until("there is room", || t.store(R, &keys(from..from + 1))[0].is_ok());
                    pour(t, from..from + 40);
                    let held: Vec<_> = keys(0..800).into_iter().filter(|k| t.holds(k)).collect();
                    t.tier.on_request_finished(R, &[]);
                    for some in held.chunks(20) {
                        // a peer may have evicted one since: a miss then, never wrong
                        t.load(R, some);
                        t.tier.on_request_finished(R, &[]);
                    }
                }
            }
            assert!(root.du() <= bound, "{} of {bound}", root.du());
        }
        for at in [1, 0, 1, 0] {
            shut(members.remove(at));
            if let Some(t) = members.first_mut().and_then(|m| m.first_mut()) {
                until("there is room", || pour(t, 5000..5010) == 10);
            }
        }
        let spaces = [a, b, c];
        let mut all = open(&root, bound, &spaces);
        for (t, w) in all.iter_mut().zip(spaces) {
            let held = count(t, 0..800);
            assert!(held > 100, "{x}, {y}: {} holds {held}", w.0);
            let held: Vec<_> = keys(0..6000).into_iter().filter(|k| t.holds(k)).collect();
            t.tier.on_request_finished(R, &[]);
            for some in held.chunks(20) {
                // one that two members had stored, and one of them evicted, is found to be gone; none is wrong
                t.load(R, some);
                t.tier.on_request_finished(R, &[]);
            }
        }
        until("the account agrees", || {
            all[0].tier.stats().resident_bytes == root.counted()
        });
        shut(all);
    }
}

#[test]
fn a_keeper_that_panics_closes_all_and_lets_the_root_go() {
    use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
    for layouts in BOTH {
        let root = Root::new();
        let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
        let armed = Arc::new(AtomicBool::new(false));
        let seen = Arc::clone(&armed);
        let disk = crate::hook::hook(move |op, path| {
            let keeper = std::thread::current().name() == Some("kvweir-keeper");
            assert!(
                !(op == Op::Lock && path.ends_with(".kvweir/ledger") && keeper && seen.load(SeqCst)),
                "on purpose"
            );
            Ok(())
        });
        let b = build(root.settings(16 << 20), &spaces).disk(Arc::new(disk));
        let mut all = clients(b, &spaces);
        for t in &mut all {
            store(t, &keys(0..20));
        }
        armed.store(true, SeqCst);
        let closed = kvweir::tier::BlockOutcome::Failed(ErrorKind::Closed);
        until("all are closed", || {
            all.iter_mut().all(|t| !t.holds(&keys(0..1)[0]))
        });
        for t in &mut all {
            t.tier.on_request_finished(R, &[]);
            assert_eq!(t.store(R, &keys(30..31)), [closed]);
            assert_eq!(t.load(R, &keys(0..1)), [closed]);
        }
        let mut other = None;
        until("another bound can have it", || {
            other = build(root.settings(8 << 20), &spaces).open_all().ok();
            other.is_some()
        });
        shut(all);
        drop(other);
        let mut all = open(&root, 8 << 20, &spaces);
        for t in &mut all {
            assert_eq!(count(t, 0..40), 20);
            loads(t, 0..20);
        }
        assert_settled(&mut all[0], &root);
        shut(all);
    }
}

#[test]
fn a_forked_child_leaves_all_tiers_alone() {
    for layouts in BOTH {
        let root = Root::new();
        let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
        let mut all = open(&root, 16 << 20, &spaces);
        for t in &mut all {
            store(t, &keys(0..20));
        }
        for n in 0..10u64 {
            let jobs: Vec<_> = all
                .iter_mut()
                .map(|t| t.submit_store(R, &keys(100 + n * 8..108 + n * 8)))
                .collect();
            let pid = kvweir::io::process::fork(|| {
                for t in &mut all {
                    let missed = !t.holds(&keys(0..1)[0]);
                    t.tier.drain();
                    if !missed || t.tier.stats().blocks != 0 {
                        return 1;
                    }
                    t.tier.shutdown();
                }
                drop(std::mem::take(&mut all));
                0
            });
            let ended = kvweir::io::process::wait_for(pid.unwrap()).unwrap();
            assert_eq!(ended, Some(0), "{layouts:?}, {n}");
            for (t, job) in all.iter_mut().zip(jobs) {
                all_ok(&t.wait(job).blocks);
                t.tier.on_request_finished(R, &[]);
            }
        }
        for t in &mut all {
            loads(t, 0..20);
            loads(t, 100..180);
        }
        assert_settled(&mut all[0], &root);
        shut(all);
        shut(open(&root, 8 << 20, &spaces));
    }
}

#[test]
fn an_error_of_one_space_at_start_lets_the_root_go() {
    let root = Root::new();
    let spaces = [("a", LEN, FS), ("b", SMALL, PACK)];
    let config = root.path().join(ns("b").config_dir());
    std::fs::create_dir_all(&config).unwrap();
    std::fs::write(config.join("config.json"), b"{\"model_name\": \"another\"}").unwrap();
    for _ in 0..2 {
        let e = build(root.settings(16 << 20), &spaces).open_all().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
        // the bound may be another: nobody has it
        shut(open(&root, 8 << 20, &spaces[..1]));
    }
    std::fs::remove_dir_all(config).unwrap();
    let mut all = open(&root, 16 << 20, &spaces);
    for t in &mut all {
        store(t, &keys(0..5));
    }
    assert_settled(&mut all[0], &root);
    shut(all);
    let mut unbounded = root.settings(0);
    unbounded.root = root.0.path().join("other");
    let e = builder(unbounded, "a", LEN)
        .beside(FsSpace::new("b", ns("b"), SMALL).layout(PACK))
        .open_all()
        .unwrap_err();
    assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
}

#[test]
fn at_a_floor_of_free_bytes_files_get_room_from_extents() {
    for layouts in [[PACK, FS], [FS, PACK], [PACK, PACK]] {
        let root = Root::new();
        let path = root.path();
        let disk = crate::hook::hook(|_, _| Ok(())).free(move || (12u64 << 20).saturating_sub(du(&path)));
        let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
        let mut settings = root.settings(64 << 20);
        settings.min_free_bytes = Some(8 << 20);
        let mut all = clients(build(settings, &spaces).disk(Arc::new(disk)), &spaces);
        for n in 0..12 {
            pour(&mut all[0], n * 50..n * 50 + 50);
            pause(60);
        }
        let alone = count(&mut all[0], 0..600);
        let mut got = 0;
        for n in 0..40 {
            got += pour(&mut all[1], n * 10..n * 10 + 10);
            pause(60);
        }
        let left = count(&mut all[0], 0..600);
        assert!(got >= 350, "{layouts:?}: {got}; {left} of {alone} are left");
        shut(all);
    }
}

#[test]
fn what_spaces_wrote_is_sound_to_the_operators_eyes() {
    use kvweir::admin::{Admin, VerifyOptions};
    for layouts in BOTH {
        let root = Root::new();
        let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
        let bound = 4 << 20;
        let mut all = open(&root, bound, &spaces);
        for n in [0, 1, 0, 1] {
            pour(&mut all[n], 0..bound / spaces[n].1 as u64);
        }
        shut(all);
        let v = Admin::new(root.path()).unwrap();
        let v = v.verify(&VerifyOptions::default(), &|_| {}).unwrap();
        assert!(v.blocks > 0 && v.good == v.blocks, "{layouts:?}: {v:?}");
    }
}
