//! Uses of blocks: what policies rank by, and what is written down so that the next start ranks the same.

use super::{
    Catalog,
    body::Rank,
    index::{BATCH, State},
};
use crate::{block::Fingerprint, evict::RequestTag};

/// Most uses noted before they are taken: beyond, only recency would be lost, and only in a crash.
const MAX_USES: usize = 1 << 18;

impl Catalog {
    /// Whether uses of [`Rank::Whole`] blocks are noted from now on.
    pub(crate) fn note_uses(&mut self, yes: bool) {
        self.uses = yes.then(Vec::new);
    }

    /// Takes the hashes of blocks used since the last call, in order.
    pub(crate) fn take_uses(&mut self) -> Vec<u64> {
        self.uses.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// Marks blocks as used, given in prefix order: the leaf end becomes the least recent of them.
    pub(crate) fn mark_used(&mut self, fps: &[Fingerprint], tag: RequestTag) {
        let mut found = [None; BATCH];
        let (mut whole, mut slots) = (Vec::with_capacity(BATCH), Vec::with_capacity(BATCH));
        // all of one space, whose slots are of one store
        let mut store = Rank::Slot(0);
        for fps in fps.rchunks(BATCH) {
            self.index.find_ready(fps, &mut found);
            for (&fp, &id) in fps.iter().zip(&found).rev() {
                let Some(id) = id.filter(|&id| self.index.state(id) == State::Ready) else {
                    continue;
                };
                if let slot @ Rank::Slot(_) = self.index.rank(id) {
                    store = slot;
                    slots.push(id);
                    continue;
                }
                whole.push(id);
                if let Some(u) = self.uses.as_mut().filter(|u| u.len() < MAX_USES) {
                    u.push(fp.hash64());
                }
            }
            self.whole.access_all(&whole, tag);
            self.policy_mut(store).access_all(&slots, tag);
            whole.clear();
            slots.clear();
        }
    }
}
