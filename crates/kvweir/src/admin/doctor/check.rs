//! What a check says: how it came out, what was found, what to do.

use serde::Serialize;

/// How good a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Level {
    /// Nothing to do.
    Ok,
    /// It works, not as well as it could, or it cannot be told.
    Warn,
    /// A tier will fail, or others can read the blocks.
    Bad,
}

impl Level {
    /// `ok`, `warn` or `bad`.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Ok => "ok",
            Self::Warn => "warn",
            Self::Bad => "bad",
        }
    }
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Check {
    /// What it is about.
    pub what: &'static str,
    /// How it came out.
    pub level: Level,
    /// What was found.
    pub found: String,
    /// What to do; empty if nothing.
    pub advice: String,
}

impl Check {
    pub(super) fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self {
            what,
            level: Level::Ok,
            found: found.into(),
            advice: String::new(),
        }
    }

    pub(super) fn warn(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            level: Level::Warn,
            advice: advice.into(),
            ..Self::ok(what, found)
        }
    }

    pub(super) fn bad(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            level: Level::Bad,
            advice: advice.into(),
            ..Self::ok(what, found)
        }
    }
}

/// All checks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Diagnosis {
    /// The directory.
    pub root: String,
    /// The worst level of all.
    pub level: Level,
    /// The checks.
    pub checks: Vec<Check>,
}
