//! Promotion: a block found in a secondary tier gets a primary slot at once, so that others see it coming; the loads
//! of a step go out together, one job per tier and request.

use super::{Job, Manager};
use crate::{
    block::Key,
    io::SlotWrite,
    tier::{BlockOutcome, Direction, JobId, LoadBlock, LoadJob, Report, RequestId},
};

/// The blocks of one request that wait to be loaded from one tier.
#[derive(Debug)]
pub(super) struct Pending {
    req: RequestId,
    blocks: Vec<(Key, SlotWrite)>,
}

impl Manager {
    /// Queues `key` to be brought up from tier `i`. `false`: the primary tier has no room.
    pub(super) fn promote(&mut self, i: usize, key: &Key, req: RequestId) -> bool {
        let slot = self
            .primary
            .prepare_store(std::slice::from_ref(key), req)
            .and_then(|p| p.to_store.into_iter().next())
            .and_then(|(_, slot)| self.primary.region().write(slot).ok());
        let Some(slot) = slot else {
            self.primary.complete_store(std::slice::from_ref(key), false);
            self.stats.promotions_without_room += 1;
            return false;
        };
        let Some(s) = self.tiers.get_mut(i) else {
            return false;
        };
        s.hits += 1;
        self.stats.queued_promotions += 1;
        // requests are asked one after the other, so the last one is nearly always it
        match s.pending.iter_mut().rev().find(|p| p.req == req) {
            Some(p) => p.blocks.push((key.clone(), slot)),
            None => s.pending.push(Pending {
                req,
                blocks: vec![(key.clone(), slot)],
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
                let mut load = Vec::with_capacity(blocks.len());
                for (key, slot) in blocks {
                    keys.push(key.clone());
                    load.push(LoadBlock { key, slot });
                }
                let submitted = self.clock.now();
                self.jobs.insert(
                    id,
                    Job {
                        tier: i,
                        direction: Direction::Load,
                        keys,
                        admission: None,
                        submitted,
                    },
                );
                if let Some(s) = self.tiers.get_mut(i) {
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
            let keys: Vec<Key> = p.blocks.iter().map(|(k, _)| k.clone()).collect();
            drop(p);
            self.primary.complete_store(&keys, false);
        }
    }

    /// A load ended: blocks that were found good are readable, the others' slots are free.
    pub(super) fn end_promotion(&mut self, job: &Job, report: &Report) {
        debug_assert_eq!(job.keys.len(), report.blocks.len(), "one outcome per block");
        self.job_times
            .push(Direction::Load, self.clock.now().since(job.submitted));
        let mut outcomes = report.blocks.iter();
        for key in &job.keys {
            let ok = matches!(outcomes.next(), Some(BlockOutcome::Loaded(_)));
            self.stats.promoted_blocks += u64::from(ok);
            self.stats.failed_promotions += u64::from(!ok);
            self.primary.complete_store(std::slice::from_ref(key), ok);
        }
    }
}
