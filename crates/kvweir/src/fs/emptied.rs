//! Directories in which no file of this member lies and which could not be removed when the last one went: another
//! member had files there, or somebody else. The keeper looks at them again, so that whoever empties a directory last,
//! nobody goes on counting it (I1).

use std::time::Duration;

use super::{keeper::Keeper, shared::Shared};
use crate::{clock::Instant, sync::lock};

/// First-level directories looked at in one visit.
const AT_ONCE: usize = 64;
/// Shortest and longest pause between two rounds over all of them; it doubles while nothing goes.
const SHORTEST: Duration = Duration::from_millis(100);
const LONGEST: Duration = Duration::from_secs(60);

/// How far the keeper is with them.
#[derive(Debug)]
pub(crate) struct Round {
    /// The last one looked at in this round.
    at: Option<(u16, u32)>,
    /// When the next round begins.
    next: Option<Instant>,
    pause: Duration,
    /// Whether any went in this round.
    some_went: bool,
}

impl Default for Round {
    fn default() -> Self {
        Self {
            at: None,
            next: None,
            pause: SHORTEST,
            some_went: false,
        }
    }
}

impl Round {
    /// Somebody else removed something: it is worth a look.
    pub(super) fn soon(&mut self) {
        self.next = None;
        self.pause = SHORTEST;
    }
}

impl Keeper {
    /// Looks at some directories again.
    pub(super) fn look_at_emptied(&mut self) {
        let s = &*self.shared;
        let now = s.clock.now();
        if self.emptied.next.is_some_and(|at| now < at) {
            return;
        }
        let places = s.dirs.emptied(self.emptied.at, AT_ONCE);
        for &(ns, high) in &places {
            self.emptied.some_went |= look_at(s, ns, high);
        }
        let r = &mut self.emptied;
        r.at = places.last().copied();
        if places.len() < AT_ONCE {
            r.at = None;
            r.pause = match std::mem::take(&mut r.some_went) || places.is_empty() {
                true => SHORTEST,
                false => (r.pause * 2).min(LONGEST),
            };
            r.next = (!places.is_empty()).then(|| now.after(r.pause));
        }
    }
}

/// Looks at one; returns whether anything went.
fn look_at(s: &Shared, ns: u16, high: u32) -> bool {
    let Some(dir) = s.namespace(ns) else { return false };
    let seen = s.dirs.look_at_emptied(&*s.disk, &dir, ns, high);
    lock(&s.core).budget.apply(seen.change);
    if seen.told.is_empty() {
        return false;
    }
    if let Some(j) = s.journal.get()
        && let Err(error) = j.dirs(&s.core, &seen.told)
    {
        // the next start looks again
        tracing::debug!(%error, "directories that are gone are still in the journal");
    }
    true
}
