//! The run with real I/O: drives the engine request by request.

use std::sync::atomic::AtomicBool;

use anyhow::{Result, bail};

use super::Outcome;
use crate::{progress::Progress, settings::ReplaySettings, trace::Source};

/// Replays `source` through the tiers `settings` describe. Ends early, with what was measured so far and
/// `summary.interrupted`, when `stop` is set.
pub(crate) fn run(
    _settings: &ReplaySettings,
    _source: Source,
    _progress: &Progress,
    _stop: &AtomicBool,
) -> Result<Outcome> {
    bail!("not wired: replay with real I/O is not part of this build; --hit-rate-only is");
}
