//! `kvweir inspect`: what lies below a root.

use anyhow::Result;
use kvweir::fs::admin::{Holder, Inspection, NamespaceInfo};

use crate::{
    admin::{self, OrCouldNotRun, RootArgs},
    cli::Ending,
    summary::table::{Section, bytes, count},
};

const EXAMPLES: &str = "\
Exit codes: 0 good, 1 something below the root could not be read, 2 it could not run.

Examples:
  kvweir inspect /mnt/nvme/kv
  kvweir inspect /mnt/nvme/kv --json | jq '.namespaces[] | {directory, blocks, written_by}'";

/// Flags of `kvweir inspect`.
#[derive(Debug, clap::Args)]
#[command(after_long_help = EXAMPLES, after_help = "--help tells more and gives examples")]
pub(crate) struct Args {
    #[command(flatten)]
    root: RootArgs,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<Ending> {
    let report = admin::open(&args.root.root)?.inspect().or_could_not_run()?;
    admin::show(args.root.json, &report, || sections(&report))?;
    Ok(if report.unreadable.is_empty() {
        Ending::Good
    } else {
        Ending::Bad
    })
}

fn sections(r: &Inspection) -> Vec<Section> {
    let mut out = vec![admin::list(
        "root",
        vec![
            ("directory", r.root.clone()),
            ("all bytes (du)", bytes(r.bytes)),
            ("blocks", admin::pile(r.blocks)),
            ("directories", bytes(r.directory_bytes)),
            ("kvweir's own files", bytes(r.own_bytes)),
            ("temporaries", admin::pile(r.temporaries)),
            ("empty directories", count(r.empty_directories)),
            ("foreign files", admin::pile(r.foreign)),
            ("held by", holder(&r.holders)),
        ],
    )];
    out.extend(r.namespaces.iter().map(namespace));
    out.extend(admin::lines("foreign files, some of them", &r.foreign_examples));
    out.extend(admin::lines("unreadable", &r.unreadable));
    out
}

fn holder(holders: &[Holder]) -> String {
    let live: Vec<String> = holders
        .iter()
        .filter(|h| h.live != Some(false))
        .map(|h| {
            let who = h
                .text
                .as_deref()
                .unwrap_or("a process that does not say who it is");
            match h.live {
                Some(_) => format!("{who} (live, {})", h.lock),
                None => format!("{who} ({} cannot be read)", h.lock),
            }
        })
        .collect();
    match (live.is_empty(), holders.first().and_then(|h| h.text.as_deref())) {
        (false, _) => live.join(", "),
        (true, Some(last)) => format!("nobody; last {last}"),
        (true, None) => "nobody".into(),
    }
}

fn namespace(n: &NamespaceInfo) -> Section {
    let field = |name: &str| {
        let value = n.identity.as_ref().and_then(|i| i.get(name));
        value.map_or_else(String::new, |v| {
            v.as_str().map_or_else(|| v.to_string(), str::to_owned)
        })
    };
    let identity = match &n.identity_problem {
        Some(why) => format!("not known: {why}"),
        None => format!(
            "{} {} tp {} pp {} by {}",
            field("model_name"),
            field("dtype"),
            field("tp_size"),
            field("pp_size"),
            field("inference_engine")
        ),
    };
    let age = |s: Option<u64>| s.map_or_else(|| "-".to_owned(), admin::span);
    let versions: Vec<String> = n
        .trailer_versions
        .iter()
        .map(|(version, files)| format!("{version} ({files} looked at)"))
        .collect();
    let lengths: Vec<String> = n
        .files_by_length
        .iter()
        .take(admin::SHOWN)
        .map(|(len, files)| format!("{len} ({})", count(*files)))
        .collect();
    let written_by = match n.written_by {
        kvweir::fs::admin::Writer::Kvweir => "kvweir",
        kvweir::fs::admin::Writer::Stock => "a stock tier",
        kvweir::fs::admin::Writer::Both => "kvweir and a stock tier",
        kvweir::fs::admin::Writer::Nobody => "nobody: no blocks",
    };
    admin::list(
        "namespace",
        vec![
            ("directory", n.directory.clone()),
            ("identity", identity),
            ("written by", written_by.to_owned()),
            ("blocks", admin::pile(n.blocks)),
            ("directories", bytes(n.directory_bytes)),
            (
                "bytes of a block",
                n.block_bytes.map_or_else(|| "not known".to_owned(), count),
            ),
            ("file lengths", lengths.join(", ")),
            ("with trailer", count(n.with_trailer)),
            ("without trailer", count(n.without_trailer)),
            ("of another length", count(n.other_length)),
            ("trailer versions", versions.join(", ")),
            ("oldest block", age(n.oldest_s)),
            ("median", age(n.median_s)),
            ("newest block", age(n.newest_s)),
        ],
    )
}
