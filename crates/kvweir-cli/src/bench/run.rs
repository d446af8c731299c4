//! The phases of a bench, in their order.

use std::{
    collections::VecDeque,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
};

use anyhow::{Context, Result};
use kvweir::{
    clock::{Clock, SystemClock},
    fs::{FsBuilder, FsSettings},
    io::{Region, pool::PoolSize},
    namespace::{Identity, Namespace},
    sync::Bell,
    tier::Tier,
};

use super::{
    content::Content,
    device::{Both, Device, Use},
    drive::{Driver, Faults},
    meter::{Amount, Phase},
    outcome::{Measure, Outcome, Step},
    plan::{FIXED, Plan, refuse},
};
use crate::{progress::Progress, scratch::Scratch, usage::UsageError};

/// Runs everything and removes what it made. `told` is the progress bar.
pub(crate) fn run(plan: &Plan, told: &Progress, stop: &AtomicBool) -> Result<Outcome> {
    plan.check()?;
    let clock = SystemClock::shared();
    let unix_s = clock.unix_seconds();
    let scratch = Scratch::make(&plan.root, "kvweir-bench-").map_err(|e| {
        let message = format!("no directory can be made in {}: {e}", plan.root.display());
        refuse(message, "look at its permissions, or name another")
    })?;
    let measured = Run::new(plan, &*clock, told, stop)?.all(scratch.path());
    let kept = leave(scratch, plan.keep, told)?;
    let (done, device_is_direct) = measured?;
    Ok(Outcome {
        root: plan.root.clone(),
        unix_s,
        cpus: kvweir::io::pool::usable_cpus(),
        kernel: rustix::system::uname().release().to_string_lossy().into_owned(),
        settings: plan.settings(),
        direct: device_is_direct,
        device_new: done.device_new,
        churn: done.churn,
        steps: done.steps,
        checked_blocks: done.faults.checked,
        wrong_blocks: done.faults.wrong,
        failed_blocks: done.faults.failed,
        missed_blocks: done.faults.missed,
        evicted_blocks: done.evicted,
        bytes_peak: done.peak,
        bound_bytes: plan.bound(),
        interrupted: stop.load(Ordering::Relaxed),
        kept,
        report: None,
    })
}

fn leave(scratch: Scratch, keep: bool, told: &Progress) -> Result<Option<PathBuf>> {
    let path = scratch.path().to_owned();
    if keep {
        let kept = scratch.keep();
        return kept.map(Some).with_context(|| format!("keep {}", path.display()));
    }
    scratch
        .remove(&|n| told.removing(n))
        .with_context(|| format!("remove {}", path.display()))?;
    Ok(None)
}

/// What was measured.
#[derive(Debug)]
struct Done {
    device_new: Measure,
    churn: Option<Measure>,
    steps: Vec<Step>,
    faults: Faults,
    evicted: u64,
    peak: u64,
}

/// Memory and clock of a run.
struct Run<'a> {
    plan: &'a Plan,
    clock: &'a dyn Clock,
    told: &'a Progress,
    stop: &'a AtomicBool,
    content: Content,
    source: Region,
    target: Region,
}

impl<'a> Run<'a> {
    fn new(plan: &'a Plan, clock: &'a dyn Clock, told: &'a Progress, stop: &'a AtomicBool) -> Result<Self> {
        let len = usize::try_from(plan.block)?;
        let slots = u32::try_from(plan.lanes() * u64::from(plan.batch))?;
        let content = Content::new(plan.seed, len, u64::from(plan.batch));
        let source = Region::new(slots, len, false)?;
        for slot in 0..slots {
            content.lay(u64::from(slot), &mut source.write(slot)?);
        }
        let target = Region::new(slots, len, false)?;
        for slot in 0..slots {
            // memory is mapped at the first touch: not while something is timed
            target.write(slot)?.fill(0xff);
        }
        Ok(Self {
            plan,
            clock,
            told,
            stop,
            content,
            source,
            target,
        })
    }

    fn all(&self, scratch: &Path) -> Result<(Done, bool)> {
        let plan = self.plan;
        let blocks = plan.jobs() * u64::from(plan.batch);
        let device = Device::new(&scratch.join("device"), blocks, &self.source, &self.target)?;
        // once over: this measures what new space costs, and spares the later phases that cost
        let whole = Use {
            run: u64::from(plan.batch),
            threads: plan.pool().store_threads,
            loads: 0,
            seed: plan.seed,
        };
        let phase = Phase::begin(self.clock, self.stop, Amount::Jobs(plan.jobs()));
        let (writes, _, spent) = device.run(whole, &phase, &|n| {
            self.told.phase("device, new space", phase.share(n));
        })?;
        let mut driver = self.open(scratch)?;
        let mut done = Done {
            device_new: writes.measure("store", "device, new space", spent, writes.bytes),
            churn: None,
            steps: Vec::new(),
            faults: Faults::default(),
            evicted: 0,
            peak: 0,
        };
        if plan.churn > 0 {
            let jobs = plan.churn.saturating_mul(plan.bound()).div_ceil(plan.job_bytes());
            let phase = Phase::begin(self.clock, self.stop, Amount::Jobs(jobs));
            let (stores, _, spent) = driver.run(plan.deepest(), 0, &phase, &|n| {
                self.told.phase("churn", phase.share(n));
            })?;
            done.churn = Some(stores.measure("store", "tier", spent, stores.bytes));
        }
        for &depth in &plan.depths {
            let mut step = Step {
                queue_depth: depth,
                measures: Vec::new(),
            };
            for what in [Kind::Store, Kind::Load, Kind::Mixed] {
                self.device_phases(&device, what, depth, &mut step)?;
            }
            for what in [Kind::Store, Kind::Load, Kind::Mixed] {
                self.tier_phase(&mut driver, what, depth, &mut step)?;
            }
            step.compare();
            done.steps.push(step);
            if self.stop.load(Ordering::Relaxed) {
                break;
            }
        }
        let stats = driver.tier.stats();
        done.faults = driver.faults;
        done.evicted = stats.evicted_blocks.iter().sum();
        done.peak = stats.peak_bytes;
        driver.tier.shutdown();
        Ok((done, device.direct))
    }

    fn amount(&self, times: u64) -> Amount {
        self.plan
            .time
            .map_or(Amount::Jobs(self.plan.jobs() * times), Amount::Time)
    }

    fn open(&self, scratch: &Path) -> Result<Driver<'_>> {
        let plan = self.plan;
        let mut settings = FsSettings {
            max_bytes: Some(plan.bound()),
            pool: plan.pool(),
            verify: plan.verify,
            ..FsSettings::new(scratch.join("kv"))
        };
        settings.layout = plan.layout.unwrap_or(settings.layout);
        settings.engine = plan.engine.unwrap_or(settings.engine);
        let ns = Namespace::new(&Identity {
            model_name: String::from("kvweir/bench"),
            ..Identity::default()
        })?;
        let bell = Arc::<Bell>::default();
        let tier = FsBuilder::new(settings, ns, usize::try_from(plan.block)?)
            .bell(Arc::clone(&bell))
            .open()
            .map_err(|e| match e.kind() {
                kvweir::ErrorKind::Invalid => UsageError {
                    message: e.to_string(),
                    hint: None,
                }
                .into(),
                _ => anyhow::Error::from(e),
            })?;
        let fits = plan.bound().saturating_sub(FIXED) / plan.job_cost() * 4 / 5;
        Ok(Driver {
            tier,
            bell,
            source: &self.source,
            target: &self.target,
            content: &self.content,
            batch: plan.batch,
            seed: plan.seed,
            next: 0,
            stored: VecDeque::new(),
            keep: usize::try_from(fits.clamp(1, plan.jobs()))?,
            faults: Faults::default(),
        })
    }

    /// Whole jobs as contiguous runs, and single blocks, in one file.
    fn device_phases(&self, device: &Device<'_>, what: Kind, depth: u32, step: &mut Step) -> Result<()> {
        let (plan, pool) = (self.plan, self.plan.pool());
        let most = what.threads(pool);
        for (by, run) in [("device", plan.batch), ("device blocks", 1)] {
            let wanted = depth as usize * (plan.batch / run) as usize;
            let how = Use {
                run: u64::from(run),
                threads: wanted.min(most),
                loads: what.loads(plan.mix),
                seed: plan.seed,
            };
            let phase = Phase::begin(self.clock, self.stop, self.amount(u64::from(plan.batch / run)));
            let tell = |n| self.told.phase(&format!("{by}, {}", what.name()), phase.share(n));
            let both = device.run(how, &phase, &tell)?;
            push(step, what, by, &both);
        }
        Ok(())
    }

    fn tier_phase(&self, driver: &mut Driver<'_>, what: Kind, depth: u32, step: &mut Step) -> Result<()> {
        let phase = Phase::begin(self.clock, self.stop, self.amount(1));
        let tell = |n| self.told.phase(&format!("tier, {}", what.name()), phase.share(n));
        let both = driver.run(depth, what.loads(self.plan.mix), &phase, &tell)?;
        push(step, what, "tier", &both);
        Ok(())
    }
}

/// What a phase does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Store,
    Load,
    Mixed,
}

impl Kind {
    const fn name(self) -> &'static str {
        match self {
            Self::Store => "store",
            Self::Load => "load",
            Self::Mixed => "mixed",
        }
    }

    const fn loads(self, mix: u64) -> u64 {
        match self {
            Self::Store => 0,
            Self::Load => 100,
            Self::Mixed => mix,
        }
    }

    const fn threads(self, pool: PoolSize) -> usize {
        match self {
            Self::Store => pool.store_threads,
            Self::Load | Self::Mixed => pool.threads,
        }
    }
}

/// Adds the rows of a phase; directions without a job have none.
fn push(step: &mut Step, what: Kind, by: &'static str, (writes, reads, spent): &Both) {
    let names = match what {
        Kind::Mixed => ("mixed store", "mixed load"),
        _ => ("store", "load"),
    };
    for (name, meter) in [(names.0, writes), (names.1, reads)] {
        if meter.jobs > 0 {
            let all = writes.bytes + reads.bytes;
            step.measures.push(meter.measure(name, by, *spent, all));
        }
    }
}
