//! Packed blocks: slots of one size in large preallocated files, for blocks so small that a file each would be
//! directory work more than data. No directory operations, no unlink: eviction is reuse.
//!
//! A tier with [`Layout::Pack`](crate::fs::Layout) is the file tier in everything but where the bytes of new blocks go:
//! it joins the same root, holds the same lease of its one bound, answers lookups from the same index. To the root an
//! *extent* is a file like a block's: reserved before it is made, told to the journal, counted, removed as a whole when
//! bytes have to be given back. Blocks that have files of their own are served beside packed ones, and go first when
//! room is needed and the root has one space (`fs/shares.rs`).
//!
//! | file | what it holds |
//! |---|---|
//! | `format.rs` | the bytes of an extent: header, slot table, slots |
//! | `free.rs` | free slots, by place and by length of the run |
//! | `extent.rs`, `extents.rs` | one extent's open files and numbers; all of a space, and which slots are taken |
//! | `room.rs` | slots for a store: free ones, a new extent, or evicted ones |
//! | `parts.rs` | the two files of an extent: made, opened, removed |
//! | `store.rs`, `load.rs` | what workers do: runs of slots, a few large operations |
//! | `claim.rs`, `shrink.rs` | extents found at start; given up |
//! | `lost.rs`, `looks.rs` | extents that somebody else removed; where the search for them is |
//!
//! Invariants kept here: I1 (an extent is reserved and preallocated whole, with what its file system needs to keep
//! track of it), I2 (a tag in memory and a checksum in the slot table tell payload and key), I3 (slots of pinned blocks
//! are not taken), I6 (the record of a slot is taken away before its bytes change, and written after).
//!
//! Blocks of one job, and following jobs of one request, go next to each other: slots are handed out in runs, and a
//! request keeps a window of free slots behind its last one.

use crate::{
    block::Key,
    catalog::{body::Rank, index::State},
    evict::Id,
    fs::{
        layouts::Layout,
        space::Space,
        written::{Flaw, Fresh, Read, Wanted, Written},
    },
    io::pool::Worker,
    jobs::{LoadRun, StoreRun},
    metrics::EvictReason,
    request::RequestId,
    sync::lock,
};

mod claim;
mod extent;
mod extents;
pub(crate) mod format;
mod free;
mod load;
mod looks;
mod lost;
mod parts;
mod room;
mod shrink;
mod store;

pub(crate) use extent::{extent_cost, least_bytes, slot_bytes};
pub(crate) use extents::{FIRST_SEQUENCE, MAX_EXTENTS, Pack};

/// Bytes of packed blocks that a worker moves together.
const BATCH_BYTES: u64 = 1 << 20;
/// Most blocks that it does.
const MAX_BATCH: usize = 256;

impl Layout<Space> for Pack {
    fn takes(&self, key: &Key) -> bool {
        key.as_bytes().len() <= format::MAX_PACKED_KEY
    }

    fn rank(&self) -> Rank {
        Rank::Slot(self.store)
    }

    fn batch(&self) -> usize {
        usize::try_from(BATCH_BYTES / self.block_len.max(1)).map_or(MAX_BATCH, |n| n.clamp(1, MAX_BATCH))
    }

    fn write<'s>(
        &self,
        tier: &'s Space,
        run: &StoreRun<Space>,
        fresh: Vec<Fresh>,
        worker: &mut Worker,
    ) -> Vec<Written<'s>> {
        store::store(self, tier, run, fresh, &mut *worker.engine)
    }

    fn read(
        &self,
        tier: &Space,
        run: &LoadRun<Space>,
        wanted: Vec<Wanted>,
        worker: &mut Worker,
    ) -> Vec<Read> {
        load::load(self, tier, run, &wanted, &mut *worker.engine)
    }

    fn must_look(&self) -> bool {
        false
    }

    fn is_there(&self, _tier: &Space, _key: &Key) -> bool {
        true
    }

    /// Who still reads the block keeps its slot until then.
    fn clear(&self, tier: &Space, id: Id, reason: EvictReason) {
        let freed = lock(&tier.core).forget_slot(id, reason, self.slot_bytes);
        if let Some(slot) = freed {
            self.give(&mut [slot]);
        }
    }

    fn spoil(&self, tier: &Space, id: Id, _flaw: &Flaw) {
        let freed = {
            let mut core = lock(&tier.core);
            if !matches!(core.catalog.state(id), State::Ready | State::Bad) {
                return;
            }
            core.forget_slot(id, EvictReason::Corrupt, self.slot_bytes)
        };
        if let Some(slot) = freed {
            self.give(&mut [slot]);
        }
    }

    fn held(&self, tier: &Space) -> u64 {
        self.bytes(tier.root.unit)
    }

    fn step(&self, tier: &Space) -> u64 {
        let slots = format::Header::slots_in(self.nominal, self.slot_bytes);
        extent_cost(slots, self.slot_bytes, tier.root.unit)
    }

    fn give_back(&self, tier: &Space, reason: EvictReason) -> bool {
        self.drop_extent(tier, reason)
    }

    fn recover(&self, tier: &Space) {
        self.claim_extents(tier);
    }

    fn look(&self, tier: &Space) {
        let mut looks = std::mem::take(&mut *lock(&self.looks));
        self.look_at_extents(tier, &mut looks);
        *lock(&self.looks) = looks;
    }

    fn end_request(&self, req: RequestId) {
        self.end_windows_of(req);
    }
}
