//! Tests of the engine through its public face.

mod conformance;
mod fs_bound;
mod fs_events;
mod fs_faults;
mod fs_restart;
mod fs_truth;
mod stress;
mod support;
