//! What the log tells of many like events: the first at once, then how many more there were, so that a directory which
//! somebody removed makes two lines and not one a block.

use std::collections::HashMap;
use std::time::Duration;

use foldhash::fast::FixedState;

use crate::{
    clock::Instant,
    sync::{Mutex, lock},
};

/// Between two lines about the same.
const REST: Duration = Duration::from_secs(10);

/// What was told when, by its text.
#[derive(Debug, Default)]
pub(crate) struct Told(Mutex<HashMap<&'static str, Kind, FixedState>>);

#[derive(Debug, Default, Clone, Copy)]
struct Kind {
    at: Option<Instant>,
    more: u64,
}

impl Told {
    /// Notes `n` events; returns whether this one is to be told in full.
    pub(crate) fn is_new(&self, what: &'static str, now: Instant, n: u64) -> bool {
        let mut all = lock(&self.0);
        let kind = all.entry(what).or_default();
        if kind.at.is_none_or(|at| now.since(at) >= REST) && kind.more == 0 {
            kind.at = Some(now);
            return true;
        }
        kind.more += n;
        false
    }

    /// Warns of `what`, unless that was told a moment ago.
    pub(crate) fn warn(&self, tier: &str, now: Instant, n: u64, what: &'static str) {
        if self.is_new(what, now, n) {
            tracing::warn!(tier, "{what}");
        }
    }

    /// What has happened more often since it was told, and it is time to say so; all of it `at_the_end`.
    pub(crate) fn due(&self, now: Instant, at_the_end: bool) -> Vec<(&'static str, u64)> {
        let mut out = Vec::new();
        for (&what, kind) in lock(&self.0).iter_mut() {
            if kind.more > 0 && (at_the_end || kind.at.is_none_or(|at| now.since(at) >= REST)) {
                out.push((what, std::mem::take(&mut kind.more)));
                kind.at = Some(now);
            }
        }
        out
    }

    /// Says what is due.
    pub(crate) fn tell(&self, tier: &str, now: Instant, at_the_end: bool) {
        for (what, more) in self.due(now, at_the_end) {
            tracing::warn!(tier, more, "the same {more} times more: {what}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_of_a_kind_is_told_at_once_and_the_rest_as_a_number() {
        let (told, at) = (Told::default(), |s: u64| Instant::from_nanos(s * 1_000_000_000));
        assert!(told.is_new("gone", at(1), 1) && told.is_new("bad", at(1), 1));
        assert!((0..299).all(|_| !told.is_new("gone", at(2), 1)));
        assert!(told.due(at(3), false).is_empty(), "too soon");
        assert_eq!(told.due(at(11), false), [("gone", 299)]);
        assert!(!told.is_new("gone", at(12), 4));
        assert_eq!(told.due(at(12), true), [("gone", 4)]);
        assert!(told.due(at(99), true).is_empty() && told.is_new("gone", at(99), 1));
    }
}
