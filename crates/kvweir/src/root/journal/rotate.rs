//! From one generation of a journal to the next, and its end: which files count, and which go.

use std::{io, path::Path};

use super::{
    files::path,
    header::{HEADER_BYTES, Header},
    older::Older,
    out::Out,
    record::{At, Record},
    write::Journal,
};
use crate::{
    io::{
        DiskFile,
        disk::{OpenMode, write_all_at},
        round_up,
    },
    root::accounts::Accounts,
    sync::{atomic::Ordering, lock},
};

/// A change of generation.
#[derive(Debug)]
pub(crate) struct Rotation {
    pub(super) header: Header,
    pub(super) names: Vec<String>,
}

impl Rotation {
    /// The snapshot's header.
    pub(crate) fn header(&self) -> &Header {
        &self.header
    }
}

impl Journal {
    /// Begins the next generation: from now on records go to its journal. The snapshot that it stands on is to be
    /// written with what is there from now on.
    pub(crate) fn rotate(
        &self,
        accounts: &dyn Accounts,
        (nonce, block_len): (u64, u64),
    ) -> io::Result<Rotation> {
        let mut out = lock(&self.out);
        let line = out.header.line;
        let header = Header {
            generation: out.header.generation.wrapping_add(1),
            nonce,
            block_len,
            line: if line == 0 { nonce } else { line },
            ..out.header
        };
        accounts.grow(self.fs_block);
        let to = path(&self.root, false, self.member, header.generation);
        let opened = self
            .make(accounts, &mut out, &to)
            .and_then(|f| write_all_at(&*f, &header.encode(), 0).map(|()| f));
        let file = match opened {
            Ok(f) => f,
            Err(e) => {
                match self.disk.remove_file(&to) {
                    // it counts until the next try
                    Err(stays) if stays.kind() != io::ErrorKind::NotFound => {
                        self.forget(accounts, &mut out, &to);
                        out.older.push(Older {
                            path: to,
                            len: 0,
                            bytes: self.fs_block,
                        });
                    }
                    _ => accounts.shrink(self.fs_block),
                }
                return Err(e);
            }
        };
        let before = Rotation {
            header: Header {
                snapshot: true,
                ..header
            },
            names: out.names.clone(),
        };
        let left = self.current(&out);
        out.older.push(left);
        out.turn_to(file, header, HEADER_BYTES as u64);
        self.at_limit.store(false, Ordering::Relaxed);
        self.note(&out);
        let open: Vec<_> = out.open.iter().copied().collect();
        for (fp, class, prefix) in open {
            let (class, _) = out.class(class);
            out.put(&Record::Begin(At { fp, class, prefix }));
        }
        self.flush(accounts, &mut out)?;
        Ok(before)
    }

    /// Makes the file of a next generation. One that a failed try left is ours, and goes.
    fn make(&self, accounts: &dyn Accounts, out: &mut Out, to: &Path) -> io::Result<Box<dyn DiskFile>> {
        match self.disk.open(to, OpenMode::CreateNew, false) {
            Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {
                self.disk.remove_file(to)?;
                self.forget(accounts, out, to);
                self.disk.open(to, OpenMode::CreateNew, false)
            }
            r => r,
        }
    }

    /// Counts a file no more that a failed try left.
    fn forget(&self, accounts: &dyn Accounts, out: &mut Out, path: &Path) {
        let counted: u64 = out.older.iter().filter(|o| o.path == path).map(|o| o.bytes).sum();
        out.older.retain(|o| o.path != path);
        accounts.shrink(counted);
    }

    /// The snapshot of the current generation is whole: what came before is removed. Returns the bytes freed.
    pub(crate) fn commit(&self, rotation: &Rotation, snapshot: u64) -> u64 {
        let whole = Older {
            path: path(&self.root, true, self.member, rotation.header.generation),
            len: snapshot,
            bytes: round_up(snapshot, self.fs_block),
        };
        let older = std::mem::replace(&mut lock(&self.out).older, vec![whole]);
        let (freed, stuck) = self.remove(older);
        let mut out = lock(&self.out);
        out.older.extend(stuck);
        self.note(&out);
        freed
    }

    /// The journal that is written, as a file that counts.
    fn current(&self, out: &Out) -> Older {
        Older {
            path: path(&self.root, false, self.member, out.header.generation),
            len: out.len,
            bytes: round_up(out.len, self.fs_block) + out.extra,
        }
    }

    /// Removes files; returns the bytes freed, and what could not be removed.
    fn remove(&self, files: Vec<Older>) -> (u64, Vec<Older>) {
        let (mut freed, mut stuck) = (0, Vec::new());
        for old in files {
            match self.disk.remove_file(&old.path) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => {
                    tracing::warn!(path = %old.path.display(), %error, "an old journal cannot be removed");
                    stuck.push(old);
                }
                _ => freed += old.bytes,
            }
        }
        (freed, stuck)
    }

    /// Gives the journal up: its files are removed, so that the next owner walks. Returns the bytes freed.
    pub(crate) fn abandon(&self) -> u64 {
        let mut out = lock(&self.out);
        self.lost.store(true, Ordering::Relaxed);
        let current = self.current(&out);
        let mut files = std::mem::take(&mut out.older);
        files.push(current);
        out.len = 0;
        out.extra = 0;
        // what cannot be removed stays counted
        let (freed, stuck) = self.remove(files);
        out.older = stuck;
        self.note(&out);
        freed
    }

    /// Gives a snapshot up that could not be made whole. Returns the bytes of it that stay, for it cannot be removed.
    pub(crate) fn give_up(&self, rotation: &Rotation) -> u64 {
        let part = path(&self.root, true, self.member, rotation.header.generation);
        let part = match self.disk.stat(&part) {
            Ok(stat) => Older::by(part, &stat, self.fs_block),
            Err(_) => Older {
                path: part,
                len: 0,
                bytes: self.fs_block,
            },
        };
        let bytes = part.bytes;
        let (freed, stuck) = self.remove(vec![part]);
        let mut out = lock(&self.out);
        out.older.extend(stuck);
        self.note(&out);
        bytes - freed.min(bytes)
    }
}
