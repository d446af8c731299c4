//! What a replay stores: the key of a block number, and the bytes of a key. Both are functions of the number alone,
//! so that a block found on disk by a later run can still be checked.

use kvweir::Key;

/// Key of block `id`: 32 bytes as a hash has them, and group 0.
pub(super) fn key(id: u64) -> Key {
    let mut bytes = [0; 36];
    for (i, word) in bytes.chunks_exact_mut(8).take(4).enumerate() {
        word.copy_from_slice(&mix(id.wrapping_mul(4).wrapping_add(i as u64)).to_le_bytes());
    }
    // 36 bytes is a valid key; an empty one could never be returned
    Key::new(&bytes).unwrap_or_else(|_| unreachable!())
}

/// Fills `block` with the bytes of block `id`.
pub(super) fn fill(id: u64, block: &mut [u8]) {
    let mut x = mix(id ^ 0x5eed);
    let mut words = block.chunks_exact_mut(8);
    for w in &mut words {
        x = next(x);
        w.copy_from_slice(&x.to_le_bytes());
    }
    let rest = words.into_remainder();
    let last = next(x).to_le_bytes();
    rest.iter_mut().zip(last).for_each(|(b, l)| *b = l);
}

/// Whether `block` holds the bytes of block `id`.
pub(super) fn is_right(id: u64, block: &[u8]) -> bool {
    let mut x = mix(id ^ 0x5eed);
    let words = block.chunks_exact(8);
    let rest = words.remainder();
    let mut wrong = 0;
    for w in words {
        x = next(x);
        wrong |= u64::from_le_bytes(w.try_into().unwrap_or_default()) ^ x;
    }
    let last = next(x).to_le_bytes();
    wrong == 0 && rest.iter().zip(last).all(|(b, l)| *b == l)
}

/// A weak but fast generator: a block must only be unlike every other block, at every offset.
fn next(x: u64) -> u64 {
    x.wrapping_mul(0x5851_f42d_4c95_7f2d)
        .wrapping_add(0x1405_7b7e_f767_814f)
}

/// splitmix64 (Steele, Lea, Flood, OOPSLA 2014).
fn mix(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn content_is_checked_to_the_last_byte() {
        for len in [1, 7, 8, 4096, 5003] {
            let mut b = vec![0; len];
            fill(9, &mut b);
            assert!(is_right(9, &b) && (len < 8 || !is_right(10, &b)));
            for at in [0, len / 2, len - 1] {
                b[at] ^= 1;
                assert!(!is_right(9, &b), "byte {at} of {len}");
                b[at] ^= 1;
            }
        }
        assert_ne!(key(1), key(2));
        assert_eq!(key(1).as_bytes().len(), 36);
    }
}
