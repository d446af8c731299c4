//! The ledger of a bounded root: who owns how many of its bytes. `page.rs` has its format; here is the file, which is
//! changed under its lock.
//!
//! Common bytes and leases never add up to more than the bound, except after it was lowered, until the trim is done. A
//! live member holds the lock of `member-<n>.lock`, which ends with its process, or with the last child that was forked
//! from it: a member whose process has ended is dead whoever has its lock. What a dead one leased stays taken until
//! another has read its journal (I1, I6). The file is changed under its own lock, one record per write, and never by
//! the scheduler. A member's journal is told as it is written, so one that is shorter, older or another's is not
//! believed, and the tree is walked.

mod page;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use self::page::{ENTRIES_AT, MARK, MARKS_AT, RECORD, VERSION, later_version};
pub(crate) use self::page::{Entry, LEDGER_BYTES, MEMBERS, Page};
use super::names::STATE_DIR;
use crate::{
    io::{
        Disk, DiskFile,
        disk::{OpenMode, read_all_at, write_all_at, write_full},
    },
    sync::Bell,
};

/// Name of the file in the state directory.
pub(crate) const LEDGER_FILE: &str = "ledger";
/// Between two tries for a lock that somebody else holds.
const LOOK_AGAIN: Duration = Duration::from_micros(500);

/// The file, opened anew for each change.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    disk: Arc<dyn Disk>,
    root: PathBuf,
}

/// What was found under the ledger's lock.
pub(crate) enum LedgerFound {
    Page(Page),
    /// Missing, of another version, or damaged.
    None,
}

/// A ledger that a later version wrote: not to be changed, nor its root, by this one.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} is a ledger of version {version}, which a later version of kvweir wrote, and this one knows up to {VERSION}: \
     use that version; or, when it has ended for good, remove the directory .kvweir, and the next start walks the root",
    path.display()
)]
pub(crate) struct NewerLedger {
    path: PathBuf,
    version: u16,
}

/// A ledger's file under its lock, and its bytes.
type Held = (Box<dyn DiskFile>, Vec<u8>);

/// What a ledger's file is, looked at without its lock.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Look {
    Page(Box<Page>),
    /// There is none: never written whole, or given up.
    Empty,
    /// Whole, and of this later version.
    Newer(u16),
    /// Other bytes than this version writes.
    Damaged,
}

impl Look {
    /// Reads a ledger's file.
    pub(crate) fn of(file: &dyn DiskFile) -> io::Result<Self> {
        let bytes = read_bytes(file)?;
        Ok(match (Page::decode(&bytes), later_version(&bytes)) {
            (Some(p), _) => Self::Page(Box::new(p)),
            (None, Some(version)) => Self::Newer(version),
            (None, None) if bytes.iter().take(RECORD).all(|&b| b == 0) => Self::Empty,
            (None, None) => Self::Damaged,
        })
    }
}

impl Ledger {
    pub(crate) fn new(disk: &Arc<dyn Disk>, root: &Path) -> Self {
        Self {
            disk: Arc::clone(disk),
            root: root.to_owned(),
        }
    }

    pub(crate) fn root(&self) -> &Path {
        &self.root
    }

    pub(crate) fn dir(&self) -> PathBuf {
        self.root.join(STATE_DIR)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.dir().join(LEDGER_FILE)
    }

    /// Takes the file's lock for as long as the handle lives. `None` when it could not be had within `patience`; an
    /// error where a later version wrote it.
    pub(crate) fn hold(&self, patience: Duration) -> io::Result<Option<Box<dyn DiskFile>>> {
        Ok(self.hold_and_read(patience)?.map(|(file, _)| file))
    }

    /// As [`hold`](Self::hold), with what the file is.
    fn hold_and_read(&self, patience: Duration) -> io::Result<Option<Held>> {
        let file = self.disk.open(&self.path(), OpenMode::ReadWrite, false)?;
        if !lock_within(&*file, patience)? {
            return Ok(None);
        }
        let bytes = read_bytes(&*file)?;
        match later_version(&bytes) {
            Some(version) => {
                let path = self.path();
                Err(io::Error::other(NewerLedger { path, version }))
            }
            None => Ok(Some((file, bytes))),
        }
    }

    /// What the file is now, whoever has its lock.
    pub(crate) fn look(&self) -> io::Result<Look> {
        let file = match self.disk.open(&self.path(), OpenMode::Read, false) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(Look::Empty),
            r => r?,
        };
        Look::of(&*file)
    }

    /// Calls `change` with what is there, under the lock, and writes what it returns. `None` when the lock could not
    /// be had within `patience`.
    pub(crate) fn with<R>(
        &self,
        patience: Duration,
        change: impl FnOnce(LedgerFound) -> (Option<Page>, R),
    ) -> io::Result<Option<R>> {
        let Some((file, bytes)) = self.hold_and_read(patience)? else {
            return Ok(None);
        };
        let before = Page::decode(&bytes);
        let old = before.clone();
        let (after, answer) = change(before.map_or(LedgerFound::None, LedgerFound::Page));
        if let Some(new) = after {
            write(&*file, old.as_ref(), &new)?;
        }
        Ok(Some(answer))
    }

    /// Whether member `n`, which has this entry, lives. To be called under the ledger's lock.
    pub(crate) fn is_live(&self, n: u32, entry: Option<&Entry>) -> io::Result<bool> {
        Ok(self.try_lock(n)?.is_none() && !entry.is_some_and(Entry::has_ended))
    }

    /// Takes the lock of member `n`, which has this entry; `None` while it lives. To be called under the ledger's
    /// lock.
    pub(crate) fn take_member(&self, n: u32, entry: Option<&Entry>) -> io::Result<Option<Box<dyn DiskFile>>> {
        let free = self.try_lock(n)?;
        if free.is_some() || !entry.is_some_and(Entry::has_ended) {
            return Ok(free);
        }
        // a child that it forked holds the file and its lock: from now on that file is no member's
        match self.disk.remove_file(&self.dir().join(lock_name(n))) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(e),
            _ => self.try_lock(n),
        }
    }

    fn try_lock(&self, n: u32) -> io::Result<Option<Box<dyn DiskFile>>> {
        let path = self.dir().join(lock_name(n));
        let file = self.disk.open(&path, OpenMode::ReadWrite, false)?;
        Ok(file.try_lock()?.then_some(file))
    }
}

/// Name of a member's lock file.
pub(crate) fn lock_name(n: u32) -> String {
    format!("member-{n:02}.lock")
}

/// The member whose lock file has this name.
pub(crate) fn lock_member(name: &str) -> Option<u32> {
    let n: u32 = name
        .strip_prefix("member-")?
        .strip_suffix(".lock")?
        .parse()
        .ok()?;
    (n < MEMBERS && lock_name(n) == name).then_some(n)
}

/// Takes a lock, trying for so long. Returns whether it is ours.
pub(crate) fn lock_within(file: &dyn DiskFile, patience: Duration) -> io::Result<bool> {
    let pause = Bell::default();
    let mut tries = patience.as_micros() / LOOK_AGAIN.as_micros();
    while !file.try_lock()? {
        if tries == 0 {
            return Ok(false);
        }
        tries -= 1;
        pause.wait(pause.rings(), LOOK_AGAIN);
    }
    Ok(true)
}

/// Makes the file no ledger any more, so that the next start walks the tree. Synced, for machines whose boots cannot be
/// told apart. The file stays: others may be waiting for its lock. To be called under it.
pub(crate) fn give_up(file: &dyn DiskFile) -> io::Result<()> {
    let len = file.stat()?.len.min(LEDGER_BYTES as u64);
    let zeros = vec![0; usize::try_from(len).unwrap_or(LEDGER_BYTES)];
    write_full(file, &zeros, &[])?;
    file.sync()
}

fn read_bytes(file: &dyn DiskFile) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; LEDGER_BYTES];
    read_all_at(file, &mut bytes, 0)?;
    Ok(bytes)
}

/// Writes the records that differ, those whose lease grows first: where a lease passes from one to another, a crash
/// between the two counts its bytes twice, never not at all.
fn write(file: &dyn DiskFile, old: Option<&Page>, new: &Page) -> io::Result<()> {
    // a record half written makes the ledger unreadable: try once more, whatever the error was
    let put =
        |bytes: &[u8], at: u64| write_all_at(file, bytes, at).or_else(|_| write_all_at(file, bytes, at));
    let Some(old) = old else {
        // the header last: until it is there the file is no ledger
        let all = new.encode();
        put(all.get(RECORD..).unwrap_or_default(), RECORD as u64)?;
        return put(&new.encode_head(), 0);
    };
    let lease = |p: &Page, n: u32| p.member(n).map_or(0, |e| e.lease);
    let mut changed: Vec<u32> = (0..MEMBERS).filter(|&n| old.member(n) != new.member(n)).collect();
    changed.sort_by_key(|&n| lease(new, n) <= lease(old, n));
    for n in (0..MEMBERS).filter(|&n| old.marks.get(n as usize) != new.marks.get(n as usize)) {
        put(&new.encode_mark(n), (MARKS_AT + n as usize * MARK) as u64)?;
    }
    if old.head != new.head && new.head.common >= old.head.common {
        put(&new.encode_head(), 0)?;
    }
    for n in changed {
        put(&new.encode_member(n), (ENTRIES_AT + n as usize * RECORD) as u64)?;
    }
    if old.head != new.head && new.head.common < old.head.common {
        put(&new.encode_head(), 0)?;
    }
    Ok(())
}
