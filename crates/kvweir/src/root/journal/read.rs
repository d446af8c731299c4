//! Reading the files of a member: which of them count, and why they may not be used.

use std::{io, path::Path};

use super::{
    header::{HEADER_BYTES, Header},
    older::Older,
    parse_name, path,
    state::FoldState,
};
use crate::{
    io::{Disk, disk::FileKind},
    root::{
        journal::{
            unusable::{Seen, Unusable},
            window::Window,
        },
        names::STATE_DIR,
    },
};

/// Files of a member in a state directory, by generation.
pub(crate) fn files_of(disk: &dyn Disk, root: &Path, member: u32) -> io::Result<Vec<(bool, u32)>> {
    let mut found = Vec::new();
    disk.list(&root.join(STATE_DIR), &mut |name, kind| {
        if let Some((snapshot, m, generation)) = name.to_str().and_then(parse_name)
            && kind != Some(FileKind::Dir)
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
    pub(super) state: FoldState,
    /// All files found.
    pub(super) found: Vec<(bool, u32)>,
    /// Snapshot and journals that count but the last.
    pub(super) older: Vec<Older>,
    /// The last journal, its header, and bytes up to the last whole frame.
    pub(super) last: Option<(Older, Header, u64)>,
    /// All journals that count, oldest first.
    pub(super) seen: Vec<Seen>,
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
    let (mut base, mut nonce) = (None, None);
    let mut state = FoldState::default();
    let mut older = Vec::new();
    for &(snapshot, generation) in found.iter().rev().filter(|f| f.0 && f.1 <= upto) {
        let mut tried = FoldState::default();
        let at = path(root, snapshot, member, generation);
        let mut bytes = Window::open(disk, &at)?;
        match tried.file(&mut bytes, member, generation, true) {
            Ok((header, _, true)) => {
                state = tried;
                base = Some(generation);
                nonce = Some(header.nonce);
                older.push(bytes.counts(at, fs_block)?);
                break;
            }
            Err(Unusable::Io(e)) => return Err(e.into()),
            _ => {}
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
    let mut last = None::<(Older, Header, u64)>;
    let mut seen = Vec::new();
    for generation in journals {
        let at = path(root, false, member, generation);
        let mut bytes = Window::open(disk, &at)?;
        if bytes.len()? < HEADER_BYTES as u64 && Some(generation) == newest && last.is_some() {
            // it died while making this one: its records are in the one before
            break;
        }
        state.classes.clear();
        let (header, len, _) =
            state
                .file(&mut bytes, member, generation, false)
                .map_err(|why| match why {
                    Unusable::Damaged(what) => Unusable::Damaged(format!("{}: {what}", at.display())),
                    other => other,
                })?;
        // snapshot and journal of a generation are of one writer
        if nonce.take().is_some_and(|n| n != header.nonce) {
            return Err(Unusable::Damaged(format!(
                "{}: it is another root's",
                at.display()
            )));
        }
        seen.push(Seen {
            generation,
            nonce: header.nonce,
            line: header.line,
            len,
        });
        let file = bytes.counts(at, fs_block)?;
        older.extend(last.replace((file, header, len)).map(|(before, ..)| before));
    }
    Ok(Loaded {
        state,
        found,
        older,
        last,
        seen,
    })
}
