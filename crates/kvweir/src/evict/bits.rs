//! A set of small numbers that finds its next one in a constant number of steps: bits, and above them bits that tell
//! which words below are not empty.

/// How many levels of 64-bit words cover every `u32`.
const LEVELS: usize = 6;
const WORD: usize = 64;

/// See the module.
#[derive(Debug, Clone, Default)]
pub(super) struct Bits {
    levels: [Vec<u64>; LEVELS],
}

impl Bits {
    /// Adds `n`.
    pub(super) fn insert(&mut self, n: usize) {
        let mut at = n;
        for words in &mut self.levels {
            let word = at / WORD;
            if word >= words.len() {
                words.resize(word + 1, 0);
            }
            let Some(w) = words.get_mut(word) else { return };
            let was_empty = *w == 0;
            *w |= 1 << (at % WORD);
            if !was_empty {
                return;
            }
            at = word;
        }
    }

    /// Takes `n` out.
    pub(super) fn remove(&mut self, n: usize) {
        let mut at = n;
        for words in &mut self.levels {
            let Some(w) = words.get_mut(at / WORD) else { return };
            *w &= !(1 << (at % WORD));
            if *w != 0 {
                return;
            }
            at /= WORD;
        }
    }

    /// The least number of the set that is not below `from`.
    pub(super) fn next(&self, from: usize) -> Option<usize> {
        let mut at = from;
        for (level, words) in self.levels.iter().enumerate() {
            let rest = words.get(at / WORD)? & (u64::MAX << (at % WORD));
            if rest != 0 {
                let found = at / WORD * WORD + rest.trailing_zeros() as usize;
                let below = self.levels.iter().take(level).rev();
                return Some(below.fold(found, |at, words| {
                    at * WORD + words.get(at).map_or(0, |w| w.trailing_zeros() as usize)
                }));
            }
            at = at / WORD + 1;
        }
        None
    }

    /// Heap bytes held.
    pub(super) fn memory_bytes(&self) -> usize {
        self.levels.iter().map(|words| words.capacity() * 8).sum()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_set(ops in prop::collection::vec((any::<bool>(), 0..6_usize, 0..80_usize), 1..200)) {
            let (mut bits, mut set) = (Bits::default(), BTreeSet::new());
            for (add, shift, n) in ops {
                let n = n << (4 * shift);
                if add {
                    bits.insert(n);
                    set.insert(n);
                } else {
                    bits.remove(n);
                    set.remove(&n);
                }
                for from in [0, 1, n.saturating_sub(1), n, n + 1, 64, 4096, 1 << 18] {
                    prop_assert_eq!(bits.next(from), set.range(from..).next().copied(), "from {}", from);
                }
            }
        }
    }
}
