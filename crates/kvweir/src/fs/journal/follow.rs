//! Reading a live member's journal as it grows.

use std::{collections::HashMap, io, path::Path};

use foldhash::fast::FixedState;

use super::{
    path,
    read::files_of,
    record::{At, Frame, HEADER_BYTES, Header, Record, decode},
};
use crate::{
    block::Fingerprint,
    fs::layout::{Fan, Leaf},
    io::{
        Disk, DiskFile,
        disk::{OpenMode, read_all_at},
    },
};

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

/// The place in a live member's journal up to which it was read.
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
