//! The keeper: a thread of each bounded tier that does what nobody waits for. It loads the root when it is opened,
//! trims it to its bound, tells the journal which blocks were used, compacts it, follows the journals of other live
//! members of the same namespace, and settles with the other members who may hold how many bytes.

use std::{
    collections::{HashMap, HashSet},
    io,
    sync::Arc,
    time::Duration,
};

use foldhash::fast::FixedState;

use super::{
    core::Core,
    index::{Shelf, State},
    journal::{self, Follower, Snapshot, Step, Unusable},
    keeping::End,
    layout::Leaf,
    ledger::Page,
    load_root::{adopt, load},
    member::Member,
    open::Phase,
    shared::Shared,
    trim::{shed, trim},
};
use crate::{
    clock::Instant,
    error::Result,
    io::{round_up, tree::most_allocated},
    sync::{atomic::Ordering, lock},
};

/// Between two visits.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Looks, half a tick apart, for the first share of a newcomer.
const SHARE_TRIES: u32 = 100;
/// How long a member must have been dead before others take what it left; its own restart comes first.
const DEAD_FOR: Duration = Duration::from_secs(5);
/// Most blocks evicted for others in one visit.
const SHED_AT_ONCE: usize = 1024;

/// What the thread works with.
pub(crate) struct Keeper {
    pub(crate) shared: Arc<Shared>,
    pub(crate) member: Member,
    pub(crate) start: super::member::Start,
    pub(crate) alone: bool,
    pub(crate) end: Arc<End>,
    /// Members of our namespace that live, with their incarnation.
    pub(crate) followers: HashMap<u32, (u32, Follower), FixedState>,
    /// When a member was first seen dead.
    pub(crate) dead: HashMap<(u32, u32), Instant, FixedState>,
    /// Dead members whose journals cannot be used.
    pub(crate) unusable: HashSet<(u32, u32)>,
    /// The journal's length at which compaction is tried next.
    pub(crate) compact_at: u64,
    /// Whether another live member walks the tree.
    pub(crate) other_walks: bool,
    /// Whether trouble with the ledger was told.
    pub(crate) ledger_told: bool,
    /// Whether the ledger does not know this member any more.
    pub(crate) lost: bool,
    /// Whether it is to be compacted whatever its length.
    pub(crate) compact_now: bool,
}

impl Keeper {
    /// Opens the root, then looks after it until it is to end. `false`: the claim is lost.
    pub(super) fn live(&mut self) -> bool {
        let opened = self.open();
        let failed = opened.is_err();
        if let Err(error) = &opened {
            tracing::error!(tier = %self.shared.params.name, %error, "the root cannot be opened; nothing will be stored");
        }
        self.shared.set_phase(match opened {
            Ok(()) => Phase::Open,
            Err(e) => Phase::Failed(Some(e)),
        });
        let mut seen = 0;
        while self.end.is_far() {
            if !failed && !self.shared.stop.load(Ordering::Relaxed) {
                self.tick();
            }
            if self.lost {
                return false;
            }
            seen = self.shared.keeper.wait(seen, TICK);
        }
        true
    }

    /// Loads, settles the lease, trims.
    fn open(&mut self) -> Result<()> {
        load(self)?;
        self.claim_extents();
        let root = self.shared.params.root.clone();
        let fault = |e: io::Error| crate::error::Error::io("settle the ledger", root.display(), e);
        let number = self.member.number;
        let lease = self
            .member
            .change_within(super::member::OPEN_PATIENCE, |p| {
                p.member(number).map_or(0, |e| e.lease)
            })
            .map_err(fault)?;
        lock(&self.shared.core).budget.set_bound(Some(lease.unwrap_or(0)));
        let dead = self.exchange().map_err(fault)?;
        if self.alone {
            // nobody else would count what they left, or come back for it
            for d in dead {
                self.take_over(d);
            }
            self.exchange().map_err(fault)?;
        } else {
            self.wait_for_share().map_err(fault)?;
        }
        let small = {
            let core = lock(&self.shared.core);
            let average = core.budget.resident() / core.stats.blocks.max(1);
            core.budget.excess() / average.max(1) <= super::open::TRIM_AT_ONCE
        };
        if !small {
            // it can serve: only stores wait for the trim
            self.shared.set_phase(Phase::Trimming);
        }
        trim(&self.shared);
        self.exchange()
            .map_err(|e| crate::error::Error::io("settle the ledger", "ledger", e))?;
        lock(&self.shared.core).trimming = false;
        if self.shared.stop.load(Ordering::Relaxed) {
            return Ok(());
        }
        super::open::identify(&self.shared, &self.member)
    }

    /// Gives those who hold everything the time to make room for one more.
    fn wait_for_share(&mut self) -> io::Result<()> {
        let s = Arc::clone(&self.shared);
        let least = s.least_share();
        let mut tries = 0;
        while tries < SHARE_TRIES {
            if self.other_walks {
                // nobody has a share before that ends; what others store is served meanwhile
                s.set_phase(Phase::Walking);
            } else {
                tries += 1;
            }
            if s.stop.load(Ordering::Relaxed) || lock(&s.core).budget.bound().is_none_or(|b| b >= least) {
                break;
            }
            lock(&s.core).pressure = least;
            self.exchange()?;
            s.keeper.wait(s.keeper.rings(), TICK / 2);
        }
        Ok(())
    }

    fn tick(&mut self) {
        self.tell_uses();
        self.follow();
        match self.exchange() {
            Ok(dead) => {
                for d in dead {
                    self.consider(d);
                }
            }
            Err(error) if !std::mem::replace(&mut self.ledger_told, true) => {
                tracing::error!(
                    tier = %self.shared.params.name, %error,
                    "the ledger cannot be settled: this tier keeps the share it has until it is opened again"
                );
            }
            Err(error) => tracing::debug!(%error, "the ledger cannot be settled"),
        }
        shed(&self.shared, SHED_AT_ONCE);
        self.compact();
        self.look_again();
    }

    fn tell_uses(&self) {
        let Some(j) = self.shared.journal.get() else {
            return;
        };
        j.pay_debts(&self.shared.core);
        let used = lock(&self.shared.core).touched.as_mut().map(std::mem::take);
        if let Some(used) = used.filter(|u| !u.is_empty())
            && let Err(error) = j.touch(&self.shared.core, &used)
        {
            tracing::debug!(%error, "recency is not in the journal");
        }
    }

    /// Counts what the journal's files take by now, and reserves what they may yet.
    fn look_again(&self) {
        let s = &*self.shared;
        if let Some(j) = s.journal.get() {
            j.look_again(&s.core);
            let credit = s.credit();
            lock(&s.core).top_up(credit);
        }
    }

    /// Reads what other members of our namespace did.
    fn follow(&mut self) {
        let s = &*self.shared;
        let mut steps = Vec::new();
        for (_, f) in self.followers.values_mut() {
            if let Err(error) = f.read(&*s.disk, &s.params.root, &mut |step| steps.push(step)) {
                tracing::debug!(%error, "another member's journal cannot be read now");
            }
        }
        for part in steps.chunks(256) {
            let mut core = lock(&s.core);
            part.iter().for_each(|step| core.follow(*step));
        }
    }

    /// Settles with the other members; returns those that are dead.
    pub(crate) fn exchange(&mut self) -> io::Result<Vec<Dead>> {
        let s = Arc::clone(&self.shared);
        let seed = s.ns.seed();
        let ledger = self.member.ledger.clone();
        let (number, incarnation) = (self.member.number, self.member.incarnation);
        let (mut lost, mut share) = (false, None);
        let mut living = Vec::new();
        let mut dead = Vec::new();
        let mut other_walks = false;
        let done = self.member.change(|p| -> io::Result<()> {
            lost = p.member(number).is_none_or(|e| e.incarnation != incarnation);
            if lost {
                return Ok(());
            }
            for (n, e) in p.used().filter(|&(n, _)| n != number) {
                if ledger.is_live(n, Some(e))? {
                    living.push((n, e.incarnation));
                } else {
                    dead.push(Dead {
                        number: n,
                        incarnation: e.incarnation,
                        ours: e.seed == seed,
                    });
                }
            }
            other_walks = p.head.walker.is_some_and(|w| w != number);
            if !other_walks {
                p.head.walker = None;
                let live: Vec<u32> = living.iter().map(|l| l.0).collect();
                share = settle(p, number, &live, &mut lock(&s.core));
            }
            Ok(())
        })?;
        match done {
            // somebody else has the ledger; the next visit will do
            None => return Ok(Vec::new()),
            Some(r) => r?,
        }
        if lost {
            self.lost = true;
            return Ok(Vec::new());
        }
        if share.is_some() {
            // more than before only now that it is written
            lock(&s.core).budget.set_bound(share);
        }
        self.other_walks = other_walks;
        self.followers
            .retain(|n, (inc, _)| living.iter().any(|l| l.0 == *n && l.1 == *inc));
        // blocks of our namespace may have come to members of others
        for &(n, inc) in &living {
            self.followers
                .entry(n)
                .or_insert_with(|| (inc, Follower::new(n, s.ns.dir())));
        }
        Ok(dead)
    }

    /// Takes over what a dead member left: of our own namespace at once, of others when room is needed.
    fn consider(&mut self, d: Dead) {
        let now = self.shared.clock.now();
        let id = (d.number, d.incarnation);
        if self.unusable.contains(&id) {
            return;
        }
        let since = *self.dead.entry(id).or_insert(now);
        let wanted = d.ours || lock(&self.shared.core).starved;
        if !wanted || now.since(since) < DEAD_FOR {
            return;
        }
        self.take_over(d);
    }

    fn take_over(&mut self, d: Dead) {
        let id = (d.number, d.incarnation);
        match adopt(self, d) {
            Ok(()) => self.claim_extents(),
            Err(Unusable::Io(error)) => tracing::warn!(%error, "a dead member's journal cannot be read now"),
            Err(why) => {
                tracing::warn!(
                    tier = %self.shared.params.name, member = d.number, %why,
                    "what a dead member left stays counted until the root is opened by one alone"
                );
                self.unusable.insert(id);
            }
        }
    }

    /// Opens extents that came with what was loaded or taken over.
    fn claim_extents(&self) {
        if let Some(pack) = &self.shared.pack {
            self.shared.claim_extents(pack);
        }
    }

    /// Folds the journal into a snapshot when it has grown as large as what it stands on.
    fn compact(&mut self) {
        let asked = self.shared.compact_asked.load(Ordering::Relaxed);
        self.compact_now |= asked > self.shared.compact_tried.load(Ordering::Relaxed);
        self.compact_if_due();
        self.shared.compact_tried.store(asked, Ordering::Relaxed);
    }

    fn compact_if_due(&mut self) {
        let s = &*self.shared;
        let Some(j) = s.journal.get() else { return };
        let (len, older) = j.lengths();
        let base = s.compact_base();
        if !std::mem::take(&mut self.compact_now) && len < self.compact_at.max(base + older) {
            return;
        }
        let most = j.next_snapshot();
        let cost = most_allocated(most, s.params.fs_block);
        {
            let mut core = lock(&s.core);
            core.top_up(s.credit());
            if !core.spend_credit(cost, s.least_credit() + j.spare()) {
                // the next store makes room for it
                return;
            }
        }
        let unspent = |bytes: u64| lock(&s.core).budget.release(bytes);
        let head = (s.nonce(), s.params.block_len as u64);
        let rotation = match j.rotate(&s.core, head) {
            Ok(r) => r,
            Err(error) => {
                tracing::warn!(%error, "the journal cannot be compacted now");
                unspent(cost);
                self.compact_at = len * 2;
                return;
            }
        };
        self.compact_at = 0;
        let merged = match journal::merge(&*s.disk, &s.params.root, &rotation, s.params.fs_block) {
            Ok(m) => m,
            Err(why @ Unusable::Damaged(_)) => {
                tracing::error!(tier = %s.params.name, %why, "the journal is given up; the next start walks the root");
                unspent(cost);
                let freed = j.lose();
                lock(&s.core).journal_shrinks(freed);
                return;
            }
            Err(why) => {
                tracing::warn!(%why, "the journal cannot be compacted now");
                unspent(cost);
                return;
            }
        };
        let limit = merged.limit().min(most);
        let number = |dir: &str| s.number_of(dir);
        let written = Snapshot::start(j, &rotation, limit).and_then(|mut out| {
            merged.write(&mut out, &number)?;
            out.end()
        });
        match written {
            Ok(len) => {
                let bytes = round_up(len, s.params.fs_block);
                // the file system may take that later
                let spare = most_allocated(len, s.params.fs_block) - bytes;
                {
                    let mut core = lock(&s.core);
                    core.budget.release(cost.saturating_sub(spare));
                    core.return_credit(spare.min(cost));
                    core.budget.add_resident(bytes);
                }
                let freed = j.settle(&rotation, len);
                lock(&s.core).journal_shrinks(freed);
            }
            Err(error) => {
                tracing::warn!(%error, "the journal's snapshot was not written");
                let stays = j.give_up(&rotation);
                let mut core = lock(&s.core);
                core.budget.release(cost);
                core.budget.add_resident(stays);
            }
        }
    }

    /// Lets the root go, in order.
    pub(super) fn finish(self) {
        self.tell_uses();
        let held = {
            let core = lock(&self.shared.core);
            core.budget.resident()
        };
        self.member.leave(held);
    }
}

/// A member whose process has ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Dead {
    pub(crate) number: u32,
    pub(crate) incarnation: u32,
    /// Of our namespace.
    pub(crate) ours: bool,
}

/// Who may hold how much. A member that evicts while it has less than its share (the bound less common bytes and
/// what the dead left, by the number of live members) wants more; one that has more than its share gives, what it
/// does not use at once, the rest as it evicts. What nobody wants goes to whoever looks first. Returns what this member
/// may use when that is written; what it gives it does not use from now on.
fn settle(p: &mut Page, me: u32, live: &[u32], core: &mut Core) -> Option<u64> {
    let mine = p.member(me).cloned()?;
    let held = core.budget.resident() + core.budget.reserved();
    let pressure = std::mem::take(&mut core.pressure);
    let alive = |n: u32| n == me || live.contains(&n);
    let left_by_dead: u64 = p.used().filter(|&(n, _)| !alive(n)).map(|(_, e)| e.lease).sum();
    let members = live.len() as u64 + 1;
    let fair = p.head.bound.saturating_sub(p.head.common + left_by_dead) / members;
    let others: u64 = p.leased() - mine.lease;
    let most = p.head.bound.saturating_sub(p.head.common + others);
    let wants: u64 = p
        .used()
        .filter(|&(n, e)| n != me && alive(n) && e.lease < fair)
        .map(|(_, e)| e.want)
        .sum();
    // what this member may use
    let mut use_ = core.budget.bound().unwrap_or(0).min(most);
    let free = most.saturating_sub(mine.lease.max(use_));
    if wants > free && use_ > fair {
        use_ = fair.max(use_ - (wants - free).min(use_));
    } else if wants == 0 || pressure > 0 && mine.lease < fair {
        let takes = if wants == 0 {
            free
        } else {
            free.min(fair - use_.min(fair))
        };
        use_ += takes;
    }
    let now = core.budget.bound().unwrap_or(0);
    core.budget.set_bound(Some(use_.min(now)));
    core.common = p.head.common;
    core.root_bound = Some(p.head.bound);
    core.starved = pressure > 0 && use_ < fair + left_by_dead;
    let lease = use_.max(held);
    let want = if pressure > 0 && lease < fair {
        pressure.max((fair - lease) / 4)
    } else {
        0
    };
    if let Some(Some(e)) = p.member_mut(me) {
        e.lease = lease;
        e.held = held;
        e.want = want;
    }
    Some(use_)
}

impl Core {
    /// What another live member of our namespace did.
    fn follow(&mut self, step: Step) {
        match step {
            Step::Stored {
                fp,
                leaf,
                fan,
                trailer,
                cost,
            } => {
                // what another member packs is its own to read
                if leaf == Leaf::Extent || self.index.find(fp).is_some() {
                    return;
                }
                let shelf = self.index.shelf_id(Shelf { namespace: 0, leaf });
                let bytes = u64::from(cost) * 512;
                if let Some(id) = shelf.and_then(|sh| self.index.insert(fp, sh, fan, State::Peer, bytes)) {
                    self.index.set_has_trailer(id, trailer);
                }
            }
            Step::Removed(fp) => {
                if let Some(id) = self.index.find(fp) {
                    self.forget_peer(id);
                }
            }
        }
    }
}
