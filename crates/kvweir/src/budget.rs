//! Bytes of a bounded root: reserved before the first byte is written, then committed or released, so that
//! resident + reserved never exceeds the bound (I1). Plain numbers; the tier's lock guards them, and a ledger
//! shared by processes can take this place without the tier noticing.

use std::time::Duration;

use crate::clock::Instant;

/// The byte account of one root.
#[derive(Debug)]
pub struct Budget {
    bound: Option<u64>,
    resident: u64,
    reserved: u64,
    peak: u64,
    lowered: Option<(u64, Instant)>,
}

/// Change of directory bytes on disk: `now` replaces `before`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Change {
    /// Bytes that were counted.
    pub(crate) before: u64,
    /// Bytes that are there.
    pub(crate) now: u64,
}

impl Change {
    /// Notes that a directory of `slot` bytes has `now`; returns that.
    pub(crate) fn set(&mut self, slot: u64, now: u64) -> u64 {
        self.before += slot;
        self.now += now;
        now
    }

    /// Adds another change to this one.
    pub(crate) fn add(&mut self, other: Self) {
        self.before += other.before;
        self.now += other.now;
    }
}

impl Budget {
    /// An account with `bound` bytes; `None` counts without limiting.
    pub fn new(bound: Option<u64>) -> Self {
        Self {
            bound,
            resident: 0,
            reserved: 0,
            peak: 0,
            lowered: None,
        }
    }

    /// The configured bound.
    pub fn bound(&self) -> Option<u64> {
        self.bound
    }

    /// Sets another bound. What is above it stays counted; nothing is granted until it is gone.
    pub fn set_bound(&mut self, bound: Option<u64>) {
        self.bound = bound;
    }

    /// The bound in force: lowered for a while after the device ran full below the configured one.
    pub fn effective(&self) -> Option<u64> {
        match (self.bound, self.lowered) {
            (b, Some((low, _))) => Some(b.map_or(low, |b| b.min(low))),
            (b, None) => b,
        }
    }

    /// Bytes on disk.
    pub fn resident(&self) -> u64 {
        self.resident
    }

    /// Bytes promised to writers.
    pub fn reserved(&self) -> u64 {
        self.reserved
    }

    /// The most that resident and reserved bytes came to together.
    pub fn peak(&self) -> u64 {
        self.peak
    }

    /// Bytes that may still be reserved.
    pub fn room(&self) -> u64 {
        self.effective()
            .map_or(u64::MAX, |b| b.saturating_sub(self.resident + self.reserved))
    }

    /// Bytes by which the account exceeds the bound in force.
    pub fn excess(&self) -> u64 {
        self.effective()
            .map_or(0, |b| (self.resident + self.reserved).saturating_sub(b))
    }

    /// Bytes by which the account exceeds the bound that was set, whatever the device can hold.
    pub fn above_bound(&self) -> u64 {
        self.bound
            .map_or(0, |b| (self.resident + self.reserved).saturating_sub(b))
    }

    /// Reserves up to `bytes`; returns how many were granted.
    pub fn grant(&mut self, bytes: u64) -> u64 {
        let granted = bytes.min(self.room());
        self.reserved += granted;
        self.peak = self.peak.max(self.resident + self.reserved);
        granted
    }

    /// Gives back reserved bytes.
    pub fn release(&mut self, bytes: u64) {
        debug_assert!(self.reserved >= bytes, "released more than was reserved");
        self.reserved = self.reserved.saturating_sub(bytes);
    }

    /// Counts bytes found or left on disk.
    pub fn add_resident(&mut self, bytes: u64) {
        self.resident += bytes;
        self.peak = self.peak.max(self.resident + self.reserved);
    }

    /// Counts bytes gone from disk.
    pub fn remove_resident(&mut self, bytes: u64) {
        debug_assert!(self.resident >= bytes, "removed more than was resident");
        self.resident = self.resident.saturating_sub(bytes);
    }

    /// Replaces `before` bytes on disk by `now`.
    pub fn change(&mut self, before: u64, now: u64) {
        self.resident = self.resident.saturating_add(now).saturating_sub(before);
        self.peak = self.peak.max(self.resident + self.reserved);
    }

    /// Counts a change of bytes on disk.
    pub(crate) fn apply(&mut self, change: Change) {
        self.change(change.before, change.now);
    }

    /// The device ran full: until `for_` from now the bound in force is what is resident now.
    pub fn lower(&mut self, now: Instant, for_: Duration) {
        let until = now.after(for_);
        self.lowered = Some((self.resident, until));
    }

    /// Ends a lowering at once.
    pub fn forget_lowering(&mut self) {
        self.lowered = None;
    }

    /// Ends a lowering whose time is over. Returns whether one ended.
    pub fn restore(&mut self, now: Instant) -> bool {
        match self.lowered {
            Some((_, until)) if now >= until => {
                self.lowered = None;
                true
            }
            _ => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn resident_and_reserved_never_exceed_the_bound() {
        let mut b = Budget::new(Some(100));
        assert_eq!(b.grant(60), 60);
        assert_eq!(b.grant(60), 40);
        assert_eq!(b.grant(1), 0);
        b.release(40);
        b.release(60);
        b.add_resident(55);
        assert_eq!((b.room(), b.peak()), (45, 100));
    }

    #[test]
    fn a_full_device_lowers_the_bound_for_a_while() {
        let mut b = Budget::new(Some(100));
        b.add_resident(40);
        b.lower(Instant::from_nanos(0), Duration::from_nanos(10));
        assert_eq!((b.effective(), b.room()), (Some(40), 0));
        assert!(!b.restore(Instant::from_nanos(9)));
        assert!(b.restore(Instant::from_nanos(10)));
        assert_eq!(b.effective(), Some(100));
        assert_eq!(Budget::new(None).room(), u64::MAX);
    }
}
