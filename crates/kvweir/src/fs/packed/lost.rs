//! Extents that go behind their tier's back: somebody removes a file of theirs, or cuts the table. What lies in them
//! can be read for as long as they are open, and is gone after that; so their blocks become misses as soon as that is
//! seen, by the keeper, which looks at all of them in turn, or by a store that would have gone there. Their bytes are
//! given back when nobody has them open any more.

use std::{collections::VecDeque, sync::Arc};

use super::{
    Pack,
    extent::{Extent, SHIFT},
    extents::MAX_EXTENTS,
    free::SlotRun,
};
use crate::{
    block::Fingerprint,
    catalog::index::State,
    fs::{
        packed::{looks::Looks, parts::remove_part},
        space::Space,
    },
    metrics::EvictReason,
    sync::lock,
};

/// Extents looked at in one visit of the keeper.
const LOOKS: usize = 64;
/// Entries of the index looked at under one hold of the lock.
const AT_ONCE: u32 = 4096;
/// Most visits between two looks through the index for blocks of extents that somebody still holds.
const MOST_REST: u32 = 50;

impl Pack {
    /// Looks at some extents, and drops those that are lost.
    pub(crate) fn look_at_extents(&self, s: &Space, looks: &mut Looks) {
        let (some, next) = self.some(looks.from, LOOKS);
        looks.from = next;
        for e in some {
            // seen twice: somebody may write it anew, in place
            let is_cut = e.is_cut();
            let was_cut = looks.cut.remove(&e.number);
            if e.is_removed() || is_cut && was_cut {
                self.lose_extent(s, &e);
            } else if is_cut {
                looks.cut.insert(e.number);
            } else {
                e.mend();
            }
        }
        if self.take_news() {
            (looks.rest, looks.rested) = (0, 0);
        }
        let lost = self.lost();
        if lost.is_empty() {
            return;
        }
        let _turn = lock(&self.grow);
        if looks.rest == 0 {
            self.drop_blocks_of(s, &lost);
            looks.rested = (looks.rested * 2 + 1).min(MOST_REST);
            looks.rest = looks.rested;
        } else {
            looks.rest -= 1;
        }
        self.free_forgotten(s);
        for e in lost {
            if self.remove_unused(&e) {
                let ids = e.ids;
                // what is open outlives its name
                drop(e);
                ids.into_iter()
                    .for_each(|id| remove_part(s, id, EvictReason::External));
            }
        }
    }

    /// Nothing goes into `extent` any more.
    fn lose_extent(&self, s: &Space, extent: &Extent) {
        if self.mark_lost(extent) {
            s.root.told.warn(
                &s.params.name,
                s.clock.now(),
                1,
                "an extent was removed or cut by somebody else: its blocks are misses now",
            );
            s.keeper.ring();
        }
    }

    /// Takes runs of extents that are lost out of `out`, from its place `from` on; returns how many slots that were.
    pub(super) fn give_lost(
        &self,
        s: &Space,
        out: &mut VecDeque<(Arc<Extent>, SlotRun)>,
        from: usize,
    ) -> u32 {
        let mut gone = 0;
        for (extent, run) in out.split_off(from) {
            if extent.is_removed() {
                self.lose_extent(s, &extent);
                let mut slots: Vec<u32> = (run.first..run.first + run.len).collect();
                self.give(&mut slots);
                gone += run.len;
            } else {
                out.push_back((extent, run));
            }
        }
        gone
    }

    /// Fingerprints and slots of the blocks that lie in `extent`, by the index.
    pub(super) fn slots_of(&self, s: &Space, extent: &Extent) -> Vec<(Fingerprint, u32)> {
        let (mut out, mut from) = (Vec::new(), 0);
        loop {
            let core = lock(&s.core);
            let (all, end) = (core.catalog.ids(), from + AT_ONCE.min(core.catalog.ids() - from));
            for id in from..end {
                let slot = core.slot(id).filter(|s| s.store == self.store).map(|s| s.slot);
                let here = slot.filter(|slot| slot >> SHIFT == extent.number);
                if matches!(core.catalog.state(id), State::Ready | State::Bad) {
                    out.extend(here.map(|slot| (core.catalog.fingerprint(id), slot)));
                }
            }
            from = end;
            if from >= all {
                return out;
            }
        }
    }

    /// Forgets all blocks that lie in `lost`, found by the index: tables may be gone too. Who reads one of them keeps
    /// its slot until then.
    fn drop_blocks_of(&self, s: &Space, lost: &[Arc<Extent>]) {
        let mut is_lost = [false; MAX_EXTENTS];
        for e in lost {
            if let Some(l) = is_lost.get_mut(e.number as usize) {
                *l = true;
            }
        }
        let mut from = 0;
        loop {
            let mut freed = Vec::new();
            let all = {
                let mut core = lock(&s.core);
                let (all, end) = (core.catalog.ids(), from + AT_ONCE.min(core.catalog.ids() - from));
                for id in from..end {
                    let slot = core.slot(id).filter(|s| s.store == self.store);
                    let here =
                        slot.is_some_and(|s| is_lost.get((s.slot >> SHIFT) as usize).is_some_and(|&l| l));
                    if here && matches!(core.catalog.state(id), State::Ready | State::Bad) {
                        freed.extend(core.forget_slot(id, EvictReason::External, self.slot_bytes));
                    }
                }
                from = end;
                all
            };
            self.give(&mut freed);
            if from >= all {
                return;
            }
        }
    }
}
