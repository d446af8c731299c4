//! The walk at start: everything below the root is counted (I1), blocks are found by name alone, temporaries that
//! are provably ours are swept, every other file is left where it is. First-level directories are shared out among
//! threads. A walk that is watched (`visitor.rs`) changes nothing.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | [`Walk`]: the root, its namespaces and their first-level directories |
//! | `leaf.rs` | leaf directories: blocks and temporaries |
//! | `foreign.rs` | everything else, which is only counted |
//! | `look.rs` | what a watcher is told, and what cannot be looked at |

mod foreign;
mod leaf;
mod look;

use std::{
    ffi::{OsStr, OsString},
    io,
    path::{Path, PathBuf},
};

use super::{
    dirs::Dirs,
    names::{DirKind, Prefix, is_namespace, parse_high, parse_leaf},
    visitor::{Met, Watch},
};
use crate::{
    block::{Fingerprint, Key},
    error::{Error, Result},
    evict::Id,
    io::{
        Disk,
        disk::{FileKind, Stat},
    },
    sync::{
        Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        lock, thread,
    },
};

/// A block file found.
#[derive(Debug)]
pub(crate) struct FoundFile {
    pub(crate) fp: Fingerprint,
    pub(crate) namespace: u16,
    pub(crate) leaf: DirKind,
    pub(crate) prefix: Prefix,
    pub(crate) cost: u64,
    pub(crate) mtime_ns: i128,
    pub(crate) trailer: bool,
    /// Its entry, once it has one.
    pub(crate) id: Option<Id>,
    /// Of a namespace that is served, but not of the right size.
    pub(crate) bad: bool,
    pub(crate) key: Option<Key>,
}

/// What lies below a root.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) blocks: Vec<FoundFile>,
    pub(crate) swept: u64,
    pub(crate) foreign_files: u64,
    /// Bytes of everything that is not a block or a directory of a namespace: at the root's own level, and below.
    pub(crate) common_bytes: u64,
    pub(crate) deep_bytes: u64,
    /// Bytes of namespaces' directories.
    pub(crate) dir_bytes: u64,
}

/// What a walk needs to know.
pub(crate) struct Walk<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) root: &'a Path,
    /// The directories of the namespaces that are served, by number, and the length of their blocks.
    pub(crate) own: &'a [(&'a str, u64)],
    pub(crate) fs_block: u64,
    pub(crate) want_keys: bool,
    pub(crate) threads: usize,
    /// Which temporaries are known to be nobody's.
    pub(crate) sweep: Sweep,
    /// Told of blocks as they are found, a first-level directory at a time.
    pub(crate) found: &'a (dyn Fn(&mut [FoundFile]) + Sync),
    /// The number of a namespace by its directory's name; `None` when there are too many.
    pub(crate) number: &'a (dyn Fn(&str) -> Option<u16> + Sync),
    /// Ends the walk early.
    pub(crate) stop: &'a AtomicBool,
    /// Who is told of everything met; then nothing is swept, removed or listed in the survey.
    pub(crate) watch: Option<&'a dyn Watch>,
}

/// Which temporaries a walk removes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sweep {
    /// All that are ours: nobody lives.
    All,
    /// Those of one member, dead.
    Member(u32),
}

/// A first-level directory to walk.
struct Task {
    namespace: u16,
    ns_dir: PathBuf,
    dir: PathBuf,
    high: u32,
}

impl Walk<'_> {
    /// Bytes at the root's own level that no member owns, and how many foreign files are among them.
    pub(crate) fn root_level(&self) -> Result<(u64, u64)> {
        let mut survey = Survey::default();
        let stat = self.stat(self.root)?;
        survey.common_bytes += stat.allocated;
        self.tell(|| Met::Dir {
            namespace: None,
            path: self.root,
            stat: &stat,
        });
        for (name, kind) in self.entries(self.root)?.unwrap_or_default() {
            if self.namespace(&name, kind).is_some() {
                continue;
            }
            self.count_foreign(&self.root.join(&name), &mut survey)?;
        }
        Ok((survey.common_bytes + survey.deep_bytes, survey.foreign_files))
    }

    /// Walks the root.
    pub(crate) fn run(&self, dirs: &Dirs) -> Result<Survey> {
        let mut survey = Survey::default();
        (survey.common_bytes, survey.foreign_files) = self.root_level()?;
        let mut tasks = Vec::new();
        for (name, kind) in self.entries(self.root)?.unwrap_or_default() {
            let path = self.root.join(&name);
            let Some(name) = self.namespace(&name, kind) else {
                continue;
            };
            if self.watch.is_some_and(|w| !w.wants(name)) {
                continue;
            }
            let Some(number) = (self.number)(name) else {
                self.count_foreign(&path, &mut survey)?;
                continue;
            };
            let Some(stat) = self.look(&path)? else { continue };
            survey.dir_bytes += stat.allocated;
            dirs.found_top(number, stat.allocated);
            self.tell(|| Met::Namespace { number, path: &path });
            self.tell(|| Met::Dir {
                namespace: Some(number),
                path: &path,
                stat: &stat,
            });
            for (name, kind) in self.entries(&path)?.unwrap_or_default() {
                match name
                    .to_str()
                    .and_then(parse_high)
                    .filter(|_| kind == FileKind::Dir)
                {
                    Some(high) => tasks.push(Task {
                        namespace: number,
                        ns_dir: path.clone(),
                        dir: path.join(&name),
                        high,
                    }),
                    None => self.count_foreign(&path.join(&name), &mut survey)?,
                }
            }
        }
        let next = AtomicUsize::new(0);
        let all = Mutex::new((survey, None));
        thread::scope(|scope| {
            let work = || {
                let mut mine = Survey::default();
                let mut failed = None;
                while failed.is_none()
                    && !self.stop.load(Ordering::Relaxed)
                    && let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    let from = mine.blocks.len();
                    failed = self.walk_high(task, dirs, &mut mine).err();
                    (self.found)(mine.blocks.get_mut(from..).unwrap_or_default());
                }
                let mut all = lock(&all);
                all.0.absorb(mine);
                all.1 = all.1.take().or(failed);
            };
            for n in 1..self.threads.min(tasks.len()) {
                // fewer helpers than asked for is only slower
                let _ = thread::Builder::new()
                    .name(format!("kvweir-walk-{n}"))
                    .spawn_scoped(scope, work);
            }
            work();
        });
        let (survey, failed) = all
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        failed.map_or(Ok(survey), Err)
    }

    fn walk_high(&self, task: &Task, dirs: &Dirs, out: &mut Survey) -> Result<()> {
        let Some(stat) = self.look(&task.dir)? else {
            return Ok(());
        };
        let cost = stat.allocated;
        out.dir_bytes += cost;
        self.tell(|| Met::Dir {
            namespace: Some(task.namespace),
            path: &task.dir,
            stat: &stat,
        });
        let Some(entries) = self.entries(&task.dir)? else {
            return Ok(());
        };
        if entries.is_empty() {
            self.tell(|| Met::Empty { path: &task.dir });
        }
        let mut any = false;
        for (name, kind) in entries {
            let path = task.dir.join(&name);
            match name
                .to_str()
                .and_then(parse_leaf)
                .filter(|_| kind == FileKind::Dir)
            {
                Some((low, leaf)) => {
                    let at = (Prefix(task.high << 8 | low), leaf);
                    any |= self.walk_leaf(task.namespace, &task.ns_dir, at, None, dirs, out)?;
                }
                None => self.count_foreign(&path, out)?,
            }
        }
        let prefix = Prefix(task.high << 8);
        if any {
            dirs.found_dir(task.namespace, prefix, None, cost);
        } else if self.watch.is_none() && self.disk.remove_dir(&task.dir).is_ok() {
            // an emptied directory that a crash left behind
            out.dir_bytes -= cost;
        } else {
            out.dir_bytes -= cost;
            out.deep_bytes += cost;
        }
        Ok(())
    }

    /// The name of an entry of the root, if it is a namespace's directory.
    fn namespace<'n>(&self, name: &'n OsStr, kind: FileKind) -> Option<&'n str> {
        let name = name.to_str().filter(|_| kind == FileKind::Dir)?;
        (is_namespace(name) || self.own.iter().any(|o| o.0 == name)).then_some(name)
    }

    /// The entries of a directory; `None`: a watcher was told that it cannot be read.
    pub(crate) fn entries(&self, dir: &Path) -> Result<Option<Vec<(OsString, FileKind)>>> {
        let mut names = Vec::new();
        match self
            .disk
            .list(dir, &mut |name, kind| names.push((name.to_owned(), kind)))
        {
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                self.unreadable(dir, Error::io("list directory", dir.display(), e))?;
                return Ok(None);
            }
            _ => {}
        }
        let mut out = Vec::with_capacity(names.len());
        for (name, kind) in names {
            let kind = match kind {
                Some(k) => k,
                None => self.look(&dir.join(&name))?.map_or(FileKind::Other, |s| s.kind),
            };
            out.push((name, kind));
        }
        Ok(Some(out))
    }

    fn stat(&self, path: &Path) -> Result<Stat> {
        self.disk
            .stat(path)
            .map_err(|e| Error::io("stat", path.display(), e))
    }
}

impl Survey {
    fn absorb(&mut self, other: Self) {
        self.blocks.extend(other.blocks);
        self.swept += other.swept;
        self.foreign_files += other.foreign_files;
        self.common_bytes += other.common_bytes;
        self.deep_bytes += other.deep_bytes;
        self.dir_bytes += other.dir_bytes;
    }
}
