//! Loading a root: from the journal of a dead member, or by a walk.

use std::{collections::HashSet, io, path::Path, sync::atomic::Ordering, time::Duration};

use super::{
    core::{Core, weight},
    keeper::Keeper,
    phase::Phase,
    shared::Shared,
};
use crate::{
    block::{Fingerprint, Key},
    catalog::index::{BATCH, COST_UNIT, State},
    error::{Error, IoClass, Result, classify},
    evict::RequestTag,
    io::pool::usable_cpus,
    root::{
        dirs::Dirs,
        journal::{self, Facts, Journal, Mark, Owned, Replayed, Unusable, units},
        leaves::Leaves,
        member::Start,
        names::{Fan, Leaf, Shelf, high_dir},
        walk::{Found, Survey, Sweep, Walk},
    },
    sync::{Bell, lock, thread},
};

/// Tries to read what cannot be read at first, and the pause between two.
const TRIES: u32 = 5;
const PAUSE: Duration = Duration::from_millis(20);

/// Loads what the member owns, and begins or goes on with its journal.
pub(crate) fn load(k: &mut Keeper) -> Result<()> {
    let s = std::sync::Arc::clone(&k.shared);
    let fault = |e: io::Error| Error::io("load the root", s.params.root.display(), e);
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
        lock(&s.core).stats.foreign_files = foreign;
        let done = k.member.change_within(crate::root::member::OPEN_PATIENCE, |p| {
            p.head.deep = deep.unwrap_or(p.head.deep);
            p.head.common = walk_common.saturating_add(p.head.deep);
        });
        done.map_err(fault)?;
    }
    if s.journal.get().is_some() {
        return Ok(());
    }
    begin_journal(&s, k, None)
}

/// Reads the journals that this start rests on: our own, and where nobody else lives those of the dead too, since nobody
/// else would count what they left. One that cannot be used means a walk. Returns our own.
fn believed(k: &mut Keeper) -> Result<Option<Replayed>> {
    let s = std::sync::Arc::clone(&k.shared);
    let fault = |e: io::Error| Error::io("read the journals", s.params.root.display(), e);
    let mut own = None;
    if k.start == Start::Replay {
        own = match read(&s, k.member.number, k.mark.as_ref()) {
            Ok(r) if !can_be_named(&s, &r) => {
                tracing::warn!(tier = %s.params.name, "{TOO_MANY_NAMESPACES}; the root is walked");
                None
            }
            Ok(r) if keys_are_known(&s, &r) => Some(r),
            Ok(_) => {
                tracing::info!(tier = %s.params.name, "events need keys, which the last owner did not note");
                None
            }
            Err(Unusable::Io(e)) if is_passing(&e) => return Err(fault(e)),
            Err(why) => {
                tracing::warn!(tier = %s.params.name, %why, "the root is walked");
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
                    s.params.root.display()
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
                        tier = %s.params.name, member = d.number, why,
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
fn begin_walk(k: &mut Keeper) -> Result<bool> {
    let s = &k.shared;
    let fault = |e: io::Error| Error::io("load the root", s.params.root.display(), e);
    let begun = k.member.begin_walk(&*s.disk, &s.params.root).map_err(fault)?;
    if begun {
        k.start = Start::Walk;
        k.read.clear();
    }
    Ok(begun)
}

/// Reads a member's journal, again where the device failed: that may be a moment's.
fn read(s: &Shared, member: u32, mark: Option<&Mark>) -> std::result::Result<Replayed, Unusable> {
    patiently(|| journal::replay(&*s.disk, &s.params.root, member, s.params.fs_block, mark))
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

pub(super) fn root_level(s: &Shared) -> Result<(u64, u64)> {
    let mut level = None;
    with_walk(s, Sweep::All, &|_| {}, |w| level = Some(w.root_level()));
    level.unwrap_or(Ok((0, 0)))
}

fn with_walk<R>(
    s: &Shared,
    sweep: Sweep,
    found: &(dyn Fn(&mut [Found]) + Sync),
    run: impl FnOnce(&Walk<'_>) -> R,
) -> R {
    let own = s.ns.dir();
    run(&Walk {
        disk: &*s.disk,
        root: &s.params.root,
        own,
        block_len: s.params.block_len as u64,
        fs_block: s.params.fs_block,
        want_keys: s.params.keep_keys,
        threads: (usable_cpus() * 2).clamp(2, 16),
        sweep,
        found,
        number: &|dir| s.number_of(dir),
        stop: &s.stop,
        watch: None,
    })
}

fn begin_journal(s: &Shared, k: &Keeper, from: Option<journal::Resume>) -> Result<()> {
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

pub(super) const TOO_MANY_NAMESPACES: &str = "more namespaces lie below the root than an index can name";

/// Whether every namespace has a number here. What has none could not be counted block by block (I1): a walk counts it
/// as foreign.
pub(super) fn can_be_named(s: &Shared, r: &Replayed) -> bool {
    r.namespaces.iter().all(|dir| s.number_of(dir).is_some())
}

/// Whether every block of ours has the key that events need.
pub(super) fn keys_are_known(s: &Shared, r: &Replayed) -> bool {
    let own = r.namespaces.iter().position(|n| n == s.ns.dir());
    !s.params.keep_keys
        || r.blocks.iter().all(|o| {
            o.bad || o.key.is_some() || o.leaf == Leaf::Extent || Some(usize::from(o.namespace)) != own
        })
}

/// Blocks of our namespace that have another length than ours are none.
pub(super) fn mark_other_lengths(s: &Shared, r: &mut Replayed) {
    let other = r
        .resume
        .as_ref()
        .is_some_and(|f| f.header.block_len != s.params.block_len as u64);
    let own = r.namespaces.iter().position(|n| n == s.ns.dir());
    if other {
        let ours = r
            .blocks
            .iter_mut()
            .filter(|o| Some(usize::from(o.namespace)) == own);
        ours.for_each(|o| o.bad = true);
    }
}

/// Takes what the journal tells.
fn replayed(k: &mut Keeper, mut r: Replayed) -> Result<()> {
    let s = std::sync::Arc::clone(&k.shared);
    mark_other_lengths(&s, &mut r);
    let other_length = r
        .resume
        .as_ref()
        .is_some_and(|f| f.header.block_len != s.params.block_len as u64);
    let looked = patiently(|| look_at_doubt(&s, &r, k.member.number));
    let looked = looked.map_err(|why| match why {
        Unusable::Io(e) => Error::io("load the root", s.params.root.display(), e),
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
        lock(&s.core).stats.foreign_files = foreign;
        let done = k.member.change_within(crate::root::member::OPEN_PATIENCE, |p| {
            p.head.common = common.saturating_add(p.head.deep);
        });
        done.map_err(|e| Error::io("load the root", s.params.root.display(), e))?;
    }
    lock(&s.core).budget.add_resident(r.bytes);
    let taken = take(&s, r, looked, true);
    begin_journal(&s, k, resume)?;
    if other_length {
        // the journal's header must tell our length
        k.compact_now = true;
    }
    // what was in doubt is known now: said once, so that the next start need not look again
    log(&s, &taken.looked_at);
    Ok(())
}

/// What was taken over.
#[derive(Default)]
pub(super) struct Taken {
    /// Blocks new to the index.
    pub(super) blocks: Vec<Owned>,
    /// Blocks of leaves in doubt, and those that turned out not to be there.
    looked_at: LookedAt,
}

#[derive(Default)]
struct LookedAt {
    there: Vec<Owned>,
    gone: Vec<(Fingerprint, u16, Leaf, Fan)>,
}

/// Puts what a dead member owned into index, policy, directories and account. Numbers of namespaces become ours.
///
/// With `first`, nothing is known yet: directories and blocks are taken at the same time, and what was taken is not
/// listed.
pub(super) fn take(s: &Shared, r: Replayed, looked: Vec<Looked>, first: bool) -> Taken {
    let numbers: Vec<Option<u16>> = r.namespaces.iter().map(|dir| s.number_of(dir)).collect();
    let number = |ns: u16| numbers.get(usize::from(ns)).copied().flatten();
    let owned: Vec<Owned> = r
        .blocks
        .into_iter()
        .filter_map(|o| renumber(o, &number))
        .collect();
    let dirs = || {
        let mut bytes = 0;
        for (&(ns, high), &cost) in &r.highs {
            if let Some(n) = number(ns) {
                bytes += s.dirs.also_high(n, high, u64::from(cost) * COST_UNIT);
            }
        }
        for (ns, high, leaf, row) in r.leaves.rows() {
            if let Some(n) = number(ns) {
                bytes += s.dirs.also_leaves(n, high, leaf, row);
            }
        }
        for (&ns, &cost) in &r.tops {
            if let Some(n) = number(ns) {
                bytes += s.dirs.also_top(n, u64::from(cost) * COST_UNIT);
            }
        }
        lock(&s.core).budget.add_resident(bytes);
    };
    let mut taken = Taken::default();
    if first {
        thread::scope(|scope| {
            let files = || {
                dirs();
                let mut files = Leaves::default();
                owned
                    .iter()
                    .for_each(|o| files.add_one((o.namespace, o.fan, o.leaf)));
                files
                    .rows()
                    .for_each(|(ns, high, leaf, row)| s.dirs.found_files(ns, high, leaf, row));
            };
            // without a thread it only takes longer
            let beside = thread::Builder::new()
                .name("kvweir-load".into())
                .spawn_scoped(scope, files);
            lock(&s.core).index.reserve(owned.len());
            for part in owned.chunks(1024) {
                let mut core = lock(&s.core);
                for batch in part.chunks(BATCH) {
                    core.index.warm_places(batch.iter().map(|o| o.fp));
                    batch.iter().for_each(|o| {
                        insert(&mut core, o);
                    });
                }
            }
            if beside.is_err() {
                files();
            }
        });
    } else {
        dirs();
        for part in owned.chunks(1024) {
            let mut core = lock(&s.core);
            for o in part {
                if insert(&mut core, o) {
                    s.dirs.found_file(o.namespace, o.fan, o.leaf);
                    taken.blocks.push(o.clone());
                }
            }
        }
    }
    take_looked(s, looked, &mut taken);
    taken
}

fn renumber(mut o: Owned, number: &dyn Fn(u16) -> Option<u16>) -> Option<Owned> {
    o.namespace = number(o.namespace)?;
    Some(o)
}

/// Adds a block; `false` where it is there already.
fn insert(core: &mut Core, o: &Owned) -> bool {
    if let Some(id) = core.index.find(o.fp) {
        if core.index.state(id) != State::Peer {
            return false;
        }
        core.forget_peer(id);
    }
    let mut f = Found {
        fp: o.fp,
        namespace: o.namespace,
        leaf: o.leaf,
        fan: o.fan,
        cost: u64::from(o.cost) * COST_UNIT,
        mtime_ns: i128::from(o.written_at) * 1_000_000_000,
        trailer: o.trailer,
        id: None,
        bad: o.bad,
        key: o.key.as_deref().cloned(),
    };
    core.found(&mut f);
    core.rank(&f);
    true
}

/// A leaf in which something was under way when a member died, as it is now.
pub(super) struct Looked {
    at: (u16, Fan, Leaf),
    survey: Survey,
    /// What the member had there, or began.
    owned: Vec<Fingerprint>,
}

/// Looks at the leaves in which something was under way when the member died. Nothing is counted yet: where it fails, it
/// may be tried again.
pub(super) fn look_at_doubt(
    s: &Shared,
    r: &Replayed,
    member: u32,
) -> std::result::Result<Vec<Looked>, Unusable> {
    let mut all = Vec::with_capacity(r.doubt.len());
    for (&(ns, fan, leaf), owned) in &r.doubt {
        let dir = r.namespaces.get(usize::from(ns));
        let Some(n) = dir.and_then(|dir| s.number_of(dir)) else {
            continue;
        };
        let Some(dir) = s.namespace(n) else { continue };
        let owned: Vec<Fingerprint> = owned.iter().map(|o| o.fp).collect();
        let only: HashSet<Fingerprint> = owned
            .iter()
            .copied()
            .filter(|&fp| lock(&s.core).index.find(fp).is_none())
            .collect();
        let mut survey = Survey::default();
        let met = with_walk(s, Sweep::Member(member), &|_| {}, |w| {
            w.walk_leaf(n, &dir, (fan, leaf), Some(&only), &Dirs::new(), &mut survey)
        });
        met.map_err(|e| match e.errno() {
            Some(n) => Unusable::Io(io::Error::from_raw_os_error(n)),
            None => Unusable::Io(io::Error::other(e)),
        })?;
        survey.blocks.sort_unstable_by_key(|b| (b.mtime_ns, b.fp));
        all.push(Looked {
            at: (n, fan, leaf),
            survey,
            owned,
        });
    }
    Ok(all)
}

/// Takes what was found in leaves that were in doubt.
fn take_looked(s: &Shared, looked: Vec<Looked>, taken: &mut Taken) {
    let mut highs = HashSet::new();
    for Looked {
        at,
        mut survey,
        owned,
    } in looked
    {
        let (n, fan, leaf) = at;
        let before = s.dirs.forget_leaf(n, fan, leaf);
        if survey.dir_bytes > 0 {
            s.dirs.found_dir(n, fan, Some(leaf), survey.dir_bytes);
        }
        let mut core = lock(&s.core);
        core.budget.change(before, survey.dir_bytes);
        core.stats.swept_files += survey.swept;
        let mut there = HashSet::new();
        for f in &mut survey.blocks {
            there.insert(f.fp);
            match core.index.find(f.fp) {
                Some(id) if core.index.state(id) == State::Peer => core.forget_peer(id),
                // stored again since it was looked at
                Some(_) => continue,
                None => {}
            }
            s.dirs.found_file(n, fan, leaf);
            core.found(f);
            core.rank(f);
            let o = as_owned(f);
            taken.blocks.push(o.clone());
            taken.looked_at.there.push(o);
        }
        let gone = owned.iter().filter(|fp| !there.contains(fp));
        taken.looked_at.gone.extend(gone.map(|&fp| (fp, n, leaf, fan)));
        highs.insert((n, fan.high()));
    }
    for (n, high) in highs {
        let Some(dir) = s.namespace(n) else { continue };
        let change = s.dirs.look_again(&*s.disk, &dir, n, high, &high_dir(&dir, high));
        lock(&s.core).budget.apply(change);
    }
}

/// Writes what leaves in doubt turned out to hold into our own journal. Where that fails they stay in doubt.
fn log(s: &Shared, seen: &LookedAt) {
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
pub(super) fn log_blocks(s: &Shared, j: &Journal, blocks: &[Owned]) -> io::Result<()> {
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
fn as_owned(f: &Found) -> Owned {
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

/// Walks the root, serving what is found as it is found, and writes it down.
fn walked(k: &mut Keeper) -> Result<Survey> {
    let s = std::sync::Arc::clone(&k.shared);
    let found = |part: &mut [Found]| {
        let mut core = lock(&s.core);
        part.iter_mut().for_each(|f| core.found(f));
    };
    let mut survey = with_walk(&s, Sweep::All, &found, |w| w.run(&s.dirs))?;
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
        core.budget.add_resident(survey.dir_bytes);
        core.stats.swept_files = survey.swept;
    }
    for part in survey.blocks.chunks(1024) {
        let mut core = lock(&s.core);
        part.iter().for_each(|f| core.rank(f));
    }
    begin_journal(&s, k, None)?;
    if let Some(j) = s.journal.get() {
        let still = |f: &&Found| f.id.is_some() && lock(&s.core).index.find(f.fp) == f.id;
        let all: Vec<Owned> = survey.blocks.iter().filter(still).map(as_owned).collect();
        log_blocks(&s, j, &all).map_err(|e| Error::io("write the journal", s.params.root.display(), e))?;
    }
    Ok(survey)
}

/// Removes an old journal; returns whether it is gone.
pub(super) fn remove(s: &Shared, path: &Path) -> bool {
    match s.disk.remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            tracing::warn!(path = %path.display(), %error, "an old journal cannot be removed");
            false
        }
        _ => true,
    }
}

impl Core {
    /// Indexes and counts a block found on disk; it has no place among the others yet.
    fn found(&mut self, f: &mut Found) {
        self.budget.add_resident(f.cost);
        let extent = f.leaf == Leaf::Extent;
        // one of ours is opened later, if this tier packs; else it is no block
        f.bad |= extent && f.namespace == 0 && !self.packs;
        let state = match () {
            () if f.bad => State::Bad,
            () if extent && f.namespace == 0 => State::Extent,
            () => State::Ready,
        };
        let shelf = self.index.shelf_id(Shelf {
            namespace: f.namespace,
            leaf: f.leaf,
        });
        let id = shelf
            .filter(|_| self.index.find(f.fp).is_none())
            .and_then(|sh| self.index.insert(f.fp, sh, f.fan, state, f.cost));
        let Some(id) = id else {
            // more kinds of leaves than an index can name: counted, not served
            self.stats.foreign_files += 1;
            return;
        };
        f.id = Some(id);
        if state == State::Extent {
            self.unclaimed.push(id);
        }
        self.index.set_has_trailer(id, f.trailer);
        self.index
            .set_written_at(id, u64::try_from(f.mtime_ns / 1_000_000_000).unwrap_or(0));
        // another namespace's keys are no business of our events
        if let Some(k) = f.key.as_ref().filter(|_| f.namespace == 0) {
            self.index.set_key(id, k);
            if !f.bad {
                self.events.stored(k);
            }
        }
        self.stats.blocks += u64::from(state == State::Ready);
        self.stats.recovered_blocks += u64::from(state == State::Ready && f.namespace == 0);
    }

    /// Gives a found block its place: more recent than all ranked before, or among the orphans.
    fn rank(&mut self, f: &Found) {
        let Some(id) = f.id else { return };
        let is =
            matches!(self.index.state(id), State::Ready | State::Bad) && self.index.fingerprint(id) == f.fp;
        if !is {
            return;
        }
        if f.namespace == 0 {
            let w = u32::try_from(weight(f.cost)).unwrap_or(u32::MAX);
            self.policy.insert(id, f.fp, w, RequestTag::NONE);
        } else {
            self.orphans.push_back(id);
        }
    }
}
