//! Detectors of the embedder's, one per tier, behind the manager's gates.

use super::{
    liars::{BROKEN, Liar},
    *,
};
use crate::{
    pressure::{
        Detector, DetectorStats, DeviceSample, InFlight, Transition, TransitionCause, TransitionKind, Verdict,
    },
    tier::BlockOutcome,
};

/// Drops stores while `most` jobs are in flight; latency and failures tell it nothing.
#[derive(Debug)]
struct QueueDepth {
    most: u64,
    stats: DetectorStats,
    transition: Option<Transition>,
}

impl QueueDepth {
    fn new(most: u64) -> Box<Self> {
        Box::new(Self {
            most,
            stats: DetectorStats::default(),
            transition: None,
        })
    }

    fn judge(&mut self, in_flight: InFlight) {
        let full = in_flight.jobs >= self.most;
        if full != self.stats.under_pressure {
            let kind = match full {
                true => TransitionKind::Activated,
                false => TransitionKind::Cleared,
            };
            self.transition = Some(Transition {
                kind,
                cause: TransitionCause::Other("the depth of the queue"),
                marks: None,
            });
        }
        self.stats.under_pressure = full;
    }
}

impl Detector for QueueDepth {
    fn completed(&mut self, _: Instant, _: DeviceSample, left: InFlight) {
        self.stats.completions += 1;
        self.judge(left);
    }
    fn failed(&mut self, _: Instant, left: InFlight) {
        self.judge(left);
    }
    fn decide(&mut self, _: Instant, _: u64, in_flight: InFlight) -> Verdict {
        self.judge(in_flight);
        match self.stats.under_pressure {
            true => Verdict::Pressure,
            false => Verdict::Admit,
        }
    }
    fn is_under_pressure(&mut self, _: Instant) -> bool {
        self.stats.under_pressure
    }
    fn reset(&mut self) {
        self.stats = DetectorStats::default();
    }
    fn take_transition(&mut self) -> Option<Transition> {
        self.transition.take()
    }
    fn stats(&self) -> DetectorStats {
        self.stats
    }
}

/// Drops everything from the first store on that fails, until it is reset.
#[derive(Debug, Default)]
struct OneStrike(DetectorStats);

impl Detector for OneStrike {
    fn completed(&mut self, _: Instant, _: DeviceSample, _: InFlight) {
        self.0.completions += 1;
    }
    fn failed(&mut self, _: Instant, _: InFlight) {
        self.0.consecutive_failures += 1;
        self.0.under_pressure = true;
    }
    fn decide(&mut self, _: Instant, _: u64, _: InFlight) -> Verdict {
        match self.0.under_pressure {
            true => Verdict::Pressure,
            false => Verdict::Admit,
        }
    }
    fn is_under_pressure(&mut self, _: Instant) -> bool {
        self.0.under_pressure
    }
    fn reset(&mut self) {
        self.0 = DetectorStats::default();
    }
    fn stats(&self) -> DetectorStats {
        self.0
    }
}

fn with(detector: Box<dyn Detector>) -> Option<Gate> {
    Some(Gate::with_detector(detector, 1 << 20).unwrap())
}

fn gate_of(w: &World, tier: usize) -> GateStats {
    w.m.tier_stats()[tier].2.expect("the tier has a gate")
}

#[test]
fn each_tier_is_judged_by_the_detector_it_was_given() {
    let mut w = world_behind(
        16,
        vec![
            (tier(64).hold(true), with(QueueDepth::new(2))),
            (tier(64).hold(true), with(QueueDepth::new(3))),
            (tier(64), None),
        ],
    );
    let r = w.begin(1);
    for n in 1..6 {
        w.store(r, &keys([n]));
    }
    let (near, far) = (gate_of(&w, 0), gate_of(&w, 1));
    assert_eq!((near.admitted_stores, near.drops.pressure.stores), (2, 3));
    assert_eq!((far.admitted_stores, far.drops.pressure.stores), (3, 2));
    assert!(near.detector.under_pressure && far.detector.under_pressure);
    assert_eq!(w.m.stats().refused_cascades, 5);

    lock(&w.tiers[0].0).release();
    w.m.poll();
    let near = gate_of(&w, 0);
    assert_eq!(
        (near.detector.completions, near.detector.under_pressure),
        (2, false),
        "the queue of the first tier is empty"
    );
    assert!(
        gate_of(&w, 1).detector.under_pressure,
        "that of the second is not"
    );
    w.store(r, &keys([6]));
    assert_eq!(gate_of(&w, 0).admitted_stores, 3);
    assert_eq!(gate_of(&w, 1).admitted_stores, 3);
    w.m.poll();
    assert_eq!(w.tiers[2].stats().stored_blocks, 6, "no gate drops nothing");
}

#[test]
fn a_detector_of_failures_alone_learns_of_them_and_is_reset_with_the_manager() {
    let liar = Liar::default();
    let mut w = world(8, vec![], None);
    w.m.add_tier(Box::new(liar.clone()), with(Box::<OneStrike>::default()));
    let r = w.begin(1);
    w.store(r, &keys([1]));
    liar.end_store(&[BROKEN], 0);
    w.m.poll();
    assert_eq!(gate_of(&w, 0).detector.consecutive_failures, 1);
    w.store(r, &keys([2, 3]));
    let drops = gate_of(&w, 0).drops;
    assert_eq!((drops.pressure.stores, drops.pressure.blocks), (1, 2));

    w.drop_primary();
    assert!(!gate_of(&w, 0).detector.under_pressure);
    let r = w.begin(2);
    w.store(r, &keys([4]));
    liar.end_store(&[BlockOutcome::Stored], BLOCK as u64);
    w.m.poll();
    let g = gate_of(&w, 0);
    assert_eq!((g.detector.completions, g.admitted_stores), (1, 2));
}

#[test]
fn the_bound_on_bytes_in_flight_holds_whatever_the_detector_says() {
    let gate = Gate::with_detector(QueueDepth::new(u64::MAX), 2 * BLOCK as u64).unwrap();
    let mut w = world_behind(8, vec![(tier(64).hold(true), Some(gate))]);
    let r = w.begin(1);
    w.store(r, &keys(1..6));
    let g = gate_of(&w, 0);
    assert_eq!(
        (g.inflight_bytes, g.drops.inflight_full.blocks),
        (2 * BLOCK as u64, 3)
    );
    assert_eq!(g.drops.pressure.stores, 0);
}

#[test]
fn the_log_tells_the_transitions_of_a_detector_without_marks() {
    let mut gate = with(QueueDepth::new(1)).unwrap();
    let now = Instant::from_secs_f64(1.0);
    let job = gate.try_admit(now, 1, 1).unwrap();
    assert!(gate.take_transition().is_none());
    gate.try_admit(now, 1, 1).unwrap_err();
    let line = gate.take_transition().unwrap().to_string();
    assert_eq!(line, "back-pressure activated by the depth of the queue");
    gate.complete(now, job, DeviceSample::default(), true);
    let line = gate.take_transition().unwrap().to_string();
    assert_eq!(line, "back-pressure cleared by the depth of the queue");
}
