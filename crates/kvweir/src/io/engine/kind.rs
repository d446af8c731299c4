//! Which engine a tier asks for, and which it gets.

use std::{fmt, str::FromStr};

use crate::error::{Error, Result};

/// How workers move bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum EngineKind {
    /// One system call after another in each worker.
    #[default]
    Threads,
    /// Many operations at once in each worker, through io_uring; threads where the kernel or seccomp forbids that.
    IoUring,
}

impl EngineKind {
    /// All kinds.
    pub const ALL: [Self; 2] = [Self::Threads, Self::IoUring];

    /// The word in settings.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::IoUring => "io_uring",
        }
    }
}

impl fmt::Display for EngineKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

impl FromStr for EngineKind {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        let known = Self::ALL.into_iter().find(|k| k.as_str() == s);
        known.ok_or_else(|| Error::invalid("read engine", format!("{s:?} is none of threads, io_uring")))
    }
}
