//! How far a request has come on its way to its blocks, and how promotions are planned.

use std::time::Duration;

use crate::{
    block::Key,
    clock::Instant,
    error::{Error, Result},
    primary::Claim,
    tier::RequestId,
};

/// How promotions are planned.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PlanSettings {
    /// Share of the primary's slots, greater than 0 and at most 1, that waiting requests hold together. The rest is for
    /// stores; a request that is alone may take more, but for what the stores of a step have needed lately.
    pub share: f64,
    /// How long a request is held back for others before it takes what there is room for.
    pub wait: Duration,
}

impl Default for PlanSettings {
    fn default() -> Self {
        Self {
            share: 0.75,
            wait: Duration::from_secs(10),
        }
    }
}

impl PlanSettings {
    /// Checks the share.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when it is not greater than 0 and at most 1.
    pub fn validate(&self) -> Result<()> {
        if self.share > 0.0 && self.share <= 1.0 {
            return Ok(());
        }
        Err(Error::invalid(
            "plan promotions",
            format!(
                "promote_share = {}: greater than 0 and at most 1 is wanted",
                self.share
            ),
        ))
    }
}

/// How far a request has come.
#[derive(Debug, Default)]
pub(super) enum Stage {
    /// Nothing is planned.
    #[default]
    Open,
    /// Its keys are to be told before the next step.
    Untold,
    /// Its tiers find out, or others go first, since then.
    Waiting { since: Instant },
    /// These of its blocks are not readable yet; the first key that they were planned for.
    Arriving { awaited: Vec<Claim>, planned: Key },
    /// What was planned is there; the first key that it was planned for.
    There(Key),
}

/// A pass of the scheduler over the keys of one request and group.
#[derive(Debug)]
pub(super) struct Pass {
    pub(super) req: RequestId,
    pub(super) step: u64,
    pub(super) group: u32,
    /// The first key of this group.
    pub(super) head: Key,
    /// The first key of the first group.
    pub(super) first: Key,
    /// The request was put off in this pass over the group.
    pub(super) is_put_off: bool,
    /// Answers other than "miss" in this pass over the group, and the fewest in those over the groups before it.
    pub(super) found: u64,
    pub(super) fewest: u64,
    /// Blocks answered readable, and how many of such answers were counted in earlier passes.
    pub(super) hits: u64,
    pub(super) counted: u64,
}
