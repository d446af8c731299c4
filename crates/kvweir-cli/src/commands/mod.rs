//! One file a subcommand: its flags, and a `run` that returns how it ended.

pub(crate) mod replay;
