//! One life of the engine: manager, primary and file tier from opening to shutdown.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result};
use kvweir::{
    ErrorKind,
    clock::Clock,
    fs::{FsBuilder, FsSettings, Layout},
    io::{Region, pool::PoolSize},
    manager::Manager,
    namespace::{Identity, Namespace},
    pressure::{DropPolicyKind, Gate, PressureSettings},
    primary::Primary,
    sync::Bell,
};

use crate::{
    progress::Progress,
    settings::{DropPolicy, ReplaySettings},
    usage::UsageError,
};

/// Longest wait for I/O between two steps of the loop.
pub(super) const PATIENCE: Duration = Duration::from_millis(1);
/// Longest wait at the end for stores that are under way.
const DRAIN_PATIENCE: Duration = Duration::from_secs(30);
/// Time between two checks whether the trim at start has ended.
const TRIM_LOOK: Duration = Duration::from_millis(20);

/// An engine that runs.
pub(super) struct Life {
    pub(super) manager: Manager,
    pub(super) bell: Arc<Bell>,
    /// The directory of the file tier.
    pub(super) root: PathBuf,
    /// How new blocks are laid out.
    pub(super) layout: Layout,
    /// Where the blocks of this run lie.
    pub(super) namespace_dir: PathBuf,
    clock: Arc<dyn Clock>,
    next_request: u64,
}

impl Life {
    pub(super) fn open(
        settings: &ReplaySettings,
        root: &Path,
        region: &Region,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self> {
        // refused before anything is made
        let gate = gate(settings)?;
        let bell = Arc::new(Bell::default());
        let identity = Identity {
            model_name: "kvweir/replay".into(),
            inference_engine: "kvweir-replay".into(),
            namespace_extra: format!("block_bytes={}", settings.block_bytes),
            ..Identity::default()
        };
        let fs = FsSettings {
            max_bytes: settings.max_bytes,
            policy: settings.policy,
            pool: settings
                .threads
                .map_or_else(PoolSize::default, |n| PoolSize::new(n.div_ceil(2), n / 2)),
            verify: settings.verify,
            io_timeout: Some(settings.io_timeout),
            bounce: settings.bounce,
            read_only: settings.read_only,
            layout: settings.layout,
            engine: settings.engine,
            events: true,
            ..FsSettings::new(root)
        };
        let tier = FsBuilder::new(fs, Namespace::new(&identity)?, region.block_len())
            .clock(Arc::clone(clock))
            .bell(Arc::clone(&bell))
            .open();
        let tier = match tier {
            // blame the setting that names the directory, with its origin
            Err(e) if settings.root.is_some() && matches!(e.kind(), ErrorKind::Busy | ErrorKind::Invalid) => {
                return Err(settings
                    .refuse("root", &format!("cannot be used: {}", e.message()))
                    .into());
            }
            t => t.context("open the file tier")?,
        };
        let (layout, namespace_dir) = (tier.layout(), tier.namespace_dir().to_owned());
        let primary = Primary::new(region.clone(), settings.primary_policy, false);
        let mut manager = Manager::new(primary).clock(Arc::clone(clock));
        manager.add_tier(Box::new(tier), gate);
        Ok(Self {
            manager,
            bell,
            root: root.to_owned(),
            layout,
            namespace_dir,
            clock: Arc::clone(clock),
            next_request: 0,
        })
    }

    /// A name for the next request.
    pub(super) fn request_id(&mut self) -> kvweir::tier::RequestId {
        self.next_request += 1;
        kvweir::tier::RequestId(self.next_request)
    }

    /// Extents of the file tier that could not be opened so far.
    pub(super) fn unopened_extents(&self) -> u64 {
        let tiers = self.manager.tier_stats();
        tiers.iter().map(|(_, tier, _)| tier.unopened_extents).sum()
    }

    /// Waits for stores under way and the trim at start, then shuts the tier down.
    pub(super) fn close(&mut self, progress: &Progress, stop: &AtomicBool) {
        self.end_trim(progress, stop);
        let until = self.clock.now().after(DRAIN_PATIENCE);
        while self.manager.has_pending_work() && self.clock.now() < until {
            let rings = self.bell.rings();
            self.manager.on_schedule_end();
            if self.manager.has_pending_work() {
                self.bell.wait(rings, PATIENCE);
            }
        }
        self.manager.shutdown();
    }

    /// Waits until a lowered bound is reached: a large trim runs beside requests, and a short run may be over before
    /// it. A signal ends the wait.
    fn end_trim(&mut self, progress: &Progress, stop: &AtomicBool) {
        let above = |m: &Manager| {
            let all = m.tier_stats();
            let tier = all.first().map(|(_, tier, _)| tier).filter(|t| t.trimming);
            tier.map(|t| t.resident_bytes.saturating_sub(t.bound_bytes.unwrap_or(u64::MAX)))
        };
        while let Some(left) = above(&self.manager).filter(|_| !stop.load(Ordering::Relaxed)) {
            progress.settling(left);
            self.manager.poll();
            self.bell.wait(self.bell.rings(), TRIM_LOOK);
        }
    }
}

/// The gate the settings describe.
fn gate(settings: &ReplaySettings) -> Result<Option<Gate>> {
    let p = &settings.pressure;
    if !p.enabled {
        return Ok(None);
    }
    let narrow = |n: u64| u32::try_from(n).unwrap_or(u32::MAX);
    let pressure = PressureSettings {
        high_water_s: p.high_water_s,
        low_water_s: p.low_water_s,
        alpha: p.alpha,
        warmup_completions: narrow(p.warmup_completions),
        decay_half_life_s: p.decay_half_life_s,
        cooldown_s: p.cooldown_s,
        failure_threshold: Some(narrow(p.failure_threshold)),
        policy: match p.policy {
            DropPolicy::Drop => DropPolicyKind::Drop,
            DropPolicy::ThrottledDrop => DropPolicyKind::ThrottledDrop,
        },
        ramp_factor: p.ramp_factor,
        max_inflight_bytes: p.max_inflight_bytes,
    };
    let gate = Gate::new(pressure, settings.primary_bytes);
    // settings that do not go together, in the engine's words
    Ok(Some(gate.map_err(|e| UsageError {
        message: e.to_string(),
        hint: None,
    })?))
}
