//! Where the keeper is with its looks at what may have changed behind its back.

use std::time::Duration;

use crate::clock::Instant;

/// Shortest and longest pause between two rounds over all of them; it doubles while nothing goes.
pub(super) const SHORTEST: Duration = Duration::from_millis(100);
pub(super) const LONGEST: Duration = Duration::from_secs(60);

/// How far the keeper is with directories that could not be removed.
#[derive(Debug)]
pub(crate) struct Round {
    /// The last one looked at in this round.
    pub(super) at: Option<(u16, u32)>,
    /// When the next round begins.
    pub(super) next: Option<Instant>,
    pub(super) pause: Duration,
    /// Whether any went in this round.
    pub(super) some_went: bool,
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

/// What the keeper knows of what went.
#[derive(Debug, Default)]
pub(crate) struct Looks {
    /// Visits before the ledger is settled again.
    pub(super) rest: u32,
    /// The claim could not be made again.
    pub(super) told: bool,
    /// Visits until a namespace's directory that is not there is made again, and how many there were before the last
    /// time: on a full device it may stay away.
    pub(super) wait: u32,
    pub(super) waited: u32,
    /// Our namespace's directory was gone, and has not been looked at since.
    pub(super) namespace_too: bool,
    /// Another process has what was made there since.
    pub(super) ousted: bool,
    pub(super) visits: u32,
    /// Visits in a row in which something was gone.
    pub(super) gone_for: u32,
    /// When root and namespaces' directories last changed, and for how many visits they have not.
    pub(super) changed: Vec<i128>,
    pub(super) quiet: u32,
}
