//! A small mutating fuzzer for decoders, on stable: samples are cut, spliced, flipped and filled with odd numbers, and
//! the decoder must answer without a panic. `KVWEIR_FUZZ_SECONDS` (60 in the long run) and `KVWEIR_SEED` steer it.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    time::Duration,
};

use crate::clock::{Clock, SystemClock};

/// A seeded generator (splitmix64).
#[derive(Debug, Clone)]
pub struct Chance(pub u64);

impl Chance {
    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// A number below `n`, 0 for 0.
    pub fn below(&mut self, n: usize) -> usize {
        (self.draw() % (n.max(1) as u64)) as usize
    }
}

/// Numbers at the edges of their types, and words of text formats.
const ODD: [&[u8]; 14] = [
    &[0xff; 8],
    &[0; 8],
    &[0xff, 0xff, 0xff, 0x7f],
    &[0, 0, 0, 0x80],
    &[0xff, 0xff],
    &[1],
    b"-1",
    b"1e309",
    b"99999999999999999999",
    b"null",
    b"\"\\u0000",
    b"[[[[[[[[",
    b"{\"",
    b"\xc3\x28",
];

/// Changes `bytes` a little, perhaps with a part of another sample.
pub fn mutate(bytes: &mut Vec<u8>, other: &[u8], c: &mut Chance) {
    for _ in 0..=c.below(4) {
        let at = c.below(bytes.len() + 1);
        match c.below(6) {
            0 => bytes.truncate(at),
            1 => {
                if let Some(b) = bytes.get_mut(at) {
                    *b ^= 1 << c.below(8);
                }
            }
            2 => {
                let odd = ODD.get(c.below(ODD.len())).copied().unwrap_or_default();
                if c.below(2) == 0 {
                    bytes.splice(at..at, odd.iter().copied());
                } else {
                    for (to, &from) in bytes.iter_mut().skip(at).zip(odd) {
                        *to = from;
                    }
                }
            }
            3 => {
                let end = at + c.below(bytes.len() - at + 1);
                let part: Vec<u8> = bytes.get(at..end).unwrap_or_default().to_vec();
                let to = c.below(bytes.len() + 1);
                bytes.splice(to..to, part);
            }
            4 => {
                let from = c.below(other.len() + 1);
                let part = other.get(from..).unwrap_or_default();
                let part = part.get(..c.below(part.len() + 1)).unwrap_or_default();
                bytes.splice(at..at, part.iter().copied());
            }
            _ => {
                let n = c.below(16);
                bytes.splice(at..at, (0..n).map(|i| i as u8));
            }
        }
        bytes.truncate(1 << 16);
    }
}

/// Feeds changed samples to `decode` for the time that `KVWEIR_FUZZ_SECONDS` says (one second unless set).
///
/// # Panics
/// When `decode` does; the seed that repeats it and the bytes are told.
pub fn fuzz(name: &str, samples: &[Vec<u8>], mut decode: impl FnMut(&[u8])) {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let clock = SystemClock::new();
    let began = clock.now();
    let limit = Duration::from_secs(number("KVWEIR_FUZZ_SECONDS").unwrap_or(1));
    let first = number("KVWEIR_SEED");
    let mut seed = first.unwrap_or(1);
    let mut runs = 0u64;
    loop {
        let mut c = Chance(seed);
        let one = samples.get(c.below(samples.len())).cloned().unwrap_or_default();
        let other = samples.get(c.below(samples.len())).cloned().unwrap_or_default();
        let mut bytes = one;
        mutate(&mut bytes, &other, &mut c);
        let done = catch_unwind(AssertUnwindSafe(|| decode(&bytes)));
        assert!(done.is_ok(), "{name}: KVWEIR_SEED={seed} panics on {bytes:02x?}");
        runs += 1;
        seed += 1;
        if first.is_some() || runs.is_multiple_of(256) && clock.now().since(began) >= limit {
            break;
        }
    }
    #[expect(clippy::print_stdout, reason = "what a test run tells")]
    {
        println!("{name}: {runs} inputs, no panic");
    }
}
