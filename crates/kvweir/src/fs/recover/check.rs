//! Whether a journal that is sound can be gone on with by this tier.

use crate::{
    fs::shared::Shared,
    root::{journal::Replayed, names::DirKind},
};

pub(crate) const TOO_MANY_NAMESPACES: &str = "more namespaces lie below the root than an index can name";

/// Whether every namespace has a number here. What has none could not be counted block by block (I1): a walk counts it
/// as foreign.
pub(crate) fn can_be_named(s: &Shared, r: &Replayed) -> bool {
    r.namespaces.iter().all(|dir| s.root.number_of(dir).is_some())
}

/// Whether every block of ours has the key that events need.
pub(crate) fn keys_are_known(s: &Shared, r: &Replayed) -> bool {
    let own = r.namespaces.iter().position(|n| n == s.ns.dir());
    !s.root.keep_keys
        || r.blocks.iter().all(|o| {
            o.bad || o.key.is_some() || o.leaf == DirKind::Extent || Some(usize::from(o.namespace)) != own
        })
}

/// Blocks of our namespace that have another length than ours are none.
pub(crate) fn mark_other_lengths(s: &Shared, r: &mut Replayed) {
    let other = r
        .resume
        .as_ref()
        .is_some_and(|f| f.header.block_len != s.params.block_len as u64);
    let own = r.namespaces.iter().position(|n| n == s.ns.dir());
    if other {
        let ours = r
            .blocks
            .iter_mut()
            .filter(|o| Some(usize::from(o.namespace)) == own);
        ours.for_each(|o| o.bad = true);
    }
}
