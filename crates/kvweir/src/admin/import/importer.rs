//! An import under way: each block is told by a walk, and written with its trailer.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::imported::ImportedNamespace;
use crate::{
    admin::{
        Admin, Claim, OnProgress, Progress,
        check::{sum_of, whole_block},
        identity::{read_text, split},
        survey::last_page,
        temps::Temps,
    },
    error::{IoClass, classify},
    io::{
        DiskFile, PAGE, PageBuffer,
        disk::{OpenMode, read_full, write_full},
        round_up,
    },
    root::{
        names::{CONFIG_FILE, DirKind, Location, leaf_dir},
        trailer::{TRAILER_BYTES, Trailer, decode, encode, payload_sum},
        visitor::{BlockFile, Met, Watch},
    },
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
        lock,
    },
};

/// A namespace under way.
pub(super) struct Target {
    pub(super) from: PathBuf,
    pub(super) into: PathBuf,
    pub(super) digest: [u8; 32],
    pub(super) len: u64,
    pub(super) report: Mutex<ImportedNamespace>,
}

/// An import under way.
pub(super) struct Importer<'a> {
    pub(super) to: &'a Admin,
    pub(super) from: &'a Admin,
    /// Without one nothing is done.
    pub(super) claim: Option<&'a Claim>,
    pub(super) in_place: bool,
    pub(super) targets: Vec<Target>,
    pub(super) buffers: Mutex<Vec<PageBuffer>>,
    pub(super) failed: Mutex<Vec<String>>,
    pub(super) temps: Temps,
    pub(super) blocks: AtomicU64,
    pub(super) of_blocks: u64,
    pub(super) bytes: AtomicU64,
    pub(super) progress: OnProgress<'a>,
}

/// What became of a block.
enum Done {
    Imported,
    Present,
    WrongSize,
    Damaged,
    Gone,
}

impl Watch for Importer<'_> {
    fn met(&self, what: Met<'_>) {
        let Met::Block(file) = what else {
            if let Met::Unreadable { error, .. } = what {
                lock(&self.failed).push(error.to_string());
            }
            return;
        };
        if file.leaf == DirKind::Extent {
            return;
        }
        let ns = file.dir.ancestors().nth(2);
        let Some(target) = self.targets.iter().find(|t| Some(&*t.from) == ns) else {
            return;
        };
        match self.block(target, file) {
            Ok(done) => {
                let mut report = lock(&target.report);
                match done {
                    Done::Imported => report.imported += 1,
                    Done::Present => report.present += 1,
                    Done::WrongSize => report.wrong_size += 1,
                    Done::Damaged => report.damaged += 1,
                    Done::Gone => {}
                }
            }
            Err(e) => {
                let path = self.from.short(&file.dir.join(file.name));
                lock(&self.failed).push(format!("{path}: {e}"));
            }
        }
        (self.progress)(Progress {
            blocks: self.blocks.fetch_add(1, Ordering::Relaxed) + 1,
            of_blocks: self.of_blocks,
            bytes: self.bytes.load(Ordering::Relaxed),
        });
    }
}

impl Importer<'_> {
    fn block(&self, target: &Target, file: &BlockFile<'_>) -> io::Result<Done> {
        let whole = target.len + TRAILER_BYTES as u64;
        let dir = leaf_dir(&target.into, file.prefix, file.leaf);
        let there = dir.join(file.name);
        let is_whole = self.to.disk.stat(&there).is_ok_and(|s| s.len == whole);
        if is_whole && self.is_there(target, file, &there)? {
            return Ok(Done::Present);
        }
        // one of ours goes into the other root as it is
        let trailed = !self.in_place && file.stat.len == whole;
        if !trailed && (file.stat.len != target.len || file.key.is_none()) {
            return Ok(Done::WrongSize);
        }
        let Some(claim) = self.claim else {
            return Ok(Done::Imported);
        };
        claim.change().map_err(io::Error::other)?;
        let size = usize::try_from(round_up(whole, PAGE as u64)).map_err(io::Error::other)?;
        // another namespace's blocks may be larger
        let kept = lock(&self.buffers).pop().filter(|b| b.as_slice().len() >= size);
        let mut buf = match kept {
            Some(b) => b,
            None => PageBuffer::new(size).map_err(io::Error::other)?,
        };
        let done = self.copy(target, file, &dir, &mut buf);
        lock(&self.buffers).push(buf);
        done
    }

    /// Whether a file of a block with trailer is one. In another root it is read whole: the user may remove the source
    /// when all is said to be there. In place no other copy goes, and that is left to `verify`.
    fn is_there(&self, target: &Target, file: &BlockFile<'_>, path: &Path) -> io::Result<bool> {
        if self.in_place {
            let whole = target.len + TRAILER_BYTES as u64;
            let page = last_page(&*self.to.disk, path, whole);
            return Ok(page.is_some_and(|p| decode(&p).is_some()));
        }
        match whole_block(&*self.to.disk, path, true) {
            Ok(found) => Ok(found.is_some_and(|t| fits(&t, target, file))),
            Err(e) if classify(&e) == IoClass::Transient => Err(e),
            // the source, which stays, takes its place
            Err(_) => Ok(false),
        }
    }

    fn copy(
        &self,
        target: &Target,
        file: &BlockFile<'_>,
        dir: &Path,
        buf: &mut PageBuffer,
    ) -> io::Result<Done> {
        let len = usize::try_from(target.len).map_err(io::Error::other)?;
        let (block, rest) = buf.as_mut_slice().split_at_mut(len);
        let source = file.dir.join(file.name);
        let direct = len.is_multiple_of(PAGE);
        let page = rest
            .first_chunk_mut::<TRAILER_BYTES>()
            .ok_or(io::ErrorKind::InvalidInput)?;
        let mut read = |direct: bool| {
            let f = self.from.disk.open(&source, OpenMode::Read, direct)?;
            let n = read_full(&*f, block, page)?;
            Ok((n, f.stat()?.len))
        };
        let (n, now) = match or_buffered(direct, &mut read) {
            Err(e) if classify(&e) == IoClass::Gone => return Ok(Done::Gone),
            r => r?,
        };
        if n as u64 != file.stat.len || now != file.stat.len {
            return Ok(Done::WrongSize);
        }
        self.bytes.fetch_add(n as u64, Ordering::Relaxed);
        if !trail(target, file, block, page) {
            return Ok(Done::Damaged);
        }
        if !self.in_place {
            self.make_dirs(dir)?;
        }
        let sum = payload_sum(block);
        or_buffered(direct, |d| {
            let write = |f: &dyn DiskFile| write_full(f, block, page);
            self.publish(target, dir, file, (d, sum), write)
        })?;
        Ok(Done::Imported)
    }

    /// The temporary, durable, of the old file's age and read back, then the rename.
    fn publish(
        &self,
        target: &Target,
        dir: &Path,
        file: &BlockFile<'_>,
        (direct, sum): (bool, u128),
        write: impl FnOnce(&dyn DiskFile) -> io::Result<()>,
    ) -> io::Result<()> {
        let disk = &*self.to.disk;
        let (temp, f) = self.temps.create(disk, dir, file.name, direct)?;
        let publish = || {
            write(&*f)?;
            f.sync()?;
            // the order of eviction after a start; without it the block only seems young
            let _ = f.set_modified(u64::try_from(file.stat.mtime_ns).unwrap_or(0));
            let is_it = |t: &Trailer| t.payload_sum == sum && fits(t, target, file);
            if !whole_block(disk, &temp, direct)?.is_some_and(|t| is_it(&t)) {
                return Err(io::Error::other(
                    "what was written reads back otherwise: the old file stays",
                ));
            }
            // without a checksum of its own, only a second read tells what the old file holds
            let source = file.dir.join(file.name);
            let bare = file.stat.len == target.len;
            if bare && sum_of(&*self.from.disk, &source, direct)? != (target.len, sum) {
                return Err(io::Error::other(
                    "the file reads differently when it is read again: it stays",
                ));
            }
            disk.rename(&temp, &dir.join(file.name))
        };
        publish().inspect_err(|_| {
            let _ = disk.remove_file(&temp);
        })
    }

    fn make_dirs(&self, dir: &Path) -> io::Result<()> {
        let made: Vec<_> = dir.ancestors().take(3).collect();
        for d in made.into_iter().rev() {
            self.make_dir(d)?;
        }
        Ok(())
    }

    fn make_dir(&self, dir: &Path) -> io::Result<()> {
        match self.to.disk.create_dir(dir) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => Err(e),
            _ => Ok(()),
        }
    }

    /// Copies the identity beside a namespace, if the other root has none.
    pub(super) fn identity(&self, name: &str) -> io::Result<()> {
        let Some((base, _)) = split(name) else {
            return Ok(());
        };
        let text = read_text(&*self.from.disk, &self.from.root.join(base).join(CONFIG_FILE))?;
        let dir = self.to.root.join(base);
        self.make_dir(&dir)?;
        let at = dir.join(CONFIG_FILE);
        let is_json = |t: &[u8]| serde_json::from_slice::<serde_json::Value>(t).is_ok();
        match read_text(&*self.to.disk, &at) {
            // it decides, also where it is another's
            Ok(there) if is_json(&there) => return Ok(()),
            Err(e) if classify(&e) != IoClass::Gone => return Err(e),
            // none, or what a crash left of one
            _ => {}
        }
        let file = self.to.disk.open(&at, OpenMode::ReadWrite, false)?;
        file.set_len(0)?;
        write_full(&*file, &text, &[])?;
        file.sync()
    }
}

/// Makes the trailer in `page`, or compares the one that is there. Returns whether the block is right.
fn trail(target: &Target, file: &BlockFile<'_>, block: &[u8], page: &mut [u8; TRAILER_BYTES]) -> bool {
    let sum = payload_sum(block);
    match &file.key {
        Some(key) if file.stat.len == target.len => {
            let trailer = Trailer {
                key: key.clone(),
                block_len: target.len,
                payload_sum: sum,
                namespace: target.digest,
                written_at: u64::try_from(file.stat.mtime_ns / 1_000_000_000).unwrap_or(0),
            };
            encode(&trailer, page);
            true
        }
        _ => decode(page).is_some_and(|t| t.payload_sum == sum && fits(&t, target, file)),
    }
}

/// Whether a block with this trailer belongs under the name of `file`.
fn fits(t: &Trailer, target: &Target, file: &BlockFile<'_>) -> bool {
    t.namespace == target.digest && t.block_len == target.len && Location::of(&t.key).file_name() == file.name
}

/// Tries with direct I/O if it is worth it, and again without where the file system refuses.
fn or_buffered<T>(direct: bool, mut f: impl FnMut(bool) -> io::Result<T>) -> io::Result<T> {
    match f(direct) {
        Err(e) if direct && classify(&e) == IoClass::Invalid => f(false),
        r => r,
    }
}
