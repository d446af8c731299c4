//! A block is written: room is reserved for the file with its trailer and directories, it is written under a temporary
//! name, and published by rename.

use std::{io, path::Path};

use crate::{
    block::Key,
    error::{ErrorKind, IoClass, classify},
    fs::{
        body::FileBody,
        files::cost::{file_len, write_cost},
        space::Space,
        written::{Bill, Placed},
    },
    io::{
        Disk, DiskFile, Stat, buffer::PageBuffer, disk::write_full, is_aligned, round_up,
        tree::most_allocated,
    },
    jobs::StoreRun,
    metrics::{EvictReason, RefuseReason},
    root::{
        file::{Author, Counted, NewFile},
        names::Location,
        trailer::{TRAILER_BYTES, Trailer, encode, payload_sum},
    },
    sync::{atomic::Ordering, lock},
};

/// Writes the block of a unit; what it comes to, or what it is reported as.
pub(super) fn write<'s>(
    s: &'s Space,
    run: &StoreRun<Space>,
    unit: usize,
    scratch: &mut PageBuffer,
) -> Result<Placed<'s>, ErrorKind> {
    let Some(key) = run.keys.get(unit) else {
        return Err(ErrorKind::Invalid);
    };
    let at = s.location(key);
    let Some(class) = lock(&s.core).classes.number(at.class().0) else {
        run.count_refused(RefuseReason::NoRoom, 1);
        return Err(ErrorKind::Full);
    };
    let cost = write_cost(s.params.block_len, s.root.unit);
    let promise = s.make_room(cost, EvictReason::Capacity).map_err(|no| {
        run.count_refused(no.0, 1);
        no.kind()
    })?;
    let written = publish(s, run, (unit, key), &at, scratch);
    match written {
        Ok(counted) => {
            let body = FileBody::new(class, at.prefix, counted.cost).written(true, s.clock.unix_seconds());
            Ok(Placed {
                body: body.body(),
                bytes: file_len(s.params.block_len),
                bill: Some(Bill {
                    promise,
                    cost: counted.cost,
                    dirs: counted.dirs,
                }),
            })
        }
        Err(e) => {
            tracing::debug!(block = %at.stem, "a block was not stored");
            if classify(&e) == IoClass::Full {
                lock(&s.core).account.eviction_does_not_help(s.clock.now());
            }
            Err(s.not_written(run, &e, 1))
        }
    }
}

fn publish(
    s: &Space,
    run: &StoreRun<Space>,
    (unit, key): (usize, &Key),
    at: &Location,
    scratch: &mut PageBuffer,
) -> io::Result<Counted> {
    let slot = run.take_slot(unit).ok_or(io::ErrorKind::InvalidInput)?;
    let page = scratch.as_mut_slice().first_chunk_mut::<TRAILER_BYTES>();
    let mut block = Block {
        s,
        run,
        key,
        at,
        slot: &slot,
        page: page.ok_or(io::ErrorKind::InvalidInput)?,
        is_encoded: false,
    };
    let file = NewFile {
        fp: run.fps.get(unit).copied().ok_or(io::ErrorKind::InvalidInput)?,
        at,
        key: Some(key),
        trailer: true,
        cost: None,
        written_at: s.clock.unix_seconds(),
    };
    s.root.publish(&s.core, &file, &mut block)
}

/// A block on its way into its file.
struct Block<'a> {
    s: &'a Space,
    run: &'a StoreRun<Space>,
    key: &'a Key,
    at: &'a Location,
    slot: &'a [u8],
    page: &'a mut [u8; TRAILER_BYTES],
    is_encoded: bool,
}

impl Author for Block<'_> {
    fn write(&mut self, dir: &Path) -> io::Result<Stat> {
        let clock = &self.s.clock;
        self.run.progress.begin_io(clock.now());
        let written = self.encode().and_then(|()| self.write_and_publish(dir));
        let bytes = if written.is_ok() {
            file_len(self.s.params.block_len)
        } else {
            0
        };
        self.run.progress.end_io(clock.now(), bytes);
        written
    }

    /// What one block costs goes; the reservation made before still stands.
    fn make_space(&mut self, error: &io::Error) -> bool {
        let s = self.s;
        let now = s.clock.now();
        if lock(&s.core)
            .account
            .no_help_until
            .is_some_and(|until| now < until)
        {
            return false;
        }
        s.device_full(error);
        let mut victims = Vec::new();
        let cost = write_cost(s.params.block_len, s.root.unit);
        lock(&s.core).choose_victims(cost, now, &mut victims);
        for v in &victims {
            s.remove_victim(v, EvictReason::NoSpace, false);
        }
        !victims.is_empty()
    }

    fn is_wanted(&mut self) -> io::Result<()> {
        self.run.progress.check()
    }
}

impl Block<'_> {
    /// Fills the page behind the block.
    fn encode(&mut self) -> io::Result<()> {
        if !self.is_encoded {
            let trailer = Trailer {
                key: self.key.clone(),
                block_len: self.slot.len() as u64,
                payload_sum: self.run.progress.with_memory(|| payload_sum(self.slot))?,
                namespace: *self.s.ns.digest(),
                written_at: self.s.clock.unix_seconds(),
            };
            encode(&trailer, self.page);
            self.is_encoded = true;
        }
        Ok(())
    }

    /// One attempt, direct where address and length allow it, else or on refusal buffered.
    fn write_and_publish(&self, dir: &Path) -> io::Result<Stat> {
        let direct = &self.s.root.direct;
        if is_aligned(self.slot) && direct.load(Ordering::Relaxed) {
            match self.attempt(dir, true) {
                Err(e) if classify(&e) == IoClass::Invalid => {}
                r => return r,
            }
        }
        self.attempt(dir, false)
    }

    fn attempt(&self, dir: &Path, direct: bool) -> io::Result<Stat> {
        let root = &self.s.root;
        let name = self.at.file_name();
        let (temp, file) = root.create_temp(dir, &name, direct).inspect_err(|e| {
            if direct && classify(e) == IoClass::Invalid {
                root.direct.store(false, Ordering::Relaxed);
            }
        })?;
        if !root.bounded {
            // tells a sweeper that a live writer has it; file systems without locks do without
            let _ = file.try_lock();
        }
        let len = file_len(self.s.params.block_len);
        let published = self
            .preallocate(&*file, direct)
            .and_then(|()| write_full(&*file, self.slot, self.page))
            .and_then(|()| self.run.progress.check())
            .and_then(|()| file.stat())
            .and_then(|stat| rename(&*root.disk, &temp, &dir.join(&name), len).map(|()| stat));
        if published.is_err() {
            root.discard(&self.s.core, temp, file.stat().map_or(len, |st| st.allocated));
        }
        published
    }

    /// Preallocates what is written through the page cache: else that happens later, and what the file system needs to
    /// keep track of it comes after the file was counted.
    fn preallocate(&self, file: &dyn DiskFile, direct: bool) -> io::Result<()> {
        let (len, unit) = (file_len(self.s.params.block_len), self.s.root.unit);
        if direct || !self.s.root.bounded || most_allocated(len, unit) == round_up(len, unit) {
            return Ok(());
        }
        match file.allocate(len) {
            Err(e) if classify(&e) == IoClass::Invalid => Ok(()),
            r => r,
        }
    }
}

/// Publishes `temp` as `to`. EEXIST, which some network file systems give, is success if the destination is whole.
fn rename(disk: &dyn Disk, temp: &Path, to: &Path, len: u64) -> io::Result<()> {
    match disk.rename(temp, to) {
        Err(e) if e.kind() == io::ErrorKind::AlreadyExists && disk.stat(to).is_ok_and(|s| s.len == len) => {
            disk.remove_file(temp)
        }
        r => r,
    }
}
