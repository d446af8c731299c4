//! kvweir moves KV-cache blocks of an inference engine between host memory and slower, larger tiers. Each tier holds
//! exactly what it is allowed to hold, says only what is true, and pushes back when it cannot keep up.
//!
//! It is **not** an inference engine, not a database and not durable storage: a cache may lose a block at any time, but
//! never hands out wrong bytes. It has no async runtime, no HTTP and no Python; adapters live in other crates.
//!
//! # Life of a block
//! 1. The engine asks [`Manager::prepare_store`](manager::Manager::prepare_store) for slots, fills them, and calls
//!    [`complete_store`](manager::Manager::complete_store): the block is in the primary tier.
//! 2. It is cascaded to every secondary tier whose gate (bytes in flight, detector, policy) lets it pass.
//! 3. A worker reserves bytes, writes the block with its trailer under a temporary name and publishes it by rename; or,
//!    where blocks are packed, into a slot of a preallocated file, and its record after it.
//! 4. Later another request looks the block up: the primary has evicted it, the file tier answers "hit" and pins it.
//! 5. At the end of the step the hits of a request go out as one load job; a worker reads each block straight into its
//!    slot and compares key, namespace, length and checksum; of a packed block the tag that stands for all of them.
//! 6. The block is readable again, or it is dropped, a `Removed` event goes out, and the engine computes it anew.
//!
//! # Rooms
//! | room | what it holds |
//! |---|---|
//! | [`manager`] | the calls of a scheduler: lookup, cascade, promotion, requests |
//! | [`primary`] | host memory: slots, reference counts, policy |
//! | [`tier`] | what a secondary tier promises; jobs, reports, the conformance kit |
//! | [`fs`] | the bounded file tier, or several on one root, and how small blocks are packed |
//! | [`admin`] | what operators do beside engines |
//! | [`evict`] | LRU, ARC, S3-FIFO |
//! | [`pressure`] | detector, drop policies, gate |
//! | [`stanza`] | settings as users of vLLM write them, and every mistake in them |
//! | [`pacing`] | which hits of waiting requests may be promoted, below a manager that is not ours |
//! | [`budget`], [`events`], [`metrics`] | bytes of a root; residency changes; numbers and their names |
//! | [`io`] | memory, the disk seam, worker threads; the only room with `unsafe` |
//! | [`block`], [`namespace`], [`size`], [`clock`], [`error`], [`sync`] | words everybody uses |
//!
//! # Example
//! ```
//! use kvweir::{
//!     Key,
//!     evict::PolicyKind,
//!     fs::{FsBuilder, FsSettings},
//!     io::Region,
//!     manager::{Found, Manager, NewRequest},
//!     namespace::{Identity, Namespace},
//!     primary::Primary,
//!     tier::RequestId,
//! };
//! # fn main() -> kvweir::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! let region = Region::new(64, 16 * 1024, false)?;
//! let settings = FsSettings { max_bytes: Some(64 << 20), ..FsSettings::new(dir.path().join("kv")) };
//! let namespace = Namespace::new(&Identity { model_name: "org/model".into(), ..Identity::default() })?;
//! let tier = FsBuilder::new(settings, namespace, region.block_len()).open()?;
//!
//! let mut manager = Manager::new(Primary::new(region, PolicyKind::Lru, false));
//! manager.add_tier(Box::new(tier), None);
//!
//! let (request, key) = (RequestId(1), Key::new(b"hash of the prefix")?);
//! manager.on_new_request(request, NewRequest::default());
//! assert_eq!(manager.lookup(&key, request), Found::Miss);
//! manager.shutdown();
//! # Ok(()) }
//! ```
//!
//! `docs/design.md` draws the bytes on disk and states the invariants I1 to I10 that module docs cite.

pub mod admin;
pub mod block;
pub mod budget;
pub(crate) mod catalog;
pub mod clock;
pub mod error;
pub mod events;
pub mod evict;
pub mod fs;
#[cfg(any(test, feature = "testing"))]
pub mod fuzz;
pub mod io;
pub(crate) mod jobs;
pub mod manager;
pub mod metrics;
pub mod namespace;
pub mod pacing;
pub mod pressure;
pub mod primary;
mod request;
pub(crate) mod root;
pub mod size;
pub mod stanza;
pub mod sync;
pub mod tier;
pub(crate) mod told;

pub use block::{Fingerprint, Key};
pub use error::{Error, ErrorKind, Result};
