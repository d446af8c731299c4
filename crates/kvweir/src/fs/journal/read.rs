//! Reading journals: a dead member's whole, once ([`replay`]), and a live member's as it grows ([`Follower`]).

use std::{
    collections::{HashMap, HashSet},
    io,
    path::{Path, PathBuf},
};

use foldhash::fast::FixedState;

use super::{
    STATE_DIR, parse_name, path,
    record::{At, FRAME_BYTES, Facts, Frame, HEADER_BYTES, Header, Record, decode},
    write::{Resume, Rotation, SNAPSHOT_BASE, Snapshot},
};
use crate::{
    block::{Fingerprint, Key},
    fs::{
        index::Shelf,
        layout::{Fan, Leaf},
    },
    io::{
        Disk, DiskFile,
        disk::{OpenMode, read_all_at},
        round_up,
    },
};

/// A block that a member owned.
#[derive(Debug, Clone)]
pub(crate) struct Owned {
    pub(crate) fp: Fingerprint,
    /// Index into [`Replayed::namespaces`].
    pub(crate) namespace: u16,
    pub(crate) leaf: Leaf,
    pub(crate) fan: Fan,
    pub(crate) trailer: bool,
    pub(crate) bad: bool,
    /// Units of 512 bytes.
    pub(crate) cost: u32,
    pub(crate) written_at: u32,
    pub(crate) key: Option<Key>,
    /// When it was used last, by the journal's own count.
    pub(crate) used: u64,
}

/// A leaf directory of a namespace of [`Replayed`].
pub(crate) type LeafAt = (u16, Fan, Leaf);

/// What a dead member owned.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    /// Names of the directories of the namespaces.
    pub(crate) namespaces: Vec<String>,
    /// Least recently used first; nothing of a leaf in doubt.
    pub(crate) blocks: Vec<Owned>,
    /// Leaves in which something was under way: to be looked at.
    pub(crate) doubt: HashMap<LeafAt, Vec<Owned>, FixedState>,
    /// Costs of directories in units of 512: leaves, first level, namespaces.
    pub(crate) leaves: HashMap<LeafAt, u32, FixedState>,
    pub(crate) highs: HashMap<(u16, u32), u32, FixedState>,
    pub(crate) tops: HashMap<u16, u32, FixedState>,
    /// Where its journal goes on.
    pub(crate) resume: Option<Resume>,
    /// Files of the member that no longer count.
    pub(crate) stale: Vec<PathBuf>,
    /// Allocated bytes of those that do.
    pub(crate) bytes: u64,
}

/// Why a journal cannot be used: the tree is to be walked.
#[derive(Debug)]
pub(crate) enum Unusable {
    /// There is none.
    Missing,
    /// Its bytes are not what was written.
    Damaged(String),
    /// The device failed.
    Io(io::Error),
}

impl From<io::Error> for Unusable {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

impl std::fmt::Display for Unusable {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Missing => f.write_str("there is no journal"),
            Self::Damaged(what) => write!(f, "the journal is damaged: {what}"),
            Self::Io(e) => write!(f, "the journal cannot be read: {e}"),
        }
    }
}

/// Files of a member in a state directory, by generation.
pub(crate) fn files_of(disk: &dyn Disk, root: &Path, member: u32) -> io::Result<Vec<(bool, u32)>> {
    let mut found = Vec::new();
    disk.list(&root.join(STATE_DIR), &mut |name, _| {
        if let Some((snapshot, m, generation)) = parse_name(name)
            && m == member
        {
            found.push((snapshot, generation));
        }
    })?;
    found.sort_unstable_by_key(|&(snapshot, generation)| (generation, !snapshot));
    Ok(found)
}

/// The files of a member that count, read.
struct Loaded {
    state: State,
    /// All files found.
    found: Vec<(bool, u32)>,
    /// Snapshot and journals that count but the last, and their allocated bytes.
    older: Vec<PathBuf>,
    older_bytes: u64,
    /// The last journal: path, allocated bytes, header, bytes up to the last whole frame.
    last: Option<(PathBuf, u64, Header, u64)>,
}

/// Reads the files of a member, journals up to generation `upto`.
fn load(disk: &dyn Disk, root: &Path, member: u32, fs_block: u64, upto: u32) -> Result<Loaded, Unusable> {
    let found = files_of(disk, root, member)?;
    let mut base = None;
    let mut state = State::default();
    let mut older = Vec::new();
    let mut older_bytes = 0;
    for &(snapshot, generation) in found.iter().rev().filter(|f| f.0 && f.1 <= upto) {
        let mut tried = State::default();
        let at = path(root, snapshot, member, generation);
        let bytes = whole(disk, &at)?;
        if let Ok((_, _, true)) = tried.file(&bytes, member, generation, true) {
            state = tried;
            base = Some(generation);
            older_bytes = round_up(bytes.len() as u64, fs_block);
            older.push(at);
            break;
        }
    }
    let journals: Vec<u32> = found
        .iter()
        .filter(|&&(s, g)| !s && g <= upto && base.is_none_or(|b| g >= b))
        .map(|&(_, g)| g)
        .collect();
    let first = base.unwrap_or(0);
    if journals.is_empty() && found.is_empty() {
        return Err(Unusable::Missing);
    }
    if !journals.iter().copied().eq(first..first + journals.len() as u32) || journals.is_empty() {
        return Err(Unusable::Damaged(format!(
            "generation {first} of member {member} is not whole"
        )));
    }
    let newest = journals.last().copied();
    let mut last = None::<(PathBuf, u64, Header, u64)>;
    for generation in journals {
        let at = path(root, false, member, generation);
        let bytes = whole(disk, &at)?;
        if bytes.len() < HEADER_BYTES && Some(generation) == newest && last.is_some() {
            // it died as it made this one: records went to the one before
            break;
        }
        state.shelves.clear();
        let (header, len, _) = state
            .file(&bytes, member, generation, false)
            .map_err(|what| Unusable::Damaged(format!("{}: {what}", at.display())))?;
        let allocated = round_up(bytes.len() as u64, fs_block);
        if let Some((before, bytes, ..)) = last.replace((at, allocated, header, len)) {
            older.push(before);
            older_bytes += bytes;
        }
    }
    Ok(Loaded {
        state,
        found,
        older,
        older_bytes,
        last,
    })
}

/// Reads what `member` owned when it died.
pub(crate) fn replay(disk: &dyn Disk, root: &Path, member: u32, fs_block: u64) -> Result<Replayed, Unusable> {
    let read = load(disk, root, member, fs_block, u32::MAX)?;
    let counts = |p: &PathBuf| read.older.contains(p) || read.last.as_ref().is_some_and(|l| l.0 == *p);
    let mut out = Replayed {
        stale: read
            .found
            .iter()
            .map(|&(s, g)| path(root, s, member, g))
            .filter(|p| !counts(p))
            .collect(),
        bytes: read.older_bytes + read.last.as_ref().map_or(0, |l| l.1),
        ..Replayed::default()
    };
    out.resume = read.last.map(|(_, _, header, len)| Resume {
        header,
        len,
        older: read.older,
        older_bytes: read.older_bytes,
    });
    read.state.into(&mut out);
    Ok(out)
}

/// Reads what the generations before `rotation` came to, to be written as its snapshot.
pub(crate) fn merge(
    disk: &dyn Disk,
    root: &Path,
    rotation: &Rotation,
    fs_block: u64,
) -> Result<Merged, Unusable> {
    let h = rotation.header();
    Ok(Merged(
        load(disk, root, h.member, fs_block, h.generation.wrapping_sub(1))?.state,
    ))
}

/// The state that a snapshot is made of.
pub(crate) struct Merged(State);

impl Merged {
    /// Upper limit of the snapshot's bytes.
    pub(crate) fn limit(&self) -> u64 {
        let s = &self.0;
        let keys: usize = s
            .blocks
            .values()
            .map(|o| o.key.as_ref().map_or(0, |k| k.as_bytes().len()))
            .sum();
        let dirs = s.leaves.len() + s.highs.len() + s.tops.len();
        let shelves: HashSet<(u16, Leaf)> = s.leaves.keys().map(|&(ns, _, leaf)| (ns, leaf)).collect();
        let names: usize = s.namespaces.iter().map(String::len).max().unwrap_or(0) + FRAME_BYTES + 8;
        let fixed = SNAPSHOT_BASE as usize + (shelves.len() + s.namespaces.len()) * names;
        (fixed + s.blocks.len() * (FRAME_BYTES + 48) + keys + dirs * (FRAME_BYTES + 12)) as u64
    }

    /// Writes everything, least recently used first. `number` gives the writer's number of a namespace.
    pub(crate) fn write(self, out: &mut Snapshot, number: &dyn Fn(&str) -> Option<u16>) -> io::Result<()> {
        let mut s = self.0;
        let numbers: Vec<Option<u16>> = s.namespaces.iter().map(|n| number(n)).collect();
        let of = |ns: u16| {
            let n = numbers.get(usize::from(ns)).copied().flatten();
            n.ok_or(io::Error::from(io::ErrorKind::InvalidData))
        };
        let mut blocks: Vec<Owned> = std::mem::take(&mut s.blocks).into_values().collect();
        blocks.sort_unstable_by_key(|o| o.used);
        let mut alone: HashSet<LeafAt, FixedState> = s.leaves.keys().copied().collect();
        for o in &blocks {
            let place = (o.namespace, o.fan, o.leaf);
            alone.remove(&place);
            let facts = Facts {
                trailer: o.trailer,
                bad: o.bad,
                cost: o.cost,
                written_at: o.written_at,
                dirs: [
                    s.leaves.get(&place).copied().unwrap_or(0),
                    s.highs.get(&(o.namespace, o.fan.high())).copied().unwrap_or(0),
                    s.tops.get(&o.namespace).copied().unwrap_or(0),
                ],
            };
            let shelf = Shelf {
                namespace: of(o.namespace)?,
                leaf: o.leaf,
            };
            out.stored(o.fp, (shelf, o.fan), facts, o.key.as_ref().map(Key::as_bytes))?;
        }
        let mut dir = |ns: u16, leaf: Leaf, level: u16, fan: Fan, cost: u32| -> io::Result<()> {
            let namespace = of(ns)?;
            out.dir(Shelf { namespace, leaf }, level, fan, cost)
        };
        for place in alone {
            let (ns, fan, leaf) = place;
            dir(ns, leaf, 2, fan, s.leaves.get(&place).copied().unwrap_or(0))?;
        }
        for (&(ns, high), &cost) in &s.highs {
            dir(ns, Leaf::Keyed, 1, Fan(high << 8), cost)?;
        }
        for (&ns, &cost) in &s.tops {
            dir(ns, Leaf::Keyed, 0, Fan(0), cost)?;
        }
        Ok(())
    }
}

fn set_or_remove<K: Eq + std::hash::Hash>(map: &mut HashMap<K, u32, FixedState>, key: K, cost: u32) {
    if cost == 0 {
        map.remove(&key);
    } else {
        map.insert(key, cost);
    }
}

fn whole(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read, false)?;
    let len = file.stat()?.len;
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?];
    let n = read_all_at(&*file, &mut bytes, 0)?;
    bytes.truncate(n);
    Ok(bytes)
}

/// The state while frames are read.
#[derive(Debug, Default)]
struct State {
    namespaces: Vec<String>,
    /// A file's own numbers of shelves.
    shelves: HashMap<u16, (u16, Leaf), FixedState>,
    /// By the low half of the fingerprint, which touches tell.
    blocks: HashMap<u64, Owned, FixedState>,
    open: HashSet<(Fingerprint, LeafAt), FixedState>,
    leaves: HashMap<LeafAt, u32, FixedState>,
    highs: HashMap<(u16, u32), u32, FixedState>,
    tops: HashMap<u16, u32, FixedState>,
    clock: u64,
}

impl State {
    /// Reads a file; returns its header, the bytes up to the last whole frame, and whether a snapshot is whole.
    fn file(
        &mut self,
        bytes: &[u8],
        member: u32,
        generation: u32,
        snapshot: bool,
    ) -> Result<(Header, u64, bool), String> {
        let header = Header::decode(bytes).ok_or("its header is not whole")?;
        if (header.member, header.generation, header.snapshot) != (member, generation, snapshot) {
            return Err("it is another file's".into());
        }
        // a block is told in some 60 bytes, or in twice that
        self.blocks.reserve(bytes.len() / 120);
        self.leaves.reserve(bytes.len() / 120);
        let (mut at, mut records) = (HEADER_BYTES, 0);
        loop {
            match decode(header.nonce, at as u64, bytes.get(at..).unwrap_or_default()) {
                Frame::End => return Ok((header, at as u64, false)),
                Frame::Damaged => return Err(format!("the frame at byte {at}")),
                Frame::Record(Record::End { records: n }, len) => {
                    return Ok((header, (at + len) as u64, n == records));
                }
                Frame::Record(r, len) => {
                    self.apply(&r).ok_or_else(|| format!("the record at byte {at}"))?;
                    at += len;
                    records += 1;
                }
            }
        }
    }

    fn place(&self, at: &At) -> Option<LeafAt> {
        let &(ns, leaf) = self.shelves.get(&at.shelf)?;
        Some((ns, at.fan, leaf))
    }

    fn apply(&mut self, record: &Record<'_>) -> Option<()> {
        match *record {
            Record::Shelf { number, leaf, dir } => {
                let ns = match self.namespaces.iter().position(|n| n == dir) {
                    Some(n) => n,
                    None => {
                        self.namespaces.push(dir.to_owned());
                        self.namespaces.len() - 1
                    }
                };
                self.shelves.insert(number, (u16::try_from(ns).ok()?, leaf));
            }
            Record::Begin(at) | Record::Evict(at) => {
                let place = self.place(&at)?;
                self.open.insert((at.fp, place));
            }
            Record::Stored(at, facts, key) => {
                let place = self.place(&at)?;
                self.open.remove(&(at.fp, place));
                let (ns, fan, leaf) = place;
                let [leaf_cost, high, top] = facts.dirs;
                self.leaves.insert(place, leaf_cost);
                self.highs.insert((ns, fan.high()), high);
                self.tops.insert(ns, top);
                self.clock += 1;
                let new = Owned {
                    fp: at.fp,
                    namespace: ns,
                    leaf,
                    fan,
                    trailer: facts.trailer,
                    bad: facts.bad,
                    cost: facts.cost,
                    written_at: facts.written_at,
                    key: key.and_then(|k| Key::new(k).ok()),
                    used: self.clock,
                };
                let old = self.blocks.insert(at.fp.hash64(), new);
                // two fingerprints with one half in common: touches could not tell them apart
                if old.is_some_and(|o| o.fp != at.fp) {
                    return None;
                }
            }
            Record::Gone(at, [leaf_cost, high, top]) => {
                let place = self.place(&at)?;
                self.open.remove(&(at.fp, place));
                if self.blocks.get(&at.fp.hash64()).is_some_and(|o| o.fp == at.fp) {
                    self.blocks.remove(&at.fp.hash64());
                }
                set_or_remove(&mut self.leaves, place, leaf_cost);
                set_or_remove(&mut self.highs, (place.0, place.1.high()), high);
                self.tops.insert(place.0, top);
            }
            Record::Touch(hashes) => {
                for h in hashes.chunks_exact(8) {
                    let hash = u64::from_le_bytes(*h.first_chunk::<8>()?);
                    if let Some(o) = self.blocks.get_mut(&hash) {
                        self.clock += 1;
                        o.used = self.clock;
                    }
                }
            }
            Record::Dir {
                shelf,
                level,
                fan,
                cost,
            } => {
                let &(ns, leaf) = self.shelves.get(&shelf)?;
                match level {
                    0 => self.tops.insert(ns, cost),
                    1 => self.highs.insert((ns, fan.high()), cost),
                    _ => self.leaves.insert((ns, fan, leaf), cost),
                };
            }
            Record::End { .. } => {}
        }
        Some(())
    }

    fn into(self, out: &mut Replayed) {
        for (_, place) in &self.open {
            out.doubt.entry(*place).or_default();
        }
        out.blocks.reserve(self.blocks.len());
        for o in self.blocks.into_values() {
            match out.doubt.get_mut(&(o.namespace, o.fan, o.leaf)) {
                Some(d) => d.push(o),
                None => out.blocks.push(o),
            }
        }
        // what was begun there and never told is known by its fingerprint alone
        for (fp, (namespace, fan, leaf)) in self.open {
            if let Some(d) = out.doubt.get_mut(&(namespace, fan, leaf))
                && d.iter().all(|o| o.fp != fp)
            {
                d.push(Owned {
                    fp,
                    namespace,
                    leaf,
                    fan,
                    trailer: true,
                    bad: false,
                    cost: 0,
                    written_at: 0,
                    key: None,
                    used: u64::MAX,
                });
            }
        }
        out.blocks.sort_unstable_by_key(|o| o.used);
        out.namespaces = self.namespaces;
        out.leaves = self.leaves;
        out.highs = self.highs;
        out.tops = self.tops;
    }
}

/// What a live member did to a block of the namespace that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Stored {
        fp: Fingerprint,
        leaf: Leaf,
        fan: Fan,
        trailer: bool,
        cost: u32,
    },
    Removed(Fingerprint),
}

/// Reads a live member's journal as it grows.
#[derive(Debug)]
pub(crate) struct Follower {
    member: u32,
    /// The directory of the namespace to follow.
    dir: String,
    file: Option<(Box<dyn DiskFile>, Header, u64)>,
    shelves: HashMap<u16, (bool, Leaf), FixedState>,
}

/// Bytes read at once.
const WINDOW: usize = 256 << 10;
/// Windows read in one call.
const WINDOWS: usize = 64;

impl Follower {
    pub(crate) fn new(member: u32, dir: &str) -> Self {
        Self {
            member,
            dir: dir.to_owned(),
            file: None,
            shelves: HashMap::default(),
        }
    }

    /// Reads on; every step of the namespace goes to `each`, in order. What cannot be read now is tried again by the
    /// next call.
    pub(crate) fn read(
        &mut self,
        disk: &dyn Disk,
        root: &Path,
        each: &mut dyn FnMut(Step),
    ) -> io::Result<()> {
        if self.file.is_none() {
            let files = files_of(disk, root, self.member)?;
            let start = files
                .iter()
                .rev()
                .find(|f| f.0)
                .or_else(|| files.iter().find(|f| !f.0));
            let Some(&(snapshot, generation)) = start else {
                return Ok(());
            };
            self.open(disk, root, snapshot, generation)?;
        }
        for _ in 0..WINDOWS {
            let Some((file, header, at)) = &mut self.file else {
                break;
            };
            let mut bytes = vec![0; WINDOW];
            let n = read_all_at(&**file, &mut bytes, *at)?;
            bytes.truncate(n);
            let (mut pos, mut whole) = (0, false);
            while let Frame::Record(r, len) = decode(
                header.nonce,
                *at + pos as u64,
                bytes.get(pos..).unwrap_or_default(),
            ) {
                whole |= matches!(r, Record::End { .. });
                apply(&r, &self.dir, &mut self.shelves, each);
                pos += len;
            }
            *at += pos as u64;
            if pos > 0 {
                // a snapshot that is read goes over into its journal
                if whole {
                    let generation = header.generation;
                    self.open(disk, root, false, generation)?;
                }
                continue;
            }
            // nothing new here: is there a next generation? Then no more comes into this one, but look once more
            let (snapshot, next) = (header.snapshot, header.generation.wrapping_add(1));
            let after = path(root, false, self.member, next);
            if disk.stat(&after).is_ok() {
                let mut last = [0; HEADER_BYTES];
                if read_all_at(&**file, &mut last, *at)? == 0 {
                    self.open(disk, root, false, next)?;
                    continue;
                }
            } else if snapshot
                && disk
                    .stat(&path(root, true, self.member, header.generation))
                    .is_err()
            {
                // given up before it was whole
                self.file = None;
            }
            break;
        }
        Ok(())
    }

    fn open(&mut self, disk: &dyn Disk, root: &Path, snapshot: bool, generation: u32) -> io::Result<()> {
        self.file = None;
        self.shelves.clear();
        let file = disk.open(
            &path(root, snapshot, self.member, generation),
            OpenMode::Read,
            false,
        )?;
        let mut head = [0; HEADER_BYTES];
        read_all_at(&*file, &mut head, 0)?;
        if let Some(h) =
            Header::decode(&head).filter(|h| h.generation == generation && h.snapshot == snapshot)
        {
            self.file = Some((file, h, HEADER_BYTES as u64));
        }
        Ok(())
    }
}

fn apply(
    record: &Record<'_>,
    dir: &str,
    shelves: &mut HashMap<u16, (bool, Leaf), FixedState>,
    each: &mut dyn FnMut(Step),
) {
    let ours = |shelves: &HashMap<u16, (bool, Leaf), FixedState>, at: &At| {
        shelves.get(&at.shelf).filter(|s| s.0).map(|s| s.1)
    };
    match record {
        Record::Shelf { number, leaf, dir: d } => {
            shelves.insert(*number, (*d == dir, *leaf));
        }
        Record::Stored(at, facts, _) if !facts.bad => {
            if let Some(leaf) = ours(shelves, at) {
                each(Step::Stored {
                    fp: at.fp,
                    leaf,
                    fan: at.fan,
                    trailer: facts.trailer,
                    cost: facts.cost,
                });
            }
        }
        Record::Evict(at) if ours(shelves, at).is_some() => each(Step::Removed(at.fp)),
        _ => {}
    }
}
