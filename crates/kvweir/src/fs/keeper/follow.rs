//! What other live members of the namespaces served here store and remove, by their journals: their blocks are hits
//! here too.

use crate::{
    budget::COST_UNIT,
    catalog::index::State,
    evict::Id,
    fs::{body::FileBody, core::Core, keeper::state::Keeper, shared::Shared},
    root::{journal::Step, names::DirKind},
    sync::lock,
};

/// Of the number that tells whose a peer's block is, the bits that tell in which reading it was told last.
const READING_BITS: u32 = 26;
const READINGS: u32 = (1 << READING_BITS) - 1;
/// Entries looked at under one hold of the lock.
const LOOKED_AT_ONCE: u32 = 1024;

impl Keeper {
    /// Reads what other members of our namespaces did.
    pub(crate) fn follow(&mut self) {
        let s = &*self.shared;
        let mut steps = Vec::new();
        for (&member, (_, f)) in &mut self.followers {
            let mut note =
                |reading: u32, step| steps.push((member << READING_BITS | reading & READINGS, step));
            if let Err(error) = f.read(&*s.root.disk, &s.root.path, &mut self.readings, &mut note) {
                tracing::debug!(%error, "another member's journal cannot be read now");
            }
        }
        if steps
            .iter()
            .any(|s| matches!(s.1, Step::Removed(_) | Step::Whole))
        {
            self.emptied.soon();
        }
        for part in steps.chunk_by(|a, b| (a.1 == Step::Whole) == (b.1 == Step::Whole)) {
            for part in part.chunks(256) {
                let mut core = lock(&s.core);
                part.iter().for_each(|&(owner, step)| core.follow(owner, step));
            }
            for (owner, _) in part.iter().filter(|p| p.1 == Step::Whole) {
                forget_untold(s, *owner);
            }
        }
    }
}

/// Forgets the blocks of a member that its journal did not tell in the reading of `owner`.
fn forget_untold(s: &Shared, owner: u32) {
    let mut from = 0u32;
    loop {
        let mut core = lock(&s.core);
        let end = core.catalog.ids();
        for id in from..end.min(from.saturating_add(LOOKED_AT_ONCE)) {
            let is_peer = core.catalog.state(id) == State::Peer;
            let told = core.file(id).map_or(0, |f| f.stamp);
            if is_peer && told != owner && told >> READING_BITS == owner >> READING_BITS {
                core.catalog.forget_peer(id);
            }
        }
        from = from.saturating_add(LOOKED_AT_ONCE);
        if from >= end {
            return;
        }
    }
}

impl Core {
    /// What another live member did to blocks of our namespaces; `owner` tells which, and in which reading.
    fn follow(&mut self, owner: u32, step: Step) {
        match step {
            Step::Stored {
                fp,
                class,
                prefix,
                trailer,
                cost,
            } => {
                // what another member packs is its own to read
                if class.leaf == DirKind::Extent {
                    return;
                }
                let Some(class) = self.classes.number(class) else {
                    return;
                };
                let file = FileBody {
                    trailer,
                    stamp: owner,
                    ..FileBody::new(class, prefix, u64::from(cost) * COST_UNIT)
                };
                self.catalog.tell_peer(fp, file.body());
            }
            Step::Removed(fp) => {
                // another member may have stored it since
                let is_its = |id: &Id| {
                    let told = self.file(*id).map_or(0, |f| f.stamp);
                    told >> READING_BITS == owner >> READING_BITS
                };
                if let Some(id) = self.catalog.find(fp).filter(is_its) {
                    self.catalog.forget_peer(id);
                }
            }
            Step::Whole => {}
        }
    }
}
