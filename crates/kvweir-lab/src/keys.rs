//! Seeded keys shaped like an engine's: a 32-byte hash and a 4-byte group index.

use kvweir::{Key, Result};

/// The `n`-th key of `seed`.
pub(crate) fn key(seed: u64, n: u64) -> Result<Key> {
    let mut bytes = [0u8; 36];
    let mut x = mix(seed ^ mix(n));
    for word in bytes.chunks_exact_mut(8).take(4) {
        x = mix(x);
        word.copy_from_slice(&x.to_le_bytes());
    }
    Key::new(&bytes)
}

/// SplitMix64: a bijection that scrambles.
pub(crate) fn mix(n: u64) -> u64 {
    let z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    let z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

/// Writes bytes that depend on every bit of `seed` and cannot be compressed.
pub(crate) fn fill(seed: u64, to: &mut [u8]) {
    let mut x = mix(seed);
    for word in to.chunks_mut(8) {
        x = x.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let bytes = mix(x).to_le_bytes();
        for (to, from) in word.iter_mut().zip(bytes) {
            *to = from;
        }
    }
}
