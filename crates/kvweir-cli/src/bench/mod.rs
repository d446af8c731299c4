//! `kvweir bench`: what a directory's device gives, and what a tier in it makes of that.
//!
//! | file | what it holds |
//! |---|---|
//! | `plan.rs` | what is to be measured, and whether it can be |
//! | `run.rs` | the phases, in their order |
//! | `content.rs` | seeded blocks, and how wrong ones are seen |
//! | `device.rs` | direct reads and writes without a tier |
//! | `drive.rs` | jobs through the tier |
//! | `meter.rs`, `outcome.rs` | counting and timing; what is told |

mod content;
mod device;
mod drive;
mod meter;
mod outcome;
mod plan;
mod run;

pub(crate) use self::{
    outcome::{Measure, Outcome, Step},
    plan::Plan,
    run::run,
};
