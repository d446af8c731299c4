//! What a secondary tier promises. A tier is submitted jobs and polled for reports; it owns its threads and its
//! device. Every call here comes from the scheduler and returns without waiting for a device (I8), except
//! [`Tier::drain`] and [`Tier::shutdown`]. A tier that fails, hangs or fills up misses; it never raises (I10).

#[cfg(any(test, feature = "testing"))]
pub mod conformance;
mod job;
mod memory;

use std::fmt;

pub use job::{BlockOutcome, Direction, JobId, LoadBlock, LoadJob, Report, StoreBlock, StoreJob, Verified};
pub use memory::MemoryTier;

pub use crate::request::RequestId;

use crate::{
    block::Key,
    error::ErrorKind,
    events::{Event, Locality, Medium},
    metrics::TierStats,
};

/// The answer to "do you hold this block?".
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Lookup {
    /// Yes: it is pinned for the asking request until its load ends or the request finishes (I3).
    Hit,
    /// No.
    Miss,
    /// Being found out off the scheduler thread, or on its way up: ask again at the next step.
    Retry,
}

/// What a tier wants of a request's blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum StorePolicy {
    /// Only blocks that are new to the primary tier.
    #[default]
    NewBlocks,
    /// Every block of the request, also those the primary tier held already.
    EveryBlock,
}

/// A secondary tier.
///
/// # Contract
/// - **Once (I4).** Every job given to `submit_store` or `submit_load` appears in exactly one [`Report`], with one
///   outcome per block in the job's order; at the latest after [`drain`](Self::drain) or
///   [`shutdown`](Self::shutdown). A job that cannot run is reported failed.
/// - **Truth (I2).** A block reported [`BlockOutcome::Loaded`] holds exactly the bytes that were stored for its
///   key. Slots of other outcomes may hold anything.
/// - **Pins (I3).** A block answered [`Lookup::Hit`] is neither evicted nor overwritten while the request that
///   asked holds it: until its load ends, the request finishes, or the tier shuts down. Asking twice pins once.
/// - **Slots (I5).** The slot guards in a job are dropped when no I/O touches them any more, before the report. A job
///   that was given up at a deadline is reported before that: a block that failed as [`ErrorKind::Unavailable`] may
///   leave its slot claimed until its I/O ends ([`Region::is_free`](crate::io::Region::is_free) tells). A block
///   reported `Loaded` whose guard still exists is not believed.
/// - **After a failed load** the block is a miss until it is stored again. The request that asked is not sent to this
///   tier for it again, but to the next.
///
/// The conformance kit (feature `testing`) holds a tier to all of this.
pub trait Tier: Send + fmt::Debug {
    /// A short name, unique among the tiers of a manager: the `tier` label of metrics, numbered there where it is not.
    fn name(&self) -> &str;
    /// Where its bytes lie.
    fn medium(&self) -> Medium;
    /// Whether its bytes lie on this machine.
    fn locality(&self) -> Locality;

    /// A request begins.
    fn on_new_request(&mut self, req: RequestId) -> StorePolicy {
        let _ = req;
        StorePolicy::NewBlocks
    }
    /// Whether `key` can be loaded. [`Lookup::Hit`] pins it for `req`.
    fn lookup(&mut self, key: &Key, req: RequestId) -> Lookup;
    /// Looks `keys` up in order, up to the first that is no hit: how many hit, each pinned for `req`, and the answer for
    /// the next one ([`Lookup::Hit`] where there is none).
    fn lookup_run(&mut self, keys: &[Key], req: RequestId) -> (usize, Lookup) {
        for (i, key) in keys.iter().enumerate() {
            let answer = self.lookup(key, req);
            if answer != Lookup::Hit {
                return (i, answer);
            }
        }
        (keys.len(), Lookup::Hit)
    }
    /// Starts storing the job's blocks. Keys come in prefix order where the caller knows it.
    fn submit_store(&mut self, job: StoreJob);
    /// Starts loading the job's blocks into their slots. Pins of `job.req` pass to the job.
    fn submit_load(&mut self, job: LoadJob);
    /// Appends the reports of jobs that ended since the last call.
    fn poll(&mut self, reports: &mut Vec<Report>);
    /// Marks `keys` (in prefix order) as used by `req`: the last one becomes the least recent of them.
    fn touch(&mut self, keys: &[Key], req: RequestId) {
        let _ = (keys, req);
    }
    /// The request is over: its pins are released and its blocks `keys` (in prefix order) are marked as used.
    fn on_request_finished(&mut self, req: RequestId, keys: &[Key]);
    /// Appends the residency changes since the last call, oldest first (I7).
    fn take_events(&mut self, events: &mut Vec<Event>) {
        let _ = events;
    }
    /// Whether jobs are queued or running.
    fn has_pending_work(&self) -> bool;
    /// Waits until nothing runs except what was given up; queued loads are cancelled, and queued stores if they take
    /// long. [`poll`](Self::poll) then has all reports.
    fn drain(&mut self);
    /// Waits for running I/O, cancels the rest, releases pins. Further jobs are reported
    /// [`ErrorKind::Closed`]. Idempotent.
    fn shutdown(&mut self);
    /// Numbers for metrics; O(1).
    fn stats(&self) -> TierStats;
}

impl Report {
    /// A report that every block of a job failed with `kind` before any I/O.
    pub fn refused(id: JobId, direction: Direction, blocks: usize, kind: ErrorKind) -> Self {
        Self {
            id,
            direction,
            blocks: vec![BlockOutcome::Failed(kind); blocks],
            bytes: 0,
            device_time: std::time::Duration::ZERO,
            queue_time: std::time::Duration::ZERO,
        }
    }
}
