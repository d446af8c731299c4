//! Exclusive ownership of a bounded root: an advisory lock on `.kvweir.lock`, held for the tier's life and gone with
//! the process however it ends. The file names its holder for people; only the lock decides.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    error::{Error, ErrorKind, Result},
    io::{
        Disk, DiskFile,
        disk::{OpenMode, read_full, write_full},
    },
};

/// Name of the file below the root.
pub(crate) const LOCK_FILE: &str = ".kvweir.lock";
/// Name of the directory below the root where kvweir keeps what is no block.
pub(crate) const OWN_DIR: &str = ".kvweir";
const CONTENT_BYTES: usize = 512;

/// The held lock.
#[derive(Debug)]
pub(crate) struct RootLock {
    file: Box<dyn DiskFile>,
}

impl RootLock {
    /// Takes the lock of `root`.
    pub(crate) fn acquire(disk: &dyn Disk, root: &Path) -> Result<Self> {
        let path: PathBuf = root.join(LOCK_FILE);
        let file = disk
            .open(&path, OpenMode::ReadWrite, false)
            .map_err(|e| unusable(disk, root, e))?;
        match file.try_lock() {
            Ok(true) => Ok(Self { file }),
            Ok(false) => {
                let holder = read_holder(&*file).unwrap_or_else(|| "another process".to_owned());
                Err(Error::new(
                    ErrorKind::Busy,
                    "open root",
                    format!(
                        "{} is in use by {holder}; a bounded root has one owner at a time",
                        root.display()
                    ),
                ))
            }
            Err(e) => Err(Error::io("lock root", path.display(), e)),
        }
    }

    /// Writes who holds the lock.
    pub(crate) fn name_holder(&self, pid: u32, host: &str) -> io::Result<()> {
        let mut text = format!("pid {pid} on {host}\n").into_bytes();
        text.truncate(CONTENT_BYTES);
        text.resize(CONTENT_BYTES, b' ');
        write_full(&*self.file, &text, &[])
    }

    /// Whether a holder was written before, that is, whether the file has its block.
    pub(crate) fn has_content(&self) -> bool {
        self.file.stat().is_ok_and(|s| s.len >= CONTENT_BYTES as u64)
    }
}

/// The holder that the file names.
pub(crate) fn read_holder(file: &dyn DiskFile) -> Option<String> {
    let mut buf = [0; CONTENT_BYTES];
    let n = read_full(file, &mut buf, &mut []).ok()?;
    let text = String::from_utf8_lossy(buf.get(..n)?).trim().to_owned();
    (!text.is_empty()).then_some(text)
}

/// The error of a root that cannot be written, with whose it is.
pub(crate) fn unusable(disk: &dyn Disk, root: &Path, e: io::Error) -> Error {
    let whose = disk.stat(root).map_or(String::new(), |s| {
        format!(" (owner uid {}, mode {:04o})", s.uid, s.mode)
    });
    let me = rustix::process::geteuid().as_raw();
    let path = root.display();
    Error::io(
        "open root",
        format!("{path}{whose} cannot be written by uid {me}"),
        e,
    )
    .with_kind(ErrorKind::Invalid)
}

/// This machine's name.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
