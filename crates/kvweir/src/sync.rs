//! Locks of the standard library with one decision made: a panic while a lock is held poisons nothing for good.
//! The state behind our locks is changed in steps that keep it valid, and a cache must go on missing rather than
//! take the engine down (I10). Lock order, outermost first: directory stripe, tier state, completion queue.

use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Locks `m`, also when another thread panicked while holding it.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `c` for at most `timeout`.
pub(crate) fn wait_for<'a, T>(c: &Condvar, g: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
    c.wait_timeout(g, timeout).unwrap_or_else(PoisonError::into_inner).0
}

/// Waits on `c`.
pub(crate) fn wait<'a, T>(c: &Condvar, g: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    c.wait(g).unwrap_or_else(PoisonError::into_inner)
}
