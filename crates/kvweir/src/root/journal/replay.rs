//! What a dead member owned ([`replay`]): known to the byte, but for the leaves in which something was under way.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
};

use foldhash::fast::FixedState;

use super::{
    blocks::Owned, mark::Mark, older::Resume, path, read::load, state::FoldState, unusable::Unusable,
};
use crate::{
    budget::COST_UNIT,
    io::Disk,
    root::leaves::{LeafAt, Leaves},
};

/// What a dead member owned.
#[derive(Debug, Default)]
pub(crate) struct Replayed {
    /// Names of the directories of the namespaces.
    pub(crate) namespaces: Vec<String>,
    /// Least recently used first; nothing of a leaf in doubt.
    pub(crate) blocks: Vec<Owned>,
    /// Leaves in which something was under way: to be looked at.
    pub(crate) doubt: HashMap<LeafAt, Vec<Owned>, FixedState>,
    /// Costs of directories in units of 512: leaves, first level, namespaces.
    pub(crate) leaves: Leaves,
    pub(crate) highs: HashMap<(u16, u32), u32, FixedState>,
    pub(crate) tops: HashMap<u16, u32, FixedState>,
    /// Where its journal goes on.
    pub(crate) resume: Option<Resume>,
    /// Files of the member that no longer count.
    pub(crate) stale: Vec<PathBuf>,
    /// Allocated bytes of those that do.
    pub(crate) bytes: u64,
}

/// Reads what `member` owned when it died, and compares it with what the ledger knows of its journal.
pub(crate) fn replay(
    disk: &dyn Disk,
    root: &Path,
    member: u32,
    fs_block: u64,
    mark: Option<&Mark>,
) -> Result<Replayed, Unusable> {
    let read = load(disk, root, member, fs_block, u32::MAX)?;
    mark.map_or(Ok(()), |m| m.fits(&read.seen))?;
    let counted = || read.older.iter().chain(read.last.as_ref().map(|l| &l.0));
    let mut out = Replayed {
        stale: read
            .found
            .iter()
            .map(|&(s, g)| path(root, s, member, g))
            .filter(|p| counted().all(|o| o.path != *p))
            .collect(),
        bytes: counted().map(|o| o.bytes).sum(),
        ..Replayed::default()
    };
    out.resume = read.last.map(|(file, header, len)| Resume {
        header,
        len,
        bytes: file.bytes,
        older: read.older,
    });
    read.state.into(&mut out);
    mark.map_or(Ok(()), |m| m.covers(&out))?;
    Ok(out)
}

impl FoldState {
    fn into(self, out: &mut Replayed) {
        for (_, place) in &self.open {
            out.doubt.entry(*place).or_default();
        }
        let blocks = self.blocks.into_order();
        if out.doubt.is_empty() {
            out.blocks = blocks;
        } else {
            out.blocks.reserve(blocks.len());
            for o in blocks {
                match out.doubt.get_mut(&(o.namespace, o.prefix, o.leaf)) {
                    Some(d) => d.push(o),
                    None => out.blocks.push(o),
                }
            }
        }
        // what was begun there and never told is known by its fingerprint alone
        for (fp, (namespace, prefix, leaf)) in self.open {
            if let Some(d) = out.doubt.get_mut(&(namespace, prefix, leaf))
                && d.iter().all(|o| o.fp != fp)
            {
                d.push(Owned {
                    fp,
                    namespace,
                    leaf,
                    prefix,
                    trailer: true,
                    bad: false,
                    cost: 0,
                    written_at: 0,
                    key: None,
                    used: u64::MAX,
                });
            }
        }
        out.namespaces = self.namespaces;
        out.leaves = self.leaves;
        out.highs = self.highs;
        out.tops = self.tops;
    }
}

impl Mark {
    /// Whether what the journals tell of can be what the member held: they may miss some directories, not more.
    pub(super) fn covers(&self, r: &Replayed) -> Result<(), Unusable> {
        // leaves in doubt are looked at, and nothing is known of them before
        if self.held == 0 || !r.doubt.is_empty() {
            return Ok(());
        }
        let blocks = r.blocks.iter().map(|o| u64::from(o.cost)).sum::<u64>();
        let leaves = r.leaves.iter().map(|(_, cost)| u64::from(cost)).sum::<u64>();
        let above = r.highs.values().chain(r.tops.values());
        let dirs = leaves + above.map(|&c| u64::from(c)).sum::<u64>();
        let told = r.bytes + (blocks + dirs).saturating_mul(COST_UNIT);
        if told + (1 << 20) + self.held / 16 < self.held {
            return Err(Unusable::Damaged(format!(
                "it tells of {told} bytes, and its member held {}, as the ledger knows",
                self.held
            )));
        }
        Ok(())
    }
}
