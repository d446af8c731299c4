//! The journals of a root's members against its block files. A file that no journal knows is counted by nobody (I1);
//! a block without file is a miss, and as a rule somebody removed it by hand. Compared only where the next start would
//! believe the journals: all members dead, all journals whole and of this boot. A leaf directory in
//! which something was under way when a member died is looked at by the next start, and is no finding here.

use std::{
    collections::{BTreeSet, HashMap, HashSet},
    path::{Path, PathBuf},
};

use foldhash::fast::FixedState;
use serde::Serialize;

use super::{Admin, Claim, Fault, Finding};
use crate::{
    block::Fingerprint,
    budget::COST_UNIT,
    error::Result,
    io::boot_id,
    root::{
        journal::{self, Unusable},
        ledger::{LEDGER_FILE, Look, Page},
        names::{DirKind, MAX_NAMESPACES, STATE_DIR, leaf_dir},
        visitor::BlockFile,
    },
    sync::{Mutex, lock},
};

/// Directories of blocks without file that are told.
const EXAMPLES: usize = 20;

/// The outcome of a comparison with the journals.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct JournalCheck {
    /// Whether block files were compared with the journals.
    pub compared: bool,
    /// If not, why.
    pub why_not: Option<String>,
    /// Blocks that the journals tell of.
    pub blocks: u64,
    /// Leaf directories in which something was under way when a member died: the next start looks at them.
    pub directories_in_doubt: u64,
    /// Blocks that the journals tell of and that have no file. No fault: they are misses.
    pub journal_without_file: u64,
    /// The directories of some of them.
    pub without_file_in: Vec<String>,
}

/// What all journals tell, or why nothing is compared with them.
pub(super) struct Journals {
    /// The ledger they belong to.
    page: Option<Box<Page>>,
    pub(super) report: JournalCheck,
    pub(super) findings: Vec<Finding>,
    in_doubt: HashSet<PathBuf>,
    dirs: Vec<PathBuf>,
    state: Mutex<Unmet>,
}

#[derive(Default)]
struct Unmet {
    /// Blocks and extents not met yet: the numbers of their directories, and for extents what they are counted as.
    left: HashMap<Fingerprint, (u32, Option<u64>), FixedState>,
    unknown: Vec<PathBuf>,
    /// Extents that take more bytes than they are counted as: path, bytes, counted.
    larger: Vec<(PathBuf, u64, u64)>,
}

impl Journals {
    fn without(why: impl Into<String>) -> Self {
        Self {
            page: None,
            report: JournalCheck {
                why_not: Some(why.into()),
                ..JournalCheck::default()
            },
            findings: Vec::new(),
            in_doubt: HashSet::new(),
            dirs: Vec::new(),
            state: Mutex::default(),
        }
    }

    fn damaged(fault: Fault, path: String, detail: String) -> Self {
        let mut out = Self::without("the next start walks the root and begins new journals");
        out.findings.push(Finding::new(fault, path, None, detail));
        out
    }

    /// Told of every block file that is there.
    pub(super) fn met(&self, file: &BlockFile<'_>) {
        if self.page.is_none() || self.in_doubt.contains(file.dir) {
            return;
        }
        let mut state = lock(&self.state);
        match state.left.remove(&file.fp) {
            None => state.unknown.push(file.dir.join(file.name)),
            Some((_, Some(counted))) if counted < file.stat.allocated => {
                let path = file.dir.join(file.name);
                state.larger.push((path, file.stat.allocated, counted));
            }
            Some(_) => {}
        }
    }
}

impl Admin {
    /// Reads what there is to compare with, of namespace `only` or of all.
    pub(super) fn journals(&self, only: Option<&str>, claim: Option<&Claim>) -> Result<Journals> {
        let seen = match claim {
            Some(_) => self.see_unlocked()?,
            None => self.see()?,
        };
        if let Some(h) = seen.holders.iter().find(|h| h.may_live()) {
            return Ok(Journals::without(format!(
                "{} uses the root and writes its journal",
                h.who()
            )));
        }
        if seen.claimed {
            return Ok(Journals::without("another operator command has the root"));
        }
        let page = match seen.ledger {
            Look::Page(p) => p,
            Look::Empty => {
                return Ok(Journals::without(
                    "there is no ledger: no tier with a bound has opened the root since it was made or changed by a \
                     command; the next one walks it",
                ));
            }
            Look::Newer(version) => {
                return Ok(Journals::damaged(
                    Fault::NewerFormat,
                    format!("{STATE_DIR}/{LEDGER_FILE}"),
                    format!("a ledger of version {version}, which a later version of kvweir wrote"),
                ));
            }
            Look::Damaged => {
                return Ok(Journals::damaged(
                    Fault::DamagedLedger,
                    format!("{STATE_DIR}/{LEDGER_FILE}"),
                    "not a ledger that this version wrote whole".into(),
                ));
            }
        };
        if page.head.walker.is_some() {
            return Ok(Journals::without(
                "a walk of the root was not finished: the next start walks it again",
            ));
        }
        if page.head.boot != boot_id() {
            return Ok(Journals::without(
                "the machine was started anew since they were written: the next start walks the root",
            ));
        }
        self.read_journals(page, only)
    }

    fn read_journals(&self, page: Box<Page>, only: Option<&str>) -> Result<Journals> {
        let fs_block = self.allocation_unit()?;
        let mut out = Journals::without("");
        let mut numbers: HashMap<PathBuf, u32, FixedState> = HashMap::default();
        let mut names = BTreeSet::new();
        for (member, _) in page.used() {
            let r = match journal::replay(
                &*self.disk,
                &self.root,
                member,
                fs_block,
                page.mark(member).as_ref(),
            ) {
                Ok(r) => r,
                Err(Unusable::Missing) => {
                    return Ok(Journals::without(format!(
                        "member {member} left no journal: the next start walks the root"
                    )));
                }
                Err(why) => {
                    let fault = match why {
                        Unusable::Io(_) => Fault::Unreadable,
                        _ => Fault::DamagedJournal,
                    };
                    let path = format!("{STATE_DIR}/journal-{member:02}");
                    return Ok(Journals::damaged(fault, path, why.to_string()));
                }
            };
            names.extend(r.namespaces.iter().cloned());
            let wanted = |ns: u16| {
                let name = r.namespaces.get(usize::from(ns))?;
                only.is_none_or(|o| o == name).then(|| self.root.join(name))
            };
            for &(ns, prefix, leaf) in r.doubt.keys() {
                if let Some(dir) = wanted(ns) {
                    out.in_doubt.insert(leaf_dir(&dir, prefix, leaf));
                }
            }
            let (mut state, dirs) = (lock(&out.state), &mut out.dirs);
            for o in &r.blocks {
                let Some(dir) = wanted(o.namespace) else { continue };
                let dir = leaf_dir(&dir, o.prefix, o.leaf);
                let n = *numbers.entry(dir).or_insert_with_key(|dir| {
                    dirs.push(dir.clone());
                    u32::try_from(dirs.len() - 1).unwrap_or(u32::MAX)
                });
                let counted = (o.leaf == DirKind::Extent).then_some(u64::from(o.cost) * COST_UNIT);
                state.left.insert(o.fp, (n, counted));
            }
        }
        if names.len() >= usize::from(MAX_NAMESPACES) {
            return Ok(Journals::without(
                "there are more namespaces than journals can tell of",
            ));
        }
        out.report = JournalCheck {
            compared: true,
            why_not: None,
            blocks: lock(&out.state).left.len() as u64,
            directories_in_doubt: out.in_doubt.len() as u64,
            ..JournalCheck::default()
        };
        out.page = Some(page);
        Ok(out)
    }

    /// Judges what was met, unless somebody has changed the root meanwhile. Returns the findings.
    pub(super) fn compare(
        &self,
        journals: Journals,
        claim: Option<&Claim>,
    ) -> Result<(JournalCheck, Vec<Finding>)> {
        let Journals {
            page,
            mut report,
            mut findings,
            in_doubt,
            dirs,
            state,
        } = journals;
        let Some(page) = page else {
            return Ok((report, findings));
        };
        if claim.is_none() {
            let now = self.see()?;
            if now.is_held() || now.page() != Some(&*page) {
                let why = "an engine or a command came to the root while it was read";
                return Ok((Journals::without(why).report, findings));
            }
        }
        let state = state
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        findings.extend(state.unknown.iter().map(|path| {
            let why = "no member's journal knows it, so nobody counts its bytes";
            Finding::new(Fault::NotInJournal, self.short(path), None, why.into())
        }));
        findings.extend(state.larger.iter().map(|(path, bytes, counted)| {
            let why = format!("takes {bytes} bytes, of which its journal counts {counted}");
            Finding::new(Fault::CountedTooLow, self.short(path), None, why)
        }));
        // one member's blocks may lie where another's are in doubt
        let doubted = |n: u32| dirs.get(n as usize).is_some_and(|d| in_doubt.contains(d));
        let (mut without, mut extents) = (Vec::new(), Vec::new());
        for (n, counted) in state.left.into_values().filter(|&(n, _)| !doubted(n)) {
            match counted {
                None => without.push(n),
                Some(bytes) => extents.push((n, bytes)),
            }
        }
        findings.extend(extents.iter().filter_map(|&(n, bytes)| {
            let why = format!("a journal counts an extent of {bytes} bytes here, which is not there");
            let path = self.short(dirs.get(n as usize)?);
            Some(Finding::new(Fault::ExtentGone, path, None, why))
        }));
        report.journal_without_file = without.len() as u64;
        let places: BTreeSet<&Path> = without
            .iter()
            .filter_map(|&n| dirs.get(n as usize).map(PathBuf::as_path))
            .collect();
        report.without_file_in = places.into_iter().take(EXAMPLES).map(|d| self.short(d)).collect();
        Ok((report, findings))
    }
}
