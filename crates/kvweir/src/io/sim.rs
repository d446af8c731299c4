//! A file system in memory, for tests: it counts every call and every byte, dies at a chosen call, and loses power.
//!
//! Each call is one step. Sizes are as a plain file system has them: files and directories in blocks of 4096 bytes. The
//! most bytes that were ever allocated are known exactly, so a bound is checked at every step and not by sampling (I1).
//! A process that dies ([`SimDisk::die_at`]) changes nothing from that call on; what it wrote before stays, and its
//! locks end, as under SIGKILL. A power loss ([`SimDisk::lose_power`]) keeps what was synced, and of the rest what
//! chance keeps: files are cut, pages are zero, sectors are as before, renames are undone, names are gone.

use std::{
    collections::BTreeMap,
    ffi::{OsStr, OsString},
    io::{self, IoSlice, IoSliceMut},
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    PAGE,
    disk::{Disk, DiskFile, FileKind, OpenMode, Space, Stat},
    round_up,
};
use crate::sync::{Mutex, MutexGuard, lock};

/// The unit of allocation.
const BLOCK: u64 = 4096;
/// What a device writes whole.
const SECTOR: usize = 512;

/// A file's bytes, shared by its name and the handles that are open.
#[derive(Debug, Default)]
struct Data {
    bytes: Vec<u8>,
    /// What would survive a power loss.
    synced: Option<Vec<u8>>,
    /// Pages written since, as they were before.
    before: BTreeMap<usize, Vec<u8>>,
    mtime_ns: i128,
    /// The handle that holds the lock, with the life of the process that took it.
    lock: Option<(u64, u64)>,
    /// The name before the last rename.
    renamed_from: Option<PathBuf>,
}

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
    fn step(&mut self, life: u64) -> io::Result<()> {
        if life != self.life {
            return Err(errno(EIO));
        }
        self.steps += 1;
        match self.fault {
            Some((n, SimFault::Die)) if self.steps > n => Err(errno(EIO)),
            Some((n, SimFault::From(e))) if self.steps > n => Err(errno(e)),
            Some((n, SimFault::Once(e))) if self.steps == n + 1 => Err(errno(e)),
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

fn size(len: usize) -> u64 {
    round_up(len as u64, BLOCK)
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
                Node::File(d) => size(lock(d).bytes.len()),
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
        let before = size(d.bytes.len());
        let now = match change(std::mem::take(&mut d.bytes)) {
            Some(bytes) => {
                d.bytes = bytes;
                size(d.bytes.len())
            }
            None => {
                t.nodes.remove(path);
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
            let before = size(d.bytes.len());
            let mut gone = false;
            match chance(8) {
                0 => gone = true,
                1 => {
                    let keep = chance(d.bytes.len() as u64 + 1) as usize;
                    d.bytes.truncate(keep);
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
            let now = if gone { 0 } else { size(d.bytes.len()) };
            if gone {
                t.nodes.remove(&path);
            }
            t.allocated = t.allocated - before + now;
        }
    }

    fn tree(&self) -> io::Result<MutexGuard<'_, Tree>> {
        let mut t = lock(&self.0);
        t.step(self.1)?;
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
            (None, OpenMode::Read) => return Err(errno(ENOENT)),
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
            let freed = size(lock(&old).bytes.len());
            t.allocated -= freed;
        }
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut t = self.tree()?;
        match t.nodes.get(path) {
            None => Err(errno(ENOENT)),
            Some(Node::Dir) => Err(errno(EISDIR)),
            Some(Node::File(d)) => {
                let freed = size(lock(d).bytes.len());
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
            }),
        }
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
        allocated: size(d.bytes.len()),
        mtime_ns: d.mtime_ns,
        kind: FileKind::File,
        uid: 0,
        mode: 0o600,
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
        let mut t = self.disk.tree()?;
        let mut d = lock(&self.data);
        let mut all: Vec<u8> = bufs.iter().flat_map(|b| b.iter().copied()).collect();
        match (t.here(), all.first_mut()) {
            (Some(SimFault::Short), _) => all.truncate(1),
            (Some(SimFault::Flip), Some(byte)) => *byte ^= 4,
            _ => {}
        }
        let end = offset as usize + all.len();
        let now = d.bytes.len().max(end);
        t.grow(size(d.bytes.len()), size(now))?;
        d.bytes.resize(now, 0);
        for page in offset as usize / PAGE..end.div_ceil(PAGE) {
            let old = d.bytes.get(page * PAGE..now.min((page + 1) * PAGE));
            let old = old.unwrap_or_default().to_vec();
            d.before.entry(page).or_insert(old);
        }
        if let Some(to) = d.bytes.get_mut(offset as usize..end) {
            to.copy_from_slice(&all);
        }
        t.clock += 1;
        d.mtime_ns = t.clock;
        Ok(all.len())
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        let mut t = self.disk.tree()?;
        let mut d = lock(&self.data);
        let now = d.bytes.len().max(len as usize);
        t.grow(size(d.bytes.len()), size(now))?;
        d.bytes.resize(now, 0);
        Ok(())
    }

    fn sync(&self) -> io::Result<()> {
        let _t = self.disk.tree()?;
        let mut d = lock(&self.data);
        d.synced = Some(d.bytes.clone());
        d.before.clear();
        d.renamed_from = None;
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::io::disk::{read_full, write_full};

    fn disk() -> SimDisk {
        SimDisk::new(Path::new("/d"), Some(64 << 10))
    }

    #[test]
    fn it_is_a_file_system() {
        let d = disk();
        let p = |s: &str| PathBuf::from("/d").join(s);
        d.create_dir(&p("a")).unwrap();
        assert!(
            d.create_dir(&p("x/y"))
                .is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
        );
        let f = d.open(&p("a/f"), OpenMode::CreateNew, false).unwrap();
        write_full(&*f, &[7; 5000], &[8; 100]).unwrap();
        assert_eq!(d.du(Path::new("/d")), 4096 + 4096 + 8192);
        assert_eq!(d.bytes(), (12288, 12288), "the top is not counted");
        d.rename(&p("a/f"), &p("g")).unwrap();
        let (mut x, mut y) = (vec![0; 5000], vec![0; 200]);
        let g = d.open(&p("g"), OpenMode::Read, true).unwrap();
        assert_eq!(read_full(&*g, &mut x, &mut y).unwrap(), 5100);
        assert!(x.iter().all(|&b| b == 7) && y[..100].iter().all(|&b| b == 8));
        assert!(d.remove_dir(&p("a")).is_ok() && d.remove_file(&p("g")).is_ok());
        assert_eq!(d.bytes(), (12288, 0));
        let f = d.open(&p("f"), OpenMode::CreateNew, false).unwrap();
        let full = write_full(&*f, &vec![0; 70 << 10], &[]);
        assert_eq!(full.unwrap_err().raw_os_error(), Some(ENOSPC));
    }

    #[test]
    fn allocated_bytes_count_and_two_handles_of_a_file_see_the_same() {
        let d = disk();
        let p = Path::new("/d/f");
        let a = d.open(p, OpenMode::CreateNew, false).unwrap();
        a.allocate(20_000).unwrap();
        assert_eq!((d.bytes().1, a.stat().unwrap().len), (20480, 20_000));
        assert_eq!(a.allocate(70 << 10).unwrap_err().raw_os_error(), Some(ENOSPC));
        let b = d.open(p, OpenMode::ReadWrite, true).unwrap();
        b.write_at(&[IoSlice::new(&[7; 4096])], 8192).unwrap();
        let mut x = [0; 10];
        a.read_at(&mut [IoSliceMut::new(&mut x)], 8190).unwrap();
        assert_eq!(x, [0, 0, 7, 7, 7, 7, 7, 7, 7, 7]);
        assert_eq!(d.bytes().1, 20480);
    }

    #[test]
    fn a_power_loss_may_bring_back_what_was_written_over() {
        let p = Path::new("/d/f");
        let mut seen = std::collections::BTreeSet::new();
        for seed in 0..60u64 {
            let d = disk();
            let f = d.open(p, OpenMode::CreateNew, false).unwrap();
            write_full(&*f, &[1; 8192], &[]).unwrap();
            f.sync().unwrap();
            f.write_at(&[IoSlice::new(&[2; 4096])], 4096).unwrap();
            let mut n = seed;
            d.lose_power(&mut |below| {
                n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (n >> 33) % below
            });
            let Ok(f) = d.open(p, OpenMode::Read, false) else {
                continue;
            };
            let mut now = vec![9; 8192];
            if read_full(&*f, &mut now, &mut []).unwrap() == 8192 {
                seen.insert((now[0], now[4096], now[8191]));
            }
        }
        assert!(seen.contains(&(1, 2, 2)), "{seen:?}");
        assert!(seen.iter().any(|s| s.1 != s.2), "torn: {seen:?}");
    }

    #[test]
    fn the_dead_change_nothing_and_hold_no_locks() {
        let d = disk();
        let p = Path::new("/d/f");
        let f = d.open(p, OpenMode::CreateNew, false).unwrap();
        assert!(f.try_lock().unwrap());
        assert!(!d.open(p, OpenMode::ReadWrite, false).unwrap().try_lock().unwrap());
        write_full(&*f, b"one", &[]).unwrap();
        d.die_at(d.steps());
        assert!(write_full(&*f, b"two", &[]).is_err() && d.remove_file(p).is_err());
        let next = d.next_life();
        let g = next.open(p, OpenMode::ReadWrite, false).unwrap();
        assert!(g.try_lock().unwrap());
        let mut now = [0; 3];
        read_full(&*g, &mut now, &mut []).unwrap();
        assert_eq!(&now, b"one");
        assert!(
            write_full(&*f, b"two", &[]).is_err(),
            "nor does it in the next life"
        );
    }

    #[test]
    fn what_was_synced_survives_a_power_loss() {
        for seed in 0..50u64 {
            let d = disk();
            for name in ["safe", "not"] {
                let f = d
                    .open(&Path::new("/d").join(name), OpenMode::CreateNew, false)
                    .unwrap();
                write_full(&*f, &[9; 9000], &[]).unwrap();
                if name == "safe" {
                    f.sync().unwrap();
                }
            }
            let mut n = seed;
            d.lose_power(&mut |below| {
                n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
                (n >> 33) % below
            });
            let f = d.open(Path::new("/d/safe"), OpenMode::Read, false).unwrap();
            let mut bytes = vec![0; 9000];
            assert_eq!(read_full(&*f, &mut bytes, &mut []).unwrap(), 9000);
            assert!(bytes.iter().all(|&b| b == 9));
        }
    }
}
