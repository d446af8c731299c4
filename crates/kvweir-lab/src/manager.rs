//! What the manager costs per block, without I/O: storing (make room, complete, cascade, report) and bringing up (look
//! up, promote, report, reference, release). The tier below answers at once.

use std::sync::Arc;

use anyhow::Result;
use kvweir::{
    Key,
    clock::Clock,
    events::{Locality, Medium},
    evict::PolicyKind,
    io::Region,
    manager::{Found, Manager, NewRequest},
    metrics::TierStats,
    pressure::{Gate, PressureSettings},
    primary::Primary,
    tier::{BlockOutcome, Direction, LoadJob, Lookup, Report, RequestId, StoreJob, Tier, Verified},
};

use crate::{
    env, keys,
    print::{heading, median, say, table},
};

/// Options of the manager bench.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Blocks of one request.
    #[arg(long, default_value_t = 256)]
    blocks: usize,
    /// Rounds; the median is told.
    #[arg(long, default_value_t = 200)]
    rounds: usize,
    /// Seed of the keys.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Holds everything and moves nothing.
#[derive(Debug, Default)]
struct Instant {
    done: Vec<Report>,
}

impl Instant {
    fn end(&mut self, id: kvweir::tier::JobId, direction: Direction, n: usize, outcome: BlockOutcome) {
        let time = std::time::Duration::from_micros(1);
        self.done.push(Report {
            id,
            direction,
            blocks: vec![outcome; n],
            bytes: n as u64,
            device_time: time,
            queue_time: time,
        });
    }
}

impl Tier for Instant {
    fn name(&self) -> &str {
        "instant"
    }
    fn medium(&self) -> Medium {
        Medium::Storage
    }
    fn locality(&self) -> Locality {
        Locality::Local
    }
    fn lookup(&mut self, _: &Key, _: RequestId) -> Lookup {
        Lookup::Hit
    }
    fn submit_store(&mut self, job: StoreJob) {
        self.end(job.id, Direction::Store, job.blocks.len(), BlockOutcome::Stored);
    }
    fn submit_load(&mut self, job: LoadJob) {
        let good = BlockOutcome::Loaded(Verified::Checksum);
        self.end(job.id, Direction::Load, job.blocks.len(), good);
    }
    fn poll(&mut self, reports: &mut Vec<Report>) {
        reports.append(&mut self.done);
    }
    fn on_request_finished(&mut self, _: RequestId, _: &[Key]) {}
    fn has_pending_work(&self) -> bool {
        !self.done.is_empty()
    }
    fn drain(&mut self) {}
    fn shutdown(&mut self) {}
    fn stats(&self) -> TierStats {
        TierStats::default()
    }
}

/// Runs the bench.
pub(crate) fn run(args: &Args, clock: &Arc<dyn Clock>) -> Result<()> {
    env::tell(&**clock, args.seed, None);
    let n = args.blocks;
    let slots = u32::try_from(n * 4)?;
    let primary = Primary::new(Region::new(slots, 4096, false)?, PolicyKind::Lru, false);
    let mut m = Manager::new(primary).clock(Arc::clone(clock));
    let gate = PressureSettings {
        max_inflight_bytes: Some(1 << 40),
        ..PressureSettings::default()
    };
    m.add_tier(Box::new(Instant::default()), Some(Gate::new(gate, 1 << 30)?));
    let all: Vec<Key> = (0..(n * args.rounds) as u64)
        .map(|i| keys::key(args.seed, i))
        .collect::<kvweir::Result<_>>()?;
    let (mut store, mut load) = (Vec::new(), Vec::new());
    for (round, keys) in all.chunks(n).enumerate() {
        let req = RequestId(round as u64 * 2 + 1);
        let began = clock.now();
        m.on_new_request(req, NewRequest::default());
        let room = m.prepare_store(keys, req);
        m.complete_store(keys, req, true);
        m.on_schedule_end();
        m.poll();
        m.on_request_finished(req, keys);
        let took = clock.now().since(began);
        anyhow::ensure!(
            room.is_some_and(|r| r.to_store.len() == n),
            "every block is new and fits"
        );
        store.push(took.as_nanos() as f64 / n as f64);
        m.reset();
        m.on_reset_flushed();
        let req = RequestId(round as u64 * 2 + 2);
        let began = clock.now();
        m.on_new_request(req, NewRequest::default());
        let pending = keys.iter().all(|k| m.lookup(k, req) == Found::HitPending);
        m.on_schedule_end();
        let hits = keys.iter().all(|k| m.lookup(k, req) == Found::Hit);
        let referenced = m.prepare_load(keys)?;
        m.on_schedule_end();
        m.complete_load(keys);
        m.on_request_finished(req, keys);
        let took = clock.now().since(began);
        anyhow::ensure!(pending && hits && referenced.len() == n, "every block comes up");
        load.push(took.as_nanos() as f64 / n as f64);
    }
    let row = |what: &str, v: &mut [f64]| {
        let m = median(v);
        vec![what.to_owned(), format!("{m:.0}"), format!("{:.2}", m / 1000.0)]
    };
    say(&format!(
        "{n} blocks per request, {} rounds, medians",
        args.rounds
    ));
    table(&[
        heading(&["work, without I/O", "ns per block", "of the 1 us target"]),
        row("store: prepare, complete, cascade, report, finish", &mut store),
        row(
            "load: look up, promote, report, look up, reference, release, finish",
            &mut load,
        ),
    ]);
    Ok(())
}
