//! Looking for blocks that others wrote. Only an unbounded root is shared with other writers, so only there a key
//! that the index does not know is looked for on disk, by a worker; the scheduler asks again and gets the answer,
//! which is remembered (a hit in the index, a miss for a short time).

use std::sync::Arc;

use super::shared::Shared;
use crate::{
    block::{Fingerprint, Key},
    catalog::{Origin, index::State},
    fs::body::FileBody,
    io::{
        disk::FileKind,
        pool::{Work, Worker},
    },
    root::{names::Location, trailer::TRAILER_BYTES},
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
        s.runner.ring();
    }
}

impl Work for Probe {
    fn run(&self, _unit: usize, _worker: &mut Worker) {
        let s = &*self.shared;
        let at = Location::of(&self.key);
        let stat = s.root.disk.stat(&s.root.leaf_of(&at).join(at.file_name())).ok();
        let whole = (s.params.block_len + TRAILER_BYTES) as u64;
        let stat = stat
            .filter(|t| t.kind == FileKind::File && (t.len == whole || t.len == s.params.block_len as u64));
        let mut inserted = false;
        if let Some(stat) = stat {
            let mut core = lock(&s.core);
            let shelf = core.shelves.number(at.shelf().0);
            let found = shelf.and_then(|shelf| {
                let written_at = u64::try_from(stat.mtime_ns / 1_000_000_000).unwrap_or(0);
                let body =
                    FileBody::new(shelf, at.fan, stat.allocated).written(stat.len == whole, written_at);
                core.catalog
                    .discover(self.fp, State::Ready, body.body(), Some(&self.key))
            });
            if let Some(id) = found {
                core.account.budget.add_resident(stat.allocated);
                core.catalog.rank(id, Origin::Found);
                inserted = true;
            }
        }
        if inserted {
            s.root.dirs.found_file(0, at.fan, at.leaf);
        }
        self.end(stat.is_some());
    }

    fn cancel(&self, _unit: usize) {
        self.end(false);
    }
}
