//! A tier that is watched from both sides: what the manager asks of it, and whether the answers keep the promises. Some
//! reports it passes on late, past drains and resets too.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, Mutex, MutexGuard},
};

use kvweir::{
    ErrorKind, Key,
    events::{Event, EventKind, Locality, Medium},
    fs::FsTier,
    metrics::TierStats,
    tier::{BlockOutcome, Direction, JobId, LoadJob, Lookup, Report, RequestId, StoreJob, StorePolicy, Tier},
};

/// A job without a report.
#[derive(Debug)]
struct Asked {
    direction: Direction,
    /// Each block, and whether it was pinned when the job was submitted.
    blocks: Vec<(Key, bool)>,
}

/// What was seen so far.
#[derive(Debug, Default)]
pub(crate) struct Seen {
    jobs: HashMap<JobId, Asked>,
    pins: HashSet<(RequestId, Key)>,
    /// What the events say is there.
    resident: HashSet<Key>,
    last_seq: Option<u64>,
    /// Nothing fails in this life, so a pinned block has to load (I3).
    pub(crate) healthy: bool,
    /// Queued work may be cancelled now.
    pub(crate) ending: bool,
    /// Told of every answer, to compare two runs.
    pub(crate) trace: u64,
    pub(crate) loaded: u64,
    pub(crate) failed: u64,
}

impl Seen {
    /// Mixes `n` into the trace.
    pub(crate) fn note(&mut self, n: u64) {
        self.trace = (self.trace ^ n).wrapping_mul(0x100_0000_01b3).rotate_left(23);
    }

    pub(crate) fn outstanding(&self) -> usize {
        self.jobs.len()
    }

    pub(crate) fn says(&self, key: &Key) -> bool {
        self.resident.contains(key)
    }

    fn check(&mut self, r: &Report) {
        let Some(asked) = self.jobs.remove(&r.id) else {
            panic!("{:?} is reported, and is no job that runs (I4)", r.id);
        };
        assert_eq!(
            (r.direction, r.blocks.len()),
            (asked.direction, asked.blocks.len())
        );
        self.note(r.id.0);
        for ((key, pinned), o) in asked.blocks.iter().zip(&r.blocks) {
            self.note(u64::from(o.is_ok()));
            match (r.direction, *o) {
                (Direction::Load, BlockOutcome::Loaded(_)) => self.loaded += 1,
                (Direction::Store, BlockOutcome::Stored | BlockOutcome::Present) => {}
                (_, BlockOutcome::Failed(kind)) => {
                    self.failed += 1;
                    let cancelled = self.ending || kind == ErrorKind::Closed;
                    let load = r.direction == Direction::Load;
                    assert!(
                        !(self.healthy && load && *pinned) || cancelled,
                        "a pinned block of a healthy tier was not loaded: {key}: {kind} (I3)"
                    );
                }
                (d, o) => panic!("{o:?} is no outcome of a {d:?}"),
            }
        }
    }
}

/// The tier under watch.
#[derive(Debug)]
pub(crate) struct Watched {
    pub(crate) tier: FsTier,
    seen: Arc<Mutex<Seen>>,
    /// Reports that wait, for so many polls.
    late: Vec<(u64, Report)>,
}

impl Watched {
    pub(crate) fn new(tier: FsTier, seen: Arc<Mutex<Seen>>) -> Self {
        let late = Vec::new();
        Self { tier, seen, late }
    }

    /// Never held while the tier is called.
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.seen.lock().unwrap()
    }
}

impl Tier for Watched {
    fn name(&self) -> &str {
        self.tier.name()
    }

    fn medium(&self) -> Medium {
        self.tier.medium()
    }

    fn locality(&self) -> Locality {
        self.tier.locality()
    }

    fn on_new_request(&mut self, req: RequestId) -> StorePolicy {
        self.tier.on_new_request(req)
    }

    fn lookup(&mut self, key: &Key, req: RequestId) -> Lookup {
        let found = self.tier.lookup(key, req);
        let mut seen = self.seen();
        seen.note(found as u64);
        if found == Lookup::Hit {
            seen.pins.insert((req, key.clone()));
        }
        found
    }

    fn submit_store(&mut self, job: StoreJob) {
        let blocks = job.blocks.iter().map(|b| (b.key.clone(), false)).collect();
        let direction = Direction::Store;
        self.seen().jobs.insert(job.id, Asked { direction, blocks });
        self.tier.submit_store(job);
    }

    fn submit_load(&mut self, job: LoadJob) {
        {
            let mut seen = self.seen();
            let mut pinned = |k: &Key| seen.pins.remove(&(job.req, k.clone()));
            let blocks = job.blocks.iter().map(|b| (b.key.clone(), pinned(&b.key)));
            let blocks = blocks.collect();
            let direction = Direction::Load;
            seen.jobs.insert(job.id, Asked { direction, blocks });
        }
        self.tier.submit_load(job);
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        let mut new = Vec::new();
        self.tier.poll(&mut new);
        new.iter().for_each(|r| self.seen().check(r));
        // a fourth of them, by number, so that a seed replays
        let wait = |r: &Report| if r.id.0 % 4 == 1 { 1 + r.id.0 % 11 } else { 0 };
        self.late.extend(new.into_iter().map(|r| (wait(&r), r)));
        for (polls, report) in std::mem::take(&mut self.late) {
            match polls {
                0 => reports.push(report),
                _ => self.late.push((polls - 1, report)),
            }
        }
    }

    fn touch(&mut self, keys: &[Key], req: RequestId) {
        self.tier.touch(keys, req);
    }

    fn on_request_finished(&mut self, req: RequestId, keys: &[Key]) {
        self.seen().pins.retain(|p| p.0 != req);
        self.tier.on_request_finished(req, keys);
    }

    fn take_events(&mut self, events: &mut Vec<Event>) {
        let from = events.len();
        self.tier.take_events(events);
        let mut seen = self.seen();
        for e in events.iter().skip(from) {
            assert!(seen.last_seq < Some(e.seq), "events out of order (I7)");
            seen.last_seq = Some(e.seq);
            match e.kind {
                EventKind::Stored => seen.resident.insert(e.key.clone()),
                EventKind::Removed => seen.resident.remove(&e.key),
            };
        }
    }

    fn has_pending_work(&self) -> bool {
        !self.late.is_empty() || self.tier.has_pending_work()
    }

    fn drain(&mut self) {
        self.seen().pins.clear();
        self.tier.drain();
    }

    fn shutdown(&mut self) {
        self.seen().pins.clear();
        self.tier.shutdown();
    }

    fn stats(&self) -> TierStats {
        self.tier.stats()
    }
}
