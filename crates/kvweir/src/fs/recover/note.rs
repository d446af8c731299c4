//! What a start writes down: the journal that is begun, and blocks that are ours from now on.

use std::{io, path::Path};

use super::{opening::Opening, taken::LookedAt};
use crate::{
    block::Key,
    error::{Error, Result},
    fs::shared::Shared,
    root::{
        journal::{self, Facts, Journal, Owned, units},
        names::Shelf,
        walk::Found,
    },
    sync::lock,
};

pub(crate) fn begin_journal(s: &Shared, k: &Opening, from: Option<journal::Resume>) -> Result<()> {
    let names = lock(&s.namespaces)
        .iter()
        .map(|p| {
            p.file_name()
                .map(|n| n.to_string_lossy().into_owned())
                .unwrap_or_default()
        })
        .collect();
    let is_new = from.is_none();
    let journal = Journal::open(
        &s.disk,
        s.params.root.clone(),
        k.member.number,
        s.params.fs_block,
        from,
        (s.nonce(), s.params.block_len as u64),
        names,
    )
    .map_err(|e| Error::io("open the journal", s.params.root.display(), e))?;
    {
        let mut core = lock(&s.core);
        if is_new {
            core.budget.add_resident(journal.bytes());
        }
        core.touched = Some(Vec::new());
    }
    let _ = s.journal.set(journal);
    Ok(())
}

/// Writes what leaves in doubt turned out to hold into our own journal. Where that fails they stay in doubt.
pub(crate) fn log(s: &Shared, seen: &LookedAt) {
    let Some(j) = s.journal.get() else { return };
    let written = log_blocks(s, j, &seen.there).and_then(|()| j.dirs(&s.core, &s.dirs.empty_ones()));
    if let Err(error) = written {
        tracing::warn!(tier = %s.params.name, %error, "what was under way stays in doubt in the journal");
        j.doubt(seen.there.iter().map(|o| {
            let shelf = Shelf {
                namespace: o.namespace,
                leaf: o.leaf,
            };
            (o.fp, shelf, o.fan)
        }));
    }
    for &(fp, namespace, leaf, fan) in &seen.gone {
        s.journal_gone(fp, Shelf { namespace, leaf }, fan);
    }
}

/// Writes blocks into our journal as ours.
pub(crate) fn log_blocks(s: &Shared, j: &Journal, blocks: &[Owned]) -> io::Result<()> {
    for part in blocks.chunks(512) {
        j.stored_all(
            &s.core,
            part.iter().map(|o| {
                let shelf = Shelf {
                    namespace: o.namespace,
                    leaf: o.leaf,
                };
                let facts = Facts {
                    trailer: o.trailer,
                    bad: o.bad,
                    cost: o.cost,
                    written_at: o.written_at,
                    dirs: s.dirs.costs(o.namespace, o.fan, o.leaf),
                };
                (o.fp, (shelf, o.fan), facts, o.key.as_deref().map(Key::as_bytes))
            }),
        )?;
    }
    Ok(())
}

/// What is to be written down of a block found by a walk.
pub(crate) fn as_owned(f: &Found) -> Owned {
    Owned {
        fp: f.fp,
        namespace: f.namespace,
        leaf: f.leaf,
        fan: f.fan,
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
    match s.disk.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "an old journal cannot be removed");
            false
        }
        _ => true,
    }
}
