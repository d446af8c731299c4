//! What a request is promised: all it hits, a part, or nothing yet; and the room that promises are made of.

use std::time::Duration;

use super::{
    Outlook, Pacer,
    outlook::Cut,
    share::{Standing, Taken},
};
use crate::request::RequestId;

/// How long a request that has the primary to itself waits for stores under way before its plan is cut.
const BRIEF: Duration = Duration::from_millis(100);
/// How many steps' worth of stores room is left for: those that the accelerator is writing, and those that a
/// least-recently-used primary would make room for among promoted blocks before these are read.
const STEPS_OF_STORES: u64 = 3;
/// How many steps' worth of stores the accelerator may be writing, of which no tier is told.
const STEPS_OF_COPIES: u64 = 2;
/// How many eighths of the primary promoted blocks may take, however much is stored.
const LEAST_EIGHTHS: u64 = 5;

impl Pacer {
    /// The share that the settings give.
    fn share(&self) -> u64 {
        ((self.slots as f64 * self.settings.share) as u64).max(1)
    }

    /// Slots that promoted blocks may take together: whatever is stored, five eighths of those that no store holds.
    pub(super) fn room(&self) -> u64 {
        let beside_stores = self.beside_stores().max(self.slots / 8 * LEAST_EIGHTHS);
        let in_stores = self.storing + STEPS_OF_COPIES * self.stores_per_step;
        self.share()
            .min(beside_stores)
            .min(self.slots.saturating_sub(in_stores))
    }

    /// Slots that neither stores under way nor those of the next steps need.
    fn beside_stores(&self) -> u64 {
        self.slots
            .saturating_sub(self.storing)
            .saturating_sub(STEPS_OF_STORES * self.stores_per_step)
    }

    /// Slots for a request of which `before` blocks are in the primary already.
    fn beside(&self, before: u64) -> u64 {
        self.slots.saturating_sub(before).min(self.room())
    }

    /// What is left of the room.
    pub(super) fn spare(&self) -> u64 {
        self.room().saturating_sub(self.reserved)
    }

    /// A plan for a request that holds `outlook`, or nothing: it has to wait.
    pub(super) fn try_admit(&mut self, req: RequestId, outlook: &Outlook, waited: Duration) -> Option<Taken> {
        let need = outlook.need();
        let before = outlook.before().min(self.slots);
        let fits = need + before <= self.slots;
        let patient = waited < self.settings.wait;
        if need <= self.spare() && !(self.queue_stands && patient) {
            return Some(match fits {
                true => whole(outlook),
                false => self.cut(req, outlook, self.beside(before)),
            });
        }
        if self.reserved > 0 {
            self.forget_idle();
        }
        let alone = self.reserved == 0 && !(self.queue_stands && patient);
        if alone {
            if fits && need <= self.beside_stores() {
                return Some(whole(outlook));
            }
            // stores under way end, and recent ones may have been the last
            if (fits || self.room() < self.share()) && waited < BRIEF.min(self.settings.wait) {
                return None;
            }
            return Some(self.cut(req, outlook, self.beside(before)));
        }
        (!patient).then(|| self.cut(req, outlook, self.spare()))
    }

    /// A plan of at most `most` slots.
    fn cut(&mut self, req: RequestId, outlook: &Outlook, most: u64) -> Taken {
        let need = outlook.need();
        if need <= most {
            return whole(outlook);
        }
        let cut: Cut = outlook.cut(most);
        self.stats.cut_requests += 1;
        self.stats.cut_blocks += need.saturating_sub(cut.need());
        if !self.told_cut {
            self.told_cut = true;
            tracing::warn!(
                request = req.0,
                "a request hits {need} blocks and the primary tier has {} slots, {} of them promised to others: {} \
                 blocks are promoted, the rest is computed; a larger primary (cpu_bytes_to_use) or fewer requests at a \
                 time keep more; told once, see promotions_cut_blocks",
                self.slots,
                self.reserved,
                cut.need(),
            );
        }
        Taken::part(cut)
    }

    /// Gives back the slots of requests that were promised blocks long ago and neither asked nor ran since.
    fn forget_idle(&mut self) {
        let now = self.clock.now();
        let wait = self.settings.wait.max(BRIEF);
        let reserved = &mut self.reserved;
        self.shares.retain(|_, s| match &s.state {
            Standing::Admitted(taken) if now.since(s.asked_at) >= wait => {
                *reserved = reserved.saturating_sub(taken.limit);
                false
            }
            _ => true,
        });
    }
}

/// A plan of all that a request hits.
fn whole(outlook: &Outlook) -> Taken {
    match outlook.whole() {
        Some(cut) => Taken::part(cut),
        None => Taken::open(outlook.need()),
    }
}
