//! The extents of one space, and which of their slots are taken. Behind one lock, taken after the core's or alone,
//! never across I/O.

use std::{
    collections::{HashMap, VecDeque},
    fmt,
    sync::Arc,
};

use foldhash::fast::FixedState;

use super::{
    extent::{Extent, FEW_SLOTS, MAX_SLOTS, SHIFT, extent_bytes, extent_cost, slot_bytes},
    format::Header,
    free::{FreeRuns, SlotRun},
};
use crate::{
    clock::Instant,
    evict::Id,
    fs::packed::looks::Looks,
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
        lock,
    },
    tier::RequestId,
};

/// Most extents a space can have.
pub(crate) const MAX_EXTENTS: usize = 1 << (31 - SHIFT);
/// The first record's number. Those below are for blocks that a conversion packs: older than what is packed already.
pub(crate) const FIRST_SEQUENCE: u64 = 1 << 40;
/// Extents into which a bound is divided, about.
const EXTENTS_A_BOUND: u64 = 64;
/// Most times that, where several spaces share a bound.
const MOST_PARTS: u64 = 4;
/// Bytes of an extent below which runs of slots become short, and the bound from which on none is smaller.
const SMALL_EXTENT: u64 = 8 << 20;
const SMALL_BOUND: u64 = 64 << 20;
/// Bytes of slots that a request keeps behind its last block for those that follow.
const WINDOW_BYTES: u64 = 2 << 20;
/// Most requests that keep such slots.
const MAX_WINDOWS: usize = 64;

#[derive(Debug)]
struct Taken {
    extent: Arc<Extent>,
    used: u32,
    /// Nothing new goes into it; its free slots, set aside.
    closing: Option<Vec<SlotRun>>,
    /// Its files went behind our back: nothing goes into it ever again.
    lost: bool,
}

#[derive(Debug)]
struct State {
    extents: Vec<Option<Taken>>,
    free: FreeRuns,
    windows: HashMap<RequestId, SlotRun, FixedState>,
    by_age: VecDeque<RequestId>,
    /// An extent was lost since the keeper asked.
    news: bool,
}

/// All extents of a space.
pub(crate) struct Pack {
    /// The number of this store of slots among those of the root.
    pub(crate) store: u8,
    /// Bytes of a block.
    pub(super) block_len: u64,
    /// Bytes of a slot.
    pub(crate) slot_bytes: u64,
    /// Bytes of an extent, where there is room.
    pub(crate) nominal: u64,
    window: u32,
    state: Mutex<State>,
    /// Held by the worker that makes or gives up an extent; taken before every other lock. Until when none is given up,
    /// since one could not be removed.
    pub(crate) grow: Mutex<Option<Instant>>,
    sequence: AtomicU64,
    /// Where the keeper is with its looks.
    pub(super) looks: Mutex<Looks>,
}

impl fmt::Debug for Pack {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pack")
            .field("slot_bytes", &self.slot_bytes)
            .field("nominal", &self.nominal)
            .finish_non_exhaustive()
    }
}

impl Pack {
    /// No extents yet, for blocks of `block_len` bytes below `bound` bytes, which `spaces` share; it is the store of slots
    /// numbered `store`.
    pub(crate) fn new(store: u8, block_len: usize, bound: u64, spaces: u64) -> Self {
        let slot_bytes = slot_bytes(block_len);
        let least = if bound / spaces.max(1) >= SMALL_BOUND {
            SMALL_EXTENT
        } else {
            0
        };
        // a share is to be many of them, and there shall be numbers for a bound that one has alone
        let bytes = (bound / (EXTENTS_A_BOUND * spaces.clamp(1, MOST_PARTS))).max(least);
        let slots = Header::slots_in(bytes, slot_bytes).clamp(FEW_SLOTS, MAX_SLOTS);
        let window = u32::try_from(WINDOW_BYTES / slot_bytes).unwrap_or(1).max(1);
        Self {
            store,
            block_len: block_len as u64,
            slot_bytes,
            nominal: extent_bytes(slots, slot_bytes),
            window,
            state: Mutex::new(State {
                extents: Vec::new(),
                free: FreeRuns::new(SHIFT),
                windows: HashMap::default(),
                by_age: VecDeque::new(),
                news: false,
            }),
            grow: Mutex::new(None),
            sequence: AtomicU64::new(FIRST_SEQUENCE),
            looks: Mutex::default(),
        }
    }

    /// Numbers for `n` records, higher than all before.
    pub(crate) fn next_sequence(&self, n: u64) -> u64 {
        self.sequence.fetch_add(n, Ordering::Relaxed)
    }

    /// A record with this number was found.
    pub(crate) fn seen_sequence(&self, n: u64) {
        self.sequence.fetch_max(n.saturating_add(1), Ordering::Relaxed);
    }

    /// A number for a new extent.
    pub(crate) fn free_number(&self) -> Option<u32> {
        self.free_numbers(1).first().copied()
    }

    /// Numbers for up to `most` new extents.
    pub(crate) fn free_numbers(&self, most: usize) -> Vec<u32> {
        let s = lock(&self.state);
        let free = (0..MAX_EXTENTS).filter(|&n| s.extents.get(n).is_none_or(Option::is_none));
        free.take(most).filter_map(|n| u32::try_from(n).ok()).collect()
    }

    /// Adds an extent of which `used` slots are taken and `free` are not.
    pub(crate) fn add(&self, extent: Arc<Extent>, used: u32, free: impl IntoIterator<Item = SlotRun>) {
        let mut s = lock(&self.state);
        let at = extent.number as usize;
        if s.extents.len() <= at {
            s.extents.resize_with(at + 1, || None);
        }
        for r in free {
            s.free.add(SlotRun {
                first: extent.slot(r.first),
                len: r.len,
            });
        }
        if let Some(e) = s.extents.get_mut(at) {
            *e = Some(Taken {
                extent,
                used,
                closing: None,
                lost: false,
            });
        }
    }

    /// Bytes of all its extents, on a file system that allocates in units of `unit` bytes.
    pub(crate) fn bytes(&self, unit: u64) -> u64 {
        let s = lock(&self.state);
        let all = s.extents.iter().flatten();
        all.map(|t| extent_cost(t.extent.header.slots, self.slot_bytes, unit))
            .sum()
    }

    /// Whether an extent with this entry is open.
    pub(crate) fn has(&self, id: Id) -> bool {
        let s = lock(&self.state);
        s.extents.iter().flatten().any(|t| t.extent.ids.contains(&id))
    }

    /// The extent of `slot`.
    pub(crate) fn extent_of(&self, slot: u32) -> Option<Arc<Extent>> {
        let s = lock(&self.state);
        let t = s.extents.get((slot >> SHIFT) as usize)?.as_ref()?;
        Some(Arc::clone(&t.extent))
    }

    /// Takes up to `n` slots for `req` and appends them to `out` as runs; returns how many.
    pub(crate) fn take(&self, n: u32, req: RequestId, out: &mut VecDeque<(Arc<Extent>, SlotRun)>) -> u32 {
        let mut s = lock(&self.state);
        let mut got = 0;
        let mut next = None;
        if let Some(w) = s.windows.remove(&req) {
            let len = w.len.min(n);
            got += s.hand_out(SlotRun { len, ..w }, out);
            next = Some(w.first + len);
            let rest = SlotRun {
                first: w.first + len,
                len: w.len - len,
            };
            if rest.len > 0 {
                s.windows.insert(req, rest);
                return got;
            }
        }
        while got < n {
            let (want, most) = (n - got, (n - got).max(self.window));
            let run = next.take().and_then(|at| s.free.take_at(at, most));
            let run = match run.or_else(|| s.free.take(want, most)) {
                Some(r) => r,
                // what others keep for later
                None if s.end_windows() => continue,
                None => break,
            };
            let len = run.len.min(want);
            got += s.hand_out(SlotRun { len, ..run }, out);
            let rest = SlotRun {
                first: run.first + len,
                len: run.len - len,
            };
            if rest.len > 0 {
                s.keep_window(req, rest);
            }
        }
        got
    }

    /// Frees slots.
    pub(crate) fn give(&self, slots: &mut [u32]) {
        slots.sort_unstable();
        let mut s = lock(&self.state);
        for run in slots.chunk_by(|a, b| a + 1 == *b) {
            if let (Some(&first), Ok(len)) = (run.first(), u32::try_from(run.len())) {
                s.give(SlotRun { first, len });
            }
        }
    }

    /// The request is over.
    pub(crate) fn end_windows_of(&self, req: RequestId) {
        let mut s = lock(&self.state);
        if let Some(w) = s.windows.remove(&req) {
            s.free.add(w);
            s.by_age.retain(|r| *r != req);
        }
    }

    /// Nothing goes into an extent any more: its files went behind our back. Returns whether that is news.
    pub(crate) fn mark_lost(&self, extent: &Extent) -> bool {
        let mut s = lock(&self.state);
        s.end_windows();
        let (first, end) = (extent.slot(0), (extent.number + 1) << SHIFT);
        let s = &mut *s;
        let Some(Some(t)) = s.extents.get_mut(extent.number as usize) else {
            return false;
        };
        if t.closing.is_none() {
            t.closing = Some(s.free.withdraw(first, end));
        }
        let new = !std::mem::replace(&mut t.lost, true);
        s.news |= new;
        new
    }

    /// Whether an extent was lost since the last call.
    pub(crate) fn take_news(&self) -> bool {
        std::mem::take(&mut lock(&self.state).news)
    }

    /// Extents of which a file went behind our back, as far as known.
    pub(crate) fn lost(&self) -> Vec<Arc<Extent>> {
        let s = lock(&self.state);
        let lost = s.extents.iter().flatten().filter(|t| t.lost);
        lost.map(|t| Arc::clone(&t.extent)).collect()
    }

    /// Up to `most` extents from number `from` on, and where to go on; those that are lost are left out.
    pub(crate) fn some(&self, from: usize, most: usize) -> (Vec<Arc<Extent>>, usize) {
        let s = lock(&self.state);
        let end = from.saturating_add(most).min(s.extents.len());
        let some = s.extents.get(from..end).unwrap_or_default().iter().flatten();
        let next = if end < s.extents.len() { end } else { 0 };
        let some = some.filter(|t| !t.lost).map(|t| Arc::clone(&t.extent));
        (some.collect(), next)
    }

    /// How many extents there are.
    pub(crate) fn len(&self) -> usize {
        lock(&self.state).extents.iter().flatten().count()
    }

    /// Open extents, those that are closing first, then those with the fewest taken slots.
    pub(crate) fn by_use(&self) -> Vec<Arc<Extent>> {
        let s = lock(&self.state);
        let mut all: Vec<&Taken> = s.extents.iter().flatten().filter(|t| !t.lost).collect();
        all.sort_by_key(|t| (t.closing.is_none(), t.used, t.extent.number));
        all.into_iter().map(|t| Arc::clone(&t.extent)).collect()
    }

    /// Sets the free slots of an extent aside, so that nothing new goes into it; `false` where `most` others are
    /// closing already and it is not.
    pub(crate) fn close(&self, extent: &Extent, most: usize) -> bool {
        let mut s = lock(&self.state);
        let closing = |t: &&Taken| t.closing.is_some() && !t.lost;
        let others = s.extents.iter().flatten().filter(closing).count();
        s.end_windows();
        let (first, end) = (extent.slot(0), (extent.number + 1) << SHIFT);
        let s = &mut *s;
        let Some(Some(t)) = s.extents.get_mut(extent.number as usize) else {
            return false;
        };
        if t.closing.is_none() {
            if others >= most {
                return false;
            }
            t.closing = Some(s.free.withdraw(first, end));
        }
        true
    }

    /// Lets closing extents take blocks again; returns whether that freed slots.
    pub(crate) fn reopen(&self) -> bool {
        let mut s = lock(&self.state);
        let s = &mut *s;
        let aside: Vec<SlotRun> = s
            .extents
            .iter_mut()
            .flatten()
            .filter(|t| !t.lost)
            .filter_map(|t| t.closing.take())
            .flatten()
            .collect();
        aside.iter().for_each(|&r| s.free.add(r));
        !aside.is_empty()
    }

    /// Forgets an extent that is closing, of which no slot is taken and that nobody but the caller has open; `false`
    /// while somebody does: its bytes would outlive its name.
    pub(crate) fn remove_unused(&self, extent: &Arc<Extent>) -> bool {
        let mut s = lock(&self.state);
        let Some(slot) = s.extents.get_mut(extent.number as usize) else {
            return false;
        };
        let unused = slot
            .as_ref()
            .is_some_and(|t| t.closing.is_some() && t.used == 0 && Arc::strong_count(&t.extent) <= 2);
        if unused {
            *slot = None;
        }
        unused
    }

    /// Slots that can be had at once.
    pub(crate) fn free(&self) -> u64 {
        lock(&self.state).free.total()
    }

    /// Slots in all, and how many hold nothing.
    #[cfg(test)]
    pub(crate) fn slots(&self) -> (u64, u64) {
        let s = lock(&self.state);
        let open = s.extents.iter().flatten();
        let (all, used) = open.fold((0, 0), |(all, used), t| {
            (all + u64::from(t.extent.header.slots), used + u64::from(t.used))
        });
        (all, all - used)
    }
}

impl State {
    fn hand_out(&mut self, run: SlotRun, out: &mut VecDeque<(Arc<Extent>, SlotRun)>) -> u32 {
        let Some(Some(t)) = self.extents.get_mut((run.first >> SHIFT) as usize) else {
            return run.len;
        };
        t.used += run.len;
        out.push_back((Arc::clone(&t.extent), run));
        run.len
    }

    fn give(&mut self, run: SlotRun) {
        let Some(Some(t)) = self.extents.get_mut((run.first >> SHIFT) as usize) else {
            return;
        };
        t.used = t.used.saturating_sub(run.len);
        match &mut t.closing {
            Some(aside) => aside.push(run),
            None => self.free.add(run),
        }
    }

    fn keep_window(&mut self, req: RequestId, rest: SlotRun) {
        if let Some(old) = self.windows.insert(req, rest) {
            self.free.add(old);
        }
        if !self.by_age.contains(&req) {
            self.by_age.push_back(req);
        }
        while self.by_age.len() > MAX_WINDOWS {
            if let Some(w) = self.by_age.pop_front().and_then(|r| self.windows.remove(&r)) {
                self.free.add(w);
            }
        }
    }

    /// Frees what requests keep; returns whether there was any.
    fn end_windows(&mut self) -> bool {
        let kept: Vec<SlotRun> = self.windows.drain().map(|(_, r)| r).collect();
        self.by_age.clear();
        kept.iter().for_each(|&r| self.free.add(r));
        !kept.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::{
        fs::packed::extent::Data,
        io::{Disk, OsDisk, disk::OpenMode},
        sync::{OnceLock, atomic::AtomicU32},
    };

    fn pack(extents: u32, slots: u32) -> Pack {
        let p = Pack::new(0, 65536, 1 << 30, 1);
        let dir = tempfile::tempdir().unwrap();
        for number in 0..extents {
            let file = OsDisk
                .open(&dir.path().join("x"), OpenMode::ReadWrite, false)
                .unwrap();
            let header = Header {
                slots,
                slot_bytes: 65536,
                block_len: 65536,
                nonce: 0,
                namespace: [0; 32],
                made_at: 0,
            };
            let e = Extent {
                number,
                header,
                ids: [number; 2],
                table: file,
                data: Data {
                    path: PathBuf::new(),
                    direct: None,
                    cached: OnceLock::new(),
                },
                fresh_from: AtomicU32::new(0),
            };
            p.add(Arc::new(e), 0, [SlotRun { first: 0, len: slots }]);
        }
        p
    }

    fn take(p: &Pack, n: u32, req: u64) -> Vec<SlotRun> {
        let mut out = VecDeque::new();
        p.take(n, RequestId(req), &mut out);
        out.into_iter().map(|(_, r)| r).collect()
    }

    #[test]
    fn the_jobs_of_a_request_lie_behind_each_other_though_others_store_between() {
        let p = pack(1, 512);
        let mut ends = [None::<u32>; 3];
        for _ in 0..4 {
            for (req, end) in ends.iter_mut().enumerate() {
                let runs = take(&p, 8, req as u64);
                assert_eq!(runs.len(), 1);
                assert!(end.is_none_or(|e| e == runs[0].first), "request {req}: {runs:?}");
                *end = Some(runs[0].first + 8);
            }
        }
    }

    #[test]
    fn every_slot_is_handed_out_once_windows_and_all_and_freed_again() {
        let p = pack(2, 100);
        let mut slots: Vec<u32> = Vec::new();
        for req in 0..40 {
            for r in take(&p, 5, req) {
                slots.extend(r.first..r.first + r.len);
            }
        }
        assert_eq!(slots.len(), 200);
        assert!(take(&p, 1, 99).is_empty());
        slots.sort_unstable();
        slots.dedup();
        assert_eq!((slots.len(), p.slots()), (200, (200, 0)));
        p.give(&mut slots);
        assert_eq!(p.slots(), (200, 200));
        assert_eq!(take(&p, 100, 7), [SlotRun { first: 0, len: 100 }]);
    }

    #[test]
    fn an_extent_that_closes_gets_nothing_new_and_goes_when_it_is_empty() {
        let p = pack(2, 16);
        let mut held: Vec<u32> = take(&p, 4, 1)
            .iter()
            .flat_map(|r| r.first..r.first + r.len)
            .collect();
        let first = p.extent_of(held[0]).unwrap();
        assert!(p.close(&first, 1));
        let more: u32 = take(&p, 32, 2).iter().map(|r| r.len).sum();
        assert_eq!(more, 16, "only the other extent");
        assert!(!p.remove_unused(&first));
        p.give(&mut held);
        assert!(take(&p, 1, 3).is_empty() && p.remove_unused(&first));
        assert!(p.extent_of(held[0]).is_none() && p.free_number() == Some(0));
    }

    #[test]
    fn an_extent_that_somebody_still_has_open_is_not_forgotten() {
        let p = pack(1, 16);
        let mine = p.extent_of(0).unwrap();
        assert!(p.close(&mine, 1));
        let reader = p.extent_of(3);
        assert!(!p.remove_unused(&mine));
        drop(reader);
        assert!(p.remove_unused(&mine));
    }

    #[test]
    fn few_extents_close_at_a_time_and_all_their_slots_come_back() {
        let p = pack(3, 16);
        let mut held: Vec<u32> = take(&p, 4, 1)
            .iter()
            .flat_map(|r| r.first..r.first + r.len)
            .collect();
        let all = p.by_use();
        let closed = all.iter().filter(|e| p.close(e, 2)).count();
        assert_eq!(closed, 2);
        assert!(
            all.iter().filter(|e| p.close(e, 2)).count() == 2,
            "again the same"
        );
        p.give(&mut held);
        assert!(p.reopen() && !p.reopen());
        assert_eq!(p.free(), 48);
        assert_eq!(take(&p, 48, 1).iter().map(|r| r.len).sum::<u32>(), 48);
    }

    #[test]
    fn the_nominal_extent_follows_the_bound() {
        assert_eq!(Pack::new(0, 65536, 1 << 20, 1).nominal, extent_bytes(16, 65536));
        let small = Pack::new(0, 65536, 128 << 20, 1).nominal;
        assert!((7 << 20..=8 << 20).contains(&small), "{small}");
        let p = Pack::new(0, 16384, 64 << 30, 1);
        assert!(p.nominal <= 1 << 30 && p.nominal > 1000 << 20);
    }
}
