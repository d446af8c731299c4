//! What can be seen of a request's prefix: which blocks are in the primary tier, which a secondary tier holds, and the
//! longest part of it, all KV-cache groups together, that is somewhere and for which there is room.

use super::{
    Manager,
    prefix::{GroupKeys, Prefix},
};
use crate::{
    block::Key,
    primary::{SlotState, Standing},
    tier::{Lookup, RequestId},
};

/// Keys looked at together.
const BATCH: usize = 64;

/// Where a block is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Seen {
    /// In the primary tier, or on its way there; whether a waiting request holds it already.
    Here { is_held: bool },
    /// In this secondary tier.
    Below(usize),
    /// A tier is finding out.
    Unsure,
    /// Nowhere.
    Nowhere,
}

impl Seen {
    /// Slots that holding it takes.
    fn cost(self) -> u64 {
        u64::from(!matches!(self, Self::Here { is_held: true }))
    }
}

/// One group of a prefix and what was seen of it.
#[derive(Debug)]
pub(super) struct GroupSight<'a> {
    pub(super) of: &'a GroupKeys,
    /// The first key that counts.
    from: usize,
    /// By key; nothing where nobody looked.
    seen: Vec<Option<Seen>>,
    /// Of a group of whole attention: slots for the keys up to each, from `from` on.
    costs: Vec<u64>,
}

impl GroupSight<'_> {
    fn need(&self, end: u64) -> u64 {
        let keys = self.of.needed(self.from, end);
        if self.of.window.is_none() {
            let n = keys.len();
            return n
                .checked_sub(1)
                .and_then(|i| self.costs.get(i))
                .copied()
                .unwrap_or(0);
        }
        self.seen
            .get(keys)
            .unwrap_or_default()
            .iter()
            .map(|s| s.map_or(0, Seen::cost))
            .sum()
    }

    /// The keys needed for a hit up to `end`, with where they are.
    pub(super) fn needed(&self, end: u64) -> impl Iterator<Item = (&Key, Seen)> {
        let range = self.of.needed(self.from, end);
        let keys = self.of.keys.get(range.clone()).unwrap_or_default();
        let seen = self.seen.get(range).unwrap_or_default();
        keys.iter()
            .zip(seen)
            .filter_map(|((_, key), seen)| Some((key, (*seen)?)))
    }
}

/// A prefix and what was seen of it.
#[derive(Debug)]
pub(super) struct Sight<'a> {
    pub(super) groups: Vec<GroupSight<'a>>,
    /// Where hits could end, ascending.
    ends: Vec<u64>,
    /// A tier is still finding out about a block that matters.
    pub(super) is_unsure: bool,
}

impl<'a> Sight<'a> {
    /// Looks at `prefix` from the block that begins at `begin` on, up to the first block of a group of whole attention
    /// that is nowhere.
    pub(super) fn new(m: &mut Manager, req: RequestId, prefix: &'a Prefix, begin: u64) -> Self {
        let mut sight = Self {
            groups: prefix
                .groups
                .iter()
                .map(|of| GroupSight {
                    of,
                    from: of.up_to(begin),
                    seen: vec![None; of.keys.len()],
                    costs: Vec::new(),
                })
                .collect(),
            ends: Vec::new(),
            is_unsure: false,
        };
        let mut limit = u64::MAX;
        let mut ends: Option<Vec<u64>> = None;
        for g in sight.groups.iter_mut().filter(|g| g.of.window.is_none()) {
            let to = g.of.up_to(limit).max(g.from);
            let found = m.look(req, g, g.from..to, &mut sight.is_unsure);
            let mut sum = 0;
            g.costs = (g.from..g.from + found)
                .map(|i| {
                    sum += g.seen.get(i).copied().flatten().map_or(0, Seen::cost);
                    sum
                })
                .collect();
            let reached = (g.from + found).checked_sub(1).and_then(|i| g.of.keys.get(i));
            limit = limit.min(if found == 0 {
                0
            } else {
                reached.map_or(0, |&(end, _)| end)
            });
            let coarser = ends.as_ref().is_none_or(|known| g.of.keys.len() < known.len());
            if coarser {
                ends = Some(g.of.keys.iter().map(|&(end, _)| end).collect());
            }
        }
        let ends = ends.unwrap_or_else(|| {
            let mut all: Vec<u64> = prefix
                .groups
                .iter()
                .flat_map(|g| g.keys.iter().map(|&(e, _)| e))
                .collect();
            all.sort_unstable();
            all.dedup();
            all
        });
        sight.ends = ends.into_iter().filter(|&e| e > begin && e <= limit).collect();
        sight
    }

    /// The longest hit, and the longest for which `room` slots are enough, where these differ. Tiers are asked for the
    /// windows on the way.
    pub(super) fn longest(
        &mut self,
        m: &mut Manager,
        req: RequestId,
        room: u64,
    ) -> (Option<u64>, Option<u64>) {
        let mut longest = None;
        let mut at = self.ends.len();
        while let Some(i) = at.checked_sub(1) {
            at = i;
            let Some(&end) = self.ends.get(i) else { break };
            if longest.is_some() && self.need(end) > room {
                continue;
            }
            if !self.has_windows(m, req, end) {
                continue;
            }
            longest = longest.or(Some(end));
            if self.need(end) <= room {
                return (longest, Some(end));
            }
        }
        (longest, None)
    }

    fn has_windows(&mut self, m: &mut Manager, req: RequestId, end: u64) -> bool {
        let unsure = &mut self.is_unsure;
        self.groups.iter_mut().filter(|g| g.of.window.is_some()).all(|g| {
            let keys = g.of.needed(0, end);
            let n = keys.len();
            n > 0 && m.look(req, g, keys, unsure) == n
        })
    }

    /// Whether a block of a hit up to `end` has to be brought up.
    pub(super) fn is_below(&self, end: u64) -> bool {
        let mut needed = self.groups.iter().flat_map(|g| g.needed(end));
        needed.any(|(_, seen)| matches!(seen, Seen::Below(_)))
    }

    /// Slots that holding a hit up to `end` takes beside those that are held already.
    pub(super) fn need(&self, end: u64) -> u64 {
        self.groups.iter().map(|g| g.need(end)).sum()
    }
}

impl Manager {
    /// Looks where the keys `range` of a group are, up to the first that is nowhere; how many come before it.
    fn look(
        &mut self,
        req: RequestId,
        group: &mut GroupSight<'_>,
        range: std::ops::Range<usize>,
        is_unsure: &mut bool,
    ) -> usize {
        let begin = range.start;
        let mut at = begin;
        while at < range.end {
            let to = range.end.min(at + BATCH);
            let mut absent: Vec<(usize, Key)> = Vec::new();
            for i in at..to {
                let (Some((_, key)), Some(seen)) = (group.of.keys.get(i), group.seen.get_mut(i)) else {
                    break;
                };
                if seen.is_some() {
                    continue;
                }
                match self.primary.standing(key) {
                    Standing {
                        state: SlotState::Absent,
                        ..
                    } => absent.push((i, key.clone())),
                    Standing { is_held, .. } => *seen = Some(Seen::Here { is_held }),
                }
            }
            self.stats.primary_queries += absent.len() as u64;
            if !absent.is_empty() {
                let (places, keys): (Vec<usize>, Vec<Key>) = absent.into_iter().unzip();
                for (i, seen) in places.into_iter().zip(self.ask_tiers(&keys, req)) {
                    *is_unsure |= seen == Seen::Unsure;
                    if let Some(s) = group.seen.get_mut(i) {
                        *s = Some(seen);
                    }
                }
            }
            for i in at..to {
                if matches!(group.seen.get(i), Some(Some(Seen::Nowhere)) | Some(None) | None) {
                    return i - begin;
                }
            }
            at = to;
        }
        range.len()
    }

    /// Which tier holds each of `keys`, none of which is in the primary, up to the first that none has.
    fn ask_tiers(&mut self, keys: &[Key], req: RequestId) -> Vec<Seen> {
        let mut out = Vec::with_capacity(keys.len());
        while let Some(rest) = keys.get(out.len()..).filter(|r| !r.is_empty()) {
            let before = out.len();
            let mut unsure = false;
            for i in 0..self.tiers.len() {
                let may = self
                    .requests
                    .get(&req)
                    .map_or((true, rest.len()), |r| r.may_load_run(rest, i));
                let ((true, most), Some(s)) = (may, self.tiers.get_mut(i)) else {
                    continue;
                };
                let Some(asked) = rest.get(..most).filter(|a| !a.is_empty()) else {
                    continue;
                };
                let (hits, next) = s.tier.lookup_run(asked, req);
                s.traffic.queries += (hits + 1).min(asked.len()) as u64;
                s.traffic.hits += hits as u64;
                if hits > 0 {
                    out.extend(std::iter::repeat_n(Seen::Below(i), hits));
                    break;
                }
                if next == Lookup::Retry
                    && let Some(key) = rest.first()
                {
                    unsure |= self.may_wait(i, key, req);
                }
            }
            if out.len() == before {
                out.push(if unsure { Seen::Unsure } else { Seen::Nowhere });
                if !unsure {
                    break;
                }
            }
        }
        out
    }
}
