//! `kvweir import`: trailers for blocks of a stock tier.

use std::path::PathBuf;

use anyhow::{Context, Result};
use kvweir::admin::{ImportOptions, Imported};

use crate::{
    admin::{self, OrCouldNotRun, RootArgs},
    ending::Ending,
    interrupt,
    progress::Progress,
    table::{Section, bytes, count},
    usage::UsageError,
};

const EXAMPLES: &str = "\
kvweir serves stock blocks without this, but then it cannot tell wrong bytes from right ones. Only files of
exactly a block's length are taken, in namespaces whose config.json yields the directory's name.

Exit codes: 0 every block has, or would get, a trailer; 1 some do not; 2 it could not run, for example
because an engine holds the root or there is no room.

Examples:
  # What would be done
  kvweir import /mnt/nvme/vllm-cache

  # In place
  kvweir import /mnt/nvme/vllm-cache --yes

  # Safer: the old directory stays as it is
  kvweir import /mnt/nvme/vllm-cache --into /mnt/nvme/kv --yes";

/// Flags of `kvweir import`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "--help tells more and gives examples")]
pub(crate) struct Args {
    #[command(flatten)]
    root: RootArgs,

    /// Write into this root, which must exist, and leave the other alone
    #[arg(long, value_name = "ROOT")]
    into: Option<PathBuf>,

    /// Bytes per block, if files differ in length: 2MiB [unset: what most files have]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    block_bytes: Option<u64>,

    /// Threads that read and write [default: 4 per usable CPU, 4 to 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Write it; without it, only say what
    #[arg(long)]
    yes: bool,
}

fn size(text: &str) -> Result<u64, String> {
    match kvweir::size::parse(text) {
        Ok(0) => Err("is no length of a block".into()),
        r => r,
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    let from = admin::open(&args.root.root)?;
    let mut into = args.into.as_ref().map_or(Ok(from.clone()), |i| admin::open(i))?;
    if args.into.is_some() && (into.root().starts_with(from.root()) || from.root().starts_with(into.root())) {
        return Err(UsageError {
            message: "one of the two directories lies in the other".into(),
            hint: Some("leave --into away to import in place"),
        }
        .into());
    }
    if let Some(n) = args.threads {
        into = into.threads(usize::from(n));
    }
    let claim = admin::claim(&into, args.yes)?;
    let options = ImportOptions {
        block_bytes: args.block_bytes,
    };
    let progress = Progress::blocks(!args.root.json);
    interrupt::tell_how_far(&progress).context("listen for signals")?;
    let source = args.into.is_some().then_some(&from);
    let report = into.import(source, &options, &|now| progress.at(now), claim.as_ref());
    progress.finish();
    let report = report.or_could_not_run()?;
    admin::show(args.root.json, &report, || sections(&report))?;
    admin::say_dry(report.done, args.root.json);
    Ok(if report.is_whole() {
        Ending::Good
    } else {
        Ending::Bad
    })
}

fn sections(r: &Imported) -> Vec<Section> {
    let gb_s = r.bytes as f64 / 1e9 / r.seconds.max(1e-9);
    let mut out = vec![admin::list(
        if r.done { "imported" } else { "import would write" },
        vec![
            ("from", r.from.clone()),
            ("into", r.into.clone()),
            (
                "read",
                format!("{} in {:.2} s, {gb_s:.2} GB/s", bytes(r.bytes), r.seconds),
            ),
        ],
    )];
    for n in &r.namespaces {
        let mut rows = vec![("directory", n.directory.clone())];
        if let Some(why) = &n.passed_over {
            rows.push(("passed over", why.clone()));
        } else {
            rows.extend([
                ("bytes of a block", n.block_bytes.map_or_else(String::new, count)),
                ("blocks that get a trailer", count(n.imported)),
                ("blocks there already", count(n.present)),
                ("files of a wrong length", count(n.wrong_size)),
                ("damaged blocks", count(n.damaged)),
                ("extents, left alone", count(n.extents)),
            ]);
        }
        out.push(admin::list("namespace", rows));
    }
    out.extend(admin::lines("failed", &r.failed));
    out
}
