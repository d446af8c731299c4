//! What an import is told, and what it did.

use serde::Serialize;

/// How to import.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Bytes of a block; found from the files' lengths unless set.
    pub block_bytes: Option<u64>,
}

/// What became of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImportedNamespace {
    /// The directory's name.
    pub directory: String,
    /// Bytes of a block.
    pub block_bytes: Option<u64>,
    /// Why it is passed over as a whole.
    pub passed_over: Option<String>,
    /// Blocks that got a trailer, or would.
    pub imported: u64,
    /// Blocks that had one, or lie in the other root already.
    pub present: u64,
    /// Files that are neither as long as a block nor as a block with trailer.
    pub wrong_size: u64,
    /// Blocks with trailers that do not fit them; they are not taken.
    pub damaged: u64,
    /// Extents of packed blocks, which are left alone: their blocks have checksums.
    pub extents: u64,
}

/// What an import did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Imported {
    /// Where blocks were read.
    pub from: String,
    /// Where they were written.
    pub into: String,
    /// Whether anything was done.
    pub done: bool,
    /// By directory name.
    pub namespaces: Vec<ImportedNamespace>,
    /// Bytes read.
    pub bytes: u64,
    /// Seconds that it took.
    pub seconds: f64,
    /// What failed, and why.
    pub failed: Vec<String>,
}

impl Imported {
    /// Whether every block has a trailer now, or would.
    pub fn is_whole(&self) -> bool {
        let whole = |n: &ImportedNamespace| n.passed_over.is_none() && n.wrong_size == 0 && n.damaged == 0;
        self.failed.is_empty() && self.namespaces.iter().all(whole)
    }
}
