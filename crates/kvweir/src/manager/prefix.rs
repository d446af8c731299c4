//! The keys of a request in their order, KV-cache group by group: what a plan is made of.

use crate::block::Key;

/// The KV-cache groups of an engine: how a key tells its group, and how much of a prefix each needs.
#[derive(Debug, Clone)]
pub struct Groups {
    of: fn(&Key) -> u32,
    windows: Vec<Option<u32>>,
}

impl Default for Groups {
    /// One group with attention over all.
    fn default() -> Self {
        Self {
            of: |_| 0,
            windows: Vec::new(),
        }
    }
}

impl Groups {
    /// `of` tells the group of a key. `windows`: for each group the blocks that a request needs at most, `None` (or no
    /// entry) where attention reaches back to the first.
    pub fn new(of: fn(&Key) -> u32, windows: Vec<Option<u32>>) -> Self {
        Self { of, windows }
    }

    pub(super) fn of(&self, key: &Key) -> u32 {
        (self.of)(key)
    }

    pub(super) fn window(&self, group: u32) -> Option<u32> {
        self.windows.get(group as usize).copied().flatten()
    }
}

/// The keys of one group, with the position at which each block ends.
#[derive(Debug, Clone, Default)]
pub(super) struct GroupKeys {
    pub(super) group: u32,
    pub(super) window: Option<u32>,
    /// Ascending ends.
    pub(super) keys: Vec<(u64, Key)>,
}

impl GroupKeys {
    /// How many keys end at `end` or before.
    pub(super) fn up_to(&self, end: u64) -> usize {
        self.keys.partition_point(|&(e, _)| e <= end)
    }

    /// How many keys it takes to reach `end`, which may lie inside the last.
    pub(super) fn reaching(&self, end: u64) -> usize {
        (self.keys.partition_point(|&(e, _)| e < end) + 1).min(self.keys.len())
    }

    /// The keys that a hit up to `end` needs, of those from `from` on.
    pub(super) fn needed(&self, from: usize, end: u64) -> std::ops::Range<usize> {
        match self.window {
            None => from..self.up_to(end).max(from),
            Some(w) => {
                let to = self.reaching(end);
                to.saturating_sub(w as usize)..to
            }
        }
    }
}

/// All keys of a request.
#[derive(Debug, Clone, Default)]
pub(super) struct Prefix(pub(super) Vec<GroupKeys>);

impl Prefix {
    /// Of keys with the position, in any unit that all groups share, at which each block ends.
    pub(super) fn new(keys: Vec<(Key, u64)>, groups: &Groups) -> Self {
        let mut all: Vec<GroupKeys> = Vec::new();
        let mut last = 0;
        for (key, end) in keys {
            let group = groups.of(&key);
            if all.get(last).is_none_or(|g| g.group != group) {
                last = all.iter().position(|g| g.group == group).unwrap_or(all.len());
                if last == all.len() {
                    all.push(GroupKeys {
                        group,
                        window: groups.window(group),
                        keys: Vec::new(),
                    });
                }
            }
            if let Some(g) = all.get_mut(last) {
                g.keys.push((end, key));
            }
        }
        for g in &mut all {
            if !g.keys.is_sorted_by_key(|&(end, _)| end) {
                g.keys.sort_by_key(|&(end, _)| end);
            }
        }
        Self(all)
    }

    /// The group of `key`, and the position at which its block begins.
    pub(super) fn place(&self, key: &Key, groups: &Groups) -> Option<(&GroupKeys, u64)> {
        let group = groups.of(key);
        let keys = self.0.iter().find(|g| g.group == group)?;
        let at = keys.keys.iter().position(|(_, k)| k == key)?;
        let before = at.checked_sub(1).and_then(|i| keys.keys.get(i));
        Some((keys, before.map_or(0, |&(end, _)| end)))
    }
}
