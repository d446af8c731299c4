//! What the frames of a member's files come to.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;

use super::record::{At, Frame, HEADER_BYTES, Header, Record, decode};
use crate::{
    block::{Fingerprint, Key},
    fs::layout::{Fan, Leaf},
};

/// A block that a member owned.
#[derive(Debug, Clone)]
pub(crate) struct Owned {
    pub(crate) fp: Fingerprint,
    /// Index into the reader's list of namespaces.
    pub(crate) namespace: u16,
    pub(crate) leaf: Leaf,
    pub(crate) fan: Fan,
    pub(crate) trailer: bool,
    pub(crate) bad: bool,
    /// Units of 512 bytes.
    pub(crate) cost: u32,
    pub(crate) written_at: u32,
    pub(crate) key: Option<Key>,
    /// When it was used last, by the journal's own count.
    pub(crate) used: u64,
}

/// A leaf directory: namespace by the reader's number, place, kind.
pub(crate) type LeafAt = (u16, Fan, Leaf);

/// The state while frames are read.
#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) namespaces: Vec<String>,
    /// A file's own numbers of shelves.
    pub(super) shelves: HashMap<u16, (u16, Leaf), FixedState>,
    /// By the low half of the fingerprint, which touches tell.
    pub(super) blocks: HashMap<u64, Owned, FixedState>,
    pub(super) open: HashSet<(Fingerprint, LeafAt), FixedState>,
    pub(super) leaves: HashMap<LeafAt, u32, FixedState>,
    pub(super) highs: HashMap<(u16, u32), u32, FixedState>,
    pub(super) tops: HashMap<u16, u32, FixedState>,
    pub(super) clock: u64,
}

impl State {
    /// Reads a file; returns its header, the bytes up to the last whole frame, and whether a snapshot is whole.
    pub(super) fn file(
        &mut self,
        bytes: &[u8],
        member: u32,
        generation: u32,
        snapshot: bool,
    ) -> Result<(Header, u64, bool), String> {
        let header = Header::decode(bytes).ok_or("its header is not whole")?;
        if (header.member, header.generation, header.snapshot) != (member, generation, snapshot) {
            return Err("it is another file's".into());
        }
        // a block is told in some 60 bytes, or in twice that
        self.blocks.reserve(bytes.len() / 120);
        self.leaves.reserve(bytes.len() / 120);
        let (mut at, mut records) = (HEADER_BYTES, 0);
        loop {
            match decode(header.nonce, at as u64, bytes.get(at..).unwrap_or_default()) {
                Frame::End => return Ok((header, at as u64, false)),
                Frame::Damaged => return Err(format!("the frame at byte {at}")),
                Frame::Record(Record::End { records: n }, len) => {
                    return Ok((header, (at + len) as u64, n == records));
                }
                Frame::Record(r, len) => {
                    self.apply(&r).ok_or_else(|| format!("the record at byte {at}"))?;
                    at += len;
                    records += 1;
                }
            }
        }
    }

    fn place(&self, at: &At) -> Option<LeafAt> {
        let &(ns, leaf) = self.shelves.get(&at.shelf)?;
        Some((ns, at.fan, leaf))
    }

    fn apply(&mut self, record: &Record<'_>) -> Option<()> {
        match *record {
            Record::Shelf { number, leaf, dir } => {
                let ns = match self.namespaces.iter().position(|n| n == dir) {
                    Some(n) => n,
                    None => {
                        self.namespaces.push(dir.to_owned());
                        self.namespaces.len() - 1
                    }
                };
                self.shelves.insert(number, (u16::try_from(ns).ok()?, leaf));
            }
            Record::Begin(at) | Record::Evict(at) => {
                let place = self.place(&at)?;
                self.open.insert((at.fp, place));
            }
            Record::Stored(at, facts, key) => {
                let place = self.place(&at)?;
                self.open.remove(&(at.fp, place));
                let (ns, fan, leaf) = place;
                let [leaf_cost, high, top] = facts.dirs;
                self.leaves.insert(place, leaf_cost);
                self.highs.insert((ns, fan.high()), high);
                self.tops.insert(ns, top);
                self.clock += 1;
                let new = Owned {
                    fp: at.fp,
                    namespace: ns,
                    leaf,
                    fan,
                    trailer: facts.trailer,
                    bad: facts.bad,
                    cost: facts.cost,
                    written_at: facts.written_at,
                    key: key.and_then(|k| Key::new(k).ok()),
                    used: self.clock,
                };
                let old = self.blocks.insert(at.fp.hash64(), new);
                // two fingerprints with one half in common: touches could not tell them apart
                if old.is_some_and(|o| o.fp != at.fp) {
                    return None;
                }
            }
            Record::Gone(at, [leaf_cost, high, top]) => {
                let place = self.place(&at)?;
                self.open.remove(&(at.fp, place));
                if self.blocks.get(&at.fp.hash64()).is_some_and(|o| o.fp == at.fp) {
                    self.blocks.remove(&at.fp.hash64());
                }
                set_or_remove(&mut self.leaves, place, leaf_cost);
                set_or_remove(&mut self.highs, (place.0, place.1.high()), high);
                self.tops.insert(place.0, top);
            }
            Record::Touch(hashes) => {
                for h in hashes.chunks_exact(8) {
                    let hash = u64::from_le_bytes(*h.first_chunk::<8>()?);
                    if let Some(o) = self.blocks.get_mut(&hash) {
                        self.clock += 1;
                        o.used = self.clock;
                    }
                }
            }
            Record::Dir {
                shelf,
                level,
                fan,
                cost,
            } => {
                let &(ns, leaf) = self.shelves.get(&shelf)?;
                match level {
                    0 => self.tops.insert(ns, cost),
                    1 => self.highs.insert((ns, fan.high()), cost),
                    _ => self.leaves.insert((ns, fan, leaf), cost),
                };
            }
            Record::End { .. } => {}
        }
        Some(())
    }
}

fn set_or_remove<K: Eq + std::hash::Hash>(map: &mut HashMap<K, u32, FixedState>, key: K, cost: u32) {
    if cost == 0 {
        map.remove(&key);
    } else {
        map.insert(key, cost);
    }
}
