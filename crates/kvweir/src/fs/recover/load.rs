//! Loading a root: from the journal of a dead member, or by a walk.

use std::{io, sync::atomic::Ordering, time::Duration};

use crate::{
    error::{Error, IoClass, Result, classify},
    fs::{
        phase::Phase,
        recover::{check::*, doubt::*, level::*, note::*, opening::Opening, take::*},
        shared::Shared,
    },
    root::{
        journal::{self, Mark, Owned, Replayed, Unusable},
        member::Start,
        names::DirKind,
        walk::{FoundFile, Survey, Sweep},
    },
    sync::{Bell, lock},
};

/// Tries to read what cannot be read at first, and the pause between two.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// Loads what the member owns, and begins or goes on with its journal.
pub(crate) fn load(k: &mut Opening) -> Result<()> {
    let s = std::sync::Arc::clone(&k.shared);
    let fault = |e: io::Error| Error::io("load the root", s.root.path.display(), e);
    if let Some(own) = believed(k)? {
        return replayed(k, own);
    }
    if k.start == Start::Walk {
        s.set_phase(Phase::Walking);
    }
    // nobody has looked at the root's own level since the last member ended
    if k.alone || k.start == Start::Walk {
        let (walk_common, foreign, deep) = if k.start == Start::Walk {
            let survey = walked(k)?;
            (survey.common_bytes, survey.foreign_files, Some(survey.deep_bytes))
        } else {
            let (common, foreign) = root_level(&s)?;
            (common, foreign, None)
        };
        lock(&s.core).catalog.stats.foreign_files = foreign;
        let done = k.member.change_within(crate::root::member::OPEN_PATIENCE, |p| {
            p.head.deep = deep.unwrap_or(p.head.deep);
            p.head.common = walk_common.saturating_add(p.head.deep);
        });
        done.map_err(fault)?;
    }
    if s.root.journal.get().is_some() {
        return Ok(());
    }
    begin_journal(&s, k, None)
}

/// Reads the journals that this start rests on: our own, and where nobody else lives those of the dead too, since
/// nobody else would count what they left. One that cannot be used means a walk. Returns our own.
fn believed(k: &mut Opening) -> Result<Option<Replayed>> {
    let s = std::sync::Arc::clone(&k.shared);
    let fault = |e: io::Error| Error::io("read the journals", s.root.path.display(), e);
    let mut own = None;
    if k.start == Start::Replay {
        own = match read(&s, k.member.number, k.mark.as_ref()) {
            Ok(r) if !can_be_named(&s, &r) => {
                tracing::warn!(tier = %s.name, "{TOO_MANY_NAMESPACES}; the root is walked");
                None
            }
            Ok(r) if keys_are_known(&s, &r) => Some(r),
            Ok(_) => {
                tracing::info!(tier = %s.name, "events need keys, which the last owner did not note");
                None
            }
            Err(Unusable::Io(e)) if is_passing(&e) => return Err(fault(e)),
            Err(why) => {
                tracing::warn!(tier = %s.name, %why, "the root is walked");
                None
            }
        };
        if own.is_none() && !begin_walk(k)? {
            return Err(Error::new(
                crate::error::ErrorKind::Busy,
                "open root",
                format!(
                    "the journal of member {} of {} cannot be used, and others use the root: end them, then open it again",
                    k.member.number,
                    s.root.path.display()
                ),
            ));
        }
    }
    if k.alone && k.start != Start::Walk {
        let mut all = true;
        for (d, mark) in k.dead_members().map_err(fault)? {
            match read(&s, d.number, mark.as_ref()) {
                Ok(r) if can_be_named(&s, &r) && keys_are_known(&s, &r) => {
                    k.read.insert((d.number, d.incarnation), r);
                }
                // it held nothing: it died before it had a journal
                Err(Unusable::Missing) if d.lease == 0 => {}
                Err(Unusable::Io(e)) if is_passing(&e) => return Err(fault(e)),
                unusable => {
                    let why = unusable.err().map(|why| why.to_string());
                    tracing::warn!(
                        tier = %s.name, member = d.number, why,
                        "what a dead member left is not known by its journal; the root is walked"
                    );
                    all = false;
                    break;
                }
            }
        }
        if !all && begin_walk(k)? {
            own = None;
        }
    }
    Ok(own)
}

/// Lets the tree be walked instead of believing journals; `false`: others live.
fn begin_walk(k: &mut Opening) -> Result<bool> {
    let s = &k.shared;
    let fault = |e: io::Error| Error::io("load the root", s.root.path.display(), e);
    let begun = k.member.begin_walk(&*s.root.disk, &s.root.path).map_err(fault)?;
    if begun {
        k.start = Start::Walk;
        k.read.clear();
    }
    Ok(begun)
}

/// Reads a member's journal, again where the device failed: that may be a moment's.
fn read(s: &Shared, member: u32, mark: Option<&Mark>) -> std::result::Result<Replayed, Unusable> {
    patiently(|| journal::replay(&*s.root.disk, &s.root.path, member, s.root.unit, mark))
}

fn patiently<R>(
    mut read: impl FnMut() -> std::result::Result<R, Unusable>,
) -> std::result::Result<R, Unusable> {
    let pause = Bell::default();
    for _ in 1..TRIES {
        match read() {
            Err(Unusable::Io(error)) => {
                tracing::debug!(%error, "a journal cannot be read now");
                pause.wait(pause.rings(), PAUSE);
            }
            r => return r,
        }
    }
    read()
}

/// Whether an error says nothing of what lies on the disk: descriptors or memory are short, or rights are missing.
fn is_passing(e: &io::Error) -> bool {
    matches!(classify(e), IoClass::Transient | IoClass::Denied | IoClass::Full)
}

/// Takes what the journal tells.
fn replayed(k: &mut Opening, mut r: Replayed) -> Result<()> {
    let s = std::sync::Arc::clone(&k.shared);
    let other_length = mark_other_lengths(&s, &mut r, 0);
    let looked = patiently(|| look_at_doubt(&s, &r, k.member.number));
    let looked = looked.map_err(|why| match why {
        Unusable::Io(e) => Error::io("load the root", s.root.path.display(), e),
        why => Error::new(
            crate::error::ErrorKind::Unavailable,
            "load the root",
            why.to_string(),
        ),
    })?;
    for old in &r.stale {
        remove(&s, old);
    }
    let resume = r.resume.take();
    if k.alone {
        let (common, foreign) = root_level(&s)?;
        lock(&s.core).catalog.stats.foreign_files = foreign;
        let done = k.member.change_within(crate::root::member::OPEN_PATIENCE, |p| {
            p.head.common = common.saturating_add(p.head.deep);
        });
        done.map_err(|e| Error::io("load the root", s.root.path.display(), e))?;
    }
    lock(&s.core).account.budget.add_resident(r.bytes);
    // extents tell their own
    let mut bad: Vec<Owned> = Vec::new();
    if other_length {
        let files = r.blocks.iter().filter(|o| o.bad && o.leaf != DirKind::Extent);
        bad.extend(files.filter_map(|o| renumbered(&s, &r, o)));
    }
    let taken = take(&s, r, looked, true);
    begin_journal(&s, k, resume)?;
    if other_length {
        // the journal's header must tell our length, and which blocks have another
        let noted = s.root.journal.get().map_or(Ok(()), |j| log_blocks(&s, j, &bad));
        match noted {
            Ok(()) => k.compact_now = true,
            Err(error) => {
                tracing::debug!(%error, "blocks of another length are not noted: the next start looks again");
            }
        }
    }
    // what was in doubt is known now: said once, so that the next start need not look again
    log(&s, &taken.looked_at);
    Ok(())
}

/// A block of a journal, with our number of its namespace.
fn renumbered(s: &Shared, r: &Replayed, o: &Owned) -> Option<Owned> {
    let dir = r.namespaces.get(usize::from(o.namespace))?;
    let namespace = s.root.number_of(dir)?;
    Some(Owned {
        namespace,
        ..o.clone()
    })
}

/// Walks the root, serving what is found as it is found, and writes it down.
fn walked(k: &mut Opening) -> Result<Survey> {
    let s = std::sync::Arc::clone(&k.shared);
    let found = |part: &mut [FoundFile]| {
        let mut core = lock(&s.core);
        part.iter_mut().for_each(|f| core.found(f));
    };
    let mut survey = with_walk(&s, Sweep::All, &found, |w| w.run(&s.root.dirs))?;
    if s.stop.load(Ordering::Relaxed) {
        return Err(Error::new(
            crate::error::ErrorKind::Closed,
            "open root",
            "the tier was shut down during the walk",
        ));
    }
    survey.blocks.sort_unstable_by_key(|b| (b.mtime_ns, b.fp));
    {
        let mut core = lock(&s.core);
        core.account.budget.add_resident(survey.dir_bytes);
        core.catalog.stats.swept_files = survey.swept;
    }
    for part in survey.blocks.chunks(1024) {
        let mut core = lock(&s.core);
        part.iter().for_each(|f| core.rank(f));
    }
    begin_journal(&s, k, None)?;
    if let Some(j) = s.root.journal.get() {
        let still = |f: &&FoundFile| f.id.is_some() && lock(&s.core).catalog.find(f.fp) == f.id;
        let all: Vec<Owned> = survey.blocks.iter().filter(still).map(as_owned).collect();
        log_blocks(&s, j, &all).map_err(|e| Error::io("write the journal", s.root.path.display(), e))?;
    }
    Ok(survey)
}
