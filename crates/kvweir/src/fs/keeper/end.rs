//! How a keeper is asked to end.

use crate::sync::atomic::{AtomicU8, Ordering};

/// How the keeper is to end.
#[derive(Debug, Default)]
pub(crate) struct End(AtomicU8);

impl End {
    const RUN: u8 = 0;
    const LEAVE: u8 = 1;
    const KEEP: u8 = 2;

    /// Whether nobody asked for the end yet.
    pub(crate) fn is_far(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::RUN
    }

    /// Whether the root is to stay claimed: some I/O still runs.
    pub(crate) fn keeps(&self) -> bool {
        self.0.load(Ordering::Acquire) == Self::KEEP
    }

    /// Asks for the end; with `leave` the root is let go, else it stays claimed.
    pub(super) fn ask(&self, leave: bool) {
        let how = if leave { Self::LEAVE } else { Self::KEEP };
        self.0.store(how, Ordering::Release);
    }
}
