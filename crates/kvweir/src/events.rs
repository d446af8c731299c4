//! Residency events: what a router or a prefix index needs to know of each tier. For every key the last event
//! tells its true residency; a `Stored` that eviction overtook before it was taken is suppressed (I7).

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::block::Key;
pub use crate::pressure::Locality;

/// Where a tier keeps its bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "UPPERCASE")]
pub enum Medium {
    /// Host memory.
    Cpu,
    /// Disk, shared file system or object store.
    Storage,
}

impl Medium {
    /// The word that engines use.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Cpu => "CPU",
            Self::Storage => "STORAGE",
        }
    }
}

impl fmt::Display for Medium {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// What happened to a block in a tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum EventKind {
    /// It can be loaded from now on.
    Stored,
    /// It cannot be loaded any more. May come more than once and without a `Stored` before it.
    Removed,
}

/// One residency change.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Event {
    /// Rising by one within a tier's life.
    pub seq: u64,
    /// Stored or removed.
    pub kind: EventKind,
    /// Which block.
    pub key: Key,
    /// Where the tier keeps its bytes.
    pub medium: Medium,
    /// Whether those lie on this machine.
    pub locality: Locality,
}

/// The events of one tier that were not taken yet.
#[derive(Debug)]
pub struct EventLog {
    enabled: bool,
    medium: Medium,
    locality: Locality,
    next_seq: u64,
    pending: Vec<(EventKind, Key)>,
}

impl EventLog {
    /// A log that records only if `enabled`.
    pub fn new(enabled: bool, medium: Medium, locality: Locality) -> Self {
        Self {
            enabled,
            medium,
            locality,
            next_seq: 0,
            pending: Vec::new(),
        }
    }

    /// Whether anything is recorded.
    pub fn enabled(&self) -> bool {
        self.enabled
    }

    /// Records that `key` became loadable.
    pub fn stored(&mut self, key: &Key) {
        if self.enabled {
            self.pending.push((EventKind::Stored, key.clone()));
        }
    }

    /// Records that `key` is gone.
    pub fn removed(&mut self, key: &Key) {
        if self.enabled {
            self.pending.push((EventKind::Removed, key.clone()));
        }
    }

    /// Moves what is pending to `out`, numbered. A `Stored` that a later `Removed` of the same key overtook is
    /// left out.
    pub fn take(&mut self, out: &mut Vec<Event>) {
        let pending = std::mem::take(&mut self.pending);
        let mut last_removed: std::collections::HashMap<&Key, usize, foldhash::fast::FixedState> =
            std::collections::HashMap::default();
        for (i, (kind, key)) in pending.iter().enumerate() {
            if *kind == EventKind::Removed {
                last_removed.insert(key, i);
            }
        }
        for (i, (kind, key)) in pending.iter().enumerate() {
            let overtaken = *kind == EventKind::Stored && last_removed.get(key).is_some_and(|&r| r > i);
            if !overtaken {
                let (medium, locality) = (self.medium, self.locality);
                out.push(Event {
                    seq: self.next_seq,
                    kind: *kind,
                    key: key.clone(),
                    medium,
                    locality,
                });
                self.next_seq += 1;
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(b: u8) -> Key {
        Key::new(&[b]).unwrap()
    }

    #[test]
    fn a_stored_event_overtaken_by_eviction_is_suppressed_and_order_is_kept() {
        let mut log = EventLog::new(true, Medium::Storage, Locality::Local);
        log.stored(&key(1));
        log.removed(&key(2));
        log.stored(&key(2));
        log.removed(&key(1));
        log.stored(&key(3));
        let mut out = Vec::new();
        log.take(&mut out);
        let got: Vec<_> = out.iter().map(|e| (e.seq, e.kind, e.key.as_bytes()[0])).collect();
        let want = [
            (0, EventKind::Removed, 2),
            (1, EventKind::Stored, 2),
            (2, EventKind::Removed, 1),
            (3, EventKind::Stored, 3),
        ];
        assert_eq!(got, want);
        log.stored(&key(4));
        out.clear();
        log.take(&mut out);
        assert_eq!(out[0].seq, 4);
    }

    #[test]
    fn a_log_that_is_off_keeps_nothing() {
        let mut log = EventLog::new(false, Medium::Cpu, Locality::Local);
        log.stored(&key(1));
        let mut out = Vec::new();
        log.take(&mut out);
        assert!(out.is_empty());
    }
}
