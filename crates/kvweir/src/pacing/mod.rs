//! Pacing of promotions below a manager that is not ours.
//!
//! Such a manager takes a slot of the primary tier for every key that a secondary tier says it holds, for every
//! waiting request, in every step, and calls a key a miss once the primary is full. A request longer than the primary
//! then evicts its own promoted blocks and begins again, for ever; requests that wait evict each other's. A tier can
//! prevent both, since it decides what it answers:
//!
//! - what a request may promote is **planned** when it first hits: the longest prefix, all KV-cache groups together,
//!   that surely fits; the rest is a miss and is computed;
//! - a plan that does not fit beside the blocks promised to others **waits**, in the order in which requests are asked
//!   for: one "retry" per group and a miss behind it, so that the question costs two lookups per step;
//! - a plan gives its slots back when the request is scheduled, finished, or gone.
//!
//! No request waits for ever: what it waits for ends, or [`PacingSettings::wait`] does, and then it takes what is
//! left. A block that was evicted before it was read is promised again, at most one time per eight blocks of the plan
//! (I10).
//!
//! Pure: no I/O, no lock; time comes from a [`Clock`].
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | [`Pacer`]: what is told to it and asked of it |
//! | `plan.rs` | what a request is promised, and the room there is for it |
//! | `question.rs` | [`PacedKey`], [`Answer`]: what is asked and answered |
//! | `outlook.rs` | [`Outlook`]: what a request could promote |
//! | `share.rs` | where one request stands |
//! | `recent.rs` | blocks that entered the primary recently |
//! | `settings.rs`, `stats.rs` | [`PacingSettings`], [`PacingStats`] |

mod outlook;
mod plan;
mod question;
mod recent;
mod settings;
mod share;
mod stats;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc, time::Duration};

use foldhash::fast::FixedState;

pub use self::{
    outlook::{OrderedKey, Outlook},
    question::{Answer, PacedKey},
    settings::PacingSettings,
    stats::PacingStats,
};
use self::{
    recent::Recent,
    share::{Share, Standing, Taken},
};
use crate::{
    clock::{Clock, Instant},
    request::RequestId,
};

/// Decides which blocks may be promoted for which waiting request.
#[derive(Debug)]
pub struct Pacer {
    slots: u64,
    settings: PacingSettings,
    /// Per group: chunks that a request needs at most, where attention has a window.
    windows: Vec<Option<u32>>,
    clock: Arc<dyn Clock>,
    shares: HashMap<RequestId, Share, FixedState>,
    /// Requests that were promised blocks in this step.
    promised_now: Vec<RequestId>,
    reserved: u64,
    recent: Recent,
    /// Blocks of stores under way.
    storing: u64,
    stored_this_step: u64,
    /// Most blocks stored in a recent step.
    stores_per_step: u64,
    step: u64,
    /// A request was held back in this step: those behind it wait too.
    queue_stands: bool,
    stats: PacingStats,
    told_cut: bool,
    told_wait: bool,
}

impl Pacer {
    /// For a primary tier of `slots` slots. `windows`: for each KV-cache group the chunks that a request needs at most,
    /// `None` (or no entry) where attention reaches back to the first.
    pub fn new(
        slots: u64,
        windows: Vec<Option<u32>>,
        settings: PacingSettings,
        clock: Arc<dyn Clock>,
    ) -> Self {
        Self {
            slots,
            settings,
            windows,
            clock,
            shares: HashMap::default(),
            promised_now: Vec::new(),
            reserved: 0,
            recent: Recent::new(usize::try_from(slots).unwrap_or(usize::MAX)),
            storing: 0,
            stored_this_step: 0,
            stores_per_step: 0,
            step: 1,
            queue_stands: false,
            stats: PacingStats::default(),
            told_cut: false,
            told_wait: false,
        }
    }

    /// What is known about `key` before the tier is asked: an answer where the request is held back or its plan leaves
    /// the key out.
    pub fn before(&mut self, req: RequestId, key: PacedKey) -> Option<Answer> {
        let share = self.shares.get_mut(&req)?;
        let step = self.step;
        match &mut share.state {
            Standing::Admitted(taken) => (!taken.allows(key.id)).then_some(Answer::Miss),
            Standing::Waiting(w) if share.step == step => Some(w.again(key)),
            // its blocks have moved into or out of the primary meanwhile: the first in the queue is planned anew
            Standing::Waiting(w) if !self.queue_stands && w.outlook.as_ref().is_some_and(|o| o.1 != key) => {
                None
            }
            Standing::Waiting(w) => {
                let (outlook, from) = w.outlook.take()?;
                let now = self.clock.now();
                let waited = share.ask(step, now);
                match self.try_admit(req, &outlook, waited) {
                    Some(taken) => {
                        self.admit(req, taken, now);
                        None
                    }
                    None => Some(self.hold_back(req, Some((outlook, from)), key)),
                }
            }
        }
    }

    /// The tier holds `key`: may it be promoted? `outlook` tells what else of the request the tier holds; `None` while
    /// the order of the request's keys is not known.
    pub fn hit(
        &mut self,
        req: RequestId,
        key: PacedKey,
        outlook: impl FnOnce() -> Option<Outlook>,
    ) -> Answer {
        if let Some(Share {
            state: Standing::Admitted(_),
            ..
        }) = self.shares.get(&req)
        {
            return self.take(req, key);
        }
        let now = self.clock.now();
        let step = self.step;
        let (waited, known) = match self.shares.get_mut(&req) {
            Some(share) => (Some(share.ask(step, now)), share.outlook()),
            None => (None, None),
        };
        let outlook = outlook().or(known);
        let (taken, first_time) = match (&outlook, waited) {
            (Some(o), _) => (
                self.try_admit(req, o, waited.unwrap_or_default()),
                waited.is_none(),
            ),
            // the order may be told behind the first question
            (None, None) => (None, true),
            (None, Some(_)) => (Some(Taken::open(self.spare().max(1))), false),
        };
        match taken {
            Some(taken) => {
                self.admit(req, taken, now);
                self.take(req, key)
            }
            None => {
                if first_time {
                    self.shares.insert(req, Share::waiting(step, now));
                }
                self.hold_back(req, outlook.map(|o| (o, key)), key)
            }
        }
    }

    /// A load job with the blocks `ids` goes out for `req`: what else was promised in this step got no slot.
    pub fn submitted(&mut self, req: RequestId, ids: impl ExactSizeIterator<Item = u64> + Clone) {
        ids.clone().for_each(|id| self.recent.entered(id));
        let Some(Share {
            state: Standing::Admitted(taken),
            ..
        }) = self.shares.get_mut(&req)
        else {
            return;
        };
        self.stats.refused_blocks += taken.submitted(ids);
    }

    /// The blocks `ids` are being stored for `req`, which therefore runs: what was promoted for it was read.
    pub fn storing(&mut self, req: RequestId, ids: impl ExactSizeIterator<Item = u64>) {
        let blocks = ids.len() as u64;
        ids.for_each(|id| self.recent.entered(id));
        self.storing += blocks;
        self.stored_this_step += blocks;
        self.release(req);
    }

    /// A store of `blocks` blocks ended.
    pub fn stored(&mut self, blocks: u64) {
        self.storing = self.storing.saturating_sub(blocks);
    }

    /// The request was scheduled, or is over.
    pub fn release(&mut self, req: RequestId) {
        if let Some(Share {
            state: Standing::Admitted(taken),
            ..
        }) = self.shares.remove(&req)
        {
            self.reserved = self.reserved.saturating_sub(taken.limit);
        }
    }

    /// The step is over; `scheduled` run now for the first time.
    pub fn step_ended(&mut self, scheduled: impl IntoIterator<Item = RequestId>) {
        for req in std::mem::take(&mut self.promised_now) {
            // what is still open got no load job
            self.submitted(req, std::iter::empty());
        }
        for req in scheduled {
            self.release(req);
        }
        self.step += 1;
        self.queue_stands = false;
        self.stores_per_step = self.stored_this_step.max(self.stores_per_step / 2);
        self.stored_this_step = 0;
    }

    /// The primary was emptied: nothing is promised any more.
    pub fn reset(&mut self) {
        self.shares.clear();
        self.promised_now.clear();
        self.recent.clear();
        self.reserved = 0;
    }

    /// What a request with the keys `order` could promote, of which it was asked for `first` first.
    pub fn outlook(&self, order: &[OrderedKey], first: PacedKey) -> Outlook {
        Outlook::new(order, first, &self.windows, |id| self.recent.has(id))
    }

    /// Whether `req` has a plan.
    pub fn is_admitted(&self, req: RequestId) -> bool {
        matches!(
            self.shares.get(&req),
            Some(Share {
                state: Standing::Admitted(_),
                ..
            })
        )
    }

    /// Whether `req` waits and the order of its keys is not known yet.
    pub fn wants_order(&self, req: RequestId) -> bool {
        matches!(
            self.shares.get(&req),
            Some(Share { state: Standing::Waiting(w), .. }) if w.outlook.is_none()
        )
    }

    /// Whether `keys` more blocks fit in any case, so that nobody needs to check which of them the tier holds.
    pub fn has_plenty(&self, keys: usize) -> bool {
        !self.queue_stands && self.reserved + keys as u64 <= self.room()
    }

    /// Numbers since the start.
    pub fn stats(&self) -> PacingStats {
        PacingStats {
            promised_slots: self.reserved,
            ..self.stats
        }
    }

    fn admit(&mut self, req: RequestId, taken: Taken, now: Instant) {
        self.reserved += taken.limit;
        let step = self.step;
        self.shares.insert(
            req,
            Share {
                step,
                asked_at: now,
                waited: Duration::ZERO,
                state: Standing::Admitted(taken),
            },
        );
    }

    fn hold_back(&mut self, req: RequestId, outlook: Option<(Outlook, PacedKey)>, key: PacedKey) -> Answer {
        // a request that only waits for the order of its keys holds up no other
        self.queue_stands |= outlook.is_some();
        if let Some(Share {
            state: Standing::Waiting(w),
            ..
        }) = self.shares.get_mut(&req)
        {
            if outlook.is_some() && !w.counted {
                w.counted = true;
                self.stats.held_back_requests += 1;
                if !self.told_wait {
                    self.told_wait = true;
                    tracing::info!(
                        slots = self.slots,
                        promised = self.reserved,
                        "waiting requests hit more blocks than the primary tier has room for: they are promoted one \
                         after the other; told once, see promotions_held_back_requests"
                    );
                }
            }
            w.outlook = outlook;
            w.first.clear();
            return w.again(key);
        }
        Answer::Miss
    }

    /// The next block of an admitted request.
    fn take(&mut self, req: RequestId, key: PacedKey) -> Answer {
        let spare = self.spare();
        let Some(Share {
            state: Standing::Admitted(taken),
            ..
        }) = self.shares.get_mut(&req)
        else {
            return Answer::Miss;
        };
        if !taken.allows(key.id) {
            return Answer::Miss;
        }
        let before = (taken.limit, taken.open_blocks());
        let answer = taken.take(key.id, spare);
        self.reserved += taken.limit - before.0;
        match answer {
            share::Took::New => {}
            share::Took::Again => self.stats.repeated_blocks += 1,
            share::Took::Nothing => {
                self.stats.cut_blocks += 1;
                return Answer::Miss;
            }
        }
        if before.1 == 0 {
            self.promised_now.push(req);
        }
        Answer::Hit
    }
}
