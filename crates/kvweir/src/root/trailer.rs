//! The 4096-byte page that follows a block in its file (version 1, little-endian):
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `KVWEIRT1` |
//! | 8..10 | version, 1 |
//! | 10..12 | flags, 0 |
//! | 12..16 | length of the key, 1 to 255 |
//! | 16..24 | length of the block in bytes |
//! | 24..40 | XXH3-128 of the block |
//! | 40..72 | digest of the namespace |
//! | 72..80 | time written, seconds since the Unix epoch |
//! | 80..335 | key, padded with zeros |
//! | 335..4088 | zeros |
//! | 4088..4096 | XXH3-64 of bytes 0..4088 |
//!
//! The checksum of the page shows a torn or foreign page, the digest and key a block of another name, the payload
//! checksum wrong bytes (I2).

use xxhash_rust::xxh3::xxh3_64;

use crate::block::{Key, MAX_KEY_BYTES};

/// Bytes of the page.
pub(crate) const TRAILER_BYTES: usize = 4096;

/// Whether a file of `len` bytes can be a block of `block_len` bytes: ours, with a trailer, or a stock tier's without.
pub(crate) fn is_block_file(len: u64, block_len: u64) -> bool {
    len == block_len || len == block_len + TRAILER_BYTES as u64
}
const MAGIC: &[u8; 8] = b"KVWEIRT1";
const VERSION: u16 = 1;
const SUMMED: usize = TRAILER_BYTES - 8;

/// What a trailer says.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Trailer {
    pub(crate) key: Key,
    pub(crate) block_len: u64,
    pub(crate) payload_sum: u128,
    pub(crate) namespace: [u8; 32],
    pub(crate) written_at: u64,
}

/// The checksum that trailers carry of a block.
pub(crate) fn payload_sum(block: &[u8]) -> u128 {
    twox_hash::XxHash3_128::oneshot(block)
}

/// A [`payload_sum`] of a block that comes in parts.
#[derive(Default)]
pub(crate) struct Summing(twox_hash::xxhash3_128::Hasher);

impl Summing {
    /// The next bytes.
    pub(crate) fn add(&mut self, bytes: &[u8]) {
        self.0.write(bytes);
    }

    /// The checksum of all that was added.
    pub(crate) fn end(&self) -> u128 {
        self.0.finish_128()
    }
}

/// Writes `t` into `page`.
pub(crate) fn encode(t: &Trailer, page: &mut [u8; TRAILER_BYTES]) {
    let mut w = Writer { page, at: 0 };
    w.put(MAGIC);
    w.put(&VERSION.to_le_bytes());
    w.put(&0u16.to_le_bytes());
    w.put(&(t.key.as_bytes().len() as u32).to_le_bytes());
    w.put(&t.block_len.to_le_bytes());
    w.put(&t.payload_sum.to_le_bytes());
    w.put(&t.namespace);
    w.put(&t.written_at.to_le_bytes());
    w.put(t.key.as_bytes());
    w.fill_to(SUMMED);
    let (body, sum) = page.split_at_mut(SUMMED);
    sum.copy_from_slice(&xxh3_64(body).to_le_bytes());
}

/// Reads a page. `None`: not a trailer that was written whole by a version we know.
pub(crate) fn decode(page: &[u8]) -> Option<Trailer> {
    let page: &[u8; TRAILER_BYTES] = page.try_into().ok()?;
    let (body, sum) = page.split_at(SUMMED);
    if xxh3_64(body).to_le_bytes() != sum {
        return None;
    }
    let mut r = Reader(body);
    if r.take::<8>()? != *MAGIC
        || u16::from_le_bytes(r.take()?) != VERSION
        || u16::from_le_bytes(r.take()?) != 0
    {
        return None;
    }
    let key_len = u32::from_le_bytes(r.take()?) as usize;
    let block_len = u64::from_le_bytes(r.take()?);
    let payload_sum = u128::from_le_bytes(r.take()?);
    let namespace = r.take()?;
    let written_at = u64::from_le_bytes(r.take()?);
    let key = Key::new(r.0.get(..key_len).filter(|_| key_len <= MAX_KEY_BYTES)?).ok()?;
    Some(Trailer {
        key,
        block_len,
        payload_sum,
        namespace,
        written_at,
    })
}

/// The version that a page claims, whether or not we can read it: `1`, or for another magic or flags all of them.
/// `None`: no page of ours, or not whole.
pub(crate) fn version(page: &[u8; TRAILER_BYTES]) -> Option<String> {
    let (body, sum) = page.split_at(SUMMED);
    let mut r = Reader(body);
    let magic = r.take::<8>()?;
    let (family, number) = magic.split_at(7);
    if family != b"KVWEIRT" || xxh3_64(body).to_le_bytes() != sum {
        return None;
    }
    let (version, flags) = (u16::from_le_bytes(r.take()?), u16::from_le_bytes(r.take()?));
    if magic == *MAGIC && version == VERSION && flags == 0 {
        return Some(VERSION.to_string());
    }
    let magic = number.first().map_or(' ', |&b| char::from(b));
    Some(format!("magic {magic:?}, version {version}, flags {flags:#x}"))
}

struct Writer<'a> {
    page: &'a mut [u8; TRAILER_BYTES],
    at: usize,
}

impl Writer<'_> {
    fn put(&mut self, bytes: &[u8]) {
        if let Some(to) = self.page.get_mut(self.at..self.at + bytes.len()) {
            to.copy_from_slice(bytes);
        }
        self.at += bytes.len();
    }

    fn fill_to(&mut self, end: usize) {
        if let Some(to) = self.page.get_mut(self.at..end) {
            to.fill(0);
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, tail) = self.0.split_first_chunk::<N>()?;
        self.0 = tail;
        Some(*head)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample(key: &[u8]) -> Trailer {
        Trailer {
            key: Key::new(key).unwrap(),
            block_len: 65536,
            payload_sum: 0x0123_4567_89ab_cdef_0011_2233_4455_6677,
            namespace: [0x5a; 32],
            written_at: 1_700_000_000,
        }
    }

    #[test]
    fn the_bytes_of_version_1_are_fixed() {
        let mut page = [0xff; TRAILER_BYTES];
        encode(&sample(b"k1"), &mut page);
        let hex: String = page[..96].iter().map(|b| format!("{b:02x}")).collect();
        assert_eq!(
            hex,
            concat!(
                "4b56574549525431",
                "0100",
                "0000",
                "02000000",
                "0000010000000000",
                "7766554433221100efcdab8967452301",
                "5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a5a",
                "00f1536500000000",
                "6b310000000000000000000000000000"
            )
        );
        assert!(page[96..SUMMED].iter().all(|&b| b == 0));
        assert_eq!(decode(&page), Some(sample(b"k1")));
    }

    #[test]
    fn a_page_of_any_release_is_still_read() {
        let page = include_bytes!("../../fixtures/trailer-v1.bin");
        assert_eq!(decode(page), Some(sample(b"fixture")));
    }

    #[test]
    fn a_fuzzed_trailer_is_read_without_panic_and_reads_as_it_was_written() {
        let page = include_bytes!("../../fixtures/trailer-v1.bin").to_vec();
        crate::fuzz::fuzz("trailer", std::slice::from_ref(&page), |bytes| {
            let mut fixed = bytes.to_vec();
            fixed.resize(TRAILER_BYTES, 0);
            let sum = xxh3_64(&fixed[..SUMMED]);
            fixed[SUMMED..].copy_from_slice(&sum.to_le_bytes());
            let _ = decode(bytes);
            if let Some(t) = decode(&fixed) {
                let mut again = [0; TRAILER_BYTES];
                encode(&t, &mut again);
                assert_eq!(decode(&again), Some(t));
            }
        });
    }

    proptest! {
        #[test]
        fn every_trailer_reads_back(key in prop::collection::vec(any::<u8>(), 1..=255), len: u64, sum: u128, at: u64) {
            let t = Trailer { block_len: len, payload_sum: sum, written_at: at, ..sample(&key) };
            let mut page = [0; TRAILER_BYTES];
            encode(&t, &mut page);
            prop_assert_eq!(decode(&page), Some(t));
        }

        #[test]
        fn a_changed_bit_is_noticed(bit in 0usize..TRAILER_BYTES * 8) {
            let mut page = [0; TRAILER_BYTES];
            encode(&sample(b"key"), &mut page);
            page[bit / 8] ^= 1 << (bit % 8);
            prop_assert_eq!(decode(&page), None);
        }

        #[test]
        fn any_bytes_are_read_without_panic(mut page in prop::collection::vec(any::<u8>(), 0..5000), fix: bool) {
            if fix && page.len() >= TRAILER_BYTES {
                page.truncate(TRAILER_BYTES);
                page[..8].copy_from_slice(MAGIC);
                page[8..12].copy_from_slice(&[1, 0, 0, 0]);
                let sum = xxh3_64(&page[..SUMMED]);
                page[SUMMED..].copy_from_slice(&sum.to_le_bytes());
            }
            let _ = decode(&page);
        }
    }
}
