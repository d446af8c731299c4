//! A keeper's start: what is there is loaded, the first share is waited for, the first trim is done.

use std::{io, sync::Arc};

use crate::{
    error::Result,
    fs::{
        identify::identify,
        keeper::state::{Keeper, TICK},
        phase::Phase,
        recover::load::load,
        trim::trim,
    },
    sync::{atomic::Ordering, lock},
};

/// Looks, half a tick apart, for the first share of a newcomer.
const SHARE_TRIES: u32 = 100;
/// As many more where dead members hold what it lacks: they must have been dead for so long.
const TRIES_BESIDE_DEAD: u32 = 40;

impl Keeper {
    /// Loads, settles the lease, trims.
    pub(crate) fn open(&mut self) -> Result<()> {
        load(&mut self.opening)?;
        self.shared.root.dirs.note_emptied();
        self.recover_layouts();
        let root = self.shared.root.path.clone();
        let fault = |e: io::Error| crate::error::Error::io("settle the ledger", root.display(), e);
        let number = self.opening.member.number;
        let lease = self
            .opening
            .member
            .change_within(crate::root::member::OPEN_PATIENCE, |p| {
                p.member(number).map_or(0, |e| e.lease)
            })
            .map_err(fault)?;
        lock(&self.shared.core)
            .account
            .budget
            .set_bound(Some(lease.unwrap_or(0)));
        let dead = self.exchange().map_err(fault)?;
        if self.opening.alone {
            // nobody else would count what they left, or come back for it
            for d in dead {
                self.take_over(d);
            }
            self.exchange().map_err(fault)?;
        } else {
            self.wait_for_share().map_err(fault)?;
        }
        let small = {
            let core = lock(&self.shared.core);
            let average = core.account.budget.resident() / core.catalog.stats.blocks.max(1);
            core.account.budget.excess() / average.max(1) <= crate::fs::open::TRIM_AT_ONCE
        };
        if !small {
            // it can serve: only stores wait for the trim
            self.shared.set_phase(Phase::Trimming);
        }
        trim(&self.shared);
        self.exchange()
            .map_err(|e| crate::error::Error::io("settle the ledger", "ledger", e))?;
        lock(&self.shared.core).account.trimming = false;
        if self.shared.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        identify(&self.shared, &self.opening.member)
    }

    /// Gives those who hold everything the time to make room for one more.
    fn wait_for_share(&mut self) -> io::Result<()> {
        let s = Arc::clone(&self.shared);
        let least = s.least_share;
        let mut tries = 0;
        while tries < self.share_tries() {
            if self.other_walks {
                // nobody has a share before that ends; what others store is served meanwhile
                s.set_phase(Phase::Walking);
            } else {
                tries += 1;
            }
            if s.stop.load(Ordering::Relaxed)
                || lock(&s.core).account.budget.bound().is_none_or(|b| b >= least)
            {
                break;
            }
            lock(&s.core).account.pressure = least;
            // those who live may have little, and no need of what the dead left
            for d in self.exchange()? {
                self.consider(d);
            }
            s.keeper.wait(s.keeper.rings(), TICK / 2);
        }
        Ok(())
    }

    /// How often a newcomer looks for its share.
    fn share_tries(&self) -> u32 {
        match self.dead.is_empty() {
            true => SHARE_TRIES,
            false => SHARE_TRIES + TRIES_BESIDE_DEAD,
        }
    }
}
