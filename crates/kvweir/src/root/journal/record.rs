//! Records of a journal (version 1, little-endian). Behind its [header](super::header) a file is a row of frames:
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | length of the payload |
//! | 2 | kind |
//! | 3 | 0 |
//! | 4..8 | low half of XXH3-64, seeded with nonce + offset of the frame, of kind and payload |
//! | 8.. | payload |
//!
//! Payloads:
//!
//! | kind | name | fields |
//! |---|---|---|
//! | 1 | class | number u16, leaf u16 (0 `_g`, 1 `_k`, 2 `_x`), group u32, name of the namespace's directory |
//! | 2 | begin | fingerprint u128, class u16, 0 u16, prefix u32 |
//! | 3 | stored | as begin, then flags, cost, time written (Unix seconds), then as gone: u32 each; key, where kept |
//! | 4 | evict | as begin |
//! | 5 | gone | as begin, then the costs of leaf, first-level and namespace directory, u32 each; 0: it went too |
//! | 6 | touch | hashes u64 of blocks used, least recent first |
//! | 7 | directory | class u16, level u16 (0 namespace, 1 first, 2 leaf), prefix u32, cost u32 |
//! | 8 | end | number of records before it u64; closes a snapshot |
//!
//! Costs are in units of 512 bytes. Flags: 1 has a trailer, 2 is of the wrong size.
//!
//! The offset in the seed makes a frame of an earlier life of the file no frame of this one.

use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::fields::Reader;
use crate::{
    block::Fingerprint,
    root::names::{DirKind, Prefix},
};

/// Bytes of a frame without its payload.
pub(crate) const FRAME_BYTES: usize = 8;

/// Where a block's file lies, as a file's own class numbers tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct At {
    pub(crate) fp: Fingerprint,
    pub(crate) class: u16,
    pub(crate) prefix: Prefix,
}

/// Costs, in units of 512 bytes, of the directories above a block: leaf, first level, namespace.
pub(crate) type DirCosts = [u32; 3];

/// What a [`Record::Stored`] tells beside the place.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Facts {
    pub(crate) trailer: bool,
    pub(crate) bad: bool,
    /// Units of 512 bytes.
    pub(crate) cost: u32,
    pub(crate) written_at: u32,
    pub(crate) dirs: DirCosts,
}

/// One step of a block's life.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Record<'a> {
    /// From here on `number` stands for this class of the namespace in directory `dir`.
    DirClass {
        number: u16,
        leaf: DirKind,
        dir: &'a str,
    },
    /// A block is about to be written; written before its directories are made.
    Begin(At),
    /// It is published; written after.
    Stored(At, Facts, Option<&'a [u8]>),
    /// A block's file is about to be removed.
    Evict(At),
    /// It is gone.
    Gone(At, DirCosts),
    /// Blocks were used, least recent first.
    Touch(&'a [u8]),
    /// A directory without blocks that is still there.
    Dir {
        class: u16,
        level: u16,
        prefix: Prefix,
        cost: u32,
    },
    /// The snapshot is whole.
    End { records: u64 },
}

impl Record<'_> {
    fn kind(&self) -> u8 {
        match self {
            Self::DirClass { .. } => 1,
            Self::Begin(_) => 2,
            Self::Stored(..) => 3,
            Self::Evict(_) => 4,
            Self::Gone(..) => 5,
            Self::Touch(_) => 6,
            Self::Dir { .. } => 7,
            Self::End { .. } => 8,
        }
    }

    /// Appends the frame that lies at `offset` of a file with this nonce.
    pub(crate) fn encode(&self, nonce: u64, offset: u64, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend([0, 0, self.kind(), 0, 0, 0, 0, 0]);
        let put_at = |out: &mut Vec<u8>, at: &At| {
            out.extend(at.fp.0.to_le_bytes());
            out.extend(u32::from(at.class).to_le_bytes());
            out.extend(at.prefix.0.to_le_bytes());
        };
        match self {
            Self::DirClass { number, leaf, dir } => {
                let (kind, group) = match leaf {
                    DirKind::Group(g) => (0u16, *g),
                    DirKind::Keyed => (1, 0),
                    DirKind::Extent => (2, 0),
                };
                out.extend(number.to_le_bytes());
                out.extend(kind.to_le_bytes());
                out.extend(group.to_le_bytes());
                out.extend(dir.as_bytes());
            }
            Self::Begin(at) | Self::Evict(at) => put_at(out, at),
            Self::Stored(at, f, key) => {
                put_at(out, at);
                let flags = u32::from(f.trailer) | u32::from(f.bad) << 1;
                let [leaf, high, top] = f.dirs;
                for word in [flags, f.cost, f.written_at, leaf, high, top] {
                    out.extend(word.to_le_bytes());
                }
                out.extend(key.unwrap_or_default());
            }
            Self::Gone(at, dirs) => {
                put_at(out, at);
                dirs.iter().for_each(|d| out.extend(d.to_le_bytes()));
            }
            Self::Touch(hashes) => out.extend(*hashes),
            Self::Dir {
                class,
                level,
                prefix,
                cost,
            } => {
                out.extend(class.to_le_bytes());
                out.extend(level.to_le_bytes());
                out.extend(prefix.0.to_le_bytes());
                out.extend(cost.to_le_bytes());
            }
            Self::End { records } => out.extend(records.to_le_bytes()),
        }
        let Some((frame, payload)) = out
            .get_mut(start..)
            .and_then(|f| f.split_first_chunk_mut::<FRAME_BYTES>())
        else {
            return;
        };
        let len = u16::try_from(payload.len()).unwrap_or(u16::MAX).to_le_bytes();
        let sum = sum(nonce, offset, self.kind(), payload).to_le_bytes();
        *frame = [len[0], len[1], self.kind(), 0, sum[0], sum[1], sum[2], sum[3]];
    }
}

/// What lies at a place of a journal.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Frame<'a> {
    /// A record, and how many bytes it takes.
    Record(Record<'a>, usize),
    /// Nothing more was written, or only part of a frame: where a killed writer stopped.
    End,
    /// Bytes that no writer wrote.
    Damaged,
}

/// Reads the frame at `offset` of a file with this nonce; `bytes` is the rest of the file.
pub(crate) fn decode(nonce: u64, offset: u64, bytes: &[u8]) -> Frame<'_> {
    let Some((frame, rest)) = bytes.split_first_chunk::<FRAME_BYTES>() else {
        return Frame::End;
    };
    let [l0, l1, kind, zero, s0, s1, s2, s3] = *frame;
    let len = usize::from(u16::from_le_bytes([l0, l1]));
    let Some(payload) = rest.get(..len) else {
        return Frame::End;
    };
    let told = u32::from_le_bytes([s0, s1, s2, s3]);
    if zero != 0 || sum(nonce, offset, kind, payload) != told {
        return Frame::Damaged;
    }
    match read(kind, payload) {
        Some(r) => Frame::Record(r, FRAME_BYTES + len),
        None => Frame::Damaged,
    }
}

fn read(kind: u8, payload: &[u8]) -> Option<Record<'_>> {
    let mut r = Reader(payload);
    let at = |r: &mut Reader<'_>| -> Option<At> {
        let fp = Fingerprint(u128::from_le_bytes(r.take()?));
        let class = u16::try_from(r.u32()?).ok()?;
        let prefix = Prefix(r.u32()?);
        Some(At { fp, class, prefix })
    };
    let record = match kind {
        1 => {
            let (number, kind, group) = (r.u16()?, r.u16()?, r.u32()?);
            let leaf = match kind {
                0 => DirKind::Group(group),
                1 => DirKind::Keyed,
                2 => DirKind::Extent,
                _ => return None,
            };
            let dir = std::str::from_utf8(r.rest()).ok()?;
            // one component below the root, whatever the file says
            if dir.is_empty() || dir.contains('/') || dir.starts_with('.') || dir.contains('\0') {
                return None;
            }
            Record::DirClass { number, leaf, dir }
        }
        2 => Record::Begin(at(&mut r)?),
        3 => {
            let at = at(&mut r)?;
            let flags = r.u32()?;
            let facts = Facts {
                trailer: flags & 1 != 0,
                bad: flags & 2 != 0,
                cost: r.u32()?,
                written_at: r.u32()?,
                dirs: [r.u32()?, r.u32()?, r.u32()?],
            };
            let key = r.rest();
            Record::Stored(at, facts, (!key.is_empty()).then_some(key))
        }
        4 => Record::Evict(at(&mut r)?),
        5 => Record::Gone(at(&mut r)?, [r.u32()?, r.u32()?, r.u32()?]),
        6 => {
            let hashes = r.rest();
            if hashes.len() % 8 != 0 {
                return None;
            }
            Record::Touch(hashes)
        }
        7 => Record::Dir {
            class: r.u16()?,
            level: r.u16()?,
            prefix: Prefix(r.u32()?),
            cost: r.u32()?,
        },
        8 => Record::End { records: r.u64()? },
        _ => return None,
    };
    r.0.is_empty().then_some(record)
}

fn sum(nonce: u64, offset: u64, kind: u8, payload: &[u8]) -> u32 {
    let seed = nonce.wrapping_add(offset) ^ u64::from(kind) << 56;
    xxh3_64_with_seed(payload, seed) as u32
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::{
        super::header::{HEADER_BYTES, Header},
        *,
    };

    fn at(n: u32) -> At {
        At {
            fp: Fingerprint(u128::from(n) << 70 | 5),
            class: 3,
            prefix: Prefix(n),
        }
    }

    fn samples() -> Vec<Record<'static>> {
        vec![
            Record::DirClass {
                number: 3,
                leaf: DirKind::Group(7),
                dir: "m_0123456789ab_r0",
            },
            Record::Begin(at(1)),
            Record::Stored(
                at(1),
                Facts {
                    trailer: true,
                    bad: false,
                    cost: 24,
                    written_at: 1_700_000_000,
                    dirs: [8, 8, 16],
                },
                Some(b"key"),
            ),
            Record::Evict(at(1)),
            Record::Gone(at(1), [0, 8, 16]),
            Record::Touch(&[1, 2, 3, 4, 5, 6, 7, 8]),
            Record::Dir {
                class: 3,
                level: 2,
                prefix: Prefix(9),
                cost: 8,
            },
            Record::End { records: 7 },
        ]
    }

    #[test]
    fn records_read_back_and_a_changed_bit_or_place_is_noticed() {
        for r in samples() {
            let mut bytes = Vec::new();
            r.encode(99, 64, &mut bytes);
            assert_eq!(decode(99, 64, &bytes), Frame::Record(r, bytes.len()));
            assert_eq!(decode(99, 72, &bytes), Frame::Damaged, "at another offset");
            assert_eq!(decode(98, 64, &bytes), Frame::Damaged, "in another file");
            for n in 0..bytes.len() {
                assert_eq!(decode(99, 64, &bytes[..n]), Frame::End, "a torn end is an end");
            }
            for bit in 0..bytes.len() * 8 {
                let mut b = bytes.clone();
                b[bit / 8] ^= 1 << (bit % 8);
                assert!(!matches!(decode(99, 64, &b), Frame::Record(..)), "bit {bit}");
            }
        }
    }

    #[test]
    fn a_file_of_any_release_is_still_read() {
        let file = include_bytes!("../../../fixtures/journal-v1.bin");
        let header = Header::decode(file).unwrap();
        assert_eq!(
            (header.member, header.generation, header.nonce, header.block_len),
            (3, 5, 99, 8192)
        );
        let (mut pos, mut read) = (HEADER_BYTES, Vec::new());
        while let Frame::Record(r, n) = decode(header.nonce, pos as u64, &file[pos..]) {
            read.push(r);
            pos += n;
        }
        assert_eq!(read, samples());
        assert_eq!(pos, file.len());
    }

    #[test]
    fn no_class_leads_out_of_the_root() {
        for dir in ["", "..", "a/b", "/etc", ".hidden", "a\0b"] {
            let mut bytes = Vec::new();
            let leaf = DirKind::Keyed;
            Record::DirClass { number: 0, leaf, dir }.encode(1, 0, &mut bytes);
            assert_eq!(decode(1, 0, &bytes), Frame::Damaged, "{dir:?}");
        }
    }

    #[test]
    fn a_fuzzed_journal_is_read_without_panic_and_no_invented_record_is_believed() {
        let file = include_bytes!("../../../fixtures/journal-v1.bin").to_vec();
        let mut long = file.clone();
        for r in samples() {
            r.encode(99, long.len() as u64, &mut long);
        }
        crate::fuzz::fuzz("journal", &[file.clone(), long.clone()], |bytes| {
            let Some(h) = Header::decode(bytes) else { return };
            let mut pos = HEADER_BYTES;
            while let Frame::Record(r, n) = decode(h.nonce, pos as u64, &bytes[pos..]) {
                let mut again = Vec::new();
                r.encode(h.nonce, pos as u64, &mut again);
                assert_eq!(
                    again,
                    &bytes[pos..pos + n],
                    "what is read is what would be written"
                );
                pos += n;
            }
        });
        // payloads whose checksum is right, whatever they say
        crate::fuzz::fuzz("records", &[file, long], |bytes| {
            for kind in 0..10 {
                let _ = read(kind, bytes);
            }
        });
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300), kind in 0u8..10) {
            let _ = decode(1, 2, &bytes);
            let _ = read(kind, &bytes);
            let _ = Header::decode(&bytes);
        }
    }
}
