//! What a tier holds: the one place where a block becomes a hit, or stops being one. A tier's lock guards it; every call
//! is a few memory operations, nothing here does I/O (I8). What an entry means beyond fingerprint, state and pins is the
//! tier's own ([`Body`]).
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | [`Catalog`], and what can be asked of it |
//! | `admit.rs` | a block becomes a hit: begun, joined, admitted or aborted; found; told by another process |
//! | `evict.rs` | it stops being one: chosen, removed, put back, forgotten |
//! | `lease.rs` | pins of requests and jobs (I3) |
//! | `recency.rs` | uses |
//! | `body.rs` | the opaque part of an entry |
//! | `index.rs`, `table.rs`, `pins.rs` | entries by fingerprint; who pins what |
//!
//! Eviction is in three steps: chosen here (the entry becomes `Evicting`: a miss, its bytes still counted), removed by a
//! worker outside the lock, settled here; so the account never runs ahead of the disk (I1). Events are told as the state
//! changes, in order (I7).

mod admit;
pub(crate) mod body;
mod evict;
pub(crate) mod index;
mod lease;
pub(crate) mod pins;
mod recency;
mod table;

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;

pub(crate) use self::admit::{Begin, Origin};
use self::{
    body::{Body, Rank},
    index::{Index, State},
    pins::Pins,
};
use crate::{
    block::{Fingerprint, Key},
    clock::Instant,
    events::{Event, EventLog},
    evict::{Id, Policy, Residents},
    metrics::TierStats,
    tier::BlockOutcome,
};

/// What is called with the outcome of a block that another job stores, by whoever waits for it.
pub(crate) type Waiter = Box<dyn FnOnce(BlockOutcome) + Send>;

/// The blocks of a tier.
pub(crate) struct Catalog {
    /// Numbers of the tier, counted as its state changes and by its workers.
    pub(crate) stats: TierStats,
    index: Index,
    /// Who goes next, by [`Rank`].
    policies: [Box<dyn Policy>; 2],
    /// The weight of an entry in its policy.
    weigh: fn(&Body) -> u64,
    events: EventLog,
    waiters: HashMap<Id, Vec<Waiter>, FixedState>,
    /// Blocks that nobody here serves, oldest first: evicted before all others, under no policy.
    orphans: VecDeque<Id>,
    /// Hashes of blocks used since they were taken, in order; `None`: nobody wants them.
    uses: Option<Vec<u64>>,
    pins: Pins,
    /// What could not be removed, until when it is left alone.
    stuck: HashMap<Id, Instant, FixedState>,
    /// The same in the order in which their times end.
    stuck_until: VecDeque<(Instant, Id)>,
    /// What entries told that were forgotten while they were pinned, and are not pinned any more.
    released: Vec<Body>,
    /// Nothing is a hit any more, and nothing becomes one.
    closed: bool,
    scratch: Vec<Id>,
}

/// A catalog as its policies see it.
struct View<'a> {
    index: &'a Index,
    stuck: &'a HashMap<Id, Instant, FixedState>,
    now: Instant,
}

impl Residents for View<'_> {
    fn evictable(&self, id: Id) -> bool {
        matches!(self.index.state(id), State::Ready | State::Bad)
            && self.index.pins(id) == 0
            && self.stuck.get(&id).is_none_or(|&until| self.now >= until)
    }

    fn fingerprint(&self, id: Id) -> Fingerprint {
        self.index.fingerprint(id)
    }
}

impl Catalog {
    /// An empty one; `policies` by [`Rank`], and what an entry weighs in its policy.
    pub(crate) fn new(
        index: Index,
        policies: [Box<dyn Policy>; 2],
        weigh: fn(&Body) -> u64,
        events: EventLog,
    ) -> Self {
        Self {
            stats: TierStats::default(),
            index,
            policies,
            weigh,
            events,
            waiters: HashMap::default(),
            orphans: VecDeque::new(),
            uses: None,
            pins: Pins::default(),
            stuck: HashMap::default(),
            stuck_until: VecDeque::new(),
            released: Vec::new(),
            closed: false,
            scratch: Vec::new(),
        }
    }

    /// Whether it is closed.
    pub(crate) fn is_closed(&self) -> bool {
        self.closed
    }

    /// Closes it: lookups miss from now on, and jobs are refused.
    pub(crate) fn close(&mut self) {
        self.closed = true;
    }

    /// The entry of `fp`, whatever its state.
    #[inline]
    pub(crate) fn find(&self, fp: Fingerprint) -> Option<Id> {
        self.index.find(fp)
    }

    /// The entry of `fp`, if it can be loaded now.
    #[inline]
    pub(crate) fn ready(&self, fp: Fingerprint) -> Option<Id> {
        self.index
            .find(fp)
            .filter(|&id| self.index.state(id).is_loadable())
    }

    /// The entries of `fps` that can be loaded now, into `out`.
    pub(crate) fn find_ready(&self, fps: &[Fingerprint], out: &mut [Option<Id>]) {
        self.index.find_ready(fps, out);
    }

    /// Brings what a lookup of `fps` touches first into the cache: asked before adding many.
    pub(crate) fn warm_places(&self, fps: impl Iterator<Item = Fingerprint>) {
        self.index.warm_places(fps);
    }

    /// Makes room for `n` entries in all.
    pub(crate) fn reserve(&mut self, n: usize) {
        self.index.reserve(n);
    }

    /// How many entries there ever were at one time: their ids are below that.
    pub(crate) fn ids(&self) -> Id {
        self.index.ids()
    }

    pub(crate) fn state(&self, id: Id) -> State {
        self.index.state(id)
    }

    #[inline]
    pub(crate) fn body(&self, id: Id) -> Body {
        self.index.body(id)
    }

    /// Changes what the tier keeps of an entry. Its rank stays.
    pub(crate) fn set_body(&mut self, id: Id, body: Body) {
        self.index.set_body(id, body);
    }

    pub(crate) fn fingerprint(&self, id: Id) -> Fingerprint {
        self.index.fingerprint(id)
    }

    /// The key of an entry, where keys are kept.
    pub(crate) fn key(&self, id: Id) -> Option<&Key> {
        self.index.key(id)
    }

    /// Whether there are no blocks of `rank` that may go.
    pub(crate) fn is_empty(&self, rank: Rank) -> bool {
        self.policy(rank).is_empty() && (rank == Rank::Slot || self.orphans.is_empty())
    }

    /// The [`Rank::Whole`] entry that goes next, without looking at pins.
    pub(crate) fn oldest(&self) -> Option<Id> {
        self.orphans
            .front()
            .copied()
            .or_else(|| self.policy(Rank::Whole).oldest())
    }

    /// Takes the events since the last call.
    pub(crate) fn take_events(&mut self, events: &mut Vec<Event>) {
        self.events.take(events);
    }

    /// Heap bytes of index, policies, and those of the index that hold full keys.
    pub(crate) fn memory_bytes(&self) -> (usize, usize, usize) {
        let (index, keys) = self.index.memory_bytes();
        (index, self.policies.iter().map(|p| p.memory_bytes()).sum(), keys)
    }

    fn policy(&self, rank: Rank) -> &dyn Policy {
        let [whole, slot] = &self.policies;
        match rank {
            Rank::Whole => &**whole,
            Rank::Slot => &**slot,
        }
    }

    fn policy_mut(&mut self, rank: Rank) -> &mut dyn Policy {
        let [whole, slot] = &mut self.policies;
        match rank {
            Rank::Whole => &mut **whole,
            Rank::Slot => &mut **slot,
        }
    }

    /// The policy that ranks `id`.
    fn policy_of(&mut self, id: Id) -> &mut dyn Policy {
        self.policy_mut(self.index.rank(id))
    }
}

/// What is behind a tier's lock: a catalog, and whatever else the tier needs there.
pub(crate) trait Holds: Send {
    /// The catalog.
    fn catalog(&mut self) -> &mut Catalog;
}
