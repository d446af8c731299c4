//! What is to be measured, and whether it can be.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use kvweir::{
    fs::{FsSettings, Layout},
    io::{Disk, OsDisk, PAGE, engine::EngineKind, pool::PoolSize, round_up},
};

use crate::{table::bytes as show, usage::UsageError};

/// What a tier has on disk beside its blocks, with room to spare.
pub(super) const FIXED: u64 = 16 << 20;
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
    /// Percentage of the jobs in mixed phases that load.
    pub(crate) mix: u64,
    /// Bytes that a phase moves, and those that loads choose from.
    pub(crate) bytes: u64,
    /// How long each phase runs instead.
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
    /// How many times the bound is written first.
    pub(crate) churn: u64,
    /// Seed of contents, order and choices.
    pub(crate) seed: u64,
    /// Leave the scratch directory.
    pub(crate) keep: bool,
}

pub(super) fn refuse(message: String, hint: &'static str) -> anyhow::Error {
    UsageError {
        message,
        hint: Some(hint),
    }
    .into()
}

impl Plan {
    pub(super) fn job_bytes(&self) -> u64 {
        self.block.saturating_mul(u64::from(self.batch))
    }

    /// Jobs of a phase, or those that loads choose from.
    pub(super) fn jobs(&self) -> u64 {
        self.bytes.div_ceil(self.job_bytes()).max(1)
    }

    pub(super) fn deepest(&self) -> u32 {
        self.depths.iter().copied().max().unwrap_or(1)
    }

    /// Bytes that a job's blocks cost on disk at most: files with their trailers and directories.
    pub(super) fn job_cost(&self) -> u64 {
        let block = round_up(self.block, PAGE as u64).saturating_add(PAGE as u64 + DIRECTORIES);
        block.saturating_mul(u64::from(self.batch))
    }

    pub(super) fn pool(&self) -> PoolSize {
        self.threads
            .map_or_else(PoolSize::default, |n| PoolSize::new(n, n))
    }

    /// The tier's bound.
    pub(super) fn bound(&self) -> u64 {
        let steps = self.depths.len() as u64;
        let stored = self.jobs() as f64 * (2.0 - self.mix as f64 / 100.0);
        let jobs = if self.time.is_some() {
            // what is loaded from, and as much again: nobody knows how much a phase stores
            self.jobs().saturating_mul(2)
        } else {
            // which jobs of a mixed phase store is random: some more than their share
            ((stored * 1.05) as u64 + 64).saturating_mul(steps)
        };
        self.max_bytes.unwrap_or_else(|| {
            jobs.saturating_add(u64::from(self.deepest()))
                .saturating_mul(self.job_cost())
                .saturating_add(FIXED)
        })
    }

    /// Lanes of memory: one per job under way, or per thread that uses the device.
    pub(super) fn lanes(&self) -> u64 {
        let pool = self.pool();
        u64::from(self.deepest()).max(pool.threads as u64)
    }

    /// Looks at everything that can be looked at before anything is made.
    pub(super) fn check(&self) -> Result<()> {
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

    pub(super) fn settings(&self) -> BTreeMap<&'static str, String> {
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
