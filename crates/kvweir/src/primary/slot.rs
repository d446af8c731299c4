//! A slot of the primary tier: what it holds, who writes it, and which claims on it still count.

use crate::{
    block::{Fingerprint, Key},
    io::region::SlotId,
    request::RequestId,
};

/// Whether a block is in the primary tier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SlotState {
    /// It is not there.
    Absent,
    /// Its bytes are on their way.
    Writing,
    /// It can be read.
    Ready,
}

/// A slot as it was handed out once. A late report changes nothing once the slot has been given to another block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct Claim {
    pub(super) slot: SlotId,
    pub(super) life: u32,
}

impl Claim {
    pub(crate) fn slot(self) -> SlotId {
        self.slot
    }
}

/// Who brings the bytes of a slot that is being written, and alone may report that they arrived.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Writer {
    /// The engine, for this request.
    Engine(RequestId),
    /// A tier, by the job that holds the [`Claim`].
    Tier,
}

/// What is known of a slot.
#[derive(Debug, Clone)]
pub(super) struct Slot {
    pub(super) key: Option<Key>,
    pub(super) fp: Fingerprint,
    pub(super) ready: bool,
    /// Noted in `Primary::guarded`.
    pub(super) waits: bool,
    pub(super) refs: u32,
    /// How many waiting requests hold it; see `hold.rs`.
    pub(super) holds: u32,
    /// The tier that brought the block, and the request it was brought for.
    pub(super) origin: Option<(u16, RequestId)>,
    /// Slots that are handed out later have a higher one.
    pub(super) turn: u64,
    /// How often the slot was given to another block; see [`Claim`].
    pub(super) life: u32,
    pub(super) writer: Writer,
    /// The step in which a lookup last answered "hit": until the step ends the slot stays.
    pub(super) hit_in: u64,
}

impl Slot {
    /// A slot that holds nothing.
    pub(super) fn empty() -> Self {
        Self {
            key: None,
            fp: Fingerprint(0),
            ready: false,
            waits: false,
            refs: 0,
            holds: 0,
            origin: None,
            turn: 0,
            life: 0,
            writer: Writer::Tier,
            hit_in: u64::MAX,
        }
    }
}
