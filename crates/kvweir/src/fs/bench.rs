//! For benches and tests (feature `testing`): compaction on demand, and blocks that the index knows and that have no
//! files, so that lookups can be measured at sizes no test disk holds. Evicting or loading one finds its file gone;
//! nothing else differs.

use std::{sync::atomic::Ordering, time::Duration};

use super::FsTier;
use crate::{
    block::{Fingerprint, Key},
    catalog::index::BATCH,
    jobs::Backend,
    sync::{Bell, lock},
};

impl FsTier {
    /// Has the keeper compact the journal now, if there is room for that, and waits until it tried, at most ten
    /// seconds.
    pub fn compact(&self) {
        let s = &*self.space;
        if s.root.journal.get().is_none() {
            return;
        }
        let asked = s.compact_asked.fetch_add(1, Ordering::Relaxed) + 1;
        s.keeper.ring();
        let pause = Bell::default();
        for _ in 0..10_000 {
            if s.compact_tried.load(Ordering::Relaxed) >= asked {
                return;
            }
            pause.wait(pause.rings(), Duration::from_millis(1));
        }
    }

    /// Makes the index believe that `keys` are resident, `bytes` bytes each; returns how many were added.
    pub fn add_phantoms(&mut self, keys: impl IntoIterator<Item = Key>, bytes: u64) -> u64 {
        let s = &*self.space;
        let mut added = 0;
        let mut keys = keys.into_iter().map(|key| (s.fingerprint(&key), key));
        loop {
            // as a job's blocks come
            let part: Vec<(Fingerprint, Key)> = keys.by_ref().take(BATCH).collect();
            if part.is_empty() {
                return added;
            }
            lock(&s.core).catalog.warm_places(part.iter().map(|&(fp, _)| fp));
            added += part
                .iter()
                .filter(|(fp, key)| self.add_phantom(*fp, key, bytes))
                .count() as u64;
        }
    }

    fn add_phantom(&self, fp: Fingerprint, key: &Key, bytes: u64) -> bool {
        let s = &*self.space;
        let at = s.location(key);
        if !lock(&s.core).admit_found(fp, &at, bytes, (true, 0), None) {
            return false;
        }
        s.root.dirs.found_file(s.id.0, at.prefix, at.leaf);
        s.root.dirs.found_dir(s.id.0, at.prefix, Some(at.leaf), 4096);
        true
    }
}
