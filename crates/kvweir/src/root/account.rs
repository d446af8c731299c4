//! The bytes of a root as one member keeps them: what it may hold, what it does, and what keeps it from holding more.
//! Plain numbers behind the tier's lock (I1, I8).

use std::{path::PathBuf, time::Duration};

use crate::{budget::Budget, clock::Instant, metrics::RefuseReason};

/// How long nothing is evicted for a full device after that did not help.
const NO_HELP_FOR: Duration = Duration::from_secs(30);

/// The account of a member.
#[derive(Debug)]
pub(crate) struct Account {
    /// Bytes that lie there and that are reserved, against this member's lease.
    pub(crate) budget: Budget,
    /// The root's bound and the bytes below it that no member owns: what [`Budget`] holds is this member's lease.
    pub(crate) root_bound: Option<u64>,
    pub(crate) common: u64,
    /// Nothing is stored yet: what lies there is being read, or trimmed.
    pub(crate) trimming: bool,
    /// Bytes that stores lacked and had to evict for since the keeper looked.
    pub(crate) pressure: u64,
    /// There was pressure, here or elsewhere, and room may be had from what dead members left.
    pub(crate) starved: bool,
    /// Temporaries that could not be removed, with their bytes; tried again when room is needed.
    pub(crate) leftovers: Vec<(PathBuf, u64)>,
    /// The device is full and evicting did not help; until then, or until a store succeeds, none evicts for that.
    pub(crate) no_help_until: Option<Instant>,
    /// Whether there is a journal, which grows.
    has_journal: bool,
    /// Reserved bytes kept for the journal's growth.
    credit: u64,
}

impl Account {
    /// An account of a root with this bound, if it has one: nothing may be held before it is known what is there.
    pub(crate) fn new(bound: Option<u64>, trimming: bool) -> Self {
        Self {
            budget: Budget::new(bound.map(|_| 0)),
            root_bound: bound,
            common: 0,
            trimming,
            pressure: 0,
            starved: false,
            leftovers: Vec::new(),
            no_help_until: None,
            has_journal: false,
            credit: 0,
        }
    }

    /// Whether a journal is written from now on.
    pub(crate) fn keeps_journal(&mut self, yes: bool) {
        self.has_journal = yes;
    }

    /// Reserves what the journal will grow by; returns the bytes that are missing of it.
    pub(crate) fn top_up(&mut self, target: u64) -> u64 {
        if self.has_journal && self.credit < target {
            self.credit += self.budget.grant(target - self.credit);
            return target - self.credit;
        }
        0
    }

    /// Takes `bytes` out of what is reserved for the journal, leaving `rest`; they stay reserved.
    pub(crate) fn spend_credit(&mut self, bytes: u64, rest: u64) -> bool {
        let enough = self.credit >= bytes + rest;
        if enough {
            self.credit -= bytes;
        }
        enough
    }

    /// Keeps some of what was taken so for what comes later.
    pub(crate) fn return_credit(&mut self, bytes: u64) {
        self.credit += bytes;
    }

    /// The journal is about to grow.
    pub(crate) fn journal_grows(&mut self, bytes: u64) {
        let paid = bytes.min(self.credit);
        self.credit -= paid;
        self.budget.release(paid);
        self.budget.add_resident(bytes);
    }

    /// The device is full and evicting freed nothing that a store can use (somebody else fills it, inodes or a quota
    /// ran out). Until a store succeeds, or half a minute has passed, stores are tried but nothing is evicted for them
    /// on that account: the cache is not emptied for nothing.
    pub(crate) fn eviction_does_not_help(&mut self, now: Instant) {
        if self.no_help_until.is_none_or(|until| now >= until) {
            self.no_help_until = Some(now.after(NO_HELP_FOR));
        }
        self.budget.forget_lowering();
    }

    /// Bytes that lie below the root beyond what this member may hold, or beyond the bound without any member's.
    pub(crate) fn above_bound(&self) -> u64 {
        let common = self.root_bound.map_or(0, |b| self.common.saturating_sub(b));
        self.budget.above_bound() + common
    }

    /// Reserved bytes without those for the journal.
    pub(crate) fn reserved(&self) -> u64 {
        self.budget.reserved().saturating_sub(self.credit)
    }

    /// Why nothing more can be had: the bound, or a device that ran full below it.
    pub(crate) fn why_no_room(&self) -> RefuseReason {
        if self.budget.effective() == self.budget.bound() {
            RefuseReason::NoRoom
        } else {
            RefuseReason::NoSpace
        }
    }
}
