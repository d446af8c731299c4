//! What the keeper does ten times a second.

use std::{io, time::Duration};

use crate::{
    fs::{
        keeper::state::{Keeper, TICK},
        phase::Phase,
        trim::shed,
    },
    root::journal,
    sync::{atomic::Ordering, lock},
};

/// How long more than the bound may lie there before that is told: shares are settled, and a trim runs.
const ABOVE_FOR: Duration = Duration::from_secs(10);
/// Most visits between two tries of an extent that cannot be read.
const CLAIM_REST: u32 = 100;
/// Most blocks evicted for others in one visit.
const SHED_AT_ONCE: usize = 1024;

impl Keeper {
    /// Opens the root, then looks after it until it is to end. `false`: the claim is lost.
    pub(super) fn live(&mut self) -> bool {
        let opened = self.open();
        let failed = opened.is_err();
        if let Err(error) = &opened {
            tracing::error!(tier = %self.shared.name, %error, "the root cannot be opened; nothing will be stored");
        }
        self.shared.set_phase(match opened {
            Ok(()) => Phase::Open,
            Err(e) => Phase::Failed(Some(e)),
        });
        let mut seen = 0;
        while self.end.is_far() {
            if !failed && !self.shared.stop.load(Ordering::Relaxed) {
                self.tick();
            }
            if self.lost {
                return false;
            }
            seen = self.shared.keeper.wait(seen, TICK);
        }
        true
    }

    fn tick(&mut self) {
        self.tell_uses();
        let settles = self.look_for_lost();
        self.recover_what_waits();
        self.follow();
        self.go_on_adopting();
        if !settles || self.looks.rest > 0 {
            self.looks.rest = self.looks.rest.saturating_sub(1);
            return;
        }
        match self.exchange() {
            Ok(dead) => {
                for d in dead {
                    self.consider(d);
                }
            }
            // somebody removed it: the next look will find that
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) if !std::mem::replace(&mut self.ledger_told, true) => {
                tracing::error!(
                    tier = %self.shared.name, %error,
                    "the ledger cannot be settled: this tier keeps the share it has until it is opened again"
                );
            }
            Err(error) => tracing::debug!(%error, "the ledger cannot be settled"),
        }
        shed(&self.shared, SHED_AT_ONCE);
        self.compact();
        self.remeasure();
        self.look_at_emptied();
        self.tell_of_excess();
    }

    /// Says once, loudly, that more lies below the root than may.
    fn tell_of_excess(&mut self) {
        let s = &*self.shared;
        let (above, bound, resident) = {
            let core = lock(&s.core);
            let all = core.account.budget.resident() + core.account.common;
            (
                core.account.above_bound(),
                core.account.root_bound.unwrap_or(0),
                all,
            )
        };
        if above == 0 {
            if self.above.take().is_some_and(|a| a.1) {
                tracing::info!(tier = %s.name, "the root is within its bound again");
            }
            return;
        }
        let now = s.clock.now();
        let (since, told) = *self.above.get_or_insert((now, false));
        if !told && now.since(since) >= ABOVE_FOR {
            self.above = Some((since, true));
            tracing::error!(
                tier = %s.name, root = %s.root.path.display(), above_bytes = above, bound_bytes = bound,
                resident_bytes = resident,
                "more lies below the root than its bound allows, and it does not go: blocks are pinned, files cannot be \
                 removed or are not ours; `kvweir inspect` tells which. Nothing is stored until it fits"
            );
        }
    }

    fn tell_uses(&self) {
        let Some(j) = self.shared.root.journal.get() else {
            return;
        };
        j.flush_removals(&self.shared.core);
        let used = lock(&self.shared.core).catalog.take_uses();
        if !used.is_empty()
            && let Err(error) = j.touch(&self.shared.core, &used)
        {
            tracing::debug!(%error, "recency is not in the journal");
        }
    }

    /// Counts what the journal's files take by now, and reserves what they may yet.
    fn remeasure(&self) {
        let s = &*self.shared;
        if let Some(j) = s.root.journal.get() {
            j.remeasure(&s.core);
            let credit = s.credit();
            lock(&s.core).account.top_up(credit);
        }
    }

    /// Makes hits of what came with what was loaded or taken over.
    pub(crate) fn recover_layouts(&self) {
        for space in &self.spaces {
            space.layouts.iter().for_each(|l| l.recover(space));
        }
    }

    /// Tries again what could not be read.
    fn recover_what_waits(&mut self) {
        if !lock(&self.shared.core).has_unclaimed() {
            self.claim_rest = (0, 0);
            return;
        }
        let (rest, rested) = &mut self.claim_rest;
        if *rest > 0 {
            *rest -= 1;
            return;
        }
        *rested = (*rested * 2 + 1).min(CLAIM_REST);
        *rest = *rested;
        self.recover_layouts();
    }

    /// Lets the root go, in order.
    pub(super) fn finish(mut self) {
        self.tell_uses();
        if self
            .shared
            .root
            .journal
            .get()
            .is_some_and(journal::Journal::is_at_limit)
        {
            // removals may not be in it
            self.opening.compact_now = true;
            self.compact_if_due();
            self.tell_uses();
        }
        let held = {
            let core = lock(&self.shared.core);
            core.account.budget.resident()
        };
        let mark = self.shared.root.journal.get().and_then(journal::Journal::mark);
        self.opening.member.leave(held, mark);
    }
}
