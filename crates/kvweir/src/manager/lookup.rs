//! Where a block stands for a request, key by key as a scheduler asks.

use super::{FINDS_OUT, Found, Manager};
use crate::{
    block::Key,
    primary::SlotState,
    tier::{Lookup, RequestId},
};

impl Manager {
    /// Where `key` stands for `req`. A block that only a secondary tier holds gets a slot and is brought up.
    pub fn lookup(&mut self, key: &Key, req: RequestId) -> Found {
        self.find(key, req, false).unwrap_or(Found::Miss)
    }

    /// As [`lookup`](Self::lookup); nothing where the block is not readable and may be brought up, and the keys of the
    /// request are not known: tell them by [`set_prefix`](Self::set_prefix), and look it up then.
    pub fn lookup_with_prefix(&mut self, key: &Key, req: RequestId) -> Option<Found> {
        self.find(key, req, true)
    }

    fn find(&mut self, key: &Key, req: RequestId, may_ask: bool) -> Option<Found> {
        self.poll_once();
        self.note_pass(key, req);
        let answer = self.seek(key, req, may_ask);
        if let Some(p) = &mut self.pass {
            p.found += u64::from(!matches!(answer, Some(Found::Miss) | None));
        }
        answer
    }

    fn seek(&mut self, key: &Key, req: RequestId, may_ask: bool) -> Option<Found> {
        if let Some(answer) = self.by_stage(key, req) {
            return Some(answer);
        }
        let wants_prefix = may_ask
            && self
                .requests
                .get(&req)
                .is_none_or(|r| !r.has_no_prefix && r.prefix.is_none());
        match self.primary.lookup(key) {
            SlotState::Ready => {
                self.count_hit();
                return Some(Found::Hit);
            }
            SlotState::Absent if self.held => return Some(Found::Miss),
            state @ (SlotState::Writing | SlotState::Absent) => {
                if let Some(answer) = self.by_plan(key, req) {
                    return Some(answer);
                }
                if state == SlotState::Absent {
                    self.stats.primary_queries += 1;
                } else {
                    return (!wants_prefix).then_some(Found::HitPending);
                }
            }
        }
        let mut retry = false;
        for i in 0..self.tiers.len() {
            if self.requests.get(&req).is_some_and(|r| !r.may_load(key, i)) {
                continue;
            }
            let Some(s) = self.tiers.get_mut(i) else { continue };
            let answer = match self.answered.take() {
                Some((of, known, tier, answer)) if (of, tier) == (req, i) && known == *key => answer,
                _ => s.tier.lookup(key, req),
            };
            if wants_prefix && answer != Lookup::Miss {
                self.answered = Some((req, key.clone(), i, answer));
                return None;
            }
            s.traffic.queries += 1;
            s.traffic.hits += u64::from(answer == Lookup::Hit);
            if answer == Lookup::Retry {
                retry |= self.may_wait(i, key, req);
                continue;
            }
            if !self.waits.is_empty() {
                self.waits.remove(&(req, key.clone(), i));
            }
            match answer {
                Lookup::Hit => {
                    let answer = if self.promote(i, key, req) {
                        Found::HitPending
                    } else {
                        Found::Miss
                    };
                    return Some(answer);
                }
                Lookup::Miss | Lookup::Retry => {}
            }
        }
        Some(if retry { Found::Retry } else { Found::Miss })
    }

    /// Whether `req` keeps waiting for tier `i` to find out; after [`FINDS_OUT`] it no longer asks the tier for `key`.
    pub(super) fn may_wait(&mut self, i: usize, key: &Key, req: RequestId) -> bool {
        let now = self.clock.now();
        let wait = (req, key.clone(), i);
        if now.since(*self.waits.entry(wait.clone()).or_insert(now)) < FINDS_OUT {
            return true;
        }
        self.waits.remove(&wait);
        self.requests.entry(req).or_default().could_not_load(key, i);
        false
    }
}
