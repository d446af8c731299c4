//! The local tiers of a root, one for each space: blocks below a directory, within a hard byte limit. Joins what the
//! lower floors offer: a bounded root (`root/`), a catalog of blocks (`catalog/`), the job runtime (`jobs/`).
//!
//! | file | what it holds |
//! |---|---|
//! | `settings.rs`, `parts.rs`, `builder.rs` | the settings and their checks; how tiers are made |
//! | `tier.rs`, `abroad.rs` | the scheduler's handle; the same in a child of its process |
//! | `open.rs`, `phase.rs` | opening a root: checked, joined, handed to the keeper; how far it is |
//! | `identify.rs` | what identifies a namespace |
//! | `build.rs` | what is shared is put together; layouts are chosen |
//! | `space.rs` | one namespace that is served |
//! | `shared.rs`, `running.rs` | what all spaces of a root share; their workers and keeper |
//! | `core.rs`, `body.rs` | the state behind the one lock; what an entry tells |
//! | `backend.rs`, `store.rs`, `load.rs`, `written.rs` | what workers do, whatever the layout |
//! | `layouts.rs` | `Layout`: what each layout does for the tier |
//! | `files/`, `packed/` | one file per block; slots in large files |
//! | `room.rs`, `promise.rs` | room for what is stored; the bytes that a store is promised |
//! | `shares.rs` | who gives room where several spaces share a bound |
//! | `trim.rs`, `gives_way.rs` | coming below the bound; giving way to those who have one |
//! | `recover/`, `keeper/` | what is there when a root is opened; the thread that looks after it |
//! | `probe.rs`, `probes.rs` | looking for blocks that others wrote |
//! | `lost.rs` | blocks whose directories somebody removed |
//! | `bench.rs` | what benches and tests ask beyond that (feature `testing`) |
//!
//! Keeps I1 (reservations before bytes), I2 (compared before a block is good), I3 (pins), I5 (slot guards held until
//! I/O ends), I8 (the lock guards memory only), I10 (failures become misses).

mod abroad;
mod backend;
#[cfg(feature = "testing")]
mod bench;
pub(crate) mod body;
mod build;
mod builder;
pub(crate) mod core;
pub(crate) mod files;
mod gives_way;
mod identify;
mod keeper;
pub(crate) mod layouts;
mod load;
mod lost;
pub(crate) mod open;
pub(crate) mod packed;
mod parts;
pub(crate) mod phase;
mod probe;
pub(crate) mod probes;
mod promise;
pub(crate) mod recover;
pub(crate) mod room;
mod running;
pub(crate) mod settings;
pub(crate) mod shared;
mod shares;
pub(crate) mod space;
mod store;
mod tier;
mod trim;
pub(crate) mod written;

pub use self::{
    builder::FsBuilder,
    parts::FsSpace,
    settings::{FsSettings, Layout, PACK_BELOW, min_bound, min_pack_bound},
    tier::FsTier,
};
pub use crate::jobs::bounce::BounceMode;
