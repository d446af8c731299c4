//! The calls of a file system.

use std::{
    ffi::{OsStr, OsString},
    io,
    path::Path,
    sync::Arc,
};

use super::{
    SimDisk,
    data::{BLOCK, Data},
    file::{SimFile, stat_of},
    tree::{EEXIST, EISDIR, ENOENT, ENOTDIR, ENOTEMPTY, Node, errno},
};
use crate::{
    io::disk::{Disk, DiskFile, FileKind, OpenMode, Space, Stat},
    sync::{Mutex, lock},
};

impl Disk for SimDisk {
    fn open(&self, path: &Path, mode: OpenMode, _direct: bool) -> io::Result<Box<dyn DiskFile>> {
        let mut t = self.tree()?;
        t.parent_is_dir(path)?;
        let data = match (t.nodes.get(path), mode) {
            (Some(Node::Dir), _) => return Err(errno(EISDIR)),
            (Some(Node::File(_)), OpenMode::CreateNew) => return Err(errno(EEXIST)),
            (Some(Node::File(d)), _) => Arc::clone(d),
            (None, OpenMode::Read | OpenMode::Existing) => return Err(errno(ENOENT)),
            (None, _) => {
                t.clock += 1;
                let d = Arc::new(Mutex::new(Data {
                    mtime_ns: t.clock,
                    ..Data::default()
                }));
                t.nodes.insert(path.to_owned(), Node::File(Arc::clone(&d)));
                d
            }
        };
        t.handles += 1;
        let handle = t.handles;
        Ok(Box::new(SimFile {
            disk: self.clone(),
            data,
            handle,
        }))
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        let mut t = self.tree()?;
        t.parent_is_dir(to)?;
        let Some(node) = t.nodes.remove(from) else {
            return Err(errno(ENOENT));
        };
        if let Node::File(d) = &node {
            lock(d).renamed_from = Some(from.to_owned());
        }
        if let Some(Node::File(old)) = t.nodes.insert(to.to_owned(), node) {
            let mut old = lock(&old);
            old.unlinked = true;
            t.allocated -= old.taken();
        }
        Ok(())
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        let mut t = self.tree()?;
        match t.nodes.get(path) {
            None => Err(errno(ENOENT)),
            Some(Node::Dir) => Err(errno(EISDIR)),
            Some(Node::File(d)) => {
                let freed = {
                    let mut d = lock(d);
                    d.unlinked = true;
                    d.taken()
                };
                t.nodes.remove(path);
                t.allocated -= freed;
                Ok(())
            }
        }
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        let mut t = self.tree()?;
        if t.nodes.contains_key(path) {
            return Err(errno(EEXIST));
        }
        t.parent_is_dir(path)?;
        t.grow(0, BLOCK)?;
        t.nodes.insert(path.to_owned(), Node::Dir);
        Ok(())
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        let mut t = self.tree()?;
        match t.nodes.get(path) {
            None => Err(errno(ENOENT)),
            Some(Node::File(_)) => Err(errno(ENOTDIR)),
            Some(Node::Dir) if t.has_children(path) => Err(errno(ENOTEMPTY)),
            Some(Node::Dir) => {
                t.nodes.remove(path);
                t.allocated -= BLOCK;
                Ok(())
            }
        }
    }

    fn list(&self, path: &Path, each: &mut dyn FnMut(&OsStr, Option<FileKind>)) -> io::Result<()> {
        let found: Vec<(OsString, FileKind)> = {
            let t = self.tree()?;
            match t.nodes.get(path) {
                Some(Node::Dir) => {}
                Some(Node::File(_)) => return Err(errno(ENOTDIR)),
                None => return Err(errno(ENOENT)),
            }
            t.nodes
                .range(path.to_owned()..)
                .skip(1)
                .take_while(|(p, _)| p.starts_with(path))
                .filter(|(p, _)| p.parent() == Some(path))
                .map(|(p, n)| {
                    let name = p.file_name().unwrap_or_default().to_owned();
                    let kind = match n {
                        Node::Dir => FileKind::Dir,
                        Node::File(_) => FileKind::File,
                    };
                    (name, kind)
                })
                .collect()
        };
        found.iter().for_each(|(name, kind)| each(name, Some(*kind)));
        Ok(())
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        let t = self.tree()?;
        match t.nodes.get(path) {
            None => Err(errno(ENOENT)),
            Some(Node::File(d)) => Ok(stat_of(&lock(d))),
            Some(Node::Dir) => Ok(Stat {
                len: BLOCK,
                allocated: BLOCK,
                mtime_ns: 0,
                kind: FileKind::Dir,
                uid: 0,
                mode: 0o700,
                links: 2,
            }),
        }
    }

    fn sync_all(&self, path: &Path) -> io::Result<()> {
        let t = self.tree()?;
        for (_, node) in t.nodes.iter().filter(|(p, _)| p.starts_with(path)) {
            if let Node::File(d) = node {
                lock(d).sync();
            }
        }
        Ok(())
    }

    fn space(&self, _path: &Path) -> io::Result<Space> {
        let t = self.tree()?;
        let total = t.capacity.unwrap_or(1 << 50);
        Ok(Space {
            total,
            available: total.saturating_sub(t.allocated),
            block: BLOCK,
        })
    }
}
