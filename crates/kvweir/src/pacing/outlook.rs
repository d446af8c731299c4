//! What a request could promote: which of its keys the tier holds, in which order, in which groups; and the longest
//! part of it that fits.

use std::collections::HashMap;

use foldhash::fast::FixedState;

use super::question::PacedKey;

/// A key of a request with its place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderedKey {
    /// The key.
    pub key: PacedKey,
    /// Where its chunk ends in the prompt: tokens, or any unit that all groups share.
    pub end: u64,
    /// Whether the tier holds it.
    pub held: bool,
}

/// What the tier holds of a request, from the first key that it was asked for.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Outlook {
    need: u64,
    before: u64,
    /// The keys that count, group by group.
    groups: Vec<Group>,
}

#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Group {
    /// At most so many of them are needed.
    window: Option<u64>,
    keys: Vec<(u64, u64)>,
}

impl Group {
    /// Slots for its keys that end at `end` or before.
    fn need(&self, end: u64) -> u64 {
        let n = self.keys.iter().filter(|&&(e, _)| e <= end).count() as u64;
        self.window.map_or(n, |w| n.min(w))
    }
}

impl Outlook {
    /// That a request may hit all of `keys` keys: enough where there is room for as many.
    pub fn at_most(keys: u64) -> Self {
        Self {
            need: keys,
            ..Self::default()
        }
    }

    /// Of a request with the keys `order`, group by group or mixed, ascending within each group, that was asked for
    /// `first` first. A group of whole attention counts up to its first gap; of a group with a window
    /// the keys held count, and as many as its window has (one more, for a chunk that the scheduler drops) are needed.
    /// `there`: whether a block is likely to be in the primary.
    pub(super) fn new(
        order: &[OrderedKey],
        first: PacedKey,
        windows: &[Option<u32>],
        there: impl Fn(u64) -> bool,
    ) -> Self {
        let (Some(at), Some(begin)) = (
            order.iter().find(|k| k.key == first).map(|k| k.end),
            order.iter().find(|k| k.key.group == first.group).map(|k| k.end),
        ) else {
            return Self::default();
        };
        let window = |group: u32| windows.get(group as usize).copied().flatten();
        // the first chunk of a group is as long as all of them; a window is searched from its end, once the groups that
        // reach back to the first chunk were found elsewhere: where its request begins is not told
        let from_its_end = window(first.group).is_some();
        let start = at.saturating_sub(begin);
        let mut out = Self::default();
        let mut places: HashMap<u32, (usize, bool, u64), FixedState> = HashMap::default();
        for k in order {
            let g = k.key.group;
            let (place, gap, before) = *places.entry(g).or_insert_with(|| {
                out.groups.push(Group {
                    window: window(g).map(|w| u64::from(w) + 1),
                    keys: Vec::new(),
                });
                (out.groups.len() - 1, false, 0)
            });
            let Some(group) = out.groups.get_mut(place) else {
                continue;
            };
            let windowed = group.window.is_some();
            let earlier = if from_its_end { !windowed } else { k.end <= start };
            let state = if earlier {
                (place, gap, before + u64::from(there(k.key.id)))
            } else if gap && !windowed {
                continue;
            } else if k.held {
                group.keys.push((k.end, k.key.id));
                continue;
            } else {
                (place, true, before)
            };
            places.insert(g, state);
        }
        for (place, _, before) in places.into_values() {
            let Some(group) = out.groups.get(place) else {
                continue;
            };
            out.before += group.window.map_or(before, |w| before.min(w));
            out.need += group.need(u64::MAX);
        }
        out
    }

    /// Slots for all of it.
    pub fn need(&self) -> u64 {
        self.need
    }

    /// Blocks before the first that was asked for that are likely to be in the primary.
    pub fn before(&self) -> u64 {
        self.before
    }

    /// All of it: nothing to look up where it only says how many there are at most.
    pub(super) fn whole(&self) -> Option<Cut> {
        (!self.groups.is_empty()).then(|| self.cut(u64::MAX))
    }

    /// The longest part, the same number of tokens in all groups, that takes at most `most` slots.
    pub(super) fn cut(&self, most: u64) -> Cut {
        let mut ends: Vec<u64> = self
            .groups
            .iter()
            .flat_map(|g| g.keys.iter().map(|&(e, _)| e))
            .collect();
        ends.sort_unstable();
        ends.dedup();
        let need = |end: u64| self.groups.iter().map(|g| g.need(end)).sum::<u64>();
        let fits = ends.partition_point(|&end| need(end) <= most);
        let end = fits
            .checked_sub(1)
            .and_then(|i| ends.get(i))
            .copied()
            .unwrap_or(0);
        Cut {
            need: need(end),
            end,
            ends: self
                .groups
                .iter()
                .flat_map(|g| g.keys.iter().map(|&(e, id)| (id, e)))
                .collect(),
        }
    }
}

/// The part of an outlook that is promoted.
#[derive(Debug, Clone)]
pub(super) struct Cut {
    need: u64,
    end: u64,
    ends: HashMap<u64, u64, FixedState>,
}

impl Cut {
    /// Slots that it takes.
    pub(super) fn need(&self) -> u64 {
        self.need
    }

    /// Where the chunk of the key with this id ends, if it was held behind the first that was asked for.
    pub(super) fn end_of(&self, id: u64) -> Option<u64> {
        self.ends.get(&id).copied()
    }

    /// Whether the key with this id belongs to it. One that is not known lies before the first key that was asked for:
    /// it was in the primary, and is wanted before all others.
    pub(super) fn has(&self, id: u64) -> bool {
        self.ends.get(&id).is_none_or(|&e| e <= self.end)
    }
}
