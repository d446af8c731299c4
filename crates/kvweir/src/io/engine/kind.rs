//! Which engine a tier asks for, and which it gets.

use std::{fmt, str::FromStr};

use super::{DEPTH, Engine, RingEngine, ThreadEngine, probe};
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

/// Makes the engines of one tier, all of one kind: chosen once, with one line in the log if it is not what was asked.
#[derive(Debug, Clone)]
pub struct Engines {
    kind: EngineKind,
    refused: Option<String>,
}

impl Engines {
    /// Tries what `asked` needs ([`probe`](probe())) and falls back to [`EngineKind::Threads`].
    pub fn choose(asked: EngineKind) -> Self {
        let refused = match asked {
            EngineKind::Threads => None,
            EngineKind::IoUring => probe().err(),
        };
        if let Some(reason) = &refused {
            tracing::warn!(%asked, used = %EngineKind::Threads, reason, "this engine is not to be had here");
        }
        Self {
            kind: refused.as_ref().map_or(asked, |_| EngineKind::Threads),
            refused,
        }
    }

    /// What is used.
    pub fn kind(&self) -> EngineKind {
        self.kind
    }

    /// Why that is not what was asked.
    pub fn refused(&self) -> Option<&str> {
        self.refused.as_deref()
    }

    /// An engine for one worker. It may be made on another thread than it is used on.
    pub fn engine(&self) -> Box<dyn Engine> {
        match self.kind {
            EngineKind::Threads => Box::new(ThreadEngine),
            EngineKind::IoUring => match RingEngine::new(DEPTH) {
                Ok(ring) => Box::new(ring),
                Err(error) => {
                    // the probe passed, so this is a limit that other workers may yet keep below
                    tracing::debug!(%error, "no ring for this worker: it makes plain calls");
                    Box::new(ThreadEngine)
                }
            },
        }
    }
}
