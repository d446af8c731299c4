//! Settings as users of vLLM write them: one table of all of them, and one checker that reports every mistake at once.
//!
//! The Python package, `kvweir doctor --stanza` and the tables of the manual all read [`TIER`],
//! [`BACKPRESSURE`] and [`MANAGER`]. A
//! new setting is a row there and a field where it is used. What values must be *together* is asked of
//! [`FsSettings`](crate::fs::FsSettings) and [`PressureSettings`](crate::pressure::PressureSettings), which keep these
//! rules for every host.
//!
//! | file | holds |
//! |---|---|
//! | `table` | the settings: names, kinds, defaults, meanings |
//! | `value` | a value as written, and as understood |
//! | `read` | a table against what was written; one tier; one `backpressure` |
//! | `look` | a check under way |
//! | `transfer` | a whole `--kv-transfer-config` |
//! | `tier` | a tier in it |
//! | `primary` | the primary's slots against the longest prompt |
//! | `near` | the name that was meant |
//!
//! A mistake is a value, not an [`Error`](crate::Error): there may be many, and the caller decides what becomes of
//! them.

mod look;
mod near;
mod primary;
mod read;
mod table;
#[cfg(test)]
mod tests;
mod tier;
mod transfer;
mod value;

use std::{collections::BTreeMap, fmt};

use serde::Serialize;

pub use look::Checked;
pub use near::{distance, nearest};
pub use primary::{Model, PrimaryFit};
pub use read::{TierKind, read_backpressure, read_manager, read_tier};
pub use table::{BACKPRESSURE, Kind, MANAGER, Setting, TIER};
pub use transfer::{check, check_tier};
pub use value::{Given, Parsed, Value};

/// A setting that cannot be used.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Mistake {
    /// Where it stands, such as `secondary_tiers[0]`; empty where that is obvious.
    pub at: String,
    /// Its name.
    pub setting: String,
    /// Name, value and what is allowed, in one line.
    pub message: String,
}

impl Mistake {
    fn new(setting: impl Into<String>, message: impl Into<String>) -> Self {
        Self {
            at: String::new(),
            setting: setting.into(),
            message: message.into(),
        }
    }

    /// The same, standing in `place`.
    fn within(mut self, place: &str) -> Self {
        if self.at.is_empty() {
            self.at = place.to_owned();
        } else {
            self.at = format!("{place}.{}", self.at);
        }
        self
    }
}

impl fmt::Display for Mistake {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.at.is_empty() {
            f.write_str(&self.message)
        } else {
            write!(f, "{}: {}", self.at, self.message)
        }
    }
}

/// What was understood of a stanza, and every mistake in it.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Reading {
    /// Every setting by its own name; those that were left out or are wrong have their default.
    pub settings: BTreeMap<&'static str, Parsed>,
    /// In the order in which they were written; values that contradict each other come last.
    pub mistakes: Vec<Mistake>,
}
