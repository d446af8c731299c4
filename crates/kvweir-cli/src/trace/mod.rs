//! Requests as a serving engine would see them, and where they come from: a recorded trace or a made-up one.

mod input;
mod notes;
mod reader;
mod unpack;

use std::time::Duration;

pub(crate) use notes::Notes;
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
