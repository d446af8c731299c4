//! The bytes of an extent (version 1, little-endian). It has two files, since file systems let nobody write through the
//! page cache while others write the same file past it: slots, one behind the other from byte 0 on, are all that the
//! data file holds. The table file begins with the header's page:
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `KVWEIRX1` |
//! | 8..10 | version, 1 |
//! | 10..12 | bytes of a record, 128 |
//! | 12..16 | number of slots |
//! | 16..20 | bytes of a slot, a multiple of 4096 |
//! | 20..24 | 0 |
//! | 24..32 | length of a block in bytes |
//! | 32..40 | nonce: differs from extent to extent |
//! | 40..72 | digest of the namespace |
//! | 72..80 | 0 |
//! | 80..88 | time made, seconds since the Unix epoch |
//! | 88..120 | 0 |
//! | 120..128 | XXH3-64 of bytes 0..120 |
//! | 128..4096 | 0 |
//!
//! and goes on with a record a slot. A record is all zeros where its slot holds nothing, else:
//!
//! | bytes | field |
//! |---|---|
//! | 0..2 | 1 |
//! | 2..4 | length of the key, 1 to 64 |
//! | 4..8 | time written, seconds since the Unix epoch |
//! | 8..16 | sequence: higher in records written later |
//! | 16..32 | XXH3-128 of the block |
//! | 32..96 | key, padded with zeros |
//! | 96..120 | 0 |
//! | 120..128 | XXH3-64, seeded with nonce + number of the slot, of bytes 0..120 |
//!
//! A record that was torn, or belongs to another slot or extent, is none. One that survived while its slot's bytes did
//! not (a power loss) is found by the block's checksum when it is read.

use xxhash_rust::xxh3::{xxh3_64, xxh3_64_with_seed};

use crate::{block::Key, io::PAGE};

/// Bytes of the header.
pub(crate) const HEADER_BYTES: u64 = PAGE as u64;
/// Bytes of a record.
pub(crate) const RECORD_BYTES: usize = 128;
/// The longest key that a record can hold, in bytes; blocks with longer ones get a file each.
pub(crate) const MAX_PACKED_KEY: usize = 64;
/// Bytes that a header and a record sum up.
const SUMMED: usize = RECORD_BYTES - 8;
const MAGIC: &[u8; 8] = b"KVWEIRX1";
const VERSION: u16 = 1;
/// Where a record's key begins.
const KEY_AT: usize = 32;

/// What the header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Header {
    pub(crate) slots: u32,
    pub(crate) slot_bytes: u32,
    pub(crate) block_len: u64,
    pub(crate) nonce: u64,
    pub(crate) namespace: [u8; 32],
    pub(crate) made_at: u64,
}

impl Header {
    /// Where the record of `slot` begins.
    pub(crate) fn record_at(slot: u32) -> u64 {
        HEADER_BYTES + u64::from(slot) * RECORD_BYTES as u64
    }

    /// Where `slot` begins in the data file.
    pub(crate) fn slot_at(&self, slot: u32) -> u64 {
        u64::from(slot) * u64::from(self.slot_bytes)
    }

    /// Length of the table file.
    pub(crate) fn table_len(&self) -> u64 {
        Self::record_at(self.slots)
    }

    /// Length of the data file.
    pub(crate) fn data_len(&self) -> u64 {
        self.slot_at(self.slots)
    }

    /// How many slots of `slot_bytes` an extent of at most `bytes` bytes has.
    pub(crate) fn slots_in(bytes: u64, slot_bytes: u64) -> u32 {
        let room = bytes.saturating_sub(HEADER_BYTES + PAGE as u64);
        u32::try_from(room / (slot_bytes + RECORD_BYTES as u64)).unwrap_or(u32::MAX)
    }

    pub(crate) fn encode(&self) -> [u8; RECORD_BYTES] {
        let mut out = [0; RECORD_BYTES];
        let fields: [&[u8]; 10] = [
            MAGIC,
            &VERSION.to_le_bytes(),
            &(RECORD_BYTES as u16).to_le_bytes(),
            &self.slots.to_le_bytes(),
            &self.slot_bytes.to_le_bytes(),
            &[0; 4],
            &self.block_len.to_le_bytes(),
            &self.nonce.to_le_bytes(),
            &self.namespace,
            &[0; 8],
        ];
        let made = self.made_at.to_le_bytes();
        let all = fields.iter().flat_map(|f| f.iter()).chain(&made);
        out.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
        let (body, sum) = out.split_at_mut(SUMMED);
        sum.copy_from_slice(&xxh3_64(body).to_le_bytes());
        out
    }

    /// `None`: not the header of an extent that a version we know wrote whole.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let (body, sum) = bytes.first_chunk::<RECORD_BYTES>()?.split_at(SUMMED);
        if xxh3_64(body).to_le_bytes() != sum || !body.starts_with(MAGIC) {
            return None;
        }
        let h = Self {
            slots: u32_at(body, 12)?,
            slot_bytes: u32_at(body, 16)?,
            block_len: u64_at(body, 24)?,
            nonce: u64_at(body, 32)?,
            namespace: *body.get(40..)?.first_chunk()?,
            made_at: u64_at(body, 80)?,
        };
        let known = u16_at(body, 8)? == VERSION && usize::from(u16_at(body, 10)?) == RECORD_BYTES;
        let sound = h.slots > 0
            && h.slot_bytes > 0
            && h.slot_bytes.is_multiple_of(PAGE as u32)
            && h.block_len <= u64::from(h.slot_bytes)
            && u64_at(body, 72)? == 0;
        (known && sound).then_some(h)
    }
}

/// The version that a header of another release claims, in words; `None`: no header that was written whole.
pub(crate) fn claims_version(bytes: &[u8]) -> Option<String> {
    let (body, sum) = bytes.first_chunk::<RECORD_BYTES>()?.split_at(SUMMED);
    let (family, number) = body.first_chunk::<8>()?.split_at(7);
    if xxh3_64(body).to_le_bytes() != sum || family != b"KVWEIRX" {
        return None;
    }
    let number = number.first().map_or(' ', |&b| char::from(b));
    Some(format!("magic {number:?}, version {}", u16_at(body, 8)?))
}

/// What a record says of its slot's block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Record {
    pub(crate) key: Key,
    pub(crate) written_at: u32,
    pub(crate) sequence: u64,
    pub(crate) sum: u128,
}

impl Record {
    /// Writes the record of `slot` of the extent with this nonce into `out`; the key has at most [`MAX_PACKED_KEY`]
    /// bytes.
    pub(crate) fn encode(&self, nonce: u64, slot: u32, out: &mut [u8; RECORD_BYTES]) {
        *out = [0; RECORD_BYTES];
        let key = self.key.as_bytes();
        let fields: [&[u8]; 6] = [
            &1u16.to_le_bytes(),
            &u16::try_from(key.len()).unwrap_or(0).to_le_bytes(),
            &self.written_at.to_le_bytes(),
            &self.sequence.to_le_bytes(),
            &self.sum.to_le_bytes(),
            key,
        ];
        let (body, sum) = out.split_at_mut(SUMMED);
        let all = fields.iter().flat_map(|f| f.iter());
        body.iter_mut().zip(all).for_each(|(to, from)| *to = *from);
        sum.copy_from_slice(&record_sum(body, nonce, slot).to_le_bytes());
    }

    /// `None`: the slot holds nothing that a version we know wrote whole.
    pub(crate) fn decode(bytes: &[u8], nonce: u64, slot: u32) -> Option<Self> {
        let (body, sum) = bytes.first_chunk::<RECORD_BYTES>()?.split_at(SUMMED);
        if u16_at(body, 0)? != 1 || record_sum(body, nonce, slot).to_le_bytes() != sum {
            return None;
        }
        let len = usize::from(u16_at(body, 2)?);
        let key = body.get(KEY_AT..KEY_AT + len).filter(|_| len <= MAX_PACKED_KEY)?;
        Some(Self {
            key: Key::new(key).ok()?,
            written_at: u32_at(body, 4)?,
            sequence: u64_at(body, 8)?,
            sum: u128::from_le_bytes(*body.get(16..)?.first_chunk()?),
        })
    }

    /// Whether a later version wrote this for `slot`: whole, and of a kind that this one does not know.
    pub(crate) fn is_newer(bytes: &[u8], nonce: u64, slot: u32) -> bool {
        let Some((body, sum)) = bytes.first_chunk::<RECORD_BYTES>().map(|b| b.split_at(SUMMED)) else {
            return false;
        };
        u16_at(body, 0).is_some_and(|kind| kind > 1) && record_sum(body, nonce, slot).to_le_bytes() == sum
    }

    pub(crate) fn tag(&self) -> u64 {
        tag(self.sum, &self.key)
    }
}

/// The checksum of a block that its record keeps: as in a trailer.
pub(crate) use crate::root::trailer::payload_sum as block_sum;

/// What is kept in memory of a packed block: 64 bits of its checksum and its whole key together, so that neither other
/// bytes nor another key pass for it (I2).
pub(crate) fn tag(sum: u128, key: &Key) -> u64 {
    xxh3_64_with_seed(key.as_bytes(), (sum >> 64) as u64) ^ sum as u64
}

fn record_sum(body: &[u8], nonce: u64, slot: u32) -> u64 {
    xxh3_64_with_seed(body, nonce.wrapping_add(u64::from(slot)))
}

fn u16_at(bytes: &[u8], at: usize) -> Option<u16> {
    Some(u16::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u32_at(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

fn u64_at(bytes: &[u8], at: usize) -> Option<u64> {
    Some(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn header() -> Header {
        Header {
            slots: 4,
            slot_bytes: 16384,
            block_len: 16000,
            nonce: 0x0123_4567_89ab_cdef,
            namespace: [7; 32],
            made_at: 1_800_000_000,
        }
    }

    fn record(n: u8) -> Record {
        Record {
            key: Key::new(&[n; 36]).unwrap(),
            written_at: 1_800_000_001,
            sequence: 9 + u64::from(n),
            sum: block_sum(&[n; 100]),
        }
    }

    /// Header and table of a small extent; slot 2 is empty.
    fn sample() -> Vec<u8> {
        let mut out = vec![0; header().table_len() as usize];
        out[..RECORD_BYTES].copy_from_slice(&header().encode());
        for slot in [0u32, 1, 3] {
            let at = Header::record_at(slot) as usize;
            let mut bytes = [0; RECORD_BYTES];
            record(slot as u8).encode(header().nonce, slot, &mut bytes);
            out[at..at + RECORD_BYTES].copy_from_slice(&bytes);
        }
        out
    }

    fn read(bytes: &[u8]) -> Option<(Header, Vec<Option<Record>>)> {
        let h = Header::decode(bytes)?;
        let records = (0..h.slots.min(1 << 16))
            .map(|s| Record::decode(bytes.get(Header::record_at(s) as usize..)?, h.nonce, s))
            .collect();
        Some((h, records))
    }

    #[test]
    fn an_extent_reads_back_and_a_changed_bit_is_noticed() {
        let bytes = sample();
        let want = [Some(record(0)), Some(record(1)), None, Some(record(3))];
        assert_eq!(read(&bytes), Some((header(), want.to_vec())));
        for byte in (0..RECORD_BYTES).chain(Header::record_at(1) as usize..Header::record_at(2) as usize) {
            let mut b = bytes.clone();
            b[byte] ^= 4;
            let got = read(&b);
            let unnoticed = got.is_some_and(|(_, r)| r[1].is_some());
            assert!(!unnoticed, "byte {byte}");
        }
    }

    #[test]
    fn a_record_is_none_in_another_slot_or_extent() {
        let mut bytes = [0; RECORD_BYTES];
        record(1).encode(5, 1, &mut bytes);
        assert!(Record::decode(&bytes, 5, 1).is_some());
        assert!(Record::decode(&bytes, 5, 2).is_none() && Record::decode(&bytes, 6, 1).is_none());
        assert!(Record::decode(&[0; RECORD_BYTES], 5, 1).is_none());
    }

    #[test]
    fn the_tag_tells_other_bytes_and_other_keys() {
        let (a, b) = (record(1), record(2));
        assert_eq!(a.tag(), tag(block_sum(&[1; 100]), &a.key));
        assert_ne!(a.tag(), tag(block_sum(&[2; 100]), &a.key));
        assert_ne!(a.tag(), tag(a.sum, &b.key));
    }

    #[test]
    fn slots_fill_an_extent_and_never_more() {
        for (bytes, slot) in [
            (1 << 20, 4096u64),
            (1 << 26, 16384),
            (10_000_000, 65536),
            (8191, 4096),
        ] {
            let slots = Header::slots_in(bytes, slot);
            let h = Header {
                slots,
                slot_bytes: slot as u32,
                ..header()
            };
            assert!(
                (h.table_len() + h.data_len()) <= bytes.max(8192),
                "{slots} slots of {slot} in {bytes}"
            );
            assert!(bytes < 8192 || bytes - (h.table_len() + h.data_len()) < 2 * (slot + 128) + 8192);
        }
    }

    #[test]
    fn an_extent_of_any_release_is_still_read() {
        let file = include_bytes!("../../../fixtures/extent-v1.bin");
        assert_eq!(read(file), read(&sample()));
    }

    #[test]
    fn a_fuzzed_extent_is_read_without_panic() {
        let file = include_bytes!("../../../fixtures/extent-v1.bin").to_vec();
        crate::fuzz::fuzz("extent", std::slice::from_ref(&file), |bytes| {
            if let Some((h, _)) = read(bytes) {
                let _ = (h.table_len(), h.data_len(), h.slot_at(h.slots - 1));
            }
        });
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..9000)) {
            let _ = read(&bytes);
        }

        #[test]
        fn any_packable_record_reads_back(key in prop::collection::vec(any::<u8>(), 1..=MAX_PACKED_KEY),
                                          sum: u128, sequence: u64, written_at: u32, nonce: u64, slot: u32) {
            let r = Record { key: Key::new(&key).unwrap(), written_at, sequence, sum };
            let mut bytes = [0; RECORD_BYTES];
            r.encode(nonce, slot, &mut bytes);
            prop_assert_eq!(Record::decode(&bytes, nonce, slot), Some(r));
        }
    }
}
