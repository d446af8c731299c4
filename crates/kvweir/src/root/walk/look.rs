//! What a walk does where it is watched, and where something cannot be looked at.

use std::{ffi::OsStr, io, path::Path};

use super::Walk;
use crate::{
    error::{Error, Result},
    io::disk::{FileKind, Stat},
    root::{names::is_namespace, visitor::Met},
};

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
