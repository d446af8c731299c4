//! A model of the manager that pacing is for: a slot per key that the tier says it holds, least recently used first
//! out, a miss once nothing can go; waiting requests are asked for in order in every step.

use std::{
    collections::{HashMap, HashSet, VecDeque},
    sync::Arc,
    time::Duration,
};

use proptest::prelude::*;

use super::{Answer, OrderedKey, Outlook, PacedKey, Pacer, PacingSettings};
use crate::{clock::ManualClock, tier::RequestId};

const STEP: Duration = Duration::from_millis(1);

/// How a slot stands.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Slot {
    /// Being loaded until this step.
    Loading(u64),
    /// Being read or written until this step.
    Busy(u64),
    Idle,
}

#[derive(Debug)]
struct Asking {
    id: RequestId,
    /// Group by group.
    groups: Vec<Vec<PacedKey>>,
    hits: Option<usize>,
    waited: u64,
}

/// The world of one run.
struct World {
    slots: usize,
    pacer: Pacer,
    clock: Arc<ManualClock>,
    /// Oldest first.
    order: VecDeque<u64>,
    state: HashMap<u64, Slot>,
    held: HashSet<u64>,
    waiting: Vec<Asking>,
    ended: Vec<Asking>,
    step: u64,
    loaded: u64,
    /// Steps that a load takes.
    slow: u64,
    /// Blocks that running requests store in a step.
    stores: u64,
    next_store: u64,
    knows_order: bool,
}

impl World {
    fn new(slots: usize, slow: u64, stores: u64, knows_order: bool, settings: PacingSettings) -> Self {
        let clock = Arc::new(ManualClock::new());
        Self {
            slots,
            pacer: Pacer::new(slots as u64, Vec::new(), settings, Arc::clone(&clock) as _),
            clock,
            order: VecDeque::new(),
            state: HashMap::new(),
            held: HashSet::new(),
            waiting: Vec::new(),
            ended: Vec::new(),
            step: 0,
            loaded: 0,
            slow,
            stores,
            next_store: 1 << 60,
            knows_order,
        }
    }

    /// A request of `length` chunks in each of `groups` groups, all of them in the tier.
    fn ask(&mut self, id: u64, length: u64, groups: u32) {
        let groups: Vec<Vec<PacedKey>> = (0..groups)
            .map(|group| {
                let key = |i| PacedKey {
                    id: (id << 32) + (u64::from(group) << 24) + i,
                    group,
                };
                (0..length).map(key).collect()
            })
            .collect();
        self.ask_for(id, groups);
    }

    /// A request for these keys, all of them in the tier.
    fn ask_for(&mut self, id: u64, groups: Vec<Vec<PacedKey>>) {
        self.held.extend(groups.iter().flatten().map(|k| k.id));
        self.waiting.push(Asking {
            id: RequestId(id),
            groups,
            hits: None,
            waited: 0,
        });
    }

    fn slot_for(&mut self, id: u64, slot: Slot) -> bool {
        if self.state.len() >= self.slots {
            let state = &self.state;
            let Some(at) = self.order.iter().position(|k| state.get(k) == Some(&Slot::Idle)) else {
                return false;
            };
            let gone = self.order.remove(at).unwrap();
            self.state.remove(&gone);
        }
        self.order.push_back(id);
        self.state.insert(id, slot);
        true
    }

    fn lookup(&mut self, asking: &Asking, key: PacedKey, job: &mut Vec<u64>) -> Answer {
        match self.state.get(&key.id) {
            Some(Slot::Loading(_)) => return Answer::Retry,
            Some(_) => return Answer::Hit,
            None => {}
        }
        let answer = self.pacer.before(asking.id, key).unwrap_or_else(|| {
            let knows = self.knows_order || asking.waited > 0;
            let outlook = (knows && !self.pacer.is_admitted(asking.id)).then(|| {
                let all = asking.groups.iter().flat_map(|g| (1..).zip(g));
                let held = |key: &PacedKey| self.held.contains(&key.id);
                let order: Vec<_> = all
                    .map(|(end, key)| OrderedKey {
                        key: *key,
                        end,
                        held: held(key),
                    })
                    .collect();
                self.pacer.outlook(&order, key)
            });
            self.pacer.hit(asking.id, key, || outlook)
        });
        if answer != Answer::Hit {
            return answer;
        }
        if !self.slot_for(key.id, Slot::Loading(self.step + self.slow)) {
            return Answer::Miss;
        }
        job.push(key.id);
        // a block under way is found and not readable
        Answer::Retry
    }

    /// Hits per group, or nothing while a key is pending, as the scheduler's loop finds them.
    fn scan(&mut self, asking: &Asking) -> Option<usize> {
        let (mut limit, mut pending, mut job) = (usize::MAX, false, Vec::new());
        for group in &asking.groups {
            let (mut hits, mut open) = (0, false);
            for &key in group.iter().take(limit) {
                match self.lookup(asking, key, &mut job) {
                    Answer::Hit => hits += 1,
                    Answer::Retry => open = true,
                    Answer::Miss => break,
                }
            }
            pending |= open;
            if !open {
                limit = hits.min(limit);
            }
            if limit == 0 {
                break;
            }
        }
        if !job.is_empty() {
            self.loaded += job.len() as u64;
            self.pacer.submitted(asking.id, job.into_iter());
        }
        if limit == 0 {
            return Some(0);
        }
        (!pending).then_some(limit)
    }

    fn step(&mut self) {
        self.step += 1;
        self.clock.advance(STEP);
        for slot in self.state.values_mut() {
            if matches!(slot, Slot::Loading(t) | Slot::Busy(t) if *t <= self.step) {
                *slot = Slot::Idle;
            }
        }
        let mut scheduled = Vec::new();
        for mut asking in std::mem::take(&mut self.waiting) {
            match self.scan(&asking) {
                None => {
                    asking.waited += 1;
                    self.waiting.push(asking);
                }
                Some(hits) => {
                    for key in asking.groups.iter().flat_map(|g| g.iter().take(hits)) {
                        assert_ne!(self.state.get(&key.id), None, "a hit that is not in the primary");
                        self.state.insert(key.id, Slot::Busy(self.step + 1));
                    }
                    asking.hits = Some(hits * asking.groups.len());
                    scheduled.push(asking.id);
                    self.ended.push(asking);
                }
            }
        }
        for _ in 0..self.stores {
            self.next_store += 1;
            if self.slot_for(self.next_store, Slot::Busy(self.step + 2)) {
                self.pacer
                    .storing(RequestId(u64::MAX), [self.next_store].into_iter());
                self.pacer.stored(1);
            }
        }
        self.pacer.step_ended(scheduled);
    }

    /// Steps until all requests have ended.
    fn run(&mut self, most: u64) -> u64 {
        let begin = self.step;
        while !self.waiting.is_empty() {
            self.step();
            assert!(
                self.step - begin < most,
                "{} of {} requests wait after {most} steps: {:?}",
                self.waiting.len(),
                self.waiting.len() + self.ended.len(),
                self.pacer.stats(),
            );
        }
        self.step - begin
    }

    fn hits(&self) -> usize {
        self.ended.iter().filter_map(|a| a.hits).sum()
    }
}

fn world(slots: usize) -> World {
    World::new(slots, 1, 0, true, PacingSettings::default())
}

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
