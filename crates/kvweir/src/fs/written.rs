//! What goes to a layout and what comes back: blocks to write and to read, and how that ended.

use std::io;

use super::promise::Promise;
use crate::{budget::Change, catalog::body::Body, error::ErrorKind, evict::Id, tier::Verified};

/// A block that is to be written; its entry is reserved.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Fresh {
    pub(crate) unit: usize,
    pub(crate) id: Id,
}

/// A block that was to be written.
pub(crate) struct Written<'s> {
    pub(crate) unit: usize,
    pub(crate) id: Id,
    /// Where it lies; or what it is reported as, and was counted as refused.
    pub(crate) end: Result<Placed<'s>, ErrorKind>,
}

/// A block that lies where it belongs.
pub(crate) struct Placed<'s> {
    pub(crate) body: Body,
    /// Bytes written.
    pub(crate) bytes: u64,
    /// What it takes, where that is not part of something counted already.
    pub(crate) bill: Option<Bill<'s>>,
}

/// What a block takes, and what was reserved for that.
pub(crate) struct Bill<'s> {
    pub(crate) promise: Promise<'s>,
    pub(crate) cost: u64,
    pub(crate) dirs: Change,
}

/// A block that is to be read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Wanted {
    pub(crate) unit: usize,
    /// Its entry, pinned; `None` where it was not known, in a root that others write to.
    pub(crate) id: Option<Id>,
    pub(crate) body: Body,
}

/// A block that was to be read.
pub(crate) struct Read {
    pub(crate) unit: usize,
    pub(crate) id: Option<Id>,
    pub(crate) end: Result<Verified, Flaw>,
}

/// Why a block is not good.
#[derive(Debug)]
pub(crate) enum Flaw {
    /// Not there.
    Gone,
    /// Provably not the block.
    Corrupt(&'static str),
    /// A later version's, in a format that this one does not read.
    Newer(String),
    /// The device failed, or the job was given up; nothing is proved.
    Failed(io::Error),
}

impl Flaw {
    /// The job was given up before.
    pub(crate) fn too_late() -> Self {
        Self::Failed(io::ErrorKind::TimedOut.into())
    }
}
