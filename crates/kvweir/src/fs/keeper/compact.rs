//! Folding the journal into a snapshot when it has grown as large as what it stands on.

use crate::{
    fs::keeper::state::Keeper,
    io::{round_up, tree::most_allocated},
    root::{
        accounts::Accounts,
        journal::{self, Snapshot, Unusable},
    },
    sync::{atomic::Ordering, lock},
};

impl Keeper {
    /// Folds the journal into a snapshot when it has grown as large as what it stands on.
    pub(crate) fn compact(&mut self) {
        let asked = self.shared.compact_asked.load(Ordering::Relaxed);
        self.opening.compact_now |= asked > self.shared.compact_tried.load(Ordering::Relaxed);
        self.compact_if_due();
        self.shared.compact_tried.store(asked, Ordering::Relaxed);
    }

    pub(super) fn compact_if_due(&mut self) {
        let s = &*self.shared;
        let Some(j) = s.root.journal.get() else { return };
        let (len, older) = j.lengths();
        let base = s.compact_base();
        // the next one begins short; where it cannot be made that is tried as seldom as otherwise
        let at_limit = j.is_at_limit() && self.compact_at == 0;
        if !std::mem::take(&mut self.opening.compact_now)
            && !at_limit
            && len < self.compact_at.max(base + older)
        {
            return;
        }
        let most = j.next_snapshot();
        let cost = most_allocated(most, s.root.unit);
        {
            let mut core = lock(&s.core);
            core.account.top_up(s.credit());
            if !core.account.spend_credit(cost, s.least_credit() + j.spare()) {
                // the next store makes room for it
                return;
            }
        }
        let unspent = |bytes: u64| lock(&s.core).account.budget.release(bytes);
        let head = (s.root.nonce(), s.block_len());
        let rotation = match j.rotate(&s.core, head) {
            Ok(r) => r,
            Err(error) => {
                tracing::warn!(%error, "the journal cannot be compacted now");
                unspent(cost);
                self.compact_at = len * 2;
                return;
            }
        };
        self.compact_at = 0;
        let merged = match journal::merge(&*s.root.disk, &s.root.path, &rotation, s.root.unit) {
            Ok(m) => m,
            Err(why @ Unusable::Damaged(_)) => {
                tracing::error!(tier = %s.name, %why, "the journal is given up; the next start walks the root");
                unspent(cost);
                let freed = j.abandon();
                s.core.shrink(freed);
                return;
            }
            Err(why) => {
                tracing::warn!(%why, "the journal cannot be compacted now");
                unspent(cost);
                return;
            }
        };
        let limit = merged.limit().min(most);
        let number = |dir: &str| s.root.number_of(dir);
        let written = Snapshot::start(j, &rotation, limit).and_then(|mut out| {
            merged.write(&mut out, &number)?;
            out.end()
        });
        match written {
            Ok(len) => {
                let bytes = round_up(len, s.root.unit);
                // the file system may take that later
                let spare = most_allocated(len, s.root.unit) - bytes;
                {
                    let mut core = lock(&s.core);
                    core.account.budget.release(cost.saturating_sub(spare));
                    core.account.return_credit(spare.min(cost));
                    core.account.budget.add_resident(bytes);
                }
                let freed = j.commit(&rotation, len);
                s.core.shrink(freed);
            }
            Err(error) => {
                tracing::warn!(%error, "the journal's snapshot was not written");
                let stays = j.give_up(&rotation);
                let mut core = lock(&s.core);
                core.account.budget.release(cost);
                core.account.budget.add_resident(stays);
            }
        }
    }
}
