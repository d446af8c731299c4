//! Residency events: what a router or a prefix index needs to know of each tier. For every key the last event
//! tells its true residency; a `Stored` that eviction overtook before it was taken is suppressed (I7).
//!
//! A log from which nobody takes does not grow without end. When many events wait, those that a later one of the same
//! key overtook are dropped, and so are removals of blocks that the reader was never told about: what waits is then at
//! most one event for each block that the reader believes to be there and one for each that is. The last event of a key
//! is never dropped unless it says nothing new.

use std::{
    collections::{HashMap, HashSet},
    fmt,
    str::FromStr,
};

use foldhash::fast::FixedState;

use serde::{Deserialize, Serialize};

use crate::{
    block::Key,
    error::{Error, Result},
};

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

/// Where the medium behind a tier is; decides the default water marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum Locality {
    /// A disk of this machine.
    #[default]
    Local,
    /// Reached over a network: a network file system or an object store.
    Remote,
}

impl From<Locality> for &'static str {
    fn from(locality: Locality) -> Self {
        match locality {
            Locality::Local => "LOCAL",
            Locality::Remote => "REMOTE",
        }
    }
}

impl FromStr for Locality {
    type Err = Error;

    /// `local` or `remote`, in any letter case.
    fn from_str(s: &str) -> Result<Self> {
        match s {
            _ if s.eq_ignore_ascii_case("local") => Ok(Self::Local),
            _ if s.eq_ignore_ascii_case("remote") => Ok(Self::Remote),
            _ => Err(Error::invalid(
                "configure back-pressure",
                format!("locality is LOCAL or REMOTE in any letter case, not {s:?}"),
            )),
        }
    }
}

impl TryFrom<String> for Locality {
    type Error = Error;

    fn try_from(s: String) -> Result<Self> {
        s.parse()
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
    /// How many events may wait before they are compacted.
    limit: usize,
    /// Fingerprints of the blocks that the events taken so far tell to be there.
    told: HashSet<u128, FixedState>,
}

/// Fewer events than these are not compacted.
const LEAST: usize = 1 << 14;

impl EventLog {
    /// A log that records only if `enabled`.
    pub fn new(enabled: bool, medium: Medium, locality: Locality) -> Self {
        Self {
            enabled,
            medium,
            locality,
            next_seq: 0,
            pending: Vec::new(),
            limit: LEAST,
            told: HashSet::default(),
        }
    }

    /// Whether anything is recorded.
    pub fn enabled(&self) -> bool {
        self.enabled
    }

    /// Records that `key` became loadable.
    pub fn stored(&mut self, key: &Key) {
        self.push(EventKind::Stored, key);
    }

    /// Records that `key` is gone.
    pub fn removed(&mut self, key: &Key) {
        self.push(EventKind::Removed, key);
    }

    fn push(&mut self, kind: EventKind, key: &Key) {
        if self.enabled {
            self.pending.push((kind, key.clone()));
            if self.pending.len() >= self.limit {
                self.coalesce();
            }
        }
    }

    /// Keeps the last waiting event of each key, unless it says nothing new.
    #[cold]
    fn coalesce(&mut self) {
        let pending = std::mem::take(&mut self.pending);
        let mut last: HashMap<&Key, usize, FixedState> = HashMap::default();
        for (i, (_, key)) in pending.iter().enumerate() {
            last.insert(key, i);
        }
        let told = &self.told;
        let news = |i: usize, kind: EventKind, key: &Key| {
            let is_last = last.get(key) == Some(&i);
            is_last && (kind == EventKind::Stored || told.contains(&name(key)))
        };
        let keep: Vec<bool> = pending
            .iter()
            .enumerate()
            .map(|(i, (kind, key))| news(i, *kind, key))
            .collect();
        let kept = pending.into_iter().zip(keep).filter(|(_, keep)| *keep);
        self.pending = kept.map(|(event, _)| event).collect();
        self.limit = LEAST.max(2 * self.pending.len());
    }

    /// Moves what is pending to `out`, numbered. A `Stored` that a later `Removed` of the same key overtook is
    /// left out.
    pub fn take(&mut self, out: &mut Vec<Event>) {
        let pending = std::mem::take(&mut self.pending);
        self.limit = LEAST;
        let mut last_removed: HashMap<&Key, usize, FixedState> = HashMap::default();
        for (i, (kind, key)) in pending.iter().enumerate() {
            if *kind == EventKind::Removed {
                last_removed.insert(key, i);
            }
        }
        for (i, (kind, key)) in pending.iter().enumerate() {
            match kind {
                EventKind::Stored if last_removed.get(key).is_some_and(|&r| r > i) => continue,
                EventKind::Stored => self.told.insert(name(key)),
                EventKind::Removed => self.told.remove(&name(key)),
            };
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

/// By what a block is remembered.
fn name(key: &Key) -> u128 {
    key.fingerprint(0).0
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

    /// Nobody took events: the log grew by two keys for each block that came and went, for ever.
    #[test]
    fn a_log_that_nobody_takes_from_is_bounded_by_what_is_there() {
        let long = |n: u32| Key::new(&n.to_le_bytes()).unwrap();
        let mut log = EventLog::new(true, Medium::Storage, Locality::Local);
        let mut believed = HashSet::new();
        let mut take = |log: &mut EventLog| {
            let mut out = Vec::new();
            log.take(&mut out);
            for e in out {
                match e.kind {
                    EventKind::Stored => believed.insert(e.key),
                    EventKind::Removed => believed.remove(&e.key),
                };
            }
            believed.clone()
        };
        for n in 0..100 {
            log.stored(&long(n));
        }
        assert_eq!(take(&mut log).len(), 100);
        for n in 0..1_000_000u32 {
            log.removed(&long(n));
            log.stored(&long(n + 100));
            assert!(log.pending.len() <= LEAST, "{} events wait", log.pending.len());
        }
        let there: HashSet<Key> = (1_000_000..1_000_100).map(long).collect();
        assert_eq!(take(&mut log), there);
    }

    proptest::proptest! {
        /// However often the log goes through its events, whoever takes them believes what is so.
        #[test]
        fn what_is_believed_is_what_is_there(
            ops in proptest::collection::vec((0..4u8, 0..12u8), 1..400),
            limit in 1..20usize,
        ) {
            let mut log = EventLog::new(true, Medium::Cpu, Locality::Local);
            let (mut there, mut believed) = (HashSet::new(), HashSet::new());
            for (what, k) in ops {
                let k = key(k);
                match what {
                    0 => {
                        log.stored(&k);
                        there.insert(k);
                    }
                    1 | 2 => {
                        log.removed(&k);
                        there.remove(&k);
                    }
                    _ => {
                        let mut out = Vec::new();
                        log.take(&mut out);
                        for e in out {
                            match e.kind {
                                EventKind::Stored => believed.insert(e.key),
                                EventKind::Removed => believed.remove(&e.key),
                            };
                        }
                        proptest::prop_assert_eq!(&believed, &there);
                    }
                }
                if log.pending.len() >= limit {
                    log.coalesce();
                    proptest::prop_assert!(log.pending.len() <= there.len() + believed.len());
                }
            }
        }
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
