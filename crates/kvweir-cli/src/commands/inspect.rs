//! `kvweir inspect`: what lies below a root.

use anyhow::Result;
use kvweir::admin::{Inspection, Layouts, LedgerState, MemberInfo, NamespaceInfo};

use crate::{
    admin::{self, OrCouldNotRun, RootArgs},
    ending::Ending,
    table::{Section, bytes, count},
};

const EXAMPLES: &str = "\
Exit codes: 0 good, 1 something below the root could not be read, or du is above the bound, 2 it could not run.

Examples:
  kvweir inspect /mnt/nvme/kv
  kvweir inspect /mnt/nvme/kv --json | jq '.namespaces[] | {directory, blocks, written_by}'

  # Who shares the root, and how much each may hold
  kvweir inspect /mnt/nvme/kv --json | jq '.members[] | {number, pid, live, lease_bytes}'";

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
    admin::say_above(report.above_bound_bytes, report.ledger.bound_bytes);
    Ok(if report.unreadable.is_empty() && report.above_bound_bytes == 0 {
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
            ("all bytes (du)", all_bytes(r)),
            ("block files", admin::pile(r.blocks)),
            ("extents", admin::pile(r.extents)),
            ("  blocks in them", count(r.packed_blocks)),
            ("directories", bytes(r.directory_bytes)),
            ("kvweir's own files", bytes(r.own_bytes)),
            ("temporaries", admin::pile(r.temporaries)),
            ("empty directories", count(r.empty_directories)),
            ("foreign files", admin::pile(r.foreign)),
            ("held by", held_by(r)),
            ("ledger", ledger(r)),
        ],
    )];
    out.extend(r.members.iter().map(member));
    out.extend(r.namespaces.iter().map(namespace));
    out.extend(admin::lines("some foreign files", &r.foreign_examples));
    out.extend(admin::lines("unreadable", &r.unreadable));
    out
}

fn all_bytes(r: &Inspection) -> String {
    let all = bytes(r.bytes);
    match r.above_bound_bytes {
        0 => all,
        above => format!("{all}, {} ABOVE THE BOUND", bytes(above)),
    }
}

fn held_by(r: &Inspection) -> String {
    let mut live: Vec<String> = r
        .members
        .iter()
        .map(|m| &m.holder)
        .filter(|h| h.may_live())
        .map(|h| match h.live {
            Some(_) => format!("{} (live, {})", h.who(), h.lock),
            None => format!("{} ({} cannot be read)", h.who(), h.lock),
        })
        .collect();
    if r.ledger.claimed {
        live.push("an operator command, which has the ledger".into());
    }
    match (live.is_empty(), r.members.first()) {
        (false, _) => live.join(", "),
        (true, Some(last)) => format!("nobody; last {}", last.holder.who()),
        (true, None) => "nobody".into(),
    }
}

fn ledger(r: &Inspection) -> String {
    match (r.ledger.state, r.ledger.bound_bytes, r.ledger.common_bytes) {
        (LedgerState::None, ..) => "none: the next start with a bound walks the root".into(),
        (LedgerState::Newer, ..) => "of a later version of kvweir: use that one here".into(),
        (LedgerState::Damaged, ..) => "damaged: the next start walks the root".into(),
        (LedgerState::Whole, bound, common) => {
            let walker = r.ledger.walker.map_or_else(String::new, |w| {
                format!(", walked by member {w}, or the next start does")
            });
            format!(
                "bound {}, of all members {}{walker}",
                bytes(bound.unwrap_or(0)),
                bytes(common.unwrap_or(0))
            )
        }
    }
}

fn member(m: &MemberInfo) -> Section {
    let h = &m.holder;
    let size = |b: Option<u64>| b.map_or_else(|| "not known".to_owned(), bytes);
    let state = match (h.live, m.ended_in_order) {
        (Some(true), _) => "yes",
        (None, _) => "cannot be told",
        (_, Some(true)) => "no, it ended in order",
        (_, Some(false)) => "no, it was killed, or the machine went down",
        (_, None) => "no",
    };
    admin::list(
        "member",
        vec![
            ("number", h.number.to_string()),
            ("process", h.who()),
            ("live", state.to_owned()),
            ("lease", size(m.lease_bytes)),
            ("held", size(m.held_bytes)),
            ("wanted beyond", size(m.wanted_bytes)),
            (
                "namespace",
                m.namespace.clone().unwrap_or_else(|| "not there".to_owned()),
            ),
            (
                "journal",
                match m.generation {
                    Some(g) => format!("{}, generation {g}", bytes(m.journal_bytes)),
                    None => "none".into(),
                },
            ),
        ],
    )
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
        kvweir::admin::Writer::Kvweir => "kvweir",
        kvweir::admin::Writer::Stock => "a stock tier",
        kvweir::admin::Writer::Both => "kvweir and a stock tier",
        kvweir::admin::Writer::Nobody => "nobody: no blocks",
    };
    let layout = match n.layout {
        Layouts::Fs => "fs: one file per block",
        Layouts::Pack => "pack: slots of extents",
        Layouts::Both => "fs and pack",
        Layouts::None => "none: no blocks",
    };
    let extents = match n.unusable_extents {
        0 => admin::pile(n.extents),
        bad => format!("{}, {} that cannot be used", admin::pile(n.extents), count(bad)),
    };
    let slots = format!(
        "{}, {} used, {} free",
        count(n.slots),
        count(n.used_slots),
        count(n.free_slots)
    );
    admin::list(
        "namespace",
        vec![
            ("directory", n.directory.clone()),
            ("identity", identity),
            ("written by", written_by.to_owned()),
            ("layout", layout.to_owned()),
            ("block files", admin::pile(n.blocks)),
            ("extents", extents),
            ("  blocks in them", count(n.packed_blocks)),
            ("  slots", slots),
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
