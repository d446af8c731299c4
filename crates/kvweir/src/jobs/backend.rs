//! What a tier brings: its state, and what is done with blocks.

use std::{io, time::Duration};

use super::runner::Runner;
use crate::{
    block::{Fingerprint, Key},
    catalog::{Holds, space::SpaceId},
    clock::Instant,
    sync::Mutex,
};

/// A tier as the jobs see it, whatever they are: what it does for a store is [`Stores`](super::Stores), for a load
/// [`Loads`](super::Loads).
pub(crate) trait Backend: Send + Sync + Sized + 'static {
    /// What is behind the tier's lock.
    type State: Holds;

    /// Where its jobs end.
    fn runner(&self) -> &Runner;

    /// What is behind its lock.
    fn state(&self) -> &Mutex<Self::State>;

    /// Which of the catalog's spaces it is.
    fn space(&self) -> SpaceId;

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

    /// Asks the device whether it answers.
    ///
    /// # Errors
    /// It does not.
    fn probe(&self) -> io::Result<()>;

    /// Looks after what is no job; returns whether something of it has run for `timeout`.
    fn look(&self, now: Instant, timeout: Option<Duration>) -> bool;
}
