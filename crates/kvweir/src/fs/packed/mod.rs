//! Packed blocks: slots of one size in large preallocated files, for blocks so small that a file each would be
//! directory work more than data. No directory operations, no unlink: eviction is reuse.
//!
//! A tier with [`Layout::Pack`](crate::fs::Layout) is the file tier in everything but where the bytes of new blocks go:
//! it joins the same root, holds the same lease of its one bound, answers lookups from the same index. To the root an
//! *extent* is a file like a block's: reserved before it is made, told to the journal, counted, removed as a whole when
//! bytes have to be given back. Blocks that have files of their own are served beside packed ones, and go first when room is
//! needed.
//!
//! | file | what it holds |
//! |---|---|
//! | `format.rs` | the bytes of an extent: header, slot table, slots |
//! | `free.rs` | free slots, by place and by length of the run |
//! | `extents.rs` | the extents of a tier and which of their slots are taken |
//! | `room.rs` | slots for a store: free ones, a new extent, or evicted ones |
//! | `store.rs`, `load.rs` | what workers do: runs of slots, a few large operations |
//! | `claim.rs`, `shrink.rs`, `lost.rs` | extents found at start; given up; removed by somebody else |
//!
//! Invariants kept here: I1 (an extent is reserved and preallocated whole, with what its file system needs to keep track
//! of it), I2 (a tag in memory and a checksum in the slot table tell payload and key), I3 (slots of pinned blocks are
//! not taken), I6 (the record of a slot is taken away before its bytes change, and written after).
//!
//! Blocks of one job, and following jobs of one request, go next to each other: slots are handed out in runs, and a
//! request keeps a window of free slots behind its last one.

mod claim;
mod extents;
pub(crate) mod format;
mod free;
mod load;
mod lost;
mod room;
mod shrink;
mod store;

pub(crate) use extents::{FIRST_SEQUENCE, MAX_EXTENTS, Pack, extent_cost, least_bytes, slot_bytes};
pub(crate) use lost::Looks;
