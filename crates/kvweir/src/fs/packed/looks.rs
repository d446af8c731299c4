//! Where the keeper is with its looks at extents.

use foldhash::fast::FixedState;
use std::collections::HashSet;

/// Where the keeper is with its looks.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// The number of the extent that comes next.
    pub(super) from: usize,
    /// Extents whose tables were cut when they were looked at last.
    pub(super) cut: HashSet<u32, FixedState>,
    /// Visits before the index is looked through again, and how many there were before the last time.
    pub(super) rest: u32,
    pub(super) rested: u32,
}
