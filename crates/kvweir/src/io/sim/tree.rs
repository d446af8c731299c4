//! What lies on the disk, and what happens at a chosen step.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::data::Data;
use crate::sync::Mutex;

pub(super) fn errno(n: i32) -> io::Error {
    io::Error::from_raw_os_error(n)
}
pub(super) const ENOENT: i32 = 2;
pub(super) const EIO: i32 = 5;
pub(super) const EEXIST: i32 = 17;
pub(super) const ENOTDIR: i32 = 20;
pub(super) const EISDIR: i32 = 21;
pub(super) const ENOSPC: i32 = 28;
pub(super) const ENOTEMPTY: i32 = 39;

/// What a path leads to.
#[derive(Debug, Clone)]
pub(super) enum Node {
    Dir,
    File(Arc<Mutex<Data>>),
}

/// What happens at a chosen step.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SimFault {
    /// The process dies: this call and all later ones change nothing.
    Die,
    /// The call fails with this errno and does nothing; the next ones work.
    Once(i32),
    /// All calls fail with this errno from here on.
    From(i32),
    /// A read or write moves one byte; another call fails with EINTR.
    Short,
    /// A bit of what is read or written flips; another call is not disturbed.
    Flip,
    /// A write moves half of its bytes and then fails with this errno; another call fails with it and does nothing.
    Torn(i32),
}

/// All of it.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) nodes: BTreeMap<PathBuf, Node>,
    pub(super) steps: u64,
    pub(super) fault: Option<(u64, SimFault)>,
    /// Processes that use the disk, one after the other.
    pub(super) life: u64,
    pub(super) handles: u64,
    pub(super) clock: i128,
    pub(super) allocated: u64,
    pub(super) peak: u64,
    pub(super) capacity: Option<u64>,
}

impl Tree {
    /// Counts a step; the dead do nothing.
    pub(super) fn step(&mut self, life: u64, writes: bool) -> io::Result<()> {
        if life != self.life {
            return Err(errno(EIO));
        }
        self.steps += 1;
        match self.fault {
            Some((n, SimFault::Die)) if self.steps > n => Err(errno(EIO)),
            Some((n, SimFault::From(e))) if self.steps > n => Err(errno(e)),
            Some((n, SimFault::Once(e))) if self.steps == n + 1 => Err(errno(e)),
            // a write fails by itself, half way
            Some((n, SimFault::Torn(e))) if self.steps == n + 1 && !writes => Err(errno(e)),
            _ => Ok(()),
        }
    }

    /// The fault of the step that is under way, for calls that move bytes.
    pub(super) fn here(&self) -> Option<SimFault> {
        self.fault.filter(|&(n, _)| self.steps == n + 1).map(|(_, f)| f)
    }

    pub(super) fn grow(&mut self, before: u64, now: u64) -> io::Result<()> {
        let after = self.allocated - before + now;
        if now > before && self.capacity.is_some_and(|c| after > c) {
            return Err(errno(ENOSPC));
        }
        self.allocated = after;
        self.peak = self.peak.max(after);
        Ok(())
    }

    /// Makes a file `len` bytes long, `filled` of them no hole.
    pub(super) fn fill(
        &mut self,
        d: &mut Data,
        len: usize,
        filled: std::ops::Range<usize>,
    ) -> io::Result<()> {
        let before = d.taken();
        let (was, holes) = (d.bytes.len(), d.holes.clone());
        d.resize(len, filled);
        let after = d.taken();
        self.grow(before, after).inspect_err(|_| {
            d.bytes.truncate(was);
            d.holes = holes;
        })
    }

    pub(super) fn has_children(&self, path: &Path) -> bool {
        let mut after = self.nodes.range(path.to_owned()..).skip(1);
        after.next().is_some_and(|(p, _)| p.starts_with(path))
    }

    pub(super) fn parent_is_dir(&self, path: &Path) -> io::Result<()> {
        let Some(parent) = path.parent() else {
            return Ok(());
        };
        match self.nodes.get(parent) {
            Some(Node::Dir) => Ok(()),
            Some(_) => Err(errno(ENOTDIR)),
            None => Err(errno(ENOENT)),
        }
    }
}
