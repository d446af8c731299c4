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

mod claims;

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
