//! `kvweir replay`: from settings and a source of requests to a table, a JSON object or a report.

use std::{
    path::PathBuf,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::{Context, Result};
use kvweir::clock::SystemClock;

use crate::{
    ending::Ending,
    hitrate, interrupt, output,
    progress::Progress,
    replay::{self, Outcome},
    report,
    settings::{Flags, ReplaySettings},
    summary::TierSummary,
    trace::Notes,
};

const EXAMPLES: &str = "\
Settings may also come from a TOML file: each flag is a key there, with underscores. Flags win over
the file, the file over the defaults.

Exit codes: 0 good, 1 wrong bytes or a failed run, 2 bad settings or input, 128 and the signal's number when
interrupted (130: SIGINT).

Examples:
  # The built-in workload in a temporary directory, removed at the end
  kvweir replay

  # A recorded trace against a directory of at most 2 GiB, with a report
  kvweir replay trace.jsonl.gz --root /mnt/kv --max-bytes 2GiB --report out.html

  # Only the first 1,000 requests, from stdin, as JSON
  zcat trace.jsonl.gz | kvweir replay - --requests 1000 --json

  # How large must the cache be? Eviction code only, no I/O
  kvweir replay trace.jsonl.gz --hit-rate-only --policy arc --capacity-blocks 5000,10000,20000

  # The settings in force and where each comes from
  kvweir replay --config replay.toml --alpha 0.3 --print-config";

/// Flags of `kvweir replay`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "--help tells more and gives examples")]
pub(crate) struct Args {
    #[command(flatten)]
    flags: Flags,

    /// Read settings from this TOML file
    #[arg(long, value_name = "FILE.toml", help_heading = "Settings")]
    config: Option<PathBuf>,

    /// Print the settings in force as TOML, each with its origin, and exit
    #[arg(long, help_heading = "Settings")]
    print_config: bool,
}

/// Runs the command.
pub(crate) fn run(args: Args) -> Result<Ending> {
    let settings = ReplaySettings::load(args.config.as_deref(), args.flags)?;
    if args.print_config {
        output::result(&settings.to_toml())?;
        return Ok(Ending::Good);
    }
    let stop = interrupt::listen().context("listen for signals")?;
    if settings.hit_rate_only {
        hit_rate_only(&settings, &stop)
    } else {
        with_io(&settings, &stop)
    }
}

fn hit_rate_only(settings: &ReplaySettings, stop: &AtomicBool) -> Result<Ending> {
    let workload = replay::open(settings)?;
    let notes = workload.notes.clone();
    let results = hitrate::run(settings, workload.requests, &SystemClock::new(), stop)?;
    tell(&notes);
    let mut written = Ok(());
    if let Some(path) = &settings.report {
        // the numbers are shown even if the report cannot be written
        written = report::hitrate::render(&results, &settings.to_toml()).and_then(|html| {
            report::write(path, &html).with_context(|| format!("write report {}", path.display()))
        });
    }
    if settings.json {
        output::result(&hitrate::json(&results, notes.skipped()).to_string())?;
    } else {
        output::result(&hitrate::section(&results).to_text())?;
    }
    written?;
    Ok(if stop.load(Ordering::Relaxed) {
        Ending::Interrupted
    } else {
        Ending::Good
    })
}

fn with_io(settings: &ReplaySettings, stop: &AtomicBool) -> Result<Ending> {
    let total = replay::survey(settings, stop)?;
    let workload = replay::open(settings)?;
    let notes = workload.notes.clone();
    let progress = Progress::new(total, !settings.quiet && !settings.json);
    let outcome = replay::run(settings, workload.requests, &progress, stop);
    progress.finish();
    let Outcome {
        mut summary,
        timeline,
    } = outcome?;
    summary.skipped_lines = notes.skipped();
    let mut written = Ok(());
    if let Some(path) = &settings.report {
        // The numbers are shown even if the report cannot be written.
        written = report::render(&summary, &timeline, &settings.to_toml()).and_then(|html| {
            report::write(path, &html).with_context(|| format!("write report {}", path.display()))
        });
        summary.report = written.is_ok().then(|| path.clone());
    }
    tell(&notes);
    if let (Some(false), Some(first)) = (summary.events_match_directory, &summary.events_note) {
        output::say(&format!("error: events and directory differ: {first}"));
    }
    for w in summary.tiers.iter().filter_map(TierSummary::above_bound) {
        output::say(&format!("warning: {w}"));
    }
    output::result(&if settings.json {
        summary.to_json()?
    } else {
        summary.to_table()
    })?;
    written?;
    let good = summary.wrong_blocks == 0 && summary.events_match_directory != Some(false);
    Ok(match (good, summary.interrupted) {
        (true, false) => Ending::Good,
        (true, true) => Ending::Interrupted,
        (false, _) => Ending::Bad,
    })
}

/// Tells what the reader noticed.
fn tell(notes: &Notes) {
    if let Some(first) = notes.first_skipped() {
        output::say(&format!(
            "warning: {} bad lines skipped, the first: {first}",
            notes.skipped()
        ));
    }
    if notes.out_of_order() > 0 {
        let n = notes.out_of_order();
        output::say(&format!(
            "warning: {n} requests are timed before their predecessor; the file's order is kept"
        ));
    }
}
