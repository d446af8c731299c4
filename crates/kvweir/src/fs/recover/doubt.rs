//! Leaves in which something was under way when a member died.

use std::{collections::HashSet, io};

use crate::{
    block::Fingerprint,
    fs::{recover::level::with_walk, shared::Shared},
    root::{
        dirs::Dirs,
        journal::{Replayed, Unusable},
        names::{DirKind, Prefix},
        walk::{Survey, Sweep},
    },
    sync::lock,
};

/// A leaf in which something was under way when a member died, as it is now.
pub(crate) struct Looked {
    pub(crate) at: (u16, Prefix, DirKind),
    pub(crate) survey: Survey,
    /// What the member had there, or began.
    pub(crate) owned: Vec<Fingerprint>,
}

/// Looks at the leaves in which something was under way when the member died. Nothing is counted yet: where it fails,
/// it may be tried again.
pub(crate) fn look_at_doubt(s: &Shared, r: &Replayed, member: u32) -> Result<Vec<Looked>, Unusable> {
    let mut all = Vec::with_capacity(r.doubt.len());
    for (&(ns, prefix, leaf), owned) in &r.doubt {
        let dir = r.namespaces.get(usize::from(ns));
        let Some(n) = dir.and_then(|dir| s.root.number_of(dir)) else {
            continue;
        };
        let Some(dir) = s.root.namespace(n) else { continue };
        let owned: Vec<Fingerprint> = owned.iter().map(|o| o.fp).collect();
        let only: HashSet<Fingerprint> = owned
            .iter()
            .copied()
            .filter(|&fp| lock(&s.core).catalog.find(fp).is_none())
            .collect();
        let mut survey = Survey::default();
        let met = with_walk(s, Sweep::Member(member), &|_| {}, |w| {
            w.walk_leaf(n, &dir, (prefix, leaf), Some(&only), &Dirs::new(), &mut survey)
        });
        met.map_err(|e| match e.errno() {
            Some(n) => Unusable::Io(io::Error::from_raw_os_error(n)),
            None => Unusable::Io(io::Error::other(e)),
        })?;
        survey.blocks.sort_unstable_by_key(|b| (b.mtime_ns, b.fp));
        all.push(Looked {
            at: (n, prefix, leaf),
            survey,
            owned,
        });
    }
    Ok(all)
}
