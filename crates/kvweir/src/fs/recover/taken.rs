//! What was taken over.

use crate::{
    block::Fingerprint,
    root::{
        journal::Owned,
        names::{DirKind, Prefix},
    },
};

/// What was taken over.
#[derive(Default)]
pub(crate) struct Taken {
    /// Blocks new to the index.
    pub(crate) blocks: Vec<Owned>,
    /// Blocks of leaves in doubt, and those that turned out not to be there.
    pub(crate) looked_at: LookedAt,
}

#[derive(Default)]
pub(crate) struct LookedAt {
    pub(crate) there: Vec<Owned>,
    pub(crate) gone: Vec<(Fingerprint, u16, DirKind, Prefix)>,
}
