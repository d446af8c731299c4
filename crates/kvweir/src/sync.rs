//! Locks of the standard library with one decision made: a panic while a lock is held poisons nothing for good.
//! The state behind our locks is changed in steps that keep it valid, and a cache must go on missing rather than
//! take the engine down (I10). Lock order, outermost first: directory stripe, tier core, job progress, completion
//! queue, bell. A tier's breaker is locked alone, its list of jobs before their progress.
//!
//! Locks, atomics and threads of the engine come from here, so that a test can be the one who says who runs next: with
//! `--cfg kvweir_shuttle` they are those of `sync::scheduled`, else the standard library's own.

#[cfg(kvweir_shuttle)]
mod scheduled;

use std::{sync::PoisonError, time::Duration};
#[cfg(not(kvweir_shuttle))]
pub(crate) use std::{
    sync::{Condvar, Mutex, MutexGuard, OnceLock, atomic},
    thread,
};

#[cfg(kvweir_shuttle)]
pub(crate) use scheduled::{Condvar, Mutex, MutexGuard, OnceLock, atomic, thread};

/// Locks `m`, also when another thread panicked while holding it.
pub(crate) fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Waits on `c` for at most `timeout`.
pub(crate) fn wait_for<'a, T>(c: &Condvar, g: MutexGuard<'a, T>, timeout: Duration) -> MutexGuard<'a, T> {
    c.wait_timeout(g, timeout)
        .unwrap_or_else(PoisonError::into_inner)
        .0
}

/// Waits on `c` as long as `holds` says so, at most `timeout`.
pub(crate) fn wait_while<'a, T>(
    c: &Condvar,
    g: MutexGuard<'a, T>,
    timeout: Duration,
    holds: impl FnMut(&mut T) -> bool,
) -> MutexGuard<'a, T> {
    c.wait_timeout_while(g, timeout, holds)
        .unwrap_or_else(PoisonError::into_inner)
        .0
}

/// Waits on `c`.
pub(crate) fn wait<'a, T>(c: &Condvar, g: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
    c.wait(g).unwrap_or_else(PoisonError::into_inner)
}

/// Rings when a tier has something to report, for callers that would rather wait than poll.
#[derive(Debug, Default)]
pub struct Bell {
    rings: Mutex<u64>,
    rang: Condvar,
}

impl Bell {
    /// Wakes everybody who waits.
    pub fn ring(&self) {
        *lock(&self.rings) += 1;
        self.rang.notify_all();
    }

    /// How often it rang so far.
    pub fn rings(&self) -> u64 {
        *lock(&self.rings)
    }

    /// Waits until it rang more than `seen` times, at most `timeout`; returns how often it rang.
    pub fn wait(&self, seen: u64, timeout: Duration) -> u64 {
        let rings = lock(&self.rings);
        if *rings > seen {
            return *rings;
        }
        *wait_for(&self.rang, rings, timeout)
    }
}
