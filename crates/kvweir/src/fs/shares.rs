//! Who gives when a bound is full and several spaces live within it. Blocks with files of their own are ranked
//! together, whichever space they are of: there the least recent goes. Slots are of one size in each space, so a slot
//! that one evicts is of no use to another, and what one gives another is a whole extent. Between these holders (all
//! files, and each space's extents) the bound is shared evenly: who has less than its share takes from who has most
//! above its own, and whoever has its share evicts its own blocks. What nobody needs stays with who has it; a space
//! whose tier was shut down has no share. A root with one space knows no shares: its blocks with files go before its
//! slots.

use std::sync::Arc;

use crate::{
    catalog::space::SpaceId,
    fs::shared::{Gives, Shared},
    sync::lock,
};

/// Who has more than its share of the bound.
pub(crate) enum Giver {
    /// Blocks with files of their own.
    Files,
    /// A space's extents.
    Extents(Arc<dyn Gives>),
}

impl Shared {
    /// Whether several spaces share the bound.
    pub(crate) fn has_shares(&self) -> bool {
        self.served.len() > 1
    }

    /// Who is to give room to the extents of a space, or with `None` to blocks with files; `None` where who asks has
    /// its share, or nobody has more than its own.
    pub(crate) fn giver(&self, to: Option<SpaceId>) -> Option<Giver> {
        if !self.has_shares() {
            return None;
        }
        let (bound, resident) = {
            let core = lock(&self.core);
            (core.account.budget.bound()?, core.account.budget.resident())
        };
        let spaces: Vec<Arc<dyn Gives>> = self.spaces().collect();
        let open = spaces.iter().filter(|s| s.is_open()).count() as u64;
        let share = bound / open.max(1);
        let in_extents: u64 = spaces.iter().map(|s| s.held()).sum();
        let in_files = resident.saturating_sub(in_extents);
        let files_share = share * spaces.iter().filter(|s| s.is_open() && !s.packs()).count() as u64;
        let lacks = match to {
            None => in_files < files_share,
            Some(id) => spaces.iter().any(|s| s.id() == id && s.held() < share),
        };
        if !lacks {
            return None;
        }
        let beyond = |s: &Arc<dyn Gives>| s.held().saturating_sub(if s.is_open() { share } else { 0 });
        let others = spaces.into_iter().filter(|s| Some(s.id()) != to);
        let most = others.map(|s| (beyond(&s), s)).max_by_key(|s| s.0);
        let most = most.filter(|s| s.0 > 0);
        let files_beyond = match to {
            None => 0,
            Some(_) => in_files.saturating_sub(files_share),
        };
        match most {
            Some((extra, s)) if extra >= files_beyond => Some(Giver::Extents(s)),
            _ if files_beyond > 0 => Some(Giver::Files),
            _ => None,
        }
    }
}
