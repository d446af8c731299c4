//! `kvweir bench`: what a directory's device gives, and what a tier in it makes of that.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the plan, its checks, and the order of phases |
//! | `content.rs` | seeded blocks, and how wrong ones are seen |
//! | `device.rs` | direct reads and writes without a tier |
//! | `drive.rs` | jobs through the tier |
//! | `meter.rs`, `outcome.rs` | counting and timing; what is told |

mod content;
mod device;
mod drive;
mod meter;
mod outcome;

use std::{
    collections::{BTreeMap, VecDeque},
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
    time::Duration,
};

use anyhow::{Context, Result};
use kvweir::{
    clock::{Clock, SystemClock},
    fs::{FsBuilder, FsSettings, Layout},
    io::{Disk, OsDisk, PAGE, Region, engine::EngineKind, pool::PoolSize, round_up},
    namespace::{Identity, Namespace},
    sync::Bell,
    tier::Tier,
};

pub(crate) use self::outcome::{Measure, Outcome, Step};
use self::{
    content::Content,
    device::{Device, Use},
    drive::{Driver, Faults},
    meter::{Amount, Phase},
};
use crate::{
    cli::UsageError, progress::Progress, scratch::Scratch, summary::table::bytes as show, workload::SplitMix,
};

/// What a tier has on disk beside its blocks, with room to spare.
const FIXED: u64 = 16 << 20;
/// Two directories that a block file may need.
const DIRECTORIES: u64 = 2 * PAGE as u64;

/// What is measured.
#[derive(Debug, Clone)]
pub(crate) struct Plan {
    /// The directory.
    pub(crate) root: PathBuf,
    /// Bytes of a block.
    pub(crate) block: u64,
    /// Blocks of a job.
    pub(crate) batch: u32,
    /// Numbers of jobs under way, one step each.
    pub(crate) depths: Vec<u32>,
    /// Of 100 jobs of the mixed phases so many load.
    pub(crate) mix: u64,
    /// Bytes that a phase moves, and those that loads choose from.
    pub(crate) bytes: u64,
    /// How long a phase runs instead.
    pub(crate) time: Option<Duration>,
    /// How new blocks are laid out; none: as the tier does by itself.
    pub(crate) layout: Option<Layout>,
    /// How workers speak to the kernel; none: as the tier does by itself.
    pub(crate) engine: Option<EngineKind>,
    /// The tier's bound; none: room for all that is stored.
    pub(crate) max_bytes: Option<u64>,
    /// Threads that store, and as many more that load; none: by usable CPUs.
    pub(crate) threads: Option<usize>,
    /// Whether the tier compares checksums on load.
    pub(crate) verify: bool,
    /// So many times the bound is written first.
    pub(crate) churn: u64,
    /// Seed of contents, order and choices.
    pub(crate) seed: u64,
    /// Leave the scratch directory.
    pub(crate) keep: bool,
}

/// A number below `n` for the `i`-th choice; 0 of none.
fn scatter(i: u64, seed: u64, n: u64) -> u64 {
    SplitMix(SplitMix(seed).next() ^ SplitMix(i).next()).below(n)
}

fn refuse(message: String, hint: &'static str) -> anyhow::Error {
    UsageError {
        message,
        hint: Some(hint),
    }
    .into()
}

impl Plan {
    fn job_bytes(&self) -> u64 {
        self.block.saturating_mul(u64::from(self.batch))
    }

    /// Jobs of a phase, or those that loads choose from.
    fn jobs(&self) -> u64 {
        self.bytes.div_ceil(self.job_bytes()).max(1)
    }

    fn deepest(&self) -> u32 {
        self.depths.iter().copied().max().unwrap_or(1)
    }

    /// Bytes that a job's blocks cost on disk at most: files with their trailers and directories.
    fn job_cost(&self) -> u64 {
        let block = round_up(self.block, PAGE as u64).saturating_add(PAGE as u64 + DIRECTORIES);
        block.saturating_mul(u64::from(self.batch))
    }

    fn pool(&self) -> PoolSize {
        self.threads
            .map_or_else(PoolSize::default, |n| PoolSize::new(n, n))
    }

    /// The tier's bound.
    fn bound(&self) -> u64 {
        let steps = self.depths.len() as u64;
        let stored = self.jobs() as f64 * (2.0 - self.mix as f64 / 100.0);
        let jobs = if self.time.is_some() {
            // what is loaded from, and as much again: nobody knows how much a phase stores
            self.jobs().saturating_mul(2)
        } else {
            // which jobs of a mixed phase store is drawn: some more than their share
            ((stored * 1.05) as u64 + 64).saturating_mul(steps)
        };
        self.max_bytes.unwrap_or_else(|| {
            jobs.saturating_add(u64::from(self.deepest()))
                .saturating_mul(self.job_cost())
                .saturating_add(FIXED)
        })
    }

    /// Lanes of memory: one a job under way, or a thread that uses the device.
    fn lanes(&self) -> u64 {
        let pool = self.pool();
        u64::from(self.deepest()).max(pool.threads as u64)
    }

    /// Looks at everything that can be looked at before anything is made.
    fn check(&self) -> Result<()> {
        if !self.root.is_dir() {
            let message = format!("{} is no directory", self.root.display());
            return Err(refuse(
                message,
                "name an existing directory on the device in question",
            ));
        }
        if self.root.join(".kvweir").exists() {
            let message = format!("{} is the root of a bounded tier", self.root.display());
            let hint = "what is written there counts against its bound: name another directory of the same file system";
            return Err(refuse(message, hint));
        }
        if self.block == 0 || !self.block.is_multiple_of(PAGE as u64) {
            let message = format!("--block-size {} is no multiple of {PAGE} bytes", self.block);
            return Err(refuse(
                message,
                "direct I/O moves whole pages: write 16KiB, 64KiB, 2MiB",
            ));
        }
        let memory = self.lanes().saturating_mul(self.job_bytes()).saturating_mul(2);
        let machine = rustix::system::sysinfo();
        let total = machine.totalram as u64 * u64::from(machine.mem_unit.max(1));
        if memory > total / 2 {
            let message = format!("the jobs under way need {} of memory", show(memory));
            let hint = "make --block-size, --batch or --queue-depth smaller";
            return Err(refuse(message, hint));
        }
        let bound = self.bound();
        let least = (u64::from(self.deepest()) + 1)
            .saturating_mul(self.job_cost())
            .saturating_add(FIXED);
        if bound < least {
            let message = format!(
                "--max-bytes {} has no room for the jobs under way, which need {}",
                show(bound),
                show(least)
            );
            return Err(refuse(
                message,
                "raise it, or make --batch or --queue-depth smaller",
            ));
        }
        let space = OsDisk
            .space(&self.root)
            .with_context(|| format!("look at {}", self.root.display()))?;
        let need = bound.saturating_add(self.jobs().saturating_mul(self.job_bytes()));
        if need > space.available {
            let message = format!(
                "the bench writes up to {} below {}, and {} are free",
                show(need),
                self.root.display(),
                show(space.available)
            );
            return Err(refuse(
                message,
                "make --bytes or --max-bytes smaller, or --ramp shorter",
            ));
        }
        Ok(())
    }

    fn settings(&self) -> BTreeMap<&'static str, String> {
        let pool = self.pool();
        let amount = match self.time {
            Some(t) => ("seconds", format!("{}", t.as_secs_f64())),
            None => ("bytes", kvweir::size::show(self.bytes)),
        };
        let usual = FsSettings::new(&self.root);
        BTreeMap::from([
            ("batch", self.batch.to_string()),
            ("block_size", kvweir::size::show(self.block)),
            amount,
            ("churn", self.churn.to_string()),
            ("engine", self.engine.unwrap_or(usual.engine).to_string()),
            ("layout", self.layout.unwrap_or(usual.layout).to_string()),
            ("mix", self.mix.to_string()),
            ("seed", self.seed.to_string()),
            ("load_threads", (pool.threads - pool.store_threads).to_string()),
            ("store_threads", pool.store_threads.to_string()),
            ("verify", if self.verify { "on" } else { "off" }.to_owned()),
        ])
    }
}

/// Runs everything and removes what it made. `told` is the bar that people look at.
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
            // the system gives memory at the first touch: not while it is timed
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
        // once over: what it costs to write where nothing was, and all else is measured without that
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
fn push(step: &mut Step, what: Kind, by: &'static str, (writes, reads, spent): &device::Both) {
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
