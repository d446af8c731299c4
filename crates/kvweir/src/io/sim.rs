//! A file system in memory, for tests: it counts every call and every byte, dies at a chosen call, and loses power.
//!
//! Each call is one step. Sizes are as a plain file system has them: files and directories in blocks of 4096 bytes. The
//! most bytes that were ever allocated are known exactly, so a bound is checked at every step and not by sampling (I1).
//! A process that dies ([`SimDisk::die_at`]) changes nothing from that call on; what it wrote before stays, and its
//! locks end, as under SIGKILL. A power loss ([`SimDisk::lose_power`]) keeps what was synced, and of the rest what
//! chance keeps: files are cut, pages are zero, sectors are as before, renames are undone, names are gone.
//!
//! | file | what it holds |
//! |---|---|
//! | `tree.rs`, `data.rs` | what lies on the disk, and the fault of a chosen step; a file's bytes |
//! | `calls.rs`, `file.rs` | the calls of a disk, and of an open file |
//! | `power.rs` | a power loss |

mod calls;
mod data;
mod file;
mod power;
#[cfg(test)]
mod tests;
mod tree;

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

pub use self::tree::SimFault;
use self::{
    data::BLOCK,
    tree::{Node, Tree},
};
use crate::sync::{Mutex, MutexGuard, lock};

/// The disk. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct SimDisk(Arc<Mutex<Tree>>, u64);

impl SimDisk {
    /// An empty disk with the directory `top`, of `capacity` bytes if any.
    pub fn new(top: &Path, capacity: Option<u64>) -> Self {
        let disk = Self::default();
        {
            let mut t = lock(&disk.0);
            t.capacity = capacity;
            for p in top.ancestors() {
                t.nodes.insert(p.to_owned(), Node::Dir);
            }
        }
        disk
    }

    /// The same disk as the next process finds it: whoever used it before is dead, and its locks are gone.
    #[must_use]
    pub fn next_life(&self) -> Self {
        let mut t = lock(&self.0);
        t.life += 1;
        t.fault = None;
        t.steps = 0;
        t.peak = t.allocated;
        Self(Arc::clone(&self.0), t.life)
    }

    /// The process dies after `steps` calls of this life.
    pub fn die_at(&self, steps: u64) {
        self.fail_at(steps, SimFault::Die);
    }

    /// The call after the first `steps` of this life meets `fault`.
    pub fn fail_at(&self, steps: u64, fault: SimFault) {
        lock(&self.0).fault = Some((steps, fault));
    }

    /// No fault from now on.
    pub fn heal(&self) {
        lock(&self.0).fault = None;
    }

    /// Calls made in this life.
    pub fn steps(&self) -> u64 {
        lock(&self.0).steps
    }

    /// The most bytes that were allocated at any step of this life, and those that are now.
    pub fn bytes(&self) -> (u64, u64) {
        let t = lock(&self.0);
        (t.peak, t.allocated)
    }

    /// Allocated bytes of `path` and all below it, as `du` counts.
    pub fn du(&self, path: &Path) -> u64 {
        let t = lock(&self.0);
        t.nodes
            .iter()
            .filter(|(p, _)| p.starts_with(path))
            .map(|(_, n)| match n {
                Node::Dir => BLOCK,
                Node::File(d) => lock(d).taken(),
            })
            .sum()
    }

    /// Paths of all files below `path`.
    pub fn files(&self, path: &Path) -> Vec<PathBuf> {
        let t = lock(&self.0);
        let files = t
            .nodes
            .iter()
            .filter(|(p, n)| p.starts_with(path) && matches!(n, Node::File(_)));
        files.map(|(p, _)| p.clone()).collect()
    }

    /// Changes the bytes of a file behind everybody's back; `None` removes it. Returns whether it was there.
    pub fn tamper(&self, path: &Path, change: impl FnOnce(Vec<u8>) -> Option<Vec<u8>>) -> bool {
        let mut t = lock(&self.0);
        let Some(Node::File(d)) = t.nodes.get(path).cloned() else {
            return false;
        };
        let mut d = lock(&d);
        let before = d.taken();
        let now = match change(std::mem::take(&mut d.bytes)) {
            Some(bytes) => {
                let len = bytes.len();
                d.bytes = bytes;
                d.resize(len, 0..0);
                d.taken()
            }
            None => {
                t.nodes.remove(path);
                d.unlinked = true;
                0
            }
        };
        t.allocated = t.allocated - before + now;
        true
    }

    fn tree(&self) -> io::Result<MutexGuard<'_, Tree>> {
        self.step(false)
    }

    /// As [`tree`](Self::tree); with `writes`, for a call that writes bytes.
    fn step(&self, writes: bool) -> io::Result<MutexGuard<'_, Tree>> {
        let mut t = lock(&self.0);
        t.step(self.1, writes)?;
        Ok(t)
    }
}
