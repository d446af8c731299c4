//! Who gives when a bound is full and several spaces live within it. Blocks with files of their own are ranked
//! together, whichever space they are of: there the least recent goes. Slots are of one size in each space, so a slot
//! that one evicts is of no use to another, and what one gives another is a whole extent. Between these holders (all
//! files, and each space's extents) the bound is shared evenly: who has less than its share takes from who has most
//! above its own, and whoever has its share evicts its own blocks. Nothing passes that would pass back with the next
//! store: an extent goes only where it leaves the giver its share, or the taker no more than its own, or to who has
//! nothing. What nobody needs stays with who has it; a space whose tier was shut down has no share. A root with one
//! space knows no shares: its blocks with files go before its slots.

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

/// Who holds how much of a bound, and what the shares are.
struct Holdings {
    spaces: Vec<Arc<dyn Gives>>,
    /// What the extents of an open space may come to.
    share: u64,
    in_files: u64,
    /// What all files may come to.
    files_share: u64,
}

impl Holdings {
    /// Bytes that the files, or the extents of a space, have above their share.
    fn beyond(&self, space: Option<&Arc<dyn Gives>>) -> u64 {
        match space {
            None => self.in_files.saturating_sub(self.files_share),
            Some(s) => s.held().saturating_sub(if s.is_open() { self.share } else { 0 }),
        }
    }

    /// Who has most above its share, and how much; `but` these extents, if any, and files only `with_files`.
    fn most_beyond(&self, but: Option<SpaceId>, with_files: bool) -> Option<(Giver, u64)> {
        let others = self.spaces.iter().filter(|s| Some(s.id()) != but);
        let most = others.map(|s| (self.beyond(Some(s)), s)).max_by_key(|s| s.0);
        let most = most.filter(|s| s.0 > 0);
        let files = if with_files { self.beyond(None) } else { 0 };
        match most {
            Some((extra, s)) if extra >= files => Some((Giver::Extents(Arc::clone(s)), extra)),
            _ if files > 0 => Some((Giver::Files, files)),
            _ => None,
        }
    }
}

impl Shared {
    /// Whether several spaces share the bound.
    pub(crate) fn has_shares(&self) -> bool {
        self.served.len() > 1
    }

    fn holdings(&self) -> Option<Holdings> {
        if !self.has_shares() {
            return None;
        }
        let (mut bound, resident) = {
            let core = lock(&self.core);
            // of a device that is full below it, what fits
            (core.account.budget.effective()?, core.account.budget.resident())
        };
        if let Some(floor) = self.min_free {
            let room = self.free_bytes(0, false).saturating_sub(floor);
            bound = bound.min(resident.saturating_add(room));
        }
        let spaces: Vec<Arc<dyn Gives>> = self.spaces().collect();
        let open = spaces.iter().filter(|s| s.is_open()).count() as u64;
        let share = bound / open.max(1);
        let in_extents: u64 = spaces.iter().map(|s| s.held()).sum();
        let by_file = spaces.iter().filter(|s| s.is_open() && !s.packs()).count() as u64;
        Some(Holdings {
            share,
            in_files: resident.saturating_sub(in_extents),
            files_share: share * by_file,
            spaces,
        })
    }

    /// Who is to give room to the extents of a space, or with `None` to blocks with files; `None` where who asks has
    /// its share, nobody has more than its own, or what would pass would pass back.
    pub(crate) fn giver(&self, to: Option<SpaceId>) -> Option<Giver> {
        let all = self.holdings()?;
        let taker = match to {
            None => None,
            Some(id) => Some(all.spaces.iter().find(|s| s.id() == id)?),
        };
        let (held, share) = taker.map_or((all.in_files, all.files_share), |s| (s.held(), all.share));
        let lack = share.saturating_sub(held);
        let (giver, extra) = all.most_beyond(to, to.is_some()).filter(|_| lack > 0)?;
        let step = match &giver {
            Giver::Extents(s) => s.step(),
            Giver::Files => taker.map_or(0, |s| s.step()),
        };
        let takes = taker.map_or(step, |s| s.step());
        (extra >= step || lack >= takes || held == 0).then_some(giver)
    }

    /// Who is to give when all is to become less, and how much at most; `None` where nobody has more than its share.
    pub(crate) fn first_to_give(&self) -> Option<(Giver, u64)> {
        self.holdings()?.most_beyond(None, true)
    }
}
