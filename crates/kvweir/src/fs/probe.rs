//! Looking for blocks that others wrote. Only an unbounded root is shared with other writers, so only there a key
//! that the index does not know is looked for on disk, by a worker; the scheduler asks again and gets the answer,
//! which is remembered (a hit in the index, a miss for a short time).

use std::sync::Arc;

use super::{core::weight, shared::Shared};
use crate::{
    block::{Fingerprint, Key},
    catalog::index::State,
    evict::RequestTag,
    io::{
        disk::FileKind,
        pool::{Work, Worker},
    },
    root::names::{Location, Shelf},
    sync::lock,
};

/// One key being looked for.
pub(crate) struct Probe {
    pub(crate) shared: Arc<Shared>,
    pub(crate) key: Key,
    pub(crate) fp: Fingerprint,
}

impl Probe {
    fn end(&self, found: bool) {
        let s = &*self.shared;
        let now = s.clock.now();
        let mut p = lock(&s.probes);
        p.running.remove(&self.fp);
        if !found {
            p.miss(self.fp, now, now.after(s.params.miss_ttl));
        }
        drop(p);
        s.bell.ring();
    }
}

impl Work for Probe {
    fn run(&self, _unit: usize, _worker: &mut Worker) {
        let s = &*self.shared;
        let at = Location::of(&self.key);
        let stat = s.disk.stat(&s.leaf_of(&at).join(at.file_name())).ok();
        let whole = s.file_len();
        let stat = stat
            .filter(|t| t.kind == FileKind::File && (t.len == whole || t.len == s.params.block_len as u64));
        let mut inserted = false;
        if let Some(stat) = stat {
            let mut core = lock(&s.core);
            if core.index.find(self.fp).is_none()
                && let Some(shelf) = core.index.shelf_id(Shelf {
                    namespace: 0,
                    leaf: at.leaf,
                })
                && let Some(id) = core
                    .index
                    .insert(self.fp, shelf, at.fan, State::Ready, stat.allocated)
            {
                core.index.set_has_trailer(id, stat.len == whole);
                core.index
                    .set_written_at(id, u64::try_from(stat.mtime_ns / 1_000_000_000).unwrap_or(0));
                core.index.set_key(id, &self.key);
                core.budget.add_resident(stat.allocated);
                let w = u32::try_from(weight(stat.allocated)).unwrap_or(u32::MAX);
                core.policy.insert(id, self.fp, w, RequestTag::NONE);
                core.stats.blocks += 1;
                core.events.stored(&self.key);
                inserted = true;
            }
        }
        if inserted {
            s.dirs.found_file(0, at.fan, at.leaf);
        }
        self.end(stat.is_some());
    }

    fn cancel(&self, _unit: usize) {
        self.end(false);
    }
}
