//! A walk that is watched, by the operator commands: it changes nothing, tells what it meets, and goes on where
//! something cannot be read.

use std::path::Path;

use super::names::{DirKind, Prefix};
use crate::{
    block::{Fingerprint, Key},
    error::Error,
    io::disk::Stat,
};

/// What a watched walk meets.
pub(crate) enum Met<'a> {
    /// A namespace's directory and its number; told before anything below any namespace.
    Namespace { number: u16, path: &'a Path },
    /// A directory that belongs to the layout, the root included.
    Dir {
        namespace: Option<u16>,
        path: &'a Path,
        stat: &'a Stat,
    },
    /// A first-level or leaf directory without entries.
    Empty { path: &'a Path },
    /// A block file, by its name.
    Block(&'a BlockFile<'a>),
    /// A temporary of ours.
    Temp { path: &'a Path, stat: &'a Stat },
    /// A file or directory of ours that is no block: identity, what lies below `.kvweir`.
    Own { path: &'a Path, stat: &'a Stat },
    /// A file or directory that is not ours.
    Foreign { path: &'a Path, stat: &'a Stat },
    /// Something that cannot be looked at.
    Unreadable { path: &'a Path, error: &'a Error },
}

/// A block file as a watched walk meets it.
pub(crate) struct BlockFile<'a> {
    pub(crate) namespace: u16,
    pub(crate) dir: &'a Path,
    pub(crate) name: &'a str,
    pub(crate) fp: Fingerprint,
    pub(crate) prefix: Prefix,
    pub(crate) leaf: DirKind,
    pub(crate) key: Option<Key>,
    pub(crate) stat: Stat,
}

/// Watches a walk; called by all of its threads.
pub(crate) trait Watch: Sync {
    /// Whether to walk this namespace.
    fn wants(&self, _namespace: &str) -> bool {
        true
    }

    /// Told of everything met.
    fn met(&self, what: Met<'_>);
}
