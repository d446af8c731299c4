//! Cascade: what the primary tier has received goes down to every secondary tier, each behind its own gate. Slots
//! are referenced until the tier reports; a refused store is only counted, since the primary still holds the block.

use super::{Manager, job::Job, request::bit};
use crate::{
    block::Key,
    pressure::{DeviceSample, Gate},
    primary::{Prepared, SlotState},
    tier::{Direction, JobId, Report, RequestId, StoreBlock, StoreJob},
};

/// Most bytes in one job, so that a long prompt is admitted, reported and shed in parts.
const MAX_JOB_BYTES: u64 = 64 << 20;

impl Manager {
    /// Sends `keys`, which are readable, down to tier `i`.
    pub(super) fn cascade(&mut self, i: usize, keys: &[Key], req: RequestId) {
        let block = self.primary.region().block_len() as u64;
        let limit = self
            .tiers
            .get(i)
            .and_then(|s| s.gate.as_ref())
            .map_or(u64::MAX, Gate::max_inflight_bytes);
        let per_job = usize::try_from(MAX_JOB_BYTES.min(limit) / block)
            .unwrap_or(1)
            .max(1);
        for part in keys.chunks(per_job) {
            self.cascade_part(i, part, req);
        }
    }

    fn cascade_part(&mut self, i: usize, keys: &[Key], req: RequestId) {
        let now = self.clock.now();
        let bytes = (keys.len() * self.primary.region().block_len()) as u64;
        let Some(s) = self.tiers.get_mut(i) else { return };
        let admission = match &mut s.gate {
            None => None,
            Some(gate) => {
                let admitted = gate.try_admit(now, keys.len() as u64, bytes);
                log_transition(s.tier.name(), gate);
                match admitted {
                    Ok(a) => Some(a),
                    Err(_) => {
                        self.stats.refused_cascades += 1;
                        return;
                    }
                }
            }
        };
        let claims = self.primary.reference(keys).unwrap_or_default();
        let region = self.primary.region();
        let blocks: Vec<StoreBlock> = keys
            .iter()
            .zip(&claims)
            .filter_map(|(key, claim)| {
                let slot = region.read(claim.slot()).ok()?;
                Some(StoreBlock {
                    key: key.clone(),
                    slot,
                })
            })
            .collect();
        if blocks.len() < keys.len() {
            // gone meanwhile, or an I/O of an earlier life still writes the slot: nothing to send
            drop(blocks);
            self.primary.release(&claims);
            if let (Some(a), Some(gate)) = (admission, self.tiers.get_mut(i).and_then(|s| s.gate.as_mut())) {
                gate.cancel(a);
            }
            return;
        }
        let id = JobId(self.next_job);
        self.next_job += 1;
        let job = Job {
            tier: i,
            direction: Direction::Store,
            req,
            keys: Vec::new(),
            claims,
            admission,
            submitted: now,
        };
        self.jobs.insert(id, job);
        if let Some(s) = self.tiers.get_mut(i) {
            s.traffic.active_stores += 1;
            s.traffic.storing_blocks += blocks.len() as u64;
            s.tier.submit_store(StoreJob { id, req, blocks });
        }
    }

    /// A store ended: its slots are released, its gate learns what the device took.
    pub(super) fn end_cascade(&mut self, job: Job, report: &Report) {
        self.primary.release(&job.claims);
        let failed = report.blocks.iter().filter(|b| !b.is_ok()).count();
        self.stats.failed_cascades += failed as u64;
        let now = self.clock.now();
        self.job_times.push(Direction::Store, now.since(job.submitted));
        if let Some(s) = self.tiers.get_mut(job.tier) {
            s.traffic.end_store(job.claims.len() as u64, report);
        }
        if let (Some(a), Some(s)) = (job.admission, self.tiers.get_mut(job.tier))
            && let Some(gate) = &mut s.gate
        {
            let failed = report.failed_on_device();
            if !failed && report.bytes == 0 {
                // the device wrote nothing (present already, no room, shut down): nothing to learn about it
                gate.cancel(a);
            } else {
                let sample = DeviceSample {
                    bytes: report.bytes,
                    device_time: report.device_time,
                };
                gate.complete(now, a, sample, !failed);
            }
            log_transition(s.tier.name(), gate);
        }
    }

    /// For tiers that want every block of the request: sends those of `keys` that the primary held already. What is
    /// still being written is parked until it is readable.
    pub(super) fn cascade_present(&mut self, keys: &[Key], prepared: &Prepared, req: RequestId) {
        let wanting = self.requests.get(&req).map_or(0, |r| r.every_block);
        if wanting == 0 {
            return;
        }
        let new: std::collections::HashSet<&Key> = prepared.to_store.iter().map(|(k, _)| k).collect();
        let present = keys.iter().filter(|k| !new.contains(k)).cloned().collect();
        self.cascade_or_park(present, req, wanting);
    }

    fn cascade_or_park(&mut self, keys: Vec<Key>, req: RequestId, wanting: u64) {
        let mut ready = Vec::new();
        for key in keys {
            match self.primary.state(&key) {
                SlotState::Ready => ready.push(key),
                SlotState::Writing => {
                    if let Some(r) = self.requests.get_mut(&req) {
                        r.parked.push(key);
                        self.parked += 1;
                    }
                }
                SlotState::Absent => {}
            }
        }
        if !ready.is_empty() {
            for i in (0..self.tiers.len()).filter(|&i| wanting & bit(i) != 0) {
                self.cascade(i, &ready, req);
            }
        }
    }

    /// Tries parked blocks again.
    pub(super) fn flush_parked(&mut self) {
        if self.parked == 0 {
            return;
        }
        let parked: Vec<(RequestId, u64, Vec<Key>)> = self
            .requests
            .iter_mut()
            .filter(|(_, r)| !r.parked.is_empty())
            .map(|(id, r)| (*id, r.every_block, std::mem::take(&mut r.parked)))
            .collect();
        self.parked = 0;
        for (req, wanting, keys) in parked {
            self.cascade_or_park(keys, req, wanting);
            self.finish_if_done(req);
        }
    }
}

fn log_transition(tier: &str, gate: &mut Gate) {
    if let Some(t) = gate.take_transition() {
        tracing::info!(tier, "{t}");
    }
}
