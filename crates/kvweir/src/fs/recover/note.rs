//! What a start writes down: the journal that is begun, and blocks that are ours from now on.

use std::{io, path::Path};

use super::{opening::Opening, taken::LookedAt};
use crate::{
    block::Key,
    error::{Error, Result},
    fs::shared::Shared,
    root::{
        journal::{self, Facts, Journal, Owned, units},
        names::DirClass,
        walk::FoundFile,
    },
    sync::lock,
};

pub(crate) fn begin_journal(s: &Shared, k: &Opening, from: Option<journal::Resume>) -> Result<()> {
    let names = s.root.namespace_names();
    let is_new = from.is_none();
    let journal = Journal::open(
        &s.root.disk,
        s.root.path.clone(),
        k.member.number,
        s.root.unit,
        from,
        (s.root.nonce(), s.block_len()),
        names,
    )
    .map_err(|e| Error::io("open the journal", s.root.path.display(), e))?;
    {
        let mut core = lock(&s.core);
        if is_new {
            core.account.budget.add_resident(journal.bytes());
        }
        core.catalog.note_uses(true);
        core.account.keeps_journal(true);
    }
    let _ = s.root.journal.set(journal);
    Ok(())
}

/// Writes what leaves in doubt turned out to hold into our own journal. Where that fails they stay in doubt.
pub(crate) fn log(s: &Shared, seen: &LookedAt) {
    let Some(j) = s.root.journal.get() else { return };
    let written = log_blocks(s, j, &seen.there).and_then(|()| j.dirs(&s.core, &s.root.dirs.empty_ones()));
    if let Err(error) = written {
        tracing::warn!(tier = %s.name, %error, "what was under way stays in doubt in the journal");
        j.doubt(seen.there.iter().map(|o| {
            let class = DirClass {
                namespace: o.namespace,
                leaf: o.leaf,
            };
            (o.fp, class, o.prefix)
        }));
    }
    for &(fp, namespace, leaf, prefix) in &seen.gone {
        s.root
            .journal_gone(&s.core, fp, (DirClass { namespace, leaf }, prefix));
    }
}

/// Writes blocks into our journal as ours.
pub(crate) fn log_blocks(s: &Shared, j: &Journal, blocks: &[Owned]) -> io::Result<()> {
    for part in blocks.chunks(512) {
        j.stored_all(
            &s.core,
            part.iter().map(|o| {
                let class = DirClass {
                    namespace: o.namespace,
                    leaf: o.leaf,
                };
                let facts = Facts {
                    trailer: o.trailer,
                    bad: o.bad,
                    cost: o.cost,
                    written_at: o.written_at,
                    dirs: s.root.dirs.costs(o.namespace, o.prefix, o.leaf),
                };
                (
                    o.fp,
                    (class, o.prefix),
                    facts,
                    o.key.as_deref().map(Key::as_bytes),
                )
            }),
        )?;
    }
    Ok(())
}

/// What is to be written down of a block found by a walk.
pub(crate) fn as_owned(f: &FoundFile) -> Owned {
    Owned {
        fp: f.fp,
        namespace: f.namespace,
        leaf: f.leaf,
        prefix: f.prefix,
        trailer: f.trailer,
        bad: f.bad,
        cost: units(f.cost),
        written_at: u32::try_from(f.mtime_ns / 1_000_000_000).unwrap_or(0),
        key: f.key.clone().map(Box::new),
        used: 0,
    }
}

/// Removes an old journal; returns whether it is gone.
pub(crate) fn remove(s: &Shared, path: &Path) -> bool {
    match s.root.disk.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "an old journal cannot be removed");
            false
        }
        _ => true,
    }
}
