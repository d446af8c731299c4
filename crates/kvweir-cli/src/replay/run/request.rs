//! One request on its way: looked up until its leading hits are known, read and compared, computed and stored.

use anyhow::Result;
use kvweir::{
    Key,
    manager::{Found, NewRequest},
    tier::RequestId,
};

use super::{content, life::Life, tally::Tally};
use crate::{settings::ReplaySettings, trace::Request};

/// Most blocks computed and stored in one step.
const CHUNK: usize = 64;
/// Steps after which a request takes what it has and computes the rest.
const MAX_WAITS: u32 = 10_000;
/// Steps after which a request does without slots of the primary tier that nothing in flight holds.
const CROWDED: u32 = 64;

/// Where it stands.
enum Stage {
    Waiting { waits: u32 },
    Computing { next: usize, waits: u32 },
    Finished,
}

/// A request that has begun.
pub(super) struct Active {
    id: RequestId,
    blocks: Vec<u64>,
    keys: Vec<Key>,
    /// Per block, whether it had to be brought up from the file tier for this request.
    promoted: Vec<bool>,
    /// Read in this step: to be released at its end.
    reading: usize,
    /// Written in this step: to be completed at its end.
    written: Vec<Key>,
    stage: Stage,
}

impl Active {
    pub(super) fn begin(life: &mut Life, request: &Request) -> Self {
        let id = life.request_id();
        life.manager.on_new_request(id, NewRequest::default());
        Self {
            id,
            keys: request.blocks.iter().map(|&b| content::key(b)).collect(),
            promoted: vec![false; request.blocks.len()],
            blocks: request.blocks.clone(),
            reading: 0,
            written: Vec::new(),
            stage: Stage::Waiting { waits: 0 },
        }
    }

    pub(super) fn is_finished(&self) -> bool {
        matches!(self.stage, Stage::Finished)
    }

    /// The request's part of a step; returns whether it got any further.
    pub(super) fn step(
        &mut self,
        life: &mut Life,
        tally: &mut Tally,
        settings: &ReplaySettings,
    ) -> Result<bool> {
        match self.stage {
            Stage::Waiting { waits } => {
                let Some(hits) = self.look_up(life, tally, waits >= MAX_WAITS) else {
                    self.stage = Stage::Waiting { waits: waits + 1 };
                    return Ok(false);
                };
                let from_tier = self.promoted.iter().take(hits).filter(|p| **p).count();
                tally.resolved(self.keys.len(), hits - from_tier, from_tier);
                self.read(life, tally, hits, settings.verify)?;
                self.stage = Stage::Computing { next: hits, waits: 0 };
                Ok(true)
            }
            Stage::Computing { next, waits } => Ok(self.compute(life, tally, next, waits, settings)),
            Stage::Finished => Ok(false),
        }
    }

    /// The number of leading hits, once it is known.
    fn look_up(&mut self, life: &mut Life, tally: &mut Tally, settle: bool) -> Option<usize> {
        let (mut hits, mut wait) = (0, false);
        for (key, promoted) in self.keys.iter().zip(&mut self.promoted) {
            let queued = life.manager.stats().queued_promotions;
            let found = tally.timed_lookup(|| life.manager.lookup(key, self.id));
            *promoted |= life.manager.stats().queued_promotions > queued;
            match found {
                Found::Hit => hits += 1,
                Found::Miss => break,
                Found::HitPending | Found::Retry if settle => break,
                Found::HitPending => {
                    hits += 1;
                    wait = true;
                }
                Found::Retry => wait = true,
            }
        }
        (!wait).then_some(hits)
    }

    /// Reads the leading hits as an accelerator would, and compares them.
    fn read(&mut self, life: &mut Life, tally: &mut Tally, hits: usize, compare: bool) -> Result<()> {
        let keys = self.keys.get(..hits).unwrap_or_default();
        let slots = life.manager.prepare_load(keys)?;
        self.reading = hits;
        let ids = self.blocks.iter().zip(slots);
        for (&id, slot) in ids.filter(|_| compare) {
            let bytes = life.manager.primary().region().read(slot)?;
            tally.checked(id, content::is_right(id, &bytes));
        }
        Ok(())
    }

    /// Stores the next blocks, or ends the request.
    fn compute(
        &mut self,
        life: &mut Life,
        tally: &mut Tally,
        next: usize,
        waits: u32,
        settings: &ReplaySettings,
    ) -> bool {
        let to = (next + chunk(life, settings)).min(self.keys.len());
        let keys = self.keys.get(next..to).unwrap_or_default();
        if keys.is_empty() {
            life.manager.on_request_finished(self.id, &self.keys);
            self.stage = Stage::Finished;
            return true;
        }
        // as fast as possible means: as fast as the tiers take it. With a time scale the trace sets the pace.
        let bytes = (keys.len() * settings.concurrency * life.manager.primary().region().block_len()) as u64;
        if settings.time_scale.is_none()
            && life.manager.inflight_room() < bytes
            && life.manager.has_pending_work()
        {
            return false;
        }
        let Some(prepared) = life.manager.prepare_store(keys, self.id) else {
            // the primary is full of blocks in use: wait while anything moves, for some steps also for what
            // other requests hold in them, else do without
            let give_up = waits >= MAX_WAITS || waits >= CROWDED && !life.manager.has_pending_work();
            if give_up {
                tally.without_slot(keys.len());
            }
            self.stage = Stage::Computing {
                next: if give_up { to } else { next },
                waits: waits + 1,
            };
            return give_up;
        };
        for (key, slot) in prepared.to_store {
            let at = keys.iter().position(|k| *k == key);
            let id = at.and_then(|i| self.blocks.get(next + i));
            if let (Some(&id), Ok(mut bytes)) = (id, life.manager.primary().region().write(slot)) {
                content::fill(id, &mut bytes);
                self.written.push(key);
            }
        }
        self.stage = Stage::Computing { next: to, waits: 0 };
        true
    }

    /// The accelerator's copies of the step end.
    pub(super) fn end_of_step(&mut self, life: &mut Life) -> bool {
        let moved = self.reading > 0 || !self.written.is_empty();
        let read = std::mem::take(&mut self.reading);
        life.manager
            .complete_load(self.keys.get(..read).unwrap_or_default());
        if !self.written.is_empty() {
            life.manager
                .complete_store(&std::mem::take(&mut self.written), self.id, true);
        }
        moved
    }
}

/// Blocks computed in one step: so few that the primary tier has room for the steps of all requests, and that the gate
/// lets them through as one job.
fn chunk(life: &Life, settings: &ReplaySettings) -> usize {
    let region = life.manager.primary().region();
    let fair = region.num_slots() as usize / (2 * settings.concurrency);
    let through = settings.max_inflight() / region.block_len() as u64;
    fair.min(usize::try_from(through).unwrap_or(CHUNK))
        .clamp(1, CHUNK)
}
