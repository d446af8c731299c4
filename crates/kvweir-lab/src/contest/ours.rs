//! The tier in this process, as a contender.

use std::{collections::VecDeque, sync::Arc, time::Duration};

use anyhow::{Context, Result, ensure};
use kvweir::{
    Key,
    clock::Clock,
    fs::{FsBuilder, FsSettings, FsTier},
    io::Region,
    namespace::{Identity, Namespace},
    sync::Bell,
    tier::{JobId, LoadBlock, LoadJob, Lookup, Report, RequestId, StoreBlock, StoreJob, Tier},
};

use super::side::{Side, Took, Work, cpu_seconds};
use crate::keys::key;

/// The tier in this process.
#[derive(Debug)]
pub(super) struct Ours {
    tier: FsTier,
    bell: Arc<Bell>,
    clock: Arc<dyn Clock>,
    region: Region,
    next: u64,
}

/// Blocks of the prefix that one request stores, in several jobs.
const PREFIX: u32 = 64;

/// A job that waits: its number, its request, and its blocks' keys and slots.
type Prepared = (u64, RequestId, Vec<(Key, u32)>);

impl Ours {
    /// Opens the tier of `settings`.
    pub(super) fn new(settings: FsSettings, region: &Region, clock: &Arc<dyn Clock>) -> Result<Self> {
        let bell = Arc::<Bell>::default();
        let tier = FsBuilder::new(
            settings,
            Namespace::new(&Identity::default())?,
            region.block_len(),
        )
        .clock(Arc::clone(clock))
        .bell(Arc::clone(&bell))
        .open()?;
        Ok(Self {
            tier,
            bell,
            clock: Arc::clone(clock),
            region: region.clone(),
            next: 1,
        })
    }

    fn prepare(&mut self, w: Work, req: Option<RequestId>) -> Result<Prepared> {
        let keys = (0..w.blocks).map(|n| Ok((key(w.salt, u64::from(w.first + n))?, w.slot + n)));
        self.next += 1;
        let req = req.unwrap_or(RequestId(self.next));
        Ok((self.next, req, keys.collect::<Result<_>>()?))
    }

    fn jobs(&mut self, w: Work, is_load: bool) -> Result<VecDeque<Prepared>> {
        self.next += u64::from(w.blocks);
        let first = self.next;
        let starts = (0..w.blocks).step_by(w.batch as usize);
        starts
            .map(|n| {
                let of = Work {
                    first: w.first + n,
                    slot: w.slot + n,
                    blocks: w.batch.min(w.blocks - n),
                    ..w
                };
                // the pins of a request pass to its load as a whole
                let req = RequestId(first - u64::from(n / PREFIX));
                self.prepare(of, (!is_load).then_some(req))
            })
            .collect()
    }

    fn submit(&mut self, (n, req, blocks): Prepared, is_load: bool) -> Result<()> {
        let id = JobId(n);
        if is_load {
            for (key, _) in &blocks {
                ensure!(self.tier.lookup(key, req) == Lookup::Hit, "a block is missing");
            }
            let blocks = blocks.into_iter().map(|(key, slot)| {
                let slot = self.region.write(slot)?;
                Ok(LoadBlock { key, slot })
            });
            let blocks = blocks.collect::<kvweir::Result<_>>()?;
            self.tier.submit_load(LoadJob { id, req, blocks });
        } else {
            let blocks = blocks.into_iter().map(|(key, slot)| {
                let slot = self.region.read(slot)?;
                Ok(StoreBlock { key, slot })
            });
            let blocks = blocks.collect::<kvweir::Result<_>>()?;
            self.tier.submit_store(StoreJob { id, req, blocks });
        }
        Ok(())
    }

    /// Waits for reports, all of whose blocks must have moved.
    fn poll(&mut self, reports: &mut Vec<Report>) -> Result<()> {
        let seen = self.bell.rings();
        self.tier.poll(reports);
        if reports.is_empty() {
            self.bell.wait(seen, Duration::from_secs(1));
            self.tier.poll(reports);
        }
        ensure!(reports.iter().all(Report::all_ok), "a block did not move");
        Ok(())
    }

    fn move_all(&mut self, w: Work, is_load: bool) -> Result<Took> {
        let mut jobs = self.jobs(w, is_load)?;
        let count = jobs.len();
        let requests: Vec<RequestId> = jobs.iter().map(|j| j.1).collect();
        let mut running = std::collections::HashMap::new();
        let mut took = Took::default();
        let mut reports = Vec::new();
        let (began, cpu) = (self.clock.now(), cpu_seconds());
        while took.jobs_s.len() < count {
            while running.len() < w.depth
                && let Some(job) = jobs.pop_front()
            {
                running.insert(job.0, self.clock.now());
                self.submit(job, is_load)?;
            }
            self.poll(&mut reports)?;
            let now = self.clock.now();
            for r in reports.drain(..) {
                let at = running.remove(&r.id.0).context("a job that nobody gave")?;
                took.jobs_s.push(now.since(at).as_secs_f64());
            }
        }
        for req in requests {
            self.tier.on_request_finished(req, &[]);
        }
        took.seconds = self.clock.now().since(began).as_secs_f64();
        took.cpu_s = cpu_seconds() - cpu;
        Ok(took)
    }
}

impl Side for Ours {
    fn store(&mut self, work: Work) -> Result<Took> {
        self.move_all(work, false)
    }

    fn load(&mut self, work: Work) -> Result<Took> {
        self.move_all(work, true)
    }

    fn duel(&mut self, store: Work, load: Work, loads: usize) -> Result<Took> {
        let (mut stores, mut stored, mut loaded) = (0, 0u32, 0u32);
        let mut waiting = None;
        let mut took = Took::default();
        let mut reports = Vec::new();
        let (began, cpu) = (self.clock.now(), cpu_seconds());
        while took.jobs_s.len() < loads {
            while stores < store.depth {
                let at = stored * store.batch;
                let job = self.prepare(
                    Work {
                        first: at,
                        slot: store.slot + at % store.blocks,
                        blocks: store.batch,
                        ..store
                    },
                    None,
                )?;
                self.submit(job, false)?;
                stores += 1;
                stored += 1;
            }
            if waiting.is_none() {
                let at = (loaded * load.batch) % load.blocks;
                let job = self.prepare(
                    Work {
                        first: load.first + at,
                        slot: load.slot + at,
                        blocks: load.batch,
                        ..load
                    },
                    None,
                )?;
                loaded += 1;
                waiting = Some((job.0, self.clock.now()));
                self.submit(job, true)?;
            }
            self.poll(&mut reports)?;
            let now = self.clock.now();
            for r in reports.drain(..) {
                self.tier.on_request_finished(RequestId(r.id.0), &[]);
                match waiting {
                    Some((id, at)) if id == r.id.0 => {
                        waiting = None;
                        took.jobs_s.push(now.since(at).as_secs_f64());
                    }
                    _ => stores -= 1,
                }
            }
        }
        took.seconds = self.clock.now().since(began).as_secs_f64();
        took.cpu_s = cpu_seconds() - cpu;
        while stores > 0 {
            self.poll(&mut reports)?;
            stores -= reports.drain(..).len();
        }
        Ok(took)
    }

    fn close(&mut self) -> Result<()> {
        self.tier.shutdown();
        Ok(())
    }
}
