//! Which stores to drop under pressure (I9). A policy only decides; whoever asks it counts what was dropped.
//!
//! [`ThrottledDrop`] drops the share `min(1, overshoot / ramp_factor)`, `overshoot = max(0, ema - high) /
//! high`, of the stores, as vLLM 0.33 does (`vllm/v1/kv_offload/tiering/backpressure.py`): an accumulator
//! makes the long-run share equal that rate, where an integer period would make every rate between 0.4 and 1
//! one half.

use std::fmt::Debug;

use super::settings::{DropPolicyKind, PressureSettings, check_ramp_factor};
use crate::error::Result;

/// What a policy may know of the detector that asks it.
pub trait LatencySignal {
    /// The smoothed latency of stores, in seconds per MiB.
    fn ema(&self) -> f64;

    /// The mark above which there is pressure, in seconds per MiB.
    fn high_water(&self) -> f64;

    /// Whether the tier is under pressure, as of the latest question or observation.
    fn under_pressure(&self) -> bool;
}

/// Decides which stores a tier is spared.
pub trait DropPolicy: Send + Debug {
    /// Whether the next store may go to the tier. Each call is one decision.
    fn admit(&mut self, signal: &dyn LatencySignal) -> bool;

    /// Forgets all earlier decisions.
    fn reset(&mut self);
}

impl PressureSettings {
    /// The policy these settings name.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when `ramp_factor` is not greater than zero.
    pub fn build_policy(&self) -> Result<Box<dyn DropPolicy>> {
        Ok(match self.policy {
            DropPolicyKind::Drop => Box::new(Drop),
            DropPolicyKind::ThrottledDrop => Box::new(ThrottledDrop::new(self.ramp_factor)?),
        })
    }
}

/// Drops every store under pressure.
#[derive(Debug, Clone, Copy, Default)]
pub struct Drop;

impl DropPolicy for Drop {
    fn admit(&mut self, signal: &dyn LatencySignal) -> bool {
        !signal.under_pressure()
    }

    fn reset(&mut self) {}
}

/// Drops a share of the stores that grows from none, at the high mark, to all, at `1 + ramp_factor` high
/// marks.
#[derive(Debug, Clone)]
pub struct ThrottledDrop {
    ramp_factor: f64,
    accumulator: f64,
}

impl ThrottledDrop {
    /// A policy that drops everything from an EMA of `1 + ramp_factor` high marks on.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) unless `ramp_factor` is finite and greater than
    /// zero.
    pub fn new(ramp_factor: f64) -> Result<Self> {
        check_ramp_factor(ramp_factor)?;
        Ok(Self {
            ramp_factor,
            accumulator: 0.0,
        })
    }
}

impl DropPolicy for ThrottledDrop {
    fn admit(&mut self, signal: &dyn LatencySignal) -> bool {
        if !signal.under_pressure() {
            return true;
        }
        let high = signal.high_water();
        if high <= 0.0 {
            return false;
        }
        let overshoot = (signal.ema() - high).max(0.0) / high;
        let rate = (overshoot / self.ramp_factor).min(1.0);
        if rate <= 0.0 {
            return true;
        }
        if rate >= 1.0 {
            return false;
        }
        self.accumulator += rate;
        if self.accumulator >= 1.0 {
            self.accumulator -= 1.0;
            return false;
        }
        true
    }

    fn reset(&mut self) {
        self.accumulator = 0.0;
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

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

    /// Under pressure, at the EMA that means this rate.
    fn at_rate(rate: f64, high: f64, ramp: f64) -> Signal {
        Signal {
            ema: high * (1.0 + rate * ramp),
            high,
            pressure: true,
        }
    }

    fn refused(policy: &mut dyn DropPolicy, signal: &Signal, decisions: u32) -> u32 {
        (0..decisions).filter(|_| !policy.admit(signal)).count() as u32
    }

    #[test]
    fn drop_refuses_exactly_under_pressure() {
        let mut policy = Drop;
        assert_eq!(
            refused(
                &mut policy,
                &Signal {
                    ema: 0.0,
                    high: 0.01,
                    pressure: true
                },
                10
            ),
            10
        );
        assert_eq!(
            refused(
                &mut policy,
                &Signal {
                    ema: 9.0,
                    high: 0.01,
                    pressure: false
                },
                10
            ),
            0
        );
    }

    #[test]
    fn throttled_drop_refuses_its_rate_exactly_to_one() {
        for rate in [0.1, 0.25, 0.5, 0.75, 0.99] {
            let mut policy = ThrottledDrop::new(2.0).unwrap();
            let got = refused(&mut policy, &at_rate(rate, 0.010, 2.0), 10_000);
            assert!(
                (f64::from(got) - rate * 10_000.0).abs() <= 1.0,
                "rate {rate}: {got} of 10000"
            );
        }
    }

    #[test]
    fn throttled_drop_spreads_its_refusals() {
        let mut policy = ThrottledDrop::new(2.0).unwrap();
        let signal = at_rate(0.25, 1.0, 2.0);
        let pattern: Vec<bool> = (0..8).map(|_| policy.admit(&signal)).collect();
        assert_eq!(pattern, [true, true, true, false, true, true, true, false]);
    }

    #[test]
    fn throttled_drop_admits_all_at_the_mark_and_none_at_the_end_of_the_ramp() {
        let mut policy = ThrottledDrop::new(2.0).unwrap();
        assert_eq!(refused(&mut policy, &at_rate(0.0, 0.010, 2.0), 100), 0);
        assert_eq!(
            refused(
                &mut policy,
                &Signal {
                    ema: 0.004,
                    high: 0.010,
                    pressure: true
                },
                100
            ),
            0
        );
        assert_eq!(refused(&mut policy, &at_rate(1.0, 1.0, 2.0), 100), 100);
        assert_eq!(refused(&mut policy, &at_rate(7.0, 1.0, 2.0), 100), 100);
        assert_eq!(
            refused(
                &mut policy,
                &Signal {
                    ema: 0.0,
                    high: 0.0,
                    pressure: true
                },
                100
            ),
            100
        );
        assert_eq!(
            refused(
                &mut policy,
                &Signal {
                    ema: 1.0,
                    high: -1.0,
                    pressure: true
                },
                100
            ),
            100
        );
        assert_eq!(
            refused(
                &mut policy,
                &Signal {
                    ema: 9.0,
                    high: 0.0,
                    pressure: false
                },
                100
            ),
            0
        );
    }

    #[test]
    fn ramp_factor_scales_the_ramp() {
        let mut policy = ThrottledDrop::new(4.0).unwrap();
        assert_eq!(
            refused(
                &mut policy,
                &Signal {
                    ema: 3.0,
                    high: 1.0,
                    pressure: true
                },
                1_000
            ),
            500
        );
    }

    #[test]
    fn reset_forgets_the_accumulated_fraction() {
        let signal = at_rate(0.75, 1.0, 2.0);
        let mut policy = ThrottledDrop::new(2.0).unwrap();
        assert!(policy.admit(&signal));
        policy.reset();
        assert!(policy.admit(&signal));
        assert!(!policy.admit(&signal));
    }

    proptest! {
        #[test]
        fn the_share_refused_is_the_mean_rate(rates in prop::collection::vec(0.0..0.999_f64, 1..2_000)) {
            let mut policy = ThrottledDrop::new(2.0).unwrap();
            let mut got = 0.0;
            for &rate in &rates {
                if !policy.admit(&at_rate(rate, 0.010, 2.0)) {
                    got += 1.0;
                }
            }
            let want: f64 = rates.iter().sum();
            prop_assert!((got - want).abs() < 1.0 + 1e-6, "{got} refused, the rates sum up to {want}");
        }
    }
}
