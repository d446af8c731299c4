//! A member of a root that is about to load what it owns.

use std::{collections::HashMap, io, sync::Arc};

use foldhash::fast::FixedState;

use crate::{
    fs::shared::Shared,
    root::{
        dead::Dead,
        journal::{Mark, Replayed},
        member::{Joined, Member, OPEN_PATIENCE, Start},
    },
};

/// What a start works with, and what it finds out.
pub(crate) struct Opening {
    pub(crate) shared: Arc<Shared>,
    pub(crate) member: Member,
    pub(crate) start: Start,
    /// Nobody else lived when this member joined.
    pub(crate) alone: bool,
    /// What the ledger knew of the journal that this member goes on with.
    pub(crate) mark: Option<Mark>,
    /// Journals of dead members, read and not taken over yet.
    pub(crate) read: HashMap<(u32, u32), Replayed, FixedState>,
    /// Whether the journal is to be compacted whatever its length.
    pub(crate) compact_now: bool,
}

impl Opening {
    pub(crate) fn new(shared: Arc<Shared>, joined: Joined) -> Self {
        Self {
            shared,
            member: joined.member,
            start: joined.start,
            alone: joined.alone,
            mark: joined.mark,
            read: HashMap::default(),
            compact_now: false,
        }
    }

    /// The dead members of the root, and what the ledger knows of their journals.
    pub(crate) fn dead_members(&self) -> io::Result<Vec<(Dead, Option<Mark>)>> {
        let seeds = self.shared.seeds();
        let (ledger, me) = (&self.member.ledger, self.member.number);
        let done = self.member.change_within(OPEN_PATIENCE, |p| {
            let mut dead = Vec::new();
            for (n, e) in p.used().filter(|&(n, _)| n != me) {
                if !ledger.is_live(n, Some(e))? {
                    dead.push((Dead::of(n, e, &seeds), p.mark(n)));
                }
            }
            Ok(dead)
        })?;
        done.unwrap_or_else(|| Err(io::ErrorKind::TimedOut.into()))
    }
}
