//! What nobody needs any more: temporaries of writers that are gone, empty directories, namespaces into which nothing
//! was written for a time the caller names, and shared memory of engines that ended (see `shm.rs`). The age of a
//! namespace is that of its newest block: reads leave no trace.

use std::{
    path::{Path, PathBuf},
    time::Duration,
};

use serde::Serialize;

use super::{
    Admin, Claim, Pile, age_s,
    identity::split,
    shm::{self, RegionInfo},
    survey::{Content, Facts},
};
use crate::{
    error::{Error, IoClass, Result, classify},
    io::disk::FileKind,
    root::names::CONFIG_FILE,
    root::{
        names::{DirKind, Part, extent_part},
        visitor::{Met, Watch},
    },
    sync::{Mutex, lock},
};

/// Where engines keep shared memory, unless told otherwise.
const SHM: &str = "/dev/shm";

/// What to collect beside temporaries and empty directories.
#[derive(Debug, Clone)]
pub struct GcOptions {
    /// Namespaces whose newest block is older than this go.
    pub older_than: Option<Duration>,
    /// Where engines keep shared memory; `None` leaves it alone.
    pub shm: Option<PathBuf>,
    /// Where the system tells of processes.
    pub proc: PathBuf,
    /// Temporaries and shared memory younger than this stay: their writer may be about to take its lock or map them.
    pub grace: Duration,
}

impl Default for GcOptions {
    fn default() -> Self {
        Self {
            older_than: None,
            shm: Path::new(SHM).is_dir().then(|| SHM.into()),
            proc: "/proc".into(),
            grace: Duration::from_secs(60),
        }
    }
}

/// A namespace that went, or would go.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct GoneNamespace {
    /// The directory's name.
    pub directory: String,
    /// Its block files.
    pub blocks: Pile,
    /// Its extents of packed blocks.
    pub extents: Pile,
    /// Blocks in these.
    pub packed_blocks: u64,
    /// Seconds since the newest was written, or since the directory changed if it has none.
    pub unused_s: u64,
    /// Why something of it stays.
    pub kept: Option<String>,
}

/// What a collection did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Collected {
    /// The directory.
    pub root: String,
    /// Whether anything was done.
    pub done: bool,
    /// Temporaries removed.
    pub temporaries: Pile,
    /// Temporaries that stay: being written, or too young to tell.
    pub temporaries_kept: u64,
    /// Directories without entries removed, those that became empty included.
    pub empty_directories: u64,
    /// Namespaces out of use.
    pub namespaces: Vec<GoneNamespace>,
    /// Shared memory of engines.
    pub regions: Vec<RegionInfo>,
    /// What could not be removed, and why.
    pub failed: Vec<String>,
}

impl Admin {
    /// Collects what nobody needs; without a claim only counts it.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a claim of another root or shared memory where there is no
    /// directory, and the I/O error of the walk. What cannot be removed is listed.
    pub fn gc(&self, options: &GcOptions, claim: Option<&Claim>) -> Result<Collected> {
        let far = |c: &Collected| match c.done {
            true => format!(
                " (after {} temporaries and {} namespaces went)",
                c.temporaries.files,
                c.namespaces.len()
            ),
            false => String::new(),
        };
        self.command("gc", far, |a| a.collect(options, claim))
    }

    fn collect(&self, options: &GcOptions, claim: Option<&Claim>) -> Result<Collected> {
        claim.map_or(Ok(()), |c| c.covers(self))?;
        // before anything goes
        if let Some(dir) = &options.shm {
            let found = std::fs::metadata(dir).map_err(|e| {
                let message = format!(
                    "{}: {e}; say where engines keep it, or leave it alone",
                    dir.display()
                );
                Error::invalid("look at shared memory", message)
            })?;
            if !found.is_dir() {
                let message = format!("{} is not a directory", dir.display());
                return Err(Error::invalid("look at shared memory", message));
            }
        }
        let mut out = Collected {
            root: self.root.display().to_string(),
            done: claim.is_some(),
            ..Collected::default()
        };
        let content = self.survey(None)?;
        out.failed.extend(content.unreadable.iter().map(|u| u.1.clone()));
        self.collect_temps(&content, options.grace, claim, &mut out)?;
        for dir in &content.empty {
            out.empty_directories += match claim {
                Some(c) => {
                    c.change()?;
                    self.remove_empty(dir).files
                }
                None => 1,
            };
        }
        if let Some(limit) = options.older_than {
            for facts in content.namespaces.values() {
                // its newest block may be where nobody could look
                if content.unreadable.iter().any(|u| u.0.starts_with(&facts.path)) {
                    let name = facts.name();
                    out.failed
                        .push(format!("{name}: stays, since part of it cannot be read"));
                    continue;
                }
                self.collect_namespace(facts, limit, claim, &mut out)?;
            }
        }
        if let Some(dir) = &options.shm {
            let now = self.unix_ns();
            out.regions = shm::collect(dir, &options.proc, options.grace, now, out.done)
                .map_err(|e| Error::io("look at shared memory", dir.display(), e))?;
        }
        Ok(out)
    }

    fn collect_temps(
        &self,
        content: &Content,
        grace: Duration,
        claim: Option<&Claim>,
        out: &mut Collected,
    ) -> Result<()> {
        let now = self.unix_ns();
        for (path, bytes, mtime_ns) in &content.temps {
            if age_s(now, *mtime_ns) < grace.as_secs() || self.is_being_written(path) {
                out.temporaries_kept += 1;
                continue;
            }
            claim.map_or(Ok(()), Claim::change)?;
            if self.remove(path, out) {
                out.temporaries.add(*bytes);
                if let (Some(dir), true) = (path.parent(), out.done) {
                    out.empty_directories += self.remove_empty(dir).files;
                }
            }
        }
        Ok(())
    }

    /// Removes a file, or pretends to. Returns whether it is gone.
    fn remove(&self, path: &Path, out: &mut Collected) -> bool {
        match if out.done {
            self.disk.remove_file(path)
        } else {
            Ok(())
        } {
            Err(e) if classify(&e) != IoClass::Gone => {
                out.failed.push(format!("{}: {e}", self.short(path)));
                false
            }
            _ => true,
        }
    }

    fn collect_namespace(
        &self,
        facts: &Facts,
        limit: Duration,
        claim: Option<&Claim>,
        out: &mut Collected,
    ) -> Result<()> {
        let failed = out.failed.len();
        let packed = self.packed(facts, &mut out.failed);
        self.notes.check("gc", "")?;
        if out.failed.len() > failed {
            return Ok(());
        }
        let newest = facts
            .times
            .iter()
            .chain(&packed.times)
            .max()
            .map_or(facts.changed_ns, |&t| i128::from(t) * 1_000_000_000);
        let unused_s = age_s(self.unix_ns(), newest);
        if unused_s < limit.as_secs() {
            return Ok(());
        }
        let mut gone = GoneNamespace {
            directory: facts.name(),
            blocks: facts.blocks,
            extents: facts.extents,
            packed_blocks: packed.blocks,
            unused_s,
            kept: None,
        };
        if let Some(claim) = claim {
            claim.change()?;
            let removal = Removal {
                admin: self,
                name: &gone.directory,
                state: Mutex::default(),
            };
            self.walk(self.threads, &removal)?;
            let removed = removal
                .state
                .into_inner()
                .unwrap_or_else(std::sync::PoisonError::into_inner);
            gone.blocks = removed.blocks;
            gone.extents = removed.extents;
            out.failed.extend(removed.failed);
            gone.kept = match self.remove_dirs(&facts.path) {
                Ok(()) => self.remove_identity(&gone.directory).err().map(|e| e.to_string()),
                Err(e) => Some(format!("the directory stays: {e}")),
            };
        }
        out.namespaces.push(gone);
        Ok(())
    }

    /// Removes a namespace's directories, which hold no blocks any more; other files keep theirs.
    fn remove_dirs(&self, namespace: &Path) -> std::io::Result<()> {
        let dirs = |of: &Path| -> std::io::Result<Vec<PathBuf>> {
            let mut names = Vec::new();
            self.disk.list(of, &mut |name, kind| {
                if kind.is_none_or(|k| k == FileKind::Dir) {
                    names.push(of.join(name));
                }
            })?;
            Ok(names)
        };
        for high in dirs(namespace)? {
            for leaf in dirs(&high)? {
                // one that is not empty is told by its parent
                let _ = self.disk.remove_dir(&leaf);
            }
            let _ = self.disk.remove_dir(&high);
        }
        self.disk.remove_dir(namespace)
    }

    /// Removes the identity beside a namespace that is gone, unless another rank's directory shares it.
    fn remove_identity(&self, name: &str) -> std::io::Result<()> {
        let Some((base, _)) = split(name) else {
            return Ok(());
        };
        let mut shared = false;
        self.disk.list(&self.root, &mut |other, _| {
            shared |= other.to_str().and_then(split).is_some_and(|(b, _)| b == base);
        })?;
        let dir = self.root.join(base);
        if shared || self.disk.stat(&dir).is_err() {
            return Ok(());
        }
        match self.disk.remove_file(&dir.join(CONFIG_FILE)) {
            Err(e) if classify(&e) != IoClass::Gone => return Err(e),
            _ => {}
        }
        self.disk.remove_dir(&dir)
    }
}

/// Removes all blocks and temporaries of one namespace.
struct Removal<'a> {
    admin: &'a Admin,
    name: &'a str,
    state: Mutex<Removed>,
}

#[derive(Default)]
struct Removed {
    blocks: Pile,
    extents: Pile,
    failed: Vec<String>,
}

impl Watch for Removal<'_> {
    fn wants(&self, namespace: &str) -> bool {
        namespace == self.name
    }

    fn met(&self, what: Met<'_>) {
        let (path, bytes, leaf) = match what {
            Met::Block(file) => (
                file.dir.join(file.name),
                file.stat.allocated,
                Some((file.leaf, extent_part(file.name))),
            ),
            Met::Temp { path, stat } if !self.admin.is_being_written(path) => {
                (path.to_owned(), stat.allocated, None)
            }
            _ => return,
        };
        let gone = self.admin.disk.remove_file(&path);
        let mut state = lock(&self.state);
        match gone {
            Err(e) if classify(&e) != IoClass::Gone => {
                let why = format!("{}: {e}", self.admin.short(&path));
                state.failed.push(why);
            }
            // an extent's data file goes with its table
            _ => match leaf {
                Some((DirKind::Extent, Some((Part::Data, _)))) => state.extents.bytes += bytes,
                Some((DirKind::Extent, _)) => state.extents.add(bytes),
                _ => state.blocks.add(bytes),
            },
        }
    }
}
