//! What all tiers on one device share, so that one beside another neither looks slow for it nor is given up: the device's
//! time (I9), when something last ended there, and what hangs.

use std::sync::Arc;

use super::progress::Meter;
use crate::{
    clock::Instant,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    tier::Direction,
};

/// A device and the workers in front of it.
#[derive(Debug)]
pub(crate) struct Device {
    /// Its time, shared out among jobs.
    pub(crate) meter: Arc<Meter>,
    /// When an operation last ended: stores, loads. Nanoseconds of the clock.
    last_end: [AtomicU64; 2],
    /// Operations that hang and nobody waits for any more.
    hung: AtomicU64,
}

impl Device {
    pub(crate) fn new(now: Instant) -> Self {
        Self {
            meter: Arc::default(),
            last_end: [now, now].map(|t| AtomicU64::new(t.as_nanos())),
            hung: AtomicU64::new(0),
        }
    }

    /// When something last ended that a waiting job of this direction may take for progress.
    pub(super) fn last_end(&self, direction: Direction) -> Instant {
        let [store, load] = self.last_end.each_ref().map(|t| t.load(Relaxed));
        Instant::from_nanos(match direction {
            _ if self.hung.load(Relaxed) == 0 => store.max(load),
            Direction::Store => store,
            Direction::Load => load,
        })
    }

    /// An operation ended, perhaps one that had been given up.
    pub(super) fn ended(&self, direction: Direction, was_hung: bool, now: Instant) {
        let [store, load] = &self.last_end;
        let last = match direction {
            Direction::Store => store,
            Direction::Load => load,
        };
        last.fetch_max(now.as_nanos(), Relaxed);
        self.hung.fetch_sub(u64::from(was_hung), Relaxed);
    }

    /// So many operations were given up.
    pub(super) fn gave_up(&self, hung: u64) {
        self.hung.fetch_add(hung, Relaxed);
    }
}
