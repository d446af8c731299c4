//! Leaf directories: blocks are found by name alone, and temporaries that are provably nobody's are swept.

use std::{collections::HashSet, ffi::OsStr, io, path::Path};

use super::{FoundFile, Survey, Sweep, Walk};
use crate::{
    block::{Fingerprint, Key},
    error::{Error, Result},
    io::disk::{FileKind, OpenMode, Stat},
    namespace::dir_seed,
    root::{
        dirs::Dirs,
        names::{DirKind, Parsed, Prefix, leaf_dir, name_fingerprint, parse_file, temp_member},
        trailer::{TRAILER_BYTES, decode, is_block_file},
        visitor::{BlockFile, Met},
    },
};

/// The leaf directory that is walked.
struct WalkedLeaf<'w> {
    namespace: u16,
    prefix: Prefix,
    leaf: DirKind,
    dir: &'w Path,
    /// The namespace's, for fingerprints.
    seed: u64,
    /// The only blocks to be counted.
    only: Option<&'w HashSet<Fingerprint>>,
}

impl Walk<'_> {
    /// Looks at a leaf directory; with `only`, counts those blocks alone. An empty one is removed. Returns whether it
    /// is still there.
    pub(crate) fn walk_leaf(
        &self,
        ns: u16,
        ns_dir: &Path,
        (prefix, leaf): (Prefix, DirKind),
        only: Option<&HashSet<Fingerprint>>,
        dirs: &Dirs,
        out: &mut Survey,
    ) -> Result<bool> {
        let dir = leaf_dir(ns_dir, prefix, leaf);
        let Some(stat) = self.look(&dir)? else {
            return Ok(false);
        };
        self.tell(|| Met::Dir {
            namespace: Some(ns),
            path: &dir,
            stat: &stat,
        });
        let Some(entries) = self.entries(&dir)? else {
            return Ok(true);
        };
        if entries.is_empty() {
            self.tell(|| Met::Empty { path: &dir });
        }
        let ns_name = ns_dir.file_name().unwrap_or_default().to_string_lossy();
        let at = WalkedLeaf {
            namespace: ns,
            prefix,
            leaf,
            dir: &dir,
            seed: dir_seed(&ns_name),
            only,
        };
        let mut any = false;
        for (name, kind) in entries {
            any |= self.walk_file(&at, &name, kind, dirs, out)?;
        }
        if !any && self.watch.is_none() && self.disk.remove_dir(&dir).is_ok() {
            return Ok(false);
        }
        out.dir_bytes += stat.allocated;
        dirs.found_dir(ns, prefix, Some(leaf), stat.allocated);
        Ok(true)
    }

    /// Looks at an entry of a leaf directory; returns whether it is a block.
    fn walk_file(
        &self,
        at: &WalkedLeaf<'_>,
        name: &OsStr,
        kind: FileKind,
        dirs: &Dirs,
        out: &mut Survey,
    ) -> Result<bool> {
        let path = at.dir.join(name);
        // what we write is ASCII: any other name is foreign
        let text = name.to_str().unwrap_or_default();
        match parse_file(text, at.prefix, at.leaf) {
            Parsed::Temp if kind == FileKind::File => self.temporary(&path, text, out)?,
            Parsed::Block(key) if kind == FileKind::File => {
                let Some(fp) = name_fingerprint(text, at.prefix, at.leaf, at.seed) else {
                    return Ok(false);
                };
                if at.only.is_some_and(|o| !o.contains(&fp)) {
                    return Ok(true);
                }
                let Some(stat) = self.look(&path)? else {
                    return Ok(false);
                };
                if let Some(watch) = self.watch {
                    watch.met(Met::Block(&BlockFile {
                        namespace: at.namespace,
                        dir: at.dir,
                        name: text,
                        fp,
                        prefix: at.prefix,
                        leaf: at.leaf,
                        key,
                        stat,
                    }));
                } else {
                    dirs.found_file(at.namespace, at.prefix, at.leaf);
                    out.blocks.push(self.block(at, fp, key, &path, &stat));
                }
                return Ok(true);
            }
            _ => self.count_foreign(&path, out)?,
        }
        Ok(false)
    }

    /// Sweeps a temporary if it is nobody's; where the walk is watched, it is told instead.
    fn temporary(&self, path: &Path, name: &str, out: &mut Survey) -> Result<()> {
        if self.watch.is_some() {
            if let Some(stat) = self.look(path)? {
                self.tell(|| Met::Temp { path, stat: &stat });
            }
        } else if self.sweeps(name) {
            match self.disk.remove_file(path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => {
                    return Err(Error::io("sweep leftover temporary", path.display(), e));
                }
                _ => out.swept += 1,
            }
        }
        Ok(())
    }

    fn sweeps(&self, name: &str) -> bool {
        match self.sweep {
            Sweep::All => true,
            Sweep::Member(n) => temp_member(name) == Some(n),
        }
    }

    /// What is known of a block from its name and size; its key, where it is wanted, also from its trailer.
    fn block(
        &self,
        at: &WalkedLeaf<'_>,
        fp: Fingerprint,
        key: Option<Key>,
        path: &Path,
        stat: &Stat,
    ) -> FoundFile {
        let block_len = self.own.get(usize::from(at.namespace)).map(|o| o.1);
        // of others' blocks only the length of ours can be guessed
        let whole = block_len.or(self.own.first().map(|o| o.1));
        let whole = whole.map(|n| n + TRAILER_BYTES as u64);
        let right = block_len.is_none_or(|n| is_block_file(stat.len, n));
        let key = match (key, block_len) {
            (None, Some(n)) if self.want_keys && at.leaf == DirKind::Keyed => self.key_in_trailer(path, n),
            (k, _) => k,
        };
        FoundFile {
            fp,
            namespace: at.namespace,
            leaf: at.leaf,
            prefix: at.prefix,
            cost: stat.counted(self.fs_block),
            mtime_ns: stat.mtime_ns,
            trailer: Some(stat.len) == whole,
            id: None,
            bad: !right && at.leaf != DirKind::Extent,
            key: key.filter(|_| block_len.is_some() && self.want_keys),
        }
    }

    fn key_in_trailer(&self, path: &Path, block_len: u64) -> Option<Key> {
        let file = self.disk.open(path, OpenMode::Read, false).ok()?;
        let mut page = [0; TRAILER_BYTES];
        let n = file
            .read_at(&mut [io::IoSliceMut::new(&mut page)], block_len)
            .ok()?;
        decode(page.get(..n)?).map(|t| t.key)
    }
}
