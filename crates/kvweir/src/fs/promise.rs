//! Bytes of the bound that a store is promised (I1).

use crate::{
    budget::Change,
    fs::core::Core,
    root::account::Account,
    sync::{Mutex, lock},
};

/// Reserved bytes: what was not spent is given back when it is dropped, which also a panic does. Not to be dropped
/// while the core is locked.
pub(crate) struct Promise<'a> {
    core: &'a Mutex<Core>,
    bytes: u64,
}

impl<'a> Promise<'a> {
    /// One of `bytes` that were reserved already.
    pub(crate) fn of(core: &'a Mutex<Core>, bytes: u64) -> Self {
        Self { core, bytes }
    }

    /// Counts `cost` bytes and changed directories, which lie there now, out of what was reserved.
    pub(crate) fn spend(&mut self, account: &mut Account, cost: u64, dirs: Change) {
        let spent = cost + dirs.now.saturating_sub(dirs.before);
        let paid = spent.min(self.bytes);
        self.bytes -= paid;
        account.budget.release(paid);
        account.budget.add_resident(cost);
        account.budget.apply(dirs);
    }

    /// The same, and gives the rest back.
    pub(crate) fn commit(mut self, account: &mut Account, cost: u64, dirs: Change) {
        self.spend(account, cost, dirs);
        account.budget.release(self.keep());
    }

    /// The bytes, which the caller gives back.
    pub(crate) fn keep(mut self) -> u64 {
        std::mem::take(&mut self.bytes)
    }
}

impl Drop for Promise<'_> {
    fn drop(&mut self) {
        if self.bytes > 0 {
            lock(self.core).account.budget.release(self.bytes);
        }
    }
}
