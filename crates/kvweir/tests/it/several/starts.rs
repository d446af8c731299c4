//! Starts: in another order, with others or fewer, of other lengths and layouts than last time, at bounds that just do.

use super::*;

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
                            // next to no blocks fit: while the journal is folded there may be no room for one
                            assert!(
                                got > 0,
                                "{layout}, {n} spaces, bound {bound}, reversed {order}: {got} by {} ({:?}) in round {round}",
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
    // nobody has much above its share, so who comes last may get less than that
    assert!(held.iter().all(|h| h * 15 * 4 > bound), "{held:?}");
    shut(all);
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
