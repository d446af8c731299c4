//! Where a block of the local tier lies, as its entry tells: in a file of its own, or in a slot of an extent. Twelve
//! bytes and a mark, packed into what the [`Catalog`](crate::catalog::Catalog) keeps without knowing.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use crate::{
    budget::COST_UNIT,
    catalog::body::{Body, Rank},
    root::names::{DirClass, Prefix},
};

/// Bits of a first word that tell the leaf; the others tell the class.
const PREFIX_BITS: u32 = 20;
/// Classes that an entry can name.
const MAX_CLASSES: usize = 1 << (32 - PREFIX_BITS);

/// A block with a file of its own, or a file of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct FileBody {
    /// Number of its [`DirClass`].
    pub(crate) class: u16,
    pub(crate) prefix: Prefix,
    /// Whether the file is known to end in a trailer page: losing it is then proof of damage.
    pub(crate) trailer: bool,
    /// Allocated bytes, in units of [`COST_UNIT`].
    pub(crate) units: u32,
    /// Seconds since the Unix epoch when it was written; of another process's block whose it is, as the keeper numbers
    /// them, since when it was written only its owner needs to know.
    pub(crate) stamp: u32,
}

impl FileBody {
    /// One of `cost` allocated bytes.
    pub(crate) fn new(class: u16, prefix: Prefix, cost: u64) -> Self {
        Self {
            class,
            prefix,
            trailer: false,
            units: units(cost),
            stamp: 0,
        }
    }

    /// What `body` tells; `None` for a slot.
    pub(crate) fn of(body: &Body) -> Option<Self> {
        if body.rank != Rank::Whole {
            return None;
        }
        let [place, units, stamp] = body.words;
        Some(Self {
            class: u16::try_from(place >> PREFIX_BITS).unwrap_or(u16::MAX),
            prefix: Prefix(place & ((1 << PREFIX_BITS) - 1)),
            trailer: body.mark,
            units,
            stamp,
        })
    }

    pub(crate) fn body(self) -> Body {
        let place = u32::from(self.class) << PREFIX_BITS | self.prefix.0 & ((1 << PREFIX_BITS) - 1);
        Body {
            words: [place, self.units, self.stamp],
            rank: Rank::Whole,
            mark: self.trailer,
        }
    }

    /// Allocated bytes.
    pub(crate) fn cost(self) -> u64 {
        u64::from(self.units) * COST_UNIT
    }

    /// The same with a trailer, written at `unix_seconds`.
    pub(crate) fn written(self, trailer: bool, unix_seconds: u64) -> Self {
        Self {
            trailer,
            stamp: u32::try_from(unix_seconds).unwrap_or(u32::MAX),
            ..self
        }
    }
}

/// A block in a slot of an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct SlotBody {
    /// The number of the store of slots that it lies in.
    pub(crate) store: u8,
    /// The slot's number among all of that store's.
    pub(crate) slot: u32,
    /// What its bytes and its key are told by.
    pub(crate) tag: u64,
}

impl SlotBody {
    /// What `body` tells; `None` for a file.
    #[inline]
    pub(crate) fn of(body: &Body) -> Option<Self> {
        let [slot, low, high] = body.words;
        match body.rank {
            Rank::Whole => None,
            Rank::Slot(store) => Some(Self {
                store,
                slot,
                tag: u64::from(high) << 32 | u64::from(low),
            }),
        }
    }

    pub(crate) fn body(self) -> Body {
        let [a, b, c, d, e, f, g, h] = self.tag.to_le_bytes();
        Body {
            words: [
                self.slot,
                u32::from_le_bytes([a, b, c, d]),
                u32::from_le_bytes([e, f, g, h]),
            ],
            rank: Rank::Slot(self.store),
            mark: false,
        }
    }
}

/// What an entry weighs in its policy: units of [`COST_UNIT`] for a file, 1 for a slot.
pub(crate) fn weigh(body: &Body) -> u64 {
    FileBody::of(body).map_or(1, |f| u64::from(f.units))
}

fn units(bytes: u64) -> u32 {
    u32::try_from(bytes.div_ceil(COST_UNIT)).unwrap_or(u32::MAX)
}

/// The classes of a root, by number.
#[derive(Debug, Default)]
pub(crate) struct DirClasses {
    all: Vec<DirClass>,
    numbers: HashMap<DirClass, u16, FixedState>,
}

impl DirClasses {
    /// The number of `class`; `None` when 4096 others exist.
    pub(crate) fn number(&mut self, class: DirClass) -> Option<u16> {
        if let Some(&n) = self.numbers.get(&class) {
            return Some(n);
        }
        let n = u16::try_from(self.all.len())
            .ok()
            .filter(|&n| usize::from(n) < MAX_CLASSES)?;
        self.all.push(class);
        self.numbers.insert(class, n);
        Some(n)
    }

    /// The class with number `n`.
    pub(crate) fn get(&self, n: u16) -> Option<DirClass> {
        self.all.get(usize::from(n)).copied()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::names::DirKind;

    #[test]
    fn a_file_reads_back_and_is_no_slot() {
        for (class, prefix, trailer) in [(0, 0, false), (4095, 0xf_ffff, true), (7, 0x1_2345, true)] {
            let f = FileBody::new(class, Prefix(prefix), 700).written(trailer, 1 << 31);
            assert_eq!(FileBody::of(&f.body()), Some(f));
            assert_eq!(
                (f.cost(), SlotBody::of(&f.body()), weigh(&f.body())),
                (1024, None, 2)
            );
        }
    }

    #[test]
    fn a_slot_reads_back_and_is_no_file() {
        let s = SlotBody {
            store: 14,
            slot: 0xdead_beef,
            tag: 0x0123_4567_89ab_cdef,
        };
        assert_eq!(SlotBody::of(&s.body()), Some(s));
        assert_eq!((FileBody::of(&s.body()), weigh(&s.body())), (None, 1));
    }

    #[test]
    fn classes_run_out_without_harm() {
        let mut classes = DirClasses::default();
        let class = |n| DirClass {
            namespace: 0,
            leaf: DirKind::Group(n),
        };
        for n in 0..MAX_CLASSES as u32 {
            assert_eq!(classes.number(class(n)), u16::try_from(n).ok());
        }
        assert_eq!(classes.number(class(1 << 20)), None);
        assert_eq!(
            (classes.number(class(7)), classes.get(7)),
            (Some(7), Some(class(7)))
        );
    }
}
