//! Blocks with files of their own.

pub(crate) mod cost;
pub(crate) mod pieces;
