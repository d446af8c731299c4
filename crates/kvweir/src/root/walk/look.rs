//! What a walk does where it is watched, and where something cannot be looked at.

use std::{io, path::Path};

use super::Walk;
use crate::{
    error::{Error, Result},
    io::disk::Stat,
    root::visitor::Met,
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
}
