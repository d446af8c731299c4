//! Tiers that report late, wrongly, or always fail: nobody else's slot changes for it, and no request waits for ever.

use std::collections::HashSet;

use super::*;
use crate::{
    io::SlotWrite,
    tier::{BlockOutcome, Verified},
};

/// What a scripted tier says and was given. Jobs stay until the test reports them.
#[derive(Debug, Default)]
struct Script {
    has: HashSet<Key>,
    /// Of what it does not have, it says that it is finding out.
    finds_out: bool,
    loads: Vec<LoadJob>,
    stores: Vec<StoreJob>,
    reports: Vec<Report>,
    /// Loads fail as they are submitted.
    fails: bool,
    submitted: usize,
}

#[derive(Debug, Clone, Default)]
pub(super) struct Liar(Arc<Mutex<Script>>);

impl Liar {
    fn holding(keys: &[Key]) -> Self {
        let liar = Self::default();
        lock(&liar.0).has.extend(keys.iter().cloned());
        liar
    }

    /// Reports the oldest load as `outcome`; its guards go first, or are given back.
    fn end_load(&self, outcome: BlockOutcome, keeps_guards: bool) -> Vec<SlotWrite> {
        let mut s = lock(&self.0);
        let job = s.loads.remove(0);
        s.reports
            .push(report(job.id, Direction::Load, vec![outcome; job.blocks.len()]));
        let guards = job.blocks.into_iter().map(|b| b.slot);
        if keeps_guards {
            guards.collect()
        } else {
            Vec::new()
        }
    }

    /// Reports the oldest store, `bytes` of it written.
    pub(super) fn end_store(&self, blocks: &[BlockOutcome], bytes: u64) {
        let mut s = lock(&self.0);
        let job = s.stores.remove(0);
        s.reports.push(Report {
            bytes,
            device_time: Duration::from_nanos(bytes),
            ..report(job.id, Direction::Store, blocks.to_vec())
        });
    }
}

fn report(id: JobId, direction: Direction, blocks: Vec<BlockOutcome>) -> Report {
    Report {
        blocks,
        ..Report::refused(id, direction, 0, ErrorKind::Busy)
    }
}

const LOADED: BlockOutcome = BlockOutcome::Loaded(Verified::Checksum);
pub(super) const BROKEN: BlockOutcome = BlockOutcome::Failed(ErrorKind::Unavailable);

impl Tier for Liar {
    fn name(&self) -> &'static str {
        "liar"
    }
    fn medium(&self) -> Medium {
        Medium::Storage
    }
    fn locality(&self) -> Locality {
        Locality::Local
    }
    fn lookup(&mut self, key: &Key, _req: RequestId) -> Lookup {
        let s = lock(&self.0);
        match s.has.contains(key) {
            true => Lookup::Hit,
            false if s.finds_out => Lookup::Retry,
            false => Lookup::Miss,
        }
    }
    fn submit_store(&mut self, job: StoreJob) {
        lock(&self.0).stores.push(job);
    }
    fn submit_load(&mut self, job: LoadJob) {
        let mut s = lock(&self.0);
        s.submitted += 1;
        if s.fails {
            s.reports
                .push(report(job.id, Direction::Load, vec![BROKEN; job.blocks.len()]));
        } else {
            s.loads.push(job);
        }
    }
    fn poll(&mut self, reports: &mut Vec<Report>) {
        reports.append(&mut lock(&self.0).reports);
    }
    fn on_request_finished(&mut self, _req: RequestId, _keys: &[Key]) {}
    fn has_pending_work(&self) -> bool {
        false
    }
    fn drain(&mut self) {}
    fn shutdown(&mut self) {}
    fn stats(&self) -> TierStats {
        TierStats::default()
    }
}

fn with(slots: u32, liar: &Liar, gate: Option<PressureSettings>) -> World {
    let mut w = world(slots, vec![], None);
    let gate = gate.map(|g| Gate::new(g, u64::from(slots) * BLOCK as u64).unwrap());
    w.m.add_tier(Box::new(liar.clone()), gate);
    w
}

/// A load that a drain left owing was matched by its key alone: after a reset the engine stored the same key, and the
/// late report made it readable before a byte of it was written.
#[test]
fn a_load_owed_through_a_reset_says_nothing_of_the_slot_that_has_its_key_now() {
    for (slots, keeps_guards) in [(1, false), (8, false), (8, true)] {
        let ks = keys([1]);
        let liar = Liar::holding(&ks);
        let mut w = with(slots, &liar, None);
        let r = w.begin(1);
        assert_eq!(w.m.lookup(&ks[0], r), Found::HitPending);
        w.m.on_schedule_end();
        w.m.reset();
        w.m.on_reset_flushed();
        let guards = liar.end_load(LOADED, keeps_guards);
        assert_eq!(w.m.prepare_store(&[], r), Some(Prepared::default()), "polls");
        // once more, reported after the key has a slot again
        lock(&liar.0).has.clear();
        let p = w.m.prepare_store(&ks, r).expect("room");
        assert_eq!((p.to_store.len(), guards.len()), (1, usize::from(keeps_guards)));
        assert_eq!(w.m.primary().state(&ks[0]), SlotState::Writing);
        w.m.complete_store(&ks, r, true);
        assert_eq!(w.m.primary().state(&ks[0]), SlotState::Ready);
    }
}

/// The same with the report after the engine was given the slot, whichever it got.
#[test]
fn a_report_after_the_slot_was_given_out_again_changes_nothing() {
    for outcome in [LOADED, BROKEN] {
        let ks = keys([1]);
        let liar = Liar::holding(&ks);
        let mut w = with(1, &liar, None);
        let r = w.begin(1);
        w.m.lookup(&ks[0], r);
        w.m.on_schedule_end();
        // its I/O ended, its report has not come
        let job = lock(&liar.0).loads.remove(0);
        let id = job.id;
        drop(job);
        w.m.reset();
        w.m.on_reset_flushed();
        lock(&liar.0).has.clear();
        assert_eq!(w.m.prepare_store(&ks, r).unwrap().to_store.len(), 1);
        lock(&liar.0)
            .reports
            .push(report(id, Direction::Load, vec![outcome]));
        w.m.poll();
        assert_eq!(w.m.primary().state(&ks[0]), SlotState::Writing, "{outcome:?}");
        assert_eq!(w.m.stats().promoted_blocks, 0);
    }
}

/// So with stores: the reference that a late report released was another job's, whose block was then evicted while it
/// was read.
#[test]
fn a_store_owed_through_a_reset_releases_only_what_it_references_itself() {
    let liar = Liar::default();
    let mut w = with(8, &liar, Some(PressureSettings::default()));
    let (r, ks) = (w.begin(1), keys([1]));
    w.store(r, &ks);
    w.m.reset();
    w.m.on_reset_flushed();
    let r = w.begin(2);
    w.store(r, &ks);
    assert_eq!(lock(&liar.0).stores.len(), 2);
    liar.end_store(&[BlockOutcome::Stored], 64);
    w.m.poll();
    assert_eq!(
        w.m.primary().stats().referenced,
        1,
        "the second store still reads"
    );
    liar.end_store(&[BlockOutcome::Stored], 64);
    w.m.poll();
    assert_eq!(w.m.primary().stats().referenced, 0);
    assert_eq!(w.m.tier_stats()[0].2.as_ref().unwrap().inflight_bytes, 0);
}

/// An engine that named a key under promotion as failed freed the promoted slot; prepared again, the promotion's report
/// marked the new slot ready.
#[test]
fn an_engine_completes_neither_a_promotion_nor_what_another_request_writes() {
    for success in [false, true] {
        let ks = keys([1, 2]);
        let liar = Liar::holding(&ks[..1]);
        let mut w = with(8, &liar, None);
        let (a, b) = (w.begin(1), w.begin(2));
        assert_eq!(w.m.lookup(&ks[0], a), Found::HitPending);
        w.m.on_schedule_end();
        assert_eq!(w.m.prepare_store(&ks, b).unwrap().to_store.len(), 1);
        w.m.complete_store(&ks, a, success);
        assert_eq!(w.m.primary().state(&ks[1]), SlotState::Writing, "b writes it");
        w.m.complete_store(&ks, b, success);
        assert_eq!(
            w.m.primary().state(&ks[0]),
            SlotState::Writing,
            "a tier writes it"
        );
        liar.end_load(LOADED, false);
        w.m.poll();
        assert_eq!(w.m.primary().state(&ks[0]), SlotState::Ready);
        assert_eq!(w.m.primary().state(&ks[1]) == SlotState::Ready, success);
    }
}

/// A tier that always hits and always fails held a request for ever, and the next one, which had the block, was not
/// asked.
#[test]
fn a_tier_that_could_not_deliver_is_asked_once_and_the_next_one_delivers() {
    let ks = keys(1..5);
    let liar = Liar::holding(&ks);
    lock(&liar.0).fails = true;
    let mut w = with(8, &liar, None);
    let good = tier(64);
    w.m.add_tier(Box::new(good), None);
    let r = w.begin(1);
    w.store(r, &ks);
    w.m.on_request_finished(r, &ks);
    w.drop_primary();
    for (n, req) in [w.begin(2), RequestId(77), w.begin(3)].into_iter().enumerate() {
        assert_eq!(w.resolve(req, &ks), 4, "also of a request that was not announced");
        assert_eq!(
            lock(&liar.0).submitted,
            n + 1,
            "each request asks it once more, in one job"
        );
        w.m.on_request_finished(req, &ks);
        w.drop_primary();
    }
    assert!(
        w.m.requests.is_empty(),
        "nothing is remembered of requests that ended"
    );
}

#[test]
fn a_request_ends_in_a_miss_where_the_only_tier_that_hits_never_delivers() {
    let ks = keys(1..3);
    let liar = Liar::holding(&ks);
    lock(&liar.0).fails = true;
    let mut w = with(8, &liar, None);
    let r = w.begin(1);
    assert_eq!(w.resolve(r, &ks), 0);
    assert_eq!(w.m.stats().failed_promotions, 2);
    assert_eq!(w.m.primary().stats().used, 0);
}

/// One that is finding out for ever held a request as long.
#[test]
fn a_request_waits_only_so_long_for_a_tier_that_is_finding_out() {
    let ks = keys(1..3);
    let liar = Liar::default();
    lock(&liar.0).finds_out = true;
    let mut w = with(8, &liar, None);
    let (r, other) = (w.begin(1), w.begin(2));
    let step = FINDS_OUT / 2;
    assert_eq!(w.m.lookup(&ks[0], r), Found::Retry);
    w.clock.advance(step);
    assert_eq!(w.m.lookup(&ks[0], r), Found::Retry);
    assert_eq!(
        w.m.lookup(&ks[1], r),
        Found::Retry,
        "it waits for each on its own"
    );
    w.clock.advance(step);
    assert_eq!(w.m.lookup(&ks[0], r), Found::Miss);
    assert_eq!(w.m.lookup(&ks[0], other), Found::Retry, "another has just come");
    assert_eq!(w.m.lookup(&ks[1], r), Found::Retry);
    // it found out: the next time it may take as long again
    lock(&liar.0).finds_out = false;
    assert_eq!(w.m.lookup(&ks[1], r), Found::Miss);
    lock(&liar.0).finds_out = true;
    w.clock.advance(step);
    assert_eq!(w.m.lookup(&ks[1], r), Found::Retry);
    w.m.on_request_finished(r, &[]);
    w.m.on_request_finished(other, &[]);
    assert!(w.m.waits.is_empty());
}

/// `Loaded` before the guard was dropped left the slot writing for ever.
#[test]
fn a_slot_reported_loaded_before_its_guard_went_is_taken_back_when_it_goes() {
    let ks = keys([1]);
    let liar = Liar::holding(&ks);
    let mut w = with(1, &liar, None);
    let r = w.begin(1);
    w.m.lookup(&ks[0], r);
    w.m.on_schedule_end();
    let guards = liar.end_load(LOADED, true);
    w.m.poll();
    assert_eq!(
        (w.m.primary().state(&ks[0]), w.m.stats().failed_promotions),
        (SlotState::Absent, 1),
        "its bytes may yet change"
    );
    assert_eq!(w.m.lookup(&ks[0], r), Found::Miss, "that tier is not asked again");
    let next = keys([2]);
    assert!(
        w.m.prepare_store(&next, r).is_none(),
        "the slot is still written to"
    );
    drop(guards);
    assert!(w.m.prepare_store(&next, r).is_some());
}

#[test]
fn a_report_of_the_wrong_tier_way_or_length_harms_nobody() {
    let ks = keys(1..4);
    let (a, b) = (Liar::holding(&ks), Liar::default());
    let mut w = with(8, &a, None);
    w.m.add_tier(Box::new(b.clone()), None);
    let r = w.begin(1);
    ks.iter().for_each(|k| {
        w.m.lookup(k, r);
    });
    w.m.on_schedule_end();
    let id = lock(&a.0).loads[0].id;
    lock(&b.0)
        .reports
        .push(report(id, Direction::Load, vec![LOADED; 3]));
    lock(&a.0)
        .reports
        .push(report(id, Direction::Store, vec![LOADED; 3]));
    w.m.poll();
    assert!(w.m.has_pending_work(), "neither is the report of that job");
    lock(&a.0).loads.clear();
    lock(&a.0).reports = vec![report(id, Direction::Load, vec![LOADED])];
    w.m.poll();
    assert_eq!(w.m.primary().state(&ks[0]), SlotState::Ready);
    assert_eq!(
        w.m.primary().state(&ks[2]),
        SlotState::Absent,
        "what was not spoken of failed"
    );
    assert!(w.m.jobs.is_empty());
}

/// A disk that wrote one block of three and failed the others was healthy to the gate, since bytes had moved.
#[test]
fn jobs_that_a_device_fails_in_part_are_failed_jobs_and_refusals_are_none() {
    let full = BlockOutcome::Failed(ErrorKind::Full);
    for (two_of_three, expected) in [
        (BROKEN, true),
        (BlockOutcome::Failed(ErrorKind::Corrupt), true),
        (full, false),
        (BlockOutcome::Failed(ErrorKind::Busy), false),
        (BlockOutcome::Failed(ErrorKind::Closed), false),
    ] {
        for wrote in [BlockOutcome::Stored, BlockOutcome::Present, full] {
            let liar = Liar::default();
            let mut w = with(64, &liar, Some(PressureSettings::default()));
            for n in 0..3 {
                let r = w.begin(u64::from(n));
                w.store(r, &keys(3 * n..3 * n + 3));
                let bytes = BLOCK as u64 * u64::from(wrote == BlockOutcome::Stored);
                liar.end_store(&[wrote, two_of_three, two_of_three], bytes);
                w.m.poll();
            }
            let gate = w.m.tier_stats().remove(0).2.unwrap();
            assert_eq!(
                (gate.detector.under_pressure, gate.inflight_bytes),
                (expected, 0),
                "{wrote:?} and {two_of_three:?} twice, three times"
            );
        }
    }
}
