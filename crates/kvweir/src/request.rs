//! The name of a request, which every floor from eviction to the manager passes on.

/// Names a request of the engine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct RequestId(pub u64);
