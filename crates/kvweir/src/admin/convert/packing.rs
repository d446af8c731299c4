//! What packing one namespace knows: its files, the blocks read from them, and the slots they go to.

use std::{collections::HashMap, path::PathBuf};

use foldhash::fast::FixedState;

use super::{place::OpenExtents, work::Target};
use crate::{
    block::{Fingerprint, Key},
    root::{
        names::{DirKind, Prefix},
        visitor::{Met, Watch},
    },
    sync::{Mutex, lock},
};

/// A block file.
pub(super) struct BlockFile {
    pub(super) mtime_ns: i128,
    pub(super) prefix: Prefix,
    pub(super) leaf: DirKind,
    pub(super) name: Box<str>,
}

/// Told by a walk: the block files of one namespace.
pub(super) struct Files<'a> {
    pub(super) namespace: &'a str,
    pub(super) all: Mutex<Vec<BlockFile>>,
}

impl Watch for Files<'_> {
    fn wants(&self, namespace: &str) -> bool {
        namespace == self.namespace
    }

    fn met(&self, what: Met<'_>) {
        if let Met::Block(f) = what
            && f.leaf != DirKind::Extent
        {
            lock(&self.all).push(BlockFile {
                mtime_ns: f.stat.mtime_ns,
                prefix: f.prefix,
                leaf: f.leaf,
                name: f.name.into(),
            });
        }
    }
}

/// A block that was read whole.
pub(super) struct Block {
    pub(super) path: PathBuf,
    pub(super) dir: PathBuf,
    pub(super) allocated: u64,
    pub(super) key: Key,
    pub(super) sum: u128,
    pub(super) written_at: u32,
    pub(super) trailer: bool,
    /// The block, padded to a slot.
    pub(super) bytes: Vec<u8>,
}

/// The state of one namespace.
pub(super) struct Packing<'t> {
    pub(super) t: &'t mut Target,
    pub(super) place: OpenExtents,
    /// Free slots, next one last.
    pub(super) free: Vec<(usize, u32)>,
    /// Where keys have records, by their numbers in `place`, latest first.
    pub(super) packed: HashMap<Fingerprint, Vec<usize>, FixedState>,
    /// Whether an extent was made since all was made durable.
    pub(super) made: bool,
    /// The number of the next record: lower than all before.
    pub(super) sequence: u64,
    pub(super) slot_bytes: u64,
    pub(super) nominal: u32,
}
