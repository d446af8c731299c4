//! Whose bound a root would break. A bound holds for all that lies below its root (I1), so nobody else may store there:
//! no engine without a bound beside members that live, and no root below another's, or above it. An engine without a
//! bound leaves no trace in its root, so members that come later, there or above, cannot see it: it sees them. Engines
//! that only read do not matter.

use std::{
    collections::{BTreeSet, VecDeque},
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::{
    ledger::{Entry, Ledger, Look, Page, give_up, lock_name, lock_within},
    member::{OPEN_PATIENCE, forget_files, held_by_another, with_lock_file},
    names::{STATE_DIR, is_namespace},
    ownership::unusable,
};
use crate::{
    error::{Error, ErrorKind, IoClass, Result, classify},
    io::{
        Disk,
        disk::{FileKind, OpenMode},
    },
};

/// So many directories that are no namespaces are searched for roots below a root; what lies beyond is found when that
/// root is opened and looks above itself.
const MOST_SEARCHED: usize = 4096;

/// Refuses to store below `root` where that would break another root's bound: before anything is made.
pub(crate) fn refuse_above(disk: &Arc<dyn Disk>, root: &Path, bounded: bool) -> Result<()> {
    for dir in above(root) {
        let ledger = Ledger::new(disk, &dir);
        let (look, live) = match see(&ledger, &**disk) {
            Ok(seen) => seen,
            Err(Blind::Held) => return Err(held_by_another(&dir)),
            // another user's is not ours to look into
            Err(Blind::Io(e))
                if matches!(classify(&e), IoClass::Gone | IoClass::Denied | IoClass::Invalid) =>
            {
                continue;
            }
            Err(Blind::Io(e)) => return Err(Error::io("open root", ledger.path().display(), e)),
        };
        let (root, dir) = (root.display().to_string(), dir.display().to_string());
        if let Some(who) = live {
            return Err(Error::new(ErrorKind::Busy, "open root", below(&root, &dir, &who)));
        }
        if bounded && look != Look::Empty {
            return Err(nested(
                &format!("{root} lies below {dir}"),
                &format!("{dir}/{STATE_DIR}"),
            ));
        }
    }
    Ok(())
}

/// Refuses a bound for `root` where another root with a bound lies below it.
pub(crate) fn refuse_below(disk: &Arc<dyn Disk>, root: &Path) -> Result<()> {
    let fault = |dir: &Path, e: io::Error| Error::io("open root", dir.display(), e);
    let mut dirs = VecDeque::from([root.to_owned()]);
    let mut searched = 0;
    while let Some(dir) = dirs.pop_front()
        && searched < MOST_SEARCHED
    {
        searched += 1;
        let mut below = Vec::new();
        let listed = disk.list(&dir, &mut |name, kind| {
            // a link leads elsewhere, and a file system that does not tell is asked
            if matches!(kind, Some(FileKind::Dir) | None) {
                below.push(name.to_owned());
            }
        });
        match listed {
            Err(e) if matches!(classify(&e), IoClass::Gone | IoClass::Denied) => continue,
            r => r.map_err(|e| fault(&dir, e))?,
        }
        for name in below.iter().filter(|n| n.to_str() != Some(STATE_DIR)) {
            let path = dir.join(name);
            let ledger = Ledger::new(disk, &path);
            match ledger.look() {
                Ok(Look::Empty) => {}
                Ok(_) => {
                    let what = format!("{} lies below {}", path.display(), root.display());
                    return Err(nested(&what, &ledger.dir().display().to_string()));
                }
                Err(e) if matches!(classify(&e), IoClass::Gone | IoClass::Denied | IoClass::Invalid) => {}
                Err(e) => return Err(fault(&path, e)),
            }
            if !name.to_str().is_some_and(is_namespace)
                && disk.stat(&path).is_ok_and(|s| s.kind == FileKind::Dir)
            {
                dirs.push_back(path);
            }
        }
    }
    Ok(())
}

/// What an engine without a bound does before it stores below `root`: refuses members that live, and gives up what dead
/// ones left written, since nothing that is stored from now on would be in it.
pub(crate) fn enter_unbounded(disk: &Arc<dyn Disk>, root: &Path) -> Result<()> {
    let ledger = Ledger::new(disk, root);
    let (look, who) = match see(&ledger, &**disk) {
        Ok(seen) => seen,
        Err(Blind::Held) => return Err(held_by_another(root)),
        Err(Blind::Io(e)) if classify(&e) == IoClass::Gone => return Ok(()),
        Err(Blind::Io(e)) => return Err(unusable(&**disk, root, e)),
    };
    if let Some(who) = who {
        return Err(Error::new(
            ErrorKind::Busy,
            "open root",
            beside(root, &look, &who),
        ));
    }
    if look == Look::Empty {
        return Ok(());
    }
    tracing::warn!(
        root = %root.display(),
        "this root had a bound, and is stored to without one: the next engine with a bound walks it"
    );
    let done = match ledger
        .hold(OPEN_PATIENCE)
        .map_err(|e| unusable(&**disk, root, e))?
    {
        None => return Err(held_by_another(root)),
        // whoever came meanwhile is seen by the first store
        Some(file) if Look::of(&*file).ok().as_ref() != Some(&look) => Ok(()),
        Some(file) => give_up(&*file).and_then(|()| forget_files(&**disk, root, &|_| true)),
    };
    done.map_err(|e| unusable(&**disk, root, e))
}

fn beside(root: &Path, look: &Look, who: &str) -> String {
    let bound = match look {
        Look::Page(p) => format!("max_bytes = {}", p.head.bound),
        _ => "a bound".into(),
    };
    format!(
        "{} is in use by {who} with {bound}, which an engine without max_bytes would break; give it the same \
         max_bytes, or read_only",
        root.display()
    )
}

/// Why a ledger was not seen.
enum Blind {
    /// Somebody has it, and does not let go.
    Held,
    Io(io::Error),
}

impl From<io::Error> for Blind {
    fn from(e: io::Error) -> Self {
        Self::Io(e)
    }
}

/// Whose bound `root` has, in words.
pub(crate) fn bound_here(disk: &Arc<dyn Disk>, root: &Path) -> Option<String> {
    let look = Ledger::new(disk, root).look();
    let look = look.ok().filter(|l| *l != Look::Empty)?;
    let page = match &look {
        Look::Page(p) => p.used().next().map(|(_, e)| e.who()),
        _ => None,
    };
    let who = page.unwrap_or("a process that its ledger does not tell".into());
    Some(beside(root, &look, &who))
}

/// Whose bound a root above `root` has, in words; `dirs` are the directories there. One where all are dead was seen
/// when this tier was opened.
pub(crate) fn bound_above(disk: &Arc<dyn Disk>, root: &Path, dirs: &[PathBuf]) -> Option<String> {
    dirs.iter().find_map(|dir| {
        let ledger = Ledger::new(disk, dir);
        disk.stat(&ledger.path()).ok()?;
        let who = see(&ledger, &**disk).ok()?.1?;
        let (root, dir) = (root.display(), dir.display());
        Some(below(&root.to_string(), &dir.to_string(), &who))
    })
}

fn below(root: &str, dir: &str, who: &str) -> String {
    format!(
        "{root} lies below {dir}, a root with a bound in use by {who}; use a directory that is not below it"
    )
}

fn nested(what: &str, state: &str) -> Error {
    let message = format!(
        "{what}, and both are roots with a bound, of which the outer would count what the inner one stores at its next \
         walk only; use directories side by side, or remove {state} if that one is no root any more"
    );
    Error::invalid("open root", message)
}

/// Directories above `root`: as it is written, and where it leads.
pub(crate) fn above(root: &Path) -> BTreeSet<PathBuf> {
    let written = std::path::absolute(root).ok();
    let real = std::fs::canonicalize(root).ok().or_else(|| {
        let parent = written.as_ref()?.parent()?;
        Some(std::fs::canonicalize(parent).ok()?.join(root.file_name()?))
    });
    [written, real]
        .iter()
        .flatten()
        .flat_map(|p| p.ancestors().skip(1))
        .map(Path::to_owned)
        .collect()
}

/// What the ledger of a directory is, and who lives there. Locks are looked at under the ledger's own, so that nobody
/// takes the look for a member; nothing is made.
fn see(ledger: &Ledger, disk: &dyn Disk) -> Result<(Look, Option<String>), Blind> {
    let path = ledger.path();
    disk.stat(&path)?;
    let file = disk.open(&path, OpenMode::ReadWrite, false)?;
    if !lock_within(&*file, OPEN_PATIENCE)? {
        return Err(Blind::Held);
    }
    let look = Look::of(&*file)?;
    let who = match &look {
        Look::Empty => None,
        Look::Damaged | Look::Newer(_) => live(ledger, disk, None)?,
        Look::Page(p) => live(ledger, disk, Some(p))?,
    };
    Ok((look, who))
}

/// Who lives, in words.
fn live(ledger: &Ledger, disk: &dyn Disk, page: Option<&Page>) -> io::Result<Option<String>> {
    let numbers = match page {
        Some(p) => p.used().map(|(n, _)| n).collect(),
        None => with_lock_file(disk, ledger.root())?,
    };
    for n in numbers {
        let entry = page.and_then(|p| p.member(n));
        let there = disk.stat(&ledger.dir().join(lock_name(n))).is_ok();
        if there && ledger.is_live(n, entry)? {
            return Ok(Some(
                entry.map_or("a process that its ledger does not tell".into(), Entry::who),
            ));
        }
    }
    Ok(None)
}
