//! The settings of a replay, each understood and checked.

use std::{path::PathBuf, time::Duration};

use kvweir::{
    evict::{Order, PolicyKind},
    fs::{BounceMode, Layout},
    io::engine::EngineKind,
};

use super::{
    origin::{Origin, SettingError},
    raw::{RawSettings, refuse},
};

/// Requests of the built-in workload.
pub(crate) const BUILTIN_REQUESTS: u64 = 600;

/// The name of a touch order in settings and output.
pub(crate) const fn order_name(order: Order) -> &'static str {
    match order {
        Order::LeafFirst => "leaf-first",
        Order::HeadFirst => "head-first",
    }
}

/// Which stores to drop under pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropPolicy {
    /// All.
    Drop,
    /// A share that grows with the overshoot.
    ThrottledDrop,
}

/// Back-pressure settings, by the names of the manual.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PressureSettings {
    /// Whether stores are gated at all.
    pub(crate) enabled: bool,
    /// Which stores to drop.
    pub(crate) policy: DropPolicy,
    /// Seconds per MiB above which pressure sets in.
    pub(crate) high_water_s: f64,
    /// Seconds per MiB below which it ends.
    pub(crate) low_water_s: f64,
    /// Weight of the newest sample.
    pub(crate) alpha: f64,
    /// Samples that only warm up.
    pub(crate) warmup_completions: u64,
    /// Half-life under silence; <= 0 disables.
    pub(crate) decay_half_life_s: f64,
    /// Cool-down after pressure.
    pub(crate) cooldown_s: f64,
    /// Failures in a row that mean pressure.
    pub(crate) failure_threshold: u64,
    /// Overshoot at which everything is dropped.
    pub(crate) ramp_factor: f64,
    /// Bytes of stores in flight; unset: a quarter of the primary, at most 2 GiB.
    pub(crate) max_inflight_bytes: Option<u64>,
}

/// All settings of a replay, checked.
#[derive(Debug, Clone)]
pub(crate) struct ReplaySettings {
    /// The trace; unset: the built-in workload. `-` is stdin.
    pub(crate) trace: Option<PathBuf>,
    /// Stop after so many requests.
    pub(crate) requests: Option<u64>,
    /// Seed of everything random.
    pub(crate) seed: u64,
    /// Requests in flight.
    pub(crate) concurrency: usize,
    /// Speed-up of the trace's clock; unset: as fast as possible.
    pub(crate) time_scale: Option<f64>,
    /// Skip malformed lines.
    pub(crate) skip_bad_lines: bool,
    /// Reopen the tier after so many requests; unset: never.
    pub(crate) restart_every: Option<u64>,
    /// Compare promoted blocks.
    pub(crate) verify: bool,
    /// Bytes of a block.
    pub(crate) block_bytes: u64,
    /// Bytes of the primary tier.
    pub(crate) primary_bytes: u64,
    /// Eviction in the primary tier.
    pub(crate) primary_policy: PolicyKind,
    /// Root of the file tier; unset: a temporary directory.
    pub(crate) root: Option<PathBuf>,
    /// Bound of the file tier; unset: none.
    pub(crate) max_bytes: Option<u64>,
    /// Eviction in the file tier.
    pub(crate) policy: PolicyKind,
    /// I/O threads.
    pub(crate) threads: Option<usize>,
    /// Deadline of an operation; zero: none.
    pub(crate) io_timeout: Duration,
    /// Whether loads go through a buffer.
    pub(crate) bounce: BounceMode,
    /// Change nothing below the root.
    pub(crate) read_only: bool,
    /// How new blocks are laid out.
    pub(crate) layout: Layout,
    /// Who moves packed blocks and reads large files.
    pub(crate) engine: EngineKind,
    /// Back-pressure.
    pub(crate) pressure: PressureSettings,
    /// Eviction code only.
    pub(crate) hit_rate_only: bool,
    /// Capacities for `hit_rate_only`.
    pub(crate) capacity_blocks: Vec<usize>,
    /// Touch order for `hit_rate_only`.
    pub(crate) order: Order,
    /// JSON instead of a table.
    pub(crate) json: bool,
    /// HTML report.
    pub(crate) report: Option<PathBuf>,
    /// No progress bar.
    pub(crate) quiet: bool,
    pub(super) raw: RawSettings,
}

impl ReplaySettings {
    /// Where the value of `key` came from.
    pub(crate) fn origin(&self, key: &str) -> &Origin {
        self.raw.get(key).map_or(&Origin::Default, |r| &r.origin)
    }

    /// An error about the value of `key`; `why` continues the sentence "`key = value` (origin) ...".
    pub(crate) fn refuse(&self, key: &str, why: &str) -> SettingError {
        refuse(&self.raw, key, why)
    }

    /// "`key = value` (origin)", for messages about two settings.
    pub(super) fn tell(&self, key: &str) -> String {
        self.raw
            .get(key)
            .map_or_else(|| format!("`{key}`"), |r| r.tell(key))
    }
}
