//! What is queued, and who does it.

use std::ops::Range;

use crate::io::{PageBuffer, engine::Engine};

/// Which queue a job waits in, most urgent first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// Somebody waits for the bytes or the answer.
    Load,
    /// Nobody waits.
    Store,
}

/// What workers do with a job. Each unit is run or cancelled, once.
pub trait Work: Send + Sync {
    /// Runs unit `unit` on a worker.
    fn run(&self, unit: usize, worker: &mut Worker);
    /// Told instead of `run` when the unit will never run.
    fn cancel(&self, unit: usize);
    /// How many units a worker should take at one time to run them together; 0: each by itself.
    fn batch(&self) -> usize {
        0
    }
    /// Runs units together, where [`batch`](Self::batch) says so. After a panic all of them are cancelled.
    fn run_batch(&self, units: Range<usize>, worker: &mut Worker) {
        units.for_each(|u| self.run(u, worker));
    }
}

/// What a worker thread has of its own.
#[derive(Debug)]
pub struct Worker {
    /// A page-aligned page.
    pub scratch: PageBuffer,
    /// Moves batches of runs.
    pub engine: Box<dyn Engine>,
}
