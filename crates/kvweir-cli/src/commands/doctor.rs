//! `kvweir doctor`: whether machine and directory suit, or settings.

use std::path::{Path, PathBuf};

use anyhow::Result;
use kvweir::admin::Level;

use super::stanza;
use crate::{
    admin::{self, OrCouldNotRun},
    ending::Ending,
    table::Section,
};

const EXAMPLES: &str = "\
Run it where the engine runs, as its user: limits and cgroups are those of this process.

With --stanza it looks at settings only, all of them at once, and needs neither vLLM nor the machine.

Exit codes: 0 nothing is bad (there may be warnings), 1 something is bad, 2 it could not run.

Examples:
  kvweir doctor /mnt/nvme/kv
  kvweir doctor /mnt/nvme/kv --json | jq '.checks[] | select(.level != \"ok\")'
  kvweir doctor --stanza kv-transfer-config.json
  echo \"$CONFIG\" | kvweir doctor --stanza - --max-model-len 131072 --bytes-per-token 128KiB";

/// Flags of `kvweir doctor`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "--help tells more and gives examples")]
pub(crate) struct Args {
    /// The root: the directory given to the tier as `root`
    #[arg(
        value_name = "ROOT",
        required_unless_present = "stanza",
        conflicts_with_all = ["stanza", "max_model_len", "bytes_per_token", "block_size"]
    )]
    root: Option<PathBuf>,

    /// Print one JSON object instead of tables
    #[arg(long)]
    json: bool,

    #[command(flatten)]
    stanza: stanza::StanzaArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    if let Some(file) = &args.stanza.stanza {
        return stanza::run(&args.stanza, file, args.json);
    }
    let root = args.root.as_deref().unwrap_or(Path::new(""));
    let d = admin::open(root)?.doctor().or_could_not_run()?;
    admin::show(args.json, &d, || {
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
