//! ARC, after Megiddo and Modha, "ARC: A Self-Tuning, Low Overhead Replacement Cache" (FAST 2003): blocks seen by one
//! request (T1) and by several (T2), ghosts of both (B1, B2), and a target for T1's share that every ghost hit moves.
//!
//! What differs from the paper:
//! - **Weights.** Lists are measured by weight: |T1| + |B1| <= c and all four <= 2c; a ghost hit moves the target by
//!   the weight of the block times the ratio of the ghost lists.
//! - **Pins.** A pass leaves pinned blocks in their places (I3) and takes from the other list when one has no
//!   candidate.
//! - **Requests.** A prefill touches each block several times. Only the touch of another request than the last one
//!   promotes to T2; the same request's refreshes recency within the list.
//! - **Order of events.** Room is made before the insertion that consults the ghosts, so the target moves one eviction
//!   later. The block inserted last is spared while any other can go.

use super::{
    All, Id, Policy, PolicyKind, RequestTag, Residents,
    ghost::Ghosts,
    list::{Arena, NIL},
    mark::Mark,
    queue::{Pass, Queue},
};
use crate::block::Fingerprint;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct Adaptive {
    capacity: u64,
    /// What T1 should weigh (the paper's p).
    target: u64,
    arena: Arena<Mark>,
    /// T1.
    recent: Queue,
    /// T2.
    frequent: Queue,
    /// B1.
    recent_ghosts: Ghosts,
    /// B2.
    frequent_ghosts: Ghosts,
    /// The entry inserted last.
    newest: Id,
}

impl Adaptive {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            target: 0,
            arena: Arena::new(),
            recent: Queue::new(),
            frequent: Queue::new(),
            recent_ghosts: Ghosts::new(),
            frequent_ghosts: Ghosts::new(),
            newest: NIL,
        }
    }

    /// Whether this block had a ghost; moves the target.
    fn consult(&mut self, fp: Fingerprint, weight: u32) -> bool {
        let (b1, b2) = (self.recent_ghosts.weight(), self.frequent_ghosts.weight());
        if self.recent_ghosts.take(fp) {
            self.target = self
                .target
                .saturating_add(step(weight, b2, b1))
                .min(self.capacity);
            true
        } else if self.frequent_ghosts.take(fp) {
            self.target = self.target.saturating_sub(step(weight, b1, b2));
            true
        } else {
            false
        }
    }

    /// Forgets ghosts beyond the bounds.
    fn trim(&mut self) {
        self.recent_ghosts
            .shrink_to(self.capacity.saturating_sub(self.recent.weight()));
        let others = self.weight().saturating_add(self.recent_ghosts.weight());
        self.frequent_ghosts
            .shrink_to(self.capacity.saturating_mul(2).saturating_sub(others));
    }

    /// The victims, still listed; false, and `out` as it was, if they would not suffice.
    fn plan(&mut self, need: u64, residents: &dyn Residents, out: &mut Vec<Id>) -> bool {
        let start = out.len();
        let (mut t1, mut t2) = (Pass::new(), Pass::new());
        let (mut gained, mut left) = (0_u64, self.recent.weight());
        while gained < need {
            let from_t1 = left > self.target;
            let mut next = |of_t1: bool| {
                let (pass, queue) = if of_t1 {
                    (&mut t1, &mut self.recent)
                } else {
                    (&mut t2, &mut self.frequent)
                };
                let id = pass.candidate(queue, &mut self.arena, residents)?;
                Some((id, of_t1))
            };
            let mut choice = next(from_t1);
            if choice.is_none_or(|(id, _)| id == self.newest) {
                choice = next(!from_t1).or(choice);
            }
            let Some((id, in_t1)) = choice else {
                out.truncate(start);
                return false;
            };
            let weight = if in_t1 {
                t1.take(&self.arena)
            } else {
                t2.take(&self.arena)
            };
            if in_t1 {
                left = left.saturating_sub(weight);
            }
            gained = gained.saturating_add(weight);
            out.push(id);
        }
        true
    }

    /// Takes `id` off its list; returns its weight and its mark.
    fn unlink(&mut self, id: Id) -> Option<(u32, Mark)> {
        if self.newest == id {
            self.newest = NIL;
        }
        let queue = if self.arena.mark(id)?.second() {
            &mut self.frequent
        } else {
            &mut self.recent
        };
        queue.unlink(&mut self.arena, id)
    }

    /// The next pass looks at `id`, which noted `mark`, wherever it is.
    #[inline]
    fn release(&mut self, id: Id, mark: Mark) {
        let queue = if mark.second() {
            &mut self.frequent
        } else {
            &mut self.recent
        };
        queue.release(&self.arena, id);
    }
}

/// How far a hit in the ghost list of weight `own` moves the target, the other list weighing `other`.
fn step(weight: u32, other: u64, own: u64) -> u64 {
    let ratio_of = u128::from(weight) * u128::from(other) / u128::from(own.max(1));
    u64::try_from(ratio_of).unwrap_or(u64::MAX).max(u64::from(weight))
}

impl Policy for Adaptive {
    fn kind(&self) -> PolicyKind {
        PolicyKind::Arc
    }

    fn set_capacity(&mut self, weight: u64) {
        self.capacity = weight;
        self.target = self.target.min(weight);
        self.trim();
    }

    fn insert(&mut self, id: Id, fp: Fingerprint, weight: u32, tag: RequestTag) {
        self.unlink(id);
        let weight = weight.max(1);
        let known = self.consult(fp, weight);
        let list = if known {
            &mut self.frequent
        } else {
            &mut self.recent
        };
        if list.push_hot(&mut self.arena, id, weight, Mark::new(known, tag)) {
            self.newest = id;
        }
        self.trim();
    }

    fn insert_cold(&mut self, id: Id, fp: Fingerprint, weight: u32) {
        self.unlink(id);
        self.recent_ghosts.take(fp);
        self.frequent_ghosts.take(fp);
        self.recent.push_cold(
            &mut self.arena,
            id,
            weight.max(1),
            Mark::new(false, RequestTag::NONE),
        );
        self.trim();
    }

    fn access(&mut self, id: Id, tag: RequestTag) {
        let Some(mark) = self.arena.mark(id) else { return };
        let touched = mark.touched_by(tag);
        if mark.second() {
            self.arena.set_mark(id, touched);
            self.frequent.refresh(&mut self.arena, id);
        } else if !mark.counts(tag) {
            self.recent.refresh(&mut self.arena, id);
        } else if let Some((weight, _)) = self.recent.unlink(&mut self.arena, id) {
            self.frequent
                .push_hot(&mut self.arena, id, weight, touched.on(true));
            self.trim();
        }
    }

    fn access_all(&mut self, ids: &[Id], tag: RequestTag) {
        self.arena.warm(ids);
        self.arena.warm_neighbours(ids);
        ids.iter().for_each(|&id| self.access(id, tag));
    }

    #[inline]
    fn unpinned(&mut self, id: Id) {
        if (self.recent.has_aside() || self.frequent.has_aside())
            && let Some(mark) = self.arena.mark(id)
        {
            self.release(id, mark);
        }
    }

    fn remove(&mut self, id: Id) {
        self.unlink(id);
    }

    fn victims(&mut self, need: u64, residents: &dyn Residents, out: &mut Vec<Id>) -> bool {
        let start = out.len();
        self.recent.tidy(&mut self.arena);
        self.frequent.tidy(&mut self.arena);
        if need > self.weight() || !self.plan(need, residents, out) {
            return false;
        }
        for &id in out.iter().skip(start) {
            if let Some((weight, mark)) = self.unlink(id) {
                let ghosts = if mark.second() {
                    &mut self.frequent_ghosts
                } else {
                    &mut self.recent_ghosts
                };
                ghosts.remember(residents.fingerprint(id), weight);
            }
        }
        self.trim();
        true
    }

    fn oldest(&self) -> Option<Id> {
        let (recent, frequent) = (self.recent.cold(), self.frequent.cold());
        let (first, second) = if self.recent.weight() > self.target {
            (recent, frequent)
        } else {
            (frequent, recent)
        };
        let spared = first == NIL || first == self.newest && second != NIL;
        Some(if spared { second } else { first }).filter(|&id| id != NIL)
    }

    fn len(&self) -> usize {
        self.recent.len() + self.frequent.len()
    }

    fn weight(&self) -> u64 {
        self.recent.weight().saturating_add(self.frequent.weight())
    }

    fn memory_bytes(&self) -> usize {
        let queues = self.recent.memory_bytes() + self.frequent.memory_bytes();
        let ghosts = self.recent_ghosts.memory_bytes() + self.frequent_ghosts.memory_bytes();
        self.arena.memory_bytes() + queues + ghosts
    }

    fn eviction_order(&self) -> Vec<Id> {
        let mut order = Vec::with_capacity(self.len());
        let mut rehearsal = self.clone();
        rehearsal.recent.release_all();
        rehearsal.frequent.release_all();
        rehearsal.plan(self.weight(), &All, &mut order);
        order
    }
}
