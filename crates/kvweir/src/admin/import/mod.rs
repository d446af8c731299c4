//! Trailers for blocks that a stock tier wrote. A block is read whole, summed, written with its trailer under a
//! temporary name of ours, made durable, and renamed: over the old file (in place), or into another root (the source is
//! then never changed, which is safer and needs the room). A crash leaves the old file or the new one, and at most a
//! temporary that the next start or `gc` sweeps. Blocks that have trailers are passed over, so it can be run again.
//!
//! A sum proves what lay there when it was made: bytes that were wrong before stay wrong. So only files of exactly a
//! block's length are taken, read twice, and only in namespaces whose identity is known and yields the directory's
//! name.

mod choose;
mod imported;
mod importer;

pub use self::imported::{ImportOptions, Imported, ImportedNamespace};
use self::importer::Importer;
use super::{Admin, Claim, OnProgress, temps::Temps};
use crate::{
    error::{Error, Result},
    sync::{Mutex, atomic::AtomicU64, lock},
};

/// Memory that all threads together read into, unless one block is larger.
const MEMORY: u64 = 1 << 30;

impl Admin {
    /// Gives the blocks of `from` that have no trailer one, in this root; `None`: in place. Without a claim only counts
    /// them.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a claim of another root,
    /// [`ErrorKind::Full`](crate::ErrorKind::Full) when there is no room, and the I/O error of the walk. What fails
    /// below is listed.
    pub fn import(
        &self,
        from: Option<&Self>,
        options: &ImportOptions,
        progress: OnProgress<'_>,
        claim: Option<&Claim>,
    ) -> Result<Imported> {
        let far = |i: &Imported| match i.done {
            true => format!(
                " (after {} blocks got trailers)",
                i.namespaces.iter().map(|n| n.imported).sum::<u64>()
            ),
            false => String::new(),
        };
        self.command("import", far, |a| {
            let from = from.map(|f| f.noting(&a.notes));
            a.give_trailers(from.as_ref(), options, progress, claim)
        })
    }

    fn give_trailers(
        &self,
        from: Option<&Self>,
        options: &ImportOptions,
        progress: OnProgress<'_>,
        claim: Option<&Claim>,
    ) -> Result<Imported> {
        claim.map_or(Ok(()), |c| c.covers(self))?;
        let from = from.unwrap_or(self);
        let began = self.clock.now();
        let content = from.survey(None)?;
        let mut importer = Importer {
            to: self,
            from,
            claim,
            in_place: from.root == self.root,
            targets: Vec::new(),
            buffers: Mutex::default(),
            failed: Mutex::default(),
            temps: Temps::new(self.clock.unix_seconds()),
            blocks: AtomicU64::new(0),
            of_blocks: content.namespaces.values().map(|f| f.blocks.files).sum(),
            bytes: AtomicU64::new(0),
            progress,
        };
        let passed_over = importer.choose(&content, options);
        self.notes.check("import", "")?;
        importer.has_room(&content)?;
        if let Some(claim) = claim.filter(|_| !importer.in_place && !importer.targets.is_empty()) {
            claim.change()?;
            for t in &importer.targets {
                let name = lock(&t.report).directory.clone();
                importer
                    .identity(&name)
                    .map_err(|e| Error::io("write identity", &name, e))?;
            }
        }
        let largest = importer.targets.iter().map(|t| t.len).max().unwrap_or(1);
        let threads = usize::try_from(MEMORY / largest.max(1)).unwrap_or(1);
        let walked = from.walk(self.threads.min(threads).max(1), &importer);
        // what ran out is told at the end, with how far it came
        if self.notes.check("import", "").is_ok() {
            walked?;
        }
        let into_inner = std::sync::PoisonError::into_inner;
        let mut failed = importer.failed.into_inner().unwrap_or_else(into_inner);
        failed.sort_unstable();
        let mut namespaces = passed_over;
        namespaces.extend(importer.targets.into_iter().map(|t| {
            t.report
                .into_inner()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        }));
        namespaces.sort_by(|a, b| a.directory.cmp(&b.directory));
        Ok(Imported {
            from: from.root.display().to_string(),
            into: self.root.display().to_string(),
            done: claim.is_some(),
            namespaces,
            bytes: importer.bytes.into_inner(),
            seconds: self.clock.now().since(began).as_secs_f64(),
            failed,
        })
    }
}
