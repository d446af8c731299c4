//! The whole engine under a scheduler that a seed drives: every lock, atomic, wait and call to the disk is a point at
//! which another thread may go on, and each run can be repeated. Built with `--cfg kvweir_shuttle` only:
//! `scripts/schedules` does.

#![cfg(kvweir_shuttle)]

#[cfg(test)]
#[path = "../support/mod.rs"]
mod common;
#[cfg(test)]
mod explore;
#[cfg(test)]
mod journal;
#[cfg(test)]
mod members;
#[cfg(test)]
mod pins;
#[cfg(test)]
mod sim;
#[cfg(test)]
mod spaces;
#[cfg(test)]
mod support;
