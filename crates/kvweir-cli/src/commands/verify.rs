//! `kvweir verify`: every block against its trailer, name and namespace.

use anyhow::{Context, Result};
use kvweir::admin::{Fault, Repaired, Verification, VerifyOptions, Weight};
use serde::Serialize;

use crate::{
    admin::{self, OrCouldNotRun, RootArgs},
    ending::Ending,
    interrupt, output,
    progress::Progress,
    table::{Section, bytes, count},
};

const EXAMPLES: &str = "\
Faults that --repair removes: damaged_trailer, damaged_payload, wrong_key, wrong_namespace, wrong_size,
zero_length, leftover_temporary, empty_directory, and of extents damaged_header, truncated_extent; of a slot
(damaged_payload, damaged_record) only its record goes. Faults that stay, since nothing is proved: other_size,
newer_format, unreadable. For not_in_journal, counted_too_low, extent_gone, damaged_journal, damaged_ledger,
above_bound and with every removal it gives the journals up, so that the next start walks the root.

Files are compared with the journals only while no engine holds the root. Blocks that a journal knows and that
have no file are told, and are no finding.

Each finding has a weight: block (a block is lost, or cannot be served), bound (bytes are not counted as they
are), tidy (a leftover, as every kill leaves some: leftover_temporary, empty_directory, and the half of an
extent in the making). Those cost nothing: kvweir gc or the next start tidies up.

Exit codes: 0 clean; 1 findings that cost a block or the bound; 3 nothing but leftovers; 1 and 3 also when they
were repaired; 2 it could not run, for example --repair while an engine holds the root.

Examples:
  # Is the device still good? May run beside the engine
  kvweir verify /mnt/nvme/kv

  # What would be removed, then remove it
  kvweir verify /mnt/nvme/kv --repair
  kvweir verify /mnt/nvme/kv --repair --yes

  # One model, gently
  kvweir verify /mnt/nvme/kv --namespace org_model_0123456789ab_r0 --threads 1

  # Count of each fault
  kvweir verify /mnt/nvme/kv --json | jq .faults";

/// Flags of `kvweir verify`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "--help tells more and gives examples")]
pub(crate) struct Args {
    #[command(flatten)]
    root: RootArgs,

    /// Remove what is provably bad; without --yes, only say what
    #[arg(long)]
    repair: bool,

    /// Do what --repair says
    #[arg(long, requires = "repair")]
    yes: bool,

    /// Threads that read [default: 4 per usable CPU, 4 to 16]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=1024))]
    threads: Option<u16>,

    /// Only this namespace: the name of its directory
    #[arg(long, value_name = "NS")]
    namespace: Option<String>,
}

#[derive(Serialize)]
struct Report<'a> {
    #[serde(flatten)]
    verification: &'a Verification,
    gb_s: f64,
    repair: Option<&'a Repaired>,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    let mut root = admin::open(&args.root.root)?;
    if let Some(n) = args.threads {
        root = root.threads(usize::from(n));
    }
    // held from before the first look to after the last removal
    let claim = if args.repair {
        admin::claim(&root, args.yes)?
    } else {
        None
    };
    let options = VerifyOptions {
        namespace: args.namespace.as_deref(),
        claim: claim.as_ref(),
    };
    let progress = Progress::blocks(!args.root.json);
    interrupt::tell_how_far(&progress).context("listen for signals")?;
    let found = root.verify(&options, &|now| progress.at(now));
    progress.finish();
    let found = found.or_could_not_run()?;
    let repaired = match args.repair {
        true => Some(root.repair(&found, claim.as_ref()).or_could_not_run()?),
        false => None,
    };
    let report = Report {
        verification: &found,
        gb_s: found.gb_s(),
        repair: repaired.as_ref(),
    };
    admin::show(args.root.json, &report, || sections(&found, repaired.as_ref()))?;
    if let Some(r) = repaired {
        admin::say_dry(r.done, args.root.json);
    }
    let bad = found.findings.iter().find(|f| f.fault == Fault::AboveBound);
    if let Some(f) = bad {
        output::say(&format!("warning: {}", f.detail));
    }
    Ok(match (found.is_clean(), found.is_tidy_only()) {
        (true, _) => Ending::Good,
        (_, true) => Ending::Untidy,
        _ => Ending::Bad,
    })
}

/// What was counted, whatever was found.
fn numbers(v: &Verification) -> Section {
    let mut rows = vec![
        ("directory", v.root.clone()),
        ("blocks read", count(v.blocks)),
        ("  good", count(v.good)),
        ("  without trailer, nothing to compare", count(v.unverified)),
        ("  in slots of extents", count(v.packed_blocks)),
        ("    superseded by a later slot", count(v.superseded)),
        ("extents", count(v.extents)),
        ("vanished or rewritten meanwhile", count(v.vanished)),
        ("being written", count(v.being_written)),
        (
            "read",
            format!("{} in {:.2} s, {:.2} GB/s", bytes(v.bytes), v.seconds, v.gb_s()),
        ),
        ("findings", count(v.findings.len() as u64)),
        ("  that cost a block", count(v.count(Weight::Block))),
        ("  that cost the bound", count(v.count(Weight::Bound))),
        ("  that only need tidying", count(v.count(Weight::Tidy))),
    ];
    let names: Vec<String> = v.faults.keys().map(|f| format!("  {f}")).collect();
    rows.extend(
        names
            .iter()
            .zip(v.faults.values())
            .map(|(f, n)| (f.as_str(), count(*n))),
    );
    let j = &v.journals;
    if j.compared {
        rows.extend([
            ("block files and files of extents in journals", count(j.blocks)),
            ("  without file, no fault", count(j.journal_without_file)),
            ("  directories in doubt", count(j.directories_in_doubt)),
        ]);
    }
    admin::list("verification", rows)
}

fn sections(v: &Verification, repaired: Option<&Repaired>) -> Vec<Section> {
    let mut out = vec![numbers(v)];
    let j = &v.journals;
    out.extend(admin::lines("not compared with journals", j.why_not.as_slice()));
    out.extend(admin::lines(
        "some directories of blocks without file",
        &j.without_file_in,
    ));
    let mut findings: Vec<_> = v.findings.iter().collect();
    findings.sort_by_key(|f| std::cmp::Reverse(f.weight));
    let found: Vec<String> = findings
        .into_iter()
        .map(|f| {
            let slot = f.slot.map_or_else(String::new, |s| format!(" slot {s}"));
            let path = if f.path.is_empty() { "the root" } else { &f.path };
            format!(
                "{}  {}  {path}{slot}: {}",
                f.weight.as_str(),
                f.fault.as_str(),
                f.detail
            )
        })
        .collect();
    out.extend(admin::lines("findings", &found));
    if v.is_tidy_only() && !v.is_clean() {
        let note =
            "no block is lost: what was found are leftovers, which `kvweir gc` or the next start removes";
        out.extend(admin::lines("note", &[note.to_owned()]));
    }
    out.extend(admin::lines(
        "namespaces whose identity is not known",
        &v.without_identity,
    ));
    if let Some(r) = repaired {
        out.push(admin::list(
            if r.done { "repaired" } else { "repair would remove" },
            vec![
                ("files", admin::pile(r.files)),
                ("records of slots", count(r.records)),
                ("directories", count(r.directories)),
                ("findings that stay", count(r.kept)),
                (
                    "journals",
                    if r.next_start_walks {
                        "given up: the next start walks the root".into()
                    } else {
                        "stay".into()
                    },
                ),
            ],
        ));
        out.extend(admin::lines("could not be removed", &r.failed));
    }
    out
}
