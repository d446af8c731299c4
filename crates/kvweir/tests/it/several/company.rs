//! Several spaces beside each other and beside other members: shares, events, blocks of the same namespaces.

use super::*;

#[test]
fn what_a_dead_pair_left_comes_to_whoever_serves_its_first_namespace() {
    for layouts in BOTH {
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
        // the ledger tells a member by that one
        let mut alone = open(&root, bound, &spaces[..1]);
        until(&format!("{layouts:?}: alone it finds its own"), || {
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
fn each_of_three_gets_its_share_and_one_that_ends_leaves_it() {
    each_of_three([FS, PACK, PACK]);
}

#[test]
fn each_of_three_that_pack_gets_its_share_and_one_that_ends_leaves_it() {
    each_of_three([PACK, PACK, PACK]);
}

#[test]
fn each_of_three_of_which_one_packs_gets_its_share_and_one_that_ends_leaves_it() {
    each_of_three([PACK, FS, FS]);
    each_of_three([FS, FS, PACK]);
}

fn each_of_three(layouts: [Layout; 3]) {
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
