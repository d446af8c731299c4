//! What a tier brings: its state, and what is done with blocks.

use std::{io, ops::Range, time::Duration};

use super::{LoadRun, Runner, StoreRun};
use crate::{
    block::{Fingerprint, Key},
    catalog::Holds,
    clock::Instant,
    io::pool::Worker,
    sync::Mutex,
};

/// A tier as the jobs see it. Workers call `store` and `load` for some units of a job; each unit is to be finished there,
/// or left to another job that finishes it.
pub(crate) trait Backend: Send + Sync + Sized + 'static {
    /// What is behind the tier's lock.
    type State: Holds;

    /// Where its jobs end.
    fn runner(&self) -> &Runner;

    /// What is behind its lock.
    fn state(&self) -> &Mutex<Self::State>;

    /// What the index knows `key` by.
    fn fingerprint(&self, key: &Key) -> Fingerprint;

    /// Bytes of a block.
    fn block_len(&self) -> usize;

    /// Whether anything is ever stored.
    fn takes_stores(&self) -> bool;

    /// Units that a worker takes together; 0: one at a time.
    fn batch(&self) -> usize;

    /// Whether a load that runs may be given up: nothing of it touches the caller's memory after its report (I5).
    fn may_abandon_loads(&self) -> bool;

    /// Stores `units`, none of which was started.
    fn store(&self, run: &StoreRun<Self>, units: Range<usize>, worker: &mut Worker);

    /// Loads `units`, none of which was started.
    fn load(&self, run: &LoadRun<Self>, units: Range<usize>, worker: &mut Worker);

    /// Asks the device whether it answers.
    ///
    /// # Errors
    /// It does not.
    fn probe(&self) -> io::Result<()>;

    /// Looks after what is no job; returns whether something of it has run for `timeout`.
    fn look(&self, now: Instant, timeout: Option<Duration>) -> bool;
}
