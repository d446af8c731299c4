//! `kvweir doctor`: whether machine and directory suit.

use anyhow::Result;
use kvweir::fs::admin::Level;

use crate::{
    admin::{self, RootArgs},
    cli::Ending,
    summary::table::Section,
};

const EXAMPLES: &str = "\
Run it where the engine runs, as its user: limits and cgroups are those of this process.

Exit codes: 0 nothing is bad (there may be warnings), 1 something is bad, 2 it could not run.

Examples:
  kvweir doctor /mnt/nvme/kv
  kvweir doctor /mnt/nvme/kv --json | jq '.checks[] | select(.level != \"ok\")'";

/// Flags of `kvweir doctor`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "--help tells more and gives examples")]
pub(crate) struct Args {
    #[command(flatten)]
    root: RootArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    let d = admin::open(&args.root.root)?.doctor();
    admin::show(args.root.json, &d, || {
        let rows = d
            .checks
            .iter()
            .map(|c| format!("{:<4}  {}: {}", c.level.as_str(), c.what, c.found));
        let advice: Vec<String> = d
            .checks
            .iter()
            .filter(|c| c.level > Level::Ok)
            .map(|c| format!("{:<4}  {}: {}", c.level.as_str(), c.what, c.advice))
            .collect();
        let mut out = vec![Section {
            title: "checks",
            head: Vec::new(),
            rows: rows.map(|r| vec![r]).collect(),
        }];
        out.extend(admin::lines("what to do", &advice));
        out
    })?;
    Ok(if d.level == Level::Bad {
        Ending::Bad
    } else {
        Ending::Good
    })
}
