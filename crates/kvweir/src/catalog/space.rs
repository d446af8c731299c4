//! What each space that shares a catalog has of its own: requests and their pins, events, numbers of its traffic, and
//! whether it is closed. Blocks and the order in which they go are everybody's.

use super::pins::Pins;
use crate::{events::EventLog, metrics::TierStats};

/// A space of a root by number: a namespace that is served here, with blocks of one length. Its namespace has the same
/// number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub(crate) struct SpaceId(pub(crate) u16);

/// What one space has of its own.
#[derive(Debug)]
pub(crate) struct SpaceState {
    /// Lookups, stores and loads: what depends on requests alone.
    pub(crate) stats: TierStats,
    pub(super) events: EventLog,
    pub(super) pins: Pins,
    /// Nothing is a hit any more, and nothing becomes one.
    pub(super) closed: bool,
}

impl SpaceState {
    fn new(events: EventLog) -> Self {
        Self {
            stats: TierStats::default(),
            events,
            pins: Pins::default(),
            closed: false,
        }
    }
}

/// The spaces of a catalog: at least one.
#[derive(Debug)]
pub(super) struct Spaces {
    first: SpaceState,
    others: Vec<SpaceState>,
}

impl Spaces {
    pub(super) fn new(first: EventLog, others: Vec<EventLog>) -> Self {
        Self {
            first: SpaceState::new(first),
            others: others.into_iter().map(SpaceState::new).collect(),
        }
    }

    #[inline]
    pub(super) fn get(&self, space: SpaceId) -> &SpaceState {
        let n = usize::from(space.0).checked_sub(1);
        n.and_then(|n| self.others.get(n)).unwrap_or(&self.first)
    }

    #[inline]
    pub(super) fn get_mut(&mut self, space: SpaceId) -> &mut SpaceState {
        match usize::from(space.0).checked_sub(1) {
            None => &mut self.first,
            Some(n) => self.others.get_mut(n).unwrap_or(&mut self.first),
        }
    }

    pub(super) fn iter_mut(&mut self) -> impl Iterator<Item = &mut SpaceState> {
        std::iter::once(&mut self.first).chain(&mut self.others)
    }
}
