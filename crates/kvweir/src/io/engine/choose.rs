//! Which engine a tier gets.

use crate::io::engine::{
    DEPTH, Engine, kind::EngineKind, probe::probe, ring::RingEngine, threads::ThreadEngine,
};

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
