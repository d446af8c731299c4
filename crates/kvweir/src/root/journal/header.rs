//! How a journal's file begins: 64 bytes, version 1, little-endian.
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `KVWEIRJ1` |
//! | 8..10 | version, 1 |
//! | 10..12 | 0: journal, 1: snapshot |
//! | 12..16 | number of the member that writes it |
//! | 16..20 | generation |
//! | 20..24 | 0 |
//! | 24..32 | nonce: differs from file to file |
//! | 32..40 | length of the blocks of the writer's namespace, in bytes |
//! | 40..48 | line: the same in all generations of a member's life; 0 where an older version began them |
//! | 48..56 | 0 |
//! | 56..64 | XXH3-64 of bytes 0..56 |

use xxhash_rust::xxh3::xxh3_64;

use super::fields::Reader;

/// Bytes of a file's header.
pub(crate) const HEADER_BYTES: usize = 64;
const MAGIC: &[u8; 8] = b"KVWEIRJ1";
const VERSION: u16 = 1;
const SUMMED: usize = HEADER_BYTES - 8;

/// How a file begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) snapshot: bool,
    pub(crate) member: u32,
    pub(crate) generation: u32,
    pub(crate) nonce: u64,
    pub(crate) block_len: u64,
    /// What the generations of one journal have in common; 0: not told.
    pub(crate) line: u64,
}

impl Header {
    pub(crate) fn encode(&self) -> [u8; HEADER_BYTES] {
        let mut out = [0; HEADER_BYTES];
        let fields: [&[u8]; 9] = [
            MAGIC,
            &VERSION.to_le_bytes(),
            &u16::from(self.snapshot).to_le_bytes(),
            &self.member.to_le_bytes(),
            &self.generation.to_le_bytes(),
            &[0; 4],
            &self.nonce.to_le_bytes(),
            &self.block_len.to_le_bytes(),
            &self.line.to_le_bytes(),
        ];
        for (to, &from) in out.iter_mut().zip(fields.concat().iter()) {
            *to = from;
        }
        let (body, sum) = out.split_at_mut(SUMMED);
        sum.copy_from_slice(&xxh3_64(body).to_le_bytes());
        out
    }

    /// `None`: not a header that a version we know wrote whole.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let bytes = bytes.first_chunk::<HEADER_BYTES>()?;
        let (body, sum) = bytes.split_at(SUMMED);
        if xxh3_64(body).to_le_bytes() != sum {
            return None;
        }
        let mut r = Reader(body);
        if r.take::<8>()? != *MAGIC || r.u16()? != VERSION {
            return None;
        }
        let kind = r.u16()?;
        let (member, generation) = (r.u32()?, r.u32()?);
        r.u32()?;
        (kind < 2).then_some(Self {
            snapshot: kind == 1,
            member,
            generation,
            nonce: r.u64()?,
            block_len: r.u64()?,
            line: r.u64()?,
        })
    }
}
