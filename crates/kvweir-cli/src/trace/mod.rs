//! Requests as a serving engine would see them, and where they come from: a recorded trace or a made-up one.

mod input;
mod reader;
mod unpack;

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

pub(crate) use reader::{BadLines, LineError, TraceReader};

/// One request: when it came and the blocks of its prompt, first to last.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Request {
    /// Time since the start of the trace.
    pub(crate) at: Duration,
    /// Tokens of the prompt.
    pub(crate) input_tokens: u64,
    /// Tokens of the answer.
    pub(crate) output_tokens: u64,
    /// Prefix blocks in order; equal id = equal prefix up to and including that block.
    pub(crate) blocks: Vec<u64>,
}

/// A stream of requests; an error is the end of it.
pub(crate) type Source = Box<dyn Iterator<Item = anyhow::Result<Request>> + Send>;

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

    fn skip(&self, e: &LineError) {
        if self.0.skipped.fetch_add(1, Ordering::Relaxed) == 0 {
            *self
                .0
                .first_skipped
                .lock()
                .unwrap_or_else(PoisonError::into_inner) = Some(e.to_string());
        }
    }

    fn disorder(&self) {
        self.0.out_of_order.fetch_add(1, Ordering::Relaxed);
    }
}
