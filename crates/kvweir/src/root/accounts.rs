//! What the root's own files need of whoever keeps the account of its bytes.

/// The account of a root's bytes, as far as its journal needs it. Each call takes the lock of the account for a moment.
pub(crate) trait Accounts: Send + Sync {
    /// A file of the root's own grows by `bytes`: counted before they are written (I1).
    fn grow(&self, bytes: u64);
    /// It did not, or became shorter.
    fn shrink(&self, bytes: u64);
}
