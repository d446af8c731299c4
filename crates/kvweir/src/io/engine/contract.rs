//! What an engine promises.

use std::fmt::Debug;

use super::run::{ReadRun, WriteRun};
use crate::io::Region;

/// Runs that a [`RingEngine`](super::RingEngine) has under way at once unless told otherwise.
pub const DEPTH: u32 = 64;

/// Moves batches of runs. One thread at a time uses an engine.
pub trait Engine: Debug + Send {
    /// Its word in settings, as it really works: `threads` or `io_uring`.
    fn name(&self) -> &'static str;

    /// Reads; returns when every run of `batch` has ended, and not before. Runs that have ended already are left alone.
    fn read(&mut self, batch: &mut [ReadRun<'_>]) {
        self.read_each(batch, &mut |_, _| ());
    }

    /// As [`read`](Self::read), and tells `ended` of each run that it ended, at once, while others are still under way
    /// where it can: so what has come can be worked on in the meantime. It gets all runs and the index of the one.
    fn read_each(&mut self, batch: &mut [ReadRun<'_>], ended: &mut Ended<'_>);

    /// Whether it has several runs of a batch under way at once, so that it pays to cut a large read into some.
    fn overlaps(&self) -> bool {
        false
    }

    /// Writes; returns when every run of `batch` has ended, and not before. Runs that have ended already are left
    /// alone.
    fn write(&mut self, batch: &mut [WriteRun<'_>]);

    /// Registers memory that will be reused with the system, so that it need not be looked up each time. All
    /// of it is then resident and pinned for the life of the engine, which holds a clone of the region. `false` where
    /// that is not to be had: transfers work all the same.
    fn register(&mut self, region: &Region) -> bool {
        let _ = region;
        false
    }

    /// What it has done so far.
    fn tally(&self) -> Tally {
        Tally::default()
    }
}

/// Whom [`Engine::read_each`] tells.
pub type Ended<'f> = dyn FnMut(&[ReadRun<'_>], usize) + 'f;

/// What an engine has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Operations handed to a ring.
    pub submitted: u64,
    /// Those of them in registered memory.
    pub fixed: u64,
    /// System calls that handed operations over or waited for them.
    pub enters: u64,
    /// Runs ended by plain calls although there is a ring: their file has no descriptor, or the ring broke.
    pub called: u64,
    /// Registrations of memory that the system refused.
    pub refused: u64,
}
