//! Oldest blocks first, down to a size. As the engine's own trim at start: by time of writing, across namespaces.
//! Extents of packed blocks go whole: of them the one with the fewest blocks is next, and it goes when its newest block
//! is older than the oldest block with a file of its own.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use foldhash::fast::FixedState;

use serde::Serialize;

use super::{
    Admin, Claim, Pile, age_s,
    extents::{known, map_parallel, pairs},
    survey::require_whole,
};
use crate::{
    error::{IoClass, Result, classify},
    root::{
        names::DirKind,
        visitor::{Met, Watch},
    },
    sync::{Mutex, lock},
};

/// What a trim did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Trimmed {
    /// The directory.
    pub root: String,
    /// Whether anything was done.
    pub done: bool,
    /// The size asked for.
    pub to_bytes: u64,
    /// What `du` counted before.
    pub before_bytes: u64,
    /// What `du` counts now, or would count at most.
    pub after_bytes: u64,
    /// Block files removed.
    pub blocks: Pile,
    /// Extents removed.
    pub extents: Pile,
    /// Blocks in these.
    pub packed_blocks: u64,
    /// Directories removed with them.
    pub directories: u64,
    /// Bytes of journals, which go with the first block: the next start walks the root.
    pub journal_bytes: u64,
    /// Seconds since the newest block that went was written.
    pub newest_removed_s: Option<u64>,
    /// What could not be removed, and why.
    pub failed: Vec<String>,
}

impl Trimmed {
    /// Whether the size was, or would be, reached.
    pub fn is_reached(&self) -> bool {
        self.after_bytes <= self.to_bytes
    }
}

/// A block that may go.
struct Victim {
    mtime_ns: i128,
    /// Number of its directory.
    dir: usize,
    name: Box<str>,
    bytes: u64,
    /// The other file, and the blocks in both, of an extent.
    also: Option<Box<str>>,
    packed: Option<u64>,
}

/// A directory, so that a plan knows which become empty.
#[derive(Default)]
struct Dir {
    path: PathBuf,
    bytes: u64,
    entries: u64,
}

struct Blocks<'a> {
    admin: &'a Admin,
    /// Unit of allocation.
    unit: u64,
    all: Mutex<Gathered>,
}

#[derive(Default)]
struct Gathered {
    victims: Vec<Victim>,
    extents: Vec<Victim>,
    dirs: Vec<Dir>,
    by_path: HashMap<PathBuf, usize, FixedState>,
    /// Of all that lies below the root.
    bytes: u64,
    /// Of journals.
    journal_bytes: u64,
    unreadable: Vec<String>,
}

impl Gathered {
    /// The number of a directory, which is told before what lies in it.
    fn dir(&mut self, path: &Path) -> usize {
        if let Some(&n) = self.by_path.get(path) {
            return n;
        }
        let n = self.dirs.len();
        self.by_path.insert(path.to_owned(), n);
        self.dirs.push(Dir {
            path: path.to_owned(),
            ..Dir::default()
        });
        n
    }

    /// Counts an entry of the directory that `path` lies in.
    fn enter(&mut self, path: &Path) {
        let n = path.parent().map(|p| self.dir(p));
        if let Some(d) = n.and_then(|n| self.dirs.get_mut(n)) {
            d.entries += 1;
        }
    }

    /// Takes an entry away from directory `n`; where it was the last, the directory goes too. Returns what goes.
    fn leave(&mut self, mut n: usize, root: &Path) -> Pile {
        let mut gone = Pile::default();
        while let Some(d) = self.dirs.get_mut(n) {
            d.entries = d.entries.saturating_sub(1);
            let parent = d.path.parent().unwrap_or(root);
            // the namespace's own directory stays
            if d.entries > 0 || parent == root {
                break;
            }
            gone.add(d.bytes);
            let Some(&above) = self.by_path.get(parent) else {
                break;
            };
            n = above;
        }
        gone
    }
}

impl Watch for Blocks<'_> {
    fn met(&self, what: Met<'_>) {
        let mut all = lock(&self.all);
        match what {
            Met::Block(file) => {
                // what is written but not yet allocated will be
                let bytes = file.stat.counted(self.unit);
                let dir = all.dir(file.dir);
                if let Some(d) = all.dirs.get_mut(dir) {
                    d.entries += 1;
                }
                all.bytes += bytes;
                let victim = Victim {
                    mtime_ns: file.stat.mtime_ns,
                    dir,
                    name: file.name.into(),
                    bytes,
                    also: None,
                    packed: (file.leaf == DirKind::Extent).then_some(0),
                };
                match victim.packed {
                    None => all.victims.push(victim),
                    Some(_) => all.extents.push(victim),
                }
            }
            Met::Temp { path, stat } | Met::Foreign { path, stat } => {
                all.bytes += stat.counted(self.unit);
                all.enter(path);
            }
            Met::Own { path, stat } => {
                let bytes = stat.counted(self.unit);
                all.bytes += bytes;
                if self.admin.is_journal(path) {
                    all.journal_bytes += bytes;
                }
            }
            Met::Dir { path, stat, .. } => {
                let n = all.dir(path);
                if let Some(d) = all.dirs.get_mut(n) {
                    d.bytes = stat.allocated;
                }
                all.bytes += stat.allocated;
                all.enter(path);
            }
            Met::Unreadable { error, .. } => all.unreadable.push(error.to_string()),
            Met::Namespace { .. } | Met::Empty { .. } => {}
        }
    }
}

/// Files and extents in the order in which they go.
fn merge(files: Vec<Victim>, extents: Vec<Victim>) -> Vec<Victim> {
    let mut out = Vec::with_capacity(files.len() + extents.len());
    let mut extents = extents.into_iter().peekable();
    for f in files {
        while let Some(e) = extents.next_if(|e| e.mtime_ns <= f.mtime_ns) {
            out.push(e);
        }
        out.push(f);
    }
    out.extend(extents);
    out
}

impl Admin {
    /// Removes the oldest blocks until `du` of the root is at most `to_bytes`; without a claim only counts them.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for a claim of another root, and the I/O error of the walk:
    /// bytes that were not seen are in no size. What cannot be removed is listed.
    pub fn trim(&self, to_bytes: u64, claim: Option<&Claim>) -> Result<Trimmed> {
        let far = |t: &Trimmed| match t.done {
            true => format!(
                " (after {} block files and {} extents went)",
                t.blocks.files, t.extents.files
            ),
            false => String::new(),
        };
        self.command("trim", far, |a| a.remove_oldest(to_bytes, claim))
    }

    fn remove_oldest(&self, to_bytes: u64, claim: Option<&Claim>) -> Result<Trimmed> {
        claim.map_or(Ok(()), |c| c.covers(self))?;
        let unit = self.allocation_unit()?;
        let mut all = self.blocks(unit)?;
        let first = all.unreadable.first().map(String::as_str);
        require_whole("trim", &self.root, all.unreadable.len(), first)?;
        let mut bytes = all.bytes;
        let mut out = Trimmed {
            root: self.root.display().to_string(),
            done: claim.is_some(),
            to_bytes,
            before_bytes: bytes,
            ..Trimmed::default()
        };
        let extents = self.extents_in_order(&mut all, &mut out.failed);
        // what was not read is not known to be empty
        self.notes.check("trim", "")?;
        let mut files = std::mem::take(&mut all.victims);
        files.sort_unstable_by(|a, b| (a.mtime_ns, &a.name).cmp(&(b.mtime_ns, &b.name)));
        let victims = merge(files, extents);
        let now = self.unix_ns();
        let mut changes = false;
        for v in victims {
            if bytes <= to_bytes {
                break;
            }
            if !std::mem::replace(&mut changes, true) {
                claim.map_or(Ok(()), Claim::change)?;
                out.journal_bytes = all.journal_bytes;
                bytes = bytes.saturating_sub(all.journal_bytes);
                if bytes <= to_bytes {
                    break;
                }
            }
            let Some(dir) = all.dirs.get(v.dir).map(|d| d.path.clone()) else {
                continue;
            };
            let path = dir.join(&*v.name);
            let remove = |name: &str| match self.disk.remove_file(&dir.join(name)) {
                Err(e) if classify(&e) != IoClass::Gone => Err(e),
                _ => Ok(()),
            };
            let gone = claim.map_or(Ok(()), |_| {
                remove(&v.name).and_then(|()| v.also.as_deref().map_or(Ok(()), remove))
            });
            if let Err(e) = gone {
                out.failed.push(format!("{}: {e}", self.short(&path)));
                continue;
            }
            match v.packed {
                None => out.blocks.add(v.bytes),
                Some(n) => {
                    out.extents.add(v.bytes);
                    out.packed_blocks += n;
                }
            }
            if v.packed != Some(0) {
                let age = age_s(now, v.mtime_ns);
                out.newest_removed_s = Some(out.newest_removed_s.map_or(age, |a| a.min(age)));
            }
            let dirs = match claim {
                Some(_) => self.remove_empty(&dir),
                None => {
                    if v.also.is_some() {
                        all.leave(v.dir, &self.root);
                    }
                    all.leave(v.dir, &self.root)
                }
            };
            out.directories += dirs.files;
            bytes = bytes.saturating_sub(v.bytes + dirs.bytes);
        }
        out.after_bytes = match claim {
            Some(_) => self.blocks(unit)?.bytes,
            None => bytes,
        };
        Ok(out)
    }

    /// Extents, those with the fewest blocks first, the oldest of equals. Their time is that of their newest block.
    fn extents_in_order(&self, all: &mut Gathered, failed: &mut Vec<String>) -> Vec<Victim> {
        let mut parts: HashMap<PathBuf, Victim, FixedState> = HashMap::default();
        for v in std::mem::take(&mut all.extents) {
            let dir = all.dirs.get(v.dir).map(|d| d.path.clone()).unwrap_or_default();
            parts.insert(dir.join(&*v.name), v);
        }
        let pairs = pairs(parts.keys().cloned().collect());
        let read = map_parallel(self.threads, &pairs, |e| known(&*self.disk, e));
        let mut extents = Vec::with_capacity(pairs.len());
        for (e, known) in pairs.iter().zip(read) {
            let mut both = [&e.table, &e.data]
                .into_iter()
                .flatten()
                .filter_map(|p| parts.remove(p));
            let Some(mut v) = both.next() else { continue };
            if let Some(other) = both.next() {
                v.bytes += other.bytes;
                v.mtime_ns = v.mtime_ns.max(other.mtime_ns);
                v.also = Some(other.name);
            }
            match known {
                Ok(known) => {
                    let newest = known.as_ref().map_or(0, |k| k.newest_s);
                    v.mtime_ns = i128::from(newest) * 1_000_000_000;
                    v.packed = Some(known.map_or(0, |k| k.records));
                }
                // what it holds cannot be told: it stays
                Err(why) => {
                    failed.push(format!("{}: {why}", self.short(e.path())));
                    continue;
                }
            }
            extents.push(v);
        }
        extents
            .sort_unstable_by(|a, b| (a.packed, a.mtime_ns, &a.name).cmp(&(b.packed, b.mtime_ns, &b.name)));
        extents
    }

    fn blocks(&self, unit: u64) -> Result<Gathered> {
        let blocks = Blocks {
            admin: self,
            unit,
            all: Mutex::default(),
        };
        self.walk(self.threads, &blocks)?;
        Ok(blocks
            .all
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner))
    }
}
