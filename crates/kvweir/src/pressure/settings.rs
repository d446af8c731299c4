//! The settings of back-pressure (I9), their defaults by medium, and the rules they must keep.

use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use crate::error::{Error, Result};

const OP: &str = "configure back-pressure";
const GIB: u64 = 1 << 30;

/// Where the medium behind a tier is; decides the default water marks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "&'static str")]
pub enum Locality {
    /// A disk of this machine.
    #[default]
    Local,
    /// Reached over a network: a network file system or an object store.
    Remote,
}

impl From<Locality> for &'static str {
    fn from(locality: Locality) -> Self {
        match locality {
            Locality::Local => "LOCAL",
            Locality::Remote => "REMOTE",
        }
    }
}

impl FromStr for Locality {
    type Err = Error;

    /// `local` or `remote`, in any letter case.
    fn from_str(s: &str) -> Result<Self> {
        match s {
            _ if s.eq_ignore_ascii_case("local") => Ok(Self::Local),
            _ if s.eq_ignore_ascii_case("remote") => Ok(Self::Remote),
            _ => Err(Error::invalid(
                OP,
                format!("locality is LOCAL or REMOTE in any letter case, not {s:?}"),
            )),
        }
    }
}

impl TryFrom<String> for Locality {
    type Error = Error;

    fn try_from(s: String) -> Result<Self> {
        s.parse()
    }
}

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
    /// So many first completions only collect; their mean starts the EMA. Default 10; 0 starts from an EMA of
    /// zero.
    pub warmup_completions: u32,
    /// Under pressure the EMA halves in so many seconds of silence. Default 2; zero or less disables decay,
    /// which [`DropPolicyKind::Drop`] does not go with.
    pub decay_half_life_s: f64,
    /// After pressure clears every second store is dropped for so many seconds. Default 1; zero or less
    /// disables it.
    pub cooldown_s: f64,
    /// So many failed stores in a row (at least 1) mean pressure; none ignores failures. Default 3 for
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

    /// Every rule that the fields break, in a line each that begins with the setting's name; empty for good settings.
    pub fn mistakes(&self) -> Vec<String> {
        let mut all = self.mistakes_but_of_policy();
        match self.policy {
            DropPolicyKind::Drop => all.extend(self.drops_for_ever()),
            DropPolicyKind::ThrottledDrop if self.high_water_s <= 0.0 => all.push(format!(
                "high_water_s = {}: every store that completes sets pressure and every store is dropped, so that it never \
                 ends; greater than 0 is allowed",
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
mod tests {
    use serde_json::json;

    use super::*;
    use crate::ErrorKind;

    /// After one activation such a detector dropped every store for ever: nothing completed, so nothing cleared it.
    #[test]
    fn settings_under_which_pressure_would_never_end_are_refused_wherever_they_are_read() {
        let good = PressureSettings::default();
        let bad = [
            (DropPolicyKind::Drop, 0.01, 0.0, 2.0, "low_water_s = 0:"),
            (DropPolicyKind::Drop, 0.01, -1.0, 2.0, "low_water_s = -1:"),
            (DropPolicyKind::Drop, 0.01, 0.002, 0.0, "decay_half_life_s = 0:"),
            (DropPolicyKind::Drop, 0.01, 0.002, -2.0, "decay_half_life_s = -2:"),
            (DropPolicyKind::ThrottledDrop, 0.0, 0.0, 2.0, "high_water_s = 0:"),
        ];
        for (policy, high_water_s, low_water_s, decay_half_life_s, words) in bad {
            let bad = PressureSettings {
                policy,
                high_water_s,
                low_water_s,
                decay_half_life_s,
                ..good
            };
            let written = serde_json::to_value(bad).unwrap();
            for e in [
                bad.validate().unwrap_err(),
                crate::pressure::EmaDetector::new(bad).unwrap_err(),
                crate::pressure::Gate::new(bad, 1 << 30).unwrap_err(),
                good.overlay(written.as_object().unwrap()).unwrap_err(),
            ] {
                assert_eq!(e.kind(), ErrorKind::Invalid);
                assert!(e.to_string().contains(words), "{e}");
            }
            let own = Box::new(crate::pressure::Drop);
            assert!(crate::pressure::EmaDetector::with_policy(bad, own).is_ok());
        }
        // a share of the stores goes through, and tells
        let throttled = PressureSettings {
            low_water_s: 0.0,
            decay_half_life_s: 0.0,
            ..good
        };
        throttled.validate().unwrap();
    }

    #[test]
    fn a_broken_rule_is_an_invalid_error_naming_setting_and_values() {
        let good = PressureSettings::default();
        good.validate().unwrap();
        let drop = PressureSettings {
            policy: DropPolicyKind::Drop,
            ..good
        };
        drop.validate().unwrap();
        let table: [(PressureSettings, &[&str]); 17] = [
            (
                PressureSettings {
                    low_water_s: 0.0,
                    ..drop
                },
                &["low_water_s = 0", "never ends"],
            ),
            (
                PressureSettings {
                    decay_half_life_s: 0.0,
                    ..drop
                },
                &["decay_half_life_s = 0", "never ends"],
            ),
            (
                PressureSettings {
                    decay_half_life_s: -1.0,
                    alpha: 2.0,
                    ..drop
                },
                &["decay_half_life_s = -1", "never ends", "alpha = 2"],
            ),
            (
                PressureSettings {
                    low_water_s: 0.03,
                    ..good
                },
                &["low_water_s = 0.03", "high_water_s = 0.01"],
            ),
            (
                PressureSettings { alpha: 0.0, ..good },
                &["alpha = 0", "at most 1"],
            ),
            (
                PressureSettings { alpha: 1.5, ..good },
                &["alpha = 1.5", "at most 1"],
            ),
            (PressureSettings { alpha: -0.1, ..good }, &["alpha = -0.1"]),
            (
                PressureSettings {
                    alpha: f64::NAN,
                    ..good
                },
                &["alpha = NaN"],
            ),
            (
                PressureSettings {
                    failure_threshold: Some(0),
                    ..good
                },
                &["failure_threshold = 0", "at least 1"],
            ),
            (
                PressureSettings {
                    ramp_factor: 0.0,
                    ..good
                },
                &["ramp_factor = 0", "greater than 0"],
            ),
            (
                PressureSettings {
                    ramp_factor: -2.0,
                    ..good
                },
                &["ramp_factor = -2"],
            ),
            (
                PressureSettings {
                    ramp_factor: f64::NAN,
                    ..good
                },
                &["ramp_factor = NaN"],
            ),
            (
                PressureSettings {
                    high_water_s: f64::INFINITY,
                    ..good
                },
                &["high_water_s = inf"],
            ),
            (
                PressureSettings {
                    low_water_s: f64::NAN,
                    ..good
                },
                &["low_water_s = NaN"],
            ),
            (
                PressureSettings {
                    decay_half_life_s: f64::NAN,
                    ..good
                },
                &["decay_half_life_s = NaN"],
            ),
            (
                PressureSettings {
                    cooldown_s: f64::INFINITY,
                    ..good
                },
                &["cooldown_s = inf"],
            ),
            (
                PressureSettings {
                    max_inflight_bytes: Some(0),
                    ..good
                },
                &["max_inflight_bytes = 0"],
            ),
        ];
        for (settings, words) in table {
            let e = settings.validate().unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Invalid);
            for word in words {
                assert!(e.to_string().contains(word), "{word:?} is missing in {e}");
            }
            assert!(crate::pressure::EmaDetector::new(settings).is_err());
        }
    }

    #[test]
    fn the_allowed_extremes_are_accepted() {
        let good = PressureSettings::default();
        for settings in [
            PressureSettings { alpha: 1.0, ..good },
            PressureSettings {
                low_water_s: 0.01,
                high_water_s: 0.01,
                ..good
            },
            PressureSettings {
                failure_threshold: None,
                ..good
            },
            PressureSettings {
                warmup_completions: 0,
                decay_half_life_s: 0.0,
                cooldown_s: 0.0,
                ..good
            },
        ] {
            settings.validate().unwrap();
        }
    }

    #[test]
    fn defaults_are_those_documented() {
        let local: PressureSettings = serde_json::from_value(json!({})).unwrap();
        assert_eq!(local, PressureSettings::default());
        let expected = json!({
            "high_water_s": 0.010, "low_water_s": 0.002, "alpha": 0.15, "warmup_completions": 10,
            "decay_half_life_s": 2.0, "cooldown_s": 1.0, "failure_threshold": 3, "policy": "throttled_drop",
            "ramp_factor": 2.0, "max_inflight_bytes": null,
        });
        assert_eq!(serde_json::to_value(local).unwrap(), expected);
    }

    #[test]
    fn remote_in_any_letter_case_and_object_tiers_get_network_marks() {
        for word in ["REMOTE", "remote", "Remote", "rEmOtE"] {
            let locality: Locality = word.parse().unwrap();
            assert_eq!(serde_json::from_value::<Locality>(json!(word)).unwrap(), locality);
            let s = PressureSettings::default_config("fs", locality);
            assert_eq!(
                (s.high_water_s, s.low_water_s, s.failure_threshold),
                (0.050, 0.010, Some(3)),
                "{word}"
            );
        }
        assert_eq!("lOcAl".parse::<Locality>().unwrap(), Locality::Local);
        assert!(
            "moon"
                .parse::<Locality>()
                .unwrap_err()
                .to_string()
                .contains("moon")
        );
        let table = [
            ("fs", 0.010, Some(3)),
            ("pack", 0.010, Some(3)),
            ("obj", 0.050, Some(3)),
            ("p2p", 0.010, None),
        ];
        for (tier, high, failures) in table {
            let s = PressureSettings::default_config(tier, Locality::Local);
            assert_eq!((s.high_water_s, s.failure_threshold), (high, failures), "{tier}");
        }
    }

    #[test]
    fn what_the_user_wrote_lies_over_the_defaults_of_the_tier() {
        let network = PressureSettings::defaults(Locality::Remote, true);
        let overlay = |v: Value| network.overlay(v.as_object().unwrap());
        let s = overlay(json!({ "alpha": 0.5, "policy": "drop", "failure_threshold": null })).unwrap();
        let expected = PressureSettings {
            alpha: 0.5,
            policy: DropPolicyKind::Drop,
            failure_threshold: None,
            ..network
        };
        assert_eq!(s, expected);
        for (bad, word) in [
            (json!({ "alpah": 0.5 }), "alpah"),
            (json!({ "alpha": "x" }), "f64"),
            (json!({ "high_water_s": 0.001 }), "high_water_s = 0.001"),
        ] {
            let e = overlay(bad).unwrap_err();
            assert_eq!(e.kind(), ErrorKind::Invalid);
            assert!(e.to_string().contains(word), "{e}");
        }
    }

    #[test]
    fn the_default_bound_is_a_quarter_of_the_primary_up_to_2_gib() {
        assert_eq!(default_max_inflight(4 * GIB), GIB);
        assert_eq!(default_max_inflight(8 * GIB), 2 * GIB);
        assert_eq!(default_max_inflight(64 * GIB), 2 * GIB);
        assert_eq!(default_max_inflight(0), 0);
    }
}
