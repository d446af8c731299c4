//! A root that somebody removed under its tier is made again, as long as its parent is there. The claim on it is made
//! anew too: whoever opens the root next finds a ledger with this member in it, and shares the bound with it. The
//! journal went with the root, so the next start walks the tree, where little can lie.

use std::{io, path::Path};

use crate::{
    error::{Error, Result},
    fs::{identify::identify, keeper::state::Keeper, recover::level::root_level},
    io::round_up,
    root::{
        accounts::Accounts,
        ledger::{Entry, LEDGER_BYTES, LedgerFound, Page},
        member::OPEN_PATIENCE,
        ownership::host_name,
    },
    sync::lock,
};

/// Visits of the keeper between making a ledger again and settling with others, who may have to say first what they
/// hold.
const REST: u32 = 10;

/// Most visits between two tries to make a namespace's directory again.
const MOST_WAIT: u32 = 100;

/// Visits without a change after which something that is gone comes back while the root is there.
const QUIET: u32 = 20;
/// Visits between two looks at directories while all seems well.
const LOOK_EACH: u32 = 5;
/// Visits between two looks for lost blocks meanwhile.
const LOOK_AGAIN: u32 = 10;

impl Keeper {
    /// Looks for what somebody else removed, and makes the root again. Returns whether there is a ledger to settle.
    pub(super) fn look_for_lost(&mut self) -> bool {
        let s = std::sync::Arc::clone(&self.shared);
        for space in &self.spaces {
            space.layouts.iter().for_each(|l| l.look(space));
        }
        if self.looks.ousted {
            return false;
        }
        self.looks.visits = self.looks.visits.wrapping_add(1);
        let amiss = self.looks.gone_for > 0 || self.looks.namespace_too || s.root.dirs.has_lost();
        if !amiss && !self.looks.visits.is_multiple_of(LOOK_EACH) {
            return true;
        }
        let gone = s.own_dir_is_gone();
        if !gone {
            (self.looks.wait, self.looks.waited) = (0, 0);
        } else if self.looks.wait > 0 {
            self.looks.wait -= 1;
            return !self.ledger_is_gone();
        }
        if !self.looks.namespace_too || self.looks.gone_for.is_multiple_of(LOOK_AGAIN) {
            self.looks.namespace_too |= s.forget_lost(gone);
        }
        if !self.looks.namespace_too && !self.ledger_is_gone() {
            self.looks.gone_for = 0;
            return true;
        }
        self.looks.gone_for += 1;
        if self.may_go_on() {
            return false;
        }
        let done = self.make_again(self.looks.namespace_too);
        self.looks.namespace_too &= !done;
        if gone {
            self.looks.waited = (self.looks.waited * 2 + 1).min(MOST_WAIT);
            self.looks.wait = self.looks.waited;
        }
        done
    }

    /// Whether whoever removes the root may be at it still, and would fail if something came back meanwhile:
    /// directories change.
    fn may_go_on(&mut self) -> bool {
        let s = &*self.shared;
        let root = s.root.disk.stat(&s.root.path);
        if matches!(&root, Err(e) if e.kind() == io::ErrorKind::NotFound) {
            return false;
        }
        let dirs = s.root.own_dirs().iter().map(|dir| s.root.disk.stat(dir));
        let all = std::iter::once(root).chain(dirs);
        let changed: Vec<i128> = all.map(|st| st.map_or(0, |st| st.mtime_ns)).collect();
        if self.looks.changed == changed {
            self.looks.quiet += 1;
        } else {
            self.looks.changed = changed;
            self.looks.quiet = 0;
        }
        self.looks.quiet < QUIET && self.looks.gone_for < MOST_WAIT
    }

    /// Whether there is none; one without a byte is what somebody made who looked for it.
    fn ledger_is_gone(&self) -> bool {
        match self.shared.root.disk.stat(&self.opening.member.ledger.path()) {
            Ok(st) => st.len == 0,
            Err(e) => e.kind() == io::ErrorKind::NotFound,
        }
    }

    fn make_again(&mut self, namespace_too: bool) -> bool {
        let s = std::sync::Arc::clone(&self.shared);
        match self.claim_again(namespace_too) {
            // a full device
            Ok(()) if s.own_dir_is_gone() => {}
            Ok(()) => {
                self.looks.told = false;
                tracing::warn!(
                    tier = %s.name, root = %s.root.path.display(),
                    "the root, or what kvweir keeps in it, was removed by somebody else; it was made again"
                );
            }
            Err(error) if !std::mem::replace(&mut self.looks.told, true) => tracing::error!(
                tier = %s.name, %error,
                "the root was removed by somebody else and cannot be made again now; that is tried until it can"
            ),
            Err(error) => tracing::debug!(%error, "the root cannot be made again"),
        }
        !self.looks.told
    }

    fn claim_again(&mut self, namespace_too: bool) -> Result<()> {
        let s = std::sync::Arc::clone(&self.shared);
        let root = &s.root.path;
        let fault = |e: io::Error| Error::io("make the root again", root.display(), e);
        if self.ledger_is_gone() {
            for dir in [root.clone(), self.opening.member.ledger.dir()] {
                match s.root.disk.create_dir(&dir) {
                    Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(fault(e)),
                    _ => {}
                }
            }
            // what lies at the root's own level was counted by nobody: all of it is common
            let (mut common, _) = root_level(&s)?;
            if !namespace_too {
                common = common.max(lock(&s.core).account.common);
            }
            common += round_up(LEDGER_BYTES as u64, s.root.unit);
            self.enter_again(common)?;
            if let Some(j) = s.root.journal.get() {
                let freed = j.abandon();
                s.core.shrink(freed);
            }
            self.looks.rest = REST;
        }
        if namespace_too {
            identify(&s, &self.opening.member)?;
        }
        Ok(())
    }

    /// This member as a ledger tells it, without a lease.
    fn entry(&self, held: u64) -> Entry {
        Entry {
            pid: std::process::id(),
            seed: self.shared.seed(),
            incarnation: self.opening.member.incarnation,
            host: host_name(),
            mark: crate::io::process::mark(),
            held,
            ..Entry::default()
        }
    }

    /// Takes our number's lock again, and writes ourselves into the ledger.
    fn enter_again(&mut self, common: u64) -> Result<()> {
        let s = std::sync::Arc::clone(&self.shared);
        let root = &s.root.path;
        let fault = |e: io::Error| Error::io("make the ledger again", root.display(), e);
        let number = self.opening.member.number;
        let (bound, held, root_bound) = {
            let core = lock(&s.core);
            let held = core.account.budget.resident() + core.account.budget.reserved();
            (
                core.account.budget.bound().unwrap_or(0),
                held,
                core.account.root_bound.unwrap_or(0),
            )
        };
        let boot = self.opening.member.boot;
        let entry = self.entry(held);
        // the lock is still ours where its file has a name
        let is_named = self.opening.member.lock.stat().is_ok_and(|st| st.links > 0);
        let ledger = &self.opening.member.ledger;
        let (mut new_lock, mut failed) = (None, None);
        let done = ledger.with(OPEN_PATIENCE, |found| {
            let mut page = match found {
                LedgerFound::Page(p) => p,
                LedgerFound::None => {
                    let mut p = Page::new(root_bound, boot);
                    p.head.common = common;
                    p
                }
            };
            if let Some(ours) = page.member(number).filter(|e| e.incarnation == entry.incarnation) {
                return (None, Some(ours.lease));
            }
            if !is_named {
                match ledger.take_member(number, page.member(number)) {
                    Ok(taken) => new_lock = taken,
                    Err(e) => {
                        failed = Some(e);
                        return (None, None);
                    }
                }
            }
            let has_lock = is_named || new_lock.is_some();
            let free = page
                .head
                .bound
                .saturating_sub(page.head.common.saturating_add(page.leased()));
            let taken = page.member(number).is_some() || page.head.bound != root_bound;
            let Some(slot) = page.member_mut(number).filter(|_| !taken && has_lock) else {
                return (None, None);
            };
            let lease = bound.min(free);
            *slot = Some(Entry { lease, ..entry });
            (Some(page), Some(lease))
        });
        if let Some(e) = failed {
            return Err(fault(e));
        }
        let lease = done.map_err(fault)?.flatten();
        lock(&s.core).account.budget.set_bound(Some(lease.unwrap_or(0)));
        if lease.is_none() {
            self.looks.ousted = true;
            return Err(ousted(root));
        }
        if let Some(file) = new_lock {
            self.opening.member.lock = file;
        }
        Ok(())
    }
}

/// The error of a tier whose root was removed, and made again by somebody else.
fn ousted(root: &Path) -> Error {
    Error::new(
        crate::ErrorKind::Busy,
        "make the ledger again",
        format!(
            "{} was removed, and another process holds what was made there since: this tier stores nothing until \
                     it is opened again",
            root.display()
        ),
    )
}
