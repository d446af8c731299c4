//! The policies written the slow and obvious way: vectors of entries, coldest first, and no shared code.

use std::collections::HashSet;

use crate::evict::PolicyKind;

#[derive(Debug, Clone)]
struct Entry {
    key: u64,
    weight: u64,
    tag: u32,
    freq: u32,
    /// Chosen in the pass that runs.
    gone: bool,
}

/// `a` and `b` are T1 and T2, or small and main (LRU uses `a`); `ga` and `gb` are their ghosts.
#[derive(Debug, Clone)]
pub(super) struct Model {
    kind: PolicyKind,
    c: u64,
    p: u64,
    a: Vec<Entry>,
    b: Vec<Entry>,
    ga: Vec<(u64, u64)>,
    gb: Vec<(u64, u64)>,
    newest: Option<u64>,
}

fn sum(list: &[Entry]) -> u64 {
    list.iter().filter(|e| !e.gone).map(|e| e.weight).sum()
}

fn ghost_sum(list: &[(u64, u64)]) -> u64 {
    list.iter().map(|g| g.1).sum()
}

fn cut<T>(list: &mut Vec<T>, hit: impl Fn(&T) -> bool) -> Option<T> {
    list.iter().position(hit).map(|i| list.remove(i))
}

impl Model {
    pub(super) fn new(kind: PolicyKind, c: u64) -> Self {
        let (a, b, ga, gb) = Default::default();
        Self {
            kind,
            c,
            p: 0,
            a,
            b,
            ga,
            gb,
            newest: None,
        }
    }

    fn forget(&mut self) {
        let small = (self.c / 10).max(1);
        loop {
            let (la, lga, lgb) = (sum(&self.a), ghost_sum(&self.ga), ghost_sum(&self.gb));
            let too_many = match self.kind {
                PolicyKind::Arc => la + lga > self.c,
                _ => lga > self.c.saturating_sub(small),
            };
            if too_many && lga > 0 {
                self.ga.remove(0);
            } else if lgb > 0 && la + sum(&self.b) + lga + lgb > 2 * self.c {
                self.gb.remove(0);
            } else {
                return;
            }
        }
    }

    pub(super) fn insert(&mut self, key: u64, weight: u32, tag: u32) {
        let w = u64::from(weight);
        let entry = Entry {
            key,
            weight: w,
            tag,
            freq: 0,
            gone: false,
        };
        let (la, lb) = (ghost_sum(&self.ga), ghost_sum(&self.gb));
        let second = if cut(&mut self.ga, |g| g.0 == key).is_some() {
            self.p = self.c.min(self.p + if lb > la { w * lb / la } else { w });
            true
        } else if cut(&mut self.gb, |g| g.0 == key).is_some() {
            self.p -= self.p.min(if la > lb { w * la / lb } else { w });
            true
        } else {
            false
        };
        if second { &mut self.b } else { &mut self.a }.push(entry);
        self.newest = Some(key);
        if self.kind == PolicyKind::Arc {
            self.forget();
        }
    }

    pub(super) fn insert_cold(&mut self, key: u64, weight: u32) {
        self.ga.retain(|g| g.0 != key);
        self.gb.retain(|g| g.0 != key);
        self.a.insert(
            0,
            Entry {
                key,
                weight: u64::from(weight),
                tag: 0,
                freq: 0,
                gone: false,
            },
        );
        if self.kind == PolicyKind::Arc {
            self.forget();
        }
    }

    pub(super) fn access(&mut self, key: u64, tag: u32) {
        let list = if self.a.iter().any(|e| e.key == key) {
            &mut self.a
        } else {
            &mut self.b
        };
        let Some(i) = list.iter().position(|e| e.key == key) else {
            return;
        };
        let counts = tag == 0 || list[i].tag != tag;
        list[i].tag = tag;
        if self.kind == PolicyKind::S3Fifo {
            list[i].freq = 3.min(list[i].freq + u32::from(counts));
            return;
        }
        let entry = list.remove(i);
        if counts && self.kind == PolicyKind::Arc {
            self.b.push(entry);
            self.forget();
        } else {
            list.push(entry);
        }
    }

    pub(super) fn remove(&mut self, key: u64) {
        self.a.retain(|e| e.key != key);
        self.b.retain(|e| e.key != key);
        self.newest = self.newest.filter(|k| *k != key);
    }

    pub(super) fn set_capacity(&mut self, c: u64) {
        self.c = c;
        self.p = self.p.min(c);
        self.forget();
    }

    /// The victims, dropped and turned into ghosts; or None. Second chances stay given.
    pub(super) fn victims(&mut self, need: u64, pinned: &HashSet<u64>) -> Option<Vec<u64>> {
        if need > self.weight() {
            return None;
        }
        let (mut chosen, mut gained) = (Vec::new(), 0);
        let mut at = (0, 0); // S3-FIFO: entries before these stay or go, but were dealt with
        while gained < need {
            let next = match self.kind {
                PolicyKind::S3Fifo => self.s3_next(pinned, &mut at),
                _ => self.arc_next(pinned),
            };
            let Some((in_a, i)) = next else {
                self.a.iter_mut().chain(&mut self.b).for_each(|e| e.gone = false);
                return None;
            };
            let entry = if in_a { &mut self.a[i] } else { &mut self.b[i] };
            entry.gone = true;
            gained += entry.weight;
            chosen.push((in_a, entry.key, entry.weight));
        }
        self.a.retain(|e| !e.gone);
        self.b.retain(|e| !e.gone);
        for &(in_a, key, weight) in &chosen {
            self.newest = self.newest.filter(|k| *k != key);
            match (self.kind, in_a) {
                (PolicyKind::Lru, _) | (PolicyKind::S3Fifo, false) => {}
                (_, true) => self.ga.push((key, weight)),
                (_, false) => self.gb.push((key, weight)),
            }
        }
        self.forget();
        Some(chosen.into_iter().map(|c| c.1).collect())
    }

    fn arc_next(&self, pinned: &HashSet<u64>) -> Option<(bool, usize)> {
        let free = |e: &Entry| !e.gone && !pinned.contains(&e.key);
        let newest = |e: &Entry| Some(e.key) == self.newest;
        match (self.a.iter().position(free), self.b.iter().position(free)) {
            (None, None) => None,
            (Some(i), None) => Some((true, i)),
            (None, Some(j)) => Some((false, j)),
            (Some(i), Some(j)) if newest(&self.a[i]) => Some((false, j)),
            (Some(i), Some(j)) if newest(&self.b[j]) => Some((true, i)),
            (Some(i), Some(_)) if sum(&self.a) > self.p => Some((true, i)),
            (Some(_), Some(j)) => Some((false, j)),
        }
    }

    fn s3_next(&mut self, pinned: &HashSet<u64>, (i, j): &mut (usize, usize)) -> Option<(bool, usize)> {
        loop {
            let (more_a, more_b) = (*i < self.a.len(), *j < self.b.len());
            let in_a = more_a && (sum(&self.a) >= (self.c / 10).max(1) || !more_b);
            let (list, at) = if in_a {
                (&mut self.a, &mut *i)
            } else {
                (&mut self.b, &mut *j)
            };
            let entry = list.get(*at)?;
            if entry.freq > u32::from(in_a) {
                let entry = list.remove(*at);
                let freq = if in_a { 0 } else { entry.freq - 1 };
                self.b.push(Entry { freq, ..entry });
            } else {
                *at += 1;
                if !pinned.contains(&entry.key) {
                    return Some((in_a, *at - 1));
                }
            }
        }
    }

    pub(super) fn weight(&self) -> u64 {
        sum(&self.a) + sum(&self.b)
    }

    pub(super) fn order(&self) -> Vec<u64> {
        self.clone()
            .victims(self.weight(), &HashSet::new())
            .unwrap_or_default()
    }
}
