//! Trailers for blocks that a stock tier wrote. A block is read whole, summed, written with its trailer under a
//! temporary name of ours, made durable, and renamed: over the old file (in place), or into another root (the source is
//! then never changed, which is safer and needs the room). A crash leaves the old file or the new one, and at most a
//! temporary that the next start or `gc` sweeps. Blocks that have trailers are passed over, so it can be run again.
//!
//! A sum proves what lay there when it was made: bytes that were wrong before stay wrong. So only files of exactly a
//! block's length are taken, read twice, and only in namespaces whose identity is known and yields the directory's name.

use std::{
    io,
    path::{Path, PathBuf},
};

use serde::Serialize;

use super::{
    Admin, Claim, OnProgress, Progress,
    check::{sum_of, whole_block},
    identity::{Config, read_text, split},
    survey::{Content, last_page},
    temps::Temps,
};
use crate::{
    error::{Error, ErrorKind, IoClass, Result, classify},
    io::{
        DiskFile, PAGE, PageBuffer,
        disk::{OpenMode, read_full, write_full},
        round_up,
    },
    root::names::CONFIG_FILE,
    root::{
        names::{Leaf, Location, leaf_dir},
        trailer::{TRAILER_BYTES, Trailer, decode, encode, payload_sum},
        visitor::{BlockFile, Met, Watch},
    },
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
        lock,
    },
};

/// Memory that all threads together read into, unless one block is larger.
const MEMORY: u64 = 1 << 30;

/// How to import.
#[derive(Debug, Clone, Default)]
pub struct ImportOptions {
    /// Bytes of a block; found from the files' lengths unless set.
    pub block_bytes: Option<u64>,
}

/// What became of a namespace.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ImportedNamespace {
    /// The directory's name.
    pub directory: String,
    /// Bytes of a block.
    pub block_bytes: Option<u64>,
    /// Why it is passed over as a whole.
    pub passed_over: Option<String>,
    /// Blocks that got a trailer, or would.
    pub imported: u64,
    /// Blocks that had one, or lie in the other root already.
    pub present: u64,
    /// Files that are neither as long as a block nor as a block with trailer.
    pub wrong_size: u64,
    /// Blocks with trailers that do not fit them; they are not taken.
    pub damaged: u64,
    /// Extents of packed blocks, which are left alone: their blocks have checksums.
    pub extents: u64,
}

/// What an import did, or would do.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct Imported {
    /// Where blocks were read.
    pub from: String,
    /// Where they were written.
    pub into: String,
    /// Whether anything was done.
    pub done: bool,
    /// By directory name.
    pub namespaces: Vec<ImportedNamespace>,
    /// Bytes read.
    pub bytes: u64,
    /// Seconds that it took.
    pub seconds: f64,
    /// What failed, and why.
    pub failed: Vec<String>,
}

impl Imported {
    /// Whether every block has a trailer now, or would.
    pub fn is_whole(&self) -> bool {
        let whole = |n: &ImportedNamespace| n.passed_over.is_none() && n.wrong_size == 0 && n.damaged == 0;
        self.failed.is_empty() && self.namespaces.iter().all(whole)
    }
}

/// A namespace under way.
struct Target {
    from: PathBuf,
    into: PathBuf,
    digest: [u8; 32],
    len: u64,
    report: Mutex<ImportedNamespace>,
}

struct Importer<'a> {
    to: &'a Admin,
    from: &'a Admin,
    /// Without one nothing is done.
    claim: Option<&'a Claim>,
    in_place: bool,
    targets: Vec<Target>,
    buffers: Mutex<Vec<PageBuffer>>,
    failed: Mutex<Vec<String>>,
    temps: Temps,
    blocks: AtomicU64,
    of_blocks: u64,
    bytes: AtomicU64,
    progress: OnProgress<'a>,
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
        if file.leaf == Leaf::Extent {
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
        let dir = leaf_dir(&target.into, file.fan, file.leaf);
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
            // without a checksum of its own, only a second look tells what the old file holds
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
    fn identity(&self, name: &str) -> io::Result<()> {
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

impl Admin {
    /// Gives the blocks of `from` that have no trailer one, in this root; `None`: in place. Without a claim only counts
    /// them.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`] for a claim of another root, [`ErrorKind::Full`] when there is no room, and the I/O error
    /// of the walk. What fails below is listed.
    pub fn import(
        &self,
        from: Option<&Self>,
        options: &ImportOptions,
        progress: OnProgress<'_>,
        claim: Option<&Claim>,
    ) -> Result<Imported> {
        let far = |i: &Imported| match i.done {
            true => format!(
                " (after {} blocks got trailers)",
                i.namespaces.iter().map(|n| n.imported).sum::<u64>()
            ),
            false => String::new(),
        };
        self.command("import", far, |a| {
            let from = from.map(|f| f.noting(&a.notes));
            a.give_trailers(from.as_ref(), options, progress, claim)
        })
    }

    fn give_trailers(
        &self,
        from: Option<&Self>,
        options: &ImportOptions,
        progress: OnProgress<'_>,
        claim: Option<&Claim>,
    ) -> Result<Imported> {
        claim.map_or(Ok(()), |c| c.covers(self))?;
        let from = from.unwrap_or(self);
        let began = self.clock.now();
        let content = from.survey(None)?;
        let mut importer = Importer {
            to: self,
            from,
            claim,
            in_place: from.root == self.root,
            targets: Vec::new(),
            buffers: Mutex::default(),
            failed: Mutex::default(),
            temps: Temps::new(self.clock.unix_seconds()),
            blocks: AtomicU64::new(0),
            of_blocks: content.namespaces.values().map(|f| f.blocks.files).sum(),
            bytes: AtomicU64::new(0),
            progress,
        };
        let passed_over = importer.choose(&content, options);
        self.notes.check("import", "")?;
        self.has_room(&importer, &content)?;
        if let Some(claim) = claim.filter(|_| !importer.in_place && !importer.targets.is_empty()) {
            claim.change()?;
            for t in &importer.targets {
                let name = lock(&t.report).directory.clone();
                importer
                    .identity(&name)
                    .map_err(|e| Error::io("write identity", &name, e))?;
            }
        }
        let largest = importer.targets.iter().map(|t| t.len).max().unwrap_or(1);
        let threads = usize::try_from(MEMORY / largest.max(1)).unwrap_or(1);
        let walked = from.walk(self.threads.min(threads).max(1), &importer);
        // what ran out is told at the end, with how far it came
        if self.notes.check("import", "").is_ok() {
            walked?;
        }
        let into_inner = std::sync::PoisonError::into_inner;
        let mut failed = importer.failed.into_inner().unwrap_or_else(into_inner);
        failed.sort_unstable();
        let mut namespaces = passed_over;
        namespaces.extend(importer.targets.into_iter().map(|t| {
            t.report
                .into_inner()
                .unwrap_or_else(std::sync::PoisonError::into_inner)
        }));
        namespaces.sort_by(|a, b| a.directory.cmp(&b.directory));
        Ok(Imported {
            from: from.root.display().to_string(),
            into: self.root.display().to_string(),
            done: claim.is_some(),
            namespaces,
            bytes: importer.bytes.into_inner(),
            seconds: self.clock.now().since(began).as_secs_f64(),
            failed,
        })
    }

    /// Refuses an import for which there is no room.
    fn has_room(&self, importer: &Importer<'_>, content: &Content) -> Result<()> {
        let trailer = TRAILER_BYTES as u64;
        let mut need: u64 = 0;
        for t in &importer.targets {
            let facts = content.namespaces.values().find(|f| f.path == t.from);
            let files = facts.and_then(|f| f.lens.get(&t.len)).copied().unwrap_or(0);
            need = need.saturating_add(if importer.in_place {
                files * trailer + (t.len + trailer) * self.threads as u64
            } else {
                // up to two directories a block
                files * (t.len + 3 * trailer)
            });
        }
        let space = self.disk.space(&self.root);
        let space = space.map_err(|e| Error::io("ask for space", self.root.display(), e))?;
        if need <= space.available {
            return Ok(());
        }
        let message = format!(
            "{} has {} bytes free; up to {need} are needed",
            self.root.display(),
            space.available
        );
        Err(Error::new(ErrorKind::Full, "import", message))
    }
}

impl Importer<'_> {
    /// Chooses the namespaces that can be imported; returns the others, with reasons.
    fn choose(&mut self, content: &Content, options: &ImportOptions) -> Vec<ImportedNamespace> {
        let mut passed_over = Vec::new();
        for facts in content.namespaces.values() {
            let config = Config::read(&*self.from.disk, &self.from.root, &facts.name());
            let e = facts.expected(&*self.from.disk, &config);
            let len = options.block_bytes.or(e.block_len);
            let mut report = ImportedNamespace {
                directory: facts.name(),
                block_bytes: len,
                passed_over: None,
                imported: 0,
                present: 0,
                wrong_size: 0,
                damaged: 0,
                extents: facts.extents.files,
            };
            let why = match (&config, len) {
                _ if facts.blocks.files == 0 => {
                    if facts.extents.files > 0 {
                        passed_over.push(report);
                    }
                    continue;
                }
                (Config::Missing, _) => "its identity is not known: there is no config.json".into(),
                (Config::Unusable(why), _) => format!("its identity is not known: {why}"),
                (_, None) => "most of its files differ in length; say what a block has".into(),
                (Config::Known(ns, _), Some(len)) => {
                    self.targets.push(Target {
                        from: facts.path.clone(),
                        into: self.to.root.join(ns.dir()),
                        digest: *ns.digest(),
                        len,
                        report: Mutex::new(report),
                    });
                    continue;
                }
            };
            report.passed_over = Some(why);
            passed_over.push(report);
        }
        passed_over
    }
}
