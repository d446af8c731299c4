//! kvweir
pub mod block;
pub mod clock;
pub mod error;
pub mod pressure;

pub use block::{Fingerprint, Key};
pub use error::{Error, ErrorKind, Result};
