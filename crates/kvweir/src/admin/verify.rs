//! Every block of a root against its trailer, name and namespace (I2), in parallel: the threads of the walk read what
//! they find. What is provably bad can be removed by [`Admin::repair`]; what merely cannot be read or understood
//! stays. Files are also compared with the journals of the root's members (`journals.rs`).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{
    Admin, Claim, OnProgress, Pile, Progress,
    check::{CHUNK, Outcome, check},
    check_extent::check_extents,
    extents::{other_part, pairs},
    identity::Config,
    journals::{JournalCheck, Journals},
    survey::{Content, Expected},
};
use crate::{
    error::{Error, IoClass, Result, classify},
    fs::packed::format::{Header, RECORD_BYTES},
    io::{
        PageBuffer,
        disk::{OpenMode, write_all_at},
    },
    root::{
        names::{Leaf, Part, extent_part},
        visitor::{BlockFile, Met, Watch},
    },
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
        lock,
    },
};

/// What may be wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Fault {
    /// The page behind the block is torn or foreign.
    DamagedTrailer,
    /// The block's bytes are not those that were stored.
    DamagedPayload,
    /// Another key's block lies under this name.
    WrongKey,
    /// Another namespace's block lies in this directory.
    WrongNamespace,
    /// Neither a block's length nor that of a block with trailer.
    WrongSize,
    /// Nothing in it.
    ZeroLength,
    /// A temporary of ours that nobody writes.
    LeftoverTemporary,
    /// A directory of the layout without entries.
    EmptyDirectory,
    /// The first page of an extent is not a header that was written whole.
    DamagedHeader,
    /// What an extent's table says of a slot is neither a record nor nothing.
    DamagedRecord,
    /// A file of an extent ends before its last slot.
    TruncatedExtent,
    /// Only one of the two files of an extent is there.
    HalfExtent,
    /// A whole block, but of another length than its namespace's others: a miss to the engine. Stays.
    OtherSize,
    /// A trailer of a version that this program does not know. Stays.
    NewerFormat,
    /// The system would not let it be read. Stays.
    Unreadable,
    /// A block file that no journal knows: counted by nobody. Stays; a repair lets the next start walk and count it.
    NotInJournal,
    /// An extent that takes more bytes than its journal counts. Stays, as above.
    CountedTooLow,
    /// A journal counts an extent that is not there. A repair lets the next start walk and count what is.
    ExtentGone,
    /// A journal whose bytes are not what was written. A repair gives all journals up.
    DamagedJournal,
    /// A ledger whose bytes are not what was written. A repair gives it up.
    DamagedLedger,
    /// More bytes lie below the root than its bound: what is there is not what members count. A repair lets the next
    /// start walk, count and trim.
    AboveBound,
}

/// What a finding means for whoever keeps the root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Weight {
    /// Nothing is lost: a leftover, as every kill leaves some. `gc`, a repair or the next start tidies up.
    Tidy,
    /// No block is lost, but bytes are not counted as they are: the bound may not be kept until the next walk.
    Bound,
    /// A block is lost, or cannot be served as it is.
    Block,
}

impl Weight {
    /// The words for people and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Tidy => "tidy",
            Self::Bound => "bound",
            Self::Block => "block",
        }
    }
}

impl Fault {
    /// The words for people and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::DamagedTrailer => "damaged_trailer",
            Self::DamagedPayload => "damaged_payload",
            Self::WrongKey => "wrong_key",
            Self::WrongNamespace => "wrong_namespace",
            Self::WrongSize => "wrong_size",
            Self::ZeroLength => "zero_length",
            Self::LeftoverTemporary => "leftover_temporary",
            Self::EmptyDirectory => "empty_directory",
            Self::DamagedHeader => "damaged_header",
            Self::DamagedRecord => "damaged_record",
            Self::TruncatedExtent => "truncated_extent",
            Self::HalfExtent => "half_extent",
            Self::OtherSize => "other_size",
            Self::NewerFormat => "newer_format",
            Self::Unreadable => "unreadable",
            Self::NotInJournal => "not_in_journal",
            Self::CountedTooLow => "counted_too_low",
            Self::ExtentGone => "extent_gone",
            Self::DamagedJournal => "damaged_journal",
            Self::DamagedLedger => "damaged_ledger",
            Self::AboveBound => "above_bound",
        }
    }

    /// Whether it proves that nothing is lost by removing the file.
    pub const fn is_provable(self) -> bool {
        !self.is_of_journals() && !matches!(self, Self::OtherSize | Self::NewerFormat | Self::Unreadable)
    }

    /// Whether it is mended by the next start, when it walks the root.
    pub const fn is_of_journals(self) -> bool {
        matches!(
            self,
            Self::NotInJournal
                | Self::CountedTooLow
                | Self::ExtentGone
                | Self::DamagedJournal
                | Self::DamagedLedger
                | Self::AboveBound
        )
    }
}

/// Something that is wrong.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub struct Finding {
    /// What.
    pub fault: Fault,
    /// What it means.
    pub weight: Weight,
    /// Where, from the root on.
    pub path: String,
    /// The slot of the extent at `path`, where one is meant and not the file.
    pub slot: Option<u32>,
    /// In words.
    pub detail: String,
}

impl Finding {
    pub(super) fn new(fault: Fault, path: String, slot: Option<u32>, detail: String) -> Self {
        // without its table a data file is an extent in the making
        let in_the_making = || matches!(extent_part_of(&path), Some(Part::Data));
        let weight = match fault {
            Fault::LeftoverTemporary | Fault::EmptyDirectory => Weight::Tidy,
            Fault::HalfExtent if in_the_making() => Weight::Tidy,
            f if f.is_of_journals() => Weight::Bound,
            _ => Weight::Block,
        };
        Self {
            fault,
            weight,
            path,
            slot,
            detail,
        }
    }
}

fn extent_part_of(path: &str) -> Option<Part> {
    let name = path.rsplit('/').next()?;
    extent_part(name).map(|(part, _)| part)
}

/// What to verify.
#[derive(Debug, Clone, Default)]
pub struct VerifyOptions<'a> {
    /// Only this namespace, by its directory's name.
    pub namespace: Option<&'a str>,
    /// The caller's own hold of the root: then no temporary can be a store of an engine under way.
    pub claim: Option<&'a Claim>,
}

/// What a verification came to.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Verification {
    /// The directory.
    pub root: String,
    /// Blocks read.
    pub blocks: u64,
    /// Of these, blocks of which everything was compared and is right.
    pub good: u64,
    /// Blocks of a block's length without trailer: there is nothing to compare them with.
    pub unverified: u64,
    /// Files that went while they were looked at, and slots that were written anew.
    pub vanished: u64,
    /// Extents read; the blocks of their slots are among those above.
    pub extents: u64,
    /// Blocks read from slots.
    pub packed_blocks: u64,
    /// Of these, blocks of which another slot has a later record: evicted and stored again. No fault.
    pub superseded: u64,
    /// Temporaries of stores under way.
    pub being_written: u64,
    /// Bytes read.
    pub bytes: u64,
    /// Seconds that reading took.
    pub seconds: f64,
    /// Namespaces whose identity is not known, so that wrong ones are told by comparison with each other.
    pub without_identity: Vec<String>,
    /// The comparison with the journals.
    pub journals: JournalCheck,
    /// How many of each fault.
    pub faults: BTreeMap<&'static str, u64>,
    /// How many of each weight.
    pub weights: BTreeMap<&'static str, u64>,
    /// All faults, by kind and path.
    pub findings: Vec<Finding>,
}

impl Verification {
    /// Whether nothing is wrong.
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }

    /// Findings of this weight.
    pub fn count(&self, weight: Weight) -> u64 {
        self.findings.iter().filter(|f| f.weight == weight).count() as u64
    }

    /// Whether nothing is wrong but leftovers.
    pub fn is_tidy_only(&self) -> bool {
        self.findings.iter().all(|f| f.weight == Weight::Tidy)
    }

    /// Billions of bytes read a second.
    pub fn gb_s(&self) -> f64 {
        self.bytes as f64 / 1e9 / self.seconds.max(1e-9)
    }
}

/// What a repair did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Repaired {
    /// Whether anything was done.
    pub done: bool,
    /// Files removed.
    pub files: Pile,
    /// Records of slots taken away, so that nothing is found there.
    pub records: u64,
    /// Directories removed.
    pub directories: u64,
    /// Findings that stay, since nothing is proved.
    pub kept: u64,
    /// Whether journals and ledger are given up, so that the next start walks the root: with every change, and for
    /// what is wrong with the journals themselves.
    pub next_start_walks: bool,
    /// What could not be removed, and why.
    pub failed: Vec<String>,
}

pub(super) struct Reader<'a> {
    pub(super) admin: &'a Admin,
    only: Option<&'a str>,
    expected: BTreeMap<PathBuf, Expected>,
    pub(super) held: bool,
    journals: Journals,
    buffers: Mutex<Vec<PageBuffer>>,
    pub(super) found: Mutex<Verification>,
    /// Extents met, read when the walk has ended: one directory holds all of a namespace.
    extents: Mutex<MetParts>,
    progress: OnProgress<'a>,
    of_blocks: u64,
    blocks: AtomicU64,
    bytes: AtomicU64,
}

/// Files of extents of a namespace, and what they should be.
type MetParts = BTreeMap<u16, (Expected, Vec<PathBuf>)>;

impl Watch for Reader<'_> {
    fn wants(&self, namespace: &str) -> bool {
        self.only.is_none_or(|o| o == namespace)
    }

    fn met(&self, what: Met<'_>) {
        match what {
            Met::Block(file) if file.leaf == Leaf::Extent => {
                self.journals.met(file);
                let ns = file.dir.ancestors().nth(2);
                let expected = ns.and_then(|ns| self.expected.get(ns)).cloned();
                let mut all = lock(&self.extents);
                let of = all
                    .entry(file.namespace)
                    .or_insert_with(|| (expected.unwrap_or_default(), Vec::new()));
                of.1.push(file.dir.join(file.name));
            }
            Met::Block(file) => self.block(file),
            Met::Temp { path, .. } => {
                if self.held || self.admin.is_being_written(path) {
                    lock(&self.found).being_written += 1;
                } else {
                    self.bad(Fault::LeftoverTemporary, path, "nobody writes it".into());
                }
            }
            // an engine makes a directory before it writes into it
            Met::Empty { path } if !self.held => self.bad(Fault::EmptyDirectory, path, "no entries".into()),
            Met::Unreadable { path, error } => self.bad(Fault::Unreadable, path, error.to_string()),
            _ => {}
        }
    }
}

impl Reader<'_> {
    fn block(&self, file: &BlockFile<'_>) {
        // new since the survey, then its namespace is too, and its files are judged by themselves
        let none = Expected::default();
        let ns = file.dir.ancestors().nth(2);
        let expected = ns.and_then(|ns| self.expected.get(ns)).unwrap_or(&none);
        let kept = lock(&self.buffers).pop();
        let buf = kept.map_or_else(|| PageBuffer::new(CHUNK), Ok);
        let (outcome, bytes) = match buf {
            Ok(mut buf) => {
                let checked = check(&*self.admin.disk, file, expected, &mut buf);
                lock(&self.buffers).push(buf);
                checked
            }
            Err(_) => {
                let spent = std::io::ErrorKind::OutOfMemory.into();
                self.admin.notes.note(&file.dir.join(file.name), &spent);
                return;
            }
        };
        {
            let mut found = lock(&self.found);
            found.blocks += u64::from(!matches!(outcome, Outcome::Vanished));
            found.bytes += bytes;
            match &outcome {
                Outcome::Good => found.good += 1,
                Outcome::Unverified => found.unverified += 1,
                Outcome::Vanished => found.vanished += 1,
                Outcome::Bad(..) => {}
            }
        }
        if !matches!(outcome, Outcome::Vanished) {
            self.journals.met(file);
        }
        if let Outcome::Bad(fault, detail) = outcome {
            self.bad(fault, &file.dir.join(file.name), detail);
        }
        self.read(1, bytes);
    }

    /// So many blocks more are done, and bytes read for them.
    pub(super) fn read(&self, blocks: u64, bytes: u64) {
        (self.progress)(Progress {
            blocks: self.blocks.fetch_add(blocks, Ordering::Relaxed) + blocks,
            of_blocks: self.of_blocks,
            bytes: self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes,
        });
    }

    pub(super) fn bad(&self, fault: Fault, path: &Path, detail: String) {
        self.bad_at(fault, path, None, detail);
    }

    pub(super) fn bad_at(&self, fault: Fault, path: &Path, slot: Option<u32>, detail: String) {
        let path = self.admin.short(path);
        let finding = Finding::new(fault, path, slot, detail);
        lock(&self.found).findings.push(finding);
    }
}

impl Admin {
    /// Reads and compares every block. Beside a live engine files may come and go: that is no fault.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a namespace that is not there, and the I/O error of the
    /// root itself; whatever cannot be read below it is a finding.
    pub fn verify(&self, options: &VerifyOptions<'_>, progress: OnProgress<'_>) -> Result<Verification> {
        self.command("verify", |_| String::new(), |a| a.compare_all(options, progress))
    }

    fn compare_all(&self, options: &VerifyOptions<'_>, progress: OnProgress<'_>) -> Result<Verification> {
        options.claim.map_or(Ok(()), |c| c.covers(self))?;
        let only = options.namespace;
        let content = self.survey(only)?;
        if let Some(only) = only.filter(|_| content.namespaces.is_empty()) {
            let message = format!("there is no namespace {only} below {}", self.root.display());
            return Err(Error::invalid("verify", message));
        }
        let mut report = Verification {
            root: self.root.display().to_string(),
            ..Verification::default()
        };
        let mut expected = BTreeMap::new();
        let mut slots = 0;
        for (path, e, known) in self.expectations(&content) {
            slots += e.slots;
            if !known {
                report.without_identity.push(self.short(&path));
            }
            expected.insert(path, e);
        }
        let reader = Reader {
            admin: self,
            only,
            expected,
            held: options.claim.is_none() && self.see()?.is_held(),
            journals: self.journals(only, options.claim)?,
            buffers: Mutex::default(),
            found: Mutex::new(report),
            extents: Mutex::default(),
            progress,
            of_blocks: content.namespaces.values().map(|f| f.blocks.files).sum::<u64>() + slots,
            blocks: AtomicU64::new(0),
            bytes: AtomicU64::new(0),
        };
        let began = self.clock.now();
        self.walk(self.threads, &reader)?;
        let extents = std::mem::take(&mut *lock(&reader.extents));
        for (namespace, (expected, parts)) in extents {
            check_extents(&reader, self.threads, (namespace, &expected), &pairs(parts));
        }
        let seconds = self.clock.now().since(began).as_secs_f64();
        let (journals, findings) = self.compare(reader.journals, options.claim)?;
        let mut report = reader
            .found
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        report.seconds = seconds;
        report.journals = journals;
        report.findings.extend(findings);
        report
            .findings
            .extend(self.bound_kept(only, &content, options.claim)?);
        report.findings.sort_unstable();
        for f in &report.findings {
            *report.faults.entry(f.fault.as_str()).or_default() += 1;
            *report.weights.entry(f.weight.as_str()).or_default() += 1;
        }
        Ok(report)
    }

    /// A finding where more bytes lie below the root than its ledger's bound. A walk of one namespace does not tell.
    fn bound_kept(
        &self,
        only: Option<&str>,
        content: &Content,
        claim: Option<&Claim>,
    ) -> Result<Option<Finding>> {
        let seen = match claim {
            Some(_) => self.see_unlocked()?,
            None => self.see()?,
        };
        let bound = seen.page().map(|p| p.head.bound).filter(|_| only.is_none());
        let above = self.above_bound(bound, content.bytes())?;
        let detail = || {
            format!(
                "{above} bytes above the bound of {}: members count less than there is; end the engines and let the \
                 next start walk and trim (`verify --repair --yes` sees to that)",
                bound.unwrap_or(0)
            )
        };
        Ok((above > 0).then(|| Finding::new(Fault::AboveBound, String::new(), None, detail())))
    }

    /// What the files of each namespace should be, and whether its identity is known.
    pub(super) fn expectations(&self, content: &Content) -> Vec<(PathBuf, Expected, bool)> {
        let of = content.namespaces.values().map(|facts| {
            let config = Config::read(&*self.disk, &self.root, &facts.name());
            let e = facts.expected(&*self.disk, &config);
            (facts.path.clone(), e, config.namespace().is_some())
        });
        of.collect()
    }

    /// Removes what `report` proves bad, leftovers and empty directories included, and gives the journals up where
    /// anything is removed or they are wrong themselves; without a claim only counts.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a claim of another root, and the I/O error of giving the
    /// journals up. What cannot be removed is listed.
    pub fn repair(&self, report: &Verification, claim: Option<&Claim>) -> Result<Repaired> {
        let far = |r: &Repaired| match r.done {
            true => format!(" (after {} files and {} records went)", r.files.files, r.records),
            false => String::new(),
        };
        self.command("repair", far, |a| a.remove_bad(report, claim))
    }

    fn remove_bad(&self, report: &Verification, claim: Option<&Claim>) -> Result<Repaired> {
        claim.map_or(Ok(()), |c| c.covers(self))?;
        let mut out = Repaired {
            done: claim.is_some(),
            ..Repaired::default()
        };
        let mends = |f: &Finding| f.fault.is_provable() || f.fault.is_of_journals();
        out.next_start_walks = report.findings.iter().any(mends);
        if let Some(c) = claim.filter(|_| out.next_start_walks) {
            c.change()?;
        }
        for f in report.findings.iter().filter(|f| !f.fault.is_of_journals()) {
            if !f.fault.is_provable() {
                out.kept += 1;
                continue;
            }
            let path = self.root.join(&f.path);
            if let Some(slot) = f.slot {
                let gone = claim.map_or(Ok(()), |_| self.forget_slot(&path, slot));
                match gone {
                    Err(e) if classify(&e) != IoClass::Gone => {
                        out.failed.push(format!("{} slot {slot}: {e}", f.path));
                    }
                    _ => out.records += 1,
                }
                continue;
            }
            if f.fault == Fault::EmptyDirectory {
                out.directories += claim.map_or(1, |_| self.remove_empty(&path).files);
                continue;
            }
            // half of an extent may have been all that could be looked at
            let whole = || other_part(&path).is_some_and(|p| self.disk.stat(&p).is_ok());
            if f.fault == Fault::HalfExtent && whole() {
                out.kept += 1;
                continue;
            }
            // of an extent both files go
            let temp = f.fault == Fault::LeftoverTemporary;
            let other = other_part(&path).filter(|p| !temp && self.disk.stat(p).is_ok());
            for path in [&path].into_iter().chain(&other) {
                let bytes = self.disk.stat(path).map_or(0, |s| s.allocated);
                let gone = claim.map_or(Ok(()), |_| self.disk.remove_file(path));
                match gone {
                    Err(e) if classify(&e) != IoClass::Gone => out.failed.push(format!("{}: {e}", f.path)),
                    _ => out.files.add(bytes),
                }
            }
            if let (Some(dir), true) = (path.parent(), claim.is_some()) {
                out.directories += self.remove_empty(dir).files;
            }
        }
        Ok(out)
    }

    /// Takes the record of a slot away, durably.
    fn forget_slot(&self, path: &Path, slot: u32) -> std::io::Result<()> {
        // opening to write would make one that is gone
        self.disk.stat(path)?;
        let file = self.disk.open(path, OpenMode::ReadWrite, false)?;
        write_all_at(&*file, &[0; RECORD_BYTES], Header::record_at(slot))?;
        file.sync()
    }
}
