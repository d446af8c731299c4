//! A space: one namespace that is served from a root, with blocks of one length and a layout of its own. All spaces of
//! a process on one root share the rest: root, account, catalog, keeper, workers ([`Shared`]).

use std::{fmt, ops::Deref, sync::Arc, time::Duration};

use super::layouts::Layouts;
use crate::{
    block::Key,
    catalog::{body::Rank, space::SpaceId},
    events::Locality,
    fs::{
        probes::Probes,
        shared::{Gives, Shared},
    },
    jobs::{Runner, bounce::Bounce},
    metrics::EvictReason,
    namespace::Namespace,
    root::names::Location,
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

/// Parameters that do not change in a space's life.
#[derive(Debug, Clone)]
pub(crate) struct Params {
    pub(crate) name: String,
    /// Bytes of a block.
    pub(crate) block_len: usize,
    pub(crate) verify: bool,
    pub(crate) locality: Locality,
    pub(crate) pin_ttl: Duration,
    pub(crate) miss_ttl: Duration,
}

/// One namespace below a root, as its handle and the workers have it. It derefs to what it shares with the others.
pub(crate) struct Space {
    pub(crate) shared: Arc<Shared>,
    /// Its number, which its namespace has too.
    pub(crate) id: SpaceId,
    pub(crate) params: Params,
    pub(crate) ns: Namespace,
    /// How its blocks lie below the root.
    pub(crate) layouts: Layouts<Self>,
    /// Where its jobs end.
    pub(crate) runner: Runner,
    pub(crate) bounce: Bounce,
    pub(crate) probes: Mutex<Probes>,
    /// Its tier was shut down.
    pub(crate) ended: AtomicBool,
}

impl Space {
    /// Where the file of a block lies.
    pub(crate) fn location(&self, key: &Key) -> Location {
        Location::of(key).below(self.id.0)
    }
}

impl Gives for Space {
    fn id(&self) -> SpaceId {
        self.id
    }

    fn is_open(&self) -> bool {
        !self.ended.load(Ordering::Relaxed)
    }

    fn packs(&self) -> bool {
        self.layouts.first_rank() != Rank::Whole
    }

    fn held(&self) -> u64 {
        self.layouts.iter().map(|l| l.held(self)).sum()
    }

    fn step(&self) -> u64 {
        self.layouts.iter().map(|l| l.step(self)).max().unwrap_or(0)
    }

    fn give_back(&self, reason: EvictReason) -> bool {
        self.layouts.give_back(self, reason)
    }
}

impl Deref for Space {
    type Target = Shared;

    fn deref(&self) -> &Shared {
        &self.shared
    }
}

impl fmt::Debug for Space {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Space")
            .field("params", &self.params)
            .finish_non_exhaustive()
    }
}
