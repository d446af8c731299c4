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
    adopt::{Adoption, Dead},
    core::Core,
    emptied::Round,
    keeping::End,
    phase::Phase,
    recover::load,
    shared::Shared,
    trim::{shed, trim},
};
use crate::{
    catalog::index::State,
    clock::Instant,
    error::Result,
    io::{round_up, tree::most_allocated},
    root::{
        accounts::Accounts,
        journal::{self, Follower, Mark, Replayed, Snapshot, Step, Unusable},
        ledger::Page,
        member::Member,
        names::{Leaf, Shelf},
    },
    sync::{atomic::Ordering, lock},
};

/// Between two visits.
pub(super) const TICK: Duration = Duration::from_millis(100);
/// Looks, half a tick apart, for the first share of a newcomer.
const SHARE_TRIES: u32 = 100;
/// As many more where dead members hold what it lacks: they must have been dead for so long.
const TRIES_BESIDE_DEAD: u32 = 40;
/// How long a member must have been dead before others take what it left; its own restart comes first.
const DEAD_FOR: Duration = Duration::from_secs(5);
/// How long more than the bound may lie there before that is told: shares are settled, and a trim runs.
const ABOVE_FOR: Duration = Duration::from_secs(10);
/// Of the number that tells whose a peer's block is, the bits that tell in which reading it was told last.
const READING_BITS: u32 = 26;
const READINGS: u32 = (1 << READING_BITS) - 1;
/// Entries looked at under one hold of the lock.
const LOOKED_AT_ONCE: u32 = 1024;
/// Most visits between two tries of an extent that cannot be read.
const CLAIM_REST: u32 = 100;
/// Most blocks evicted for others in one visit.
const SHED_AT_ONCE: usize = 1024;

/// What the thread works with.
pub(crate) struct Keeper {
    pub(crate) shared: Arc<Shared>,
    pub(crate) member: Member,
    pub(crate) start: crate::root::member::Start,
    pub(crate) alone: bool,
    pub(crate) end: Arc<End>,
    /// Members of our namespace that live, with their incarnation.
    pub(crate) followers: HashMap<u32, (u32, Follower), FixedState>,
    /// When a member was first seen dead.
    pub(crate) dead: HashMap<(u32, u32), Instant, FixedState>,
    /// Readings of others' journals begun so far.
    pub(crate) readings: u32,
    /// What the ledger knew of the journal that this member goes on with.
    pub(crate) mark: Option<Mark>,
    /// Journals of dead members, read and not taken over yet.
    pub(crate) read: HashMap<(u32, u32), Replayed, FixedState>,
    /// What was taken over and is not written down yet.
    pub(crate) adopting: Option<Adoption>,
    /// How far it is with directories that could not be removed.
    pub(crate) emptied: Round,
    /// Since when more lies there than may, and whether that was told.
    pub(crate) above: Option<(Instant, bool)>,
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
    /// Visits until extents that could not be read are tried again, and how many there were before the last time.
    pub(crate) claim_rest: (u32, u32),
    /// What is known of what somebody else removed.
    pub(crate) looks: super::again::Looks,
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
        self.shared.dirs.note_emptied();
        self.claim_extents();
        let root = self.shared.params.root.clone();
        let fault = |e: io::Error| crate::error::Error::io("settle the ledger", root.display(), e);
        let number = self.member.number;
        let lease = self
            .member
            .change_within(crate::root::member::OPEN_PATIENCE, |p| {
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
        while tries < self.share_tries() {
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
            // those who live may have little, and no need of what the dead left
            for d in self.exchange()? {
                self.consider(d);
            }
            s.keeper.wait(s.keeper.rings(), TICK / 2);
        }
        Ok(())
    }

    /// How often a newcomer looks for its share.
    fn share_tries(&self) -> u32 {
        match self.dead.is_empty() {
            true => SHARE_TRIES,
            false => SHARE_TRIES + TRIES_BESIDE_DEAD,
        }
    }

    fn tick(&mut self) {
        self.tell_uses();
        let settles = self.look_for_lost();
        self.claim_what_waits();
        self.follow();
        self.go_on_adopting();
        if !settles || self.looks.rest > 0 {
            self.looks.rest = self.looks.rest.saturating_sub(1);
            return;
        }
        match self.exchange() {
            Ok(dead) => {
                for d in dead {
                    self.consider(d);
                }
            }
            // somebody removed it: the next look will find that
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
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
        self.look_at_emptied();
        self.tell_of_excess();
    }

    /// Says once, loudly, that more lies below the root than may.
    fn tell_of_excess(&mut self) {
        let s = &*self.shared;
        let (above, bound, resident) = {
            let core = lock(&s.core);
            let all = core.budget.resident() + core.common;
            (core.above_bound(), core.root_bound.unwrap_or(0), all)
        };
        if above == 0 {
            if self.above.take().is_some_and(|a| a.1) {
                tracing::info!(tier = %s.params.name, "the root is within its bound again");
            }
            return;
        }
        let now = s.clock.now();
        let (since, told) = *self.above.get_or_insert((now, false));
        if !told && now.since(since) >= ABOVE_FOR {
            self.above = Some((since, true));
            tracing::error!(
                tier = %s.params.name, root = %s.params.root.display(), above_bytes = above, bound_bytes = bound,
                resident_bytes = resident,
                "more lies below the root than its bound allows, and it does not go: blocks are pinned, files cannot be \
                 removed or are not ours; `kvweir inspect` tells which. Nothing is stored until it fits"
            );
        }
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
        for (&member, (_, f)) in &mut self.followers {
            let mut note =
                |reading: u32, step| steps.push((member << READING_BITS | reading & READINGS, step));
            if let Err(error) = f.read(&*s.disk, &s.params.root, &mut self.readings, &mut note) {
                tracing::debug!(%error, "another member's journal cannot be read now");
            }
        }
        if steps
            .iter()
            .any(|s| matches!(s.1, Step::Removed(_) | Step::Whole))
        {
            self.emptied.soon();
        }
        for part in steps.chunk_by(|a, b| (a.1 == Step::Whole) == (b.1 == Step::Whole)) {
            for part in part.chunks(256) {
                let mut core = lock(&s.core);
                part.iter().for_each(|&(owner, step)| core.follow(owner, step));
            }
            for (owner, _) in part.iter().filter(|p| p.1 == Step::Whole) {
                forget_untold(s, *owner);
            }
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
        let mark = s.journal.get().map(journal::Journal::mark);
        // what is being taken over is ours in the account and not yet in the ledger
        let adopting = self.adopting.is_some();
        // who cleans up takes old empty files: our lock would look free to others, and we dead
        let unnamed = self.member.lock.stat().is_ok_and(|st| st.links == 0);
        let mut lock_again = None;
        let done = self.member.change(|p| -> io::Result<()> {
            lost = p.member(number).is_none_or(|e| e.incarnation != incarnation);
            if lost {
                return Ok(());
            }
            if unnamed {
                lock_again = ledger.take_member(number, None)?;
            }
            for (n, e) in p.used().filter(|&(n, _)| n != number) {
                if ledger.is_live(n, Some(e))? {
                    living.push((n, e.incarnation));
                } else {
                    dead.push(Dead::of(n, e, seed));
                }
            }
            if let Some(mark) = mark {
                p.set_mark(number, mark);
            }
            other_walks = p.head.walker.is_some_and(|w| w != number);
            if !other_walks && !adopting {
                p.head.walker = None;
                let live: Vec<u32> = living.iter().map(|l| l.0).collect();
                share = settle(p, number, &live, &mut lock(&s.core));
            }
            Ok(())
        })?;
        if let Some(lock) = lock_again {
            self.member.lock = lock;
        }
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
        if self.unusable.contains(&id) || self.adopting.is_some() {
            return;
        }
        let since = *self.dead.entry(id).or_insert(now);
        let wanted = d.ours || lock(&self.shared.core).starved;
        if !wanted || now.since(since) < DEAD_FOR {
            return;
        }
        self.take_over(d);
    }

    /// Opens extents that came with what was loaded or taken over.
    pub(super) fn claim_extents(&self) {
        if let Some(pack) = &self.shared.pack {
            self.shared.claim_extents(pack);
        }
    }

    /// Tries again to open extents that could not be read.
    fn claim_what_waits(&mut self) {
        let Some(pack) = self
            .shared
            .pack
            .as_ref()
            .filter(|_| !lock(&self.shared.core).unclaimed.is_empty())
        else {
            self.claim_rest = (0, 0);
            return;
        };
        let (rest, rested) = &mut self.claim_rest;
        if *rest > 0 {
            *rest -= 1;
            return;
        }
        self.shared.claim_extents(pack);
        *rested = (*rested * 2 + 1).min(CLAIM_REST);
        *rest = *rested;
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
                s.core.shrink(freed);
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
                s.core.shrink(freed);
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
        let mark = self.shared.journal.get().and_then(journal::Journal::mark);
        self.member.leave(held, mark);
    }
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
    let left_by_dead = total(p.used().filter(|&(n, _)| !alive(n)).map(|(_, e)| e.lease));
    let members = live.len() as u64 + 1;
    let fair = p
        .head
        .bound
        .saturating_sub(p.head.common.saturating_add(left_by_dead))
        / members;
    let others: u64 = p.leased().saturating_sub(mine.lease);
    let most = p.head.bound.saturating_sub(p.head.common.saturating_add(others));
    let poor = p.used().filter(|&(n, e)| n != me && alive(n) && e.lease < fair);
    let wants = total(poor.map(|(_, e)| e.want));
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
    core.starved = pressure > 0 && use_ < fair.saturating_add(left_by_dead);
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

/// The sum of numbers that a ledger tells, whatever they are.
fn total(bytes: impl Iterator<Item = u64>) -> u64 {
    bytes.fold(0, u64::saturating_add)
}

/// Forgets the blocks of a member that its journal did not tell in the reading of `owner`.
fn forget_untold(s: &Shared, owner: u32) {
    let mut from = 0u32;
    loop {
        let mut core = lock(&s.core);
        let end = core.index.end();
        for id in from..end.min(from.saturating_add(LOOKED_AT_ONCE)) {
            let is_peer = core.index.state(id) == State::Peer;
            let told = core.index.owner(id);
            if is_peer && told != owner && told >> READING_BITS == owner >> READING_BITS {
                core.forget_peer(id);
            }
        }
        from = from.saturating_add(LOOKED_AT_ONCE);
        if from >= end {
            return;
        }
    }
}

impl Core {
    /// What another live member of our namespace did; `owner` tells which, and in which reading.
    fn follow(&mut self, owner: u32, step: Step) {
        match step {
            Step::Stored {
                fp,
                leaf,
                fan,
                trailer,
                cost,
            } => {
                // what another member packs is its own to read
                if leaf == Leaf::Extent {
                    return;
                }
                let known = self.index.find(fp);
                if known.is_some_and(|id| self.index.state(id) != State::Peer) {
                    return;
                }
                let shelf = self.index.shelf_id(Shelf { namespace: 0, leaf });
                let bytes = u64::from(cost) * 512;
                let id =
                    known.or_else(|| shelf.and_then(|sh| self.index.insert(fp, sh, fan, State::Peer, bytes)));
                if let Some(id) = id {
                    self.index.set_has_trailer(id, trailer);
                    self.index.set_owner(id, owner);
                }
            }
            Step::Removed(fp) => {
                // another member may have stored it since
                let of = |c: &Self, id| c.index.owner(id) >> READING_BITS == owner >> READING_BITS;
                if let Some(id) = self.index.find(fp).filter(|&id| of(self, id)) {
                    self.forget_peer(id);
                }
            }
            Step::Whole => {}
        }
    }
}
