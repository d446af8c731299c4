//! A walk that reads every block file and compares it, in parallel.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

use super::{
    Admin, OnProgress, Progress,
    check::{CHUNK, Outcome, check},
    finding::{Fault, Finding},
    journals::Journals,
    survey::Expected,
    verification::Verification,
};
use crate::{
    io::buffer::PageBuffer,
    root::{
        names::DirKind,
        visitor::{BlockFile, Met, Watch},
    },
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
        lock,
    },
};

pub(crate) struct Reader<'a> {
    pub(crate) admin: &'a Admin,
    pub(crate) only: Option<&'a str>,
    pub(crate) expected: BTreeMap<PathBuf, Expected>,
    pub(crate) held: bool,
    pub(crate) journals: Journals,
    pub(crate) buffers: Mutex<Vec<PageBuffer>>,
    pub(crate) found: Mutex<Verification>,
    /// Extents met, read when the walk has ended: one directory holds all of a namespace.
    pub(crate) extents: Mutex<MetParts>,
    pub(crate) progress: OnProgress<'a>,
    pub(crate) of_blocks: u64,
    pub(crate) blocks: AtomicU64,
    pub(crate) bytes: AtomicU64,
}

impl Watch for Reader<'_> {
    fn wants(&self, namespace: &str) -> bool {
        self.only.is_none_or(|o| o == namespace)
    }

    fn met(&self, what: Met<'_>) {
        match what {
            Met::Block(file) if file.leaf == DirKind::Extent => {
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
    pub(crate) fn read(&self, blocks: u64, bytes: u64) {
        (self.progress)(Progress {
            blocks: self.blocks.fetch_add(blocks, Ordering::Relaxed) + blocks,
            of_blocks: self.of_blocks,
            bytes: self.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes,
        });
    }

    pub(crate) fn bad(&self, fault: Fault, path: &Path, detail: String) {
        self.bad_at(fault, path, None, detail);
    }

    pub(crate) fn bad_at(&self, fault: Fault, path: &Path, slot: Option<u32>, detail: String) {
        let path = self.admin.short(path);
        let finding = Finding::new(fault, path, slot, detail);
        lock(&self.found).findings.push(finding);
    }
}

/// Files of extents of a namespace, and what they should be.
pub(crate) type MetParts = BTreeMap<u16, (Expected, Vec<PathBuf>)>;
