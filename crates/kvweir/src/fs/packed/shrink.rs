//! Giving bytes back: a whole extent, the one with the fewest blocks first. Its blocks are found by its table; those that
//! are pinned or being written hold it until they are not. Then its file goes as a block's does.
//!
//! An extent that is held stays closed: it takes nothing new, so it ends. Few are closed at a time, lest a pin in each
//! costs all others their blocks; and when nothing has to be given back any more they take blocks again.

use std::{sync::Arc, time::Duration};

use super::{Pack, claim::each_record, extents::Extent};
use crate::{
    block::Fingerprint, catalog::index::State, fs::shared::Shared, metrics::EvictReason, sync::lock,
};

/// Blocks dropped under one hold of the lock.
const AT_ONCE: usize = 256;
/// Extents that are closed and held at one time.
const CLOSING: usize = 4;
/// How long none is given up after one could not be removed.
const STUCK_FOR: Duration = Duration::from_secs(30);

impl Shared {
    /// Gives up an extent; returns whether the bytes of one are free.
    pub(crate) fn drop_extent(&self, pack: &Pack, reason: EvictReason) -> bool {
        let mut turn = lock(&pack.grow);
        if turn.is_some_and(|until| self.clock.now() < until) {
            return false;
        }
        let gone = pack.by_use().into_iter().find_map(|e| {
            let ids = e.ids;
            // what is open outlives its name
            self.empty_extent(pack, &e, reason).then_some(ids)
        });
        let Some(ids) = gone else { return false };
        ids.into_iter().for_each(|id| self.remove_part(id, reason));
        let stuck = {
            let core = lock(&self.core);
            ids.iter().any(|&id| core.index.state(id) == State::Bad)
        };
        *turn = stuck.then(|| self.clock.now().after(STUCK_FOR));
        !stuck
    }

    /// Drops the blocks of an extent and forgets it; `false` while something holds it.
    fn empty_extent(&self, pack: &Pack, extent: &Arc<Extent>, reason: EvictReason) -> bool {
        if !pack.close(extent, CLOSING) {
            return false;
        }
        self.free_forgotten(pack);
        if pack.remove_unused(extent) {
            return true;
        }
        let mut fps: Vec<(Fingerprint, u32)> = Vec::new();
        let read = each_record(extent, &mut |place, record| {
            fps.extend(record.map(|r| (self.fingerprint(&r.key), extent.slot(place))));
        });
        if let Err(error) = read {
            let what = "the table of an extent cannot be read: the index tells what lies in it";
            if self.told.is_new(what, self.clock.now(), 1) {
                tracing::warn!(tier = %self.params.name, %error, "{what}");
            }
            fps = self.slots_of(extent);
        }
        for part in fps.chunks(AT_ONCE) {
            let mut freed = Vec::new();
            {
                let mut core = lock(&self.core);
                for &(fp, slot) in part {
                    let here = core.index.find(fp).filter(|&id| {
                        core.index.packed(id).is_some_and(|(s, _)| s == slot) && core.is_evictable(id)
                    });
                    if let Some(id) = here {
                        core.packed.remove(id);
                        core.drop_packed(id, reason, pack.slot_bytes, &mut freed);
                    }
                }
            }
            pack.give(&mut freed);
        }
        pack.remove_unused(extent)
    }

    /// Frees slots of blocks that were forgotten while somebody read them and that nobody reads any more.
    pub(crate) fn free_forgotten(&self, pack: &Pack) {
        let mut freed = std::mem::take(&mut lock(&self.core).freed);
        if !freed.is_empty() {
            pack.give(&mut freed);
        }
    }
}
