//! Room below the bound while blocks are moved.

/// The bytes below the root, as `du` counts them.
#[derive(Debug)]
pub(crate) struct Room {
    bound: u64,
    used: u64,
    peak: u64,
}

impl Room {
    pub(crate) fn new(bound: u64, used: u64) -> Self {
        Self {
            bound,
            used,
            peak: used,
        }
    }

    pub(crate) fn left(&self) -> u64 {
        self.bound.saturating_sub(self.used)
    }

    pub(crate) fn used(&self) -> u64 {
        self.used
    }

    pub(crate) fn peak(&self) -> u64 {
        self.peak
    }

    /// What took `before` bytes takes `now`.
    pub(crate) fn change(&mut self, before: u64, now: u64) {
        self.used = (self.used + now).saturating_sub(before);
        self.peak = self.peak.max(self.used);
    }
}
