//! Reading a live member's journal as it grows: from the newest snapshot that is whole, generation after generation. A
//! reader that lags may find that the next generation was folded into a snapshot and removed; it then starts over with
//! that snapshot, and what is not told again by its end is gone.

use std::{collections::HashMap, io, path::Path};

use foldhash::fast::FixedState;

use super::{
    header::{HEADER_BYTES, Header},
    path,
    read::files_of,
    record::{FRAME_BYTES, Frame, Record, decode},
};
use crate::{
    block::Fingerprint,
    io::{
        Disk, DiskFile,
        disk::{OpenMode, read_all_at},
    },
    root::names::{DirClass, Prefix},
};

/// What a live member did to a block of a namespace that is followed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Step {
    Stored {
        fp: Fingerprint,
        /// Its directories, with the namespace's number here.
        class: DirClass,
        prefix: Prefix,
        trailer: bool,
        cost: u32,
    },
    Removed(Fingerprint),
    /// All that it has was told since this reading began.
    Whole,
}

/// The place in a live member's journal up to which it was read.
#[derive(Debug)]
pub(crate) struct Follower {
    member: u32,
    /// The directories of the namespaces to follow, by number.
    dirs: Vec<String>,
    file: Option<Open>,
    /// Those of the namespaces that are followed, by the file's numbers.
    classes: HashMap<u16, DirClass, FixedState>,
    /// Which reading from a snapshot on this is.
    reading: u32,
    /// Whether it was told that all is known.
    whole: bool,
    /// Generation of which not all could be read: a snapshot of a later one tells it.
    gap: Option<u32>,
    /// Where bytes lie that are no record, and how often they were met.
    stuck: (u32, u64, u32),
}

#[derive(Debug)]
struct Open {
    file: Box<dyn DiskFile>,
    header: Header,
    at: u64,
}

/// Bytes read at once.
const WINDOW: usize = 256 << 10;
/// Windows read in one call.
const WINDOWS: usize = 64;
/// After so many calls, bytes that are no record count as damage and not as half written: all is read again, once.
const STUCK: u32 = 20;
/// Bytes of the frame that ends a snapshot.
const END_BYTES: u64 = FRAME_BYTES as u64 + 8;

/// How reading on ended.
enum Read {
    Records,
    /// Bytes that are no record, or not yet.
    Other,
    Nothing,
}

impl Follower {
    pub(crate) fn new(member: u32, dirs: Vec<String>) -> Self {
        Self {
            member,
            dirs,
            file: None,
            classes: HashMap::default(),
            reading: 0,
            whole: false,
            gap: None,
            stuck: (0, 0, 0),
        }
    }

    /// Reads on; every step of the namespace goes to `each`, in order, with the number of the reading that it belongs
    /// to: one higher than `readings` was, where one begins. What cannot be read now is tried again by the next call.
    pub(crate) fn read(
        &mut self,
        disk: &dyn Disk,
        root: &Path,
        readings: &mut u32,
        each: &mut dyn FnMut(u32, Step),
    ) -> io::Result<()> {
        for _ in 0..WINDOWS {
            if self.file.is_none() && !self.begin(disk, root, readings)? {
                break;
            }
            let goes_on = match self.window(disk, root, each)? {
                Read::Records => true,
                read => self.turn(disk, root, matches!(read, Read::Other), each)?,
            };
            if !goes_on {
                break;
            }
        }
        Ok(())
    }

    /// Begins a reading; `false`: nothing to begin with is there now.
    fn begin(&mut self, disk: &dyn Disk, root: &Path, readings: &mut u32) -> io::Result<bool> {
        let files = files_of(disk, root, self.member)?;
        let snapshots = files.iter().rev().filter(|f| f.0);
        let first = files.iter().filter(|f| !f.0 && f.1 == 0);
        for &(snapshot, generation) in snapshots.chain(first) {
            self.open(disk, root, snapshot, generation)?;
            if self.file.is_some() {
                *readings = readings.wrapping_add(1);
                self.reading = *readings;
                self.whole = false;
                self.gap = None;
                return Ok(true);
            }
        }
        Ok(false)
    }

    /// Reads a window of the current file.
    fn window(&mut self, disk: &dyn Disk, root: &Path, each: &mut dyn FnMut(u32, Step)) -> io::Result<Read> {
        let Some(Open { file, header, at }) = &mut self.file else {
            return Ok(Read::Nothing);
        };
        let mut bytes = vec![0; WINDOW];
        let n = read_all_at(&**file, &mut bytes, *at)?;
        bytes.truncate(n);
        let (mut pos, mut ended) = (0, false);
        while let Frame::Record(r, len) = decode(
            header.nonce,
            *at + pos as u64,
            bytes.get(pos..).unwrap_or_default(),
        ) {
            ended |= matches!(r, Record::End { .. });
            let reading = self.reading;
            apply(&r, &self.dirs, &mut self.classes, &mut |step| each(reading, step));
            pos += len;
        }
        *at += pos as u64;
        if pos == 0 {
            return Ok(if n == 0 { Read::Nothing } else { Read::Other });
        }
        if ended {
            // a snapshot that is read goes over into its journal
            let generation = header.generation;
            self.open(disk, root, false, generation)?;
        }
        Ok(Read::Records)
    }

    /// No record lies here, or `other` bytes do: looks for where to go on. `false`: not now.
    fn turn(
        &mut self,
        disk: &dyn Disk,
        root: &Path,
        other: bool,
        each: &mut dyn FnMut(u32, Step),
    ) -> io::Result<bool> {
        let Some(Open { header, at, .. }) = &self.file else {
            return Ok(true);
        };
        let (snapshot, generation, at) = (header.snapshot, header.generation, *at);
        if snapshot {
            // damaged in the middle: what comes after it is told by its journal
            self.gap = Some(generation);
            self.open(disk, root, false, generation)?;
            return Ok(self.file.is_some());
        }
        let next = generation.wrapping_add(1);
        if is_there(disk, &path(root, false, self.member, next))? {
            // no more comes into this one, but something may have come before that was made
            return match self.window(disk, root, each)? {
                Read::Records => Ok(true),
                read => {
                    if matches!(read, Read::Other) {
                        self.gap = Some(generation);
                    }
                    self.open(disk, root, false, next)?;
                    Ok(true)
                }
            };
        }
        if !is_there(disk, &path(root, false, self.member, generation))?
            || self.is_stuck(generation, at, other)
        {
            self.file = None;
            return Ok(true);
        }
        match self.gap {
            Some(gap) => {
                let files = files_of(disk, root, self.member)?;
                for &(_, g) in files.iter().filter(|f| f.0 && f.1 > gap) {
                    if self.opened(disk, root, true, g)?.is_some() {
                        self.file = None;
                        return Ok(true);
                    }
                }
            }
            None if !self.whole => {
                self.whole = true;
                each(self.reading, Step::Whole);
            }
            None => {}
        }
        Ok(false)
    }

    /// Whether bytes that are no record were met here so often that it is time to read all again.
    fn is_stuck(&mut self, generation: u32, at: u64, other: bool) -> bool {
        if !other {
            return false;
        }
        if (self.stuck.0, self.stuck.1) != (generation, at) {
            self.stuck = (generation, at, 0);
        }
        self.stuck.2 = self.stuck.2.saturating_add(1);
        self.stuck.2 == STUCK
    }

    /// Goes on at the start of a file, if it is there and what it should be.
    fn open(&mut self, disk: &dyn Disk, root: &Path, snapshot: bool, generation: u32) -> io::Result<()> {
        self.file = None;
        self.classes.clear();
        self.file = self.opened(disk, root, snapshot, generation)?;
        Ok(())
    }

    /// Opens a file; `None`: it is not there any more, not what it should be, or a snapshot without its end.
    fn opened(
        &self,
        disk: &dyn Disk,
        root: &Path,
        snapshot: bool,
        generation: u32,
    ) -> io::Result<Option<Open>> {
        let at = path(root, snapshot, self.member, generation);
        let file = match disk.open(&at, OpenMode::Read, false) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            r => r?,
        };
        let mut head = [0; HEADER_BYTES];
        read_all_at(&*file, &mut head, 0)?;
        let want = (generation, snapshot, self.member);
        let Some(header) = Header::decode(&head).filter(|h| (h.generation, h.snapshot, h.member) == want)
        else {
            return Ok(None);
        };
        if snapshot && !has_end(&*file, header.nonce)? {
            return Ok(None);
        }
        Ok(Some(Open {
            file,
            header,
            at: HEADER_BYTES as u64,
        }))
    }
}

/// Whether a snapshot is whole.
fn has_end(file: &dyn DiskFile, nonce: u64) -> io::Result<bool> {
    let Some(at) = file.stat()?.len.checked_sub(END_BYTES) else {
        return Ok(false);
    };
    let mut bytes = [0; END_BYTES as usize];
    let n = read_all_at(file, &mut bytes, at)?;
    let end = decode(nonce, at, bytes.get(..n).unwrap_or_default());
    Ok(matches!(end, Frame::Record(Record::End { .. }, _)))
}

fn is_there(disk: &dyn Disk, path: &Path) -> io::Result<bool> {
    match disk.stat(path) {
        Ok(_) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(e) => Err(e),
    }
}

fn apply(
    record: &Record<'_>,
    dirs: &[String],
    classes: &mut HashMap<u16, DirClass, FixedState>,
    each: &mut dyn FnMut(Step),
) {
    match record {
        Record::DirClass { number, leaf, dir } => {
            let followed = dirs.iter().position(|d| d == dir);
            // a file defines a number anew in each of its writer's lives
            classes.remove(number);
            if let Some(namespace) = followed.and_then(|n| u16::try_from(n).ok()) {
                let leaf = *leaf;
                classes.insert(*number, DirClass { namespace, leaf });
            }
        }
        Record::Stored(at, facts, _) if !facts.bad => {
            if let Some(&class) = classes.get(&at.class) {
                each(Step::Stored {
                    fp: at.fp,
                    class,
                    prefix: at.prefix,
                    trailer: facts.trailer,
                    cost: facts.cost,
                });
            }
        }
        Record::Evict(at) if classes.contains_key(&at.class) => each(Step::Removed(at.fp)),
        _ => {}
    }
}
