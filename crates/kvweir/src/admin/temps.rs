//! Temporaries of operator commands: under names that nobody has, so that neither what a killed run left nor what
//! somebody writes is in the way or removed.

use std::{
    io,
    path::{Path, PathBuf},
};

use crate::{
    io::{Disk, DiskFile, disk::OpenMode},
    root::names::temp_name,
    sync::atomic::{AtomicU64, Ordering},
};

/// Numbers of temporaries.
#[derive(Debug)]
pub(super) struct Temps(AtomicU64);

impl Temps {
    /// Those of a command that began at this time.
    pub(super) fn new(unix_seconds: u64) -> Self {
        Self(AtomicU64::new(
            u64::from(std::process::id()) << 40 ^ unix_seconds << 20,
        ))
    }

    /// Makes one of a file to be named `name` in `dir`, and locks it, which tells a sweeper that it is being written;
    /// file systems without locks do without.
    pub(super) fn create(
        &self,
        disk: &dyn Disk,
        dir: &Path,
        name: &str,
        direct: bool,
    ) -> io::Result<(PathBuf, Box<dyn DiskFile>)> {
        loop {
            let temp = dir.join(temp_name(name, self.0.fetch_add(1, Ordering::Relaxed)));
            match disk.open(&temp, OpenMode::CreateNew, direct) {
                Ok(file) => {
                    let _ = file.try_lock();
                    return Ok((temp, file));
                }
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) => {
                    // some file systems make the file before refusing the flag
                    let _ = disk.remove_file(&temp);
                    return Err(e);
                }
            }
        }
    }
}
