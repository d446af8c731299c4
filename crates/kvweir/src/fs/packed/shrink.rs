//! Giving bytes back: a whole extent, the one with the fewest blocks first. Its blocks are found by its table; those
//! that are pinned or being written hold it until they are not. Then its file goes as a block's does.
//!
//! An extent that is held stays closed: it takes nothing new, so it ends. Few are closed at a time, lest a pin in each
//! costs all others their blocks; and when nothing has to be given back any more they take blocks again.

use std::{sync::Arc, time::Duration};

use super::{Pack, claim::each_record, extent::Extent};
use crate::{
    block::Fingerprint,
    catalog::index::State,
    fs::{packed::parts::remove_part, space::Space},
    jobs::Backend,
    metrics::EvictReason,
    sync::lock,
};

/// Blocks dropped under one hold of the lock.
const AT_ONCE: usize = 256;
/// Extents that are closed and held at one time.
const CLOSING: usize = 4;
/// How long none is given up after one could not be removed.
const STUCK_FOR: Duration = Duration::from_secs(30);

impl Pack {
    /// Gives up an extent; returns whether the bytes of one are free.
    pub(crate) fn drop_extent(&self, s: &Space, reason: EvictReason) -> bool {
        let mut turn = lock(&self.grow);
        if turn.is_some_and(|until| s.clock.now() < until) {
            return false;
        }
        let gone = self.by_use().into_iter().find_map(|e| {
            let ids = e.ids;
            // what is open outlives its name
            self.empty_extent(s, &e, reason).then_some(ids)
        });
        let Some(ids) = gone else { return false };
        ids.into_iter().for_each(|id| remove_part(s, id, reason));
        let stuck = {
            let core = lock(&s.core);
            ids.iter().any(|&id| core.catalog.state(id) == State::Bad)
        };
        *turn = stuck.then(|| s.clock.now().after(STUCK_FOR));
        !stuck
    }

    /// Drops the blocks of an extent and forgets it; `false` while something holds it.
    fn empty_extent(&self, s: &Space, extent: &Arc<Extent>, reason: EvictReason) -> bool {
        if !self.close(extent, CLOSING) {
            return false;
        }
        self.free_forgotten(s);
        if self.remove_unused(extent) {
            return true;
        }
        let mut fps: Vec<(Fingerprint, u32)> = Vec::new();
        let read = each_record(extent, &mut |place, record| {
            fps.extend(record.map(|r| (s.fingerprint(&r.key), extent.slot(place))));
        });
        if let Err(error) = read {
            let what = "the table of an extent cannot be read: the index tells what lies in it";
            if s.root.told.is_new(what, s.clock.now(), 1) {
                tracing::warn!(tier = %s.params.name, %error, "{what}");
            }
            fps = self.slots_of(s, extent);
        }
        for part in fps.chunks(AT_ONCE) {
            let mut freed = Vec::new();
            {
                let mut core = lock(&s.core);
                for &(fp, slot) in part {
                    let here = core.catalog.find(fp).filter(|&id| {
                        core.slot(id)
                            .is_some_and(|s| (s.store, s.slot) == (self.store, slot))
                            && core.catalog.is_evictable(id)
                    });
                    if let Some(id) = here {
                        freed.extend(core.forget_slot(id, reason, self.slot_bytes));
                    }
                }
            }
            self.give(&mut freed);
        }
        self.remove_unused(extent)
    }

    /// Frees slots of blocks that were forgotten while somebody read them and that nobody reads any more.
    pub(crate) fn free_forgotten(&self, s: &Space) {
        let mut freed = lock(&s.core).take_freed(self.store);
        if !freed.is_empty() {
            self.give(&mut freed);
        }
    }
}
