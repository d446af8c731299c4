//! Whether a machine and a directory suit a file tier. Each check says what was found and, unless all is well, what to
//! do. Nothing is changed: the one file made has no name and is gone when it is closed.

mod device;
mod layout;
mod limits;
mod place;

use std::path::PathBuf;

use serde::Serialize;

use super::Admin;
use crate::io::{Stat, disk::FileKind};

/// Files whose modes and times are looked at.
const SAMPLE: usize = 200;

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
    fn ok(what: &'static str, found: impl Into<String>) -> Self {
        Self {
            what,
            level: Level::Ok,
            found: found.into(),
            advice: String::new(),
        }
    }

    fn warn(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self {
            level: Level::Warn,
            advice: advice.into(),
            ..Self::ok(what, found)
        }
    }

    fn bad(what: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
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

impl Admin {
    /// Looks at machine and directory.
    pub fn doctor(&self) -> Diagnosis {
        let sample = self.sample();
        let mut checks = self.place(&sample);
        checks.extend(device::checks(&self.root, sample.first().map(|s| &*s.0)));
        checks.push(self.layout());
        checks.extend(limits::checks());
        Diagnosis {
            root: self.root.display().to_string(),
            level: checks.iter().map(|c| c.level).max().unwrap_or(Level::Ok),
            checks,
        }
    }

    /// Some files below the root, found without walking all of it.
    fn sample(&self) -> Vec<(PathBuf, Stat)> {
        let mut files = Vec::new();
        let mut stack = vec![self.root.clone()];
        // directories are many and small: a bound on them is a bound on time
        let mut left = SAMPLE * 4;
        while let Some(dir) = stack.pop().filter(|_| files.len() < SAMPLE && left > 0) {
            left -= 1;
            let mut names = Vec::new();
            // what cannot be read is another check's business
            let _ = self.disk.list(&dir, &mut |name, _| names.push(dir.join(name)));
            for path in names.into_iter().take(SAMPLE) {
                match self.disk.stat(&path) {
                    Ok(s) if s.kind == FileKind::Dir => stack.push(path),
                    Ok(s) if s.kind == FileKind::File && files.len() < SAMPLE => files.push((path, s)),
                    _ => {}
                }
            }
        }
        files
    }
}
