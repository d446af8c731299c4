//! The blocks of a bench. Bodies cannot be compressed and are made once; every page of a block begins with eight bytes
//! that tell which block and which page it is, so that neither another block nor a page at a wrong place goes unseen.

use kvweir::{Key, Result, io::PAGE};

use crate::workload::SplitMix;

/// One block in so many is compared byte by byte; of the others, the start of each page.
const WHOLE_EVERY: u64 = 16;

/// Whether every byte of block `n` is compared.
fn is_whole(n: u64) -> bool {
    SplitMix(n).next().is_multiple_of(WHOLE_EVERY)
}

/// What blocks hold and how they are named: functions of the seed and the block's number.
#[derive(Debug)]
pub(super) struct Content {
    seed: u64,
    bodies: Vec<Vec<u8>>,
}

impl Content {
    /// Blocks of `len` bytes, a whole number of pages, `batch` per job.
    pub(super) fn new(seed: u64, len: usize, batch: u64) -> Self {
        let body = |i: u64| {
            let mut random = SplitMix(seed ^ (i + 1).wrapping_mul(0x9e37_79b9));
            let mut bytes = vec![0; len];
            for word in bytes.chunks_exact_mut(8) {
                word.copy_from_slice(&random.next().to_le_bytes());
            }
            bytes
        };
        Self {
            seed,
            bodies: (0..batch).map(body).collect(),
        }
    }

    fn body(&self, n: u64) -> &[u8] {
        let i = n % (self.bodies.len() as u64).max(1);
        self.bodies.get(i as usize).map_or(&[], Vec::as_slice)
    }

    fn stamp(&self, n: u64, page: usize) -> [u8; 8] {
        SplitMix(self.seed ^ SplitMix(n << 20 ^ page as u64).next())
            .next()
            .to_le_bytes()
    }

    /// Writes the body that block `n` of each job has; it stays in the slot.
    pub(super) fn lay(&self, n: u64, slot: &mut [u8]) {
        slot.copy_from_slice(self.body(n));
    }

    /// Makes block `n` of a slot that has its body.
    pub(super) fn stamp_all(&self, n: u64, slot: &mut [u8]) {
        for (page, bytes) in slot.chunks_exact_mut(PAGE).enumerate() {
            if let Some(at) = bytes.first_chunk_mut() {
                *at = self.stamp(n, page);
            }
        }
    }

    /// Whether `slot` holds block `n`.
    pub(super) fn is_good(&self, n: u64, slot: &[u8]) -> bool {
        let stamps = slot
            .chunks_exact(PAGE)
            .enumerate()
            .all(|(page, bytes)| bytes.first_chunk() == Some(&self.stamp(n, page)));
        let pages = || slot.chunks_exact(PAGE).zip(self.body(n).chunks_exact(PAGE));
        stamps && (!is_whole(n) || pages().all(|(is, should)| is.get(8..) == should.get(8..)))
    }

    /// The name of block `n`: a 32-byte hash and a 4-byte group index, as an engine's.
    pub(super) fn key(&self, n: u64) -> Result<Key> {
        let mut random = SplitMix(self.seed ^ SplitMix(n).next());
        let mut bytes = [0; 36];
        for word in bytes.chunks_exact_mut(8) {
            word.copy_from_slice(&random.next().to_le_bytes());
        }
        Key::new(&bytes)
    }
}

/// A number below `n` for the `i`-th choice; 0 of none.
pub(super) fn scatter(i: u64, seed: u64, n: u64) -> u64 {
    SplitMix(SplitMix(seed).next() ^ SplitMix(i).next()).below(n)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_block_and_a_changed_byte_are_seen() {
        let c = Content::new(7, 2 * PAGE, 4);
        let mut slot = vec![0; 2 * PAGE];
        let n = (0..).map(|i| i * 4).find(|&n| is_whole(n)).unwrap();
        c.lay(n, &mut slot);
        c.stamp_all(n, &mut slot);
        assert!(c.is_good(n, &slot));
        assert!(!c.is_good(n + 4, &slot), "the same body, another block");
        for at in [0, 7, 8, PAGE - 1, PAGE, PAGE + 3, 2 * PAGE - 1] {
            slot[at] ^= 1;
            assert!(!c.is_good(n, &slot), "byte {at}");
            slot[at] ^= 1;
        }
        let (a, b) = slot.split_at_mut(PAGE);
        a.swap_with_slice(b);
        assert!(!c.is_good(n, &slot), "pages at each other's place");
    }

    #[test]
    fn keys_and_contents_depend_on_the_seed() {
        let (a, b) = (Content::new(1, PAGE, 1), Content::new(2, PAGE, 1));
        assert_ne!(a.key(3).unwrap(), b.key(3).unwrap());
        assert_ne!(a.key(3).unwrap(), a.key(4).unwrap());
        assert_ne!(a.body(0), b.body(0));
    }
}
