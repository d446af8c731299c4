//! Blocks held for requests that wait: what was found for one stays until it has been loaded, or the request is gone
//! (I3). A held slot may still be being written; one that is given up takes its holds with it.

use super::{
    Claim, Primary,
    slot::{SlotState, Writer},
};
use crate::{block::Key, request::RequestId};

/// A block as a request that plans to load it finds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) state: SlotState,
    /// Whether some request holds it already.
    pub(crate) is_held: bool,
}

impl Primary {
    /// Where `key` stands, and whether it is held.
    pub(crate) fn standing(&self, key: &Key) -> Standing {
        let slot = self
            .find(key, key.fingerprint(0))
            .and_then(|id| self.slots.get(id as usize));
        Standing {
            state: match slot {
                None => SlotState::Absent,
                Some(s) if s.ready => SlotState::Ready,
                Some(_) => SlotState::Writing,
            },
            is_held: slot.is_some_and(|s| s.holds > 0),
        }
    }

    /// Holds the block of `key`, if it is here.
    pub(crate) fn hold(&mut self, key: &Key) -> Option<Claim> {
        let (slot, s) = self.slot_of(key)?;
        s.holds += 1;
        let (first, life) = (s.holds == 1, s.life);
        self.held += u64::from(first);
        Some(Claim { slot, life })
    }

    /// The slot of `key` as it is now, if it is here.
    pub(crate) fn claim(&self, key: &Key) -> Option<Claim> {
        self.claim_of(self.find(key, key.fingerprint(0))?)
    }

    /// Gives holds back, where the slot still has the same block.
    pub(crate) fn unhold(&mut self, claims: &[Claim]) {
        for claim in claims {
            let Some(s) = self.slots.get_mut(claim.slot as usize) else {
                continue;
            };
            if s.life != claim.life || s.holds == 0 {
                continue;
            }
            s.holds -= 1;
            if s.holds == 0 {
                self.held -= 1;
                if s.refs == 0 && s.ready {
                    self.policy.unpinned(claim.slot);
                }
            }
        }
    }

    /// What has become of a claimed slot: its block is there, on its way, or gone.
    pub(crate) fn claimed(&self, claim: Claim) -> SlotState {
        match self.slots.get(claim.slot as usize) {
            Some(s) if s.life == claim.life && s.key.is_some() => {
                if s.ready {
                    SlotState::Ready
                } else {
                    SlotState::Writing
                }
            }
            _ => SlotState::Absent,
        }
    }

    /// Makes room for `keys`, which are not here and which tiers are to bring up for `req`: for all, or for none. A key
    /// given twice has one claim.
    pub(crate) fn prepare_promotions(&mut self, keys: &[Key], req: RequestId) -> Option<Vec<(Key, Claim)>> {
        let room = self.reserve(keys, req, Writer::Tier)?;
        Some(
            room.to_store
                .into_iter()
                .filter_map(|(key, slot)| Some((key, self.claim_of(slot)?)))
                .collect(),
        )
    }

    /// Notes which tier brings the block of a slot, and for whom.
    pub(crate) fn brought(&mut self, claim: Claim, tier: usize, req: RequestId) {
        if let Some(s) = self.slots.get_mut(claim.slot as usize)
            && s.life == claim.life
        {
            s.origin = u16::try_from(tier).ok().map(|t| (t, req));
        }
    }

    /// The tier that brought `key` for `req`; none where it was here already, or for another request.
    pub(crate) fn origin(&self, key: &Key, req: RequestId) -> Option<usize> {
        let id = self.find(key, key.fingerprint(0))?;
        let (tier, of) = self.slots.get(id as usize)?.origin?;
        (of == req).then_some(tier.into())
    }

    /// Slots of `keys` in the order in which they were handed out: that of the request which stored them, whatever the
    /// order of `keys`. Keys that are not here come last.
    pub(crate) fn in_turn(&self, keys: &mut [Key]) {
        let turn = |key: &Key| {
            self.find(key, key.fingerprint(0))
                .and_then(|id| self.slots.get(id as usize))
                .map_or(u64::MAX, |s| s.turn)
        };
        keys.sort_by_cached_key(turn);
    }
}
