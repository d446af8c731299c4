//! Promotions planned per request. Before the first slot is taken it is decided which part of a request's prefix, all
//! KV-cache groups together, is brought up: the longest that is somewhere and fits beside what other waiting requests
//! hold. All of that part is then held (I3) until the request has loaded it, runs, or is gone; what lies behind it is a
//! miss. What does not fit yet waits, in the order in which the scheduler asks for requests.
//!
//! While its blocks are on their way a request has nothing to be told: the first key of a pass is answered "pending",
//! which puts the request off, and the next "miss", which ends the pass. So a step costs two lookups per group and
//! waiting request, however long the prefix. (A group with a window is searched from its end, and a window of "pending"
//! ends that.)
//!
//! No request waits for ever: a tier reports each job, and after [`PlanSettings::wait`](super::PlanSettings::wait) a
//! request takes what there is room for.

use std::{cmp::Ordering, sync::Arc, time::Duration};

use super::{
    Found, Manager,
    prefix::{Prefix, Reach},
    sight::{Seen, Sight},
    stage::{Pass, Stage},
};
use crate::{block::Key, clock::Instant, primary::SlotState, tier::RequestId};

/// Between two looks for requests that hold slots and are not asked for.
const SILENT_EVERY: Duration = Duration::from_secs(1);

impl Manager {
    /// Tells the keys of `req` in prefix order, group by group or mixed, each with the position at which its block
    /// ends, in any unit that all groups share. Without them its blocks are promoted one by one.
    pub fn set_prefix(&mut self, req: RequestId, keys: Vec<(Key, u64)>) {
        let prefix = Prefix::new(keys, &self.groups);
        self.requests.entry(req).or_default().prefix = Some(Arc::new(prefix));
    }

    /// The keys of `req` are not to be had: its blocks are promoted one by one.
    pub fn set_no_prefix(&mut self, req: RequestId) {
        self.requests.entry(req).or_default().has_no_prefix = true;
    }

    /// Puts `req`, which is being asked for `key`, off until the next step: its keys will have been told by then. If they
    /// are not, its blocks are promoted one by one.
    pub fn await_prefix(&mut self, key: &Key, req: RequestId) -> Found {
        self.note_pass(key, req);
        self.requests.entry(req).or_default();
        self.set_stage(req, Stage::Untold);
        self.put_off(key)
    }

    /// Notes that `key` is asked for: another pass over a group begins with another group, or with the first key again.
    pub(super) fn note_pass(&mut self, key: &Key, req: RequestId) {
        let group = self.groups.of(key);
        if let Some(p) = &mut self.pass
            && (p.req, p.step) == (req, self.step)
        {
            let begin = |key| {
                let prefix = self.requests.get(&req)?.prefix.as_ref()?;
                Some(prefix.place(key, &self.groups)?.1)
            };
            let is_unknown = self.groups.reach(group) == Reach::Unknown;
            let mut saw = None;
            if p.group != group {
                p.fewest = p.fewest.min(p.found);
                (p.group, p.found, p.is_put_off) = (group, 0, false);
                p.head = key.clone();
                if is_unknown && let (Some(first), Some(here)) = (begin(&p.first), begin(key)) {
                    if first != here {
                        saw = Some(Reach::Backward);
                    } else if p.fewest > 1 {
                        // a search from the back would have begun at the second block or behind it
                        saw = Some(Reach::Whole);
                    }
                }
            } else if p.head == *key {
                (p.found, p.is_put_off) = (0, false);
            } else if is_unknown && let (Some(head), Some(here)) = (begin(&p.head), begin(key)) {
                saw = match head.cmp(&here) {
                    Ordering::Less => Some(Reach::Whole),
                    Ordering::Greater => Some(Reach::Backward),
                    Ordering::Equal => None,
                };
            }
            if let Some(reach) = saw {
                self.groups.saw(group, reach);
            }
            return;
        }
        if let Some(last) = self.pass.take()
            && let Some(r) = self.requests.get_mut(&last.req)
        {
            r.hits_counted = last.counted;
        }
        self.pass = Some(Pass {
            req,
            step: self.step,
            group,
            head: key.clone(),
            first: key.clone(),
            is_put_off: false,
            found: 0,
            fewest: u64::MAX,
            hits: 0,
            counted: self.requests.get(&req).map_or(0, |r| r.hits_counted),
        });
    }

    /// Counts a block answered readable, once for each request that waits.
    pub(super) fn count_hit(&mut self) {
        if let Some(p) = &mut self.pass {
            p.hits += 1;
            if p.hits > p.counted {
                p.counted = p.hits;
                self.stats.primary_hits += 1;
                self.stats.primary_queries += 1;
            }
        }
    }

    /// The answer while blocks of a request are on their way: "pending" once, which puts it off whatever was answered
    /// before, and then "miss", which ends the pass.
    fn put_off(&mut self, key: &Key) -> Found {
        let was = self
            .pass
            .as_mut()
            .is_some_and(|p| std::mem::replace(&mut p.is_put_off, true));
        // whoever searches from the back goes on after a miss, and stops when it has seen enough that is pending
        if !was || self.groups.reach(self.groups.of(key)) != Reach::Whole {
            Found::HitPending
        } else {
            Found::Miss
        }
    }

    /// The answer of a request's stage, or nothing where the block has to be looked for.
    pub(super) fn by_stage(&mut self, key: &Key, req: RequestId) -> Option<Found> {
        let step = self.step;
        let queue_stands = self.queue_stands;
        let r = self.requests.get_mut(&req)?;
        if matches!(r.stage, Stage::Open) {
            return None;
        }
        let news = r.asked_in != Some(step);
        r.asked_in = Some(step);
        if news {
            r.asked_at = Some(self.clock.now());
        }
        match &mut r.stage {
            Stage::Open | Stage::There(_) => None,
            Stage::Untold if !news => Some(self.put_off(key)),
            Stage::Untold => {
                r.stage = Stage::Open;
                r.has_no_prefix = r.prefix.is_none();
                if r.has_no_prefix {
                    return None;
                }
                self.make_plan(req);
                self.after_plan(key, req)
            }
            Stage::Waiting { .. } if news && !queue_stands => {
                self.make_plan(req);
                self.after_plan(key, req)
            }
            Stage::Waiting { .. } => Some(self.put_off(key)),
            Stage::Arriving { .. } if !news => Some(self.put_off(key)),
            Stage::Arriving { awaited, planned } => {
                let mut is_lost = false;
                while let Some(&claim) = awaited.last() {
                    match self.primary.claimed(claim) {
                        SlotState::Ready => {
                            awaited.pop();
                        }
                        SlotState::Writing => break,
                        SlotState::Absent => {
                            is_lost = true;
                            break;
                        }
                    }
                }
                if is_lost {
                    // what did not come is not asked for again: the plan ends before it
                    self.unhold(req);
                    self.make_plan(req);
                } else if awaited.is_empty() {
                    r.stage = Stage::There(planned.clone());
                }
                self.after_plan(key, req)
            }
        }
    }

    fn after_plan(&mut self, key: &Key, req: RequestId) -> Option<Found> {
        match self.requests.get(&req).map(|r| &r.stage) {
            Some(Stage::Waiting { .. } | Stage::Arriving { .. }) => Some(self.put_off(key)),
            _ => None,
        }
    }

    /// The answer for a block that is not readable, of a request whose prefix is known; nothing where the prefix is not.
    pub(super) fn by_plan(&mut self, key: &Key, req: RequestId) -> Option<Found> {
        let r = self.requests.get(&req)?;
        let prefix = r.prefix.as_ref()?;
        let (can_plan, is_certain) = self.groups.can_plan(prefix);
        // one that is no whole block of the prefix comes up by itself
        let is_of_it = prefix.has(key) && self.pass.as_ref().is_none_or(|p| prefix.has(&p.first));
        // while everything fits, a guess at what a group needs is worth less than its being asked for
        if !can_plan || !is_of_it || !(is_certain || self.ran_out) {
            return None;
        }
        if let Stage::There(planned) = &r.stage {
            let first = self.pass.as_ref().map(|p| &p.first);
            let is_here = self.primary.state(key) == SlotState::Writing;
            if is_here {
                return Some(Found::HitPending);
            }
            // the accelerator has lost some of what came before: the hit begins earlier now
            let begins_elsewhere = first == Some(key) && first != Some(planned);
            if !begins_elsewhere {
                return Some(Found::Miss);
            }
            self.unhold(req);
        }
        self.make_plan(req);
        if let Some(put_off) = self.after_plan(key, req) {
            return Some(put_off);
        }
        if !is_certain
            && self
                .requests
                .get(&req)
                .is_some_and(|r| matches!(r.stage, Stage::Open))
        {
            // what was taken for a gap may lie before a window
            return None;
        }
        Some(match self.primary.lookup(key) {
            SlotState::Ready => Found::Hit,
            SlotState::Writing => Found::HitPending,
            SlotState::Absent => Found::Miss,
        })
    }

    /// Decides what is brought up for `req`, and takes the slots.
    fn make_plan(&mut self, req: RequestId) {
        let now = self.clock.now();
        let first = self.pass.as_ref().map(|p| p.first.clone());
        let Some((prefix, waited)) = self.requests.get(&req).and_then(|r| {
            let waited = match r.stage {
                Stage::Waiting { since } => Some(now.since(since)),
                _ => None,
            };
            Some((Arc::clone(r.prefix.as_ref()?), waited))
        }) else {
            return;
        };
        let Some((group, begin)) = first.and_then(|key| prefix.place(&key, &self.groups)) else {
            self.set_stage(req, Stage::Open);
            return;
        };
        // a group with a window is asked for from its end
        let begin = if group.window.is_some() { 0 } else { begin };
        let is_patient = waited.unwrap_or_default() < self.plan.wait;
        let mut sight = Sight::new(self, req, &prefix, begin);
        let (spare, room) = self.room();
        let (longest, fits) = sight.longest(self, req, spare);
        if sight.is_unsure && is_patient {
            return self.wait(req, now, waited, false);
        }
        let Some(longest) = longest else {
            return self.set_stage(req, Stage::Open);
        };
        if fits != Some(longest) && !sight.is_below(longest) {
            // all is in the primary or on its way there: nobody is waited for, to hold it
            return self.await_written(req, &sight, longest);
        }
        let most = if fits == Some(longest) {
            fits
        } else {
            sight.longest(self, req, room).1
        };
        let must_wait = fits != most || (self.queue_stands && fits.is_some_and(|end| sight.need(end) > 0));
        if must_wait && is_patient {
            return self.wait(req, now, waited, true);
        }
        let taken = match fits {
            Some(end) if self.take(req, &sight, end) => true,
            Some(_) if is_patient => return self.wait(req, now, waited, true),
            _ => false,
        };
        if fits != Some(longest) || !taken {
            self.stats.cut_requests += 1;
        }
        if !taken {
            let first = self.pass.as_ref().map(|p| p.first.clone());
            self.set_stage(req, first.map_or(Stage::Open, Stage::There));
        }
    }

    /// Slots that a request may take beside what others hold, and those that it could take if nobody held any. A request
    /// alone is given all but what the stores of a step need: the share protects others.
    fn room(&self) -> (u64, u64) {
        let slots = u64::from(self.primary.region().num_slots());
        let shared = ((slots as f64 * self.plan.share) as u64).max(1);
        let alone = shared.max(slots.saturating_sub(self.stores_per_step.max(self.stored_this_step)));
        let held = self.primary.stats().held;
        (
            if held == 0 {
                alone
            } else {
                shared.saturating_sub(held)
            },
            alone,
        )
    }

    /// Puts a request off; one that waits for room lets none behind it pass.
    fn wait(&mut self, req: RequestId, now: Instant, waited: Option<Duration>, for_room: bool) {
        if for_room {
            self.queue_stands = true;
            self.let_go_of_silent(now);
            let counted = self
                .requests
                .get_mut(&req)
                .is_some_and(|r| std::mem::replace(&mut r.held_back, true));
            self.stats.held_back_requests += u64::from(!counted);
        }
        if waited.is_none() {
            self.set_stage(req, Stage::Waiting { since: now });
        }
    }

    /// Requests that the scheduler has not asked for in half the time that others wait hold nothing any more.
    fn let_go_of_silent(&mut self, now: Instant) {
        if self
            .looked_for_silent
            .is_some_and(|at| now.since(at) < SILENT_EVERY)
        {
            return;
        }
        self.looked_for_silent = Some(now);
        let longest = (self.plan.wait / 2).max(SILENT_EVERY);
        let silent: Vec<RequestId> = self
            .requests
            .iter()
            .filter(|(_, r)| !r.holds.is_empty() && r.asked_at.is_none_or(|at| now.since(at) > longest))
            .map(|(&req, _)| req)
            .collect();
        silent.into_iter().for_each(|req| self.unhold(req));
    }

    fn set_stage(&mut self, req: RequestId, stage: Stage) {
        let step = self.step;
        if let Some(r) = self.requests.get_mut(&req) {
            r.stage = stage;
            r.asked_in = Some(step);
        }
    }

    /// Holds all of a hit up to `end`, with a slot and a place in the step's loads for what is not here. `false`: the
    /// primary has no room now, and nothing was changed.
    fn take(&mut self, req: RequestId, sight: &Sight<'_>, end: u64) -> bool {
        let mut held = Vec::new();
        let mut absent: Vec<(Key, usize)> = Vec::new();
        for (key, seen) in sight.groups.iter().flat_map(|g| g.needed(end)) {
            match seen {
                Seen::Here { .. } => held.extend(self.primary.hold(key)),
                Seen::Below(tier) => absent.push((key.clone(), tier)),
                Seen::Unsure | Seen::Nowhere => {}
            }
        }
        let keys: Vec<Key> = absent.iter().map(|(key, _)| key.clone()).collect();
        let Some(claims) = self.primary.prepare_promotions(&keys, req) else {
            self.primary.unhold(&held);
            self.stats.promotions_without_room += keys.len() as u64;
            return false;
        };
        let mut tiers = absent.into_iter();
        for (key, claim) in claims {
            let Some((_, tier)) = tiers.by_ref().find(|(k, _)| *k == key) else {
                continue;
            };
            held.extend(self.primary.hold(&key));
            self.queue_promotion(tier, key, claim, req);
        }
        let awaited = held
            .iter()
            .copied()
            .filter(|&c| self.primary.claimed(c) != SlotState::Ready)
            .rev()
            .collect();
        let first = self.pass.as_ref().map(|p| p.first.clone());
        let step = self.step;
        if let Some(r) = self.requests.get_mut(&req) {
            r.stage = match first {
                Some(first) if Vec::is_empty(&awaited) => Stage::There(first),
                Some(planned) => Stage::Arriving { awaited, planned },
                None => Stage::Open,
            };
            r.asked_in = Some(step);
            r.asked_at = Some(self.clock.now());
            r.holds = held;
        }
        true
    }

    /// Waits for what others are bringing of a hit up to `end`.
    fn await_written(&mut self, req: RequestId, sight: &Sight<'_>, end: u64) {
        let mut awaited = Vec::new();
        for (key, _) in sight.groups.iter().flat_map(|g| g.needed(end)) {
            if let Some(claim) = self.primary.claim(key)
                && self.primary.claimed(claim) == SlotState::Writing
            {
                awaited.push(claim);
            }
        }
        awaited.reverse();
        let stage = match self.pass.as_ref().map(|p| p.first.clone()) {
            Some(planned) if !awaited.is_empty() => Stage::Arriving { awaited, planned },
            _ => Stage::Open,
        };
        self.set_stage(req, stage);
    }

    /// What was held for `req` is held no longer: its load has begun, it runs, or it is gone. If it is looked up again
    /// it may have more keys, and they are told again.
    pub fn let_go(&mut self, req: RequestId) {
        self.unhold(req);
        if let Some(r) = self.requests.get_mut(&req) {
            r.prefix = None;
            r.hits_counted = 0;
        }
        if let Some(p) = self.pass.as_mut().filter(|p| p.req == req) {
            (p.hits, p.counted) = (0, 0);
        }
    }

    fn unhold(&mut self, req: RequestId) {
        let Some(r) = self.requests.get_mut(&req) else {
            return;
        };
        if matches!(r.stage, Stage::Open) && r.holds.is_empty() {
            return;
        }
        r.stage = Stage::Open;
        let held = std::mem::take(&mut r.holds);
        self.primary.unhold(&held);
    }
}
