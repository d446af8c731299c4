//! Which block goes next: replacement policies over ids that the owner chooses (slots, index entries). No I/O, no
//! locks, no clock: a policy sits behind its owner's lock and is a pure function of the calls made to it.
//!
//! | file | what it holds |
//! |---|---|
//! | `list.rs`, `mark.rs` | index-linked lists over chunked nodes of 12 or 16 bytes; what a node records |
//! | `queue.rs`, `bits.rs` | a list whose pinned entries are set aside in order, and the walk that finds victims |
//! | `ghost.rs` | names of recently evicted blocks |
//! | `lru.rs`, `arc.rs`, `s3fifo.rs` | the policies |
//! | `kind.rs`, `build.rs` | their names; how to build one |
//! | `resident.rs` | a cache of bare block numbers around a policy, for replaying traces |
//!
//! Invariant I3 is kept here as follows: an entry for which [`Residents::evictable`] says no keeps its place and is
//! never chosen. It is not asked about again before [`Policy::unpinned`], so that pinned entries, however many, cost
//! a pass once. Memory is bounded by the owner's ids and, for ghosts, by the capacity in weight.

use std::fmt;

use crate::{block::Fingerprint, request::RequestId};

mod arc;
mod bits;
mod build;
mod ghost;
mod kind;
mod list;
mod lru;
mod mark;
mod queue;
mod resident;
mod s3fifo;
#[cfg(test)]
mod tests;

pub use kind::PolicyKind;
pub use resident::{Order, ResidentSet};

/// An entry: a dense index chosen by the owner, free for another entry once removed or evicted. The two largest
/// values are reserved; entries under them are ignored.
pub type Id = u32;

/// Which request touches a block. One request touching a block repeatedly counts once.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub struct RequestTag(pub u32);

impl RequestTag {
    /// No request in particular: every access counts.
    pub const NONE: Self = Self(0);
}

impl RequestId {
    /// The short tag by which policies tell requests apart; never zero.
    pub(crate) fn tag(self) -> RequestTag {
        RequestTag(((self.0 ^ (self.0 >> 32)) as u32).max(1))
    }
}

/// What the owner says about its entries during a pass.
pub trait Residents {
    /// Whether the entry may go now. A pinned entry may not: it keeps its place (I3), and is not asked about again
    /// before the owner calls [`Policy::unpinned`] or [`Policy::access`] for it.
    fn evictable(&self, id: Id) -> bool;

    /// The name under which an evicted entry is remembered.
    fn fingerprint(&self, id: Id) -> Fingerprint;
}

/// Everything may go, and names are not needed: for looking at an order only.
struct All;

impl Residents for All {
    fn evictable(&self, _id: Id) -> bool {
        true
    }

    fn fingerprint(&self, _id: Id) -> Fingerprint {
        Fingerprint(0)
    }
}

/// A replacement policy.
///
/// The owner reports what is inserted, accessed and removed, and asks for victims when it needs room. Ids not known to
/// the policy are ignored; an id inserted again is a new entry. A weight of 0 is taken as 1.
///
/// ```
/// use kvweir::Fingerprint;
/// use kvweir::evict::{Id, PolicyKind, RequestTag, Residents};
///
/// struct Pinned(Id);
/// impl Residents for Pinned {
///     fn evictable(&self, id: Id) -> bool {
///         id != self.0
///     }
///     fn fingerprint(&self, id: Id) -> Fingerprint {
///         Fingerprint::of(&id.to_le_bytes(), 0)
///     }
/// }
///
/// let mut policy = PolicyKind::Lru.build(3);
/// for id in 0..3 {
///     policy.insert(id, Pinned(9).fingerprint(id), 1, RequestTag::NONE);
/// }
/// policy.access(0, RequestTag::NONE);
/// let mut victims = Vec::new();
/// assert!(policy.victims(1, &Pinned(1), &mut victims)); // 1 is the oldest, but pinned
/// assert_eq!(victims, [2]);
/// assert!(!policy.victims(2, &Pinned(1), &mut victims)); // all or none
/// assert_eq!(policy.eviction_order(), [1, 0]);
/// policy.unpinned(1); // where it was
/// assert!(policy.victims(1, &Pinned(9), &mut victims));
/// assert_eq!(victims, [2, 1]);
/// ```
pub trait Policy: Send + fmt::Debug {
    /// Which policy this is.
    fn kind(&self) -> PolicyKind;

    /// Changes the capacity by which shares and ghosts are measured. Evicts nothing.
    fn set_capacity(&mut self, weight: u64);

    /// Adds an entry as the most recent one.
    fn insert(&mut self, id: Id, fp: Fingerprint, weight: u32, tag: RequestTag);

    /// Adds an entry as the oldest one. At start-up: report the newest first.
    fn insert_cold(&mut self, id: Id, fp: Fingerprint, weight: u32);

    /// Notes a use.
    fn access(&mut self, id: Id, tag: RequestTag);

    /// Notes a use of each of `ids`, in this order; their memory accesses may overlap.
    fn access_all(&mut self, ids: &[Id], tag: RequestTag) {
        ids.iter().for_each(|&id| self.access(id, tag));
    }

    /// The entry may be evicted again, so the next pass asks about it, in the place it had before.
    /// The owner must say so whenever [`Residents::evictable`] turns from no to yes; saying it too often is harmless.
    fn unpinned(&mut self, id: Id) {
        let _ = id;
    }

    /// Drops an entry that went for another reason than eviction; it leaves no ghost.
    fn remove(&mut self, id: Id);

    /// Appends victims worth at least `need` to `out`, first to go first, drops them and returns true; or, where the
    /// evictable entries do not suffice, takes none and returns false.
    ///
    /// One pass: no entry is asked about twice, and a pinned one only if it was not found pinned before: the work is
    /// bounded by the victims and by what was pinned or unpinned since the last pass. (S3-FIFO gives second chances on
    /// the way, which stay given when the pass fails.)
    fn victims(&mut self, need: u64, residents: &dyn Residents, out: &mut Vec<Id>) -> bool;

    /// The entry, pinned or not, with which the next pass starts.
    fn oldest(&self) -> Option<Id>;

    /// How many entries there are.
    fn len(&self) -> usize;

    /// Whether there are none.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// The sum of the entries' weights.
    fn weight(&self) -> u64;

    /// Heap bytes held.
    fn memory_bytes(&self) -> usize;

    /// All entries in the order in which they would go if none was pinned, for tests and inspection.
    fn eviction_order(&self) -> Vec<Id>;
}
