//! What a dead member owned becomes ours: in index, policy, directories and account.

use std::collections::HashSet;

use crate::{
    catalog::index::{BATCH, COST_UNIT, State},
    evict::RequestTag,
    fs::{
        core::{Core, weight},
        recover::{doubt::Looked, note::as_owned, taken::Taken},
        shared::Shared,
    },
    root::{
        journal::{Owned, Replayed},
        leaves::Leaves,
        names::{Leaf, Shelf, high_dir},
        walk::Found,
    },
    sync::{lock, thread},
};

/// Puts what a dead member owned into index, policy, directories and account. Numbers of namespaces become ours.
///
/// With `first`, nothing is known yet: directories and blocks are taken at the same time, and what was taken is not
/// listed.
pub(crate) fn take(s: &Shared, r: Replayed, looked: Vec<Looked>, first: bool) -> Taken {
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

impl Core {
    /// Indexes and counts a block found on disk; it has no place among the others yet.
    pub(crate) fn found(&mut self, f: &mut Found) {
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
    pub(crate) fn rank(&mut self, f: &Found) {
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
