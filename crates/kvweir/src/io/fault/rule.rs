//! Which calls fail, and how.

use std::{ffi::OsString, time::Duration};

/// A kind of call.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Op {
    /// [`crate::io::Disk::open`] of an existing file.
    Open,
    /// [`crate::io::Disk::open`] of a file that must not exist.
    Create,
    /// [`crate::io::DiskFile::read_at`].
    Read,
    /// [`crate::io::DiskFile::write_at`].
    Write,
    /// [`crate::io::Disk::rename`]; the path is the destination.
    Rename,
    /// [`crate::io::Disk::remove_file`].
    Remove,
    /// [`crate::io::Disk::create_dir`].
    CreateDir,
    /// [`crate::io::Disk::remove_dir`].
    RemoveDir,
    /// [`crate::io::Disk::stat`] and [`crate::io::DiskFile::stat`].
    Stat,
    /// [`crate::io::Disk::list`].
    List,
    /// [`crate::io::DiskFile::allocate`] and [`crate::io::DiskFile::set_len`].
    Allocate,
    /// [`crate::io::DiskFile::punch`].
    Punch,
    /// [`crate::io::DiskFile::set_modified`].
    SetModified,
    /// [`crate::io::DiskFile::sync`] and [`crate::io::Disk::sync_all`].
    Sync,
    /// [`crate::io::DiskFile::try_lock`].
    Lock,
    /// [`crate::io::Disk::space`].
    Space,
}

/// What happens instead.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// The call fails with this errno and does nothing.
    Errno(i32),
    /// A read or write moves at most this many bytes.
    Short(usize),
    /// The call waits for [`super::FaultDisk::release`] or [`super::FaultDisk::heal`], then does what it should.
    Hang,
    /// The call waits for so long, then does what it should.
    Slow(Duration),
    /// A read or write moves one bit wrong, in the middle of its first buffer.
    Flip,
    /// Writes fail with ENOSPC once the files written through this disk, less those removed, hold so many bytes.
    FullAt(u64),
}

/// Which calls fail, and how.
#[derive(Debug, Clone)]
pub struct Rule {
    /// `None`: every kind.
    pub(super) op: Option<Op>,
    pub(super) fault: Fault,
    pub(super) skip: u64,
    pub(super) times: u64,
    pub(super) path: Option<OsString>,
    pub(super) direct_only: bool,
}

impl Rule {
    /// Every call of kind `op` meets `fault`.
    pub fn new(op: Op, fault: Fault) -> Self {
        Self {
            op: Some(op),
            ..Self::any(fault)
        }
    }

    /// Every call of any kind meets `fault`.
    pub fn any(fault: Fault) -> Self {
        Self {
            op: None,
            fault,
            skip: 0,
            times: u64::MAX,
            path: None,
            direct_only: false,
        }
    }

    /// The `n`-th call from now, of any kind, meets `fault`; the first is number 0.
    pub fn nth(n: u64, fault: Fault) -> Self {
        Self::any(fault).after(n).times(1)
    }

    /// Lets the first `n` matching calls pass.
    #[must_use]
    pub fn after(mut self, n: u64) -> Self {
        self.skip = n;
        self
    }

    /// At most `n` calls fail.
    #[must_use]
    pub fn times(mut self, n: u64) -> Self {
        self.times = n;
        self
    }

    /// Only calls whose path contains `part`.
    #[must_use]
    pub fn path(mut self, part: impl Into<OsString>) -> Self {
        self.path = Some(part.into());
        self
    }

    /// Only calls on files opened for direct I/O.
    #[must_use]
    pub fn direct(mut self) -> Self {
        self.direct_only = true;
        self
    }
}
