//! A first-level directory in memory: its leaves, how many files each holds, and what they cost.

use crate::root::names::{DirKind, Prefix};

/// A first-level directory and its leaves.
#[derive(Debug, Default)]
pub(super) struct High {
    pub(super) cost: u64,
    pub(super) leaves: Vec<LeafDir>,
    pub(super) named: Vec<DirKind>,
}

/// One leaf: 12 bytes, since a root has about as many leaves as blocks.
#[derive(Debug, Clone, Copy)]
pub(super) struct LeafDir {
    pub(super) low: u8,
    /// Index into the parent's list of leaf kinds.
    pub(super) kind: u16,
    pub(super) files: u32,
    /// Units of 512 bytes.
    pub(super) cost: u32,
}

impl High {
    fn kind(&mut self, leaf: DirKind) -> u16 {
        let at = self.named.iter().position(|&l| l == leaf).unwrap_or_else(|| {
            self.named.reserve_exact(1);
            self.named.push(leaf);
            self.named.len() - 1
        });
        u16::try_from(at).unwrap_or(u16::MAX)
    }

    pub(super) fn position(&mut self, prefix: Prefix, leaf: DirKind) -> Result<usize, usize> {
        let want = (prefix.low() as u8, self.kind(leaf));
        let key = |l: &LeafDir| (l.low, l.kind);
        // where it lies in a full directory of one kind: no search over distant memory
        let full = prefix.low() as usize;
        match self.leaves.get(full) {
            Some(l) if key(l) == want => Ok(full),
            _ => self.leaves.binary_search_by_key(&want, key),
        }
    }

    pub(super) fn leaf(&mut self, prefix: Prefix, leaf: DirKind) -> &mut LeafDir {
        let at = self.position(prefix, leaf).unwrap_or_else(|at| {
            if self.leaves.len() == self.leaves.capacity() {
                // an eighth more: memory per block matters
                self.leaves.reserve_exact(1 + self.leaves.len() / 8);
            }
            let kind = self.kind(leaf);
            self.leaves.insert(
                at,
                LeafDir {
                    low: prefix.low() as u8,
                    kind,
                    files: 0,
                    cost: 0,
                },
            );
            at
        });
        #[expect(clippy::indexing_slicing, reason = "found or inserted just above")]
        &mut self.leaves[at]
    }

    pub(super) fn leaf_cost(&mut self, prefix: Prefix, leaf: DirKind) -> u64 {
        u64::from(self.leaf(prefix, leaf).cost) * 512
    }

    /// Returns how many files remain.
    pub(super) fn drop_file(&mut self, prefix: Prefix, leaf: DirKind) -> u32 {
        let l = self.leaf(prefix, leaf);
        l.files = l.files.saturating_sub(1);
        let left = l.files;
        if left == 0 && l.cost == 0 {
            // never made on disk
            self.forget(prefix, leaf);
        }
        left
    }

    pub(super) fn forget(&mut self, prefix: Prefix, leaf: DirKind) {
        if let Ok(at) = self.position(prefix, leaf) {
            self.leaves.remove(at);
        }
    }
}

pub(super) fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(512)).unwrap_or(u32::MAX)
}
