//! Folds the frames of a member's files into what it owns.

use std::collections::{HashMap, HashSet};

use foldhash::fast::FixedState;

use super::{
    blocks::{Blocks, Owned},
    header::{HEADER_BYTES, Header},
    record::{At, Frame, Record, decode},
    unusable::Unusable,
    window::Window,
};
use crate::{
    block::{Fingerprint, Key},
    root::{
        leaves::{LeafAt, Leaves},
        names::DirKind,
    },
};

/// Bytes that a journal spends on a block: some 60, or twice that. Room is made for those that were read, whatever a
/// file's length says.
const A_BLOCK: usize = 120;

/// The state while frames are read.
#[derive(Debug, Default)]
pub(super) struct FoldState {
    pub(super) namespaces: Vec<String>,
    /// A file's own numbers of classes.
    pub(super) classes: HashMap<u16, (u16, DirKind), FixedState>,
    pub(super) blocks: Blocks,
    pub(super) open: HashSet<(Fingerprint, LeafAt), FixedState>,
    pub(super) leaves: Leaves,
    pub(super) highs: HashMap<(u16, u32), u32, FixedState>,
    pub(super) tops: HashMap<u16, u32, FixedState>,
}

impl FoldState {
    /// Reads a file; returns its header, the bytes up to the last whole frame, and whether a snapshot is whole.
    pub(super) fn file(
        &mut self,
        bytes: &mut Window,
        member: u32,
        generation: u32,
        snapshot: bool,
    ) -> Result<(Header, u64, bool), Unusable> {
        let damaged = |what: String| Unusable::Damaged(what);
        let header = Header::decode(bytes.rest()).ok_or_else(|| damaged("its header is not whole".into()))?;
        if (header.member, header.generation, header.snapshot) != (member, generation, snapshot) {
            return Err(damaged("it is another file's".into()));
        }
        bytes.advance(HEADER_BYTES);
        self.blocks.reserve(bytes.rest().len() / A_BLOCK);
        let (mut at, mut records) = (HEADER_BYTES as u64, 0);
        let whole = loop {
            match decode(header.nonce, at, bytes.rest()) {
                Frame::End => {
                    if !bytes.more()? {
                        break false;
                    }
                    self.blocks.reserve(bytes.rest().len() / A_BLOCK);
                }
                Frame::Damaged => return Err(damaged(format!("the frame at byte {at}"))),
                Frame::Record(r, len) => {
                    at += len as u64;
                    if let Record::End { records: n } = r {
                        break n == records;
                    }
                    let applied = self.apply(&r);
                    applied.ok_or_else(|| damaged(format!("the record before byte {at}")))?;
                    bytes.advance(len);
                    records += 1;
                }
            }
        };
        let noted = self.blocks.note();
        noted.ok_or_else(|| damaged(format!("two blocks before byte {at} look the same")))?;
        Ok((header, at, whole))
    }

    fn place(&self, at: &At) -> Option<LeafAt> {
        let &(ns, leaf) = self.classes.get(&at.class)?;
        Some((ns, at.prefix, leaf))
    }

    /// What was begun has ended.
    fn ended(&mut self, fp: Fingerprint, place: LeafAt) {
        if !self.open.is_empty() {
            self.open.remove(&(fp, place));
        }
    }

    fn apply(&mut self, record: &Record<'_>) -> Option<()> {
        match *record {
            Record::DirClass { number, leaf, dir } => {
                let ns = match self.namespaces.iter().position(|n| n == dir) {
                    Some(n) => n,
                    None => {
                        self.namespaces.push(dir.to_owned());
                        self.namespaces.len() - 1
                    }
                };
                self.classes.insert(number, (u16::try_from(ns).ok()?, leaf));
            }
            Record::Begin(at) | Record::Evict(at) => {
                let place = self.place(&at)?;
                self.open.insert((at.fp, place));
            }
            Record::Stored(at, facts, key) => {
                let place = self.place(&at)?;
                self.ended(at.fp, place);
                let (ns, prefix, leaf) = place;
                let [leaf_cost, high, top] = facts.dirs;
                self.leaves.set(place, leaf_cost);
                self.highs.insert((ns, prefix.high()), high);
                self.tops.insert(ns, top);
                self.blocks.stored(Owned {
                    fp: at.fp,
                    namespace: ns,
                    leaf,
                    prefix,
                    trailer: facts.trailer,
                    bad: facts.bad,
                    cost: facts.cost,
                    written_at: facts.written_at,
                    key: key.and_then(|k| Key::new(k).ok()).map(Box::new),
                    used: 0,
                });
            }
            Record::Gone(at, [leaf_cost, high, top]) => {
                let place = self.place(&at)?;
                self.ended(at.fp, place);
                self.blocks.gone(at.fp)?;
                self.leaves.set(place, leaf_cost);
                let high_at = (place.0, place.1.high());
                if high == 0 {
                    self.highs.remove(&high_at);
                } else {
                    self.highs.insert(high_at, high);
                }
                self.tops.insert(place.0, top);
            }
            Record::Touch(hashes) => self.blocks.touched(hashes)?,
            Record::Dir {
                class,
                level,
                prefix,
                cost,
            } => {
                let &(ns, leaf) = self.classes.get(&class)?;
                match level {
                    0 => drop(self.tops.insert(ns, cost)),
                    1 if cost == 0 => drop(self.highs.remove(&(ns, prefix.high()))),
                    1 => drop(self.highs.insert((ns, prefix.high()), cost)),
                    _ => self.leaves.set((ns, prefix, leaf), cost),
                }
            }
            Record::End { .. } => {}
        }
        Some(())
    }
}
