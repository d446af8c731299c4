//! One error type for the whole engine. Its [`ErrorKind`] says what the caller should do; a miss is never an
//! error. Cites I2 (a corrupt block never yields bytes) and I10 (a failing tier degrades to misses).

use std::{borrow::Cow, error::Error as StdError, fmt, io};

/// What the caller should do about an [`Error`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[non_exhaustive]
pub enum ErrorKind {
    /// Retry later: another user holds what was asked for.
    Busy,
    /// No space within the bound or on the device: evict, skip the block, or raise the bound.
    Full,
    /// The tier or device does not work now: serve without it.
    Unavailable,
    /// The bytes are provably not what was stored: the block is dropped, recompute it.
    Corrupt,
    /// The call or a setting is wrong: fix it, retrying does not help.
    Invalid,
    /// Closed to this call for good: the object was shut down, or takes no stores.
    Closed,
}

impl ErrorKind {
    /// The lower-case word used in logs, metrics labels and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Busy => "busy",
            Self::Full => "full",
            Self::Unavailable => "unavailable",
            Self::Corrupt => "corrupt",
            Self::Invalid => "invalid",
            Self::Closed => "closed",
        }
    }
}

impl fmt::Display for ErrorKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// An error with what was attempted, where, and its cause.
///
/// ```
/// use kvweir::{Error, ErrorKind};
/// let e = Error::new(ErrorKind::Full, "store block", "no space below the bound of 1 GiB");
/// assert_eq!(e.kind(), ErrorKind::Full);
/// assert_eq!(e.to_string(), "store block: no space below the bound of 1 GiB");
/// ```
#[derive(Debug)]
pub struct Error {
    kind: ErrorKind,
    op: &'static str,
    message: Cow<'static, str>,
    source: Option<Box<dyn StdError + Send + Sync>>,
}

/// The engine's result type.
pub type Result<T, E = Error> = std::result::Result<T, E>;

impl Error {
    /// An error of `kind` met while doing `op` (a short verb phrase), explained by `message`.
    pub fn new(kind: ErrorKind, op: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self {
            kind,
            op,
            message: message.into(),
            source: None,
        }
    }

    /// An [`ErrorKind::Invalid`] error.
    pub fn invalid(op: &'static str, message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(ErrorKind::Invalid, op, message)
    }

    /// Wraps an I/O error; the kind follows from its errno (see [`classify`]).
    pub fn io(op: &'static str, what: impl fmt::Display, source: io::Error) -> Self {
        let kind = match classify(&source) {
            IoClass::Full => ErrorKind::Full,
            IoClass::Transient => ErrorKind::Busy,
            IoClass::Gone | IoClass::Denied | IoClass::Broken => ErrorKind::Unavailable,
            IoClass::Corrupt => ErrorKind::Corrupt,
            IoClass::Invalid => ErrorKind::Invalid,
        };
        Self {
            kind,
            op,
            message: format!("{what}: {source}").into(),
            source: Some(Box::new(source)),
        }
    }

    /// Replaces the kind, keeping the rest.
    #[must_use]
    pub fn with_kind(mut self, kind: ErrorKind) -> Self {
        self.kind = kind;
        self
    }

    /// What to do about it.
    pub fn kind(&self) -> ErrorKind {
        self.kind
    }

    /// What was being done.
    pub fn op(&self) -> &'static str {
        self.op
    }

    /// The explanation without the operation.
    pub fn message(&self) -> &str {
        &self.message
    }

    /// The errno behind the error, where one is.
    pub fn errno(&self) -> Option<i32> {
        self.source.as_ref()?.downcast_ref::<io::Error>()?.raw_os_error()
    }
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.op, self.message)
    }
}

impl StdError for Error {
    fn source(&self) -> Option<&(dyn StdError + 'static)> {
        self.source.as_ref().map(|s| s.as_ref() as _)
    }
}

/// How an I/O error is met, by its errno.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum IoClass {
    /// ENOSPC, EDQUOT, EFBIG: make room, then retry once.
    Full,
    /// EMFILE, ENFILE, ENOMEM, EINTR, EAGAIN, EBUSY, ETIMEDOUT: nothing is wrong with the data; try later.
    Transient,
    /// ENOENT, ESTALE, ENOTDIR: the file is not there; a miss.
    Gone,
    /// EINVAL, ENAMETOOLONG and their like: the call does not suit this file system.
    Invalid,
    /// EBADMSG and EUCLEAN (checksum or structure of the file system is wrong), EILSEQ (the block layer's integrity
    /// check), ENODATA (a sector that cannot be read): what lies there is lost, the device itself answers.
    Corrupt,
    /// EROFS, EACCES, EPERM: the file system answers, at once, that this may not be done; reads may still work.
    Denied,
    /// Everything else (EIO, ENODEV, EREMOTEIO, ENOTCONN...): the device or its transport does not work, or it cannot
    /// be told from that.
    Broken,
}

impl IoClass {
    /// Whether the error speaks against the device as a whole, and not against a file, a moment or a right.
    pub const fn blames_device(self) -> bool {
        matches!(self, Self::Gone | Self::Invalid | Self::Broken)
    }
}

/// Sorts an I/O error into an [`IoClass`].
pub fn classify(e: &io::Error) -> IoClass {
    use rustix::io::Errno;
    if let Some(raw) = e.raw_os_error() {
        return match Errno::from_raw_os_error(raw) {
            Errno::NOSPC | Errno::DQUOT | Errno::FBIG => IoClass::Full,
            Errno::MFILE
            | Errno::NFILE
            | Errno::NOMEM
            | Errno::INTR
            | Errno::AGAIN
            | Errno::BUSY
            | Errno::TIMEDOUT => IoClass::Transient,
            Errno::NOENT | Errno::STALE | Errno::NOTDIR => IoClass::Gone,
            Errno::INVAL | Errno::NAMETOOLONG | Errno::OPNOTSUPP | Errno::NOSYS => IoClass::Invalid,
            Errno::BADMSG | Errno::UCLEAN | Errno::ILSEQ | Errno::NODATA => IoClass::Corrupt,
            Errno::ROFS | Errno::ACCESS | Errno::PERM => IoClass::Denied,
            _ => IoClass::Broken,
        };
    }
    match e.kind() {
        io::ErrorKind::NotFound => IoClass::Gone,
        io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => IoClass::Full,
        io::ErrorKind::Interrupted | io::ErrorKind::TimedOut | io::ErrorKind::WouldBlock => {
            IoClass::Transient
        }
        io::ErrorKind::InvalidInput | io::ErrorKind::Unsupported => IoClass::Invalid,
        io::ErrorKind::PermissionDenied | io::ErrorKind::ReadOnlyFilesystem => IoClass::Denied,
        _ => IoClass::Broken,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errno_decides_the_class_and_is_kept() {
        let table = [
            (28, IoClass::Full),
            (122, IoClass::Full),
            (24, IoClass::Transient),
            (110, IoClass::Transient),
            (2, IoClass::Gone),
            (116, IoClass::Gone),
            (22, IoClass::Invalid),
            (5, IoClass::Broken),
            (121, IoClass::Broken),
            (107, IoClass::Broken),
            (30, IoClass::Denied),
            (13, IoClass::Denied),
            (1, IoClass::Denied),
            (74, IoClass::Corrupt),
            (117, IoClass::Corrupt),
            (84, IoClass::Corrupt),
            (61, IoClass::Corrupt),
        ];
        for (errno, class) in table {
            assert_eq!(
                classify(&io::Error::from_raw_os_error(errno)),
                class,
                "errno {errno}"
            );
        }
        let e = Error::io("write", "/x", io::Error::from_raw_os_error(28));
        assert_eq!((e.kind(), e.errno()), (ErrorKind::Full, Some(28)));
    }
}
