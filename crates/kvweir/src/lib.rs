//! kvweir: in progress.

pub mod block;
pub mod budget;
pub mod clock;
pub mod error;
pub mod events;
pub mod evict;
pub mod fs;
pub mod io;
pub mod manager;
pub mod metrics;
pub mod namespace;
pub mod pressure;
pub mod primary;
pub mod size;
pub mod sync;
pub mod tier;

pub use block::{Fingerprint, Key};
pub use error::{Error, ErrorKind, Result};
