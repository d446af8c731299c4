//! Settling with the other members of a root who may hold how many bytes (I1).

use std::{collections::HashSet, io, sync::Arc, time::Duration};

use crate::{
    fs::{core::Core, keeper::state::Keeper},
    root::{
        dead::Dead,
        journal::{self, Follower},
        ledger::Page,
    },
    sync::lock,
};

/// How long a member must have been dead before others take what it left; its own restart comes first.
const DEAD_FOR: Duration = Duration::from_secs(5);
/// What a member's own files and directories may come to take between two visits.
const OWN_GROWTH: u64 = 64 << 10;

impl Keeper {
    /// Settles with the other members; returns those that are dead.
    pub(crate) fn exchange(&mut self) -> io::Result<Vec<Dead>> {
        let s = Arc::clone(&self.shared);
        let seeds = s.seeds();
        let ledger = self.opening.member.ledger.clone();
        let (number, incarnation) = (self.opening.member.number, self.opening.member.incarnation);
        let (mut lost, mut share) = (false, None);
        let mut living = Vec::new();
        let mut dead = Vec::new();
        let mut other_walks = false;
        let mark = s.root.journal.get().map(journal::Journal::mark);
        // what is being taken over is ours in the account and not yet in the ledger
        let adopting = self.adopting.is_some();
        // who cleans up takes old empty files: our lock would look free to others, and we dead
        let unnamed = self.opening.member.lock.stat().is_ok_and(|st| st.links == 0);
        let mut lock_again = None;
        let done = self.opening.member.change(|p| -> io::Result<()> {
            lost = p.member(number).is_none_or(|e| e.incarnation != incarnation);
            if lost {
                return Ok(());
            }
            if unnamed {
                lock_again = ledger.take_member(number, None)?;
            }
            for (n, e) in p.used().filter(|&(n, _)| n != number) {
                if ledger.is_live(n, Some(e))? {
                    living.push((n, e.incarnation));
                } else {
                    dead.push(Dead::of(n, e, &seeds));
                }
            }
            if let Some(mark) = mark {
                p.set_mark(number, mark);
            }
            other_walks = p.head.walker.is_some_and(|w| w != number);
            if !other_walks && !adopting {
                p.head.walker = None;
                let live: Vec<u32> = living.iter().map(|l| l.0).collect();
                share = settle_lease(p, number, &live, &self.unusable, &mut lock(&s.core));
            }
            Ok(())
        })?;
        if let Some(lock) = lock_again {
            self.opening.member.lock = lock;
        }
        match done {
            // somebody else has the ledger; the next visit will do
            None => return Ok(Vec::new()),
            Some(r) => r?,
        }
        if lost {
            self.lost = true;
            return Ok(Vec::new());
        }
        if share.is_some() {
            // more than before only now that it is written
            lock(&s.core).account.budget.set_bound(share);
        }
        self.other_walks = other_walks;
        self.followers
            .retain(|n, (inc, _)| living.iter().any(|l| l.0 == *n && l.1 == *inc));
        // blocks of our namespaces may have come to members of others
        for &(n, inc) in &living {
            self.followers
                .entry(n)
                .or_insert_with(|| (inc, Follower::new(n, s.served_dirs())));
        }
        Ok(dead)
    }

    /// Takes over what a member left that has been dead for a while: where its first namespace is served here, always;
    /// else when room is needed.
    pub(crate) fn consider(&mut self, d: Dead) {
        let now = self.shared.clock.now();
        let id = (d.number, d.incarnation);
        if self.unusable.contains(&id) || self.adopting.is_some() {
            return;
        }
        let since = *self.dead.entry(id).or_insert(now);
        let wanted = d.served.is_some() || lock(&self.shared.core).account.starved;
        if !wanted || now.since(since) < DEAD_FOR {
            return;
        }
        self.take_over(d);
    }
}

/// Who may hold how much. A member that evicts while it has less than its share (the bound less common bytes and
/// what the dead left, by the number of live members) wants more; one that has more than its share gives, what it
/// does not use at once, the rest as it evicts; but it evicts nothing while its share would do with what the dead left,
/// unless their journals are `unusable`: that is taken over first. What nobody wants goes to whoever looks first.
/// Returns what this member may use when that is written; what it gives it does not use from now on.
fn settle_lease(
    p: &mut Page,
    me: u32,
    live: &[u32],
    unusable: &HashSet<(u32, u32)>,
    core: &mut Core,
) -> Option<u64> {
    let mine = p.member(me).cloned()?;
    let held = core.account.budget.resident() + core.account.budget.reserved();
    let pressure = std::mem::take(&mut core.account.pressure);
    let alive = |n: u32| n == me || live.contains(&n);
    let dead = || p.used().filter(|&(n, _)| !alive(n));
    let left_by_dead = total(dead().map(|(_, e)| e.lease));
    let stays = dead().filter(|&(n, e)| unusable.contains(&(n, e.incarnation)));
    let stays = total(stays.map(|(_, e)| e.lease));
    let members = live.len() as u64 + 1;
    let room = p.head.bound.saturating_sub(p.head.common);
    let share = |less: u64| room.saturating_sub(less) / members;
    let fair = share(left_by_dead);
    // what lies here and would be within the share if what the dead left were taken over
    let kept = held.saturating_add(OWN_GROWTH).min(share(stays));
    let others: u64 = p.leased().saturating_sub(mine.lease);
    let most = p.head.bound.saturating_sub(p.head.common.saturating_add(others));
    let poor = p.used().filter(|&(n, e)| n != me && alive(n) && e.lease < fair);
    let wants = total(poor.map(|(_, e)| e.want));
    // what this member may use
    let mut use_ = core.account.budget.bound().unwrap_or(0).min(most);
    let free = most.saturating_sub(mine.lease.max(use_));
    let mut holds_back = false;
    if wants > free && use_ > fair {
        let lacks = wants - free;
        let least = fair.max(kept).min(use_);
        holds_back = least > fair && use_ - least < lacks;
        use_ = least.max(use_.saturating_sub(lacks));
    } else if wants == 0 || pressure > 0 && mine.lease < fair {
        let takes = if wants == 0 {
            free
        } else {
            free.min(fair - use_.min(fair))
        };
        use_ += takes;
    }
    let now = core.account.budget.bound().unwrap_or(0);
    core.account.budget.set_bound(Some(use_.min(now)));
    core.account.common = p.head.common;
    core.account.root_bound = Some(p.head.bound);
    core.account.starved = holds_back || pressure > 0 && use_ < fair.saturating_add(left_by_dead);
    let lease = use_.max(held);
    let want = if pressure > 0 && lease < fair {
        pressure.max((fair - lease) / 4)
    } else {
        0
    };
    if let Some(Some(e)) = p.member_mut(me) {
        e.lease = lease;
        e.held = held;
        e.want = want;
    }
    Some(use_)
}

/// The sum of numbers that a ledger tells, whatever they are.
fn total(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}
