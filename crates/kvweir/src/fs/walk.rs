//! The walk at start: everything below the root is counted (I1), blocks are found by name alone, temporaries that
//! are provably ours are swept, every other file is left where it is. First-level directories are shared out among
//! threads. A walk that is watched (by the operator commands) changes nothing, tells what it meets, and goes on where
//! something cannot be read.

use std::{
    io,
    path::{Path, PathBuf},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
    },
};

use super::{
    dirs::Dirs,
    layout::{
        Fan, Leaf, Parsed, is_namespace, leaf_dir, name_fingerprint, parse_file, parse_high, parse_leaf,
    },
    lockfile::{LOCK_FILE, OWN_DIR},
    open::CONFIG_FILE,
    trailer::{TRAILER_BYTES, decode},
};
use crate::{
    block::{Fingerprint, Key},
    error::{Error, Result},
    io::{
        Disk,
        disk::{FileKind, OpenMode, Stat},
        round_up,
    },
    namespace::dir_seed,
    sync::lock,
};

/// What a watched walk meets.
pub(crate) enum Met<'a> {
    /// A namespace's directory and its number; told before anything below any namespace.
    Namespace { number: u16, path: &'a Path },
    /// A directory that belongs to the layout, the root included.
    Dir {
        namespace: Option<u16>,
        path: &'a Path,
        stat: &'a Stat,
    },
    /// A directory of the fan-out without entries.
    Empty { path: &'a Path },
    /// A block file, by its name.
    Block(&'a BlockFile<'a>),
    /// A temporary of ours.
    Temp { path: &'a Path, stat: &'a Stat },
    /// A file or directory of ours that is no block: lock, identity, what lies below `.kvweir`.
    Own { stat: &'a Stat },
    /// A file or directory that is not ours.
    Foreign { path: &'a Path, stat: &'a Stat },
    /// Something that cannot be looked at.
    Unreadable { path: &'a Path, error: &'a Error },
}

/// A block file as a watched walk meets it.
pub(crate) struct BlockFile<'a> {
    pub(crate) namespace: u16,
    pub(crate) dir: &'a Path,
    pub(crate) name: &'a str,
    pub(crate) fan: Fan,
    pub(crate) leaf: Leaf,
    pub(crate) key: Option<Key>,
    pub(crate) stat: Stat,
}

/// Who watches a walk; called by all of its threads.
pub(crate) trait Watch: Sync {
    /// Whether to walk this namespace.
    fn wants(&self, _namespace: &str) -> bool {
        true
    }

    /// Told of everything met.
    fn met(&self, what: Met<'_>);
}

/// A block file found.
#[derive(Debug)]
pub(crate) struct Found {
    pub(crate) fp: Fingerprint,
    pub(crate) namespace: u16,
    pub(crate) leaf: Leaf,
    pub(crate) fan: Fan,
    pub(crate) cost: u64,
    pub(crate) mtime_ns: i128,
    pub(crate) trailer: bool,
    /// Of our namespace, but not of the right size.
    pub(crate) bad: bool,
    pub(crate) key: Option<Key>,
}

/// What lies below a root.
#[derive(Debug, Default)]
pub(crate) struct Survey {
    pub(crate) blocks: Vec<Found>,
    pub(crate) swept: u64,
    pub(crate) foreign_files: u64,
    /// Bytes of everything that is not a block or a directory of the fan-out.
    pub(crate) other_bytes: u64,
    /// Bytes of the fan-out's directories.
    pub(crate) dir_bytes: u64,
}

/// What a walk needs to know.
pub(crate) struct Walk<'a> {
    pub(crate) disk: &'a dyn Disk,
    pub(crate) root: &'a Path,
    /// Our own namespace's directory name: number 0.
    pub(crate) own: &'a str,
    pub(crate) block_len: u64,
    pub(crate) fs_block: u64,
    pub(crate) want_keys: bool,
    pub(crate) threads: usize,
    /// Who is told of everything met; then nothing is swept, removed or listed in the survey.
    pub(crate) watch: Option<&'a dyn Watch>,
}

/// A first-level directory to walk.
struct Task {
    namespace: u16,
    dir: PathBuf,
    high: u32,
}

impl Walk<'_> {
    /// Walks the root. Returns what was found and the directories of all namespaces, ours first.
    pub(crate) fn run(&self, dirs: &Dirs) -> Result<(Survey, Vec<PathBuf>)> {
        let mut survey = Survey::default();
        let mut namespaces = vec![self.root.join(self.own)];
        let mut tasks = Vec::new();
        let stat = self.stat(self.root)?;
        survey.other_bytes += stat.allocated;
        self.tell(|| Met::Dir {
            namespace: None,
            path: self.root,
            stat: &stat,
        });
        for (name, kind) in self.entries(self.root)?.unwrap_or_default() {
            let path = self.root.join(&name);
            if kind != FileKind::Dir || !is_namespace(&name) && name != self.own {
                self.count_foreign(&path, &mut survey)?;
                continue;
            }
            let number = if name == self.own {
                Some(0)
            } else {
                u16::try_from(namespaces.len()).ok()
            };
            let Some(number) = number.filter(|&n| n < 1 << 11) else {
                self.count_foreign(&path, &mut survey)?;
                continue;
            };
            if number > 0 {
                namespaces.push(path.clone());
            }
            if self.watch.is_some_and(|w| !w.wants(&name)) {
                continue;
            }
            let Some(stat) = self.look(&path)? else { continue };
            survey.other_bytes += stat.allocated;
            dirs.found_top(number, stat.allocated);
            self.tell(|| Met::Namespace { number, path: &path });
            self.tell(|| Met::Dir {
                namespace: Some(number),
                path: &path,
                stat: &stat,
            });
            for (name, kind) in self.entries(&path)?.unwrap_or_default() {
                match parse_high(&name).filter(|_| kind == FileKind::Dir) {
                    Some(high) => tasks.push(Task {
                        namespace: number,
                        dir: path.join(&name),
                        high,
                    }),
                    None => self.count_foreign(&path.join(&name), &mut survey)?,
                }
            }
        }
        let next = AtomicUsize::new(0);
        let all = Mutex::new((survey, None));
        std::thread::scope(|scope| {
            let work = || {
                let mut mine = Survey::default();
                let mut failed = None;
                while failed.is_none()
                    && let Some(task) = tasks.get(next.fetch_add(1, Ordering::Relaxed))
                {
                    failed = self.walk_high(task, &namespaces, dirs, &mut mine).err();
                }
                let mut all = lock(&all);
                all.0.absorb(mine);
                all.1 = all.1.take().or(failed);
            };
            for n in 1..self.threads.min(tasks.len()) {
                // fewer helpers than asked for is only slower
                let _ = std::thread::Builder::new()
                    .name(format!("kvweir-walk-{n}"))
                    .spawn_scoped(scope, work);
            }
            work();
        });
        let (survey, failed) = all
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        failed.map_or(Ok((survey, namespaces)), Err)
    }

    fn walk_high(&self, task: &Task, namespaces: &[PathBuf], dirs: &Dirs, out: &mut Survey) -> Result<()> {
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
            match parse_leaf(&name).filter(|_| kind == FileKind::Dir) {
                Some((low, leaf)) => {
                    any = true;
                    let ns = namespaces
                        .get(usize::from(task.namespace))
                        .map_or(Path::new(""), PathBuf::as_path);
                    self.walk_leaf(task.namespace, ns, Fan(task.high << 8 | low), leaf, dirs, out)?;
                }
                None => self.count_foreign(&path, out)?,
            }
        }
        let fan = Fan(task.high << 8);
        if any {
            dirs.found_dir(task.namespace, fan, None, cost);
        } else if self.watch.is_none() && self.disk.remove_dir(&task.dir).is_ok() {
            // an emptied directory that a crash left behind
            out.dir_bytes -= cost;
        } else {
            out.dir_bytes -= cost;
            out.other_bytes += cost;
        }
        Ok(())
    }

    fn walk_leaf(
        &self,
        ns: u16,
        ns_dir: &Path,
        fan: Fan,
        leaf: Leaf,
        dirs: &Dirs,
        out: &mut Survey,
    ) -> Result<()> {
        let dir = leaf_dir(ns_dir, fan, leaf);
        let Some(stat) = self.look(&dir)? else {
            return Ok(());
        };
        let cost = stat.allocated;
        self.tell(|| Met::Dir {
            namespace: Some(ns),
            path: &dir,
            stat: &stat,
        });
        let seed = dir_seed(
            &ns_dir
                .file_name()
                .map(|n| n.to_string_lossy())
                .unwrap_or_default(),
        );
        let Some(entries) = self.entries(&dir)? else {
            return Ok(());
        };
        if entries.is_empty() {
            self.tell(|| Met::Empty { path: &dir });
        }
        let mut blocks = 0;
        for (name, kind) in entries {
            let path = dir.join(&name);
            match parse_file(&name, fan, leaf) {
                Parsed::Temp if kind == FileKind::File && self.watch.is_some() => {
                    if let Some(stat) = self.look(&path)? {
                        self.tell(|| Met::Temp {
                            path: &path,
                            stat: &stat,
                        });
                    }
                }
                Parsed::Block(key) if kind == FileKind::File && self.watch.is_some() => {
                    blocks += 1;
                    if let (Some(watch), Some(stat)) = (self.watch, self.look(&path)?) {
                        watch.met(Met::Block(&BlockFile {
                            namespace: ns,
                            dir: &dir,
                            name: &name,
                            fan,
                            leaf,
                            key,
                            stat,
                        }));
                    }
                }
                Parsed::Temp if kind == FileKind::File => match self.disk.remove_file(&path) {
                    Err(e) if e.kind() != io::ErrorKind::NotFound => {
                        return Err(Error::io("sweep leftover temporary", path.display(), e));
                    }
                    _ => out.swept += 1,
                },
                Parsed::Block(key) if kind == FileKind::File => {
                    let Some(fp) = name_fingerprint(&name, fan, leaf, seed) else {
                        continue;
                    };
                    let Some(stat) = self.look(&path)? else {
                        continue;
                    };
                    let whole = self.block_len + TRAILER_BYTES as u64;
                    let right = stat.len == self.block_len || stat.len == whole;
                    let key = match key {
                        None if ns == 0 && self.want_keys => self.key_in_trailer(&path),
                        k => k,
                    };
                    blocks += 1;
                    dirs.found_file(ns, fan, leaf);
                    out.blocks.push(Found {
                        fp,
                        namespace: ns,
                        leaf,
                        fan,
                        cost: stat.allocated.max(round_up(stat.len, self.fs_block)),
                        mtime_ns: stat.mtime_ns,
                        trailer: stat.len == whole,
                        bad: ns == 0 && !right,
                        key: key.filter(|_| ns == 0),
                    });
                }
                _ => self.count_foreign(&path, out)?,
            }
        }
        if blocks == 0 && self.watch.is_none() && self.disk.remove_dir(&dir).is_ok() {
            return Ok(());
        }
        out.dir_bytes += cost;
        dirs.found_dir(ns, fan, Some(leaf), cost);
        Ok(())
    }

    /// Counts a file or a whole directory that is not ours, at the larger of length and allocation.
    fn count_foreign(&self, path: &Path, out: &mut Survey) -> Result<()> {
        let mut stack = vec![path.to_owned()];
        // below it lies what kvweir keeps beside the blocks
        let ours = path == self.root.join(OWN_DIR);
        while let Some(p) = stack.pop() {
            let Some(stat) = self.look(&p)? else {
                continue;
            };
            let own_file = || p.file_name().is_some_and(|n| n == LOCK_FILE || n == CONFIG_FILE);
            let own = ours || own_file() || stat.kind == FileKind::Dir && self.is_config_dir(&p);
            self.tell(|| match own {
                true => Met::Own { stat: &stat },
                false => Met::Foreign {
                    path: &p,
                    stat: &stat,
                },
            });
            match stat.kind {
                FileKind::Dir => {
                    out.other_bytes += stat.allocated;
                    match self.disk.list(&p, &mut |name, _| stack.push(p.join(name))) {
                        // somebody else's (`lost+found` of a mount point): counted as far as it can be seen
                        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                            tracing::warn!(dir = %p.display(), %error, "a foreign directory cannot be read");
                            out.foreign_files += 1;
                        }
                        Err(e) if e.kind() != io::ErrorKind::NotFound => {
                            self.unreadable(&p, Error::io("list directory", p.display(), e))?;
                        }
                        _ => {}
                    }
                }
                FileKind::File => {
                    out.foreign_files += u64::from(!own);
                    out.other_bytes += stat.allocated.max(round_up(stat.len, self.fs_block));
                }
                FileKind::Other => out.other_bytes += stat.allocated,
            }
        }
        Ok(())
    }

    fn key_in_trailer(&self, path: &Path) -> Option<Key> {
        let file = self.disk.open(path, OpenMode::Read, false).ok()?;
        let mut page = [0; TRAILER_BYTES];
        let n = file
            .read_at(&mut [io::IoSliceMut::new(&mut page)], self.block_len)
            .ok()?;
        decode(page.get(..n)?).map(|t| t.key)
    }

    /// The entries of a directory; `None`: a watcher was told that it cannot be read.
    fn entries(&self, dir: &Path) -> Result<Option<Vec<(String, FileKind)>>> {
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

    fn tell<'m>(&self, what: impl FnOnce() -> Met<'m>) {
        if let Some(w) = self.watch {
            w.met(what());
        }
    }

    /// Tells a watcher; without one, it is the end of the walk.
    fn unreadable(&self, path: &Path, error: Error) -> Result<()> {
        let Some(w) = self.watch else { return Err(error) };
        w.met(Met::Unreadable { path, error: &error });
        Ok(())
    }

    /// What lies at `path`; `None`: it is gone, or a watcher was told that it cannot be looked at.
    fn look(&self, path: &Path) -> Result<Option<Stat>> {
        match self.disk.stat(path) {
            Ok(s) => Ok(Some(s)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => self
                .unreadable(path, Error::io("stat", path.display(), e))
                .map(|()| None),
        }
    }

    /// Whether `path` is the directory, just below the root, of a namespace's identity.
    fn is_config_dir(&self, path: &Path) -> bool {
        path.parent() == Some(self.root)
            && path
                .file_name()
                .and_then(|n| n.to_str())
                .is_some_and(|n| is_namespace(&format!("{n}_r0")))
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
        self.other_bytes += other.other_bytes;
        self.dir_bytes += other.dir_bytes;
    }
}
