//! What the handles, the workers and the keeper of all spaces below one root share.

use std::{
    fmt,
    sync::{Arc, Weak},
};

use crate::{
    catalog::space::SpaceId,
    clock::{Clock, Instant},
    fs::{core::Core, phase::Phase},
    metrics::EvictReason,
    namespace::Namespace,
    root::Root,
    sync::{
        Bell, Condvar, Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64},
        lock,
    },
};

/// A namespace that is served.
#[derive(Debug, Clone)]
pub(crate) struct Served {
    pub(crate) ns: Namespace,
    /// Bytes of a block.
    pub(crate) block_len: u64,
}

/// A space, as those who need room see it.
pub(crate) trait Gives: Send + Sync {
    /// Its number.
    fn id(&self) -> SpaceId;

    /// Whether its tier was not shut down.
    fn is_open(&self) -> bool;

    /// Whether its new blocks are packed.
    fn packs(&self) -> bool;

    /// Bytes that it has in what no single block holds.
    fn held(&self) -> u64;

    /// Bytes of that which come or go at once.
    fn step(&self) -> u64;

    /// Gives bytes back that no single block holds; returns whether any are free now.
    fn give_back(&self, reason: EvictReason) -> bool;
}

/// Shared by handles, workers and keeper.
pub(crate) struct Shared {
    /// The name of the first space's tier, for what the log tells of the root.
    pub(crate) name: String,
    /// Bytes of the file system to leave free.
    pub(crate) min_free: Option<u64>,
    /// Bytes without which a member can store nothing.
    pub(crate) least_share: u64,
    /// The namespaces that are served, by number.
    pub(crate) served: Vec<Served>,
    pub(crate) clock: Arc<dyn Clock>,
    /// The directory and its files.
    pub(crate) root: Root,
    /// What is held, and the bytes of that.
    pub(crate) core: Mutex<Core>,
    /// Signalled whenever an eviction was settled.
    pub(crate) settled: Condvar,
    /// The spaces, which the keeper or their handles hold.
    pub(crate) spaces: OnceLock<Vec<Weak<dyn Gives>>>,
    /// Woken when there is something to do for the keeper.
    pub(crate) keeper: Bell,
    /// Compactions asked for by tests, and those tried.
    pub(crate) compact_asked: AtomicU64,
    pub(crate) compact_tried: AtomicU64,
    /// How far opening is.
    pub(crate) phase: Mutex<Phase>,
    pub(crate) phase_changed: Condvar,
    pub(crate) stop: AtomicBool,
    /// Whether this engine, which has no bound, stopped storing for those that have one.
    pub(crate) gave_way: AtomicBool,
    /// For an engine without a bound, the directories above its root: one of them may become a root that has one.
    pub(crate) above: Vec<std::path::PathBuf>,
    /// Held by the worker that makes room above the floor; taken before every other lock.
    pub(crate) floor: Mutex<()>,
    /// When the file system was last asked for its free bytes, and what it said less what was reserved since.
    pub(crate) free: Mutex<Option<(Instant, u64)>>,
}

impl fmt::Debug for Shared {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Shared")
            .field("root", &self.root.path)
            .finish_non_exhaustive()
    }
}

impl Shared {
    pub(crate) fn set_phase(&self, phase: Phase) {
        *lock(&self.phase) = phase;
        self.phase_changed.notify_all();
    }

    /// The spaces, as those who need room see them.
    pub(crate) fn spaces(&self) -> impl Iterator<Item = Arc<dyn Gives>> {
        self.spaces.get().into_iter().flatten().filter_map(Weak::upgrade)
    }

    /// What a member's ledger entry and its journal's header tell: those of the first namespace.
    pub(crate) fn seed(&self) -> u64 {
        self.served.first().map_or(0, |s| s.ns.seed())
    }

    /// The same: bytes of a block.
    pub(crate) fn block_len(&self) -> u64 {
        self.served.first().map_or(0, |s| s.block_len)
    }

    /// What tells the served namespaces in a ledger.
    pub(crate) fn seeds(&self) -> Vec<u64> {
        self.served.iter().map(|s| s.ns.seed()).collect()
    }

    /// The directories of the served namespaces, by number.
    pub(crate) fn served_dirs(&self) -> Vec<String> {
        self.served.iter().map(|s| s.ns.dir().to_owned()).collect()
    }

    /// The number of the served namespace in directory `dir`.
    pub(crate) fn served_in(&self, dir: &str) -> Option<usize> {
        self.served.iter().position(|s| s.ns.dir() == dir)
    }

    /// Gives bytes back that no single block holds, of the space that has most; returns whether any are free now.
    pub(crate) fn give_back(&self, reason: EvictReason) -> bool {
        let mut all: Vec<Arc<dyn Gives>> = self.spaces().collect();
        all.sort_by_cached_key(|s| std::cmp::Reverse(s.held()));
        all.iter().any(|s| s.give_back(reason))
    }
}
