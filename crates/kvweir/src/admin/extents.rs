//! Extents of packed blocks, read without an engine: both files, the header, the table, and what they say of a
//! namespace.

use std::{
    collections::BTreeMap,
    io,
    path::{Path, PathBuf},
};

use crate::{
    block::Fingerprint,
    fs::packed::format::{HEADER_BYTES, Header, RECORD_BYTES, Record, claims_version},
    io::{
        Disk, DiskFile,
        disk::{OpenMode, read_all_at},
    },
    root::names::{DirKind, Location, Part, Prefix, extent_part, leaf_dir},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        lock, thread,
    },
};

/// Bytes of a table read at once.
const READ_BYTES: usize = 1 << 20;

/// The files of an extent, as far as they are there.
#[derive(Debug, Clone, Default)]
pub(super) struct ExtentFiles {
    pub(super) nonce: u64,
    pub(super) table: Option<PathBuf>,
    pub(super) data: Option<PathBuf>,
}

impl ExtentFiles {
    /// One of them, to name the extent by.
    pub(super) fn path(&self) -> &Path {
        let some = self.table.as_deref().or(self.data.as_deref());
        some.unwrap_or(Path::new(""))
    }
}

/// Puts the files of extents together by their names.
pub(super) fn pairs(mut files: Vec<PathBuf>) -> Vec<ExtentFiles> {
    let mut out: BTreeMap<u128, ExtentFiles> = BTreeMap::new();
    files.sort_unstable();
    for (n, path) in files.into_iter().enumerate() {
        let name = path.file_name().and_then(|n| n.to_str()).unwrap_or_default();
        match extent_part(name) {
            Some((part, nonce)) => {
                let e = out.entry(u128::from(nonce)).or_default();
                e.nonce = nonce;
                match part {
                    Part::Table => e.table = Some(path),
                    Part::Data => e.data = Some(path),
                }
            }
            // in the directory of extents, and no name of one
            None => {
                let lone = out.entry(1 << 64 | n as u128).or_default();
                lone.data = Some(path);
            }
        }
    }
    out.into_values().collect()
}

/// The other file of the extent that has `path`.
pub(super) fn other_part(path: &Path) -> Option<PathBuf> {
    let (part, nonce) = extent_part(path.file_name()?.to_str()?)?;
    let dir = leaf_dir(Path::new(""), Prefix(0), DirKind::Extent);
    path.parent().filter(|p| p.ends_with(dir))?;
    let other = match part {
        Part::Table => Part::Data,
        Part::Data => Part::Table,
    };
    Some(path.with_file_name(Location::of_extent(other, nonce).file_name()))
}

/// What an extent is.
#[derive(Debug)]
pub(super) enum ExtentState {
    /// All of it is there.
    Whole(Header),
    /// Its header is right, and this file ends after so many bytes of so many.
    Truncated(Header, PathBuf, u64, u64),
    /// Only this file of it is there.
    Half(PathBuf),
    /// A later version wrote it.
    Newer(String),
    /// Its header is not one that was written whole.
    Damaged(&'static str),
}

/// What the table says of a slot.
#[derive(Debug)]
pub(super) enum Slot {
    Empty,
    Block(Record),
    /// Neither a record nor nothing.
    Damaged,
}

/// What is known of an extent from its table.
#[derive(Debug)]
pub(super) struct Known {
    pub(super) header: Header,
    /// Records of blocks.
    pub(super) records: u64,
    /// When the newest was written.
    pub(super) newest_s: u32,
    pub(super) times: Vec<u32>,
    /// Fingerprints of keys.
    pub(super) keys: Vec<Fingerprint>,
}

/// What all extents of a namespace hold.
#[derive(Debug, Default)]
pub(super) struct Packed {
    /// Extents that cannot be used: damaged, cut, or of a later version.
    pub(super) unusable: u64,
    pub(super) slots: u64,
    pub(super) records: u64,
    /// Keys: of several records of one the latest holds.
    pub(super) blocks: u64,
    pub(super) times: Vec<u32>,
}

/// Opens the table file and reads the header.
pub(super) fn look(
    disk: &dyn Disk,
    e: &ExtentFiles,
    mode: OpenMode,
) -> io::Result<(ExtentState, Option<Box<dyn DiskFile>>)> {
    let (Some(table), Some(data)) = (&e.table, &e.data) else {
        return Ok((ExtentState::Half(e.path().to_owned()), None));
    };
    let file = disk.open(table, mode, false)?;
    let mut page = vec![0; HEADER_BYTES as usize];
    let n = read_all_at(&*file, &mut page, 0)?;
    page.truncate(n);
    let Some(h) = Header::decode(&page) else {
        let why = "the first page is not a whole header";
        let found = claims_version(&page).map_or(ExtentState::Damaged(why), ExtentState::Newer);
        return Ok((found, None));
    };
    if h.nonce != e.nonce {
        return Ok((ExtentState::Damaged("the header is that of another extent"), None));
    }
    for (path, len, need) in [
        (table, file.stat()?.len, h.table_len()),
        (data, disk.stat(data)?.len, h.data_len()),
    ] {
        if len < need {
            return Ok((ExtentState::Truncated(h, path.clone(), len, need), None));
        }
    }
    Ok((ExtentState::Whole(h), Some(file)))
}

/// Headers of those extents that have one.
pub(super) fn headers(disk: &dyn Disk, extents: &[ExtentFiles]) -> Vec<Header> {
    let read = |e: &ExtentFiles| match look(disk, e, OpenMode::Read).ok()?.0 {
        ExtentState::Whole(h) | ExtentState::Truncated(h, ..) => Some(h),
        _ => None,
    };
    extents.iter().filter_map(read).collect()
}

/// What `bytes` says of the slot `place`.
pub(super) fn slot(bytes: &[u8; RECORD_BYTES], header: &Header, place: u32) -> Slot {
    match Record::decode(bytes, header.nonce, place) {
        Some(r) => Slot::Block(r),
        None if bytes.iter().all(|&b| b == 0) => Slot::Empty,
        None => Slot::Damaged,
    }
}

/// Calls `each` for every slot of the table; returns the bytes read.
pub(super) fn table(
    file: &dyn DiskFile,
    header: &Header,
    each: &mut dyn FnMut(u32, &[u8; RECORD_BYTES], Slot),
) -> io::Result<u64> {
    let mut piece = vec![0; READ_BYTES.min(header.slots as usize * RECORD_BYTES)];
    let (mut place, mut bytes) = (0, 0);
    while place < header.slots {
        let n = read_all_at(file, &mut piece, Header::record_at(place))?;
        let (records, _) = piece.get(..n).unwrap_or_default().as_chunks::<RECORD_BYTES>();
        if records.is_empty() {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        for r in records.iter().take((header.slots - place) as usize) {
            each(place, r, slot(r, header, place));
            place += 1;
        }
        bytes += n as u64;
    }
    Ok(bytes)
}

/// Reads the table of an extent; `None`: it cannot be used.
pub(super) fn known(disk: &dyn Disk, e: &ExtentFiles) -> io::Result<Option<Known>> {
    let (ExtentState::Whole(header), Some(file)) = look(disk, e, OpenMode::Read)? else {
        return Ok(None);
    };
    let mut out = Known {
        header,
        records: 0,
        newest_s: 0,
        times: Vec::new(),
        keys: Vec::new(),
    };
    table(&*file, &header, &mut |_, _, slot| {
        if let Slot::Block(r) = slot {
            out.records += 1;
            out.newest_s = out.newest_s.max(r.written_at);
            out.times.push(r.written_at);
            out.keys.push(r.key.fingerprint(0));
        }
    })?;
    Ok(Some(out))
}

/// Calls `work` for all of `items`, by up to `threads` threads.
pub(super) fn in_parallel<T: Sync>(threads: usize, items: &[T], work: impl Fn(&T) + Sync) {
    let at = AtomicUsize::new(0);
    thread::scope(|scope| {
        let run = || {
            while let Some(item) = items.get(at.fetch_add(1, Ordering::Relaxed)) {
                work(item);
            }
        };
        for n in 1..threads.min(items.len()) {
            // fewer helpers than asked for is only slower
            let _ = thread::Builder::new()
                .name(format!("kvweir-extents-{n}"))
                .spawn_scoped(scope, run);
        }
        run();
    });
}

/// As [`in_parallel`], with what `work` returns, in the order of `items`.
pub(super) fn map_parallel<T: Sync, R: Send>(
    threads: usize,
    items: &[T],
    work: impl Fn(&T) -> R + Sync,
) -> Vec<R> {
    let out: Mutex<Vec<(usize, R)>> = Mutex::new(Vec::with_capacity(items.len()));
    let numbered: Vec<(usize, &T)> = items.iter().enumerate().collect();
    in_parallel(threads, &numbered, |&(n, item)| {
        let r = work(item);
        lock(&out).push((n, r));
    });
    let mut out = out
        .into_inner()
        .unwrap_or_else(std::sync::PoisonError::into_inner);
    out.sort_unstable_by_key(|o| o.0);
    out.into_iter().map(|o| o.1).collect()
}
