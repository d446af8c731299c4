//! What a ledger says. `<root>/.kvweir/ledger`, version 1, little-endian:
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

use xxhash_rust::xxh3::xxh3_64;

use crate::{
    io::process,
    root::journal::{MARK_BYTES, Mark, Reader},
};

/// Members a root can have.
pub(crate) const MEMBERS: u32 = 64;
/// Bytes of the file.
pub(crate) const LEDGER_BYTES: usize = ENTRIES_AT + MEMBERS as usize * RECORD;
pub(super) const ENTRIES_AT: usize = 4096;
pub(super) const RECORD: usize = 128;
pub(super) const MARKS_AT: usize = 1024;
pub(super) const MARK: usize = MARK_BYTES + 8;
const HOST: usize = 64;
const SUMMED: usize = RECORD - 8;
const MAGIC: &[u8; 8] = b"KVWEIRL1";
pub(super) const VERSION: u16 = 1;
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
    pub(super) marks: Vec<Option<Mark>>,
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

    pub(super) fn encode_head(&self) -> [u8; RECORD] {
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

    pub(super) fn encode_member(&self, n: u32) -> [u8; RECORD] {
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

    pub(super) fn encode_mark(&self, n: u32) -> [u8; MARK] {
        let mut out = [0; MARK];
        if let Some(m) = self.marks.get(n as usize).copied().flatten() {
            let fields = m.fields().concat();
            let (body, sum) = out.split_at_mut(MARK_BYTES);
            body.copy_from_slice(&fields);
            sum.copy_from_slice(&xxh3_64(body).to_le_bytes());
        }
        out
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut out = self.encode_head().to_vec();
        out.resize(MARKS_AT, 0);
        (0..MEMBERS).for_each(|n| out.extend(self.encode_mark(n)));
        out.resize(ENTRIES_AT, 0);
        (0..MEMBERS).for_each(|n| out.extend(self.encode_member(n)));
        out
    }
}

/// The version of a ledger whose header a later version wrote whole. All versions begin with magic and version, and sum
/// the header's record in the same way.
pub(super) fn later_version(bytes: &[u8]) -> Option<u16> {
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
        let file = include_bytes!("../../../fixtures/ledger-v1.bin");
        assert_eq!(Page::decode(file), Some(sample()));
    }

    #[test]
    fn a_fuzzed_ledger_is_read_without_panic() {
        let file = include_bytes!("../../../fixtures/ledger-v1.bin").to_vec();
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
