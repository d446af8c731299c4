//! The ledger of a bounded root: who owns how many of its bytes. `<root>/.kvweir/ledger`, version 1, little-endian:
//!
//! | bytes | field |
//! |---|---|
//! | 0..8 | magic `KVWEIRL1` |
//! | 8..10 | version, 1 |
//! | 10..12 | 0 |
//! | 12..16 | 0: in force; n: the tree is being walked by member n-1, nobody may store |
//! | 16..24 | the root's bound in bytes |
//! | 24..32 | common bytes: everything below the root that no member owns |
//! | 32..48 | id of the boot in which it was written |
//! | 48..56 | those of the common bytes that lie below namespaces: foreign files there |
//! | 56..64 | zeros |
//! | 120..128 | XXH3-64 of bytes 0..120 |
//! | 1024 + 48 n | what is known of member n's journal; zeros: nothing, as in what an older version wrote |
//! | +0..4 | incarnation of the member that this is about |
//! | +4..8 | generation |
//! | +8..16 | nonce of the journal of that generation |
//! | +16..24 | line of the journal |
//! | +24..32 | bytes up to its last whole frame |
//! | +32..40 | bytes the member held, if it ended in order |
//! | +40..48 | XXH3-64 of the 40 bytes before |
//! | 4096 + 128 n | member n, n < 64: |
//! | +0..4 | 1: in use |
//! | +4..8 | process id |
//! | +8..16 | lease: bytes that this member's files and reservations never exceed |
//! | +16..24 | bytes it held when it last wrote here |
//! | +24..32 | bytes it wants and cannot have |
//! | +32..40 | XXH3-64 of its namespace's directory name |
//! | +40..44 | 1: ended in order |
//! | +44..48 | incarnation: differs from owner to owner |
//! | +48..112 | name of its machine, padded with zeros |
//! | +112..120 | which process it is: when that began, and among which others (`io/process.rs`); 0: not known |
//! | +120..128 | XXH3-64 of the 120 bytes before |
//!
//! Common bytes and leases never add up to more than the bound, but after a bound was lowered, until that is trimmed.
//! A live member holds the lock of `member-<n>.lock`, which ends with its process, or with the last child that was
//! forked from it: a member whose process has ended is dead whoever has its lock. What a dead one leased stays taken
//! until another has read its journal (I1, I6). The file is changed under its own lock, one record a write, and
//! never by the scheduler. A member's journal is told as it is written, so one that is shorter, older or another's is not
//! believed, and the tree is walked.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use xxhash_rust::xxh3::xxh3_64;

use super::{
    journal::{MARK_BYTES, Mark, record::Reader},
    names::STATE_DIR,
};
use crate::{
    io::{
        Disk, DiskFile,
        disk::{OpenMode, read_all_at, write_all_at, write_full},
        process,
    },
    sync::Bell,
};

/// Name of the file in the state directory.
pub(crate) const LEDGER_FILE: &str = "ledger";
/// Members a root can have.
pub(crate) const MEMBERS: u32 = 64;
/// Bytes of the file.
pub(crate) const LEDGER_BYTES: usize = ENTRIES_AT + MEMBERS as usize * RECORD;
const ENTRIES_AT: usize = 4096;
const RECORD: usize = 128;
const MARKS_AT: usize = 1024;
const MARK: usize = MARK_BYTES + 8;
const HOST: usize = 64;
const SUMMED: usize = RECORD - 8;
const MAGIC: &[u8; 8] = b"KVWEIRL1";
const VERSION: u16 = 1;
/// Between two tries for a lock that somebody else holds.
const LOOK_AGAIN: Duration = Duration::from_micros(500);

/// What the header says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Head {
    /// Who walks the tree, if anybody.
    pub(crate) walker: Option<u32>,
    pub(crate) bound: u64,
    pub(crate) common: u64,
    pub(crate) boot: [u8; 16],
    /// The part of `common` that lies below namespaces.
    pub(crate) deep: u64,
}

/// One member.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Entry {
    pub(crate) pid: u32,
    pub(crate) lease: u64,
    pub(crate) held: u64,
    pub(crate) want: u64,
    pub(crate) seed: u64,
    pub(crate) clean: bool,
    pub(crate) incarnation: u32,
    pub(crate) host: String,
    /// Its process, by more than its number.
    pub(crate) mark: u64,
}

impl Entry {
    /// Whether its process has ended, as far as that can be told from here.
    pub(crate) fn has_ended(&self) -> bool {
        process::is_gone(self.pid, self.mark)
    }

    /// Who it is, for messages.
    pub(crate) fn who(&self) -> String {
        format!("pid {} on {}", self.pid, self.host)
    }
}

/// The ledger's content.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Page {
    pub(crate) head: Head,
    pub(crate) members: Vec<Option<Entry>>,
    marks: Vec<Option<Mark>>,
}

impl Page {
    pub(crate) fn new(bound: u64, boot: [u8; 16]) -> Self {
        Self {
            head: Head {
                walker: None,
                bound,
                boot,
                ..Head::default()
            },
            members: vec![None; MEMBERS as usize],
            marks: vec![None; MEMBERS as usize],
        }
    }

    /// What is known of the journal of member `n` as it is now.
    pub(crate) fn mark(&self, n: u32) -> Option<Mark> {
        let mark = (*self.marks.get(n as usize)?)?;
        (self.member(n)?.incarnation == mark.incarnation).then_some(mark)
    }

    /// Notes that of member `n`; its incarnation is filled in.
    pub(crate) fn set_mark(&mut self, n: u32, mark: Option<Mark>) {
        let incarnation = self.member(n).map(|e| e.incarnation);
        if let Some(slot) = self.marks.get_mut(n as usize) {
            *slot = mark
                .zip(incarnation)
                .map(|(m, incarnation)| Mark { incarnation, ..m });
        }
    }

    pub(crate) fn member(&self, n: u32) -> Option<&Entry> {
        self.members.get(n as usize)?.as_ref()
    }

    pub(crate) fn member_mut(&mut self, n: u32) -> Option<&mut Option<Entry>> {
        self.members.get_mut(n as usize)
    }

    /// The numbers in use.
    pub(crate) fn used(&self) -> impl Iterator<Item = (u32, &Entry)> {
        (0..)
            .zip(&self.members)
            .filter_map(|(n, m)| Some((n, m.as_ref()?)))
    }

    /// Bytes leased by all.
    pub(crate) fn leased(&self) -> u64 {
        self.used().fold(0, |n, (_, e)| n.saturating_add(e.lease))
    }

    /// Reads a ledger; `None`: not one that a version we know wrote whole.
    pub(crate) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut r = checked(bytes)?;
        if r.take::<8>()? != *MAGIC || r.u16()? != VERSION {
            return None;
        }
        r.u16()?;
        let walker = r.u32()?;
        if walker > MEMBERS {
            return None;
        }
        let head = Head {
            walker: walker.checked_sub(1),
            bound: r.u64()?,
            common: r.u64()?,
            boot: r.take()?,
            deep: r.u64()?,
        };
        let entries = bytes.get(ENTRIES_AT..LEDGER_BYTES)?;
        let members = entries
            .chunks_exact(RECORD)
            .map(|b| {
                let mut r = checked(b)?;
                let used = r.u32()?;
                let mut e = Entry {
                    pid: r.u32()?,
                    lease: r.u64()?,
                    held: r.u64()?,
                    want: r.u64()?,
                    seed: r.u64()?,
                    ..Entry::default()
                };
                e.clean = r.u32()? == 1;
                e.incarnation = r.u32()?;
                let host = r.take::<HOST>()?;
                let len = host.iter().position(|&b| b == 0).unwrap_or(HOST);
                e.host = String::from_utf8_lossy(host.get(..len)?).into_owned();
                e.mark = r.u64()?;
                Some((used == 1).then_some(e))
            })
            .collect::<Option<Vec<_>>>()?;
        let marks = bytes.get(MARKS_AT..MARKS_AT + MEMBERS as usize * MARK)?;
        let marks = marks.chunks_exact(MARK).map(decode_mark).collect();
        Some(Self { head, members, marks })
    }

    pub(crate) fn encode_head(&self) -> [u8; RECORD] {
        let h = &self.head;
        let walker = h.walker.map_or(0, |w| w + 1).to_le_bytes();
        record(&[
            MAGIC,
            &VERSION.to_le_bytes(),
            &[0; 2],
            &walker,
            &h.bound.to_le_bytes(),
            &h.common.to_le_bytes(),
            &h.boot,
            &h.deep.to_le_bytes(),
        ])
    }

    pub(crate) fn encode_member(&self, n: u32) -> [u8; RECORD] {
        let e = self.member(n).cloned();
        let used = u32::from(e.is_some());
        let e = e.unwrap_or_default();
        let mut host = [0; HOST];
        for (to, &from) in host.iter_mut().zip(e.host.as_bytes()) {
            *to = from;
        }
        record(&[
            &used.to_le_bytes(),
            &e.pid.to_le_bytes(),
            &e.lease.to_le_bytes(),
            &e.held.to_le_bytes(),
            &e.want.to_le_bytes(),
            &e.seed.to_le_bytes(),
            &u32::from(e.clean).to_le_bytes(),
            &e.incarnation.to_le_bytes(),
            &host,
            &e.mark.to_le_bytes(),
        ])
    }

    fn encode_mark(&self, n: u32) -> [u8; MARK] {
        let mut out = [0; MARK];
        if let Some(m) = self.marks.get(n as usize).copied().flatten() {
            let fields = m.fields().concat();
            let (body, sum) = out.split_at_mut(MARK_BYTES);
            body.copy_from_slice(&fields);
            sum.copy_from_slice(&xxh3_64(body).to_le_bytes());
        }
        out
    }

    fn encode(&self) -> Vec<u8> {
        let mut out = self.encode_head().to_vec();
        out.resize(MARKS_AT, 0);
        (0..MEMBERS).for_each(|n| out.extend(self.encode_mark(n)));
        out.resize(ENTRIES_AT, 0);
        (0..MEMBERS).for_each(|n| out.extend(self.encode_member(n)));
        out
    }
}

/// The version of a ledger whose header a later version wrote whole. All versions begin with magic and version, and sum the
/// header's record in the same way.
fn later_version(bytes: &[u8]) -> Option<u16> {
    let mut r = checked(bytes)?;
    (r.take::<8>()? == *MAGIC).then_some(())?;
    r.u16().filter(|&v| v > VERSION)
}

fn checked(bytes: &[u8]) -> Option<Reader<'_>> {
    let (body, sum) = bytes.get(..RECORD)?.split_at(SUMMED);
    (xxh3_64(body).to_le_bytes() == sum).then_some(Reader(body))
}

fn decode_mark(bytes: &[u8]) -> Option<Mark> {
    let (body, sum) = bytes.split_at_checked(MARK_BYTES)?;
    let whole = xxh3_64(body).to_le_bytes() == sum;
    Mark::read(&mut Reader(body)).filter(|_| whole)
}

fn record(fields: &[&[u8]]) -> [u8; RECORD] {
    let mut out = [0; RECORD];
    let (body, sum) = out.split_at_mut(SUMMED);
    for (to, &from) in body.iter_mut().zip(fields.concat().iter()) {
        *to = from;
    }
    sum.copy_from_slice(&xxh3_64(body).to_le_bytes());
    out
}

/// The file, opened anew for each change.
#[derive(Debug, Clone)]
pub(crate) struct Ledger {
    disk: Arc<dyn Disk>,
    root: PathBuf,
}

/// What was found under the ledger's lock.
pub(crate) enum Found {
    Page(Page),
    /// Missing, of another version, or damaged.
    None,
}

/// A ledger that a later version wrote: not to be changed, nor its root, by this one.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} is a ledger of version {version}, which a later version of kvweir wrote, and this one knows up to {VERSION}: use \
     that version; or, when it has ended for good, remove the directory .kvweir, and the next start walks the root",
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

    /// Takes the file's lock for as long as the handle lives. `None` when it could not be had within `patience`; an error
    /// where a later version wrote it.
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
        change: impl FnOnce(Found) -> (Option<Page>, R),
    ) -> io::Result<Option<R>> {
        let Some((file, bytes)) = self.hold_and_read(patience)? else {
            return Ok(None);
        };
        let before = Page::decode(&bytes);
        let old = before.clone();
        let (after, answer) = change(before.map_or(Found::None, Found::Page));
        if let Some(new) = after {
            write(&*file, old.as_ref(), &new)?;
        }
        Ok(Some(answer))
    }

    /// Whether member `n` lives, of whom this is written. To be called under the ledger's lock.
    pub(crate) fn is_live(&self, n: u32, entry: Option<&Entry>) -> io::Result<bool> {
        Ok(self.try_lock(n)?.is_none() && !entry.is_some_and(Entry::has_ended))
    }

    /// Takes the lock of member `n`, of whom this is written: `None` while it lives. To be called under the ledger's
    /// lock.
    pub(crate) fn take_member(&self, n: u32, entry: Option<&Entry>) -> io::Result<Option<Box<dyn DiskFile>>> {
        let free = self.try_lock(n)?;
        if free.is_some() || !entry.is_some_and(Entry::has_ended) {
            return Ok(free);
        }
        // a child that it forked has the file and its lock: from now on that is no member's
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

/// Takes a lock, looking again and again for so long. Returns whether it is ours.
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
    // a record of which part was written is none, and the ledger none with it: once more, whatever it was
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

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn sample() -> Page {
        let mut p = Page::new(1 << 30, [7; 16]);
        p.head.common = 12288;
        p.head.walker = Some(2);
        *p.member_mut(2).unwrap() = Some(Entry {
            pid: 4711,
            lease: 1 << 20,
            held: 1 << 19,
            want: 4096,
            seed: 0x1234_5678_9abc_def0,
            clean: true,
            incarnation: 9,
            host: "gpu-7".into(),
            mark: 0,
        });
        p
    }

    #[test]
    fn a_ledger_reads_back_and_a_changed_bit_is_noticed() {
        let bytes = sample().encode();
        assert_eq!(bytes.len(), LEDGER_BYTES);
        assert_eq!(Page::decode(&bytes), Some(sample()));
        let summed = (0..RECORD).chain(ENTRIES_AT..LEDGER_BYTES);
        for byte in summed.step_by(7) {
            let mut b = bytes.clone();
            b[byte] ^= 4;
            assert_eq!(Page::decode(&b), None, "byte {byte}");
        }
    }

    #[test]
    fn a_members_process_reads_back_beside_a_name_of_any_length() {
        for host in ["", "gpu-7", &"h".repeat(HOST)] {
            let mut p = sample();
            if let Some(Some(e)) = p.member_mut(2) {
                (e.mark, e.host) = (0x0123_4567_89ab_cdef, host.into());
            }
            assert_eq!(Page::decode(&p.encode()), Some(p), "{host:?}");
        }
    }

    #[test]
    fn a_mark_reads_back_is_of_one_owner_and_a_changed_bit_makes_it_none() {
        let mut p = sample();
        let mark = Mark {
            generation: 3,
            nonce: 5,
            line: 6,
            len: 7,
            held: 8,
            ..Mark::default()
        };
        p.set_mark(2, Some(mark));
        p.set_mark(9, Some(mark));
        let bytes = p.encode();
        let read = Page::decode(&bytes).unwrap();
        let told = Some(Mark {
            incarnation: 9,
            ..mark
        });
        assert_eq!((read.mark(2), read.mark(9)), (told, None));
        for byte in 0..MARK {
            let mut b = bytes.clone();
            b[MARKS_AT + 2 * MARK + byte] ^= 1;
            assert_eq!(Page::decode(&b).unwrap().mark(2), None, "byte {byte}");
        }
        // another owner, which an older version let in
        if let Some(Some(e)) = p.member_mut(2) {
            e.incarnation += 1;
        }
        assert_eq!(p.mark(2), None);
    }

    #[test]
    fn a_ledger_of_any_release_is_still_read() {
        let file = include_bytes!("../../fixtures/ledger-v1.bin");
        assert_eq!(Page::decode(file), Some(sample()));
    }

    #[test]
    fn a_fuzzed_ledger_is_read_without_panic() {
        let file = include_bytes!("../../fixtures/ledger-v1.bin").to_vec();
        crate::fuzz::fuzz("ledger", std::slice::from_ref(&file), |bytes| {
            if let Some(p) = Page::decode(bytes) {
                let _ = (p.leased(), p.used().count());
            }
        });
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..LEDGER_BYTES + 99)) {
            let _ = Page::decode(&bytes);
        }
    }
}
