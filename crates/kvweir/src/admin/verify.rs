//! Every block of a root against its trailer, name and namespace (I2), in parallel: the threads of the walk read what
//! they find. What is provably bad can be removed by [`Admin::repair`]; what merely cannot be read or understood
//! stays. Files are also compared with the journals of the root's members (`journals.rs`).

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{
    Admin, Claim, OnProgress,
    check_extent::check_extents,
    extents::{other_part, pairs},
    identity::Config,
    survey::{Content, Expected},
};
use crate::{
    admin::{
        finding::{Fault, Finding},
        reader::Reader,
        verification::{Repaired, Verification},
    },
    error::{Error, IoClass, Result, classify},
    fs::packed::format::{Header, RECORD_BYTES},
    io::disk::{OpenMode, write_all_at},
    sync::{Mutex, atomic::AtomicU64, lock},
};

/// What to verify.
#[derive(Debug, Clone, Default)]
pub struct VerifyOptions<'a> {
    /// Only this namespace, by its directory's name.
    pub namespace: Option<&'a str>,
    /// The caller's own hold of the root: then no temporary can be a store of an engine under way.
    pub claim: Option<&'a Claim>,
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
