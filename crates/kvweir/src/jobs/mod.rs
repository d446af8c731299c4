//! Jobs from their submission to their report, whatever the tier that does them: queued once whole, given to workers
//! part by part, reported once (I4), given up at their deadline, refused while the device is left alone (I10). Knows no
//! files and no names; what a tier does with a block is behind [`Backend`].
//!
//! | file | what it holds |
//! |---|---|
//! | `backend.rs` | [`Backend`]: what a tier brings |
//! | `runner.rs`, `look.rs` | [`Runner`]: where every job ends; the look at those that do not |
//! | `deferred.rs` | [`submit`](deferred::submit): a job whose blocks are made when a worker reaches it |
//! | `store.rs`, `load.rs` | [`StoreRun`], [`LoadRun`]: a job with its blocks; [`Stores`], [`Loads`]: who does it |
//! | `progress.rs` | outcomes, operations under way, device time |
//! | `watchdog.rs`, `device.rs` | deadlines and breaker; what all tiers on one device share |
//! | `bounce.rs` | buffers for loads that may hang |

pub(crate) mod backend;
pub(crate) mod bounce;
pub(crate) mod deferred;
pub(crate) mod device;
pub(crate) mod load;
pub(crate) mod look;
pub(crate) mod progress;
pub(crate) mod runner;
pub(crate) mod store;
pub(crate) mod watchdog;

pub(crate) use self::{
    backend::Backend,
    load::{LoadRun, Loads},
    runner::Runner,
    store::{StoreRun, Stores},
};
