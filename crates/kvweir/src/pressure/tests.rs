//! Vectors computed by hand for the detector, and simulations of whole devices.
//!
//! Vectors use 1 MiB jobs, so a latency in seconds is the sample itself.

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use proptest::prelude::*;

use super::{
    DropPolicy, DropPolicyKind, EmaDetector, LatencySignal, Marks, PressureSettings, TransitionCause,
    TransitionKind, Verdict,
};
use crate::clock::Instant;

mod answers;
mod average;
mod devices;

const MIB: u64 = 1 << 20;

fn at(seconds: f64) -> Instant {
    Instant::from_secs_f64(seconds)
}

fn near(a: f64, b: f64) -> bool {
    (a - b).abs() <= 1e-12
}

/// Local marks; the newest sample is the EMA; warm after one completion.
fn sharp() -> PressureSettings {
    PressureSettings {
        alpha: 1.0,
        warmup_completions: 1,
        ..Default::default()
    }
}

fn detector(settings: PressureSettings) -> EmaDetector {
    EmaDetector::new(settings).unwrap()
}

/// A sharp detector that is warm.
fn warm() -> EmaDetector {
    let mut d = detector(sharp());
    feed(&mut d, 1.0, &[0.001]);
    d
}

fn feed(d: &mut EmaDetector, t: f64, samples: &[f64]) {
    for &x in samples {
        d.on_store_completed(at(t), x, MIB);
    }
}

fn ema(d: &EmaDetector) -> f64 {
    d.stats().ema_s_per_mib
}

/// A policy that refuses always and counts how often it was asked.
#[derive(Debug)]
struct Refuse(Arc<AtomicU32>);

impl DropPolicy for Refuse {
    fn admit(&mut self, _: &dyn LatencySignal) -> bool {
        self.0.fetch_add(1, Ordering::Relaxed);
        false
    }

    fn reset(&mut self) {
        self.0.store(0, Ordering::Relaxed);
    }
}

fn refusing(settings: PressureSettings) -> (EmaDetector, Arc<AtomicU32>) {
    let asked = Arc::new(AtomicU32::new(0));
    (
        EmaDetector::with_policy(settings, Box::new(Refuse(Arc::clone(&asked)))).unwrap(),
        asked,
    )
}
