//! Looks on disk for keys that the index does not know, under way and answered.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::{block::Fingerprint, clock::Instant};

/// Most misses remembered at one time.
const MAX_MISSES: usize = 1 << 16;

/// Probes under way and misses remembered.
#[derive(Debug, Default)]
pub(crate) struct Probes {
    /// Since when each is looked for.
    pub(crate) running: HashMap<Fingerprint, Instant, FixedState>,
    misses: HashMap<Fingerprint, Instant, FixedState>,
}

impl Probes {
    /// Whether `fp` was missing a short while ago.
    pub(crate) fn is_known_miss(&mut self, fp: Fingerprint, now: Instant) -> bool {
        match self.misses.get(&fp) {
            Some(&until) if now < until => true,
            Some(_) => {
                self.misses.remove(&fp);
                false
            }
            None => false,
        }
    }

    /// When the oldest probe under way began.
    pub(crate) fn oldest(&self) -> Option<Instant> {
        self.running.values().min().copied()
    }

    pub(crate) fn miss(&mut self, fp: Fingerprint, now: Instant, until: Instant) {
        if self.misses.len() >= MAX_MISSES {
            self.misses.retain(|_, &mut t| now < t);
            if self.misses.len() >= MAX_MISSES {
                self.misses.clear();
            }
        }
        self.misses.insert(fp, until);
    }
}
