//! A conversion under way.

use std::path::{Path, PathBuf};

use super::{converted::ConvertedNamespace, room::Room};
use crate::{
    admin::{Admin, OnProgress, Progress, extents::ExtentFiles, temps::Temps},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
        lock,
    },
};

/// Bytes of blocks moved between two syncs.
pub(crate) const BATCH_BYTES: u64 = 64 << 20;

/// Most blocks of them.
pub(crate) const BATCH_BLOCKS: u64 = 4096;

/// A namespace to convert.
pub(crate) struct Target {
    pub(crate) dir: PathBuf,
    pub(crate) digest: [u8; 32],
    pub(crate) seed: u64,
    pub(crate) len: u64,
    pub(crate) extents: Vec<ExtentFiles>,
    pub(crate) report: ConvertedNamespace,
}

/// A conversion under way.
pub(crate) struct Work<'a> {
    pub(crate) admin: &'a Admin,
    /// Without it nothing is done.
    pub(crate) apply: bool,
    pub(crate) room: Room,
    /// Unit of allocation.
    pub(crate) unit: u64,
    pub(crate) temps: Temps,
    pub(crate) progress: OnProgress<'a>,
    pub(crate) blocks: AtomicU64,
    pub(crate) of_blocks: AtomicU64,
    pub(crate) bytes: AtomicU64,
    pub(crate) failed: Mutex<Vec<String>>,
}

impl Work<'_> {
    /// Blocks of `slot_bytes` bytes moved at once.
    pub(crate) fn batch(slot_bytes: u64) -> usize {
        (BATCH_BYTES / slot_bytes.max(1)).clamp(1, BATCH_BLOCKS) as usize
    }

    pub(crate) fn done(&self, blocks: u64) {
        (self.progress)(Progress {
            blocks: self.blocks.fetch_add(blocks, Ordering::Relaxed) + blocks,
            of_blocks: self.of_blocks.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
        });
    }

    pub(crate) fn failed(&self, path: &Path, e: impl std::fmt::Display) {
        let path = self.admin.short(path);
        lock(&self.failed).push(format!("{path}: {e}"));
    }
}
