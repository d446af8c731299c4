//! Ends: tiers that go in any order, at once, in a child, by a panic, by a death.

use super::*;

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
        // what the pair left is leased to a dead member still
        assert!(root.du() <= bound);
        shut(again);
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
