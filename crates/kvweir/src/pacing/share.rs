//! What one waiting request was promised, or waits for.

use std::{collections::HashSet, time::Duration};

use foldhash::fast::FixedState;
use smallvec::SmallVec;

use super::{
    outlook::{Cut, Outlook},
    question::{Answer, PacedKey},
};
use crate::clock::Instant;

/// One waiting request.
#[derive(Debug)]
pub(super) struct Share {
    /// The step in which it asked last.
    pub(super) step: u64,
    pub(super) asked_at: Instant,
    /// A step's time for each step in which it was asked for: where the scheduler does not ask, nobody waits for us.
    pub(super) waited: Duration,
    pub(super) state: Standing,
}

/// Whether it may promote.
#[derive(Debug)]
pub(super) enum Standing {
    Waiting(Waiting),
    Admitted(Taken),
}

/// A request that is held back.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    /// What it could promote, once known, and the key from which on.
    pub(super) outlook: Option<(Outlook, PacedKey)>,
    /// The first key of each group that it asked for in this step.
    pub(super) first: SmallVec<[PacedKey; 2]>,
    /// Whether it was counted as held back.
    pub(super) counted: bool,
}

impl Waiting {
    /// "Retry" for the first key of each group, which makes the scheduler ask again; a miss ends its questions.
    pub(super) fn again(&mut self, key: PacedKey) -> Answer {
        match self.first.iter().find(|k| k.group == key.group) {
            Some(first) if first.id != key.id => Answer::Miss,
            Some(_) => Answer::Retry,
            None => {
                self.first.push(key);
                Answer::Retry
            }
        }
    }
}

impl Share {
    pub(super) fn waiting(step: u64, now: Instant) -> Self {
        Self {
            step,
            asked_at: now,
            waited: Duration::ZERO,
            state: Standing::Waiting(Waiting::default()),
        }
    }

    /// Takes what it could promote, if it waits and that is known.
    pub(super) fn outlook(&mut self) -> Option<Outlook> {
        match &mut self.state {
            Standing::Waiting(w) => w.outlook.take().map(|(outlook, _)| outlook),
            Standing::Admitted(_) => None,
        }
    }

    /// It is asked about in `step`; returns how long it has waited.
    pub(super) fn ask(&mut self, step: u64, now: Instant) -> Duration {
        if let Some(steps) = step.checked_sub(self.step).filter(|&steps| steps > 0) {
            self.waited += now.since(self.asked_at) / u32::try_from(steps).unwrap_or(u32::MAX);
        }
        (self.step, self.asked_at) = (step, now);
        self.waited
    }
}

/// What an admitted request was promised.
#[derive(Debug)]
pub(super) struct Taken {
    /// Slots that are kept for it.
    pub(super) limit: u64,
    ids: HashSet<u64, FixedState>,
    /// The keys of the plan, where they were looked at.
    cut: Option<Cut>,
    /// Nothing new is promised any more.
    closed: bool,
    /// Blocks promised since the last load job.
    open: Vec<u64>,
    /// Where the blocks of earlier steps end: what lies before and was not promised was in the primary.
    reach: u64,
    /// Whether the step of the first questions is over.
    begun: bool,
    /// How many blocks may be promised that were there already.
    repeats: u64,
}

/// What became of a question.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Took {
    New,
    Again,
    Nothing,
}

impl Taken {
    /// The plan that is `cut`.
    pub(super) fn part(cut: Cut) -> Self {
        Self::new(cut.need(), Some(cut))
    }

    fn new(limit: u64, cut: Option<Cut>) -> Self {
        Self {
            limit,
            ids: HashSet::default(),
            cut,
            closed: false,
            open: Vec::new(),
            reach: 0,
            begun: false,
            repeats: (limit / 8).max(2),
        }
    }

    /// As much as fits into `most` slots, whatever comes.
    pub(super) fn open(most: u64) -> Self {
        Self::new(most, None)
    }

    /// Whether the plan has this key.
    pub(super) fn allows(&self, id: u64) -> bool {
        match &self.cut {
            _ if self.closed => self.ids.contains(&id),
            Some(cut) => cut.has(id),
            None => true,
        }
    }

    /// How many blocks were promised since the last load job.
    pub(super) fn open_blocks(&self) -> usize {
        self.open.len()
    }

    /// Promises a block; one more slot than planned only where `spare` are left.
    pub(super) fn take(&mut self, id: u64, spare: u64) -> Took {
        // promised before, or found elsewhere before: the primary has evicted it since, perhaps for another block of
        // ours; in the first step nothing was found before, and who asks backwards looks for a window that nobody
        // told us of
        let reach = self.reach;
        let lost = self.ids.contains(&id)
            || self.begun && (self.cut.as_ref()).is_some_and(|c| c.end_of(id).is_none_or(|end| end < reach));
        if lost {
            if self.repeats == 0 {
                self.closed = true;
                return Took::Nothing;
            }
            self.repeats -= 1;
            self.ids.insert(id);
            self.open.push(id);
            return Took::Again;
        }
        if self.ids.len() as u64 >= self.limit {
            if spare == 0 {
                self.closed = true;
                return Took::Nothing;
            }
            self.limit += 1;
        }
        self.ids.insert(id);
        self.open.push(id);
        Took::New
    }

    /// A load job with `ids` went out. Returns how many promised blocks got no slot; those are not promised again.
    pub(super) fn submitted(&mut self, ids: impl ExactSizeIterator<Item = u64>) -> u64 {
        let open = std::mem::take(&mut self.open);
        self.begun = true;
        if let Some(cut) = &self.cut {
            self.reach = open
                .iter()
                .filter_map(|&id| cut.end_of(id))
                .fold(self.reach, u64::max);
        }
        if open.len() <= ids.len() {
            return 0;
        }
        let went: HashSet<u64, FixedState> = ids.collect();
        let mut refused = 0;
        for id in open.iter().filter(|id| !went.contains(id)) {
            refused += u64::from(self.ids.remove(id));
        }
        self.closed |= refused > 0;
        refused
    }
}
