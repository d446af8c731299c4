//! A file of the simulated disk: its bytes, which pages of it take room, and what a power loss would leave.

use std::{
    collections::{BTreeMap, BTreeSet},
    ops::Range,
    path::PathBuf,
};

use crate::io::{PAGE, round_up};

/// A file's bytes, shared by its name and the handles that are open.
#[derive(Debug, Default)]
pub(super) struct Data {
    pub(super) bytes: Vec<u8>,
    /// What would survive a power loss.
    pub(super) synced: Option<Vec<u8>>,
    /// Pages written since, as they were before.
    pub(super) before: BTreeMap<usize, Vec<u8>>,
    pub(super) mtime_ns: i128,
    /// The handle that holds the lock, with the life of the process that took it.
    pub(super) lock: Option<(u64, u64)>,
    /// The name before the last rename.
    pub(super) renamed_from: Option<PathBuf>,
    /// Pages that take nothing: never written, or given back.
    pub(super) holes: BTreeSet<usize>,
    /// It has no name any more.
    pub(super) unlinked: bool,
}

impl Data {
    /// Allocated bytes.
    pub(super) fn taken(&self) -> u64 {
        size(self.bytes.len()) - self.holes.len() as u64 * BLOCK
    }

    /// All of it would survive a power loss now.
    pub(super) fn sync(&mut self) {
        self.synced = Some(self.bytes.clone());
        self.before.clear();
        self.renamed_from = None;
    }

    /// Keeps the pages of `range` as they are, for a power loss.
    pub(super) fn keep_before(&mut self, range: Range<usize>) {
        for page in range.start / PAGE..range.end.div_ceil(PAGE) {
            let end = self.bytes.len().min((page + 1) * PAGE);
            let old = self.bytes.get(page * PAGE..end).unwrap_or_default().to_vec();
            self.before.entry(page).or_insert(old);
        }
    }

    /// Makes it `len` bytes long, with a hole at its end, and `filled` bytes no hole.
    pub(super) fn resize(&mut self, len: usize, filled: Range<usize>) {
        let pages = self.bytes.len().div_ceil(PAGE)..len.div_ceil(PAGE);
        self.bytes.resize(len, 0);
        self.holes.extend(pages);
        let filled = filled.start / PAGE..filled.end.div_ceil(PAGE);
        self.holes.retain(|h| !filled.contains(h) && h * PAGE < len);
    }
}

/// The unit of allocation.
pub(crate) const BLOCK: u64 = 4096;

pub(crate) fn size(len: usize) -> u64 {
    round_up(len as u64, BLOCK)
}
