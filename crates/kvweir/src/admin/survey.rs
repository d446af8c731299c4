//! One walk that gathers what lies in each namespace, and what its files should be: the block length and the digest.
//! Lengths and times are those of every file; trailers are read of a sample.

use std::{
    collections::BTreeMap,
    io::IoSliceMut,
    path::{Path, PathBuf},
};

use super::{
    Admin, Pile,
    extents::{ExtentFiles, headers, pairs},
    identity::Config,
};
use crate::{
    error::{Error, ErrorKind, Result},
    io::{Disk, disk::OpenMode},
    root::{
        names::DirKind,
        trailer::{TRAILER_BYTES, Trailer, decode, version},
        visitor::{Met, Watch},
    },
    sync::{Mutex, lock},
};

/// Files of each namespace whose trailers are looked at.
const SAMPLE: usize = 256;
/// Paths of foreign files that are kept to be shown.
const EXAMPLES: usize = 20;

/// What lies in a namespace.
#[derive(Debug, Default)]
pub(super) struct Facts {
    pub(super) path: PathBuf,
    /// Block files.
    pub(super) blocks: Pile,
    /// Extents of packed blocks.
    pub(super) extents: Pile,
    pub(super) extent_files: Vec<ExtentFiles>,
    parts: Vec<PathBuf>,
    pub(super) dir_bytes: u64,
    /// Sum of the lengths of all block files.
    pub(super) len_sum: u64,
    /// Block files by length.
    pub(super) lens: BTreeMap<u64, u64>,
    /// Modification times in seconds, one per block.
    pub(super) times: Vec<u32>,
    /// When the directory itself changed, nanoseconds.
    pub(super) changed_ns: i128,
    sample: Vec<(PathBuf, u64)>,
}

/// A root's content.
#[derive(Debug, Default)]
pub(super) struct Content {
    pub(super) namespaces: BTreeMap<u16, Facts>,
    /// Bytes of directories outside of namespaces: the root.
    pub(super) root_bytes: u64,
    pub(super) own_bytes: u64,
    /// Temporaries of ours: path, bytes, modification time.
    pub(super) temps: Vec<(PathBuf, u64, i128)>,
    pub(super) empty: Vec<PathBuf>,
    pub(super) foreign: Pile,
    pub(super) foreign_paths: Vec<PathBuf>,
    pub(super) unreadable: Vec<(PathBuf, String)>,
}

/// What the files of a namespace should be.
#[derive(Debug, Clone, Default)]
pub(super) struct Expected {
    /// Bytes of a block.
    pub(super) block_len: Option<u64>,
    /// Whether trailers were seen, so that some files are ours.
    pub(super) has_trailers: bool,
    pub(super) digest: Option<[u8; 32]>,
    /// Slots of all extents.
    pub(super) slots: u64,
    /// Trailers of the sample by version.
    pub(super) versions: BTreeMap<String, u64>,
}

struct Gather<'a> {
    only: Option<&'a str>,
    content: Mutex<Content>,
}

impl Watch for Gather<'_> {
    fn wants(&self, namespace: &str) -> bool {
        self.only.is_none_or(|o| o == namespace)
    }

    fn met(&self, what: Met<'_>) {
        let mut c = lock(&self.content);
        match what {
            Met::Namespace { number, path } => {
                c.namespaces.entry(number).or_default().path = path.to_owned();
            }
            Met::Dir { namespace, stat, .. } => match namespace {
                Some(n) => {
                    let facts = c.namespaces.entry(n).or_default();
                    facts.dir_bytes += stat.allocated;
                    // the namespace's own directory comes first
                    if facts.changed_ns == 0 {
                        facts.changed_ns = stat.mtime_ns;
                    }
                }
                None => c.root_bytes += stat.allocated,
            },
            Met::Block(file) if file.leaf == DirKind::Extent => {
                let facts = c.namespaces.entry(file.namespace).or_default();
                facts.extents.bytes += file.stat.allocated;
                facts.parts.push(file.dir.join(file.name));
            }
            Met::Block(file) => {
                let facts = c.namespaces.entry(file.namespace).or_default();
                facts.blocks.add(file.stat.allocated);
                facts.len_sum += file.stat.len;
                *facts.lens.entry(file.stat.len).or_default() += 1;
                facts
                    .times
                    .push(u32::try_from(file.stat.mtime_ns / 1_000_000_000).unwrap_or(0));
                if facts.sample.len() < SAMPLE && file.stat.len > TRAILER_BYTES as u64 {
                    facts.sample.push((file.dir.join(file.name), file.stat.len));
                }
            }
            Met::Temp { path, stat } => c.temps.push((path.to_owned(), stat.allocated, stat.mtime_ns)),
            Met::Empty { path } => c.empty.push(path.to_owned()),
            Met::Own { stat, .. } => c.own_bytes += stat.allocated,
            Met::Foreign { path, stat } => {
                c.foreign.add(stat.allocated);
                if c.foreign_paths.len() < EXAMPLES {
                    c.foreign_paths.push(path.to_owned());
                }
            }
            Met::Unreadable { path, error } => {
                c.unreadable.push((path.to_owned(), error.to_string()));
            }
        }
    }
}

impl Content {
    /// Refuses to go by part of a root: what could not be read is not counted.
    pub(super) fn require_whole(&self, op: &'static str, root: &Path) -> Result<()> {
        require_whole(
            op,
            root,
            self.unreadable.len(),
            self.unreadable.first().map(|u| &*u.1),
        )
    }

    /// What `du` counts.
    pub(super) fn bytes(&self) -> u64 {
        let inside: u64 = self
            .namespaces
            .values()
            .map(|f| f.blocks.bytes + f.extents.bytes + f.dir_bytes)
            .sum();
        let temps: u64 = self.temps.iter().map(|t| t.1).sum();
        inside + temps + self.root_bytes + self.own_bytes + self.foreign.bytes
    }
}

impl Facts {
    pub(super) fn name(&self) -> String {
        let name = self.path.file_name().unwrap_or_default();
        name.to_string_lossy().into_owned()
    }

    /// What the files should be, from the identity, a sample of trailers, and the lengths of all.
    pub(super) fn expected(&self, disk: &dyn Disk, config: &Config) -> Expected {
        let (mut lens, mut digests) = (BTreeMap::new(), BTreeMap::new());
        let mut e = Expected::default();
        for (path, len) in &self.sample {
            let Some(page) = last_page(disk, path, *len) else {
                continue;
            };
            if let Some(v) = version(&page) {
                *e.versions.entry(v).or_default() += 1;
            }
            let Some(Trailer {
                block_len, namespace, ..
            }) = decode(&page)
            else {
                continue;
            };
            *lens.entry(block_len).or_default() += 1;
            *digests.entry(namespace).or_default() += 1;
        }
        e.has_trailers = !lens.is_empty();
        let packed = headers(disk, &self.extent_files);
        e.slots = packed.iter().map(|h| u64::from(h.slots)).sum();
        let mut slots = BTreeMap::new();
        for h in packed {
            *digests.entry(h.namespace).or_default() += 1;
            *slots.entry(h.block_len).or_default() += 1;
        }
        // what proves itself tells; lengths alone only where nothing does, since a power loss cuts files
        e.block_len = majority(&lens).or_else(|| majority(&slots));
        if lens.is_empty() && slots.is_empty() {
            e.block_len = majority(&self.lens).filter(|&n| n > 0);
        }
        e.digest = config
            .namespace()
            .map(|ns| *ns.digest())
            .or_else(|| majority(&digests));
        e
    }
}

/// Refuses to go by a walk that could not read `many` places, of which `first` is one.
pub(super) fn require_whole(op: &'static str, root: &Path, many: usize, first: Option<&str>) -> Result<()> {
    let Some(first) = first else { return Ok(()) };
    let message = format!(
        "{}: {many} places could not be read, so nothing tells how many bytes there are; the first: {first}; `kvweir \
         verify` lists them",
        root.display()
    );
    Err(Error::new(ErrorKind::Unavailable, op, message))
}

/// What more than half of all are.
fn majority<K: Copy>(votes: &BTreeMap<K, u64>) -> Option<K> {
    let all: u64 = votes.values().sum();
    let (&k, &n) = votes.iter().max_by_key(|v| v.1)?;
    (n * 2 > all).then_some(k)
}

/// The last page of a file of `len` bytes.
pub(super) fn last_page(disk: &dyn Disk, path: &Path, len: u64) -> Option<[u8; TRAILER_BYTES]> {
    let file = disk.open(path, OpenMode::Read, false).ok()?;
    let mut page = [0; TRAILER_BYTES];
    let n = file
        .read_at(
            &mut [IoSliceMut::new(&mut page)],
            len.checked_sub(TRAILER_BYTES as u64)?,
        )
        .ok()?;
    (n == TRAILER_BYTES).then_some(page)
}

impl Admin {
    /// Walks the root, or one namespace of it.
    pub(super) fn survey(&self, only: Option<&str>) -> Result<Content> {
        let gather = Gather {
            only,
            content: Mutex::default(),
        };
        self.walk(self.threads, &gather)?;
        let mut content = gather
            .content
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        content.empty.sort_unstable();
        content.temps.sort_unstable();
        for facts in content.namespaces.values_mut() {
            facts.extent_files = pairs(std::mem::take(&mut facts.parts));
            facts.extents.files = facts.extent_files.len() as u64;
        }
        content.foreign_paths.sort_unstable();
        Ok(content)
    }
}
