//! Giving bytes back: a whole extent, the one with the fewest blocks first. Its blocks are found by its table; those that
//! are pinned or being written hold it until they are not. Then its file goes as a block's does.

use super::{Pack, claim::each_record, extents::Extent};
use crate::{block::Fingerprint, fs::shared::Shared, metrics::EvictReason, sync::lock};

/// Blocks dropped under one hold of the lock.
const AT_ONCE: usize = 256;

impl Shared {
    /// Gives up an extent; returns whether one is gone.
    pub(crate) fn drop_extent(&self, pack: &Pack, reason: EvictReason) -> bool {
        let _turn = lock(&pack.grow);
        pack.by_use().iter().any(|e| self.give_up_extent(pack, e, reason))
    }

    fn give_up_extent(&self, pack: &Pack, extent: &Extent, reason: EvictReason) -> bool {
        pack.close(extent);
        if !pack.remove_unused(extent) {
            let mut fps: Vec<(Fingerprint, u32)> = Vec::new();
            let read = each_record(extent, &mut |place, record| {
                fps.push((self.fingerprint(&record.key), extent.slot(place)));
            });
            if let Err(error) = read {
                tracing::warn!(tier = %self.params.name, %error, "the table of an extent cannot be read");
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
            if !pack.remove_unused(extent) {
                return false;
            }
        }
        for id in extent.ids {
            let victim = lock(&self.core).begin_removal(id);
            if let Some(v) = victim {
                self.remove_victim(&v, reason, true);
            }
        }
        true
    }
}
