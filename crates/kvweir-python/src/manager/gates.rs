//! Gates before the stores of a tier: the engine's own, or one around a detector written in Python.

use kvweir::{
    clock::Instant,
    metrics::DetectorStats,
    pressure::{Detector, DeviceSample, DropPolicyKind, InFlight, PressureSettings, Verdict},
};
use pyo3::prelude::*;

use crate::errors::raise;

/// Settings of a gate of the engine, for one tier.
#[pyclass(frozen, module = "kvweir._kvweir")]
pub(super) struct Gate {
    settings: Option<PressureSettings>,
    max_inflight_bytes: u64,
}

#[pymethods]
impl Gate {
    /// The bound on bytes in flight alone, or with the EMA detector of `settings` before it: `throttled` drops a share
    /// that grows with the pressure up to `ramp_factor` times the high mark, else everything is dropped.
    #[new]
    #[pyo3(signature = (max_inflight_bytes, settings=None, *, throttled=true, ramp_factor=2.0))]
    fn new(
        max_inflight_bytes: u64,
        settings: Option<&Bound<'_, PyAny>>,
        throttled: bool,
        ramp_factor: f64,
    ) -> PyResult<Self> {
        let settings = settings
            .map(|s| {
                let policy = if throttled {
                    DropPolicyKind::ThrottledDrop
                } else {
                    DropPolicyKind::Drop
                };
                PyResult::Ok(PressureSettings {
                    high_water_s: s.get_item("high_water_s")?.extract()?,
                    low_water_s: s.get_item("low_water_s")?.extract()?,
                    alpha: s.get_item("alpha")?.extract()?,
                    warmup_completions: s.get_item("warmup_completions")?.extract()?,
                    decay_half_life_s: s.get_item("decay_half_life_s")?.extract()?,
                    cooldown_s: s.get_item("cooldown_s")?.extract()?,
                    failure_threshold: s.get_item("failure_threshold")?.extract()?,
                    policy,
                    ramp_factor,
                    max_inflight_bytes: Some(max_inflight_bytes),
                })
            })
            .transpose()?;
        let gate = Self {
            settings,
            max_inflight_bytes,
        };
        gate.make().map_err(raise)?;
        Ok(gate)
    }
}

impl Gate {
    fn make(&self) -> kvweir::Result<kvweir::pressure::Gate> {
        match &self.settings {
            Some(s) => kvweir::pressure::Gate::new(*s, 0),
            None => kvweir::pressure::Gate::with_detector(Box::new(Never), self.max_inflight_bytes),
        }
    }
}

/// Judges nothing: the gate's bound is all there is.
#[derive(Debug)]
struct Never;

impl Detector for Never {
    fn completed(&mut self, _: Instant, _: DeviceSample, _: InFlight) {}
    fn failed(&mut self, _: Instant, _: InFlight) {}
    fn decide(&mut self, _: Instant, _: u64, _: InFlight) -> Verdict {
        Verdict::Admit
    }
    fn is_under_pressure(&mut self, _: Instant) -> bool {
        false
    }
    fn reset(&mut self) {}
    fn stats(&self) -> DetectorStats {
        DetectorStats::default()
    }
}

/// A detector written in Python. One that raises admits.
#[derive(Debug)]
struct Foreign(Py<PyAny>);

impl Foreign {
    fn call<R>(&self, f: impl for<'py> FnOnce(&Bound<'py, PyAny>) -> PyResult<R>) -> Option<R> {
        Python::attach(|py| match f(self.0.bind(py)) {
            Ok(answer) => Some(answer),
            Err(e) => {
                super::hosted::tell(py, "a back-pressure detector raised", &e);
                None
            }
        })
    }
}

impl Detector for Foreign {
    fn completed(&mut self, _: Instant, sample: DeviceSample, _: InFlight) {
        self.call(|d| {
            let now: f64 = d.py().import("time")?.call_method0("monotonic")?.extract()?;
            d.call_method1("update", (now - sample.device_time.as_secs_f64(), sample.bytes))?;
            Ok(())
        });
    }

    fn failed(&mut self, _: Instant, _: InFlight) {
        self.call(|d| d.call_method0("on_store_failed").map(drop));
    }

    fn decide(&mut self, _: Instant, blocks: u64, _: InFlight) -> Verdict {
        match self.call(|d| d.call_method1("should_store", (blocks,))?.is_truthy()) {
            Some(false) => Verdict::Pressure,
            Some(true) | None => Verdict::Admit,
        }
    }

    fn is_under_pressure(&mut self, _: Instant) -> bool {
        self.call(|d| d.call_method0("is_under_pressure")?.is_truthy())
            .unwrap_or(false)
    }

    fn reset(&mut self) {
        self.call(|d| d.call_method0("reset").map(drop));
    }

    fn stats(&self) -> DetectorStats {
        // its owner in Python tells them
        DetectorStats::default()
    }
}

/// The gate that `given` stands for: none, ours, or one around a detector.
pub(super) fn of(given: &Bound<'_, PyAny>) -> PyResult<Option<kvweir::pressure::Gate>> {
    if given.is_none() {
        return Ok(None);
    }
    if let Ok(gate) = given.cast::<Gate>() {
        return gate.get().make().map(Some).map_err(raise);
    }
    let foreign = Box::new(Foreign(given.clone().unbind()));
    kvweir::pressure::Gate::with_detector(foreign, u64::MAX)
        .map(Some)
        .map_err(raise)
}
