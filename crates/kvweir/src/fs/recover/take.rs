//! What a dead member owned becomes ours: in index, policy, directories and account.

use std::collections::HashSet;

use super::{doubt::Looked, note::as_owned, taken::Taken};
use crate::{
    budget::COST_UNIT,
    catalog::{
        Origin,
        index::{BATCH, State},
        space::SpaceId,
    },
    fs::{body::FileBody, core::Core, shared::Shared},
    root::{
        journal::{Owned, Replayed},
        leaves::Leaves,
        names::{DirClass, DirKind, high_dir},
        walk::FoundFile,
    },
    sync::{lock, thread},
};

/// Puts what a dead member owned into index, policy, directories and account. Numbers of namespaces become ours.
///
/// With `first`, nothing is known yet: directories and blocks are taken at the same time, and what was taken is not
/// listed.
pub(crate) fn take(s: &Shared, r: Replayed, looked: Vec<Looked>, first: bool) -> Taken {
    let numbers: Vec<Option<u16>> = r.namespaces.iter().map(|dir| s.root.number_of(dir)).collect();
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
                bytes += s.root.dirs.also_high(n, high, u64::from(cost) * COST_UNIT);
            }
        }
        for (ns, high, leaf, row) in r.leaves.rows() {
            if let Some(n) = number(ns) {
                bytes += s.root.dirs.also_leaves(n, high, leaf, row);
            }
        }
        for (&ns, &cost) in &r.tops {
            if let Some(n) = number(ns) {
                bytes += s.root.dirs.also_top(n, u64::from(cost) * COST_UNIT);
            }
        }
        lock(&s.core).account.budget.add_resident(bytes);
    };
    let mut taken = Taken::default();
    if first {
        thread::scope(|scope| {
            let files = || {
                dirs();
                let mut files = Leaves::default();
                owned
                    .iter()
                    .for_each(|o| files.add_one((o.namespace, o.prefix, o.leaf)));
                files
                    .rows()
                    .for_each(|(ns, high, leaf, row)| s.root.dirs.found_files(ns, high, leaf, row));
            };
            // without a thread it only takes longer
            let beside = thread::Builder::new()
                .name("kvweir-load".into())
                .spawn_scoped(scope, files);
            lock(&s.core).catalog.reserve(owned.len());
            for part in owned.chunks(1024) {
                let mut core = lock(&s.core);
                for batch in part.chunks(BATCH) {
                    core.catalog.warm_places(batch.iter().map(|o| o.fp));
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
                    s.root.dirs.found_file(o.namespace, o.prefix, o.leaf);
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
    if let Some(id) = core.catalog.find(o.fp) {
        if core.catalog.state(id) != State::Peer {
            return false;
        }
        core.catalog.forget_peer(id);
    }
    let mut f = FoundFile {
        fp: o.fp,
        namespace: o.namespace,
        leaf: o.leaf,
        prefix: o.prefix,
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

/// Takes what was found in leaves that were in doubt.
fn take_looked(s: &Shared, looked: Vec<Looked>, taken: &mut Taken) {
    let mut highs = HashSet::new();
    for Looked {
        at,
        mut survey,
        owned,
    } in looked
    {
        let (n, prefix, leaf) = at;
        let before = s.root.dirs.forget_leaf(n, prefix, leaf);
        if survey.dir_bytes > 0 {
            s.root.dirs.found_dir(n, prefix, Some(leaf), survey.dir_bytes);
        }
        let mut core = lock(&s.core);
        core.account.budget.change(before, survey.dir_bytes);
        core.catalog.stats.swept_files += survey.swept;
        let mut there = HashSet::new();
        for f in &mut survey.blocks {
            there.insert(f.fp);
            match core.catalog.find(f.fp) {
                Some(id) if core.catalog.state(id) == State::Peer => core.catalog.forget_peer(id),
                // stored again since it was looked at
                Some(_) => continue,
                None => {}
            }
            s.root.dirs.found_file(n, prefix, leaf);
            core.found(f);
            core.rank(f);
            let o = as_owned(f);
            taken.blocks.push(o.clone());
            taken.looked_at.there.push(o);
        }
        let gone = owned.iter().filter(|fp| !there.contains(fp));
        taken.looked_at.gone.extend(gone.map(|&fp| (fp, n, leaf, prefix)));
        highs.insert((n, prefix.high()));
    }
    for (n, high) in highs {
        let Some(dir) = s.root.namespace(n) else { continue };
        let change = s
            .root
            .dirs
            .remeasure(&*s.root.disk, &dir, n, high, &high_dir(&dir, high));
        lock(&s.core).account.budget.apply(change);
    }
}

impl Core {
    /// Indexes and counts a block found on disk; it has no place among the others yet.
    pub(crate) fn found(&mut self, f: &mut FoundFile) {
        self.account.budget.add_resident(f.cost);
        let (extent, ours) = (f.leaf == DirKind::Extent, self.serves(f.namespace));
        // one of ours is opened later, if its space packs; else it is no block
        f.bad |= extent && ours && !self.packs(f.namespace);
        let state = match () {
            () if f.bad => State::Bad,
            () if extent && ours => State::Aside,
            () => State::Ready,
        };
        let class = self.classes.number(DirClass {
            namespace: f.namespace,
            leaf: f.leaf,
        });
        // another namespace's keys are no business of our events
        let space = SpaceId(f.namespace);
        let key = f.key.as_ref().filter(|_| ours).map(|k| (space, k));
        let id = class.and_then(|class| {
            let written_at = u64::try_from(f.mtime_ns / 1_000_000_000).unwrap_or(0);
            let body = FileBody::new(class, f.prefix, f.cost).written(f.trailer, written_at);
            self.catalog.discover(f.fp, state, body.body(), key)
        });
        let Some(id) = id else {
            // more kinds of leaves than an index can name: counted, not served
            self.catalog.stats.foreign_files += 1;
            return;
        };
        f.id = Some(id);
        if state == State::Aside {
            self.add_unclaimed(space, [id]);
        }
        self.catalog.stats.recovered_blocks += u64::from(state == State::Ready && ours);
    }

    /// Gives a found block its place: more recent than all ranked before, or among the orphans.
    pub(crate) fn rank(&mut self, f: &FoundFile) {
        let same = f.id.filter(|&id| self.catalog.fingerprint(id) == f.fp);
        if let Some(id) = same {
            let origin = if self.serves(f.namespace) {
                Origin::Found
            } else {
                Origin::Orphan
            };
            self.catalog.rank(id, origin);
        }
    }
}
