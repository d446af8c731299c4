//! What the keeper's thread works with.

use std::{
    collections::{HashMap, HashSet},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use foldhash::fast::FixedState;

use super::{
    end::End,
    looks::{Looks, Round},
};
use crate::{
    clock::Instant,
    fs::recover::opening::Opening,
    fs::{shared::Shared, space::Space},
    io::DiskFile,
    root::{
        dead::Dead,
        journal::{Follower, Owned},
    },
};

/// Between two visits.
pub(super) const TICK: Duration = Duration::from_millis(100);

/// What is ours in memory and not yet on disk.
#[derive(Debug)]
pub(crate) struct Adoption {
    pub(super) dead: Dead,
    /// Bytes of its files.
    pub(super) bytes: u64,
    pub(super) files: Vec<PathBuf>,
    pub(super) blocks: Vec<Owned>,
    /// Whether it was told that it does not go on.
    pub(super) told: bool,
    /// Its lock: nobody takes its number meanwhile.
    pub(super) _lock: Box<dyn DiskFile>,
}

/// What the thread works with.
pub(crate) struct Keeper {
    pub(crate) shared: Arc<Shared>,
    /// All spaces of the root: each lives as long as the root is claimed, whose bytes it may hold.
    pub(crate) spaces: Vec<Arc<Space>>,
    /// Its membership, and what its start found.
    pub(crate) opening: Opening,
    pub(crate) end: Arc<End>,
    /// Other members that live, with their incarnation.
    pub(crate) followers: HashMap<u32, (u32, Follower), FixedState>,
    /// When a member was first seen dead.
    pub(crate) dead: HashMap<(u32, u32), Instant, FixedState>,
    /// Readings of others' journals begun so far.
    pub(crate) readings: u32,
    /// What was taken over and is not written down yet.
    pub(crate) adopting: Option<Adoption>,
    /// How far it is with directories that could not be removed.
    pub(crate) emptied: Round,
    /// Since when more lies there than may, and whether that was told.
    pub(crate) above: Option<(Instant, bool)>,
    /// Dead members whose journals cannot be used.
    pub(crate) unusable: HashSet<(u32, u32)>,
    /// The journal's length at which compaction is tried next.
    pub(crate) compact_at: u64,
    /// Whether another live member walks the tree.
    pub(crate) other_walks: bool,
    /// Whether trouble with the ledger was told.
    pub(crate) ledger_told: bool,
    /// Whether the ledger does not know this member any more.
    pub(crate) lost: bool,
    /// Visits until extents that could not be read are tried again, and how many there were before the last time.
    pub(crate) claim_rest: (u32, u32),
    /// What is known of what somebody else removed.
    pub(crate) looks: Looks,
}

impl Keeper {
    /// A keeper that has not begun.
    pub(super) fn new(opening: Opening, spaces: Vec<Arc<Space>>) -> Self {
        Self {
            shared: Arc::clone(&opening.shared),
            spaces,
            opening,
            end: Arc::default(),
            followers: HashMap::default(),
            dead: HashMap::default(),
            readings: 0,
            adopting: None,
            emptied: Round::default(),
            above: None,
            unusable: HashSet::default(),
            compact_at: 0,
            other_walks: false,
            ledger_told: false,
            lost: false,
            claim_rest: (0, 0),
            looks: Looks::default(),
        }
    }
}
