//! Looking for blocks that others wrote. Only an unbounded root is shared with other writers, so only there a key
//! that the index does not know is looked for on disk, by a worker; the scheduler asks again and gets the answer,
//! which is remembered (a hit in the index, a miss for a short time).

use std::sync::Arc;

use super::space::Space;
use crate::{
    block::{Fingerprint, Key},
    io::{
        disk::FileKind,
        pool::{Work, Worker},
    },
    root::trailer::is_block_file,
    sync::lock,
};

/// One key being looked for.
pub(crate) struct Probe {
    pub(crate) space: Arc<Space>,
    pub(crate) key: Key,
    pub(crate) fp: Fingerprint,
}

impl Probe {
    fn end(&self, found: bool) {
        let s = &*self.space;
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
        let s = &*self.space;
        let at = s.location(&self.key);
        let stat = s.root.disk.stat(&s.root.path_of(&at)).ok();
        let block_len = s.params.block_len as u64;
        let stat = stat.filter(|t| t.kind == FileKind::File && is_block_file(t.len, block_len));
        if let Some(stat) = stat {
            let written_at = u64::try_from(stat.mtime_ns / 1_000_000_000).unwrap_or(0);
            let facts = (stat.len != block_len, written_at);
            let key = Some(&self.key);
            if lock(&s.core).admit_found(self.fp, &at, stat.allocated, facts, key) {
                s.root.dirs.found_file(s.id.0, at.prefix, at.leaf);
            }
        }
        self.end(stat.is_some());
    }

    fn cancel(&self, _unit: usize) {
        self.end(false);
    }
}
