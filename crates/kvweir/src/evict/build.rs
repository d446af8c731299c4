//! The policies by their names: a new one is added here and in [`PolicyKind`].

use super::{Policy, PolicyKind, arc, lru, s3fifo};

impl PolicyKind {
    /// An empty policy for a cache that holds `capacity_weight`.
    pub fn build(self, capacity_weight: u64) -> Box<dyn Policy> {
        match self {
            Self::Lru => Box::new(lru::Lru::new()),
            Self::Arc => Box::new(arc::Adaptive::new(capacity_weight)),
            Self::S3Fifo => Box::new(s3fifo::S3Fifo::new(capacity_weight)),
        }
    }
}
