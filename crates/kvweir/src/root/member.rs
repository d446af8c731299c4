//! A tier's membership of a bounded root: joining, its lease, leaving. A member keeps its number's lock for life; what
//! a dead member left is taken over by whoever joins with the same namespace, or by whoever needs its bytes
//! (`fs/keeper/adopt.rs`).

use std::{io, path::Path, sync::Arc, time::Duration};

use super::{
    journal::{self, Mark},
    ledger::{Entry, Ledger, LedgerFound, MEMBERS, Page, lock_member},
    names::STATE_DIR,
    ownership::{host_name, unusable},
};
use crate::{
    error::{Error, ErrorKind, Result},
    io::{Disk, DiskFile, disk::FileKind, process},
};

/// Longest wait for the ledger when a root is opened.
pub(crate) const OPEN_PATIENCE: Duration = Duration::from_secs(5);
/// Longest wait for it later.
const PATIENCE: Duration = Duration::from_millis(50);

/// A joined root.
#[derive(Debug)]
pub(crate) struct Member {
    pub(crate) ledger: Ledger,
    pub(crate) number: u32,
    pub(crate) incarnation: u32,
    /// The boot in which it joined.
    pub(crate) boot: [u8; 16],
    /// Held for life.
    pub(crate) lock: Box<dyn DiskFile>,
}

/// What is to be done before stores are taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Start {
    /// Nothing is known of what lies below the root: walk it.
    Walk,
    /// A dead member's number was taken: read its journal.
    Replay,
    /// A new number: it owns nothing.
    Fresh,
}

/// What a joiner brings.
pub(crate) struct Joiner<'a> {
    pub(crate) disk: &'a Arc<dyn Disk>,
    pub(crate) root: &'a Path,
    pub(crate) bound: u64,
    pub(crate) seed: u64,
    pub(crate) boot: [u8; 16],
    pub(crate) nonce: u64,
}

/// A joined root, what to do next, and whether others live.
pub(crate) struct Joined {
    pub(crate) member: Member,
    pub(crate) start: Start,
    pub(crate) alone: bool,
    /// What the ledger knew of the journal to be read.
    pub(crate) mark: Option<Mark>,
}

/// Joins the root.
pub(crate) fn join(j: &Joiner<'_>) -> Result<Joined> {
    let ledger = Ledger::new(j.disk, j.root);
    match j.disk.create_dir(&ledger.dir()) {
        Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(unusable(&**j.disk, j.root, e)),
        _ => {}
    }
    let done = ledger.with(OPEN_PATIENCE, |found| match choose(j, &ledger, found) {
        Ok((page, joined)) => (Some(page), Ok(joined)),
        Err(e) => (None, Err(e)),
    });
    match done {
        Ok(Some(r)) => r,
        Ok(None) => Err(held_by_another(j.root)),
        Err(e) => Err(unusable(&**j.disk, j.root, e)),
    }
}

/// The error of a ledger that could not be had.
pub(crate) fn held_by_another(root: &Path) -> Error {
    Error::new(
        ErrorKind::Busy,
        "open root",
        format!(
            "{} is held by an operator command (kvweir trim, gc, import, verify --repair) or another process that has \
             had its ledger for {} s; open it again when that has ended",
            root.display(),
            OPEN_PATIENCE.as_secs()
        ),
    )
}

/// Those of `numbers` whose members live; `page` tells who they are.
fn living(ledger: &Ledger, page: Option<&Page>, numbers: impl Iterator<Item = u32>) -> io::Result<Vec<u32>> {
    let mut live = Vec::new();
    for n in numbers {
        if ledger.is_live(n, page.and_then(|p| p.member(n)))? {
            live.push(n);
        }
    }
    Ok(live)
}

/// Numbers that have a lock file.
pub(crate) fn with_lock_file(disk: &dyn Disk, root: &Path) -> io::Result<Vec<u32>> {
    let mut out = Vec::new();
    disk.list(&root.join(STATE_DIR), &mut |name, _| {
        out.extend(name.to_str().and_then(lock_member));
    })?;
    Ok(out)
}

/// Takes a number in what was found; what the ledger is to say then, and the member.
fn choose(j: &Joiner<'_>, ledger: &Ledger, found: LedgerFound) -> Result<(Page, Joined)> {
    let fault = |e: io::Error| unusable(&**j.disk, j.root, e);
    let known = match found {
        // after a restart of the machine files may be gone, or back under their old names
        LedgerFound::Page(p) if p.head.boot == j.boot => Some(p),
        _ => None,
    };
    let numbers: Vec<u32> = match &known {
        Some(p) => p.used().map(|(n, _)| n).collect(),
        None => with_lock_file(&**j.disk, j.root).map_err(fault)?,
    };
    let live = living(ledger, known.as_ref(), numbers.into_iter()).map_err(fault)?;
    let (mut page, mut walk) = agree(j, known, &live)?;
    if walk {
        // the walk finds what the dead left
        for n in (0..MEMBERS).filter(|n| !live.contains(n)) {
            if let Some(m) = page.member_mut(n) {
                *m = None;
            }
        }
    }
    let dead_own = dead_of_seed(&page, j.seed, &live);
    let (number, lock) = take_number(j, ledger, &page, dead_own)?;
    let old = page.member(number).cloned().unwrap_or_default();
    let (entry, mark) = (entry_of(j, &old), page.mark(number));
    let (incarnation, lease) = (entry.incarnation, entry.lease);
    if let Some(m) = page.member_mut(number) {
        *m = Some(entry);
    }
    if page.head.walker.is_some() && !walk {
        // somebody alive walks; this one waits for its lease
        walk = false;
    } else {
        page.head.walker = walk.then_some(number);
    }
    let start = match () {
        () if walk => Start::Walk,
        // without a lease it held nothing: it died before it had a journal
        () if dead_own.is_some() && lease > 0 => Start::Replay,
        () => Start::Fresh,
    };
    // the journal is the new owner's, as it is
    let mark = mark.filter(|_| start == Start::Replay);
    page.set_mark(number, mark);
    // those who live write theirs; what no entry speaks of was left when somebody took over from the dead and died too,
    // or could not remove it, and is in no account
    let gone = |n: u32| match start {
        Start::Walk => !live.contains(&n),
        Start::Fresh => n == number || page.member(n).is_none(),
        Start::Replay => page.member(n).is_none(),
    };
    forget_files(&**j.disk, j.root, &gone).map_err(fault)?;
    let member = Member {
        ledger: ledger.clone(),
        number,
        incarnation,
        boot: j.boot,
        lock,
    };
    let joined = Joined {
        member,
        start,
        alone: live.is_empty(),
        mark,
    };
    Ok((page, joined))
}

/// The error of a root that `who` has.
fn in_use(root: &Path, who: &str, why: &str) -> Error {
    Error::new(
        ErrorKind::Busy,
        "open root",
        format!("{} is in use by {who}; {why}", root.display()),
    )
}

/// The page to go on with, under the joiner's bound, and whether the tree must be walked first.
///
/// # Errors
/// Somebody lives with whom this one cannot agree.
fn agree(j: &Joiner<'_>, known: Option<Page>, live: &[u32]) -> Result<(Page, bool)> {
    let Some(mut page) = known else {
        if live.is_empty() {
            return Ok((Page::new(j.bound, j.boot), true));
        }
        let why = "its ledger is damaged: end that process, then open it again";
        return Err(in_use(j.root, "a process", why));
    };
    let holder = live.first().and_then(|&n| page.member(n)).map(Entry::who);
    if page.head.bound != j.bound
        && let Some(who) = holder
    {
        let why = format!(
            "a root has one bound at a time: it is {} bytes there and {} bytes here",
            page.head.bound, j.bound
        );
        return Err(in_use(j.root, &who, &why));
    }
    page.head.bound = j.bound;
    page.head.boot = j.boot;
    let walker_died = page.head.walker.is_some_and(|w| !live.contains(&w));
    Ok((page, walker_died))
}

/// The dead member of our first namespace that leased most.
fn dead_of_seed(page: &Page, seed: u64, live: &[u32]) -> Option<u32> {
    page.used()
        .filter(|(n, e)| e.seed == seed && !live.contains(n))
        .max_by_key(|(_, e)| e.lease)
        .map(|(n, _)| n)
}

/// Takes the number of the dead member, or a free one if there is none, and its lock.
fn take_number(
    j: &Joiner<'_>,
    ledger: &Ledger,
    page: &Page,
    dead: Option<u32>,
) -> Result<(u32, Box<dyn DiskFile>)> {
    let free = || (0..MEMBERS).filter(|&n| page.member(n).is_none()).collect();
    let candidates: Vec<u32> = dead.map_or_else(free, |n| vec![n]);
    for n in candidates {
        let taken = ledger.take_member(n, page.member(n));
        if let Some(lock) = taken.map_err(|e| unusable(&**j.disk, j.root, e))? {
            return Ok((n, lock));
        }
    }
    let who = format!("{MEMBERS} members");
    Err(in_use(j.root, &who, "more cannot share one root"))
}

/// The entry of this process, which goes on with what `old` owned.
fn entry_of(j: &Joiner<'_>, old: &Entry) -> Entry {
    Entry {
        pid: std::process::id(),
        seed: j.seed,
        clean: false,
        want: 0,
        incarnation: old.incarnation.wrapping_add(1).max((j.nonce as u32) | 1),
        host: host_name(),
        mark: process::mark(),
        lease: old.lease,
        held: old.held,
    }
}

/// Removes the journals of the members that are `gone`.
pub(crate) fn forget_files(disk: &dyn Disk, root: &Path, gone: &dyn Fn(u32) -> bool) -> io::Result<()> {
    let dir = root.join(STATE_DIR);
    let mut old = Vec::new();
    disk.list(&dir, &mut |name, kind| {
        if let Some((_, m, _)) = name.to_str().and_then(journal::parse_name)
            && kind != Some(FileKind::Dir)
            && gone(m)
        {
            old.push(dir.join(name));
        }
    })?;
    for p in old {
        match disk.remove_file(&p) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
    }
    Ok(())
}

impl Member {
    /// Changes the ledger, under its lock. `None`: it could not be had now.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut Page) -> R) -> io::Result<Option<R>> {
        self.change_within(PATIENCE, change)
    }

    pub(crate) fn change_within<R>(
        &self,
        patience: Duration,
        change: impl FnOnce(&mut Page) -> R,
    ) -> io::Result<Option<R>> {
        let done = self.ledger.with(patience, |found| match found {
            LedgerFound::Page(mut p) => {
                let r = change(&mut p);
                (Some(p), Ok(r))
            }
            LedgerFound::None => (None, Err(io::ErrorKind::InvalidData.into())),
        })?;
        done.transpose()
    }

    /// Nothing that the journals say can be believed: says so in the ledger, if nobody else lives.
    pub(crate) fn begin_walk(&self, disk: &dyn Disk, root: &Path) -> io::Result<bool> {
        let number = self.number;
        // under the ledger's lock, as all looks at others' locks: no look is taken for a member
        let live = self.change_within(OPEN_PATIENCE, |p| {
            let others = p.used().map(|(n, _)| n).filter(|&n| n != number);
            living(&self.ledger, Some(p), others)
        })?;
        if !live.transpose()?.is_some_and(|l| l.is_empty()) {
            return Ok(false);
        }
        let done = self.change_within(OPEN_PATIENCE, |p| {
            p.head.walker = Some(number);
            for n in (0..MEMBERS).filter(|&n| n != number) {
                if let Some(m) = p.member_mut(n) {
                    *m = None;
                }
            }
            if let Some(Some(e)) = p.member_mut(number) {
                e.lease = 0;
            }
            p.set_mark(number, None);
        })?;
        forget_files(disk, root, &|_| true)?;
        Ok(done.is_some())
    }

    /// Ends the membership; what it owns stays leased for its next owner, who finds the journal as it is now.
    pub(crate) fn leave(self, held: u64, mark: Option<Mark>) {
        let done = self.change(|p| {
            let ours = p
                .member(self.number)
                .is_some_and(|e| e.incarnation == self.incarnation);
            if ours {
                p.set_mark(self.number, mark.map(|m| Mark { held, ..m }));
            }
            let ours = p.member_mut(self.number).and_then(Option::as_mut);
            if let Some(e) = ours.filter(|e| e.incarnation == self.incarnation) {
                e.held = held;
                e.want = 0;
                e.clean = true;
            }
        });
        if let Err(error) = done {
            tracing::warn!(%error, "the ledger was not told that this tier ended");
        }
        drop(self.lock);
    }
}
