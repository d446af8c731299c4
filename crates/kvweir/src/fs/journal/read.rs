//! Reading the files of a member: which of them count, and why they may not be used.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{STATE_DIR, parse_name, path, record::Header, state::State};
use crate::io::{
    Disk,
    disk::{OpenMode, read_all_at},
    round_up,
};

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
pub(super) struct Loaded {
    pub(super) state: State,
    /// All files found.
    pub(super) found: Vec<(bool, u32)>,
    /// Snapshot and journals that count but the last, and their allocated bytes.
    pub(super) older: Vec<PathBuf>,
    pub(super) older_bytes: u64,
    /// The last journal: path, allocated bytes, header, bytes up to the last whole frame.
    pub(super) last: Option<(PathBuf, u64, Header, u64)>,
}

/// Reads the files of a member, journals up to generation `upto`.
pub(super) fn load(
    disk: &dyn Disk,
    root: &Path,
    member: u32,
    fs_block: u64,
    upto: u32,
) -> Result<Loaded, Unusable> {
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
    let mut last = None::<(PathBuf, u64, Header, u64)>;
    for generation in journals {
        let at = path(root, false, member, generation);
        let bytes = whole(disk, &at)?;
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

fn whole(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let file = disk.open(path, OpenMode::Read, false)?;
    let len = file.stat()?.len;
    let mut bytes = vec![0; usize::try_from(len).map_err(|_| io::ErrorKind::OutOfMemory)?];
    let n = read_all_at(&*file, &mut bytes, 0)?;
    bytes.truncate(n);
    Ok(bytes)
}
