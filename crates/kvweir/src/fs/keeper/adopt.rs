//! Taking over what a dead member left, in steps of which each may fail and lose nothing (I1, I6): its journal is read
//! and the leaves in doubt are looked at, which changes nothing; its blocks and its lease become ours in memory; then
//! they are written into our journal, the lease passes in the ledger, and its files go. The last is tried again until
//! it has been done: until then its own journal stands, its lock is ours, and shares are not settled.

use std::{io, sync::Arc};

use crate::{
    catalog::index::State,
    fs::{
        keeper::state::{Adoption, Keeper},
        recover::{
            check::{TOO_MANY_NAMESPACES, can_be_named, keys_are_known, mark_other_lengths},
            doubt::look_at_doubt,
            note::{log_blocks, remove},
            take::take,
        },
    },
    root::{
        accounts::Accounts,
        dead::Dead,
        journal::{self, Replayed, Unusable},
        member::OPEN_PATIENCE,
    },
    sync::lock,
};

impl Keeper {
    /// Takes over what a dead member left.
    pub(super) fn take_over(&mut self, d: Dead) {
        if self.adopting.is_some() {
            return;
        }
        match self.adopt(d) {
            Ok(()) => self.go_on_adopting(),
            Err(Unusable::Io(error)) => tracing::warn!(%error, "a dead member's journal cannot be read now"),
            Err(why) => {
                tracing::warn!(
                    tier = %self.shared.name, member = d.number, %why,
                    "what a dead member left stays counted until the root is opened by one alone"
                );
                self.unusable.insert((d.number, d.incarnation));
            }
        }
    }

    fn adopt(&mut self, d: Dead) -> Result<(), Unusable> {
        let s = Arc::clone(&self.shared);
        let ledger = self.opening.member.ledger.clone();
        let taken = self.opening.member.change(|p| -> io::Result<_> {
            let Some(e) = p.member(d.number).filter(|e| e.incarnation == d.incarnation) else {
                return Ok(None);
            };
            let held = ledger.take_member(d.number, Some(e))?;
            Ok(held.map(|held| (held, e.lease, p.mark(d.number))))
        })?;
        let Some((held, lease, mark)) = taken.transpose()?.flatten() else {
            return Ok(());
        };
        let (root, fs_block) = (&s.root.path, s.root.unit);
        let read = match self.opening.read.remove(&(d.number, d.incarnation)) {
            Some(r) => Ok(r),
            None => journal::replay(&*s.root.disk, root, d.number, fs_block, mark.as_ref()),
        };
        let mut r = match read {
            // it died before it had a journal
            Err(Unusable::Missing) if lease == 0 => Replayed::default(),
            r => r?,
        };
        if !keys_are_known(&s, &r) {
            return Err(Unusable::Damaged(
                "it does not tell the keys that events need".into(),
            ));
        }
        if !can_be_named(&s, &r) {
            return Err(Unusable::Damaged(TOO_MANY_NAMESPACES.into()));
        }
        if let Some(number) = d.served {
            mark_other_lengths(&s, &mut r, number);
        }
        let looked = look_at_doubt(&s, &r, d.number)?;
        let files = journal::files_of(&*s.root.disk, root, d.number)?;
        let files = files
            .into_iter()
            .map(|(snapshot, g)| journal::path(root, snapshot, d.number, g));
        let bytes = r.bytes;
        {
            // its bytes and its right to them come together
            let mut core = lock(&s.core);
            let bound = core.account.budget.bound().unwrap_or(0);
            core.account.budget.set_bound(Some(bound.saturating_add(lease)));
            core.account.budget.add_resident(bytes);
        }
        let taken = take(&s, r, looked, false);
        s.root.dirs.note_emptied();
        self.emptied.soon();
        self.adopting = Some(Adoption {
            dead: Dead { lease, ..d },
            bytes,
            files: files.collect(),
            blocks: taken.blocks,
            told: false,
            _lock: held,
        });
        Ok(())
    }

    /// Goes on with what was taken over in memory.
    pub(super) fn go_on_adopting(&mut self) {
        let Some(mut a) = self.adopting.take() else { return };
        let name = &self.shared.name;
        match self.write_down(&mut a) {
            Ok(()) => {
                tracing::info!(
                    tier = %name, member = a.dead.number, blocks = a.blocks.len(), lease_bytes = a.dead.lease,
                    "took over what a dead member left"
                );
                self.recover_layouts();
            }
            Err(error) => {
                if !std::mem::replace(&mut a.told, true) {
                    tracing::warn!(
                        tier = %name, member = a.dead.number, %error,
                        "what a dead member left is ours and not written down yet; it is tried again"
                    );
                }
                self.adopting = Some(a);
            }
        }
    }

    fn write_down(&self, a: &mut Adoption) -> io::Result<()> {
        let s = &*self.shared;
        if let Some(j) = s.root.journal.get() {
            // what was evicted since its own journal tells, and nobody reads that again
            a.blocks.retain(|o| {
                let core = lock(&s.core);
                let state = core.catalog.find(o.fp).map(|id| core.catalog.state(id));
                matches!(state, Some(State::Ready | State::Bad | State::Aside))
            });
            log_blocks(s, j, &a.blocks)?;
            j.dirs(&s.core, &s.root.dirs.empty_ones())?;
        }
        let (me, d) = (self.opening.member.number, a.dead);
        let passed = self.opening.member.change_within(OPEN_PATIENCE, |p| {
            if let Some(Some(e)) = p.member_mut(me) {
                e.lease += d.lease;
            }
            if let Some(m) = p.member_mut(d.number) {
                *m = None;
            }
        })?;
        if passed.is_none() {
            return Err(io::ErrorKind::TimedOut.into());
        }
        // what cannot be removed stays counted; the next who opens the root removes it
        let stuck = a.files.iter().filter(|f| !remove(s, f)).count();
        if stuck == 0 {
            s.core.shrink(a.bytes);
        }
        Ok(())
    }
}
