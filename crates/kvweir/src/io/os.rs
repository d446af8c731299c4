//! The operating system as a [`Disk`]: Linux calls through `rustix`, no copies, no buffering of our own.

use std::{
    ffi::OsStr,
    fs::{DirBuilder, File, OpenOptions},
    io::{self, IoSlice, IoSliceMut},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::{DirBuilderExt, OpenOptionsExt},
    },
    path::Path,
    // of the standard library, since nobody waits for it
    sync::atomic::{AtomicU32, Ordering::Relaxed},
    time::{Duration, UNIX_EPOCH},
};

use rustix::{
    fs::{AtFlags, CWD, FileType, Mode, OFlags},
    io::Errno,
};

use super::{
    PAGE,
    disk::{Disk, DiskFile, FileKind, OpenMode, Space, Stat},
};

/// `f_type` of file systems that wait for another machine or process: as in `linux/magic.h` and in `stat` of GNU
/// coreutils, which also knows those outside the kernel's tree.
const REMOTE: [u32; 18] = [
    0x6969,      // nfs
    0x517b,      // smb
    0xff53_4d42, // cifs
    0xfe53_4d42, // smb2
    0x6573_5546, // fuse, virtiofs
    0x00c3_6400, // ceph
    0x0bd0_0bd0, // lustre
    0x5346_414f, // afs
    0x6b41_4653, // kafs
    0x0102_1997, // 9p
    0x4750_4653, // gpfs
    0x7461_636f, // ocfs2
    0x0116_1970, // gfs2
    0x7375_7245, // coda
    0x564c,      // ncp
    0x1983_0326, // beegfs
    0xaad7_aaea, // panfs
    0x2003_0528, // orangefs
];

/// `f_type` of tmpfs.
const TMPFS: u32 = 0x0102_1994;
/// The largest unit of allocation that is believed.
const MAX_UNIT: u64 = 64 << 20;

/// The file systems of this machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct OsDisk;

#[derive(Debug)]
struct OsFile {
    file: File,
    /// The process that took the lock; 0: none did.
    locked_by: AtomicU32,
}

impl Drop for OsFile {
    fn drop(&mut self) {
        // a child forked meanwhile has the file open too, and would keep the lock; what it lets go of is not its own
        if self.locked_by.load(Relaxed) == std::process::id() {
            let _ = self.file.unlock();
        }
    }
}

/// The id of this machine's current boot; zeros where the system does not tell.
pub fn boot_id() -> [u8; 16] {
    let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    let digits = text.trim().replace('-', "");
    u128::from_str_radix(&digits, 16).unwrap_or(0).to_le_bytes()
}

impl Disk for OsDisk {
    fn open(&self, path: &Path, mode: OpenMode, direct: bool) -> io::Result<Box<dyn DiskFile>> {
        let mut flags = OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // whoever opens a pipe waits for its other end, for ever where none comes; what is new is a file
        if mode != OpenMode::CreateNew {
            flags |= OFlags::NONBLOCK;
        }
        if direct {
            flags |= OFlags::DIRECT;
        }
        if mode == OpenMode::Read {
            flags |= OFlags::NOATIME;
        }
        let open = |flags: OFlags| {
            let mut o = OpenOptions::new();
            match mode {
                OpenMode::Read => o.read(true),
                OpenMode::ReadWrite => o.read(true).write(true).create(true),
                OpenMode::CreateNew => o.write(true).create_new(true),
                OpenMode::Existing => o.read(true).write(true),
            };
            let file = o.mode(0o600).custom_flags(flags.bits() as i32).open(path)?;
            if flags.contains(OFlags::NONBLOCK) {
                if convert(&rustix::fs::fstat(&file)?).kind == FileKind::Other {
                    return Err(io::Error::other("it is a pipe or a device, not a file"));
                }
                // a ring does not wait for the device where this is set
                rustix::fs::fcntl_setfl(&file, flags & (OFlags::DIRECT | OFlags::NOATIME))?;
            }
            Ok(file)
        };
        match open(flags) {
            // NOATIME is the owner's right only
            Err(e) if e.kind() == io::ErrorKind::PermissionDenied && flags.contains(OFlags::NOATIME) => {
                open(flags - OFlags::NOATIME)
            }
            r => r,
        }
        .map(|file| {
            Box::new(OsFile {
                file,
                locked_by: AtomicU32::new(0),
            }) as Box<dyn DiskFile>
        })
    }

    fn rename(&self, from: &Path, to: &Path) -> io::Result<()> {
        std::fs::rename(from, to)
    }

    fn remove_file(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_file(path)
    }

    fn create_dir(&self, path: &Path) -> io::Result<()> {
        DirBuilder::new().mode(0o700).create(path)
    }

    fn remove_dir(&self, path: &Path) -> io::Result<()> {
        std::fs::remove_dir(path)
    }

    fn list(&self, path: &Path, each: &mut dyn FnMut(&OsStr, Option<FileKind>)) -> io::Result<()> {
        for entry in std::fs::read_dir(path)? {
            let entry = entry?;
            let kind = entry.file_type().ok().map(|t| match (t.is_file(), t.is_dir()) {
                (true, _) => FileKind::File,
                (_, true) => FileKind::Dir,
                _ => FileKind::Other,
            });
            each(&entry.file_name(), kind);
        }
        Ok(())
    }

    fn stat(&self, path: &Path) -> io::Result<Stat> {
        Ok(convert(&rustix::fs::statat(
            CWD,
            path,
            AtFlags::SYMLINK_NOFOLLOW,
        )?))
    }

    fn space(&self, path: &Path) -> io::Result<Space> {
        let s = rustix::fs::statvfs(path)?;
        let unit = s.f_frsize.max(1);
        Ok(Space {
            total: s.f_blocks.saturating_mul(unit),
            available: s.f_bavail.saturating_mul(unit),
            block: unit.clamp(512, 1 << 20),
        })
    }

    fn sync_all(&self, path: &Path) -> io::Result<()> {
        Ok(rustix::fs::syncfs(File::open(path)?)?)
    }

    /// By a file without a name, gone when it is closed.
    fn unit(&self, path: &Path) -> io::Result<u64> {
        let told = self.space(path)?.block;
        let flags = OFlags::TMPFILE | OFlags::RDWR | OFlags::CLOEXEC;
        let probe = match rustix::fs::openat(CWD, path, flags, Mode::RUSR | Mode::WUSR) {
            Ok(f) => f,
            // no such files there: what it tells is all there is
            Err(Errno::OPNOTSUPP | Errno::ISDIR | Errno::INVAL | Errno::NOSYS | Errno::NOENT) => {
                return Ok(told);
            }
            Err(e) => return Err(e.into()),
        };
        rustix::io::pwrite(&probe, &[1], 0)?;
        let stat = rustix::fs::fstat(&probe)?;
        let mut taken = convert(&stat).allocated;
        if taken == 0 {
            // its inode holds that much
            rustix::io::pwrite(&probe, &[1; PAGE], 0)?;
            let now = convert(&rustix::fs::fstat(&probe)?).allocated;
            taken = if now > PAGE as u64 { now } else { 0 };
        }
        // the kernel hands out huge pages when it has some: to the next file, if not to this one
        let is_tmpfs = rustix::fs::fstatfs(&probe).is_ok_and(|s| s.f_type as u32 == TMPFS);
        let page = u64::try_from(stat.st_blksize).ok().filter(|_| is_tmpfs);
        Ok(told.max(taken).max(page.unwrap_or(0)).min(MAX_UNIT))
    }

    fn is_remote(&self, path: &Path) -> bool {
        // the magic numbers have 32 bits, however wide the field is
        rustix::fs::statfs(path).is_ok_and(|s| REMOTE.contains(&(s.f_type as u32)))
    }
}

fn convert(s: &rustix::fs::Stat) -> Stat {
    let kind = match FileType::from_raw_mode(s.st_mode) {
        FileType::RegularFile => FileKind::File,
        FileType::Directory => FileKind::Dir,
        _ => FileKind::Other,
    };
    Stat {
        len: u64::try_from(s.st_size).unwrap_or(0),
        allocated: u64::try_from(s.st_blocks).unwrap_or(0).saturating_mul(512),
        mtime_ns: i128::from(s.st_mtime) * 1_000_000_000 + s.st_mtime_nsec as i128,
        kind,
        uid: s.st_uid,
        mode: s.st_mode & 0o7777,
        links: u64::from(s.st_nlink as u32),
    }
}

impl DiskFile for OsFile {
    fn read_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::preadv(&self.file, bufs, offset)?)
    }

    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        Ok(rustix::io::pwritev(&self.file, bufs, offset)?)
    }

    fn allocate(&self, len: u64) -> io::Result<()> {
        Ok(rustix::fs::fallocate(
            &self.file,
            rustix::fs::FallocateFlags::empty(),
            0,
            len,
        )?)
    }

    fn sync(&self) -> io::Result<()> {
        self.file.sync_data()
    }

    fn stat(&self) -> io::Result<Stat> {
        Ok(convert(&rustix::fs::fstat(&self.file)?))
    }

    fn try_lock(&self) -> io::Result<bool> {
        match self.file.try_lock() {
            Ok(()) => {
                self.locked_by.store(std::process::id(), Relaxed);
                Ok(true)
            }
            Err(std::fs::TryLockError::WouldBlock) => Ok(false),
            Err(std::fs::TryLockError::Error(e)) => Err(e),
        }
    }

    fn set_len(&self, len: u64) -> io::Result<()> {
        self.file.set_len(len)
    }

    fn punch(&self, offset: u64, len: u64) -> io::Result<()> {
        let flags = rustix::fs::FallocateFlags::PUNCH_HOLE | rustix::fs::FallocateFlags::KEEP_SIZE;
        Ok(rustix::fs::fallocate(&self.file, flags, offset, len)?)
    }

    fn set_modified(&self, unix_ns: u64) -> io::Result<()> {
        self.file.set_modified(UNIX_EPOCH + Duration::from_nanos(unix_ns))
    }

    fn fd(&self) -> Option<BorrowedFd<'_>> {
        Some(self.file.as_fd())
    }
}

#[cfg(test)]
mod tests {
    use std::{
        cell::RefCell,
        io::{Read as _, Write as _},
    };

    use super::*;
    use crate::io::{
        disk::{read_full, write_full},
        process::{fork, wait_for},
    };

    #[test]
    fn files_are_private_exclusive_and_read_back_whole() {
        let dir = tempfile::tempdir().unwrap();
        let (d, p) = (OsDisk, dir.path().join("d/f"));
        d.create_dir(p.parent().unwrap()).unwrap();
        let f = d.open(&p, OpenMode::CreateNew, false).unwrap();
        write_full(&*f, &[1; 5000], &[2; 4096]).unwrap();
        assert_eq!(
            d.open(&p, OpenMode::CreateNew, false).unwrap_err().kind(),
            io::ErrorKind::AlreadyExists
        );
        let s = d.stat(&p).unwrap();
        assert_eq!(
            (s.len, s.mode, d.stat(p.parent().unwrap()).unwrap().mode),
            (9096, 0o600, 0o700)
        );
        let (mut a, mut b) = (vec![0; 5000], vec![0; 8192]);
        let n = read_full(&*d.open(&p, OpenMode::Read, false).unwrap(), &mut a, &mut b).unwrap();
        assert_eq!((n, a[4999], b[4095], b[4096]), (9096, 1, 2, 0));
    }

    #[test]
    fn an_open_file_tells_how_many_names_it_has_and_one_without_is_not_made_again() {
        let dir = tempfile::tempdir().unwrap();
        let p = dir.path().join("f");
        let f = OsDisk.open(&p, OpenMode::CreateNew, false).unwrap();
        assert_eq!(f.stat().unwrap().links, 1);
        std::fs::remove_file(&p).unwrap();
        assert_eq!(f.stat().unwrap().links, 0);
        let again = OsDisk.open(&p, OpenMode::Existing, false);
        assert_eq!(again.unwrap_err().kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_unit_is_at_least_what_the_file_system_tells_and_its_probe_leaves_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let unit = OsDisk.unit(dir.path()).unwrap();
        assert!(unit >= OsDisk.space(dir.path()).unwrap().block && unit.is_multiple_of(512));
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        assert!(OsDisk.unit(&dir.path().join("none")).is_err());
    }

    #[test]
    fn a_symbolic_link_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("secret"), b"x").unwrap();
        std::os::unix::fs::symlink(dir.path().join("secret"), dir.path().join("link")).unwrap();
        assert!(
            OsDisk
                .open(&dir.path().join("link"), OpenMode::Read, false)
                .is_err()
        );
        assert_eq!(
            OsDisk.stat(&dir.path().join("link")).unwrap().kind,
            FileKind::Other
        );
    }

    #[test]
    fn a_pipe_or_a_device_is_no_file_and_nobody_waits_for_its_other_end() {
        // once a pipe where a configuration, a journal or a ledger belongs held whoever opened it for ever
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("p");
        let made = std::process::Command::new("mkfifo").arg(&pipe).status();
        assert!(made.unwrap().success());
        for path in [&*pipe, Path::new("/dev/zero")] {
            for mode in [OpenMode::Read, OpenMode::ReadWrite, OpenMode::Existing] {
                assert!(
                    OsDisk.open(path, mode, false).is_err(),
                    "{mode:?} {}",
                    path.display()
                );
            }
        }
        // and a file waits as it did
        let file = OsDisk.open(&dir.path().join("f"), OpenMode::ReadWrite, false);
        let flags = rustix::fs::fcntl_getfl(file.unwrap().fd().unwrap()).unwrap();
        assert!(!flags.contains(OFlags::NONBLOCK));
    }

    #[test]
    fn a_file_system_of_the_kernel_itself_is_not_remote() {
        assert!(!OsDisk.is_remote(Path::new("/proc")) && !OsDisk.is_remote(Path::new("/no/such/place")));
    }

    #[test]
    fn a_lock_ends_with_its_handle_though_a_child_has_the_file_open() {
        // once whoever forked while a keeper had the ledger left it locked for as long as the child lived
        let dir = tempfile::tempdir().unwrap();
        let open = || {
            OsDisk
                .open(&dir.path().join("f"), OpenMode::ReadWrite, false)
                .unwrap()
        };
        let file = open();
        assert!(file.try_lock().unwrap());
        let (hear, mut say) = io::pipe().unwrap();
        let pid = fork(|| i32::from((&hear).read_exact(&mut [0]).is_err()));
        assert!(!open().try_lock().unwrap());
        drop(file);
        assert!(open().try_lock().unwrap(), "the child has it");
        // and a child that lets go of its parent's file leaves the parent its lock
        let file = RefCell::new(Some(open()));
        assert!(file.borrow().as_ref().unwrap().try_lock().unwrap());
        let other = fork(|| i32::from(file.take().is_none()));
        assert_eq!(wait_for(other.unwrap()).unwrap(), Some(0));
        assert!(!open().try_lock().unwrap());
        say.write_all(b"!").unwrap();
        assert_eq!(wait_for(pid.unwrap()).unwrap(), Some(0));
    }
}
