//! Directories made and removed on disk.

use std::{io, path::Path};

use crate::io::Disk;

/// Directories from a leaf up to the root, both included.
const LEVELS: usize = 4;

pub(super) fn gone(r: io::Result<()>) -> bool {
    match r {
        Ok(()) => true,
        Err(e) => e.kind() == io::ErrorKind::NotFound,
    }
}

/// Makes `path` and, where missing, those above it, the root included; an existing directory is fine. Returns how many
/// were made.
pub(super) fn make_dir(disk: &dyn Disk, path: &Path) -> io::Result<usize> {
    let mut missing = Vec::new();
    let mut made = 0;
    for p in path.ancestors().take(LEVELS) {
        match disk.create_dir(p) {
            Ok(()) => made += 1,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) if e.kind() == io::ErrorKind::NotFound && missing.len() + 1 < LEVELS => {
                missing.push(p);
                continue;
            }
            Err(e) => return Err(e),
        }
        break;
    }
    for p in missing.into_iter().rev() {
        match disk.create_dir(p) {
            Ok(()) => made += 1,
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
            Err(e) => return Err(e),
        }
    }
    Ok(made)
}
