//! The keys of a namespace's blocks, as names, trailers and records tell them: what residency events are compared with
//! (I7). Reads no block.

use std::{collections::BTreeSet, path::PathBuf};

use super::{
    Admin,
    extents::{ExtentFiles, ExtentState, Slot, look, map_parallel, pairs, table},
    survey::last_page,
};
use crate::{
    block::Key,
    error::Result,
    io::disk::OpenMode,
    root::{
        names::DirKind,
        trailer::decode,
        visitor::{Met, Watch},
    },
    sync::{Mutex, lock},
};

/// The blocks of a namespace by where they lie.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct Keys {
    /// Blocks that have files of their own.
    pub files: BTreeSet<Key>,
    /// Blocks of which a slot's record tells. The record of a block that was evicted stays until its slot is taken
    /// again: what is here need not be resident.
    pub packed: BTreeSet<Key>,
    /// What could not be read, relative to the root, and why.
    pub unreadable: Vec<String>,
    /// Extents that cannot be used, and why: half of one is there while an engine removes it.
    pub unusable_extents: Vec<String>,
}

#[derive(Default)]
struct KeysFound {
    keys: Keys,
    parts: Vec<PathBuf>,
}

struct Gather<'a> {
    admin: &'a Admin,
    namespace: &'a str,
    out: Mutex<KeysFound>,
}

impl Watch for Gather<'_> {
    fn wants(&self, namespace: &str) -> bool {
        namespace == self.namespace
    }

    fn met(&self, what: Met<'_>) {
        match what {
            Met::Block(file) if file.leaf == DirKind::Extent => {
                lock(&self.out).parts.push(file.dir.join(file.name));
            }
            Met::Block(file) => {
                let path = file.dir.join(file.name);
                let named = file.key.clone();
                let key = named.or_else(|| {
                    let page = last_page(&*self.admin.disk, &path, file.stat.len)?;
                    decode(&page).map(|t| t.key)
                });
                let keys = &mut lock(&self.out).keys;
                match key {
                    Some(key) => {
                        keys.files.insert(key);
                    }
                    None => {
                        let path = self.admin.short(&path);
                        keys.unreadable
                            .push(format!("{path}: neither name nor trailer tells a key"));
                    }
                }
            }
            Met::Unreadable { path, error } => {
                let path = self.admin.short(path);
                lock(&self.out).keys.unreadable.push(format!("{path}: {error}"));
            }
            _ => {}
        }
    }
}

impl Admin {
    /// The keys of the blocks in the namespace whose directory has this name. May run beside engines: what they write
    /// meanwhile may be in it or not.
    ///
    /// # Errors
    /// The I/O error of listing the root.
    pub fn keys(&self, namespace: &str) -> Result<Keys> {
        let gather = Gather {
            admin: self,
            namespace,
            out: Mutex::default(),
        };
        self.walk(self.threads, &gather)?;
        let KeysFound { mut keys, parts } = gather
            .out
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let extents = pairs(parts);
        for found in map_parallel(self.threads, &extents, |e| self.keys_of(e)) {
            match found {
                Ok(found) => keys.packed.extend(found),
                Err(why) => keys.unusable_extents.push(why),
            }
        }
        Ok(keys)
    }

    /// The keys of an extent's records; why there are none to be had.
    fn keys_of(&self, extent: &ExtentFiles) -> std::result::Result<Vec<Key>, String> {
        let tell = |why: String| format!("{}: {why}", self.short(extent.path()));
        let found = look(&*self.disk, extent, OpenMode::Read).map_err(|e| tell(e.to_string()))?;
        let (ExtentState::Whole(header), Some(file)) = found else {
            return Err(tell("no extent that can be used".into()));
        };
        let mut keys = Vec::new();
        table(&*file, &header, &mut |_, _, slot| {
            if let Slot::Block(record) = slot {
                keys.push(record.key);
            }
        })
        .map_err(|e| tell(e.to_string()))?;
        Ok(keys)
    }
}
