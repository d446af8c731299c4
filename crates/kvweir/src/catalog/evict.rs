//! A block stops being a hit: it is chosen to go, found bad, or forgotten.

use std::time::Duration;

use super::{
    Catalog, View,
    body::{Body, Rank},
    index::State,
};
use crate::{
    clock::Instant,
    evict::{Id, RequestTag, Residents},
    metrics::EvictReason,
};

/// How long what could not be removed is left alone.
const STUCK_FOR: Duration = Duration::from_secs(30);

impl Catalog {
    /// Whether nothing holds `id` back from being evicted.
    pub(crate) fn is_evictable(&self, id: Id) -> bool {
        matches!(self.index.state(id), State::Ready | State::Bad) && self.index.pins(id) == 0
    }

    /// Chooses victims of `Rank::Whole` worth at least `want`, and makes them `Evicting`: enough, or none and `false`.
    pub(crate) fn choose(&mut self, want: u64, now: Instant, out: &mut Vec<Id>) -> bool {
        self.retry_stuck(now);
        let from = out.len();
        // what nobody serves goes first; nobody pins it either, and one that is not evictable went another way
        let mut have = 0;
        while have < want
            && let Some(id) = self.orphans.pop_front()
        {
            if self.view(now).evictable(id) {
                have += u64::from(self.weight(id)).max(1);
                out.push(id);
            }
        }
        let view = View {
            index: &self.index,
            stuck: &self.stuck,
            now,
        };
        if have < want && !self.whole.victims(want - have, &view, out) {
            out.drain(from..).rev().for_each(|id| self.orphans.push_front(id));
            return false;
        }
        for &id in out.get(from..).unwrap_or_default() {
            self.leave_ready(id);
            self.index.set_state(id, State::Evicting);
            self.stuck.remove(&id);
        }
        true
    }

    /// Evicts blocks from the slots of `store`, `most` of them or, where not so many can go, fewer, each of `bytes`
    /// bytes; what they told goes to `freed`.
    pub(crate) fn evict_slots(
        &mut self,
        store: u8,
        (most, bytes): (u64, u64),
        now: Instant,
        freed: &mut Vec<Body>,
    ) {
        let Some(policy) = self.slots.get_mut(usize::from(store)) else {
            return;
        };
        let mut ids = std::mem::take(&mut self.scratch);
        ids.clear();
        let view = View {
            index: &self.index,
            stuck: &self.stuck,
            now,
        };
        let mut want = most;
        while want > 0 && !policy.victims(want, &view, &mut ids) {
            want /= 2;
        }
        for id in ids.drain(..) {
            freed.extend(self.drop_entry(id, EvictReason::Capacity, bytes));
        }
        self.scratch = ids;
    }

    /// Forgets a block that nothing has to be removed for. Returns what it told, where nobody pins it; else that is
    /// [released](Self::take_released) with its last pin.
    pub(crate) fn forget(&mut self, id: Id, reason: EvictReason, bytes: u64) -> Option<Body> {
        self.policy_of(id).remove(id);
        self.drop_entry(id, reason, bytes)
    }

    /// What entries of `rank` told that were forgotten while they were pinned, and are not pinned any more.
    pub(crate) fn take_released(&mut self, rank: Rank) -> Vec<Body> {
        self.released.extract_if(.., |b| b.rank == rank).collect()
    }

    /// Takes a resident entry out of its policy, to be removed.
    pub(crate) fn begin_removal(&mut self, id: Id) {
        self.policy_of(id).remove(id);
        self.stuck.remove(&id);
        self.leave_ready(id);
        self.index.set_state(id, State::Evicting);
    }

    /// What was `Evicting` is gone. `evicted`: why, and how many bytes, if it was a block.
    pub(crate) fn removed(&mut self, id: Id, evicted: Option<(EvictReason, u64)>) {
        if let Some((reason, bytes)) = evicted {
            self.stats.evicted(reason, bytes);
        }
        self.tell_removed(id);
        self.index.remove(id);
    }

    /// It could not be removed: it stays, is never a hit again if `bad`, and is tried again later.
    pub(crate) fn stays(&mut self, id: Id, bad: bool, now: Instant) {
        self.stats.unlink_failures += 1;
        self.put_back(id, bad);
        let until = now.after(STUCK_FOR);
        self.stuck.insert(id, until);
        self.stuck_until.push_back((until, id));
    }

    /// Puts an entry that was taken out of its policy back there.
    pub(crate) fn put_back(&mut self, id: Id, bad: bool) {
        if bad {
            self.tell_removed(id);
        }
        self.leave_ready(id);
        self.stats.blocks += u64::from(!bad);
        self.index
            .set_state(id, if bad { State::Bad } else { State::Ready });
        let (fp, weight) = (self.index.fingerprint(id), self.weight(id).max(1));
        self.policy_of(id).insert(id, fp, weight, RequestTag::NONE);
    }

    /// Makes a hit a miss until it is stored again; what there is of it stays counted.
    pub(crate) fn mark_bad(&mut self, id: Id) {
        if self.index.state(id) == State::Ready {
            self.policy_of(id).remove(id);
            self.put_back(id, true);
        }
    }

    /// Forgets orphans whose entries are used no more.
    pub(crate) fn sweep_orphans(&mut self) {
        let index = &self.index;
        self.orphans.retain(|&id| index.state(id) != State::Free);
    }

    fn view(&self, now: Instant) -> View<'_> {
        View {
            index: &self.index,
            stuck: &self.stuck,
            now,
        }
    }

    /// Lets what could not be removed be chosen again when it was left alone for long enough.
    fn retry_stuck(&mut self, now: Instant) {
        while let Some(&(until, id)) = self.stuck_until.front()
            && until <= now
        {
            self.stuck_until.pop_front();
            if self.stuck.get(&id) == Some(&until) {
                self.stuck.remove(&id);
                self.policy_of(id).unpinned(id);
            }
        }
    }

    /// Forgets an entry that is under no policy any more.
    fn drop_entry(&mut self, id: Id, reason: EvictReason, bytes: u64) -> Option<Body> {
        self.leave_ready(id);
        self.stats.evicted(reason, bytes);
        self.tell_removed(id);
        let body = (self.index.pins(id) == 0).then(|| self.index.body(id));
        self.index.remove(id);
        body
    }

    /// `id` cannot be loaded any more.
    fn leave_ready(&mut self, id: Id) {
        if self.index.state(id) == State::Ready {
            self.stats.blocks = self.stats.blocks.saturating_sub(1);
        }
    }
}
