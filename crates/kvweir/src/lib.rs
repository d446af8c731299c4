//! kvweir
pub mod block;
pub mod clock;
pub mod error;
pub mod evict;

pub use block::{Fingerprint, Key};
pub use error::{Error, ErrorKind, Result};
