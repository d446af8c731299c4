//! What is under way between the manager and a tier: jobs, and blocks that wait for one.

use crate::{
    block::Key,
    clock::Instant,
    io::SlotWrite,
    pressure::Admission,
    primary::Claim,
    tier::{Direction, RequestId},
};

/// A job under way.
#[derive(Debug)]
pub(super) struct Job {
    pub(super) tier: usize,
    pub(super) direction: Direction,
    pub(super) req: RequestId,
    /// What is loaded; nothing for stores.
    pub(super) keys: Vec<Key>,
    /// The slots of all blocks, as they were when the job was made.
    pub(super) claims: Vec<Claim>,
    pub(super) admission: Option<Admission>,
    pub(super) submitted: Instant,
}

/// The blocks of one request that wait to be loaded from one tier.
#[derive(Debug)]
pub(super) struct Pending {
    pub(super) req: RequestId,
    pub(super) blocks: Vec<(Key, Claim, SlotWrite)>,
}
