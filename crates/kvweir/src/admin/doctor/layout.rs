//! Which layout `auto` would choose here, and what speaks for it.

use rustix::fs::{CWD, FallocateFlags, Mode, OFlags, fallocate, openat};

use super::Check;
use crate::{
    admin::Admin,
    fs::{
        PACK_BELOW,
        settings::{allocation_unit, min_pack_bound_in},
    },
};

/// A block length as engines have them where packing is worth most.
const SMALL_BLOCK: usize = 16 << 10;
/// Bytes that are reserved to see whether that works.
const TRIED: u64 = 1 << 20;

impl Admin {
    /// Tries to preallocate in a file without a name, and says what `auto` would do.
    pub(super) fn layout(&self) -> Check {
        let what = "layout";
        let below = PACK_BELOW >> 20;
        if self.disk.is_remote(&self.root) {
            return Check::ok(
                what,
                "auto gives each block a file: the file system is another machine's or process's",
            );
        }
        let bound = self.see().ok().and_then(|s| s.page().map(|p| p.head.bound));
        let said = self.disk.space(&self.root).map_or(4096, |s| s.block);
        let least = min_pack_bound_in(SMALL_BLOCK, allocation_unit(&*self.disk, &self.root, said));
        let bound = match bound {
            Some(b) if b < least => {
                return Check::ok(
                    what,
                    format!(
                        "auto gives each block a file: the bound of {b} bytes is too small for extents, which need \
                         {least} for blocks of {SMALL_BLOCK}"
                    ),
                );
            }
            Some(b) => format!("the bound is {}", bytesize::ByteSize::b(b)),
            None => "with max_bytes".to_owned(),
        };
        let packs = format!(
            "auto packs blocks below {below} MiB, and gives larger ones a file each: a file system of this machine, \
             {bound}"
        );
        let direct = match self.direct_works() {
            Some(true) => ", direct I/O works",
            Some(false) => ", without direct I/O",
            None => "",
        };
        match self.preallocates() {
            Ok(true) => Check::ok(what, format!("{packs}, preallocation works{direct}")),
            Ok(false) => Check::warn(
                what,
                format!("{packs}{direct}, and no preallocation"),
                "extents are filled with zeros when they are made, which writes every byte once more: use a file \
                 system with fallocate, or layout fs",
            ),
            Err(e) => Check::warn(
                what,
                format!("{packs}{direct}; preallocation could not be tried: {e}"),
                "run it as the engine's user",
            ),
        }
    }

    fn preallocates(&self) -> std::io::Result<bool> {
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let file = openat(CWD, &self.root, flags, Mode::RUSR | Mode::WUSR)?;
        match fallocate(&file, FallocateFlags::empty(), 0, TRIED) {
            Ok(()) => Ok(true),
            Err(e) if e == rustix::io::Errno::OPNOTSUPP || e == rustix::io::Errno::NOSYS => Ok(false),
            Err(e) => Err(e.into()),
        }
    }

    /// `None` where no file can be made to try it.
    fn direct_works(&self) -> Option<bool> {
        let open = |flags| openat(CWD, &self.root, flags, Mode::RUSR | Mode::WUSR);
        let plain = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        open(plain).ok()?;
        Some(open(plain | OFlags::DIRECT).is_ok())
    }
}
