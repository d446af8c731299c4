//! Whether a journal that is sound can be gone on with by this member.

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
    let served: Vec<bool> = r.namespaces.iter().map(|n| s.served_in(n).is_some()).collect();
    let is_served = |ns: u16| served.get(usize::from(ns)).copied().unwrap_or(false);
    !s.root.keep_keys
        || r.blocks
            .iter()
            .all(|o| o.bad || o.key.is_some() || o.leaf == DirKind::Extent || !is_served(o.namespace))
}

/// Marks blocks of the served namespace `number`, whose journal this is, as bad where that was written for another
/// block length than the namespace has now. Returns whether it was.
pub(crate) fn mark_other_lengths(s: &Shared, r: &mut Replayed, number: usize) -> bool {
    let other = r
        .resume
        .as_ref()
        .is_some_and(|f| Some(f.header.block_len) != s.served.get(number).map(|s| s.block_len));
    if other {
        let own = r.namespaces.iter().position(|n| s.served_in(n) == Some(number));
        let ours = r
            .blocks
            .iter_mut()
            .filter(|o| Some(usize::from(o.namespace)) == own);
        ours.for_each(|o| o.bad = true);
    }
    other
}
