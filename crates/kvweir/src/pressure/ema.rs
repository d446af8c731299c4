//! The detector: an exponential moving average (EMA) of seconds per MiB between two water marks (I9).
//!
//! `ema = alpha * x + (1 - alpha) * ema` at each completion after warm-up; `ema *= 0.5^(dt / half_life)` at
//! each question under pressure, `dt` being the silence since the EMA last moved. Source: vLLM 0.33,
//! `vllm/v1/kv_offload/tiering/backpressure.py`; the decisions are the same for the same observations and
//! times.

use super::{
    detector::{
        Detector, DeviceSample, InFlight, Marks, Transition, TransitionCause, TransitionKind, Verdict,
    },
    policy::{DropPolicy, LatencySignal},
    settings::PressureSettings,
};
use crate::{clock::Instant, error::Result, metrics::DetectorStats};

const MIB: f64 = (1_u64 << 20) as f64;

/// How many completions in a row below the low mark open the fast path.
const HEALTHY_STREAK: u64 = 10;

/// Failures raise the EMA to this many high marks: with the default ramp every store is dropped until it has
/// decayed.
const FAILURE_EMA_FACTOR: f64 = 4.0;

/// The slowest that a store counts as, in seconds per MiB: larger numbers say nothing more, and their sums would not
/// be finite, from which no average recovers.
const SLOWEST: f64 = 1e9;

/// What a detector says of a store before its policy is asked.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Question {
    /// Store it: the tier has been healthy for a while.
    Admit,
    /// Drop it: pressure cleared a moment ago, and every second store is still dropped.
    Cooldown,
    /// The policy decides.
    Policy,
}

/// Watches the store completions of one tier and says which stores to drop.
///
/// ```
/// use kvweir::{clock::Instant, pressure::{EmaDetector, PressureSettings}};
/// let mut detector = EmaDetector::new(PressureSettings::default())?;
/// let now = Instant::from_secs_f64(1.0);
/// for _ in 0..20 {
///     detector.on_store_completed(now, 0.030, 1 << 20);
/// }
/// assert!(detector.is_under_pressure(now));
/// assert!(!detector.should_store(now, 8));
/// assert_eq!(detector.pop_stores_dropped(), (1, 8));
/// # Ok::<(), kvweir::Error>(())
/// ```
#[derive(Debug)]
pub struct EmaDetector {
    state: State,
    policy: Box<dyn DropPolicy>,
    stores_dropped: u64,
    blocks_dropped: u64,
}

/// Everything but the policy, so that the policy can look at it.
#[derive(Debug)]
struct State {
    settings: PressureSettings,
    ema: f64,
    under_pressure: bool,
    completions: u64,
    warmup_sum: f64,
    last_update: Instant,
    streak: u64,
    /// When pressure last cleared; means nothing under pressure.
    cleared_at: Option<Instant>,
    /// Whether the next question in the cool-down drops.
    second: bool,
    failures: u64,
    transition: Option<Transition>,
    activations: u64,
}

impl EmaDetector {
    /// A detector with the policy its settings name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) as [`PressureSettings::validate`].
    pub fn new(settings: PressureSettings) -> Result<Self> {
        settings.validate()?;
        Self::with_policy(settings, settings.build_policy()?)
    }

    /// A detector with a policy of one's own; `settings.policy`, and what only it needs, is ignored.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) as [`PressureSettings::validate`].
    pub fn with_policy(settings: PressureSettings, policy: Box<dyn DropPolicy>) -> Result<Self> {
        settings.validate_marks()?;
        Ok(Self {
            state: State::new(settings),
            policy,
            stores_dropped: 0,
            blocks_dropped: 0,
        })
    }

    /// Observes a store of `bytes` bytes that took `seconds`. What is no measurement (zero bytes; negative or
    /// non-finite seconds) is ignored.
    pub fn on_store_completed(&mut self, now: Instant, seconds: f64, bytes: u64) {
        self.state.on_completed(now, seconds, bytes);
    }

    /// Observes a store as an engine that polls does: submitted at `submit_time`, of `bytes` bytes, seen
    /// complete now. Measures the polling step too; [`Gate`](super::Gate) does better. `bytes <= 0` is
    /// ignored.
    pub fn update(&mut self, now: Instant, submit_time: Instant, bytes: i64) {
        if let Ok(bytes) = u64::try_from(bytes) {
            self.on_store_completed(now, now.since(submit_time).as_secs_f64(), bytes);
        }
    }

    /// Observes a store that failed; ignored when the settings have no `failure_threshold`.
    pub fn on_store_failed(&mut self, now: Instant) {
        self.state.on_failed(now);
    }

    /// Whether the tier is under pressure. Under pressure, asking applies idle decay.
    pub fn is_under_pressure(&mut self, now: Instant) -> bool {
        self.state.ask(now)
    }

    /// Whether a store of `num_blocks` blocks may go to the tier; one that may not is counted as dropped.
    pub fn should_store(&mut self, now: Instant, num_blocks: u64) -> bool {
        self.decide(now, num_blocks) == Verdict::Admit
    }

    /// What the detector says of one store before any policy is asked; nothing is counted as dropped. For callers
    /// with a policy of their own.
    pub fn ask(&mut self, now: Instant) -> Question {
        let under_pressure = self.state.ask(now);
        if self.state.is_healthy() {
            Question::Admit
        } else if !under_pressure && self.state.cooldown_drops(now) {
            Question::Cooldown
        } else {
            Question::Policy
        }
    }

    /// [`should_store`](Self::should_store) with the reason.
    pub fn decide(&mut self, now: Instant, num_blocks: u64) -> Verdict {
        let verdict = match self.ask(now) {
            Question::Admit => return Verdict::Admit,
            Question::Cooldown => Verdict::Cooldown,
            Question::Policy if self.policy.admit(&self.state) => return Verdict::Admit,
            Question::Policy => Verdict::Pressure,
        };
        self.stores_dropped += 1;
        self.blocks_dropped = self.blocks_dropped.saturating_add(num_blocks);
        verdict
    }

    /// Forgets all observations, the policy's state and the drops not yet popped. If there was pressure, its
    /// end is left as a transition.
    pub fn reset(&mut self) {
        self.state.reset();
        self.policy.reset();
        self.stores_dropped = 0;
        self.blocks_dropped = 0;
    }

    /// The stores and blocks dropped since the last call or reset.
    pub fn pop_stores_dropped(&mut self) -> (u64, u64) {
        (
            std::mem::take(&mut self.stores_dropped),
            std::mem::take(&mut self.blocks_dropped),
        )
    }

    /// The transition since the last call, if there was one. Each of the other calls makes at most one: ask
    /// after each to see all; only the latest is kept.
    pub fn take_transition(&mut self) -> Option<Transition> {
        self.state.transition.take()
    }

    /// What the detector knows, without changing it.
    pub fn stats(&self) -> DetectorStats {
        let s = &self.state;
        DetectorStats {
            ema_s_per_mib: s.ema,
            under_pressure: s.under_pressure,
            warm: s.completions >= u64::from(s.settings.warmup_completions),
            streak: s.streak,
            healthy: s.is_healthy(),
            completions: s.completions,
            consecutive_failures: s.failures,
            activations: s.activations,
        }
    }

    /// The settings it was made with.
    pub fn settings(&self) -> &PressureSettings {
        &self.state.settings
    }
}

/// Behind a gate the numbers are device time, and the policy's drops are counted by the gate.
impl Detector for EmaDetector {
    /// A job that leaves nothing in flight shows that the device kept up with what it was given, however long it took
    /// for however few bytes (a 64 KiB job of 1 ms reads as 16 ms/MiB): its sample counts as at most the high mark, so
    /// that it cannot be what starts a drop (I9).
    fn completed(&mut self, now: Instant, sample: DeviceSample, left: InFlight) {
        let mut seconds = sample.device_time.as_secs_f64();
        if left.bytes == 0 {
            seconds = seconds.min(self.high_water() * sample.bytes as f64 / MIB);
        }
        self.on_store_completed(now, seconds, sample.bytes);
    }

    fn failed(&mut self, now: Instant, _left: InFlight) {
        self.on_store_failed(now);
    }

    fn decide(&mut self, now: Instant, blocks: u64, _in_flight: InFlight) -> Verdict {
        Self::decide(self, now, blocks)
    }

    fn is_under_pressure(&mut self, now: Instant) -> bool {
        Self::is_under_pressure(self, now)
    }

    fn reset(&mut self) {
        Self::reset(self);
    }

    fn take_transition(&mut self) -> Option<Transition> {
        Self::take_transition(self)
    }

    fn stats(&self) -> DetectorStats {
        Self::stats(self)
    }
}

impl LatencySignal for EmaDetector {
    fn ema(&self) -> f64 {
        self.state.ema()
    }

    fn high_water(&self) -> f64 {
        self.state.high_water()
    }

    fn under_pressure(&self) -> bool {
        self.state.under_pressure()
    }
}

impl LatencySignal for State {
    fn ema(&self) -> f64 {
        self.ema
    }

    fn high_water(&self) -> f64 {
        self.settings.high_water_s
    }

    fn under_pressure(&self) -> bool {
        self.under_pressure
    }
}

impl State {
    fn new(settings: PressureSettings) -> Self {
        Self {
            settings,
            ema: 0.0,
            under_pressure: false,
            completions: 0,
            warmup_sum: 0.0,
            last_update: Instant::default(),
            streak: 0,
            cleared_at: None,
            second: false,
            failures: 0,
            transition: None,
            activations: 0,
        }
    }

    fn on_completed(&mut self, now: Instant, seconds: f64, bytes: u64) {
        let s_per_mib = seconds / (bytes as f64 / MIB);
        if bytes == 0 || !s_per_mib.is_finite() || s_per_mib < 0.0 {
            return;
        }
        let s_per_mib = s_per_mib.min(SLOWEST);
        self.failures = 0;
        self.completions += 1;
        let warmup = u64::from(self.settings.warmup_completions);
        if self.completions <= warmup {
            self.warmup_sum += s_per_mib;
            if self.completions == warmup {
                self.ema = self.warmup_sum / warmup as f64;
                self.last_update = now;
            }
            return;
        }
        let alpha = self.settings.alpha;
        self.ema = alpha * s_per_mib + (1.0 - alpha) * self.ema;
        self.last_update = now;
        if self.ema > self.settings.high_water_s {
            self.activate(TransitionCause::Completion);
        } else if self.ema < self.settings.low_water_s {
            self.clear(now, TransitionCause::Completion);
            self.streak += 1;
        } else {
            self.streak = 0;
        }
    }

    fn on_failed(&mut self, now: Instant) {
        let Some(threshold) = self.settings.failure_threshold else {
            return;
        };
        self.failures += 1;
        self.streak = 0;
        if self.failures < u64::from(threshold) {
            return;
        }
        let failing = (self.settings.high_water_s * FAILURE_EMA_FACTOR).min(f64::MAX);
        self.ema = self.ema.max(failing);
        self.last_update = now;
        self.activate(TransitionCause::Failures);
    }

    /// Whether there is pressure, once the silence has been turned into decay.
    fn ask(&mut self, now: Instant) -> bool {
        if self.under_pressure {
            let dt = now.since(self.last_update).as_secs_f64();
            let half_life = self.settings.decay_half_life_s;
            if dt > 0.0 && half_life > 0.0 {
                self.ema *= 0.5_f64.powf(dt / half_life);
                self.last_update = now;
            }
            if self.ema < self.settings.low_water_s {
                self.clear(now, TransitionCause::Idle);
            }
        }
        self.under_pressure
    }

    fn is_healthy(&self) -> bool {
        !self.under_pressure && self.streak >= HEALTHY_STREAK
    }

    /// One question without pressure: whether the cool-down, if one runs, drops it.
    fn cooldown_drops(&mut self, now: Instant) -> bool {
        let cooling = self
            .cleared_at
            .is_some_and(|t| now.since(t).as_secs_f64() < self.settings.cooldown_s);
        if !cooling {
            return false;
        }
        let drops = self.second;
        self.second = !drops;
        drops
    }

    fn activate(&mut self, cause: TransitionCause) {
        self.streak = 0;
        if !self.under_pressure {
            self.under_pressure = true;
            self.activations += 1;
            self.note(TransitionKind::Activated, cause);
        }
    }

    fn clear(&mut self, now: Instant, cause: TransitionCause) {
        if self.under_pressure {
            self.under_pressure = false;
            self.cleared_at = Some(now);
            self.second = false;
            self.note(TransitionKind::Cleared, cause);
        }
    }

    fn note(&mut self, kind: TransitionKind, cause: TransitionCause) {
        let marks = Marks {
            ema: self.ema,
            high: self.settings.high_water_s,
            low: self.settings.low_water_s,
        };
        self.transition = Some(Transition {
            kind,
            cause,
            marks: Some(marks),
        });
    }

    fn reset(&mut self) {
        let (was_under_pressure, fresh) = (self.under_pressure, Self::new(self.settings));
        *self = Self {
            transition: self.transition,
            activations: self.activations,
            ..fresh
        };
        if was_under_pressure {
            self.note(TransitionKind::Cleared, TransitionCause::Reset);
        }
    }
}
