//! What a check begins and ends with: a tier of its own, filled, and nothing left when it is over.

use super::client::Client;
use crate::{
    block::Key,
    tier::{RequestId, Tier},
};

/// The tier that a check needs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setup {
    /// How many blocks fit at least. Checks that need eviction store at least four times as many.
    pub capacity_blocks: u64,
    /// Bytes of a block.
    pub block_len: usize,
    /// An empty tier; else one over the storage of the last one, which was shut down and dropped. A tier whose
    /// storage does not outlive it is empty then too.
    pub fresh: bool,
}

/// Makes the tier to be checked; events on, where it has them.
pub type Make<'a> = &'a mut dyn FnMut(Setup) -> Box<dyn Tier>;

pub(super) type Caller = Client<dyn Tier>;

pub(super) const CAPACITY: u64 = 24;
pub(super) const BLOCK_LEN: usize = 8192;
pub(super) const SETUP: Setup = Setup {
    capacity_blocks: CAPACITY,
    block_len: BLOCK_LEN,
    fresh: true,
};

pub(super) fn open(make: Make<'_>, slots: u32) -> Caller {
    Client::new(make(SETUP), slots, BLOCK_LEN)
}

/// Every check ends here: nothing outstanding, nothing pinned.
pub(super) fn end(mut c: Caller) {
    c.wait_all();
    c.tier.shutdown();
    let pinned = c.tier.stats().pinned_blocks;
    assert_eq!(
        pinned, 0,
        "contract broken: Pins (I3): {pinned} blocks are pinned when nothing runs"
    );
}

pub(super) fn store_all(c: &mut Caller, req: RequestId, keys: &[Key]) {
    for o in c.store(req, keys) {
        assert!(
            o.is_ok(),
            "contract broken: a block within the capacity was not stored: {o:?}"
        );
    }
    c.tier.on_request_finished(req, &[]);
}
