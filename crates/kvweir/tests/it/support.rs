//! What these tests share: roots, tiers, `du`, files by key, damage.

use std::{
    fs::File,
    os::unix::fs::{FileExt, MetadataExt},
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::Arc,
    time::Duration,
};

use kvweir::{
    Key,
    fs::{FsBuilder, FsSettings, Layout, min_bound, min_pack_bound},
    io::{Disk, OsDisk, fault::FaultDisk, pool::PoolSize},
    metrics::TierStats,
    tier::{RequestId, Tier, conformance::Client},
};

pub(crate) use crate::common::*;

pub(crate) const LEN: usize = 8192;
/// Bytes of a file of ours.
pub(crate) const FILE: u64 = LEN as u64 + 4096;
pub(crate) const R: RequestId = RequestId(1);

/// Runs tests that take a layout, with one file per block and packed.
macro_rules! in_both_layouts {
    ($($name:ident),+ $(,)?) => {
        mod by_file { $(#[test] fn $name() { super::$name(kvweir::fs::Layout::Fs); })+ }
        mod packed { $(#[test] fn $name() { super::$name(kvweir::fs::Layout::Pack); })+ }
    };
}
pub(crate) use in_both_layouts;

/// A bound with room for about `blocks` blocks.
pub(crate) fn room_for(blocks: u64, layout: Layout) -> u64 {
    match layout {
        Layout::Pack => min_pack_bound(LEN) + blocks * (LEN as u64 + 256),
        _ => min_bound(LEN) + blocks * (FILE + 8192),
    }
}

/// A directory to be a root of tiers with a layout, gone at the end.
pub(crate) struct Root(pub(crate) tempfile::TempDir, pub(crate) Layout);

impl Root {
    pub(crate) fn new() -> Self {
        Self::of(Layout::Fs)
    }

    pub(crate) fn of(layout: Layout) -> Self {
        Self(tempfile::tempdir().unwrap(), layout)
    }

    pub(crate) fn path(&self) -> PathBuf {
        self.0.path().join("kv")
    }

    pub(crate) fn settings(&self, max_bytes: u64) -> FsSettings {
        FsSettings {
            max_bytes: (max_bytes > 0).then_some(max_bytes),
            events: true,
            pool: PoolSize::new(2, 2),
            // extents need a bound
            layout: if max_bytes > 0 { self.1 } else { Layout::Fs },
            ..FsSettings::new(self.path())
        }
    }

    /// A builder of a tier with this bound, on `disk`.
    pub(crate) fn on(&self, disk: impl Disk + 'static, max_bytes: u64) -> FsBuilder {
        builder(self.settings(max_bytes), "model", LEN).disk(Arc::new(disk))
    }

    /// A client of a tier with this bound; 0: unbounded.
    pub(crate) fn open(&self, max_bytes: u64) -> Fs {
        client(builder(self.settings(max_bytes), "model", LEN))
    }

    pub(crate) fn du(&self) -> u64 {
        du(&self.path())
    }

    /// What an account is to say: what `du` says, and what extents may come to need.
    pub(crate) fn counted(&self) -> u64 {
        counted(&self.path())
    }

    /// Lets the next start walk the tree, as after a restart of the machine.
    pub(crate) fn forget_journal(&self) {
        std::fs::remove_dir_all(self.path().join(".kvweir")).unwrap();
    }
}

/// The system's disk, on which faults can be planned.
pub(crate) fn faulty() -> FaultDisk {
    FaultDisk::new(Arc::new(OsDisk))
}

/// A builder that waits for a walk however slow this machine is.
pub(crate) fn builder(s: FsSettings, model: &str, len: usize) -> FsBuilder {
    FsBuilder::new(s, ns(model), len).walk_patience(Duration::from_secs(60))
}

pub(crate) fn client(b: FsBuilder) -> Fs {
    client_of(b, LEN)
}

/// A client whose blocks have `len` bytes, as the tier's.
pub(crate) fn client_of(b: FsBuilder, len: usize) -> Fs {
    let b = b.walk_patience(Duration::from_secs(60));
    Client::new(Box::new(b.open().unwrap()), 64, len)
}

/// Allocated bytes of `path` and everything below it. Entries that go while it looks count nothing.
pub(crate) fn du(path: &Path) -> u64 {
    let Ok(meta) = std::fs::symlink_metadata(path) else {
        return 0;
    };
    let below = if meta.is_dir() {
        std::fs::read_dir(path).map_or(0, |d| d.flatten().map(|e| du(&e.path())).sum())
    } else {
        0
    };
    meta.blocks() * 512 + below
}

/// `du`, and what the extents below `path` are counted as beyond what they take now: blocks of the file system's own
/// tree.
pub(crate) fn counted(path: &Path) -> u64 {
    let block = rustix::fs::statvfs(path).map_or(4096, |v| v.f_frsize);
    let spare = |p: PathBuf| {
        let m = std::fs::metadata(&p).ok()?;
        extent_file_cost(m.len(), block).checked_sub(m.blocks() * 512)
    };
    du(path) + extent_files(path).into_iter().filter_map(spare).sum::<u64>()
}

/// Files of extents below `path`.
pub(crate) fn extent_files(path: &Path) -> Vec<PathBuf> {
    let mut all = files(path);
    all.retain(|p| is_of_extent(p));
    all
}

fn is_table(p: &Path) -> bool {
    let name = p.file_name().map(|n| n.to_string_lossy().into_owned());
    name.is_some_and(|n| n.starts_with("0000000000000000"))
}

/// Tables of the extents below `path`, sorted.
pub(crate) fn extents(path: &Path) -> Vec<PathBuf> {
    let mut all = extent_files(path);
    all.retain(|p| is_table(p));
    all.sort();
    all
}

/// The data file that belongs to a table.
pub(crate) fn data_of(table: &Path) -> PathBuf {
    let name = table.file_name().unwrap().to_string_lossy().into_owned();
    table.with_file_name(format!("0000000000000001{}", &name[16..]))
}

/// How many slots an extent has.
pub(crate) fn slots_of(extent: &Path) -> Option<u32> {
    use std::io::Read;
    let mut head = [0; 16];
    File::open(extent).ok()?.read_exact(&mut head).ok()?;
    assert!(head.starts_with(b"KVWEIRX1"), "{extent:?} is no extent");
    Some(u32::from_le_bytes(head[12..].try_into().unwrap()))
}

/// Every file below `path`.
pub(crate) fn files(path: &Path) -> Vec<PathBuf> {
    let mut out = Vec::new();
    let mut stack = vec![path.to_owned()];
    while let Some(p) = stack.pop() {
        for e in std::fs::read_dir(&p).into_iter().flatten().flatten() {
            if e.file_type().unwrap().is_dir() {
                stack.push(e.path());
            } else {
                out.push(e.path());
            }
        }
    }
    out
}

/// Names of temporaries of ours below `path`.
pub(crate) fn temps(path: &Path) -> Vec<PathBuf> {
    let ours = |p: &PathBuf| p.extension().is_some_and(|e| e == "kvweir");
    files(path).into_iter().filter(ours).collect()
}

/// Files of single blocks below `path`, extents left out.
pub(crate) fn block_files(path: &Path) -> Vec<PathBuf> {
    let is = |p: &PathBuf| p.extension().is_some_and(|e| e == "bin") && !is_of_extent(p);
    files(path).into_iter().filter(is).collect()
}

/// Flips one bit of the byte at `at`.
pub(crate) fn flip(path: &Path, at: u64) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[byte[0] ^ 0x10], at).unwrap();
}

/// Cuts or lengthens a file to `len` bytes.
pub(crate) fn cut(path: &Path, len: u64) {
    File::options()
        .write(true)
        .open(path)
        .unwrap()
        .set_len(len)
        .unwrap();
}

/// Where the file of a key of the stock layout (hash and group 0) lies.
pub(crate) fn file_of(namespace: &Path, key: &Key) -> PathBuf {
    let text = key.to_string();
    let (hash, group) = text.split_at(text.len() - 8);
    let group = u32::from_str_radix(group, 16).unwrap();
    let leaf = format!("{}_g{group}", &hash[3..5]);
    namespace.join(&hash[..3]).join(leaf).join(format!("{hash}.bin"))
}

/// Stores `keys` one by one and ends the request.
pub(crate) fn store(c: &mut Fs, keys: &[Key]) {
    for k in keys {
        all_ok(&c.store(R, std::slice::from_ref(k)));
    }
    c.tier.on_request_finished(R, &[]);
}

/// Stores blocks from number `from` on until no slot is free in the extents there are.
pub(crate) fn fill_slots(c: &mut Fs, root: &Root, from: u64) -> u64 {
    let slots: u64 = extents(&root.path())
        .iter()
        .filter_map(|e| slots_of(e).map(u64::from))
        .sum();
    let end = from + (slots - c.tier.stats().blocks);
    store(c, &keys(from..end));
    end
}

/// The account agrees with `du`, nothing is reserved or pinned, no temporary is left.
pub(crate) fn assert_settled(c: &mut Fs, root: &Root) {
    c.wait_all();
    let s = agreed(c, root);
    assert_eq!((s.reserved_bytes, s.pinned_blocks), (0, 0), "idle");
    if let Some(bound) = s.bound_bytes {
        assert!(s.resident_bytes <= bound, "above the bound");
    }
    assert_eq!(temps(&root.path()), Vec::<PathBuf>::new(), "temporaries are left");
}

/// Whether `done` comes true, within ten seconds.
pub(crate) fn in_time(mut done: impl FnMut() -> bool) -> bool {
    (0..2000).any(|_| {
        done() || {
            pause(5);
            false
        }
    })
}

/// Waits until `done` comes true.
pub(crate) fn until(what: &str, done: impl FnMut() -> bool) {
    assert!(in_time(done), "never: {what}");
}

/// The numbers of an idle tier that agree with `du`, at the latest soon: the journal may be being compacted.
pub(crate) fn agreed(c: &mut Fs, root: &Root) -> TierStats {
    let mut seen = Vec::new();
    for _ in 0..250 {
        let (before, du, s) = (c.tier.stats().resident_bytes, root.counted(), c.tier.stats());
        if before == du && s.resident_bytes == du && s.reserved_bytes == 0 {
            return s;
        }
        seen.push((before, du, s.resident_bytes, s.reserved_bytes));
        pause(20);
    }
    for p in files(&root.path()) {
        let (len, takes) = std::fs::metadata(&p).map_or((0, 0), |m| (m.len(), m.blocks() * 512));
        if takes != len.next_multiple_of(4096) {
            println!("{} is {len} bytes and takes {takes}", p.display());
        }
    }
    panic!(
        "the account and du below the root disagree: {:?}",
        &seen[seen.len() - 4..]
    );
}

/// Runs a program; whether it ended well.
pub(crate) fn runs(program: &str, args: &[&str], path: &Path) -> bool {
    let mut c = Command::new(program);
    let c = c.args(args).arg(path).stdout(Stdio::null()).stderr(Stdio::null());
    c.status().is_ok_and(|s| s.success())
}

/// Says why a test did nothing.
pub(crate) fn skip(why: &str) {
    println!("skipped: {why}");
}

/// An ext4 file system in a file, where this process may mount one.
pub(crate) struct Ext4 {
    dir: tempfile::TempDir,
}

impl Ext4 {
    pub(crate) fn new() -> Option<Self> {
        Self::of(&[])
    }

    /// Made with these options.
    pub(crate) fn of(options: &[&str]) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let (image, at) = (dir.path().join("image"), dir.path().join("at"));
        std::fs::create_dir(&at).unwrap();
        File::create(&image).unwrap().set_len(64 << 20).unwrap();
        let made = runs("mkfs.ext4", &[&["-q", "-F"], options].concat(), &image)
            && runs("mount", &["-o", "loop", image.to_str().unwrap()], &at);
        made.then_some(Self { dir })
    }

    pub(crate) fn at(&self) -> PathBuf {
        self.dir.path().join("at")
    }
}

impl Drop for Ext4 {
    fn drop(&mut self) {
        runs("umount", &["-l"], &self.at());
    }
}

/// A small file system of its own, where this process may mount one.
pub(crate) struct Tmpfs(tempfile::TempDir);

impl Tmpfs {
    pub(crate) fn new(size: &str) -> Option<Self> {
        let dir = tempfile::tempdir().unwrap();
        let mut mount = Command::new("mount");
        let mount = mount
            .args(["-t", "tmpfs", "-o", &format!("size={size}"), "tmpfs"])
            .arg(dir.path());
        let done = mount.stderr(Stdio::null()).status();
        done.is_ok_and(|s| s.success()).then(|| Self(dir))
    }

    pub(crate) fn path(&self) -> &Path {
        self.0.path()
    }
}

impl Drop for Tmpfs {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg(self.path()).status();
    }
}
