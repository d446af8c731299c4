//! What `convert` reports.

use serde::Serialize;

/// What became of a namespace.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct ConvertedNamespace {
    /// The directory's name.
    pub directory: String,
    /// Bytes of a block.
    pub block_bytes: Option<u64>,
    /// Why it is passed over as a whole.
    pub passed_over: Option<String>,
    /// Blocks that lie in the new layout, or would.
    pub moved: u64,
    /// Of these, blocks of a stock tier, which had no checksum to be compared with.
    pub unverified: u64,
    /// Blocks that lay in the new layout too; the old copy went, after the other was read and compared.
    pub present: u64,
    /// Blocks that lay in the new layout too, and bad there: the file took the place of such a slot.
    pub rescued: u64,
    /// Oldest blocks dropped for lack of room; of a plan, an estimate.
    pub dropped: u64,
    /// Blocks that do not fit their checksum. A file stays for `verify --repair`, a slot loses its record.
    pub damaged: u64,
    /// Blocks that stay: keys too long for a record, files of another length.
    pub kept: u64,
    /// Extents that cannot be used and stay: damaged, cut, of another length or namespace.
    pub unusable_extents: u64,
    /// Extents made, or removed.
    pub extents: u64,
}

/// What a conversion did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Converted {
    /// The directory.
    pub root: String,
    /// The layout.
    pub to: &'static str,
    /// Whether anything was done.
    pub done: bool,
    /// The bound.
    pub bound_bytes: u64,
    /// What `du` counted before.
    pub before_bytes: u64,
    /// What `du` counts now; of a plan, an estimate.
    pub after_bytes: u64,
    /// The most that it counted between.
    pub peak_bytes: u64,
    /// By directory name.
    pub namespaces: Vec<ConvertedNamespace>,
    /// Bytes of blocks read.
    pub bytes: u64,
    /// Seconds that it took.
    pub seconds: f64,
    /// What failed, and why.
    pub failed: Vec<String>,
}

impl Converted {
    /// Whether every block that could be moved was, or would be.
    pub fn is_whole(&self) -> bool {
        let whole = |n: &ConvertedNamespace| n.passed_over.is_none() && n.damaged == 0 && n.dropped == 0;
        self.failed.is_empty() && self.namespaces.iter().all(whole)
    }
}
