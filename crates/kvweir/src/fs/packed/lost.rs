//! Extents that go behind their tier's back: somebody removes a file of theirs, or cuts the table. What lies in them can be read
//! for as long as they are open, and is gone after that; so their blocks become misses as soon as that is seen, by the
//! keeper, which looks at all of them in turn, or by a store that would have gone there. Their bytes are given back when
//! nobody has them open any more.

use std::{
    collections::{HashSet, VecDeque},
    sync::Arc,
};

use foldhash::fast::FixedState;

use super::{
    Pack,
    extents::{Extent, MAX_EXTENTS, SHIFT},
    free::Run,
};
use crate::{
    block::Fingerprint, catalog::index::State, fs::shared::Shared, metrics::EvictReason, sync::lock,
};

/// Extents looked at in one visit of the keeper.
const LOOKS: usize = 64;
/// Entries of the index looked at under one hold of the lock.
const AT_ONCE: u32 = 4096;
/// Most visits between two looks through the index for blocks of extents that somebody still holds.
const MOST_REST: u32 = 50;

/// Where the keeper is with its looks.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// The number of the extent that comes next.
    from: usize,
    /// Extents whose tables were cut when they were looked at last.
    cut: HashSet<u32, FixedState>,
    /// Visits before the index is looked through again, and how many there were before the last time.
    rest: u32,
    rested: u32,
}

impl Shared {
    /// Looks at some extents, and drops those that are lost.
    pub(crate) fn look_at_extents(&self, pack: &Pack, looks: &mut Looks) {
        let (some, next) = pack.some(looks.from, LOOKS);
        looks.from = next;
        for e in some {
            // seen twice: somebody may write it anew, in place
            let is_cut = e.is_cut();
            let was_cut = looks.cut.remove(&e.number);
            if e.is_removed() || is_cut && was_cut {
                self.lose_extent(pack, &e);
            } else if is_cut {
                looks.cut.insert(e.number);
            } else {
                e.mend();
            }
        }
        if pack.take_news() {
            (looks.rest, looks.rested) = (0, 0);
        }
        let lost = pack.lost();
        if lost.is_empty() {
            return;
        }
        let _turn = lock(&pack.grow);
        if looks.rest == 0 {
            self.drop_blocks_of(pack, &lost);
            looks.rested = (looks.rested * 2 + 1).min(MOST_REST);
            looks.rest = looks.rested;
        } else {
            looks.rest -= 1;
        }
        self.free_forgotten(pack);
        for e in lost {
            if pack.remove_unused(&e) {
                let ids = e.ids;
                // what is open outlives its name
                drop(e);
                ids.into_iter()
                    .for_each(|id| self.remove_part(id, EvictReason::External));
            }
        }
    }

    /// Nothing goes into `extent` any more.
    fn lose_extent(&self, pack: &Pack, extent: &Extent) {
        if pack.lose(extent) {
            self.told.warn(
                &self.params.name,
                self.clock.now(),
                1,
                "an extent was removed or cut by somebody else: its blocks are misses now",
            );
            self.keeper.ring();
        }
    }

    /// Takes runs of extents that are lost out of `out`, from its place `from` on; returns how many slots that were.
    pub(super) fn give_lost(&self, pack: &Pack, out: &mut VecDeque<(Arc<Extent>, Run)>, from: usize) -> u32 {
        let mut gone = 0;
        for (extent, run) in out.split_off(from) {
            if extent.is_removed() {
                self.lose_extent(pack, &extent);
                let mut slots: Vec<u32> = (run.first..run.first + run.len).collect();
                pack.give(&mut slots);
                gone += run.len;
            } else {
                out.push_back((extent, run));
            }
        }
        gone
    }

    /// Fingerprints and slots of the blocks that lie in `extent`, by the index.
    pub(super) fn slots_of(&self, extent: &Extent) -> Vec<(Fingerprint, u32)> {
        let (mut out, mut from) = (Vec::new(), 0);
        loop {
            let core = lock(&self.core);
            let (all, end) = (core.index.ids(), from + AT_ONCE.min(core.index.ids() - from));
            for id in from..end {
                let slot = core.index.packed(id).map(|(slot, _)| slot);
                let here = slot.filter(|slot| slot >> SHIFT == extent.number);
                if matches!(core.index.state(id), State::Ready | State::Bad) {
                    out.extend(here.map(|slot| (core.index.fingerprint(id), slot)));
                }
            }
            from = end;
            if from >= all {
                return out;
            }
        }
    }

    /// Forgets all blocks that lie in `lost`, found by the index: tables may be gone too. Who reads one of them keeps its
    /// slot until then.
    fn drop_blocks_of(&self, pack: &Pack, lost: &[Arc<Extent>]) {
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
                let mut core = lock(&self.core);
                let (all, end) = (core.index.ids(), from + AT_ONCE.min(core.index.ids() - from));
                for id in from..end {
                    let here = core
                        .index
                        .packed(id)
                        .is_some_and(|(slot, _)| is_lost.get((slot >> SHIFT) as usize).is_some_and(|&l| l));
                    if here && matches!(core.index.state(id), State::Ready | State::Bad) {
                        core.packed.remove(id);
                        core.drop_packed(id, EvictReason::External, pack.slot_bytes, &mut freed);
                    }
                }
                from = end;
                all
            };
            pack.give(&mut freed);
            if from >= all {
                return;
            }
        }
    }
}
