//! What `verify` reports.

use std::collections::BTreeMap;

use crate::admin::{
    Pile,
    finding::{Finding, Weight},
    journals::JournalCheck,
};
use serde::Serialize;

/// The outcome of a verification.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Verification {
    /// The directory.
    pub root: String,
    /// Blocks read.
    pub blocks: u64,
    /// Of these, blocks of which everything was compared and is right.
    pub good: u64,
    /// Blocks of a block's length without trailer: there is nothing to compare them with.
    pub unverified: u64,
    /// Files that went while they were looked at, and slots that were written anew.
    pub vanished: u64,
    /// Extents read; the blocks of their slots are among those above.
    pub extents: u64,
    /// Blocks read from slots.
    pub packed_blocks: u64,
    /// Of these, blocks of which another slot has a later record: evicted and stored again. No fault.
    pub superseded: u64,
    /// Temporaries of stores under way.
    pub being_written: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Seconds that reading took.
    pub seconds: f64,
    /// Namespaces whose identity is not known, so that wrong ones are told by comparison with each other.
    pub without_identity: Vec<String>,
    /// The comparison with the journals.
    pub journals: JournalCheck,
    /// How many of each fault.
    pub faults: BTreeMap<&'static str, u64>,
    /// How many of each weight.
    pub weights: BTreeMap<&'static str, u64>,
    /// All faults, by kind and path.
    pub findings: Vec<Finding>,
}

impl Verification {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Findings of this weight.
    pub fn count(&self, weight: Weight) -> u64 {
        self.findings.iter().filter(|f| f.weight == weight).count() as u64
    }

    /// Whether nothing is wrong but leftovers.
    pub fn is_tidy_only(&self) -> bool {
        self.findings.iter().all(|f| f.weight == Weight::Tidy)
    }

    /// Billions of bytes read per second.
    pub fn gb_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.seconds.max(1e-9)
    }
}

/// What a repair did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Repaired {
    /// Whether anything was done.
    pub done: bool,
    /// Files removed.
    pub files: Pile,
    /// Records of slots taken away, so that nothing is found there.
    pub records: u64,
    /// Directories removed.
    pub directories: u64,
    /// Findings that stay, since nothing is proved.
    pub kept: u64,
    /// Whether journals and ledger are given up, so that the next start walks the root: with every change, and for
    /// what is wrong with the journals themselves.
    pub next_start_walks: bool,
    /// What could not be removed, and why.
    pub failed: Vec<String>,
}
