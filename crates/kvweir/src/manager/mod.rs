//! The tiering manager: what an inference scheduler calls. It looks blocks up in the primary tier and then in the
//! secondary tiers in order, cascades what was stored to all of them through a back-pressure gate each, and promotes
//! what only they hold, one batched load per tier and request at the end of a step. It has no threads and does no
//! I/O of its own; every call but [`Manager::drain`], [`Manager::reset`] and [`Manager::shutdown`] returns at once
//! (I8). Loads are never gated; a refused store loses nothing (I9).
//!
//! The calls of a step, in order: [`lookup`](Manager::lookup) for the keys of waiting requests,
//! [`prepare_load`](Manager::prepare_load) for those that hit, [`prepare_store`](Manager::prepare_store) for new
//! blocks, [`on_request_finished`](Manager::on_request_finished), [`on_schedule_end`](Manager::on_schedule_end);
//! then, as the accelerator's copies end, [`complete_store`](Manager::complete_store) and
//! [`complete_load`](Manager::complete_load).

mod cascade;
mod external;
mod job;
mod life;
mod lookup;
mod plan;
mod prefix;
mod promote;
mod request;
mod sight;
mod stage;
mod stats;
#[cfg(test)]
mod tests;

use std::{collections::HashMap, sync::Arc, time::Duration};

use foldhash::fast::FixedState;

use self::{
    job::{Job, Pending},
    request::Request,
    stage::{Pass, Stage},
};
pub use self::{
    prefix::Groups,
    request::{LoadFilter, NewRequest},
    stage::PlanSettings,
    stats::{JobTimes, ManagerStats, TierTraffic},
};
use crate::{
    block::Key,
    clock::{Clock, Instant, SystemClock},
    error::Result,
    events::Event,
    io::region::SlotId,
    metrics::{TierStats, distinct},
    pressure::{Gate, GateStats},
    primary::{Prepared, Primary, SlotState},
    tier::{Direction, JobId, Lookup, Report, RequestId, Tier},
};

/// How long a request waits for a tier that is finding out whether it has a block.
const FINDS_OUT: Duration = Duration::from_secs(5);

/// Where a block stands for a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Found {
    /// In the primary tier, readable at least until the end of the step.
    Hit,
    /// On its way into the primary tier: ask again at the next step.
    HitPending,
    /// A tier is finding out: ask again at the next step.
    Retry,
    /// Nowhere, or there is no room to bring it up: compute it.
    Miss,
}

/// A secondary tier with its gate and what waits to be promoted from it.
#[derive(Debug)]
struct Secondary {
    tier: Box<dyn Tier>,
    gate: Option<Gate>,
    pending: Vec<Pending>,
    hits: u64,
    traffic: TierTraffic,
    /// Of load jobs that ended, and whether they ended well.
    latencies: Vec<(Duration, bool)>,
}

/// Orchestrates the tiers of one engine.
///
/// ```
/// use kvweir::{
///     Key,
///     evict::PolicyKind, io::Region,
///     manager::{Found, Manager, NewRequest},
///     primary::Primary,
///     tier::RequestId,
/// };
/// # fn main() -> kvweir::Result<()> {
/// let primary = Primary::new(Region::new(8, 4096, false)?, PolicyKind::Lru, false);
/// let mut manager = Manager::new(primary);
/// let (req, key) = (RequestId(1), Key::new(b"block")?);
/// manager.on_new_request(req, NewRequest::default());
/// assert_eq!(manager.lookup(&key, req), Found::Miss);
/// let room = manager.prepare_store(&[key.clone()], req).expect("there is room");
/// manager.primary().region().write(room.to_store[0].1)?.fill(7);
/// manager.complete_store(&[key.clone()], req, true);
/// assert_eq!(manager.lookup(&key, req), Found::Hit);
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct Manager {
    primary: Primary,
    tiers: Vec<Secondary>,
    jobs: HashMap<JobId, Job, FixedState>,
    requests: HashMap<RequestId, Request, FixedState>,
    /// When a tier began to find out.
    waits: HashMap<(RequestId, Key, usize), Instant, FixedState>,
    next_job: u64,
    polled: bool,
    held: bool,
    /// What a tier has answered a request that was then asked for its prefix.
    answered: Option<(RequestId, Key, usize, Lookup)>,
    clock: Arc<dyn Clock>,
    stats: ManagerStats,
    reports: Vec<Report>,
    parked: usize,
    job_times: JobTimes,
    groups: Groups,
    plan: PlanSettings,
    step: u64,
    pass: Option<Pass>,
    /// A request waits for room in this step: those behind it wait too.
    queue_stands: bool,
    looked_for_silent: Option<Instant>,
    /// Promoted block by block, a request has found no room.
    ran_out: bool,
    stored_this_step: u64,
    /// Most blocks that a recent step made room for.
    stores_per_step: u64,
}

impl Manager {
    /// A manager of `primary` alone.
    pub fn new(primary: Primary) -> Self {
        Self {
            primary,
            tiers: Vec::new(),
            jobs: HashMap::default(),
            requests: HashMap::default(),
            waits: HashMap::default(),
            next_job: 0,
            polled: false,
            held: false,
            answered: None,
            clock: SystemClock::shared(),
            stats: ManagerStats::default(),
            reports: Vec::new(),
            parked: 0,
            job_times: JobTimes::default(),
            groups: Groups::default(),
            plan: PlanSettings::default(),
            step: 0,
            pass: None,
            queue_stands: false,
            looked_for_silent: None,
            ran_out: false,
            stored_this_step: 0,
            stores_per_step: 0,
        }
    }

    /// Uses another clock than the system's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// For an engine with these KV-cache groups.
    #[must_use]
    pub fn groups(mut self, groups: Groups) -> Self {
        self.groups = groups;
        self
    }

    /// How promotions of requests whose prefix is known are planned.
    ///
    /// # Errors
    /// As [`PlanSettings::validate`].
    pub fn planning(mut self, settings: PlanSettings) -> Result<Self> {
        settings.validate()?;
        self.plan = settings;
        Ok(self)
    }

    /// Adds a tier below those added before, stores to it passing `gate` if there is one. A detector of one's own comes
    /// with the gate ([`Gate::with_detector`]), another for each tier if need be.
    pub fn add_tier(&mut self, tier: Box<dyn Tier>, gate: Option<Gate>) {
        self.tiers.push(Secondary {
            tier,
            gate,
            pending: Vec::new(),
            hits: 0,
            traffic: TierTraffic::default(),
            latencies: Vec::new(),
        });
    }

    /// The primary tier.
    pub fn primary(&self) -> &Primary {
        &self.primary
    }

    /// References `keys`, each answered [`Found::Hit`] in this step, for a copy to the accelerator.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when one is not ready; then none is referenced.
    pub fn prepare_load(&mut self, keys: &[Key]) -> Result<Vec<SlotId>> {
        self.primary.prepare_load(keys)
    }

    /// As [`prepare_load`](Self::prepare_load), for `req`: its blocks count as used, and nothing else is held for it.
    /// `ends`: where each block ends in the request, in any unit that all groups share; 0: behind the one before.
    ///
    /// # Errors
    /// As there.
    pub fn prepare_load_of(&mut self, keys: &[Key], ends: &[u64], req: RequestId) -> Result<Vec<SlotId>> {
        let slots = self.primary.prepare_load(keys)?;
        self.let_go(req);
        self.note_used(keys.iter().zip(ends.iter().copied()), req);
        Ok(slots)
    }

    /// As [`prepare_store`](Self::prepare_store), for `req`, which runs: nothing is held for it any more, and of all that
    /// it loaded and stored what ends last goes first, whatever the group.
    pub fn prepare_store_of(&mut self, keys: &[Key], ends: &[u64], req: RequestId) -> Option<Prepared> {
        self.let_go(req);
        let prepared = self.prepare_store(keys, req)?;
        if !prepared.to_store.is_empty() {
            // both in the order of `keys`
            let mut given = keys.iter().zip(ends.iter().copied());
            let stored = prepared.to_store.iter();
            let new: Vec<(&Key, u64)> = stored
                .filter_map(|(key, _)| given.find(|(k, _)| *k == key))
                .collect();
            self.note_used(new.into_iter(), req);
        }
        Some(prepared)
    }

    fn note_used<'k>(&mut self, new: impl Iterator<Item = (&'k Key, u64)>, req: RequestId) {
        let r = self.requests.entry(req).or_default();
        let mut last = r.used.last().map_or(0, |&(end, _)| end);
        for (key, end) in new {
            last = if end == 0 { last + 1 } else { end };
            r.used.push((last, key.clone()));
        }
        r.used.sort_by_key(|&(end, _)| end);
        r.used.dedup();
        let keys: Vec<Key> = r.used.iter().map(|(_, key)| key.clone()).collect();
        self.primary.touch(&keys, req);
    }

    /// The copy of `keys` to the accelerator is over.
    pub fn complete_load(&mut self, keys: &[Key]) {
        self.primary.complete_load(keys);
    }

    /// Marks `keys` (in prefix order) as used by `req`, in all tiers.
    pub fn touch(&mut self, keys: &[Key], req: RequestId) {
        self.primary.touch(keys, req);
        self.tiers.iter_mut().for_each(|s| s.tier.touch(keys, req));
    }

    /// Makes room in the primary tier for those of `keys` (in prefix order) that are not there. `None`: no room now. Of
    /// more blocks than the primary has slots, which never fit together, the first get one.
    pub fn prepare_store(&mut self, keys: &[Key], req: RequestId) -> Option<Prepared> {
        if self.held {
            // a copy from before the reset may still name these keys
            return None;
        }
        // jobs that ended since may have freed slots
        self.poll();
        let prepared = match self.primary.prepare_store(keys, req) {
            Some(prepared) => prepared,
            None => self.prepare_some(keys, req)?,
        };
        self.stored_this_step += prepared.to_store.len() as u64;
        if let Some(r) = self.requests.get_mut(&req)
            && !prepared.to_store.is_empty()
        {
            r.pending_stores += 1;
        }
        self.cascade_present(keys, &prepared, req);
        Some(prepared)
    }

    /// Room for the first that are missing of more blocks than the primary has slots.
    fn prepare_some(&mut self, keys: &[Key], req: RequestId) -> Option<Prepared> {
        let stats = self.primary.stats();
        if keys.len() as u64 <= stats.slots {
            return None;
        }
        let mut most = stats
            .slots
            .saturating_sub(stats.referenced + stats.writing + stats.held) as usize;
        while most > 0 {
            let mut left = most;
            let some: Vec<Key> = keys
                .iter()
                .filter(|key| {
                    let is_missing = self.primary.state(key) == SlotState::Absent;
                    let takes = !is_missing || left > 0;
                    left -= usize::from(is_missing && takes);
                    takes
                })
                .cloned()
                .collect();
            if let some @ Some(_) = self.primary.prepare_store(&some, req) {
                return some;
            }
            most /= 2;
        }
        None
    }

    /// The copy of `keys` from the accelerator is over: they are readable, and go down to every secondary tier whose
    /// gate admits them; or, without `success`, their slots are free again.
    pub fn complete_store(&mut self, keys: &[Key], req: RequestId, success: bool) {
        self.primary.complete_store_of(keys, req, success);
        if success {
            for i in 0..self.tiers.len() {
                self.cascade(i, keys, req);
            }
        }
        if let Some(r) = self.requests.get_mut(&req) {
            r.pending_stores = r.pending_stores.saturating_sub(1);
        }
        self.finish_if_done(req);
    }

    /// As [`complete_store`](Self::complete_store), for an engine that names the keys in no order: they go down in the
    /// order in which [`prepare_store`](Self::prepare_store) got them.
    pub fn complete_store_in_any_order(&mut self, mut keys: Vec<Key>, req: RequestId, success: bool) {
        self.primary.in_turn(&mut keys);
        self.complete_store(&keys, req, success);
    }

    /// The step's last call: takes in the jobs that ended, submits the step's promotions, retries parked cascades.
    pub fn on_schedule_end(&mut self) {
        self.poll_once();
        self.polled = false;
        self.flush_promotions();
        self.flush_parked();
        self.primary.end_step();
        self.step += 1;
        self.queue_stands = false;
        self.stores_per_step = self.stored_this_step.max(self.stores_per_step / 2);
        self.stored_this_step = 0;
    }

    fn poll_once(&mut self) {
        if !std::mem::replace(&mut self.polled, true) {
            self.poll();
        }
    }

    /// Takes in the jobs that ended. The calls of a step do this themselves; it is for use between steps.
    pub fn poll(&mut self) {
        (0..self.tiers.len()).for_each(|i| self.poll_tier(i));
    }

    fn take_report(&mut self, tier: usize, report: &Report) {
        let is_its = |job: &Job| job.tier == tier && job.direction == report.direction;
        let job = match self.jobs.get(&report.id) {
            Some(job) if is_its(job) => self.jobs.remove(&report.id),
            _ => None,
        };
        let Some(job) = job else {
            tracing::error!(
                job = report.id.0,
                tier,
                "a report of no job of this tier is ignored"
            );
            return;
        };
        if report.blocks.len() != job.claims.len() {
            tracing::error!(
                job = report.id.0,
                tier,
                blocks = job.claims.len(),
                outcomes = report.blocks.len(),
                "a report has not one outcome per block; blocks without one have failed"
            );
        }
        match job.direction {
            Direction::Load => self.end_promotion(&job, report),
            Direction::Store => self.end_cascade(job, report),
        }
    }

    /// Whether jobs run, promotions wait, or a tier has work left.
    pub fn has_pending_work(&self) -> bool {
        !self.jobs.is_empty()
            || self.parked > 0
            || self
                .tiers
                .iter()
                .any(|s| !s.pending.is_empty() || s.tier.has_pending_work())
    }

    /// Appends the residency changes of all tiers since the last call.
    pub fn take_events(&mut self, events: &mut Vec<Event>) {
        self.primary.take_events(events);
        self.tiers.iter_mut().for_each(|s| s.tier.take_events(events));
    }

    /// Appends the residency changes of the primary tier alone since the last call.
    pub fn take_primary_events(&mut self, events: &mut Vec<Event>) {
        self.primary.take_events(events);
    }

    /// Takes the blocks that were to come into the primary tier and did not; see [`Primary::take_lost`].
    pub fn take_lost(&mut self) -> Vec<Key> {
        self.primary.take_lost()
    }

    /// Takes in the jobs of one tier that ended.
    pub fn poll_tier(&mut self, tier: usize) {
        let mut reports = std::mem::take(&mut self.reports);
        if let Some(s) = self.tiers.get_mut(tier) {
            s.tier.poll(&mut reports);
        }
        for report in reports.drain(..) {
            self.take_report(tier, &report);
        }
        self.reports = reports;
    }

    /// Whether the jobs that ended were taken in during this step; `is` makes it so, or not so.
    pub fn set_polled(&mut self, is: bool) -> bool {
        std::mem::replace(&mut self.polled, is)
    }

    /// Waits until no tier moves bytes; queued work may be cancelled. Everything is then accounted for.
    pub fn drain(&mut self) {
        self.tiers.iter_mut().for_each(|s| s.tier.drain());
        self.poll();
        // what was cancelled here could have been delivered
        self.requests.values_mut().for_each(Request::forgive);
    }

    /// Forgets what the primary tier holds (weights changed, the engine sleeps): drains, drops queued promotions,
    /// resets detectors; secondary tiers keep their data. The engine has ended its own copies. No promotion begins
    /// until [`on_reset_flushed`](Self::on_reset_flushed).
    pub fn reset(&mut self) {
        // reports of hung jobs may still be due: they name slots from before the reset, and change nothing then
        self.drain();
        self.tiers.iter_mut().for_each(|s| s.pending.clear());
        self.parked = 0;
        for r in self.requests.values_mut() {
            r.holds.clear();
            r.stage = Stage::Open;
        }
        let finished: Vec<RequestId> = self
            .requests
            .iter_mut()
            .filter_map(|(id, r)| {
                r.pending_stores = 0;
                r.parked.clear();
                r.finished.is_some().then_some(*id)
            })
            .collect();
        finished.into_iter().for_each(|id| self.finish_if_done(id));
        self.primary.reset();
        self.tiers
            .iter_mut()
            .filter_map(|s| s.gate.as_mut())
            .for_each(Gate::reset);
        self.polled = false;
        self.held = true;
    }

    /// The engine's late copies from before the reset are over: promotions may begin again.
    pub fn on_reset_flushed(&mut self) {
        self.held = false;
    }

    /// Shuts all tiers down: what runs ends, the rest is cancelled and accounted for.
    pub fn shutdown(&mut self) {
        for i in 0..self.tiers.len() {
            self.drop_pending(i, |_| true);
        }
        self.tiers.iter_mut().for_each(|s| s.tier.shutdown());
        self.poll();
        // jobs whose I/O hangs are not waited for; their slots stay claimed by the guards they hold (I5)
        for (_, job) in std::mem::take(&mut self.jobs) {
            match job.direction {
                Direction::Load => job.claims.iter().for_each(|&c| {
                    self.primary.complete(c, false);
                }),
                Direction::Store => self.primary.release(&job.claims),
            }
            let gate = self.tiers.get_mut(job.tier).and_then(|s| s.gate.as_mut());
            if let (Some(a), Some(gate)) = (job.admission, gate) {
                gate.cancel(a);
            }
        }
    }

    /// Shuts the secondary tiers down and removes them; the primary tier stays.
    pub fn remove_tiers(&mut self) {
        for i in 0..self.tiers.len() {
            self.drop_pending(i, |_| true);
        }
        self.shutdown();
        self.tiers.clear();
    }

    /// Counters of the manager.
    pub fn stats(&self) -> &ManagerStats {
        &self.stats
    }

    /// Bytes of stores that every gate would still admit; `u64::MAX` without gates.
    pub fn inflight_room(&self) -> u64 {
        let gates = self.tiers.iter().filter_map(|s| s.gate.as_ref());
        gates
            .map(|g| g.max_inflight_bytes().saturating_sub(g.in_flight().bytes))
            .min()
            .unwrap_or(u64::MAX)
    }

    /// Takes the times of the jobs that ended since the last call.
    pub fn take_job_times(&mut self) -> JobTimes {
        std::mem::take(&mut self.job_times)
    }

    /// Numbers of each secondary tier and its gate, in order; tiers of one name are numbered from the second on.
    pub fn tier_stats(&self) -> Vec<(String, TierStats, Option<GateStats>)> {
        let names = distinct(self.tiers.iter().map(|s| s.tier.name()));
        names
            .into_iter()
            .zip(&self.tiers)
            .map(|(name, s)| (name, s.tier.stats(), s.gate.as_ref().map(Gate::stats)))
            .collect()
    }

    /// What went between the manager and each secondary tier, in order.
    pub fn tier_traffic(&self) -> Vec<TierTraffic> {
        self.tiers.iter().map(|s| s.traffic).collect()
    }

    /// Takes, of a tier, from submission to report, the times of the load jobs that ended since the last call, and
    /// whether all their blocks came.
    pub fn take_load_latencies(&mut self, tier: usize) -> Vec<(Duration, bool)> {
        self.tiers
            .get_mut(tier)
            .map(|s| std::mem::take(&mut s.latencies))
            .unwrap_or_default()
    }

    /// The tier that brought up the block of `key` for `req`; none where the primary had it already.
    pub fn origin(&self, key: &Key, req: RequestId) -> Option<usize> {
        self.primary.origin(key, req)
    }

    /// Blocks that lookups found in each secondary tier, in order.
    pub fn tier_hits(&self) -> Vec<u64> {
        self.tiers.iter().map(|s| s.hits).collect()
    }
}
