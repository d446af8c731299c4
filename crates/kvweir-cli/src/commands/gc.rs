//! `kvweir gc`: what nobody needs any more.

use std::{collections::BTreeMap, path::PathBuf, time::Duration};

use anyhow::{Context, Result};
use kvweir::admin::{Collected, GcOptions, RegionState};

use crate::{
    admin::{self, OrCouldNotRun, RootArgs},
    ending::Ending,
    interrupt,
    progress::Progress,
    table::{Section, bytes, count},
};

const EXAMPLES: &str = "\
The age of a namespace is that of its newest block: reads leave no trace on disk, so choose an age longer
than any model may be read without storing a block. Temporaries and shared memory less than a minute old stay.
Shared memory stays where not all processes of all users and containers can be seen: a line says which cannot,
and how to run it instead.

Exit codes: 0 good, 1 something could not be removed, 2 it could not run, for example because an engine
holds the root, or where --shm is no directory.

Examples:
  # What would go
  kvweir gc /mnt/nvme/kv --older-than 30d

  # Remove it
  kvweir gc /mnt/nvme/kv --older-than 30d --yes

  # The directory only
  kvweir gc /mnt/nvme/kv --no-shm --yes";

/// Flags of `kvweir gc`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "--help tells more and gives examples")]
pub(crate) struct Args {
    #[command(flatten)]
    root: RootArgs,

    /// Also namespaces that nothing was written to for that long: 12h, 30d, 8weeks [unset: none]
    #[arg(long, value_name = "AGE", value_parser = humantime::parse_duration)]
    older_than: Option<Duration>,

    /// Where engines keep shared memory [default: /dev/shm]
    #[arg(long, value_name = "DIR")]
    shm: Option<PathBuf>,

    /// Leave shared memory alone
    #[arg(long, conflicts_with = "shm")]
    no_shm: bool,

    /// Remove it; without it, only say what
    #[arg(long)]
    yes: bool,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    let root = admin::open(&args.root.root)?;
    interrupt::tell_how_far(&Progress::hidden()).context("listen for signals")?;
    let claim = admin::claim(&root, args.yes)?;
    let usual = GcOptions::default();
    let options = GcOptions {
        older_than: args.older_than,
        shm: args.shm.clone().or(usual.shm).filter(|_| !args.no_shm),
        ..usual
    };
    let report = root.gc(&options, claim.as_ref()).or_could_not_run()?;
    admin::show(args.root.json, &report, || sections(&report))?;
    admin::say_dry(report.done, args.root.json);
    Ok(if report.failed.is_empty() {
        Ending::Good
    } else {
        Ending::Bad
    })
}

fn sections(r: &Collected) -> Vec<Section> {
    let mut out = vec![admin::list(
        if r.done { "removed" } else { "gc would remove" },
        vec![
            ("directory", r.root.clone()),
            ("temporaries", admin::pile(r.temporaries)),
            ("temporaries that stay", count(r.temporaries_kept)),
            ("empty directories", count(r.empty_directories)),
            ("namespaces", count(r.namespaces.len() as u64)),
        ],
    )];
    let namespaces: Vec<String> = r
        .namespaces
        .iter()
        .map(|n| {
            let kept = n.kept.as_ref().map_or_else(String::new, |k| format!("; {k}"));
            let age = admin::span(n.unused_s);
            let extents = match n.extents.files {
                0 => String::new(),
                _ => format!(
                    ", {} extents of {} blocks",
                    admin::pile(n.extents),
                    count(n.packed_blocks)
                ),
            };
            format!(
                "{}: {} block files{extents}, nothing written for {age}{kept}",
                n.directory,
                admin::pile(n.blocks)
            )
        })
        .collect();
    out.extend(admin::lines("namespaces", &namespaces));
    out.extend(admin::lines("shared memory", &regions(r)));
    out.extend(admin::lines("could not be removed", &r.failed));
    out
}

/// A line for each region that is judged, and one for all that stay for the same reason.
fn regions(r: &Collected) -> Vec<String> {
    let (mut out, mut left) = (Vec::new(), BTreeMap::<&str, (u64, u64, &str)>::new());
    for region in &r.regions {
        let state = match &region.state {
            RegionState::Gone if r.done => "removed: no process used it".into(),
            RegionState::Gone => "no process uses it".into(),
            RegionState::InUse(pids) => format!("stays: in use by {pids:?}"),
            RegionState::Left(why) => {
                let first = region.paths.first().map_or("", String::as_str);
                let of = left.entry(why).or_insert((0, 0, first));
                of.0 += 1;
                of.1 += region.bytes;
                continue;
            }
        };
        out.push(format!(
            "{} ({}): {state}",
            region.paths.join(", "),
            bytes(region.bytes)
        ));
    }
    out.extend(
        left.into_iter()
            .map(|(why, (regions, size, first))| match regions {
                1 => format!("{first} ({}) stays: {why}", bytes(size)),
                n => format!(
                    "{} regions ({}) stay, such as {first}: {why}",
                    count(n),
                    bytes(size)
                ),
            }),
    );
    out
}
