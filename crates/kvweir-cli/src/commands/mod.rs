//! One file per subcommand: its flags, and a `run` that returns how it ended.

pub(crate) mod bench;
pub(crate) mod convert;
pub(crate) mod doctor;
pub(crate) mod front;
pub(crate) mod gc;
pub(crate) mod import;
pub(crate) mod inspect;
pub(crate) mod replay;
mod stanza;
pub(crate) mod trim;
pub(crate) mod verify;
