//! New extents. One has its whole length at once and takes bytes as its slots are written, so that no more room is
//! needed than for the blocks between two syncs.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{packing::Packing, place::Open, work::Work};
use crate::{
    admin::extents::{ExtentFiles, ExtentState, look},
    error::{IoClass, classify},
    fs::packed::format::Header,
    io::{
        DiskFile,
        disk::{OpenMode, write_all_at},
    },
    root::names::{Location, Part, leaf_dir},
};

impl Work<'_> {
    /// Makes an extent whose slots take no bytes yet.
    pub(super) fn make_extent(&mut self, p: &mut Packing<'_>, slots: u32) -> io::Result<()> {
        let disk = &*self.admin.disk;
        let (mut nonce, at) = (self.nonce(p), Location::of_extent(Part::Table, 0));
        let dir = leaf_dir(&p.t.dir, at.prefix, at.leaf);
        let above: Vec<PathBuf> = dir.ancestors().take(3).map(Into::into).collect();
        let dirs_before = self.dirs_bytes(above.iter().map(|p| &**p));
        self.make_dirs(&dir)?;
        let name = |part, nonce| Location::of_extent(part, nonce).file_name();
        while [Part::Table, Part::Data]
            .iter()
            .any(|&part| disk.stat(&dir.join(name(part, nonce))).is_ok())
        {
            nonce = nonce.wrapping_add(1);
        }
        let header = Header {
            slots,
            slot_bytes: u32::try_from(p.slot_bytes).map_err(io::Error::other)?,
            block_len: p.t.len,
            nonce,
            namespace: p.t.digest,
            made_at: self.admin.clock.unix_seconds(),
        };
        // without its table a data file is nothing: the table comes last
        let data = self.make_part(&dir, &name(Part::Data, nonce), &|f| f.set_len(header.data_len()))?;
        let table = self.make_part(&dir, &name(Part::Table, nonce), &|f| {
            match f.allocate(header.table_len()) {
                Err(e) if classify(&e) != IoClass::Invalid => return Err(e),
                Err(_) => write_all_at(f, &vec![0; header.table_len() as usize], 0)?,
                Ok(()) => {}
            }
            write_all_at(f, &header.encode(), 0)
        });
        let table = table.inspect_err(|_| {
            let _ = disk.remove_file(&data);
        })?;
        let files = ExtentFiles {
            nonce,
            table: Some(table.clone()),
            data: Some(data.clone()),
        };
        let right = match look(disk, &files, OpenMode::ReadWrite)? {
            (ExtentState::Whole(found), Some(file)) if found == header => Some(file),
            _ => None,
        };
        let Some(file) = right else {
            for part in [&table, &data] {
                disk.remove_file(part)?;
            }
            return Err(io::Error::other(
                "a new extent reads back otherwise than it was written",
            ));
        };
        let open = Open {
            table: file,
            data: disk.open(&data, OpenMode::ReadWrite, false)?,
            paths: [table, data],
            header,
        };
        let dirs_now = self.dirs_bytes(above.iter().map(|p| &**p));
        self.room.change(dirs_before, dirs_now + open.allocated());
        let number = p.place.open.len();
        p.free.extend((0..slots).rev().map(|place| (number, place)));
        p.place.open.push(open);
        p.made = true;
        p.t.report.extents += 1;
        Ok(())
    }

    /// Makes one file under a temporary name, and publishes it.
    fn make_part(
        &self,
        dir: &Path,
        name: &str,
        fill: &dyn Fn(&dyn DiskFile) -> io::Result<()>,
    ) -> io::Result<PathBuf> {
        let disk = &*self.admin.disk;
        let path = dir.join(name);
        let (temp, f) = self.temps.create(disk, dir, name, false)?;
        let made = fill(&*f)
            .and_then(|()| f.sync())
            .and_then(|()| disk.rename(&temp, &path));
        match made {
            Ok(()) => Ok(path),
            Err(e) => {
                let _ = disk.remove_file(&temp);
                Err(e)
            }
        }
    }

    /// A number that no extent there has.
    fn nonce(&self, p: &Packing<'_>) -> u64 {
        let mut bytes = p.t.report.directory.clone().into_bytes();
        bytes.extend(self.admin.clock.unix_seconds().to_le_bytes());
        bytes.extend(self.admin.clock.now().as_nanos().to_le_bytes());
        bytes.extend(std::process::id().to_le_bytes());
        bytes.extend(p.place.open.len().to_le_bytes());
        xxhash_rust::xxh3::xxh3_64(&bytes)
    }
}
