//! Runs `--hit-rate-only` with the engine's own eviction code.

use std::sync::atomic::{AtomicBool, Ordering};

use anyhow::{Result, bail};
use kvweir::clock::Clock;

use crate::{
    hitrate::HitRate,
    settings::ReplaySettings,
    trace::{Request, Source},
};

/// Reads all requests, then replays them once for each capacity.
pub(crate) fn run(
    _settings: &ReplaySettings,
    source: Source,
    _clock: &dyn Clock,
    stop: &AtomicBool,
) -> Result<Vec<HitRate>> {
    let _requests = source
        .take_while(|_| !stop.load(Ordering::Relaxed))
        .collect::<Result<Vec<Request>>>()?;
    bail!("not wired")
}
