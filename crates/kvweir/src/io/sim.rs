//! A file system in memory, for tests: it counts every call and every byte, dies at a chosen call, and loses power.
//!
//! Each call is one step. Sizes are as a plain file system has them: files and directories in blocks of 4096 bytes. The
//! most bytes that were ever allocated are known exactly, so a bound is checked at every step and not by sampling (I1).
//! A process that dies ([`SimDisk::die_at`]) changes nothing from that call on; what it wrote before stays, and its
//! locks end, as under SIGKILL. A power loss ([`SimDisk::lose_power`]) keeps what was synced, and of the rest what
//! chance keeps: files are cut, pages are zero, sectors are as before, renames are undone, names are gone.

mod data;
#[cfg(test)]
mod tests;

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io::{self, IoSlice, IoSliceMut},
    path::{Path, PathBuf},
    sync::Arc,
};

use self::data::Data;
use super::{
    PAGE,
    disk::{Disk, DiskFile, FileKind, OpenMode, Space, Stat},
};
use crate::{
    io::sim::data::BLOCK,
    sync::{Mutex, MutexGuard, lock},
};

/// What a device writes whole.
const SECTOR: usize = 512;

#[derive(Debug, Clone)]
enum Node {
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

#[derive(Debug, Default)]
struct Tree {
    nodes: BTreeMap<PathBuf, Node>,
    steps: u64,
    fault: Option<(u64, SimFault)>,
    /// Processes that use the disk, one after the other.
    life: u64,
    handles: u64,
    clock: i128,
    allocated: u64,
    peak: u64,
    capacity: Option<u64>,
}

/// The disk. Clones share it.
#[derive(Debug, Clone, Default)]
pub struct SimDisk(Arc<Mutex<Tree>>, u64);

fn errno(n: i32) -> io::Error {
    io::Error::from_raw_os_error(n)
}
const ENOENT: i32 = 2;
const EIO: i32 = 5;
const EEXIST: i32 = 17;
const ENOTDIR: i32 = 20;
const EISDIR: i32 = 21;
const ENOSPC: i32 = 28;
const ENOTEMPTY: i32 = 39;

impl Tree {
    /// Counts a step; the dead do nothing.
    fn step(&mut self, life: u64, writes: bool) -> io::Result<()> {
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
    fn here(&self) -> Option<SimFault> {
        self.fault.filter(|&(n, _)| self.steps == n + 1).map(|(_, f)| f)
    }

    fn grow(&mut self, before: u64, now: u64) -> io::Result<()> {
        let after = self.allocated - before + now;
        if now > before && self.capacity.is_some_and(|c| after > c) {
            return Err(errno(ENOSPC));
        }
        self.allocated = after;
        self.peak = self.peak.max(after);
        Ok(())
    }

    /// Makes a file `len` bytes long, `filled` of them no hole.
    fn fill(&mut self, d: &mut Data, len: usize, filled: std::ops::Range<usize>) -> io::Result<()> {
        let before = d.taken();
        let (was, holes) = (d.bytes.len(), d.holes.clone());
        d.resize(len, filled);
        let after = d.taken();
        self.grow(before, after).inspect_err(|_| {
            d.bytes.truncate(was);
            d.holes = holes;
        })
    }

    fn has_children(&self, path: &Path) -> bool {
        let mut after = self.nodes.range(path.to_owned()..).skip(1);
        after.next().is_some_and(|(p, _)| p.starts_with(path))
    }

    fn parent_is_dir(&self, path: &Path) -> io::Result<()> {
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

    /// The power fails and comes back: what was not synced is kept, cut, zeroed, put back under its old name or gone,
    /// as `chance` says (a number below its argument).
    pub fn lose_power(&self, chance: &mut dyn FnMut(u64) -> u64) {
        let mut t = lock(&self.0);
        let files: Vec<(PathBuf, Arc<Mutex<Data>>)> = t
            .nodes
            .iter()
            .filter_map(|(p, n)| match n {
                Node::File(d) => Some((p.clone(), Arc::clone(d))),
                Node::Dir => None,
            })
            .collect();
        for (path, data) in files {
            let mut d = lock(&data);
            d.lock = None;
            if d.synced.as_ref() == Some(&d.bytes) {
                continue;
            }
            let before = d.taken();
            let mut gone = false;
            match chance(8) {
                0 => gone = true,
                1 => {
                    let keep = chance(d.bytes.len() as u64 + 1) as usize;
                    d.resize(keep, 0..0);
                }
                2 => {
                    let pages = d.bytes.len().div_ceil(4096) as u64;
                    let at = chance(pages.max(1)) as usize * 4096;
                    d.bytes.iter_mut().skip(at).take(4096).for_each(|b| *b = 0);
                }
                3 => {
                    if let Some(old) = d.renamed_from.take() {
                        t.nodes.remove(&path);
                        t.nodes.insert(old, Node::File(Arc::clone(&data)));
                    }
                }
                // sectors written anew are as they were before
                4 => {
                    let before = std::mem::take(&mut d.before);
                    for (page, old) in before {
                        let keeps = chance(256);
                        let Some(now) = d.bytes.get_mut(page * PAGE..) else {
                            continue;
                        };
                        let sectors = now.chunks_mut(SECTOR).zip(old.chunks(SECTOR));
                        for (n, (now, old)) in sectors.enumerate() {
                            if keeps >> n & 1 == 0
                                && let Some(now) = now.get_mut(..old.len())
                            {
                                now.copy_from_slice(old);
                            }
                        }
                    }
                }
                _ => {}
            }
            d.before.clear();
            let now = if gone { 0 } else { d.taken() };
            if gone {
                t.nodes.remove(&path);
            }
            t.allocated = t.allocated - before + now;
        }
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

#[derive(Debug)]
struct SimFile {
    disk: SimDisk,
    data: Arc<Mutex<Data>>,
    handle: u64,
}

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode, _direct: bool) -> io::Result<Box<dyn DiskFile>> {
        let mut t = self.tree()?;
        t.parent_is_dir(path)?;
        let data = match (t.nodes.get(path), mode) {
            (Some(Node::Dir), _) => return Err(errno(EISDIR)),
            (Some(Node::File(_)), OpenMode::CreateNew) => return Err(errno(EEXIST)),
            (Some(Node::File(d)), _) => Arc::clone(d),
            (None, OpenMode::Read | OpenMode::Existing) => return Err(errno(ENOENT)),
            (None, _) => {
                t.clock += 1;
                let d = Arc::new(Mutex::new(Data {
                    mtime_ns: t.clock,
                    ..Data::default()
                }));
                t.nodes.insert(path.to_owned(), Node::File(Arc::clone(&d)));
                d
            }
        };
        t.handles += 1;
        let handle = t.handles;
        Ok(Box::new(SimFile {
            disk: self.clone(),
            data,
            handle,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut t = self.tree()?;
        t.parent_is_dir(to)?;
        let Some(node) = t.nodes.remove(from) else {
            return Err(errno(ENOENT));
        };
        if let Node::File(d) = &node {
            lock(d).renamed_from = Some(from.to_owned());
        }
        if let Some(Node::File(old)) = t.nodes.insert(to.to_owned(), node) {
            let mut old = lock(&old);
            old.unlinked = true;
            t.allocated -= old.taken();
        }
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut t = self.tree()?;
        match t.nodes.get(path) {
            None => Err(errno(ENOENT)),
            Some(Node::Dir) => Err(errno(EISDIR)),
            Some(Node::File(d)) => {
                let freed = {
                    let mut d = lock(d);
                    d.unlinked = true;
                    d.taken()
                };
                t.nodes.remove(path);
                t.allocated -= freed;
                Ok(())
            }
        }
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut t = self.tree()?;
        if t.nodes.contains_key(path) {
            return Err(errno(EEXIST));
        }
        t.parent_is_dir(path)?;
        t.grow(0, BLOCK)?;
        t.nodes.insert(path.to_owned(), Node::Dir);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut t = self.tree()?;
        match t.nodes.get(path) {
            None => Err(errno(ENOENT)),
            Some(Node::File(_)) => Err(errno(ENOTDIR)),
            Some(Node::Dir) if t.has_children(path) => Err(errno(ENOTEMPTY)),
            Some(Node::Dir) => {
                t.nodes.remove(path);
                t.allocated -= BLOCK;
                Ok(())
            }
        }
    }

    fn list(&self, path: &Path, each: &mut dyn FnMut(&OsStr, Option<FileKind>)) -> io::Result<()> {
        let found: Vec<(OsString, FileKind)> = {
            let t = self.tree()?;
            match t.nodes.get(path) {
                Some(Node::Dir) => {}
                Some(Node::File(_)) => return Err(errno(ENOTDIR)),
                None => return Err(errno(ENOENT)),
            }
            t.nodes
                .range(path.to_owned()..)
                .skip(1)
                .take_while(|(p, _)| p.starts_with(path))
                .filter(|(p, _)| p.parent() == Some(path))
                .map(|(p, n)| {
                    let name = p.file_name().unwrap_or_default().to_owned();
                    let kind = match n {
                        Node::Dir => FileKind::Dir,
                        Node::File(_) => FileKind::File,
                    };
                    (name, kind)
                })
                .collect()
        };
        found.iter().for_each(|(name, kind)| each(name, Some(*kind)));
        Ok(())
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        let t = self.tree()?;
        match t.nodes.get(path) {
            None => Err(errno(ENOENT)),
            Some(Node::File(d)) => Ok(stat_of(&lock(d))),
            Some(Node::Dir) => Ok(Stat {
                len: BLOCK,
                allocated: BLOCK,
                mtime_ns: 0,
                kind: FileKind::Dir,
                uid: 0,
                mode: 0o700,
                links: 2,
            }),
        }
    }

    fn sync_all(&self, path: &Path) -> io::Result<()> {
        let t = self.tree()?;
        for (_, node) in t.nodes.iter().filter(|(p, _)| p.starts_with(path)) {
            if let Node::File(d) = node {
                lock(d).sync();
            }
        }
        Ok(())
    }

    fn space(&self, _path: &Path) -> io::Result<Space> {
        let t = self.tree()?;
        let total = t.capacity.unwrap_or(1 << 50);
        Ok(Space {
            total,
            available: total.saturating_sub(t.allocated),
            block: BLOCK,
        })
    }
}

fn stat_of(d: &Data) -> Stat {
    Stat {
        len: d.bytes.len() as u64,
        allocated: d.taken(),
        mtime_ns: d.mtime_ns,
        kind: FileKind::File,
        uid: 0,
        mode: 0o600,
        links: u64::from(!d.unlinked),
    }
}

impl DiskFile for SimFile {
    fn read_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        let t = self.disk.tree()?;
        let d = lock(&self.data);
        let mut left = d.bytes.get(offset as usize..).unwrap_or_default();
        let here = t.here();
        if here == Some(SimFault::Short) {
            left = left.get(..1.min(left.len())).unwrap_or_default();
        }
        let mut done = 0;
        for b in bufs {
            let n = b.len().min(left.len());
            let (now, rest) = left.split_at(n);
            if let Some(to) = b.get_mut(..n) {
                to.copy_from_slice(now);
            }
            if here == Some(SimFault::Flip)
                && done == 0
                && let Some(byte) = b.first_mut()
            {
                *byte ^= 4;
            }
            left = rest;
            done += n;
        }
        Ok(done)
    }

    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        let mut t = self.disk.step(true)?;
        let mut d = lock(&self.data);
        let mut all: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        match (t.here(), all.first_mut()) {
            (Some(SimFault::Short), _) => all.truncate(1),
            (Some(SimFault::Flip), Some(byte)) => *byte ^= 4,
            (Some(SimFault::Torn(_)), _) => all.truncate(all.len() / 2),
            _ => {}
        }
        let end = offset as usize + all.len();
        let now = d.bytes.len().max(end);
        t.fill(&mut d, now, offset as usize..end)?;
        d.keep_before(offset as usize..end);
        if let Some(to) = d.bytes.get_mut(offset as usize..end) {
            to.copy_from_slice(&all);
        }
        t.clock += 1;
        d.mtime_ns = t.clock;
        match t.here() {
            Some(SimFault::Torn(e)) => Err(errno(e)),
            _ => Ok(all.len()),
        }
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut t = self.disk.tree()?;
        let mut d = lock(&self.data);
        let now = d.bytes.len().max(len as usize);
        t.fill(&mut d, now, 0..len as usize)
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        let mut t = self.disk.tree()?;
        let mut d = lock(&self.data);
        t.fill(&mut d, len as usize, 0..0)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let mut t = self.disk.tree()?;
        let mut d = lock(&self.data);
        let (from, end) = (offset as usize, (offset + len).min(d.bytes.len() as u64) as usize);
        d.keep_before(from..end);
        if let Some(bytes) = d.bytes.get_mut(from..end) {
            bytes.fill(0);
        }
        let before = d.taken();
        d.holes.extend(from.div_ceil(PAGE)..end / PAGE);
        t.allocated = t.allocated - before + d.taken();
        Ok(())
    }

    fn set_modified(&self, unix_ns: u64) -> io::Result<()> {
        let _t = self.disk.tree()?;
        lock(&self.data).mtime_ns = i128::from(unix_ns);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let _t = self.disk.tree()?;
        lock(&self.data).sync();
        Ok(())
    }

    fn stat(&self) -> io::Result<Stat> {
        let _t = self.disk.tree()?;
        Ok(stat_of(&lock(&self.data)))
    }

    fn try_lock(&self) -> io::Result<bool> {
        let t = self.disk.tree()?;
        let mut d = lock(&self.data);
        let free = d.lock.is_none_or(|(h, life)| h == self.handle || life != t.life);
        if free {
            d.lock = Some((self.handle, t.life));
        }
        Ok(free)
    }
}

impl Drop for SimFile {
    fn drop(&mut self) {
        let mut d = lock(&self.data);
        if d.lock.is_some_and(|(h, _)| h == self.handle) {
            d.lock = None;
        }
    }
}
