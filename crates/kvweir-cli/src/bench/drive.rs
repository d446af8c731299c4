//! Jobs through the real tier: a fixed number under way, each timed from submission to report.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use anyhow::{Context, Result};
use kvweir::{
    Key,
    clock::Instant,
    fs::FsTier,
    io::Region,
    sync::Bell,
    tier::{
        BlockOutcome, Direction, JobId, LoadBlock, LoadJob, Lookup, Report, RequestId, StoreBlock, StoreJob,
        Tier,
    },
};

use super::{
    content::{Content, scatter},
    device::Both,
    meter::{Meter, Phase},
};

/// Longest wait for the bell before the phase looks at its end.
const LOOK: Duration = Duration::from_millis(50);

/// Blocks that did not come back as they should.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Faults {
    /// Loaded blocks that were looked at.
    pub(super) checked: u64,
    /// Loaded blocks that held other bytes than were stored.
    pub(super) wrong: u64,
    /// Blocks that the tier reported failed.
    pub(super) failed: u64,
    /// Blocks that were evicted before they were asked for.
    pub(super) missed: u64,
}

/// The tier and who gives it work.
#[derive(Debug)]
pub(super) struct Driver<'a> {
    pub(super) tier: FsTier,
    pub(super) bell: Arc<Bell>,
    pub(super) source: &'a Region,
    pub(super) target: &'a Region,
    pub(super) content: &'a Content,
    /// Blocks of a job.
    pub(super) batch: u32,
    /// Seed of order and choices.
    pub(super) seed: u64,
    /// The number of the next store job.
    pub(super) next: u64,
    /// Jobs that were stored, oldest first; no more of them than surely fit the bound.
    pub(super) stored: VecDeque<u64>,
    /// How many those are.
    pub(super) keep: usize,
    pub(super) faults: Faults,
}

/// A job under way.
#[derive(Debug)]
struct Running {
    lane: u32,
    began: Instant,
    /// The store job whose blocks it moves.
    job: u64,
    keys: Vec<Key>,
}

impl Driver<'_> {
    /// Runs one phase: `loads` percent of the jobs load what was stored before, `depth` are under way at a time.
    pub(super) fn run(
        &mut self,
        depth: u32,
        loads: u64,
        phase: &Phase<'_>,
        tell: &dyn Fn(u64),
    ) -> Result<Both> {
        let (mut stores, mut loaded) = (Meter::new()?, Meter::new()?);
        let mut free: Vec<u32> = (0..depth).rev().collect();
        let mut running: Vec<(u64, Running)> = Vec::with_capacity(depth as usize);
        let mut reports = Vec::new();
        let mut begun = 0;
        loop {
            while phase.goes_on(begun)
                && let Some(lane) = free.pop()
            {
                let wants_load = scatter(begun, self.seed, 100) < loads && !self.stored.is_empty();
                let id = begun;
                begun += 1;
                tell(begun);
                let job = if wants_load {
                    self.load(id, lane, phase)?
                } else {
                    Some(self.store(id, lane, phase)?)
                };
                match job {
                    Some(job) => running.push((id, job)),
                    None => free.push(lane),
                }
            }
            if running.is_empty() {
                break;
            }
            let seen = self.bell.rings();
            self.tier.poll(&mut reports);
            if reports.is_empty() {
                self.bell.wait(seen, LOOK);
            }
            let now = phase.now();
            for report in reports.drain(..) {
                let at = running.iter().position(|(id, _)| *id == report.id.0);
                let (_, job) = running.swap_remove(at.context("a report of a job that nobody gave")?);
                let meter = match report.direction {
                    Direction::Store => &mut stores,
                    Direction::Load => &mut loaded,
                };
                free.push(job.lane);
                self.end(&report, &job, now, meter)?;
            }
        }
        Ok((stores, loaded, phase.spent()))
    }

    fn first_slot(&self, lane: u32) -> u32 {
        lane * self.batch
    }

    /// Numbers of the blocks of store job `job`.
    fn blocks(&self, job: u64) -> std::ops::Range<u64> {
        let batch = u64::from(self.batch);
        job * batch..(job + 1) * batch
    }

    fn store(&mut self, id: u64, lane: u32, phase: &Phase<'_>) -> Result<Running> {
        let job = self.next;
        self.next += 1;
        let mut keys = Vec::with_capacity(self.batch as usize);
        let mut blocks = Vec::with_capacity(self.batch as usize);
        for (n, slot) in self.blocks(job).zip(self.first_slot(lane)..) {
            self.content.stamp_all(n, &mut self.source.write(slot)?);
            let key = self.content.key(n)?;
            keys.push(key.clone());
            let slot = self.source.read(slot)?;
            blocks.push(StoreBlock { key, slot });
        }
        let began = phase.now();
        let (id, req) = (JobId(id), RequestId(id + 1));
        self.tier.submit_store(StoreJob { id, req, blocks });
        Ok(Running {
            lane,
            began,
            job,
            keys,
        })
    }

    /// None if nothing of the job is there any more.
    fn load(&mut self, id: u64, lane: u32, phase: &Phase<'_>) -> Result<Option<Running>> {
        let at = scatter(id, self.seed, self.stored.len() as u64) as usize;
        let job = *self.stored.get(at).context("a stored job")?;
        let all = self.blocks(job).map(|n| self.content.key(n));
        let mut keys = all.collect::<kvweir::Result<Vec<_>>>()?;
        let began = phase.now();
        let (id, req) = (JobId(id), RequestId(id + 1));
        let hits = keys
            .iter()
            .take_while(|k| self.tier.lookup(k, req) == Lookup::Hit)
            .count();
        self.faults.missed += (keys.len() - hits) as u64;
        keys.truncate(hits);
        if keys.is_empty() {
            self.tier.on_request_finished(req, &keys);
            return Ok(None);
        }
        let mut blocks = Vec::with_capacity(hits);
        for (key, slot) in keys.iter().zip(self.first_slot(lane)..) {
            let slot = self.target.write(slot)?;
            let key = key.clone();
            blocks.push(LoadBlock { key, slot });
        }
        self.tier.submit_load(LoadJob { id, req, blocks });
        Ok(Some(Running {
            lane,
            began,
            job,
            keys,
        }))
    }

    fn end(&mut self, report: &Report, job: &Running, now: Instant, meter: &mut Meter) -> Result<()> {
        let moved = report.blocks.iter().filter(|b| b.is_ok()).count() as u64;
        self.faults.failed += report.blocks.len() as u64 - moved;
        meter.add(now.since(job.began), moved * self.source.block_len() as u64);
        self.tier
            .on_request_finished(RequestId(report.id.0 + 1), &job.keys);
        if report.direction == Direction::Store {
            if report.all_ok() {
                self.stored.push_back(job.job);
            }
            while self.stored.len() > self.keep {
                self.stored.pop_front();
            }
            return Ok(());
        }
        let slots = self.first_slot(job.lane)..;
        for ((n, slot), outcome) in self.blocks(job.job).zip(slots).zip(&report.blocks) {
            if matches!(outcome, BlockOutcome::Loaded(_)) {
                self.faults.checked += 1;
                let good = self.content.is_good(n, &self.target.read(slot)?);
                self.faults.wrong += u64::from(!good);
            }
        }
        Ok(())
    }
}
