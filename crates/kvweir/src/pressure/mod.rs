//! Back-pressure: whether a secondary tier may be given one more store.
//!
//! Upholds I9: a device that keeps up never loses a store, one that does not holds at most the configured
//! bytes in flight. Loads are never gated, and a dropped store loses nothing: the block stays in the primary
//! tier until it is evicted there.
//!
//! | file | holds |
//! |---|---|
//! | `settings` | [`PressureSettings`]: water marks and the rest, their defaults and rules |
//! | `detector` | [`Detector`]: is the tier under pressure? The seam for detectors of one's own |
//! | `ema` | [`EmaDetector`]: the one that settings make |
//! | `policy` | [`DropPolicy`]: which stores to drop when it is |
//! | `gate` | [`Gate`]: bytes in flight, then the detector; what the manager asks |
//! | `breaker` | [`Breaker`]: whether a device that fails or hangs is asked at all |
//!
//! The signal is seconds per MiB (2^20 bytes) of a completed store, so that jobs and blocks of any size
//! compare. It is smoothed by an exponential moving average, `ema = alpha * x + (1 - alpha) * ema`; silence
//! under pressure lets it decay, `ema *= 0.5^(dt / half_life)`; the throttled policy drops the share `min(1,
//! (ema - high) / (high * ramp_factor))` of the stores. These are the formulas of vLLM 0.33
//! (`vllm/v1/kv_offload/tiering/backpressure.py`), and [`EmaDetector`] decides as vLLM's detector does when
//! it is fed the same observations at the same times.
//!
//! Two things differ around it. [`Gate`] feeds **device time**, measured by the worker from the moment the
//! I/O is issued: a completion seen when the scheduler polls measures the engine's step, and drops up to 94 %
//! of the stores of a healthy disk. And [`Gate`] bounds the bytes in flight, because a moving average of
//! completions learns of a slow device only after the queue has grown.
//!
//! Everything here is a pure function of observations and of the `now` each call is given: no clock, lock,
//! thread, I/O or logging, and no allocation after construction.

mod breaker;
mod detector;
mod ema;
mod gate;
mod policy;
mod settings;
#[cfg(test)]
mod tests;

pub use breaker::{Breaker, BreakerSettings, BreakerState};
pub use detector::{
    Detector, DeviceSample, InFlight, Marks, Transition, TransitionCause, TransitionKind, Verdict,
};
pub use ema::{EmaDetector, Question};
pub use gate::{Admission, Gate};
pub use policy::{Drop, DropPolicy, LatencySignal, ThrottledDrop};
pub use settings::{DropPolicyKind, PressureSettings, default_max_inflight};

pub use crate::{
    events::Locality,
    metrics::{DetectorStats, DropCount, DropsByReason, GateStats, Refusal},
};
