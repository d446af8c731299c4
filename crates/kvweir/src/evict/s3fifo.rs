//! S3-FIFO, after Yang et al., "FIFO queues are all you need for cache eviction" (SOSP 2023): new blocks enter a small
//! queue (10 % of the capacity); those used again before they leave it move to the main queue, the others leave a
//! ghost; a block that returns while its ghost is known enters the main queue. An access moves nothing, it raises a
//! frequency (at most 3); the main queue gives a second chance for each unit of it.
//!
//! What differs from the paper:
//! - **Weights.** Queues are measured by weight, the ghosts by what the main queue may weigh.
//! - **Pins.** A block that would leave but is pinned keeps its place (I3); second chances are given whether or not a
//!   block is pinned. When a queue is exhausted the pass goes on in the other.
//! - **Requests.** A frequency counts requests: the inserting request, or one request's repeats, do not raise it.
//! - **One pass.** Which queue gives is weighed up at every step, so promotions out of the small queue cannot overfill
//!   the main one. A pass asks about an entry at most once and looks at it at most five times.

use super::{
    All, Id, Policy, PolicyKind, RequestTag, Residents,
    ghost::Ghosts,
    list::{Arena, NIL},
    mark::Mark,
    queue::{Pass, Queue},
};
use crate::block::Fingerprint;

/// Uses by other requests beyond which a block leaves the small queue for the main one.
const PROMOTE_ABOVE: u32 = 1;

/// See the module.
#[derive(Debug, Clone)]
pub(super) struct S3Fifo {
    capacity: u64,
    arena: Arena<Mark>,
    small: Queue,
    main: Queue,
    ghosts: Ghosts,
}

/// What became of an entry that was looked at.
enum Look {
    /// It was pinned, or moved on.
    Kept,
    /// It can go; it is still listed.
    Victim(Id),
}

impl S3Fifo {
    pub(super) fn new(capacity: u64) -> Self {
        Self {
            capacity,
            arena: Arena::new(),
            small: Queue::new(),
            main: Queue::new(),
            ghosts: Ghosts::new(),
        }
    }

    /// What the small queue should weigh.
    fn small_share(&self) -> u64 {
        (self.capacity / 10).max(1)
    }

    fn trim(&mut self) {
        self.ghosts
            .shrink_to(self.capacity.saturating_sub(self.small_share()));
    }

    /// Looks at the next entry of one queue.
    fn look(&mut self, second: bool, pass: &mut Pass, residents: &dyn Residents) -> Option<Look> {
        let queue = if second { &mut self.main } else { &mut self.small };
        let id = pass.next(queue, &self.arena);
        let mark = self.arena.mark(id)?;
        let again = if second {
            mark.freq() > 0
        } else {
            mark.freq() > PROMOTE_ABOVE
        };
        if again {
            let (weight, _) = queue.unlink(&mut self.arena, id)?;
            let freq = if second { mark.freq() - 1 } else { 0 };
            self.main
                .push_hot(&mut self.arena, id, weight, mark.on(true).with_freq(freq));
            return Some(Look::Kept);
        }
        let can_go = residents.evictable(id);
        pass.looked(queue, &mut self.arena, id, can_go);
        Some(if can_go { Look::Victim(id) } else { Look::Kept })
    }

    /// Moves what deserves it and finds victims, which stay listed; false, and `out` as it was, if they would not
    /// suffice.
    fn plan(&mut self, need: u64, residents: &dyn Residents, out: &mut Vec<Id>) -> bool {
        let start = out.len();
        let (mut in_small, mut in_main) = (Pass::new(), Pass::new());
        let (mut gained, mut from_small) = (0_u64, 0_u64);
        while gained < need {
            let small = self.small.weight().saturating_sub(from_small) >= self.small_share();
            let look = if small {
                self.look(false, &mut in_small, residents)
                    .or_else(|| self.look(true, &mut in_main, residents))
            } else {
                self.look(true, &mut in_main, residents)
                    .or_else(|| self.look(false, &mut in_small, residents))
            };
            match look {
                Some(Look::Kept) => {}
                Some(Look::Victim(id)) => {
                    let weight = self.arena.weight(id).map_or(0, u64::from);
                    if self.arena.mark(id).is_some_and(|m| !m.second()) {
                        from_small = from_small.saturating_add(weight);
                    }
                    gained = gained.saturating_add(weight);
                    out.push(id);
                }
                None => {
                    out.truncate(start);
                    return false;
                }
            }
        }
        true
    }

    fn unlink(&mut self, id: Id) -> Option<(u32, Mark)> {
        let queue = if self.arena.mark(id)?.second() {
            &mut self.main
        } else {
            &mut self.small
        };
        queue.unlink(&mut self.arena, id)
    }

    /// The next pass looks at `id`, which noted `mark`, wherever it is.
    #[inline]
    fn release(&mut self, id: Id, mark: Mark) {
        let queue = if mark.second() {
            &mut self.main
        } else {
            &mut self.small
        };
        queue.release(&self.arena, id);
    }
}

impl Policy for S3Fifo {
    fn kind(&self) -> PolicyKind {
        PolicyKind::S3Fifo
    }

    fn set_capacity(&mut self, weight: u64) {
        self.capacity = weight;
        self.trim();
    }

    fn insert(&mut self, id: Id, fp: Fingerprint, weight: u32, tag: RequestTag) {
        self.unlink(id);
        let known = self.ghosts.take(fp);
        let list = if known { &mut self.main } else { &mut self.small };
        list.push_hot(&mut self.arena, id, weight.max(1), Mark::new(known, tag));
    }

    fn insert_cold(&mut self, id: Id, fp: Fingerprint, weight: u32) {
        self.unlink(id);
        self.ghosts.take(fp);
        self.small.push_cold(
            &mut self.arena,
            id,
            weight.max(1),
            Mark::new(false, RequestTag::NONE),
        );
    }

    fn access(&mut self, id: Id, tag: RequestTag) {
        if let Some(mark) = self.arena.mark(id)
            && mark.counts(tag)
        {
            self.arena
                .set_mark(id, mark.with_freq(mark.freq() + 1).touched_by(tag));
            // it may deserve to move on, pinned or not
            self.release(id, mark);
        }
    }

    fn access_all(&mut self, ids: &[Id], tag: RequestTag) {
        self.arena.warm(ids);
        ids.iter().for_each(|&id| self.access(id, tag));
    }

    #[inline]
    fn unpinned(&mut self, id: Id) {
        if (self.small.has_aside() || self.main.has_aside())
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
        self.small.tidy(&mut self.arena);
        self.main.tidy(&mut self.arena);
        if need > self.weight() || !self.plan(need, residents, out) {
            return false;
        }
        for &id in out.iter().skip(start) {
            if let Some((weight, mark)) = self.unlink(id)
                && !mark.second()
            {
                self.ghosts.remember(residents.fingerprint(id), weight);
            }
        }
        self.trim();
        true
    }

    fn oldest(&self) -> Option<Id> {
        let (first, second) = if self.small.weight() >= self.small_share() {
            (&self.small, &self.main)
        } else {
            (&self.main, &self.small)
        };
        [first.cold(), second.cold()].into_iter().find(|&id| id != NIL)
    }

    fn len(&self) -> usize {
        self.small.len() + self.main.len()
    }

    fn weight(&self) -> u64 {
        self.small.weight().saturating_add(self.main.weight())
    }

    fn memory_bytes(&self) -> usize {
        let queues = self.small.memory_bytes() + self.main.memory_bytes();
        self.arena.memory_bytes() + queues + self.ghosts.memory_bytes()
    }

    fn eviction_order(&self) -> Vec<Id> {
        let mut order = Vec::with_capacity(self.len());
        let mut rehearsal = self.clone();
        rehearsal.small.release_all();
        rehearsal.main.release_all();
        rehearsal.plan(self.weight(), &All, &mut order);
        order
    }
}
