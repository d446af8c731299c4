//! The two files of an extent: made, opened and removed. To the root each is a counted file like a block's.

use std::{io, path::Path, sync::Arc};

use super::{
    extent::{Data, Extent, data_cost, table_cost},
    extents::Pack,
    format::Header,
    free::SlotRun,
};
use crate::{
    block::Fingerprint,
    catalog::Begin,
    error::{IoClass, classify},
    evict::Id,
    fs::{body::FileBody, promise::Promise, space::Space},
    io::{
        DiskFile, PAGE, Stat,
        disk::{OpenMode, write_all_at},
    },
    metrics::EvictReason,
    root::{
        file::{Author, NewFile},
        names::{Location, Part},
    },
    sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
        lock,
    },
};

/// Names tried for a new extent.
const NONCES: usize = 8;
/// Bytes of zeros written at once where a file system cannot preallocate.
const ZEROS: usize = 1 << 20;

/// One file of an extent on its way.
struct NewPart<'a> {
    s: &'a Space,
    part: Part,
    at: &'a Location,
    header: &'a Header,
}

impl Author for NewPart<'_> {
    /// Preallocates and writes it.
    fn write(&mut self, dir: &Path) -> io::Result<Stat> {
        let root = &self.s.root;
        let name = self.at.file_name();
        let (temp, file) = root.create_temp(dir, &name, false)?;
        let (len, head) = match self.part {
            Part::Table => (self.header.table_len(), Some(self.header.encode())),
            Part::Data => (self.header.data_len(), None),
        };
        let published = preallocate(&*file, len)
            .and_then(|()| head.map_or(Ok(()), |h| write_all_at(&*file, &h, 0)))
            .and_then(|()| file.stat())
            .and_then(|stat| root.disk.rename(&temp, &dir.join(&name)).map(|()| stat));
        if published.is_err() {
            root.discard(&self.s.core, temp, file.stat().map_or(len, |st| st.allocated));
        }
        published
    }
}

/// An entry of a file that is being made. Dropped only by a panic.
struct Making<'a>(&'a Space, Id);

impl Drop for Making<'_> {
    fn drop(&mut self) {
        lock(&self.0.core).catalog.abort(self.1);
    }
}

impl Pack {
    /// Makes and opens an extent, for which bytes are reserved.
    pub(super) fn make_extent(
        &self,
        s: &Space,
        number: u32,
        slots: u32,
        mut promise: Promise<'_>,
    ) -> io::Result<()> {
        let unit = s.root.unit;
        let header = Header {
            slots,
            slot_bytes: u32::try_from(self.slot_bytes).map_err(|_| io::ErrorKind::InvalidInput)?,
            block_len: s.params.block_len as u64,
            nonce: unused_nonce(s)?,
            namespace: *s.ns.digest(),
            made_at: s.clock.unix_seconds(),
        };
        // without its table a data file is nothing: the table comes last
        let data_cost = data_cost(slots, self.slot_bytes, unit);
        let data = make_part(s, Part::Data, &header, data_cost, &mut promise)?;
        let table = make_part(s, Part::Table, &header, table_cost(slots, unit), &mut promise)
            .inspect_err(|_| remove_part(s, data, EvictReason::NoSpace))?;
        drop(promise);
        let ids = [table, data];
        let files = open_extent(s, header.nonce).inspect_err(|_| {
            ids.into_iter()
                .for_each(|id| remove_part(s, id, EvictReason::NoSpace));
        })?;
        lock(&s.core).account.no_help_until = None;
        let all = SlotRun { first: 0, len: slots };
        let extent = files.into_extent(number, header, ids, 0);
        self.add(Arc::new(extent), 0, [all]);
        Ok(())
    }
}

/// A nonce whose files are not there: a file that is renamed would take the place of another one.
fn unused_nonce(s: &Space) -> io::Result<u64> {
    for _ in 0..NONCES {
        let nonce = s.root.nonce();
        let is_free = |part| {
            let path = s.root.path_of(&Location::of_extent(part, nonce).below(s.id.0));
            match s.root.disk.stat(&path) {
                Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(true),
                r => r.map(|_| false),
            }
        };
        if is_free(Part::Data)? && is_free(Part::Table)? {
            return Ok(nonce);
        }
    }
    Err(io::ErrorKind::AlreadyExists.into())
}

/// Makes one file of an extent, counted as `cost` out of what is promised; returns its entry.
fn make_part(s: &Space, part: Part, header: &Header, cost: u64, promise: &mut Promise<'_>) -> io::Result<Id> {
    let at = Location::of_extent(part, header.nonce).below(s.id.0);
    let fp = Fingerprint::of(at.file_name().as_bytes(), s.ns.seed());
    let (id, class) = {
        let mut core = lock(&s.core);
        let class = core
            .classes
            .number(at.class().0)
            .ok_or(io::ErrorKind::OutOfMemory)?;
        match core.catalog.begin(fp) {
            Begin::New(id) => (id, class),
            Begin::Known(..) => return Err(io::ErrorKind::AlreadyExists.into()),
            Begin::Full => return Err(io::ErrorKind::OutOfMemory.into()),
        }
    };
    let making = Making(s, id);
    let file = NewFile {
        fp,
        at: &at,
        key: None,
        trailer: false,
        cost: Some(cost),
        written_at: header.made_at,
    };
    let mut author = NewPart {
        s,
        part,
        at: &at,
        header,
    };
    let counted = s.root.publish(&s.core, &file, &mut author)?;
    std::mem::forget(making);
    let mut core = lock(&s.core);
    let core = &mut *core;
    promise.spend(&mut core.account, counted.cost, counted.dirs);
    let body = FileBody::new(class, at.prefix, cost).written(false, header.made_at);
    core.catalog.set_aside(id, body.body());
    Ok(id)
}

/// Removes a file of an extent.
pub(super) fn remove_part(s: &Space, id: Id, reason: EvictReason) {
    let victim = lock(&s.core).begin_removal(id);
    if let Some(v) = victim {
        s.remove_victim(&v, reason, true);
    }
}

/// Opens the files of the extent numbered `nonce`.
pub(super) fn open_extent(s: &Space, nonce: u64) -> io::Result<Files> {
    let path = |part| s.root.path_of(&Location::of_extent(part, nonce).below(s.id.0));
    // what is not there must not be made
    let table = s.root.disk.open(&path(Part::Table), OpenMode::Existing, false)?;
    let path = path(Part::Data);
    let wanted = s.root.direct.load(Ordering::Relaxed) && s.params.block_len.is_multiple_of(PAGE);
    let direct = match wanted.then(|| s.root.disk.open(&path, OpenMode::Existing, true)) {
        Some(Ok(f)) => Some(f),
        Some(Err(e)) if classify(&e) != IoClass::Invalid => return Err(e),
        _ => None,
    };
    let data = Data {
        path,
        direct,
        cached: OnceLock::new(),
    };
    if data.direct.is_none() {
        // one way is open from the start: else nobody could tell that the file was removed
        data.file(&*s.root.disk, false)?;
    }
    Ok(Files { table, data })
}

/// An extent's open files.
pub(super) struct Files {
    pub(super) table: Box<dyn DiskFile>,
    pub(super) data: Data,
}

impl Files {
    pub(super) fn into_extent(self, number: u32, header: Header, ids: [Id; 2], fresh_from: u32) -> Extent {
        Extent {
            number,
            header,
            ids,
            table: self.table,
            data: self.data,
            fresh_from: AtomicU32::new(fresh_from),
        }
    }
}

/// Makes the device give all bytes now, so that no later write runs out of space.
fn preallocate(file: &dyn DiskFile, len: u64) -> io::Result<()> {
    match file.allocate(len) {
        Err(e) if classify(&e) == IoClass::Invalid => {
            let zeros = vec![0; ZEROS];
            let mut at = 0;
            while at < len {
                let n = usize::try_from(len - at).unwrap_or(ZEROS).min(ZEROS);
                write_all_at(file, zeros.get(..n).unwrap_or_default(), at)?;
                at += n as u64;
            }
            Ok(())
        }
        r => r,
    }
}
