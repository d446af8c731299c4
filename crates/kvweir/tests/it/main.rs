//! Tests of the engine through its public face.

#[cfg(test)]
mod admin;
#[cfg(test)]
mod appends;
#[cfg(test)]
mod around;
#[cfg(test)]
mod broken;
#[cfg(test)]
mod broken_errors;
#[cfg(test)]
mod broken_os;
#[cfg(test)]
mod broken_two;
#[cfg(test)]
mod claim;
#[cfg(test)]
#[path = "../support/mod.rs"]
mod common;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod crash;
#[cfg(test)]
mod engines;
#[cfg(test)]
mod followers;
#[cfg(test)]
mod foreign_names;
#[cfg(test)]
mod fs_bound;
#[cfg(test)]
mod fs_events;
#[cfg(test)]
mod fs_faults;
#[cfg(test)]
mod fs_later;
#[cfg(test)]
mod fs_restart;
#[cfg(test)]
mod fs_tree;
#[cfg(test)]
mod fs_truth;
#[cfg(test)]
mod handover;
#[cfg(test)]
mod hook;
#[cfg(test)]
mod journal_trust;
#[cfg(test)]
mod lost;
#[cfg(test)]
mod matrix;
#[cfg(test)]
mod matrix_members;
#[cfg(test)]
mod model;
#[cfg(test)]
mod pack;
#[cfg(test)]
mod pack_faults;
#[cfg(test)]
mod pack_shared;
#[cfg(test)]
mod pack_start;
#[cfg(test)]
mod pack_truth;
#[cfg(test)]
mod races;
#[cfg(test)]
mod several;
#[cfg(test)]
mod shared_root;
#[cfg(test)]
mod sizes;
#[cfg(test)]
mod spaces;
#[cfg(test)]
mod stress;
#[cfg(test)]
mod support;
#[cfg(test)]
mod told;
#[cfg(test)]
mod units;
