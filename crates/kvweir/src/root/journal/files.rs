//! What the files of a member are called, and where they lie.

use std::path::{Path, PathBuf};

use crate::root::names::STATE_DIR;

/// `journal-<member>-<generation>` or `snapshot-...`.
fn file_name(snapshot: bool, member: u32, generation: u32) -> String {
    let what = if snapshot { "snapshot" } else { "journal" };
    format!("{what}-{member:02}-{generation:08}")
}

/// Reads such a name: whether a snapshot, member, generation.
pub(crate) fn parse_name(name: &str) -> Option<(bool, u32, u32)> {
    let (what, rest) = name.split_once('-')?;
    let snapshot = match what {
        "snapshot" => true,
        "journal" => false,
        _ => return None,
    };
    let (member, generation) = rest.split_once('-')?;
    let (member, generation) = (member.parse().ok()?, generation.parse().ok()?);
    (file_name(snapshot, member, generation) == name).then_some((snapshot, member, generation))
}

pub(crate) fn path(root: &Path, snapshot: bool, member: u32, generation: u32) -> PathBuf {
    root.join(STATE_DIR).join(file_name(snapshot, member, generation))
}
