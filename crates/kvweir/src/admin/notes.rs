//! What a command notes of what runs out: file descriptors and memory.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, Result},
    sync::{
        Mutex,
        atomic::{AtomicBool, Ordering},
        lock,
    },
};

/// EMFILE, ENFILE and ENOMEM.
pub(crate) const SPENT: [i32; 3] = [24, 23, 12];

/// Whether file descriptors or memory ran out.
pub(crate) fn is_spent(e: &io::Error) -> bool {
    e.kind() == io::ErrorKind::OutOfMemory || e.raw_os_error().is_some_and(|n| SPENT.contains(&n))
}

/// The first such error of a command.
#[derive(Debug, Default)]
pub(crate) struct Notes {
    first: Mutex<Option<(PathBuf, i32)>>,
    stop: AtomicBool,
}

impl Notes {
    /// Notes an error if it is one of these.
    pub(crate) fn note(&self, path: &Path, e: &io::Error) {
        if is_spent(e) {
            let code = e.raw_os_error().unwrap_or(SPENT[2]);
            lock(&self.first).get_or_insert_with(|| (path.to_owned(), code));
            self.stop.store(true, Ordering::Release);
        }
    }

    /// Ends walks when something was noted.
    pub(crate) fn stop(&self) -> &AtomicBool {
        &self.stop
    }

    /// The error noted; `far` tells how far the command came.
    pub(crate) fn check(&self, op: &'static str, far: &str) -> Result<()> {
        match &*lock(&self.first) {
            None => Ok(()),
            Some((path, code)) => {
                let what = format!("{}{far}", path.display());
                Err(Error::io(op, what, io::Error::from_raw_os_error(*code)))
            }
        }
    }
}
