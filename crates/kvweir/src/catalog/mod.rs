//! What the tiers of a root hold: the one place where a block becomes a hit, or stops being one. Their one lock guards
//! it; every call is a few memory operations, nothing here does I/O (I8). What an entry means beyond fingerprint, state
//! and pins is the tier's own ([`Body`]).
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | [`Catalog`], and what can be asked of it |
//! | `admit.rs` | a block becomes a hit: begun, joined, admitted or aborted; found; told by another process |
//! | `evict.rs` | it stops being one: chosen, removed, put back, forgotten |
//! | `space.rs` | what each space that shares the catalog has of its own |
//! | `lease.rs` | pins of requests and jobs (I3) |
//! | `recency.rs` | uses |
//! | `body.rs` | the opaque part of an entry |
//! | `index.rs`, `table.rs`, `pins.rs` | entries by fingerprint; who pins what |
//!
//! Eviction is in three steps: chosen here (the entry becomes `Evicting`: a miss, its bytes still counted), removed by
//! a worker outside the lock, settled here; so the account never runs ahead of the disk (I1). Events are told as the
//! state changes, in order (I7).

mod admit;
pub(crate) mod body;
mod evict;
pub(crate) mod index;
mod lease;
pub(crate) mod pins;
mod recency;
pub(crate) mod space;
mod table;

use std::collections::{HashMap, VecDeque};

use foldhash::fast::FixedState;

pub(crate) use self::admit::{Begin, Origin};
use self::{
    body::{Body, Rank},
    index::{Index, State},
    space::{SpaceId, SpaceState, Spaces},
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

/// The blocks of one or more spaces.
pub(crate) struct Catalog {
    /// Numbers of all spaces together: what is there, and what went.
    pub(crate) stats: TierStats,
    index: Index,
    /// Who goes next of [`Rank::Whole`].
    whole: Box<dyn Policy>,
    /// Who goes next of each [`Rank::Slot`].
    slots: Vec<Box<dyn Policy>>,
    /// The weight of an entry in its policy.
    weigh: fn(&Body) -> u64,
    spaces: Spaces,
    waiters: HashMap<Id, Vec<Waiter>, FixedState>,
    /// Blocks that nobody here serves, oldest first: evicted before all others, under no policy.
    orphans: VecDeque<Id>,
    /// Hashes of blocks used since they were taken, in order; `None`: nobody wants them.
    uses: Option<Vec<u64>>,
    /// What could not be removed, until when it is left alone.
    stuck: HashMap<Id, Instant, FixedState>,
    /// The same in the order in which their times end.
    stuck_until: VecDeque<(Instant, Id)>,
    /// What entries told that were forgotten while they were pinned, and are not pinned any more.
    released: Vec<Body>,
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
    /// An empty one, with a policy for each [`Rank`] and what an entry weighs in it; `first` and `others` are the
    /// events of its spaces.
    pub(crate) fn new(
        index: Index,
        (whole, slots): (Box<dyn Policy>, Vec<Box<dyn Policy>>),
        weigh: fn(&Body) -> u64,
        (first, others): (EventLog, Vec<EventLog>),
    ) -> Self {
        Self {
            stats: TierStats::default(),
            index,
            whole,
            slots,
            weigh,
            spaces: Spaces::new(first, others),
            waiters: HashMap::default(),
            orphans: VecDeque::new(),
            uses: None,
            stuck: HashMap::default(),
            stuck_until: VecDeque::new(),
            released: Vec::new(),
            scratch: Vec::new(),
        }
    }

    /// What a space has of its own.
    #[inline]
    pub(crate) fn space(&mut self, space: SpaceId) -> &mut SpaceState {
        self.spaces.get_mut(space)
    }

    /// Numbers of a space's traffic.
    pub(crate) fn traffic(&self, space: SpaceId) -> &TierStats {
        &self.spaces.get(space).stats
    }

    /// Whether a space is closed.
    #[inline]
    pub(crate) fn is_closed(&self, space: SpaceId) -> bool {
        self.spaces.get(space).closed
    }

    /// Closes a space: lookups miss from now on, and jobs are refused.
    pub(crate) fn close(&mut self, space: SpaceId) {
        self.spaces.get_mut(space).closed = true;
    }

    /// Closes all spaces.
    pub(crate) fn close_all(&mut self) {
        self.spaces.iter_mut().for_each(|s| s.closed = true);
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
        Some(&self.index.key(id)?.1)
    }

    /// Tells the space of a block, where keys are kept, that it can be loaded no more.
    fn tell_removed(&mut self, id: Id) {
        if let Some((space, key)) = self.index.key(id) {
            self.spaces.get_mut(*space).events.removed(key);
        }
    }

    /// Whether there are no blocks of `rank` that may go.
    pub(crate) fn is_empty(&self, rank: Rank) -> bool {
        self.policy(rank).is_empty() && (rank != Rank::Whole || self.orphans.is_empty())
    }

    /// Whether there are blocks that nobody here serves.
    pub(crate) fn has_orphans(&self) -> bool {
        !self.orphans.is_empty()
    }

    /// The [`Rank::Whole`] entry that goes next, without looking at pins.
    pub(crate) fn oldest(&self) -> Option<Id> {
        self.orphans.front().copied().or_else(|| self.whole.oldest())
    }

    /// Takes the events of a space since the last call.
    pub(crate) fn take_events(&mut self, space: SpaceId, events: &mut Vec<Event>) {
        self.spaces.get_mut(space).events.take(events);
    }

    /// Heap bytes of index, policies, and those of the index that hold full keys.
    pub(crate) fn memory_bytes(&self) -> (usize, usize, usize) {
        let (index, keys) = self.index.memory_bytes();
        let slots: usize = self.slots.iter().map(|p| p.memory_bytes()).sum();
        (index, self.whole.memory_bytes() + slots, keys)
    }

    fn policy(&self, rank: Rank) -> &dyn Policy {
        match rank {
            Rank::Whole => &*self.whole,
            Rank::Slot(n) => self.slots.get(usize::from(n)).map_or(&*self.whole, |p| &**p),
        }
    }

    fn policy_mut(&mut self, rank: Rank) -> &mut dyn Policy {
        match rank {
            Rank::Whole => &mut *self.whole,
            Rank::Slot(n) => &mut **self.slots.get_mut(usize::from(n)).unwrap_or(&mut self.whole),
        }
    }

    /// The policy that ranks `id`.
    fn policy_of(&mut self, id: Id) -> &mut dyn Policy {
        self.policy_mut(self.index.rank(id))
    }
}

/// What is behind the lock of a root's tiers: a catalog, and whatever else they need there.
pub(crate) trait Holds: Send {
    /// The catalog.
    fn catalog(&mut self) -> &mut Catalog;
}
