//! What the root's files need of whoever keeps the account of its bytes.

use std::path::PathBuf;

use crate::budget::Change;

/// The account of a root's bytes, as its files need it. Each call takes the lock of the account for a moment.
pub(crate) trait Accounts: Send + Sync {
    /// A file of the root's own grows by `bytes`: counted before they are written (I1).
    fn grow(&self, bytes: u64);
    /// It did not, or became shorter.
    fn shrink(&self, bytes: u64);
    /// Directories changed.
    fn apply(&self, change: Change);
    /// A temporary of `bytes` bytes could not be removed: it stays counted until it can.
    fn leave_behind(&self, temp: PathBuf, bytes: u64);
    /// Whether there are such temporaries.
    fn has_leftovers(&self) -> bool;
    /// Takes them, still counted, to try again.
    fn take_leftovers(&self) -> Vec<(PathBuf, u64)>;
    /// Takes back, counted as they are, those that stay.
    fn keep_leftovers(&self, stuck: Vec<(PathBuf, u64)>);
}
