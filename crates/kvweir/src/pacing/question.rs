//! The key that is asked about, and the answer.

use foldhash::fast::FixedState;

/// A key as pacing knows it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PacedKey {
    /// A hash of the whole key.
    pub id: u64,
    /// Its KV-cache group.
    pub group: u32,
}

impl PacedKey {
    /// The key with these bytes: a hash of a prefix, then four bytes of group, big-endian.
    pub fn new(key: &[u8]) -> Self {
        use std::hash::BuildHasher as _;
        let group = key
            .last_chunk::<4>()
            .filter(|_| key.len() > 4)
            .map_or(0, |g| g.iter().fold(0, |n, &byte| n << 8 | u32::from(byte)));
        Self {
            id: FixedState::with_seed(0x6b76).hash_one(key),
            group,
        }
    }
}

/// What a request is to be told of a key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Answer {
    /// It may be promoted.
    Hit,
    /// Not now: ask again in the next step.
    Retry,
    /// It will not be promoted for this request.
    Miss,
}
