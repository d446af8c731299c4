//! Appending to a member's journal. Only workers and the keeper come here, never the scheduler (I8). What the file
//! grows by is counted before it is written, and what the file system may take beside that is reserved (I1).

use std::{io, path::PathBuf, sync::Arc};

use super::{
    files::path,
    header::{HEADER_BYTES, Header},
    mark::Mark,
    older::{Older, Resume},
    out::Out,
    record::{At, DirCosts, Facts, Record},
};
use crate::{
    block::Fingerprint,
    io::{
        Disk,
        disk::{OpenMode, write_all_at},
        round_up,
        tree::most_allocated,
    },
    root::{
        accounts::Accounts,
        names::{DirClass, Prefix},
    },
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicU64, Ordering},
        lock,
    },
};

/// Hashes in one touch record.
const TOUCHES: usize = 4096;
/// Removals that wait for the next record, at most.
const MAX_OWED: usize = 64;
/// Bytes of a snapshot beside its blocks and directories: header, names, end.
pub(crate) const SNAPSHOT_BASE: u64 = 4096;

/// A journal that is being written.
#[derive(Debug)]
pub(crate) struct Journal {
    pub(super) disk: Arc<dyn Disk>,
    pub(super) root: PathBuf,
    pub(super) member: u32,
    pub(super) fs_block: u64,
    /// Taken before the tier's core lock; held across appends.
    pub(super) out: Mutex<Out>,
    /// Bytes of all files that count.
    total: AtomicU64,
    /// Bytes that the file system may yet take for them beyond what is counted.
    spare: AtomicU64,
    /// Its files cannot be believed any more: nothing is written, and the next owner walks.
    pub(super) lost: AtomicBool,
    /// The file that is written may not grow any more, whatever room there is (EFBIG): the next one may.
    pub(super) at_limit: AtomicBool,
}

impl Journal {
    /// Goes on where a dead member stopped, or begins generation 0 of `member`.
    pub(crate) fn open(
        disk: &Arc<dyn Disk>,
        root: PathBuf,
        member: u32,
        fs_block: u64,
        from: Option<Resume>,
        (nonce, block_len): (u64, u64),
        names: Vec<String>,
    ) -> io::Result<Self> {
        let is_new = from.is_none();
        let Resume {
            header,
            mut len,
            bytes,
            older,
        } = from.unwrap_or(Resume {
            header: Header {
                snapshot: false,
                member,
                generation: 0,
                nonce,
                block_len,
                line: nonce,
            },
            len: 0,
            bytes: 0,
            older: Vec::new(),
        });
        let file = disk.open(
            &path(&root, false, member, header.generation),
            OpenMode::ReadWrite,
            false,
        )?;
        if is_new {
            write_all_at(&*file, &header.encode(), 0)?;
            len = HEADER_BYTES as u64;
        }
        // classes are defined anew in this life: a later definition of a number replaces an earlier one
        let mut out = Out::new(file, header, len, names);
        out.extra = bytes.saturating_sub(round_up(len, fs_block));
        out.older = older;
        // where a writer was killed part of a frame may lie behind the last whole one
        out.torn = !is_new && !out.file.stat().is_ok_and(|s| s.len <= len);
        let _ = out.mend();
        Ok(Self {
            disk: Arc::clone(disk),
            root,
            member,
            fs_block,
            total: AtomicU64::new(out.total()),
            spare: AtomicU64::new(out.spare(fs_block)),
            out: Mutex::new(out),
            lost: AtomicBool::new(false),
            at_limit: AtomicBool::new(false),
        })
    }

    /// Allocated bytes of journal and snapshot.
    pub(crate) fn bytes(&self) -> u64 {
        lock(&self.out).bytes(self.fs_block)
    }

    /// Bytes of the journal since its snapshot, and of what came before.
    pub(crate) fn lengths(&self) -> (u64, u64) {
        let out = lock(&self.out);
        (out.len, out.older_bytes())
    }

    /// Whether a record did not go into the file because that has reached the limit of file sizes.
    pub(crate) fn is_at_limit(&self) -> bool {
        self.at_limit.load(Ordering::Relaxed)
    }

    /// Bytes to hold ready for its files beside those by which it grows: for the next snapshot, and for what the file
    /// system may yet take.
    pub(crate) fn claims(&self) -> u64 {
        most_allocated(self.next_snapshot(), self.fs_block) + self.spare()
    }

    /// Bytes that the file system may yet take for its files beyond what is counted.
    pub(crate) fn spare(&self) -> u64 {
        self.spare.load(Ordering::Relaxed)
    }

    /// What the ledger is to know of it; `None` where it is given up.
    pub(crate) fn mark(&self) -> Option<Mark> {
        let out = lock(&self.out);
        (!self.lost.load(Ordering::Relaxed)).then(|| out.mark())
    }

    /// Counts what its files take by now. A file system takes blocks of its own tree, or some beyond the end of a file,
    /// when it likes. The keeper's: nobody else gives a file up or begins one.
    pub(crate) fn remeasure(&self, accounts: &dyn Accounts) {
        let mut older = lock(&self.out).older.clone();
        for o in &mut older {
            if let Ok(stat) = self.disk.stat(&o.path) {
                o.bytes = stat.allocated.max(round_up(o.len, self.fs_block));
            }
        }
        let mut out = lock(&self.out);
        if self.lost.load(Ordering::Relaxed) {
            return;
        }
        self.recount(accounts, &mut out, Some(older));
    }

    /// Counts the current file, and the others if they are given, as they are now.
    pub(super) fn recount(&self, accounts: &dyn Accounts, out: &mut Out, older: Option<Vec<Older>>) {
        let before = out.bytes(self.fs_block);
        if let Some(older) = older {
            out.older = older;
        }
        if let Ok(stat) = out.file.stat() {
            out.extra = stat.allocated.saturating_sub(round_up(out.len, self.fs_block));
        }
        let now = out.bytes(self.fs_block);
        if now > before {
            accounts.grow(now - before);
        } else if now < before {
            accounts.shrink(before - now);
        }
        self.note(out);
    }

    /// Tells the scheduler's side how long its files are.
    pub(super) fn note(&self, out: &Out) {
        self.total.store(out.total(), Ordering::Relaxed);
        self.spare.store(out.spare(self.fs_block), Ordering::Relaxed);
    }

    /// Bytes of the next snapshot, at most: what it is made of, and a record for each directory.
    pub(crate) fn next_snapshot(&self) -> u64 {
        let total = self.total.load(Ordering::Relaxed);
        round_up(total + total / 2 + SNAPSHOT_BASE, self.fs_block)
    }

    /// Makes a namespace's directory name known before records speak of its number.
    pub(crate) fn name(&self, namespace: u16, name: &str) {
        let mut out = lock(&self.out);
        let at = usize::from(namespace);
        if out.names.len() <= at {
            out.names.resize(at + 1, String::new());
        }
        if let Some(n) = out.names.get_mut(at) {
            name.clone_into(n);
        }
    }

    /// A block is about to be written.
    pub(crate) fn begin(
        &self,
        accounts: &dyn Accounts,
        fp: Fingerprint,
        at: (DirClass, Prefix),
    ) -> io::Result<()> {
        self.append(accounts, fp, at, true, Record::Begin)
    }

    /// It is published.
    pub(crate) fn stored(
        &self,
        accounts: &dyn Accounts,
        fp: Fingerprint,
        at: (DirClass, Prefix),
        facts: Facts,
        key: Option<&[u8]>,
    ) -> io::Result<()> {
        self.append(accounts, fp, at, false, |at| Record::Stored(at, facts, key))
    }

    /// Many are, in one write.
    pub(crate) fn stored_all<'a>(
        &self,
        accounts: &dyn Accounts,
        blocks: impl IntoIterator<Item = (Fingerprint, (DirClass, Prefix), Facts, Option<&'a [u8]>)>,
    ) -> io::Result<()> {
        let mut out = lock(&self.out);
        let mut ended = Vec::new();
        for (fp, (class, prefix), facts, key) in blocks {
            let (n, _) = out.class(class);
            out.put(&Record::Stored(At { fp, class: n, prefix }, facts, key));
            ended.push((fp, class, prefix));
        }
        self.flush(accounts, &mut out)?;
        ended.iter().for_each(|e| {
            out.open.remove(e);
        });
        Ok(())
    }

    /// Directories that are there without blocks: class, level, place, cost in units of 512 bytes.
    pub(crate) fn dirs(
        &self,
        accounts: &dyn Accounts,
        dirs: &[(DirClass, u16, Prefix, u32)],
    ) -> io::Result<()> {
        let mut out = lock(&self.out);
        for &(class, level, prefix, cost) in dirs {
            let (class, _) = out.class(class);
            out.put(&Record::Dir {
                class,
                level,
                prefix,
                cost,
            });
        }
        self.flush(accounts, &mut out)
    }

    /// What is there of these blocks is not known: said in each generation until it is.
    pub(crate) fn doubt(&self, blocks: impl Iterator<Item = (Fingerprint, DirClass, Prefix)>) {
        lock(&self.out).open.extend(blocks);
    }

    /// A block's file is about to be removed.
    pub(crate) fn evict(
        &self,
        accounts: &dyn Accounts,
        fp: Fingerprint,
        at: (DirClass, Prefix),
    ) -> io::Result<()> {
        self.append(accounts, fp, at, true, Record::Evict)
    }

    /// Nothing of it is there any more. That goes into the file with the next record, or when the keeper comes: until
    /// then its removal is in doubt, and the next owner would look.
    pub(crate) fn gone(
        &self,
        accounts: &dyn Accounts,
        fp: Fingerprint,
        at: (DirClass, Prefix),
        dirs: DirCosts,
    ) {
        let mut out = lock(&self.out);
        out.owed.push((fp, at, dirs));
        if out.owed.len() >= MAX_OWED {
            self.pay(accounts, &mut out);
        }
    }

    /// Writes the removals that are not in the file yet.
    pub(crate) fn flush_removals(&self, accounts: &dyn Accounts) {
        let mut out = lock(&self.out);
        if !out.owed.is_empty() {
            self.pay(accounts, &mut out);
        }
    }

    fn pay(&self, accounts: &dyn Accounts, out: &mut Out) {
        let owed = std::mem::take(&mut out.owed);
        for &(fp, (class, prefix), dirs) in &owed {
            let (n, _) = out.class(class);
            out.put(&Record::Gone(At { fp, class: n, prefix }, dirs));
        }
        match self.flush(accounts, out) {
            Ok(()) => {
                for (fp, (class, prefix), _) in owed {
                    out.open.remove(&(fp, class, prefix));
                }
            }
            Err(error) => {
                tracing::debug!(%error, "removals are not in the journal yet");
                out.owed = owed;
            }
        }
    }

    /// Notes blocks that were used, least recent first.
    pub(crate) fn touch(&self, accounts: &dyn Accounts, hashes: &[u64]) -> io::Result<()> {
        let mut out = lock(&self.out);
        for part in hashes.chunks(TOUCHES) {
            let bytes: Vec<u8> = part.iter().flat_map(|h| h.to_le_bytes()).collect();
            out.put(&Record::Touch(&bytes));
        }
        self.flush(accounts, &mut out)
    }

    fn append<'a>(
        &self,
        accounts: &dyn Accounts,
        fp: Fingerprint,
        (class, prefix): (DirClass, Prefix),
        opens: bool,
        record: impl FnOnce(At) -> Record<'a>,
    ) -> io::Result<()> {
        let mut out = lock(&self.out);
        if !out.owed.is_empty() {
            self.pay(accounts, &mut out);
        }
        let (n, _) = out.class(class);
        out.put(&record(At { fp, class: n, prefix }));
        let done = self.flush(accounts, &mut out);
        if opens {
            out.open.insert((fp, class, prefix));
        } else if done.is_ok() {
            out.open.remove(&(fp, class, prefix));
        }
        done
    }

    pub(super) fn flush(&self, accounts: &dyn Accounts, out: &mut Out) -> io::Result<()> {
        if self.lost.load(Ordering::Relaxed) {
            out.take_back();
            return Ok(());
        }
        if out.torn {
            // what was buffered before the tear was known goes with the next try
            if let Err(e) = out.mend().and_then(|()| out.covers()) {
                out.take_back();
                return Err(e);
            }
            self.recount(accounts, out, None);
        }
        let end = out.len + out.buf.len() as u64;
        let grows = round_up(end, self.fs_block) - round_up(out.len, self.fs_block);
        if grows > 0 {
            accounts.grow(grows);
        }
        let done = out.write();
        if matches!(&done, Err(e) if e.kind() == io::ErrorKind::FileTooLarge) {
            self.at_limit.store(true, Ordering::Relaxed);
        }
        match &done {
            Ok(()) => self.note(out),
            // what was written of it may be there
            Err(_) if out.torn => out.extra += grows,
            Err(_) if grows > 0 => accounts.shrink(grows),
            Err(_) => {}
        }
        done
    }
}
