//! Claims of pacing: what is promoted, who waits, and that everybody ends.

use super::*;

#[test]
fn a_request_of_one_block_more_than_the_primary_ends_with_most_of_it() {
    for groups in [1, 3] {
        for length in [65, 66, 96, 128, 256] {
            let mut w = world(64);
            w.ask(1, length, groups);
            assert!(w.run(200) < 200);
            assert!(w.hits() >= 39, "{length} x {groups}: {} hits", w.hits());
            assert_eq!(w.loaded as usize, w.hits(), "nothing is loaded in vain");
        }
    }
}

#[test]
fn a_request_that_fits_is_promoted_as_a_whole_and_at_once() {
    for length in [1, 32, 48, 58, 64] {
        let mut w = world(64);
        w.ask(1, length, 1);
        assert_eq!(
            w.run(10),
            2,
            "one step to promote {length} blocks, one to find them"
        );
        assert_eq!(w.hits() as u64, length);
        assert_eq!(
            w.pacer.stats().cut_requests + w.pacer.stats().held_back_requests,
            0
        );
    }
}

#[test]
fn requests_that_wait_do_not_throw_each_others_blocks_away() {
    for knows_order in [true, false] {
        let mut w = World::new(64, 2, 0, knows_order, PacingSettings::default());
        (0..50).for_each(|id| w.ask(id, 32, 1));
        let steps = w.run(400);
        assert_eq!((w.hits(), w.loaded), (1600, 1600), "in {steps} steps");
        let order: Vec<u64> = w.ended.iter().map(|a| a.id.0).collect();
        assert!(order.is_sorted(), "served in the order of asking: {order:?}");
        assert_eq!(w.pacer.stats().held_back_requests, 49);
    }
}

#[test]
fn who_is_held_back_costs_two_questions_a_step_and_group() {
    let mut w = world(64);
    w.ask(1, 48, 1);
    w.ask(2, 48, 1);
    w.step();
    let second: Vec<PacedKey> = w.waiting[1].groups[0].clone();
    let answers: Vec<_> = second
        .iter()
        .take(3)
        .map(|&k| w.pacer.before(RequestId(2), k))
        .collect();
    assert_eq!(
        answers,
        [Some(Answer::Retry), Some(Answer::Miss), Some(Answer::Miss)]
    );
    // a group is asked for again in the same step when another group's hit was shorter
    assert_eq!(w.pacer.before(RequestId(2), second[0]), Some(Answer::Retry));
    let other = PacedKey { id: 77, group: 1 };
    assert_eq!(w.pacer.before(RequestId(2), other), Some(Answer::Retry));
}

#[test]
fn a_request_that_was_just_served_is_served_again_from_what_is_left_of_it() {
    // the primary holds nearly all of it: what is promoted must not push the rest out, block by block
    let mut w = world(64);
    w.ask(1, 66, 1);
    w.run(20);
    let rest: Vec<PacedKey> = w.ended[0].groups[0].iter().skip(w.hits()).copied().collect();
    w.step();
    w.step();
    for key in rest {
        w.slot_for(key.id, Slot::Idle);
        w.pacer.storing(RequestId(1), [key.id].into_iter());
        w.pacer.stored(1);
    }
    (0..5).for_each(|_| w.step());
    let loaded = w.loaded;
    w.ended.clear();
    w.ask(1, 66, 1);
    w.run(60);
    assert!(w.hits() >= 32, "{} hits", w.hits());
    assert!(
        (w.loaded - loaded) as usize <= w.hits() * 6 / 5,
        "{} loaded",
        w.loaded - loaded
    );
}

#[test]
fn a_request_that_is_aborted_or_idle_gives_its_slots_back() {
    let mut w = world(64);
    w.ask(1, 48, 1);
    w.ask(2, 48, 1);
    w.step();
    assert_eq!(w.pacer.stats().promised_slots, 48);
    w.waiting.remove(0);
    w.pacer.release(RequestId(1));
    w.run(20);
    assert_eq!(w.hits(), 48);

    let mut w = world(64);
    w.ask(1, 48, 1);
    w.ask(2, 48, 1);
    w.step();
    // nobody asks for it, nobody ends it
    w.waiting.remove(0);
    w.run(PacingSettings::default().wait.as_millis() as u64 + 20);
    assert_eq!(w.hits(), 48);
}

#[test]
fn a_wait_ends_at_its_bound_with_what_is_left() {
    let settings = PacingSettings {
        wait: Duration::from_millis(20),
        ..PacingSettings::default()
    };
    let mut w = World::new(64, 1000, 0, true, settings);
    w.ask(1, 40, 1);
    w.ask(2, 40, 1);
    let mut steps = 0;
    while w.ended.is_empty() {
        w.step();
        steps += 1;
        // the first keeps asking, its load hangs
        assert!(steps < 2000);
    }
    assert!(
        w.waiting.is_empty() || w.pacer.stats().cut_requests > 0,
        "{:?}",
        w.pacer.stats()
    );
}

#[test]
fn a_wait_ends_however_seldom_the_scheduler_asks() {
    // a step that is full of what runs asks for nobody who waits
    for every in [1, 2, 3, 7] {
        let mut w = World::new(64, 1, 8, true, PacingSettings::default());
        (0..10).for_each(|_| w.step());
        w.ask(1, 64, 1);
        let mut asked = 0;
        while !w.waiting.is_empty() {
            let asks = w.step.is_multiple_of(every);
            let away = if asks {
                Vec::new()
            } else {
                std::mem::take(&mut w.waiting)
            };
            asked += u64::from(asks);
            assert!(asked < 200, "asked every {every} steps: {:?}", w.pacer.stats());
            w.step();
            w.waiting.extend(away);
        }
    }
}

#[test]
fn who_waits_is_planned_anew_when_others_have_brought_what_it_shares() {
    let mut w = world(64);
    w.ask(0, 48, 1);
    for id in 1..=8 {
        let key = |i: u64| PacedKey {
            id: if i < 32 { (1 << 32) + i } else { (id << 32) + i },
            group: 0,
        };
        w.ask_for(id, vec![(0..36).map(key).collect()]);
    }
    let steps = w.run(100);
    assert_eq!(w.hits(), 48 + 8 * 36);
    assert_eq!(w.loaded, 48 + 32 + 8 * 4, "what is shared is loaded once");
    assert!(steps <= 12, "one after the other: {steps} steps");
}

#[test]
fn a_window_that_is_asked_for_from_its_end_is_planned_as_a_whole() {
    let key = |group, i| PacedKey {
        id: u64::from(group) * 1000 + i,
        group,
    };
    let of = |group| {
        (1..=100).map(move |i| OrderedKey {
            key: key(group, i),
            end: i * 16,
            held: true,
        })
    };
    // a model that has nothing but windows
    let order: Vec<OrderedKey> = of(0).collect();
    let outlook = Outlook::new(&order, key(0, 100), &[Some(4)], |_| true);
    assert_eq!((outlook.need(), outlook.before()), (5, 0));
    let cut = outlook.cut(48);
    assert!((96..=100).all(|i| cut.end_of(key(0, i).id).is_some() && cut.has(key(0, i).id)));
    // what reaches back to the first chunk was looked for before, and was in the primary
    let order: Vec<OrderedKey> = of(0).chain(of(1)).collect();
    let outlook = Outlook::new(&order, key(1, 60), &[None, Some(4)], |_| true);
    assert_eq!((outlook.need(), outlook.before()), (5, 100));
}

#[test]
fn a_window_that_nobody_told_of_is_promised_as_it_is_asked_for() {
    // vLLM tells of windows from 0.33 on
    let key = |i| PacedKey { id: i, group: 0 };
    let order: Vec<OrderedKey> = (1..=100)
        .map(|i| OrderedKey {
            key: key(i),
            end: i,
            held: true,
        })
        .collect();
    let mut w = world(64);
    for i in (91..=100).rev() {
        let outlook = w.pacer.outlook(&order, key(i));
        let answer = w.pacer.hit(RequestId(1), key(i), || Some(outlook));
        assert_eq!(answer, Answer::Hit, "block {i}");
    }
    assert_eq!(w.pacer.stats().promised_slots, 10);
    assert_eq!(w.pacer.stats().repeated_blocks, 0);
}

#[test]
fn windows_count_what_they_need() {
    let key = |group, i| PacedKey {
        id: u64::from(group) * 100 + i,
        group,
    };
    let order: Vec<OrderedKey> = (0..2)
        .flat_map(|g| {
            (1..=50).map(move |i| OrderedKey {
                key: key(g, i),
                end: i * 16,
                held: true,
            })
        })
        .collect();
    let outlook = Outlook::new(&order, key(0, 1), &[None, Some(4)], |_| true);
    assert_eq!(outlook.need(), 50 + 5);
    let cut = outlook.cut(25);
    assert_eq!(cut.need(), 25);
    assert!(cut.has(key(0, 20).id) && !cut.has(key(0, 21).id) && !cut.has(key(1, 21).id));
    // asked from the eleventh chunk on: ten are elsewhere
    let outlook = Outlook::new(&order, key(0, 11), &[None, None], |id| id % 2 == 0);
    assert_eq!(
        (outlook.need(), outlook.before()),
        (80, 10),
        "every second of twenty is in the primary"
    );
}

#[test]
fn a_share_that_cannot_be_is_refused_by_name() {
    for share in [0.0, -1.0, 1.1, f64::NAN, f64::INFINITY] {
        let settings = PacingSettings {
            share,
            ..PacingSettings::default()
        };
        let error = settings.validate().unwrap_err().to_string();
        assert!(error.contains("promote_share"), "{error}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 300, ..ProptestConfig::default() })]

    /// Whatever waits, whatever is stored beside it, whether or not the order of keys is told at once: every request
    /// ends, in the order of asking or nearly so, and little is loaded twice.
    #[test]
    fn every_request_ends(
        slots in 8usize..100,
        slow in 1u64..4,
        stores in 0u64..24,
        knows_order: bool,
        groups in 1u32..4,
        lengths in prop::collection::vec(1u64..200, 1..20),
    ) {
        let mut w = World::new(slots, slow, stores, knows_order, PacingSettings::default());
        for (id, &length) in (0..).zip(&lengths) {
            w.ask(id, length, groups);
        }
        // a brief pause for stores each, and a few steps
        w.run(lengths.len() as u64 * 150 + 100);
        prop_assert_eq!(w.pacer.stats().promised_slots, 0);
        prop_assert!(w.pacer.shares.is_empty());
        if stores == 0 {
            let fits: usize = lengths.iter().map(|&n| (n as usize * groups as usize).min(slots)).sum();
            prop_assert_eq!(w.loaded as usize, w.hits());
            prop_assert!(w.hits() * 2 + lengths.len() * groups as usize >= fits, "{} of {fits}", w.hits());
        }
    }
}
