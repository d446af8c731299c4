//! A block becomes a hit. A store begins one: its entry is reserved, others who come with the same key join and are
//! told; it is admitted when its bytes are where they belong, or aborted. A start discovers blocks, which get their
//! place among the others when all are known; another process's blocks are told by its journal.

use super::{
    Catalog, Waiter,
    body::{Body, Rank},
    index::State,
    space::SpaceId,
};
use crate::{
    block::{Fingerprint, Key},
    evict::{Id, RequestTag},
};

/// What a store finds of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Begin {
    /// Nothing: an entry is reserved.
    New(Id),
    /// An entry in this state.
    Known(Id, State),
    /// No entry can be had: there are too many, or memory is short.
    Full,
}

/// Where a block comes from, by which its policy gives it its first place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Origin {
    /// A request stored it.
    Stored(RequestTag),
    /// It was there: more recent than all before it.
    Found,
    /// It was there: less recent than all before it.
    Cold,
    /// It was there, and nobody here serves it: it goes before all others.
    Orphan,
}

impl Catalog {
    /// Looks a block up that is to be stored, and reserves its entry where there is none.
    pub(crate) fn begin(&mut self, fp: Fingerprint) -> Begin {
        if let Some(id) = self.index.find(fp) {
            let state = self.index.state(id);
            if !matches!(state, State::Free | State::Dead) {
                return Begin::Known(id, state);
            }
        }
        let id = self.index.insert(fp, State::Writing, Body::default());
        id.map_or(Begin::Full, Begin::New)
    }

    /// Waits for the outcome of a block that another job writes.
    pub(crate) fn join(&mut self, id: Id, waiter: Option<Waiter>) {
        self.waiters.entry(id).or_default().extend(waiter);
    }

    /// Makes a block that was begun a hit; returns who waits for it.
    pub(crate) fn admit(
        &mut self,
        id: Id,
        body: Body,
        (space, key): (SpaceId, &Key),
        origin: Origin,
    ) -> Vec<Waiter> {
        self.index.set_body(id, body);
        self.index.set_state(id, State::Ready);
        self.index.set_key(id, space, key);
        self.stats.blocks += 1;
        self.rank(id, origin);
        self.spaces.get_mut(space).events.stored(key);
        self.waiters.remove(&id).unwrap_or_default()
    }

    /// What was begun is not a block but what blocks are kept in: counted by the tier, no hit, under no policy.
    pub(crate) fn set_aside(&mut self, id: Id, body: Body) {
        self.index.set_body(id, body);
        self.index.set_state(id, State::Aside);
    }

    /// Takes back an entry that was begun; returns who waits for it.
    pub(crate) fn abort(&mut self, id: Id) -> Vec<Waiter> {
        self.index.remove(id);
        self.waiters.remove(&id).unwrap_or_default()
    }

    /// Adds what was found to be there; it has no place among the others before [`rank`](Self::rank). `key` of a block
    /// that a space serves. `None` where its fingerprint is known, or no entry can be had.
    pub(crate) fn discover(
        &mut self,
        fp: Fingerprint,
        state: State,
        body: Body,
        key: Option<(SpaceId, &Key)>,
    ) -> Option<Id> {
        if self.index.find(fp).is_some() {
            return None;
        }
        let id = self.index.insert(fp, state, body)?;
        if let Some((space, key)) = key {
            self.index.set_key(id, space, key);
            if state == State::Ready {
                self.spaces.get_mut(space).events.stored(key);
            }
        }
        self.stats.blocks += u64::from(state == State::Ready);
        Some(id)
    }

    /// Gives a block its place among the others, unless it went since.
    pub(crate) fn rank(&mut self, id: Id, origin: Origin) {
        if !matches!(self.index.state(id), State::Ready | State::Bad) {
            return;
        }
        let (fp, weight) = (self.index.fingerprint(id), self.weight(id));
        match origin {
            Origin::Stored(tag) => self.policy_of(id).insert(id, fp, weight, tag),
            Origin::Found => self.policy_of(id).insert(id, fp, weight, RequestTag::NONE),
            Origin::Cold => self.policy_of(id).insert_cold(id, fp, weight),
            Origin::Orphan => self.orphans.push_back(id),
        }
    }

    /// Another process has a block, `body` tells where. A block of our own stays what it is.
    pub(crate) fn tell_peer(&mut self, fp: Fingerprint, body: Body) {
        match self.index.find(fp) {
            Some(id) if self.index.state(id) == State::Peer => self.index.set_body(id, body),
            Some(_) => {}
            None => {
                self.index.insert(fp, State::Peer, body);
            }
        }
    }

    /// Forgets another process's block.
    pub(crate) fn forget_peer(&mut self, id: Id) {
        if self.index.state(id) == State::Peer {
            self.tell_removed(id);
            self.index.remove(id);
        }
    }

    /// The weight of an entry in its policy.
    pub(super) fn weight(&self, id: Id) -> u32 {
        match self.index.rank(id) {
            Rank::Slot(_) => 1,
            Rank::Whole => u32::try_from((self.weigh)(&self.index.body(id))).unwrap_or(u32::MAX),
        }
    }
}
