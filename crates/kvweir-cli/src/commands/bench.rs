//! `kvweir bench`: a device, and a tier on it, under jobs of one shape.

use std::{path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use kvweir::{fs::Layout, io::engine::EngineKind};

use crate::{
    bench::{self, Plan},
    ending::Ending,
    interrupt, output,
    progress::Progress,
    report,
    table::Section,
    usage::UsageError,
};

const EXAMPLES: &str = "\
It makes a directory kvweir-bench-... in ROOT and removes it, also after an interrupt. First the device is
measured without a tier: direct writes and reads in one preallocated file, of whole jobs as contiguous runs
(the limit) and of single blocks, by at most as many threads as the tier has. Then a real tier stores, loads
what it stored, and does both. Every loaded block is checked; a wrong byte ends the command with 1.

Exit codes: 0 good, 1 wrong bytes or failed blocks, 2 it could not run, 128 and the signal's
number when interrupted (130: SIGINT).

Examples:
  # Blocks of 64 KiB, 16 per job, 8 jobs under way
  kvweir bench /mnt/nvme

  # Where does it saturate? With a report
  kvweir bench /mnt/nvme --ramp 1,2,4,8,16 --report bench.html

  # Large blocks, mostly loads, ten seconds per phase
  kvweir bench /mnt/nvme --block-size 2MiB --batch 8 --mix 90 --seconds 10

  # A full tier that was written twenty times over, as JSON
  kvweir bench /mnt/nvme --bytes 64MiB --max-bytes 256MiB --churn 20 --json";

/// Flags of `kvweir bench`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "--help tells more and gives examples")]
pub(crate) struct Args {
    /// An existing directory on the device; no root of a bounded tier
    #[arg(value_name = "ROOT")]
    root: PathBuf,

    /// Bytes per block, whole pages
    #[arg(long, value_name = "SIZE", default_value = "64KiB", value_parser = size)]
    block_size: u64,

    /// Blocks per job
    #[arg(long, value_name = "N", default_value_t = 16, value_parser = clap::value_parser!(u32).range(1..=1024))]
    batch: u32,

    /// Jobs under way
    #[arg(long, value_name = "N", default_value_t = 8, visible_alias = "jobs-in-flight",
          value_parser = clap::value_parser!(u32).range(1..=1024))]
    queue_depth: u32,

    /// Several queue depths, one after the other: 1,2,4,8
    #[arg(long, value_name = "N,...", value_delimiter = ',', action = clap::ArgAction::Set,
          conflicts_with = "queue_depth", value_parser = clap::value_parser!(u32).range(1..=1024))]
    ramp: Vec<u32>,

    /// Percentage of the jobs in mixed phases that load
    #[arg(long, value_name = "PERCENT", default_value_t = 70, value_parser = clap::value_parser!(u64).range(0..=100))]
    mix: u64,

    /// Bytes that each phase moves, and that loads choose from
    #[arg(long, value_name = "SIZE", default_value = "256MiB", value_parser = size)]
    bytes: u64,

    /// Run each phase for so many seconds instead of once over --bytes
    #[arg(long, value_name = "S", value_parser = clap::value_parser!(u64).range(1..=86_400))]
    seconds: Option<u64>,

    /// How the tier lays out new blocks: auto, fs or pack [default: the tier's]
    #[arg(long, value_name = "WORD", value_parser = layout)]
    layout: Option<Layout>,

    /// How the tier's workers do I/O: threads or io_uring [default: the tier's]
    #[arg(long, value_name = "WORD", value_parser = engine)]
    engine: Option<EngineKind>,

    /// The tier's bound [default: nothing is evicted; with --seconds twice --bytes]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_bytes: Option<u64>,

    /// Threads of the tier that store; as many more load [default: by usable CPUs]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    threads: Option<u16>,

    /// Whether the tier compares checksums on load: on or off
    #[arg(long, value_name = "WORD", default_value = "on", action = clap::ArgAction::Set, value_parser = on_off)]
    verify: bool,

    /// Write so many times the bound first
    #[arg(long, value_name = "N", default_value_t = 0, value_parser = clap::value_parser!(u64).range(0..=1000))]
    churn: u64,

    /// Seed of contents, order and choices
    #[arg(long, value_name = "N", default_value_t = 1)]
    seed: u64,

    /// Keep the directory that was made
    #[arg(long)]
    keep: bool,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,

    /// Write an HTML report
    #[arg(long, value_name = "PATH")]
    report: Option<PathBuf>,

    /// No progress bar
    #[arg(long)]
    quiet: bool,
}

fn size(text: &str) -> Result<u64, String> {
    match kvweir::size::parse(text)? {
        0 => Err(String::from("must be more than 0")),
        n => Ok(n),
    }
}

fn layout(text: &str) -> Result<Layout, String> {
    text.parse()
        .map_err(|_| String::from("is none of auto, fs, pack"))
}

fn engine(text: &str) -> Result<EngineKind, String> {
    text.parse()
        .map_err(|_| String::from("is none of threads, io_uring"))
}

fn on_off(text: &str) -> Result<bool, String> {
    match text {
        "on" | "true" => Ok(true),
        "off" | "false" => Ok(false),
        _ => Err(String::from("is neither on nor off")),
    }
}

impl Args {
    fn plan(&self) -> Plan {
        let depths = if self.ramp.is_empty() {
            vec![self.queue_depth]
        } else {
            self.ramp.clone()
        };
        Plan {
            root: self.root.clone(),
            block: self.block_size,
            batch: self.batch,
            depths,
            mix: self.mix,
            bytes: self.bytes,
            time: self.seconds.map(Duration::from_secs),
            layout: self.layout,
            engine: self.engine,
            max_bytes: self.max_bytes,
            threads: self.threads.map(usize::from),
            verify: self.verify,
            churn: self.churn,
            seed: self.seed,
            keep: self.keep,
        }
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    if let Some(path) = &args.report {
        report::check(path).map_err(|why| UsageError {
            message: format!("--report {} {why}", path.display()),
            hint: Some("name a file in a directory that one may write to"),
        })?;
    }
    let stop = interrupt::listen().context("listen for signals")?;
    let progress = Progress::phases(!args.quiet && !args.json);
    let outcome = bench::run(&args.plan(), &progress, &stop);
    progress.finish();
    let mut outcome = outcome?;
    let mut written = Ok(());
    if let Some(path) = &args.report {
        // the numbers are shown even if the report cannot be written
        written = report::bench::render(&outcome).and_then(|html| {
            report::write(path, &html).with_context(|| format!("write report {}", path.display()))
        });
        outcome.report = written.is_ok().then(|| path.clone());
    }
    let text = if args.json {
        serde_json::to_string(&outcome)?
    } else {
        let texts: Vec<String> = outcome.sections().iter().map(Section::to_text).collect();
        texts.join("\n\n")
    };
    output::result(&text)?;
    written?;
    let good = outcome.wrong_blocks == 0 && outcome.failed_blocks == 0;
    Ok(match (good, outcome.interrupted) {
        (false, _) => Ending::Bad,
        (true, true) => Ending::Interrupted,
        (true, false) => Ending::Good,
    })
}
