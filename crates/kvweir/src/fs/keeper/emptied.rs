//! Directories in which no file of this member lies and which could not be removed when the last one went: another
//! member had files there, or somebody else. The keeper looks at them again, so that whoever empties a directory last,
//! nobody goes on counting it (I1).

use crate::{
    fs::{
        keeper::{
            looks::{LONGEST, SHORTEST},
            state::Keeper,
        },
        shared::Shared,
    },
    sync::lock,
};

/// First-level directories looked at in one visit.
const AT_ONCE: usize = 64;

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
