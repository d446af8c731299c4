//! Detector and drop policies, each behind a lock of its own; times come from the caller, in seconds.

use std::{
    collections::HashMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

use kvweir::{
    clock::Instant,
    pressure::{DropPolicy, DropPolicyKind, EmaDetector, LatencySignal, PressureSettings, Question},
};
use pyo3::prelude::*;

use crate::errors::raise;

/// The EMA detector. Policies are asked by the caller: `ask` answers 0 "store", 1 "drop" or 2 "ask the policy".
#[pyclass(frozen, module = "kvweir._kvweir")]
struct Detector(Mutex<EmaDetector>);

impl Detector {
    fn lock(&self) -> MutexGuard<'_, EmaDetector> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[pymethods]
impl Detector {
    #[new]
    #[pyo3(signature = (*, high_water_s, low_water_s, alpha, warmup_completions, decay_half_life_s, cooldown_s, failure_threshold=None))]
    fn new(
        high_water_s: f64,
        low_water_s: f64,
        alpha: f64,
        warmup_completions: u32,
        decay_half_life_s: f64,
        cooldown_s: f64,
        failure_threshold: Option<u32>,
    ) -> PyResult<Self> {
        let settings = PressureSettings {
            high_water_s,
            low_water_s,
            alpha,
            warmup_completions,
            decay_half_life_s,
            cooldown_s,
            failure_threshold,
            ..PressureSettings::default()
        };
        // the policy is the caller's: see `ask`
        let unasked = Box::new(kvweir::pressure::Drop);
        let detector = EmaDetector::with_policy(settings, unasked).map_err(raise)?;
        Ok(Self(Mutex::new(detector)))
    }

    /// The default settings for a tier type and locality.
    #[staticmethod]
    #[pyo3(signature = (tier_type, locality=None))]
    fn defaults(tier_type: &str, locality: Option<&str>) -> PyResult<(f64, f64, Option<u32>)> {
        let locality = locality
            .map_or(Ok(kvweir::pressure::Locality::Local), str::parse)
            .map_err(raise)?;
        let s = PressureSettings::default_config(tier_type, locality);
        Ok((s.high_water_s, s.low_water_s, s.failure_threshold))
    }

    fn completed(&self, now_s: f64, seconds: f64, bytes: u64) {
        self.lock()
            .on_store_completed(Instant::from_secs_f64(now_s), seconds, bytes);
    }

    fn failed(&self, now_s: f64) {
        self.lock().on_store_failed(Instant::from_secs_f64(now_s));
    }

    fn ask(&self, now_s: f64) -> u8 {
        match self.lock().ask(Instant::from_secs_f64(now_s)) {
            Question::Admit => 0,
            Question::Cooldown => 1,
            Question::Policy => 2,
        }
    }

    fn is_under_pressure(&self, now_s: f64) -> bool {
        self.lock().is_under_pressure(Instant::from_secs_f64(now_s))
    }

    /// Whether stores pass without the policy being asked: the tier has been fast for long.
    fn is_healthy(&self) -> bool {
        self.lock().stats().healthy
    }

    fn reset(&self) {
        self.lock().reset();
    }

    /// Seconds per MiB.
    #[getter]
    fn ema(&self) -> f64 {
        self.lock().ema()
    }

    #[getter]
    fn high_water_s(&self) -> f64 {
        self.lock().high_water()
    }

    /// Numbers by name.
    fn stats(&self) -> HashMap<&'static str, f64> {
        let s = self.lock().stats();
        HashMap::from([
            ("store_latency_ema", s.ema_s_per_mib),
            ("under_pressure", f64::from(u8::from(s.under_pressure))),
            ("consecutive_store_failures", s.consecutive_failures as f64),
        ])
    }
}

/// A drop policy: `admit` says whether a store goes through.
#[pyclass(frozen, module = "kvweir._kvweir")]
struct Policy(Mutex<Box<dyn DropPolicy>>);

struct Signal {
    ema: f64,
    high: f64,
    pressure: bool,
}

impl LatencySignal for Signal {
    fn ema(&self) -> f64 {
        self.ema
    }
    fn high_water(&self) -> f64 {
        self.high
    }
    fn under_pressure(&self) -> bool {
        self.pressure
    }
}

#[pymethods]
impl Policy {
    /// `throttled`: drops a share that grows with the pressure; else everything under pressure.
    #[new]
    #[pyo3(signature = (throttled, ramp_factor=2.0))]
    fn new(throttled: bool, ramp_factor: f64) -> PyResult<Self> {
        let policy = if throttled {
            DropPolicyKind::ThrottledDrop
        } else {
            DropPolicyKind::Drop
        };
        let settings = PressureSettings {
            policy,
            ramp_factor,
            ..PressureSettings::default()
        };
        Ok(Self(Mutex::new(settings.build_policy().map_err(raise)?)))
    }

    fn admit(&self, ema: f64, high_water_s: f64, under_pressure: bool) -> bool {
        let signal = Signal {
            ema,
            high: high_water_s,
            pressure: under_pressure,
        };
        self.0
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .admit(&signal)
    }

    fn reset(&self) {
        self.0.lock().unwrap_or_else(PoisonError::into_inner).reset();
    }
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<Detector>()?;
    m.add_class::<Policy>()
}
