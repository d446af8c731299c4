//! `kvweir convert`: blocks from files into extents and back.

use anyhow::{Context, Result};
use kvweir::{
    admin::{ConvertOptions, Converted},
    fs::Layout,
};

use crate::{
    admin::{self, OrCouldNotRun, RootArgs},
    ending::Ending,
    interrupt,
    progress::Progress,
    table::{Section, bytes, count},
};

const EXAMPLES: &str = "\
Every block is compared with its checksum as it moves, and leaves its old place only once it is durable in the
new one and was read back from there. If it is killed, nothing is lost: run it again to go on. The first change
gives up the ledger, so a second run must be told the bound: --max-bytes as the engine has it.

Newest blocks move first. Files take more room than slots: what does not fit within the bound is dropped,
oldest first, as by a store. Keys longer than 64 bytes stay in files.
Set the engine's layout too: with layout fs it does not serve packed blocks, and evicts them first.

Exit codes: 0 every block was, or would be, moved; 1 some were dropped, damaged or failed; 2 it could not
run, for example because an engine holds the root.

Examples:
  # What would be done
  kvweir convert /mnt/nvme/kv --to pack

  # Do it
  kvweir convert /mnt/nvme/kv --to pack --yes

  # One model, back to files that stock vLLM reads
  kvweir convert /mnt/nvme/kv --to fs --namespace org_model_0123456789ab_r0 --max-bytes 200GiB --yes";

/// Flags of `kvweir convert`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "--help tells more and gives examples")]
pub(crate) struct Args {
    #[command(flatten)]
    root: RootArgs,

    /// The layout: fs (one file per block) or pack (slots of extents)
    #[arg(long, value_name = "LAYOUT", value_parser = layout)]
    to: Layout,

    /// Only this namespace: the name of its directory
    #[arg(long, value_name = "NS")]
    namespace: Option<String>,

    /// The bound to keep at all times: 200GiB [default: the ledger's]
    #[arg(long, value_name = "SIZE", value_parser = size)]
    max_bytes: Option<u64>,

    /// Threads that read and write [default: 4 per usable CPU, 4 to 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Move the blocks; without it, only say how many
    #[arg(long, visible_alias = "apply")]
    yes: bool,
}

fn size(text: &str) -> Result<u64, String> {
    kvweir::size::parse(text)
}

fn layout(text: &str) -> Result<Layout, String> {
    match text.parse() {
        Ok(Layout::Auto) | Err(_) => Err("is neither fs nor pack".into()),
        Ok(l) => Ok(l),
    }
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    let mut root = admin::open(&args.root.root)?;
    if let Some(n) = args.threads {
        root = root.threads(usize::from(n));
    }
    let claim = admin::claim(&root, args.yes)?;
    let options = ConvertOptions {
        to: args.to,
        namespace: args.namespace.as_deref(),
        max_bytes: args.max_bytes,
    };
    let progress = Progress::blocks(!args.root.json);
    interrupt::tell_how_far(&progress).context("listen for signals")?;
    let report = root.convert(&options, &|now| progress.at(now), claim.as_ref());
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

fn sections(r: &Converted) -> Vec<Section> {
    let mb_s = r.bytes as f64 / 1e6 / r.seconds.max(1e-9);
    let mut rows = vec![
        ("directory", r.root.clone()),
        ("layout", r.to.to_owned()),
        ("bound", bytes(r.bound_bytes)),
        ("before (du)", bytes(r.before_bytes)),
        (
            if r.done { "after (du)" } else { "after, about" },
            bytes(r.after_bytes),
        ),
    ];
    if r.done {
        rows.extend([
            ("at most, between", bytes(r.peak_bytes)),
            (
                "read",
                format!("{} in {:.2} s, {mb_s:.1} MB/s", bytes(r.bytes), r.seconds),
            ),
        ]);
    }
    let title = if r.done { "converted" } else { "convert would do" };
    let mut out = vec![admin::list(title, rows)];
    for n in &r.namespaces {
        let mut rows = vec![("directory", n.directory.clone())];
        if let Some(why) = &n.passed_over {
            rows.push(("passed over", why.clone()));
        } else {
            rows.extend([
                ("bytes of a block", n.block_bytes.map_or_else(String::new, count)),
                ("blocks moved", count(n.moved)),
                ("  without checksum before", count(n.unverified)),
                ("blocks in both places", count(n.present)),
                ("  bad in the new one, moved again", count(n.rescued)),
                ("blocks dropped for room", count(n.dropped)),
                ("damaged blocks", count(n.damaged)),
                ("files that stay", count(n.kept)),
                (
                    if r.to == "pack" {
                        "extents made"
                    } else {
                        "extents removed"
                    },
                    count(n.extents),
                ),
                ("extents that cannot be used", count(n.unusable_extents)),
            ]);
        }
        out.push(admin::list("namespace", rows));
    }
    out.extend(admin::lines("failed", &r.failed));
    out
}
