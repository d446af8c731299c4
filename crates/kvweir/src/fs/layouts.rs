//! How blocks lie below a root: what each layout does for the tier, and which of them a block goes to. A further layout
//! is a folder of its own, and one more line in `build.rs`, which chooses.

use crate::{
    block::Key,
    catalog::body::{Body, Rank},
    evict::Id,
    fs::written::{Flaw, Fresh, Read, Wanted, Written},
    io::pool::Worker,
    jobs::{LoadRun, Loads, StoreRun, Stores},
    metrics::EvictReason,
    tier::RequestId,
};

/// One way in which blocks lie below a root of `S`.
pub(crate) trait Layout<S: Stores + Loads>: Send + Sync {
    /// Whether blocks of this key can lie so.
    fn takes(&self, key: &Key) -> bool;

    /// Entries of this rank are its blocks.
    fn rank(&self) -> Rank;

    /// Units that a worker takes together; 0: one at a time.
    fn batch(&self) -> usize;

    /// Writes blocks whose entries are reserved. Each is answered; what was reserved for one that failed is given back.
    fn write<'s>(
        &self,
        tier: &'s S,
        run: &StoreRun<S>,
        fresh: Vec<Fresh>,
        worker: &mut Worker,
    ) -> Vec<Written<'s>>;

    /// Reads blocks that are pinned into their memory and compares them (I2). Each is answered.
    fn read(&self, tier: &S, run: &LoadRun<S>, wanted: Vec<Wanted>, worker: &mut Worker) -> Vec<Read>;

    /// Whether a block that is known may have gone or changed behind the tier's back, so that
    /// [`is_there`](Self::is_there) has to be asked before it is called stored.
    fn must_look(&self) -> bool;

    /// Whether a block is what its entry tells, as far as a look shows.
    fn is_there(&self, tier: &S, key: &Key) -> bool;

    /// Takes the entry of a block away that is no hit any more, or went, so that it can be stored anew.
    fn clear(&self, tier: &S, id: Id, reason: EvictReason);

    /// Makes a block that did not load a miss.
    fn spoil(&self, tier: &S, id: Id, flaw: &Flaw);

    /// Bytes of what no single block holds.
    fn held(&self, tier: &S) -> u64;

    /// Bytes of that which come or go at once.
    fn step(&self, tier: &S) -> u64;

    /// Gives bytes back that no single block holds; returns whether any are free now.
    fn give_back(&self, tier: &S, reason: EvictReason) -> bool;

    /// Makes hits of what the root's files told of: after the root was loaded, when what a dead member left was taken
    /// over, and, where some could not be read, once more.
    fn recover(&self, tier: &S);

    /// Looks for what went behind the tier's back; called ten times a second.
    fn look(&self, tier: &S);

    /// A request is over.
    fn end_request(&self, req: RequestId);
}

/// The layouts of a tier, the one that new blocks go to first.
pub(crate) struct Layouts<S>(Vec<Box<dyn Layout<S>>>);

impl<S: Stores + Loads> Layouts<S> {
    /// These, in the order in which new blocks are offered to them; the last takes every key.
    pub(crate) fn new(all: Vec<Box<dyn Layout<S>>>) -> Self {
        Self(all)
    }

    /// Where a new block of `key` goes.
    pub(crate) fn of_key(&self, key: &Key) -> usize {
        let takes = self.0.iter().position(|l| l.takes(key));
        takes.unwrap_or(self.0.len().saturating_sub(1))
    }

    /// Where a block lies.
    pub(crate) fn of_body(&self, body: &Body) -> usize {
        let here = self.0.iter().position(|l| l.rank() == body.rank);
        here.unwrap_or(self.0.len().saturating_sub(1))
    }

    /// A layout by number.
    pub(crate) fn get(&self, n: usize) -> Option<&dyn Layout<S>> {
        self.0.get(n).map(|l| &**l)
    }

    /// All of them.
    pub(crate) fn iter(&self) -> impl Iterator<Item = &dyn Layout<S>> {
        self.0.iter().map(|l| &**l)
    }

    /// The rank of blocks where new ones go first.
    pub(crate) fn first_rank(&self) -> Rank {
        self.0.first().map_or(Rank::Whole, |l| l.rank())
    }

    /// How many there are.
    pub(crate) fn len(&self) -> usize {
        self.0.len()
    }

    /// Gives bytes back that no single block holds; returns whether any are free now.
    pub(crate) fn give_back(&self, tier: &S, reason: EvictReason) -> bool {
        self.iter().any(|l| l.give_back(tier, reason))
    }
}
