//! What the commands on a root share: opening it, how errors end, and how numbers are shown.

use std::path::{Path, PathBuf};

use anyhow::Result;
use kvweir::{
    ErrorKind,
    admin::{Admin, Claim, Pile},
};
use serde::Serialize;

use crate::{
    output,
    table::{Section, bytes, count},
    usage::UsageError,
};

/// How many paths a table shows.
pub(crate) const SHOWN: usize = 20;

/// The root that a command is about.
#[derive(Debug, clap::Args)]
pub(crate) struct RootArgs {
    /// The root: the directory given to the tier as `root`
    #[arg(value_name = "ROOT")]
    pub(crate) root: PathBuf,

    /// Print one JSON object instead of tables
    #[arg(long)]
    pub(crate) json: bool,
}

/// Opens a root.
pub(crate) fn open(root: &Path) -> Result<Admin> {
    Admin::new(root).or_could_not_run()
}

/// What to do where file descriptors or memory ran out.
pub(crate) fn spent(errno: Option<i32>) -> Option<&'static str> {
    match errno? {
        // ENFILE, EMFILE
        23 | 24 => Some(
            "nothing is wrong with the blocks: raise the limit of open files (`ulimit -n 4096`), or use fewer threads \
             where there is --threads, and run it again",
        ),
        // ENOMEM
        12 => Some(
            "nothing is wrong with the blocks: free memory or raise its limit (`ulimit -v`, memory.max of the cgroup), \
             or use fewer threads where there is --threads, and run it again",
        ),
        _ => None,
    }
}

/// For calls of the engine without which a command cannot run at all: exit code 2.
pub(crate) trait OrCouldNotRun<T> {
    fn or_could_not_run(self) -> Result<T>;
}

impl<T> OrCouldNotRun<T> for kvweir::Result<T> {
    fn or_could_not_run(self) -> Result<T> {
        self.map_err(|e| {
            let hint = match e.kind() {
                _ if spent(e.errno()).is_some() => spent(e.errno()),
                ErrorKind::Busy => {
                    Some("end that engine or command first; `kvweir inspect` and `kvweir verify` may run beside it")
                }
                ErrorKind::Full => {
                    Some("free some space or trim the root; an import may go into a root on another file system")
                }
                _ => None,
            };
            let message = e.to_string();
            UsageError { message, hint }.into()
        })
    }
}

/// With `yes`, takes the right to change the root; else only checks that it could be had.
pub(crate) fn claim(admin: &Admin, yes: bool) -> Result<Option<Claim>> {
    if yes {
        return admin.claim().map(Some).or_could_not_run();
    }
    admin.require_idle().or_could_not_run()?;
    Ok(None)
}

/// Prints the report as JSON or as tables.
pub(crate) fn show(
    json: bool,
    report: &impl Serialize,
    sections: impl FnOnce() -> Vec<Section>,
) -> Result<()> {
    let text = if json {
        serde_json::to_string(report)?
    } else {
        let texts: Vec<String> = sections().iter().map(Section::to_text).collect();
        texts.join("\n\n")
    };
    Ok(output::result(&text)?)
}

/// A list of names and values.
pub(crate) fn list(title: &'static str, rows: Vec<(&str, String)>) -> Section {
    Section {
        title,
        head: Vec::new(),
        rows: rows.into_iter().map(|(n, v)| vec![n.to_owned(), v]).collect(),
    }
}

/// The first [`SHOWN`] of `lines`, if there are any.
pub(crate) fn lines(title: &'static str, lines: &[String]) -> Option<Section> {
    let mut rows: Vec<_> = lines.iter().take(SHOWN).map(|l| vec![l.clone()]).collect();
    if lines.len() > SHOWN {
        rows.push(vec![format!(
            "and {} more; --json lists all",
            count((lines.len() - SHOWN) as u64)
        )]);
    }
    (!rows.is_empty()).then_some(Section {
        title,
        head: Vec::new(),
        rows,
    })
}

/// `3 (12 KiB)`.
pub(crate) fn pile(p: Pile) -> String {
    format!("{} ({})", count(p.files), bytes(p.bytes))
}

/// A span of time in its two largest units.
pub(crate) fn span(seconds: u64) -> String {
    let units = [("d", 86_400), ("h", 3600), ("min", 60), ("s", 1)];
    let mut left = seconds;
    let mut parts = Vec::new();
    for (name, unit) in units {
        if parts.len() < 2 && left >= unit {
            parts.push(format!("{} {name}", left / unit));
            left %= unit;
        }
    }
    if parts.is_empty() {
        "0 s".into()
    } else {
        parts.join(" ")
    }
}

/// Says, whatever is printed, that a root is above its bound.
pub(crate) fn say_above(above: u64, bound: Option<u64>) {
    if above > 0 {
        output::say(&format!(
            "warning: du is {} ABOVE the bound of {}: end the engines, run `kvweir verify ROOT --repair --yes`, and \
             the next start walks, counts and trims",
            bytes(above),
            bytes(bound.unwrap_or(0))
        ));
    }
}

/// Says below a table that nothing of it was done.
pub(crate) fn say_dry(done: bool, json: bool) {
    if !done && !json {
        output::say("nothing was changed: this is what --yes would do");
    }
}

#[cfg(test)]
mod tests {
    use super::span;

    #[test]
    fn spans_have_their_two_largest_units() {
        for (s, text) in [
            (0, "0 s"),
            (59, "59 s"),
            (61, "1 min 1 s"),
            (3600, "1 h"),
            (90_061, "1 d 1 h"),
        ] {
            assert_eq!(span(s), text);
        }
    }
}
