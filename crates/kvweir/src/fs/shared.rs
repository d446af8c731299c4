//! What the scheduler's handle, the workers and the keeper of a local tier share.

use std::{fmt, sync::Arc, time::Duration};

use super::layouts::Layouts;
use crate::{
    clock::{Clock, Instant},
    events::Locality,
    fs::{core::Core, phase::Phase, probes::Probes},
    jobs::{Runner, bounce::Bounce},
    namespace::Namespace,
    root::Root,
    sync::{
        Bell, Condvar, Mutex,
        atomic::{AtomicBool, AtomicU64},
        lock,
    },
};

/// Parameters that do not change in a tier's life.
#[derive(Debug, Clone)]
pub(crate) struct Params {
    pub(crate) name: String,
    /// Bytes of a block.
    pub(crate) block_len: usize,
    pub(crate) verify: bool,
    /// Bytes of the file system to leave free.
    pub(crate) min_free: Option<u64>,
    pub(crate) locality: Locality,
    pub(crate) pin_ttl: Duration,
    pub(crate) miss_ttl: Duration,
}

/// Shared by handle, workers and keeper.
pub(crate) struct Shared {
    pub(crate) params: Params,
    pub(crate) ns: Namespace,
    pub(crate) clock: Arc<dyn Clock>,
    /// The directory and its files.
    pub(crate) root: Root,
    /// What is held, and the bytes of that.
    pub(crate) core: Mutex<Core>,
    /// Signalled whenever an eviction was settled.
    pub(crate) settled: Condvar,
    /// How blocks lie below the root.
    pub(crate) layouts: Layouts<Self>,
    /// Where jobs end.
    pub(crate) runner: Runner,
    pub(crate) bounce: Bounce,
    pub(crate) probes: Mutex<Probes>,
    /// Woken when there is something to do for the keeper.
    pub(crate) keeper: Bell,
    /// Compactions asked for by tests, and those tried.
    pub(crate) compact_asked: AtomicU64,
    pub(crate) compact_tried: AtomicU64,
    /// How far opening is.
    pub(crate) phase: Mutex<Phase>,
    pub(crate) phase_changed: Condvar,
    pub(crate) stop: AtomicBool,
    /// Whether this tier, which has no bound, stopped to store for those who have one.
    pub(crate) gave_way: AtomicBool,
    /// For a tier without a bound, the directories above its root: one of them may become a root that has one.
    pub(crate) above: Vec<std::path::PathBuf>,
    /// Held by the worker that makes room above the floor; taken before every other lock.
    pub(crate) floor: Mutex<()>,
    /// When the file system was last asked for its free bytes, and what it said less what was reserved since.
    pub(crate) free: Mutex<Option<(Instant, u64)>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn set_phase(&self, phase: Phase) {
        *lock(&self.phase) = phase;
        self.phase_changed.notify_all();
    }
}
