//! A file of a member that counts and is not written any more.

use std::path::PathBuf;

use crate::{io::disk::Stat, root::journal::header::Header};

/// A file that counts beside the one that is written.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Older {
    pub(crate) path: PathBuf,
    pub(crate) len: u64,
    /// Bytes counted for it.
    pub(crate) bytes: u64,
}

impl Older {
    /// A file that takes what `stat` says.
    pub(crate) fn by(path: PathBuf, stat: &Stat, fs_block: u64) -> Self {
        Self {
            path,
            len: stat.len,
            bytes: stat.counted(fs_block),
        }
    }
}

/// Where a journal that is there goes on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Resume {
    pub(crate) header: Header,
    /// Bytes up to the last whole frame.
    pub(crate) len: u64,
    /// Bytes counted for it.
    pub(crate) bytes: u64,
    /// The other files that were read.
    pub(crate) older: Vec<Older>,
}
