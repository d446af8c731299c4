//! Which blocks entered the primary recently: four times as many as it has slots, since a primary that evicts the ends
//! of prefixes first keeps their heads longer than the blocks that came last.

use std::collections::HashMap;

use foldhash::fast::FixedState;

/// Blocks remembered, in units of the primary.
const PRIMARIES: usize = 4;

/// The last blocks that entered the primary.
#[derive(Debug)]
pub(super) struct Recent {
    ring: Vec<u64>,
    next: usize,
    most: usize,
    /// How often each stands in the ring.
    times: HashMap<u64, u32, FixedState>,
}

impl Recent {
    pub(super) fn new(slots: usize) -> Self {
        Self {
            ring: Vec::new(),
            next: 0,
            most: slots.saturating_mul(PRIMARIES).max(1),
            times: HashMap::default(),
        }
    }

    /// A block was stored from the primary, or promoted into it.
    pub(super) fn entered(&mut self, id: u64) {
        if self.ring.len() < self.most {
            self.ring.push(id);
        } else if let Some(old) = self.ring.get_mut(self.next) {
            let gone = std::mem::replace(old, id);
            if let Some(n) = self.times.get_mut(&gone) {
                *n -= 1;
                if *n == 0 {
                    self.times.remove(&gone);
                }
            }
        }
        self.next = (self.next + 1) % self.most;
        *self.times.entry(id).or_default() += 1;
    }

    /// Whether a block is likely to be there.
    pub(super) fn has(&self, id: u64) -> bool {
        self.times.contains_key(&id)
    }

    pub(super) fn clear(&mut self) {
        self.ring.clear();
        self.times.clear();
        self.next = 0;
    }
}
