//! Blocks whose directories somebody removed. A load finds out by itself, one miss a block; but what was counted for
//! them is not there, and a lookup would hit each of them once. So when a directory turns out to be gone - a store had
//! to make it again, or the keeper does not find the namespace's own - the keeper compares the index with what lies
//! there, and forgets the rest.

use std::{collections::HashSet, io};

use foldhash::fast::FixedState;

use super::{core::Victim, shared::Shared};
use crate::{
    block::Fingerprint,
    catalog::index::State,
    evict::Id,
    metrics::EvictReason,
    root::{
        dirs::Lost,
        names::{DirKind, Prefix, leaf_dir, name_fingerprint},
    },
    sync::{atomic::Ordering, lock},
};

/// Entries of the index looked at under one hold of the lock.
const AT_ONCE: u32 = 4096;

/// A block with a file, as the index has it.
#[derive(Debug, Clone, Copy)]
struct Known {
    id: Id,
    fp: Fingerprint,
    namespace: u16,
    prefix: Prefix,
    leaf: DirKind,
}

impl Shared {
    /// Whether the directory of a namespace that is served is gone.
    pub(crate) fn own_dir_is_gone(&self) -> bool {
        let gone = |dir| matches!(self.root.disk.stat(dir), Err(e) if e.kind() == io::ErrorKind::NotFound);
        self.root.own_dirs().iter().any(|dir| gone(dir))
    }

    /// Forgets blocks that went with their directories. With `root_gone`, of all namespaces. Returns whether a served
    /// namespace's own directory may have been gone.
    pub(crate) fn forget_lost(&self, root_gone: bool) -> bool {
        let lost = self.root.dirs.take_lost();
        if root_gone || !lost.is_empty() {
            self.forget(&lost, root_gone);
        }
        root_gone || !lost.all.is_empty()
    }

    fn forget(&self, lost: &Lost, root_gone: bool) {
        let mut known = self.known_below(lost, root_gone);
        known.sort_unstable_by_key(|k| (k.namespace, k.prefix, k.leaf));
        let mut gone = 0;
        for leaf in known.chunk_by(|a, b| (a.namespace, a.prefix, a.leaf) == (b.namespace, b.prefix, b.leaf))
        {
            if self.stop.load(Ordering::Relaxed) {
                return;
            }
            let Ok(there) = self.fingerprints_in(leaf) else {
                // what cannot be looked at now is a load's to find out
                continue;
            };
            for k in leaf.iter().filter(|k| !there.contains(&k.fp)) {
                if let Some(v) = self.begin_forgetting(k) {
                    self.remove_victim(&v, EvictReason::External, true);
                    gone += 1;
                }
            }
        }
        if gone > 0 {
            lock(&self.core).catalog.sweep_orphans();
            tracing::warn!(
                tier = %self.name, blocks = gone, root = %self.root.path.display(),
                "directories were removed by somebody else: the blocks that lay there are misses now"
            );
        }
    }

    /// Blocks with files below directories that may be gone.
    fn known_below(&self, lost: &Lost, root_gone: bool) -> Vec<Known> {
        let mut out = Vec::new();
        let mut from = 0;
        loop {
            let core = lock(&self.core);
            let all = core.catalog.ids();
            let end = from + AT_ONCE.min(all - from);
            for id in from..end {
                if !matches!(core.catalog.state(id), State::Ready | State::Bad) {
                    continue;
                }
                let Some((class, prefix)) = core.place(id) else {
                    continue;
                };
                let (namespace, leaf) = (class.namespace, class.leaf);
                let gone = root_gone
                    || lost.all.contains(&namespace)
                    || lost.leaves.contains(&(namespace, prefix, leaf));
                if gone && leaf != DirKind::Extent {
                    out.push(Known {
                        id,
                        fp: core.catalog.fingerprint(id),
                        namespace,
                        prefix,
                        leaf,
                    });
                }
            }
            drop(core);
            from = end;
            if from >= all {
                return out;
            }
        }
    }

    /// Fingerprints of the blocks that lie in the directory of `leaf`, which are all of one.
    fn fingerprints_in(&self, leaf: &[Known]) -> io::Result<HashSet<Fingerprint, FixedState>> {
        let mut there = HashSet::default();
        let Some(k) = leaf.first() else { return Ok(there) };
        let Some((ns, seed)) = self.root.namespace_and_seed(k.namespace) else {
            return Ok(there);
        };
        let listed = self
            .root
            .disk
            .list(&leaf_dir(&ns, k.prefix, k.leaf), &mut |name, _| {
                let name = name.to_str();
                there.extend(name.and_then(|n| name_fingerprint(n, k.prefix, k.leaf, seed)));
            });
        match listed {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => Ok(there),
        }
    }

    /// Takes a block out of the index, if it is still the one that was seen.
    fn begin_forgetting(&self, k: &Known) -> Option<Victim> {
        let mut core = lock(&self.core);
        let same = core.catalog.fingerprint(k.id) == k.fp
            && matches!(core.catalog.state(k.id), State::Ready | State::Bad)
            && core.slot(k.id).is_none();
        same.then(|| core.begin_removal(k.id)).flatten()
    }
}
