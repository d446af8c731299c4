//! What a tier asks of its manager on behalf of somebody elsewhere: another engine that wants blocks of this one. Such a
//! request begins, is looked up and finishes like any other, but the tier that brought it is not asked, nor told of it.

use super::{
    Manager,
    job::Job,
    request::{NewRequest, bit},
};
use crate::{
    block::Key,
    error::Result,
    tier::{Direction, JobId, RequestId, StoreBlock, StoreJob, StorePolicy},
};

impl Manager {
    /// As [`on_new_request`](Self::on_new_request), for a request that `tier` brings: to be ended by
    /// [`on_request_finished`](Self::on_request_finished).
    pub fn on_external_request(&mut self, req: RequestId, new: NewRequest, tier: usize) -> StorePolicy {
        self.begin(req, new, bit(tier))
    }

    /// Makes a job for `tier` to read `keys`, each of which was looked up and readable just now. No gate is asked. The
    /// tier reports it as it does jobs that it was submitted.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when one is not readable; then nothing is claimed.
    pub fn store_job_for(&mut self, keys: &[Key], req: RequestId, tier: usize) -> Result<StoreJob> {
        let claims = self.primary.reference(keys)?;
        let region = self.primary.region();
        let slots: Result<Vec<_>> = claims.iter().map(|c| region.read(c.slot())).collect();
        let slots = slots.inspect_err(|_| self.primary.release(&claims))?;
        let id = JobId(self.next_job);
        self.next_job += 1;
        let blocks: Vec<StoreBlock> = keys
            .iter()
            .cloned()
            .zip(slots)
            .map(|(key, slot)| StoreBlock { key, slot })
            .collect();
        if let Some(s) = self.tiers.get_mut(tier) {
            s.traffic.active_stores += 1;
            s.traffic.storing_blocks += blocks.len() as u64;
        }
        let job = Job {
            tier,
            direction: Direction::Store,
            req,
            keys: Vec::new(),
            claims,
            admission: None,
            submitted: self.clock.now(),
        };
        self.jobs.insert(id, job);
        Ok(StoreJob { id, req, blocks })
    }
}
