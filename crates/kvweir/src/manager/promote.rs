//! Promotion: a block found in a secondary tier gets a primary slot at once, so that others see it coming; the loads
//! of a step go out together, one job per tier and request.

use super::{
    Manager,
    job::{Job, Pending},
};
use crate::{
    block::Key,
    primary::Claim,
    tier::{BlockOutcome, Direction, JobId, LoadBlock, LoadJob, Report, RequestId},
};

/// Latencies of load jobs kept until they are taken.
const MAX_LATENCIES: usize = 4096;

impl Manager {
    /// Queues `key` to be brought up from tier `i`. `false`: the primary tier has no room.
    pub(super) fn promote(&mut self, i: usize, key: &Key, req: RequestId) -> bool {
        let Some(claim) = self.primary.prepare_promotion(key, req) else {
            self.stats.promotions_without_room += 1;
            self.ran_out = true;
            return false;
        };
        // requests that were not announced are remembered too, since failures are remembered per request
        self.requests.entry(req).or_default();
        self.queue_promotion(i, key.clone(), claim, req)
    }

    /// Queues the block of a slot that was taken for it. `false`: an I/O of an earlier life still has the slot.
    pub(super) fn queue_promotion(&mut self, i: usize, key: Key, claim: Claim, req: RequestId) -> bool {
        let Ok(slot) = self.primary.region().write(claim.slot()) else {
            self.primary.complete(claim, false);
            self.stats.promotions_without_room += 1;
            return false;
        };
        let Some(s) = self.tiers.get_mut(i) else {
            return false;
        };
        s.hits += 1;
        self.stats.queued_promotions += 1;
        self.primary.brought(claim, i, req);
        // requests are asked one after the other, so the last one is nearly always it
        match s.pending.iter_mut().rev().find(|p| p.req == req) {
            Some(p) => p.blocks.push((key, claim, slot)),
            None => s.pending.push(Pending {
                req,
                blocks: vec![(key, claim, slot)],
            }),
        }
        true
    }

    /// Submits what the step queued.
    pub(super) fn flush_promotions(&mut self) {
        for i in 0..self.tiers.len() {
            let pending = self
                .tiers
                .get_mut(i)
                .map(|s| std::mem::take(&mut s.pending))
                .unwrap_or_default();
            for Pending { req, blocks } in pending {
                let id = JobId(self.next_job);
                self.next_job += 1;
                let mut keys = Vec::with_capacity(blocks.len());
                let mut claims = Vec::with_capacity(blocks.len());
                let mut load = Vec::with_capacity(blocks.len());
                for (key, claim, slot) in blocks {
                    keys.push(key.clone());
                    claims.push(claim);
                    load.push(LoadBlock { key, slot });
                }
                let submitted = self.clock.now();
                self.jobs.insert(
                    id,
                    Job {
                        tier: i,
                        direction: Direction::Load,
                        req,
                        keys,
                        claims,
                        admission: None,
                        submitted,
                    },
                );
                if let Some(s) = self.tiers.get_mut(i) {
                    s.traffic.active_loads += 1;
                    s.traffic.loading_blocks += load.len() as u64;
                    s.tier.submit_load(LoadJob {
                        id,
                        req,
                        blocks: load,
                    });
                }
            }
        }
    }

    /// Drops queued promotions of the requests that `of` selects, and frees their slots.
    pub(super) fn drop_pending(&mut self, i: usize, of: impl Fn(RequestId) -> bool) {
        let Some(s) = self.tiers.get_mut(i) else { return };
        let (dropped, kept) = std::mem::take(&mut s.pending)
            .into_iter()
            .partition(|p| of(p.req));
        s.pending = kept;
        for p in Vec::<Pending>::from_iter(dropped) {
            for (_, claim, slot) in p.blocks {
                drop(slot);
                self.primary.complete(claim, false);
            }
        }
    }

    /// A load ended: blocks that were found good are readable, the others' slots are free, and this request does not
    /// ask the tier for them again. A slot whose guard the tier still holds may yet change, whatever the report says.
    pub(super) fn end_promotion(&mut self, job: &Job, report: &Report) {
        let took = self.clock.now().since(job.submitted);
        self.job_times.push(Direction::Load, took);
        if let Some(s) = self.tiers.get_mut(job.tier) {
            s.traffic.end_load(job.claims.len() as u64, report);
            if s.latencies.len() < MAX_LATENCIES {
                s.latencies.push((took, report.all_ok()));
            }
        }
        let mut outcomes = report.blocks.iter();
        for (key, &claim) in job.keys.iter().zip(&job.claims) {
            let loaded = matches!(outcomes.next(), Some(BlockOutcome::Loaded(_)));
            let ok = self.primary.complete(claim, loaded);
            self.stats.promoted_blocks += u64::from(ok);
            self.stats.failed_promotions += u64::from(!ok);
            if !ok && let Some(r) = self.requests.get_mut(&job.req) {
                r.could_not_load(key, job.tier);
            }
        }
    }
}
