//! The settings of back-pressure (I9), their defaults by medium, and the rules they must keep.

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::{
    error::{Error, Result},
    events::Locality,
};

const OP: &str = "configure back-pressure";
const GIB: u64 = 1 << 30;

/// Which policy drops stores under pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum DropPolicyKind {
    /// Every store: [`Drop`](super::Drop).
    Drop,
    /// A share that grows with the pressure: [`ThrottledDrop`](super::ThrottledDrop).
    #[default]
    ThrottledDrop,
}

/// The settings of one tier's back-pressure. The default is that of local storage.
///
/// ```
/// use kvweir::pressure::{Locality, PressureSettings};
/// let network = PressureSettings::default_config("fs", "Remote".parse()?);
/// assert_eq!((network.high_water_s, network.low_water_s), (0.050, 0.010));
/// assert!(PressureSettings { high_water_s: 0.001, ..network }.validate().is_err());
/// # Ok::<(), kvweir::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct PressureSettings {
    /// An EMA above this sets pressure, in seconds per MiB. Local 0.010, network 0.050.
    pub high_water_s: f64,
    /// An EMA below this clears pressure, in seconds per MiB; at most `high_water_s`, and greater than zero with
    /// [`DropPolicyKind::Drop`]. Local 0.002, network 0.010.
    pub low_water_s: f64,
    /// The weight of the newest sample, in (0, 1]. Default 0.15.
    pub alpha: f64,
    /// How many first completions are only collected; their mean starts the EMA. Default 10; 0 starts from an EMA
    /// of zero.
    pub warmup_completions: u32,
    /// Under pressure the EMA halves in this many seconds of silence. Default 2; zero or less disables decay,
    /// which [`DropPolicyKind::Drop`] does not allow.
    pub decay_half_life_s: f64,
    /// After pressure clears every second store is dropped for this many seconds. Default 1; zero or less
    /// disables it.
    pub cooldown_s: f64,
    /// How many failed stores in a row (at least 1) mean pressure; `None` ignores failures. Default 3 for
    /// storage tiers.
    pub failure_threshold: Option<u32>,
    /// What is dropped under pressure. Default: a share that grows with it.
    pub policy: DropPolicyKind,
    /// [`DropPolicyKind::ThrottledDrop`] drops everything when the EMA is this many high marks above the high
    /// mark. Greater than zero, default 2.
    pub ramp_factor: f64,
    /// The most bytes of stores submitted and not yet completed, at least 1. A single larger job goes alone, when
    /// nothing is in flight. Default: [`default_max_inflight`].
    pub max_inflight_bytes: Option<u64>,
}

impl Default for PressureSettings {
    fn default() -> Self {
        Self::defaults(Locality::Local, true)
    }
}

impl PressureSettings {
    /// The failed stores in a row that put a storage tier under pressure.
    pub const STORAGE_FAILURE_THRESHOLD: u32 = 3;

    /// The defaults for a medium at `locality`; `storage` says whether the tier stores durably, so that
    /// failed stores tell of its health (disk full) and not of one request (a peer that went away).
    pub const fn defaults(locality: Locality, storage: bool) -> Self {
        let (high_water_s, low_water_s) = match locality {
            Locality::Local => (0.010, 0.002),
            Locality::Remote => (0.050, 0.010),
        };
        Self {
            high_water_s,
            low_water_s,
            alpha: 0.15,
            warmup_completions: 10,
            decay_half_life_s: 2.0,
            cooldown_s: 1.0,
            failure_threshold: if storage {
                Some(Self::STORAGE_FAILURE_THRESHOLD)
            } else {
                None
            },
            policy: DropPolicyKind::ThrottledDrop,
            ramp_factor: 2.0,
            max_inflight_bytes: None,
        }
    }

    /// The defaults for a tier of this type: object tiers (`obj`, `object`) are remote wherever they are, and
    /// only storage tiers (those, `fs` and `pack`) have a failure threshold.
    pub fn default_config(tier_type: &str, locality: Locality) -> Self {
        let object = matches!(tier_type, "obj" | "object");
        let storage = object || matches!(tier_type, "fs" | "pack");
        Self::defaults(if object { Locality::Remote } else { locality }, storage)
    }

    /// These settings with the keys the user wrote in place of their own; checked.
    ///
    /// Deserializing a partial stanza directly fills it up with *local* defaults; this keeps those of `self`.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) for an unknown key, a value of the wrong type, or as
    /// [`validate`](Self::validate) does.
    pub fn overlay(&self, written: &Map<String, Value>) -> Result<Self> {
        let invalid = |e: serde_json::Error| Error::invalid(OP, e.to_string());
        let mut merged = serde_json::to_value(self).map_err(invalid)?;
        if let Value::Object(fields) = &mut merged {
            fields.extend(written.iter().map(|(k, v)| (k.clone(), v.clone())));
        }
        let merged: Self = serde_json::from_value(merged).map_err(invalid)?;
        merged.validate()?;
        Ok(merged)
    }

    /// Checks every rule the fields state.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) naming each setting that is wrong, its value and what is
    /// allowed.
    pub fn validate(&self) -> Result<()> {
        refuse(&self.mistakes())
    }

    /// As [`validate`](Self::validate), for a detector with a policy of its own.
    pub(super) fn validate_marks(&self) -> Result<()> {
        refuse(&self.mistakes_but_of_policy())
    }

    /// The rules that the fields break: one line per rule, beginning with the setting's name; empty for good settings.
    pub fn mistakes(&self) -> Vec<String> {
        let mut all = self.mistakes_but_of_policy();
        match self.policy {
            DropPolicyKind::Drop => all.extend(self.drops_for_ever()),
            DropPolicyKind::ThrottledDrop if self.high_water_s <= 0.0 => all.push(format!(
                "high_water_s = {}: every store that completes sets pressure and every store is dropped, so that it \
                 never ends; greater than 0 is allowed",
                self.high_water_s
            )),
            DropPolicyKind::ThrottledDrop => {}
        }
        all
    }

    /// [`mistakes`](Self::mistakes) without what only [`policy`](Self::policy) needs: for detectors with another one.
    fn mistakes_but_of_policy(&self) -> Vec<String> {
        let mut all = Vec::new();
        let finite = [
            ("high_water_s", self.high_water_s),
            ("low_water_s", self.low_water_s),
            ("decay_half_life_s", self.decay_half_life_s),
            ("cooldown_s", self.cooldown_s),
        ];
        for (name, value) in finite {
            if !value.is_finite() {
                all.push(format!("{name} = {value}: a finite number is needed"));
            }
        }
        if self.low_water_s > self.high_water_s {
            all.push(format!(
                "low_water_s = {} lies above high_water_s = {}: it must be less or equal",
                self.low_water_s, self.high_water_s
            ));
        }
        if !(self.alpha > 0.0 && self.alpha <= 1.0) {
            all.push(format!(
                "alpha = {}: greater than 0 and at most 1 is allowed",
                self.alpha
            ));
        }
        if self.failure_threshold == Some(0) {
            all.push("failure_threshold = 0: at least 1, or none to ignore failures".to_owned());
        }
        all.extend(ramp_factor_mistake(self.ramp_factor));
        if self.max_inflight_bytes == Some(0) {
            all.push("max_inflight_bytes = 0 leaves no room for any store: at least 1 is needed".to_owned());
        }
        all
    }

    /// Where every store is dropped nothing completes, so only decay below the low mark ends pressure.
    fn drops_for_ever(&self) -> Vec<String> {
        let marks = [
            (
                "low_water_s",
                self.low_water_s,
                "the average never falls below it",
            ),
            (
                "decay_half_life_s",
                self.decay_half_life_s,
                "the average never falls",
            ),
        ];
        let wrong = marks.into_iter().filter(|(_, value, _)| *value <= 0.0);
        wrong
            .map(|(name, value, why)| {
                format!(
                    "{name} = {value}: with a policy that drops every store {why}, and pressure never ends; greater \
                     than 0 is allowed, or throttled_drop"
                )
            })
            .collect()
    }
}

fn refuse(mistakes: &[String]) -> Result<()> {
    if mistakes.is_empty() {
        return Ok(());
    }
    Err(Error::invalid(OP, mistakes.join("; ")))
}

pub(super) fn check_ramp_factor(ramp_factor: f64) -> Result<()> {
    ramp_factor_mistake(ramp_factor).map_or(Ok(()), |m| Err(Error::invalid(OP, m)))
}

fn ramp_factor_mistake(ramp_factor: f64) -> Option<String> {
    let good = ramp_factor.is_finite() && ramp_factor > 0.0;
    (!good).then(|| format!("ramp_factor = {ramp_factor}: a finite number greater than 0 is needed"))
}

/// The default of [`PressureSettings::max_inflight_bytes`] for a primary tier of `primary_bytes` bytes: 2
/// GiB, or a quarter of the primary if that is less.
pub const fn default_max_inflight(primary_bytes: u64) -> u64 {
    let quarter = primary_bytes / 4;
    if quarter < 2 * GIB { quarter } else { 2 * GIB }
}

#[cfg(test)]
mod tests;
