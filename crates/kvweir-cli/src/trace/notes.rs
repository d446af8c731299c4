//! What a reader noticed without stopping.

use std::{
    fmt,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

/// What a reader noticed without stopping; shared, because the reader itself is given away.
#[derive(Debug, Default, Clone)]
pub(crate) struct Notes(Arc<Inner>);

#[derive(Debug, Default)]
struct Inner {
    skipped: AtomicU64,
    out_of_order: AtomicU64,
    first_skipped: Mutex<Option<String>>,
}

impl Notes {
    /// Bad lines passed over.
    pub(crate) fn skipped(&self) -> u64 {
        self.0.skipped.load(Ordering::Relaxed)
    }

    /// Requests whose timestamp lies before their predecessor's.
    pub(crate) fn out_of_order(&self) -> u64 {
        self.0.out_of_order.load(Ordering::Relaxed)
    }

    /// The first bad line passed over.
    pub(crate) fn first_skipped(&self) -> Option<String> {
        self.0
            .first_skipped
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub(super) fn skip(&self, e: &dyn fmt::Display) {
        if self.0.skipped.fetch_add(1, Ordering::Relaxed) == 0 {
            *self
                .0
                .first_skipped
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(e.to_string());
        }
    }

    pub(super) fn disorder(&self) {
        self.0.out_of_order.fetch_add(1, Ordering::Relaxed);
    }
}
