//! What a tier holds.

pub(crate) mod index;
pub(crate) mod pins;
mod table;
