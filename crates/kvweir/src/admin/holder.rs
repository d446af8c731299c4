//! Who holds a root. Locks decide: each live member of a bounded root holds `.kvweir/member-<nn>.lock`, and whoever
//! changes the ledger holds the ledger's own. What the ledger says of a member is for people, but that a process which
//! has ended holds nothing, though a child that it forked may still have the lock. Stock tiers, and
//! unbounded tiers of ours, hold no lock and cannot be seen here.

use std::{collections::BTreeSet, time::Duration};

use serde::Serialize;

use super::Admin;
use crate::{
    error::{Error, ErrorKind, IoClass, Result, classify},
    io::disk::OpenMode,
    root::{
        ledger::{Entry, Ledger, Look, Page, lock_member, lock_name, lock_within},
        names::STATE_DIR,
    },
    sync::Bell,
};

/// Longest wait for the ledger: engines have it for a moment, operator commands for long.
const PATIENCE: Duration = Duration::from_secs(1);
/// Looks at a ledger that seems damaged before it is: engines may be writing it.
const LOOKS: u32 = 20;

/// A member of a root, dead or alive.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// Its number.
    pub number: u32,
    /// Its lock file, relative to the root.
    pub lock: String,
    /// Its process, on its host; not known where the ledger cannot be read.
    pub pid: Option<u32>,
    /// Its host.
    pub host: Option<String>,
    /// Whether it lives: its lock is held, and its process has not ended. `None` if that cannot be found out.
    pub live: Option<bool>,
}

impl Holder {
    /// Whether it lives, or may live.
    pub fn may_live(&self) -> bool {
        self.live != Some(false)
    }

    /// Who it is, in words.
    pub fn who(&self) -> String {
        match (self.pid, &self.host) {
            (Some(pid), Some(host)) => format!("pid {pid} on {host}"),
            _ => "a process that the ledger does not tell".into(),
        }
    }
}

/// Who was seen.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) ledger: Look,
    pub(super) holders: Vec<Holder>,
    /// Somebody has the ledger for long: an operator command.
    pub(super) claimed: bool,
}

impl Seen {
    /// Whether an engine or a command uses the root now, as far as can be told.
    pub(super) fn is_held(&self) -> bool {
        self.claimed || self.holders.iter().any(Holder::may_live)
    }

    pub(super) fn page(&self) -> Option<&Page> {
        match &self.ledger {
            Look::Page(p) => Some(p),
            _ => None,
        }
    }
}

impl Admin {
    /// The members of the root: those that the ledger tells of, and those that hold a lock.
    ///
    /// # Errors
    /// The I/O error of listing the lock files.
    pub fn holders(&self) -> Result<Vec<Holder>> {
        self.command("look at members", |_| String::new(), |a| Ok(a.see()?.holders))
    }

    /// Looks at the ledger and all locks. Looking at a lock that is free takes it for a moment; members join under the
    /// ledger's lock, so that none takes us for one.
    pub(super) fn see(&self) -> Result<Seen> {
        let path = self.ledger().path();
        let held = self.disk.open(&path, OpenMode::Read, false).ok();
        let free = held
            .as_deref()
            .is_none_or(|f| lock_within(f, PATIENCE).unwrap_or(true));
        let mut seen = self.see_unlocked()?;
        seen.claimed = !free;
        Ok(seen)
    }

    /// As [`Admin::see`], for who has the ledger's lock.
    pub(super) fn see_unlocked(&self) -> Result<Seen> {
        let dir = self.root.join(STATE_DIR);
        let mut numbers = BTreeSet::new();
        match self.disk.list(&dir, &mut |name, _| {
            numbers.extend(name.to_str().and_then(lock_member));
        }) {
            Err(e) if classify(&e) != IoClass::Gone => {
                return Err(Error::io("list locks", dir.display(), e));
            }
            _ => {}
        }
        let ledger = self.look_at_ledger();
        let mut seen = Seen {
            ledger,
            holders: Vec::new(),
            claimed: false,
        };
        let page = seen.page().cloned();
        numbers.extend(page.iter().flat_map(Page::used).map(|(n, _)| n));
        for number in numbers {
            let entry = page.as_ref().and_then(|p| p.member(number));
            let lock = dir.join(lock_name(number));
            let live = match self.disk.open(&lock, OpenMode::Read, false) {
                Err(e) if classify(&e) == IoClass::Gone => Some(false),
                Err(_) => None,
                Ok(f) => f
                    .try_lock()
                    .ok()
                    .map(|free| !free && !entry.is_some_and(Entry::has_ended)),
            };
            if entry.is_some() || live != Some(false) {
                seen.holders.push(Holder {
                    number,
                    lock: self.short(&lock),
                    pid: entry.map(|e| e.pid),
                    host: entry.map(|e| e.host.clone()),
                    live,
                });
            }
        }
        Ok(seen)
    }

    fn look_at_ledger(&self) -> Look {
        let ledger = self.ledger();
        let pause = Bell::default();
        for _ in 0..LOOKS {
            match ledger.look() {
                Ok(Look::Damaged) | Err(_) => {
                    pause.wait(pause.rings(), Duration::from_millis(2));
                }
                Ok(l) => return l,
            }
        }
        ledger.look().unwrap_or(Look::Damaged)
    }

    pub(super) fn ledger(&self) -> Ledger {
        Ledger::new(&self.disk, &self.root)
    }

    /// Refuses a root that somebody holds, or may hold.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] with the holder's pid and host.
    pub fn require_idle(&self) -> Result<()> {
        self.command("look at members", |()| String::new(), Self::refuse_busy)
    }

    fn refuse_busy(&self) -> Result<()> {
        let seen = self.see()?;
        self.refuse_held(&seen)?;
        if seen.claimed {
            return Err(self.claimed_by_another());
        }
        Ok(())
    }

    /// Refuses a root with a live member.
    pub(super) fn refuse_held(&self, seen: &Seen) -> Result<()> {
        let Some(h) = seen.holders.iter().find(|h| h.may_live()) else {
            return Ok(());
        };
        let (root, who) = (self.root.display(), h.who());
        let message = match h.live {
            Some(_) => format!("{root} is in use by {who} (lock {})", h.lock),
            None => format!(
                "{root}: lock {} cannot be read, so whether {who} uses it cannot be told",
                h.lock
            ),
        };
        Err(Error::new(ErrorKind::Busy, "change root", message))
    }

    pub(super) fn claimed_by_another(&self) -> Error {
        let message = format!(
            "{} is in use by another operator command or process, which has its ledger",
            self.root.display()
        );
        Error::new(ErrorKind::Busy, "change root", message)
    }
}
