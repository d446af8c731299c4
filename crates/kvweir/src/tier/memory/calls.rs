//! The calls of the contract on a tier in memory.

use super::{Job, MemoryTier};
use crate::{
    block::Key,
    error::ErrorKind,
    events::{Event, Locality, Medium},
    metrics::TierStats,
    tier::{LoadJob, Lookup, Report, RequestId, StoreJob, StorePolicy, Tier},
};

impl Tier for MemoryTier {
    fn name(&self) -> &str {
        &self.name
    }

    fn medium(&self) -> Medium {
        Medium::Storage
    }

    fn locality(&self) -> Locality {
        Locality::Local
    }

    fn on_new_request(&mut self, _req: RequestId) -> StorePolicy {
        self.policy_for_requests
    }

    fn lookup(&mut self, key: &Key, req: RequestId) -> Lookup {
        match self.index.get(key).copied().filter(|_| !self.closed) {
            Some(id) => {
                if self.pins.entry(req).or_default().insert(id) {
                    self.pin(id);
                }
                self.stats.lookup_hits += 1;
                Lookup::Hit
            }
            None => {
                self.stats.lookup_misses += 1;
                Lookup::Miss
            }
        }
    }

    fn submit_store(&mut self, job: StoreJob) {
        if self.closed {
            return self.run(Job::Store(job), Some(ErrorKind::Closed));
        }
        self.submit(Job::Store(job));
    }

    fn submit_load(&mut self, job: LoadJob) {
        let mut ids = Vec::with_capacity(job.blocks.len());
        for b in &job.blocks {
            let id = self.index.get(&b.key).copied();
            if let Some(id) = id
                && !self.pins.get_mut(&job.req).is_some_and(|p| p.remove(&id))
            {
                self.pin(id);
            }
            ids.push(id);
        }
        if self.closed {
            return self.run(Job::Load(job, ids), Some(ErrorKind::Closed));
        }
        self.submit(Job::Load(job, ids));
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        if !self.held {
            self.run_queue();
        }
        reports.append(&mut self.done);
    }

    fn touch(&mut self, keys: &[Key], req: RequestId) {
        for key in keys.iter().rev() {
            if let Some(&id) = self.index.get(key) {
                self.policy.access(id, req.tag());
            }
        }
    }

    fn on_request_finished(&mut self, req: RequestId, keys: &[Key]) {
        self.end_request(req);
        self.touch(keys, req);
    }

    fn take_events(&mut self, events: &mut Vec<Event>) {
        self.events.take(events);
    }

    fn has_pending_work(&self) -> bool {
        !self.queue.is_empty() || !self.done.is_empty()
    }

    fn drain(&mut self) {
        self.cancel_queue();
    }

    fn shutdown(&mut self) {
        self.closed = true;
        self.cancel_queue();
        for req in self.pins.keys().copied().collect::<Vec<_>>() {
            self.end_request(req);
        }
    }

    fn stats(&self) -> TierStats {
        let blocks = self.index.len() as u64;
        TierStats {
            blocks,
            queued_blocks: self.queue.len() as u64,
            ..self.stats.clone()
        }
    }
}
