//! Why a journal cannot be used.

use std::io;

/// Why a journal cannot be used: the tree is to be walked.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// There is none.
    Missing,
    /// Its bytes are not what was written.
    Damaged(String),
    /// The device failed.
    Io(io::Error),
}

impl From<io::Error> for Unusable {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => f.write_str("there is no journal"),
            Self::Damaged(what) => write!(f, "the journal is damaged: {what}"),
            Self::Io(e) => write!(f, "the journal cannot be read: {e}"),
        }
    }
}

/// A journal that was read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Seen {
    pub(crate) generation: u32,
    pub(crate) nonce: u64,
    pub(crate) line: u64,
    /// Bytes up to the last whole frame.
    pub(crate) len: u64,
}
