//! The keys of a request in their order, KV-cache group by group: what a plan is made of.

use std::collections::HashSet;

use foldhash::fast::FixedState;

use crate::block::Key;

/// How much of a prefix a KV-cache group needs, and so how a scheduler searches it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Reach {
    /// All of it: searched from the front.
    Whole,
    /// At most so many blocks: searched from the back.
    Window(u32),
    /// Not told, and not seen yet.
    Unknown,
    /// Seen to be searched from the back, by how many blocks was not told.
    Backward,
}

impl Reach {
    pub(super) fn window(self) -> Option<u32> {
        match self {
            Self::Window(n) => Some(n),
            Self::Whole | Self::Unknown | Self::Backward => None,
        }
    }
}

/// The KV-cache groups of an engine: how a key tells its group, and how much of a prefix each needs.
#[derive(Debug, Clone)]
pub struct Groups {
    of: fn(&Key) -> u32,
    reaches: Vec<Reach>,
    /// Of groups that are not listed.
    others: Reach,
}

impl Default for Groups {
    /// One group with attention over all.
    fn default() -> Self {
        Self::new(|_| 0, Vec::new())
    }
}

impl Groups {
    /// `of` tells the group of a key. `windows`: for each group the blocks that a request needs at most, `None` (or no
    /// entry) where attention reaches back to the first.
    pub fn new(of: fn(&Key) -> u32, windows: Vec<Option<u32>>) -> Self {
        Self {
            of,
            reaches: windows
                .into_iter()
                .map(|w| w.map_or(Reach::Whole, Reach::Window))
                .collect(),
            others: Reach::Whole,
        }
    }

    /// For an engine that does not tell windows: a group is one of attention over all once it was seen to be searched from
    /// the front, and is taken for one when blocks that were promoted one by one have found no room. For a request with a
    /// group that is searched from the back nothing is planned.
    pub fn watched(of: fn(&Key) -> u32) -> Self {
        Self {
            of,
            reaches: Vec::new(),
            others: Reach::Unknown,
        }
    }

    pub(super) fn of(&self, key: &Key) -> u32 {
        (self.of)(key)
    }

    pub(super) fn reach(&self, group: u32) -> Reach {
        self.reaches.get(group as usize).copied().unwrap_or(self.others)
    }

    /// What was seen of a group that nothing was told of; groups of odd numbers are not remembered.
    pub(super) fn saw(&mut self, group: u32, reach: Reach) {
        let at = group as usize;
        if at >= self.reaches.len() && at < 1024 {
            self.reaches.resize(at + 1, self.others);
        }
        if let Some(r @ Reach::Unknown) = self.reaches.get_mut(at) {
            *r = reach;
        }
    }

    /// Whether what a request with `prefix` needs can be told: not where a window of unknown length matters. Whether it
    /// is certain, too: a group of which nothing is known counts as a whole.
    pub(super) fn can_plan(&self, prefix: &Prefix) -> (bool, bool) {
        let has = |reach| prefix.groups.iter().any(|g| self.reach(g.group) == reach);
        (!has(Reach::Backward), !has(Reach::Unknown))
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
pub(super) struct Prefix {
    pub(super) groups: Vec<GroupKeys>,
    known: HashSet<u64, FixedState>,
}

impl Prefix {
    /// Of keys with the position, in any unit that all groups share, at which each block ends. The first key given of a
    /// group ends its first block; those that end elsewhere than a whole number of such blocks are left out.
    pub(super) fn new(keys: Vec<(Key, u64)>, groups: &Groups) -> Self {
        let mut all: Vec<GroupKeys> = Vec::new();
        let mut known = HashSet::with_capacity_and_hasher(keys.len(), FixedState::default());
        let mut last = 0;
        for (key, end) in keys {
            let group = groups.of(&key);
            if all.get(last).is_none_or(|g| g.group != group) {
                last = all.iter().position(|g| g.group == group).unwrap_or(all.len());
                if last == all.len() {
                    all.push(GroupKeys {
                        group,
                        window: groups.reach(group).window(),
                        keys: Vec::new(),
                    });
                }
            }
            if let Some(g) = all.get_mut(last) {
                let block = g.keys.first().map_or(end, |&(first, _)| first);
                if end.checked_rem(block) == Some(0) {
                    known.insert(key.fingerprint(0).hash64());
                    g.keys.push((end, key));
                }
            }
        }
        for g in &mut all {
            if !g.keys.is_sorted_by_key(|&(end, _)| end) {
                g.keys.sort_by_key(|&(end, _)| end);
            }
        }
        Self { groups: all, known }
    }

    /// Whether `key` is one of them.
    pub(super) fn has(&self, key: &Key) -> bool {
        self.known.contains(&key.fingerprint(0).hash64())
    }

    /// The group of `key`, and the position at which its block begins.
    pub(super) fn place(&self, key: &Key, groups: &Groups) -> Option<(&GroupKeys, u64)> {
        let group = groups.of(key);
        let keys = self.groups.iter().find(|g| g.group == group)?;
        let at = keys.keys.iter().position(|(_, k)| k == key)?;
        let before = at.checked_sub(1).and_then(|i| keys.keys.get(i));
        Some((keys, before.map_or(0, |&(end, _)| end)))
    }
}
