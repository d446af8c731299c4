//! A walk that is watched, by the operator commands: it changes nothing, tells what it meets, and goes on where
//! something cannot be read.

use std::{ffi::OsStr, io, path::Path};

use super::{
    layout::{Fan, Leaf, is_namespace},
    walk::Walk,
};
use crate::{
    block::{Fingerprint, Key},
    error::{Error, Result},
    io::disk::{FileKind, Stat},
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
    /// A file or directory of ours that is no block: identity, what lies below `.kvweir`.
    Own { path: &'a Path, stat: &'a Stat },
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
    pub(crate) fp: Fingerprint,
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

impl Walk<'_> {
    pub(crate) fn tell<'m>(&self, what: impl FnOnce() -> Met<'m>) {
        if let Some(w) = self.watch {
            w.met(what());
        }
    }

    /// Tells a watcher; without one, it is the end of the walk.
    pub(crate) fn unreadable(&self, path: &Path, error: Error) -> Result<()> {
        let Some(w) = self.watch else { return Err(error) };
        w.met(Met::Unreadable { path, error: &error });
        Ok(())
    }

    /// What lies at `path`; `None`: it is gone, or a watcher was told that it cannot be looked at.
    pub(crate) fn look(&self, path: &Path) -> Result<Option<Stat>> {
        match self.disk.stat(path) {
            Ok(s) => Ok(Some(s)),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => self
                .unreadable(path, Error::io("stat", path.display(), e))
                .map(|()| None),
        }
    }

    /// Bytes of what lies below a directory in the state directory, where nothing of ours does; a watcher is told.
    pub(crate) fn own_below(&self, dir: &Path) -> Result<u64> {
        let mut bytes = 0;
        let mut stack = vec![dir.to_owned()];
        while let Some(d) = stack.pop() {
            for (name, _) in self.entries(&d)?.unwrap_or_default() {
                let path = d.join(name);
                let Some(stat) = self.look(&path)? else { continue };
                self.tell(|| Met::Own {
                    path: &path,
                    stat: &stat,
                });
                bytes += match stat.kind {
                    FileKind::File => stat.counted(self.fs_block),
                    FileKind::Dir | FileKind::Other => stat.allocated,
                };
                if stat.kind == FileKind::Dir {
                    stack.push(path);
                }
            }
        }
        Ok(bytes)
    }

    /// Whether `path` is the directory, just below the root, of a namespace's identity.
    pub(crate) fn is_config_dir(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(OsStr::to_str);
        path.parent() == Some(self.root) && name.is_some_and(|n| is_namespace(&format!("{n}_r0")))
    }
}
