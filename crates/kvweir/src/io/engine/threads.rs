//! One call after another, on the thread that asks: with as many engines as workers, as many calls at once.

use super::{Ended, Engine, EngineKind, ReadRun, WriteRun};

/// `preadv` and `pwritev`, straight to and from the caller's memory.
#[derive(Debug, Clone, Copy, Default)]
pub struct ThreadEngine;

impl Engine for ThreadEngine {
    fn name(&self) -> &'static str {
        EngineKind::Threads.as_str()
    }

    fn read_each(&mut self, batch: &mut [ReadRun<'_>], ended: &mut Ended<'_>) {
        for n in 0..batch.len() {
            if let Some(run) = batch.get_mut(n).filter(|r| !r.has_ended()) {
                run.call();
                ended(batch, n);
            }
        }
    }

    fn write(&mut self, batch: &mut [WriteRun<'_>]) {
        batch.iter_mut().for_each(WriteRun::call);
    }
}
