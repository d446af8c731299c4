//! Jobs: batches of blocks moved one way for one request, and the reports of how each block fared.

use std::time::Duration;

use crate::{
    block::Key,
    error::ErrorKind,
    io::{SlotRead, SlotWrite},
    request::RequestId,
};

/// Names a job among all jobs of a manager.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct JobId(pub u64);

/// Which way a job moves blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Direction {
    /// Primary tier to secondary tier.
    Store,
    /// Secondary tier to primary tier.
    Load,
}

/// A block to store: its name and its bytes in the primary tier.
#[derive(Debug)]
pub struct StoreBlock {
    /// The block's name.
    pub key: Key,
    /// The block's bytes, readable until the guard is dropped.
    pub slot: SlotRead,
}

/// A block to load: its name and the slot to fill.
#[derive(Debug)]
pub struct LoadBlock {
    /// The block's name.
    pub key: Key,
    /// Where the bytes go.
    pub slot: SlotWrite,
}

/// Blocks to store for one request.
#[derive(Debug)]
pub struct StoreJob {
    /// Name of the job.
    pub id: JobId,
    /// Who stores.
    pub req: RequestId,
    /// The blocks, in prefix order where the caller knows it.
    pub blocks: Vec<StoreBlock>,
}

/// Blocks to load for one request.
#[derive(Debug)]
pub struct LoadJob {
    /// Name of the job.
    pub id: JobId,
    /// Who loads.
    pub req: RequestId,
    /// The blocks, in prefix order.
    pub blocks: Vec<LoadBlock>,
}

/// Whether loaded bytes were compared with a checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Verified {
    /// The payload checksum and the full key matched.
    Checksum,
    /// The source carries no checksum (a file of the stock layout) or verification is off.
    SizeOnly,
}

/// How one block of a job fared.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockOutcome {
    /// Written and published.
    Stored,
    /// The tier held it already; nothing was written.
    Present,
    /// Read into its slot.
    Loaded(Verified),
    /// Not moved; the kind says why. A slot that was to be loaded may hold anything now.
    Failed(ErrorKind),
}

impl BlockOutcome {
    /// Whether the block is where the job was to bring it.
    pub fn is_ok(self) -> bool {
        !matches!(self, Self::Failed(_))
    }

    /// Whether the device failed it. No room, a queue that is full or a tier that is closed say nothing about a device.
    pub fn failed_on_device(self) -> bool {
        match self {
            Self::Stored | Self::Present | Self::Loaded(_) => false,
            Self::Failed(kind) => !matches!(kind, ErrorKind::Full | ErrorKind::Busy | ErrorKind::Closed),
        }
    }
}

/// The end of a job: one outcome per block, in the job's order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Report {
    /// Which job.
    pub id: JobId,
    /// Which way it went.
    pub direction: Direction,
    /// One outcome per block.
    pub blocks: Vec<BlockOutcome>,
    /// Bytes actually moved to or from the device, trailers included.
    pub bytes: u64,
    /// Time during which the device worked on this job: while at least one I/O of it was under way.
    pub device_time: Duration,
    /// Time from submission to the first I/O.
    pub queue_time: Duration,
}

impl Report {
    /// Whether every block succeeded.
    pub fn all_ok(&self) -> bool {
        self.blocks.iter().all(|b| b.is_ok())
    }

    /// Whether the job failed, as detectors count it: the device failed any block of it, since a dying disk still takes
    /// a few.
    pub fn failed_on_device(&self) -> bool {
        self.blocks.iter().any(|b| b.failed_on_device())
    }
}
