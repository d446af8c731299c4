//! `kvweir trim`: oldest blocks first, down to a size.

use anyhow::{Context, Result};

use crate::{
    admin::{self, OrCouldNotRun, RootArgs},
    ending::Ending,
    interrupt,
    progress::Progress,
    table::{bytes, count},
};

const EXAMPLES: &str = "\
A root is trimmed at start by any engine whose `max_bytes` is smaller; this is for roots without one.
The journals go with the first block: the next start walks the root. Extents of packed blocks go whole: next
is the one with the fewest blocks, if its newest block is older than the oldest block file.

Exit codes: 0 the size is, or would be, reached; 1 it is not; 2 it could not run, for example because an
engine holds the root.

Examples:
  # What would go
  kvweir trim /mnt/nvme/kv --to 200GiB

  # Remove it
  kvweir trim /mnt/nvme/kv --to 200GiB --yes";

/// Flags of `kvweir trim`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "--help tells more and gives examples")]
pub(crate) struct Args {
    #[command(flatten)]
    root: RootArgs,

    /// The size of all that `du` counts below the root: 200GiB, 500MB, 0
    #[arg(long, value_name = "SIZE", value_parser = size)]
    to: u64,

    /// Remove the blocks; without it, only say which
    #[arg(long)]
    yes: bool,
}

fn size(text: &str) -> Result<u64, String> {
    kvweir::size::parse(text)
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    let root = admin::open(&args.root.root)?;
    interrupt::tell_how_far(&Progress::hidden()).context("listen for signals")?;
    let claim = admin::claim(&root, args.yes)?;
    let t = root.trim(args.to, claim.as_ref()).or_could_not_run()?;
    admin::show(args.root.json, &t, || {
        let newest = t.newest_removed_s.map_or_else(|| "-".to_owned(), admin::span);
        let mut out = vec![admin::list(
            if t.done { "trimmed" } else { "trim would remove" },
            vec![
                ("directory", t.root.clone()),
                ("size asked for", bytes(t.to_bytes)),
                ("before (du)", bytes(t.before_bytes)),
                (
                    if t.done { "after (du)" } else { "after, at most" },
                    bytes(t.after_bytes),
                ),
                ("block files", admin::pile(t.blocks)),
                ("extents", admin::pile(t.extents)),
                ("  blocks in them", count(t.packed_blocks)),
                ("directories", count(t.directories)),
                ("youngest of them", newest),
                ("journals", bytes(t.journal_bytes)),
            ],
        )];
        out.extend(admin::lines("could not be removed", &t.failed));
        if !t.is_reached() {
            let why = "the size is not reached: what is left is no block, or could not be removed";
            out.extend(admin::lines("note", &[why.to_owned()]));
        }
        out
    })?;
    admin::say_dry(t.done, args.root.json);
    Ok(if t.is_reached() { Ending::Good } else { Ending::Bad })
}
