//! Extents that are there: after the root was loaded, or what a dead member left was taken over, those that belong to
//! this space are opened and their tables read, and their blocks become hits. Of two records of one key the later one
//! holds. An extent that is proved to be of no use (another block length, another namespace, damaged, half of it gone)
//! is given up like a file that is no block. One that cannot be read now (too few descriptors or memory, the device)
//! stays counted and is tried again by the keeper; one of a later version stays counted, and is left as it is.

use std::{
    collections::{BTreeMap, HashSet},
    io,
    sync::Arc,
};

use super::{
    Pack,
    extent::{Extent, MAX_SLOTS, data_cost, table_cost},
    format::{HEADER_BYTES, Header, RECORD_BYTES, Record, claims_version},
    free::SlotRun,
};
use crate::{
    block::{Fingerprint, Key},
    catalog::{Origin, index::State},
    error::{IoClass, classify},
    evict::Id,
    fs::{
        body::SlotBody,
        packed::parts::{open_extent, remove_part},
        space::Space,
    },
    io::{disk::read_all_at, pool::usable_cpus},
    jobs::Backend,
    metrics::EvictReason,
    root::names::{Location, Part, extent_part},
    sync::{
        Mutex,
        atomic::{AtomicUsize, Ordering},
        lock, thread,
    },
};

/// Bytes of a table read at once.
const TABLE_PIECE: usize = 1 << 20;
/// Blocks put into the index under one hold of the lock.
const AT_ONCE: usize = 1024;

/// A record found.
struct FoundRecord {
    fp: Fingerprint,
    sequence: u64,
    slot: u32,
    tag: u64,
    key: Option<Key>,
}

/// An extent found.
struct FoundExtent {
    extent: Extent,
    records: Vec<FoundRecord>,
    /// Places with records of a later version.
    newer: Vec<u32>,
}

/// What came of looking at an extent.
enum Look {
    Good(FoundExtent),
    /// It is proved that nothing of it can be used.
    Bad(&'static str),
    /// A later version's.
    Newer(String),
}

/// What came of looking at all of them.
#[derive(Default)]
struct Looked {
    good: Vec<FoundExtent>,
    bad: Vec<Id>,
    gone: Vec<Id>,
    /// Cannot be read now.
    later: Vec<Id>,
    newer: u64,
}

impl Pack {
    /// Opens the extents that came into the index since the last call.
    pub(crate) fn claim_extents(&self, s: &Space) {
        let _turn = lock(&self.grow);
        let known = lock(&s.core).take_unclaimed(s.id);
        let mine = match self.unopened(s) {
            Ok(mine) => mine,
            Err(error) => {
                let what = "extents cannot be listed now: that is tried again";
                if s.root.told.is_new(what, s.clock.now(), 1) {
                    tracing::warn!(tier = %s.params.name, %error, "{what}");
                }
                claim_later(s, known);
                return;
            }
        };
        // what the journal told of and somebody removed behind our back
        let there: HashSet<Id> = mine.values().flatten().flatten().copied().collect();
        for id in known.into_iter().filter(|id| !there.contains(id)) {
            if lock(&s.core).catalog.state(id) == State::Aside && !self.has(id) {
                remove_part(s, id, EvictReason::External);
            }
        }
        if mine.is_empty() {
            claim_later(s, Vec::new());
            return;
        }
        let began = s.clock.now();
        let numbers = self.free_numbers(mine.len());
        // more than a space can have: given up
        let beyond: Vec<Id> = mine
            .values()
            .skip(numbers.len())
            .flatten()
            .flatten()
            .copied()
            .collect();
        let jobs: Vec<_> = mine.into_iter().zip(numbers).collect();
        let at = AtomicUsize::new(0);
        let out = Mutex::new(Looked::default());
        thread::scope(|scope| {
            let work = || {
                while let Some(((nonce, ids), number)) = jobs.get(at.fetch_add(1, Ordering::Relaxed)) {
                    let look = match *ids {
                        [Some(table), Some(data)] => self.read_extent(s, [table, data], *nonce, *number),
                        _ => Ok(Look::Bad("the other file of it is not there")),
                    };
                    sort_in(s, &mut lock(&out), look, *nonce, ids);
                }
            };
            for n in 1..usable_cpus().min(jobs.len()) {
                // without helpers it only takes longer
                let _ = thread::Builder::new()
                    .name(format!("kvweir-claim-{n}"))
                    .spawn_scoped(scope, work);
            }
            work();
        });
        let looked = out
            .into_inner()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        let (extents, later, newer) = (looked.good.len(), looked.later.len() / 2, looked.newer);
        claim_later(s, looked.later);
        let blocks = self.take_in(s, looked.good);
        for (ids, reason) in [
            (looked.bad, EvictReason::Corrupt),
            (looked.gone, EvictReason::External),
            (beyond, EvictReason::Capacity),
        ] {
            ids.into_iter().for_each(|id| remove_part(s, id, reason));
        }
        let seconds = s.clock.now().since(began).as_secs_f64();
        if extents > 0 {
            tracing::info!(
                tier = %s.params.name, extents, blocks, later, newer, seconds,
                "packed blocks are open"
            );
        }
    }

    /// Numbers of our extents that are not open, with the entries of their table and data files.
    fn unopened(&self, s: &Space) -> io::Result<BTreeMap<u64, [Option<Id>; 2]>> {
        let at = Location::of_extent(Part::Table, 0).below(s.id.0);
        let dir = s.root.leaf_of(&at);
        let mut names = Vec::new();
        match s.root.disk.list(&dir, &mut |name, _| {
            names.extend(name.to_str().map(str::to_owned));
        }) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let core = lock(&s.core);
        let mut out: BTreeMap<u64, [Option<Id>; 2]> = BTreeMap::new();
        for name in names {
            let Some((part, nonce)) = extent_part(&name) else {
                continue;
            };
            let fp = Fingerprint::of(name.as_bytes(), s.ns.seed());
            let Some(id) = core.catalog.find(fp) else { continue };
            // another live member's are in nobody else's index
            if core.catalog.state(id) == State::Aside && !self.has(id) {
                let [table, data] = out.entry(nonce).or_default();
                match part {
                    Part::Table => *table = Some(id),
                    Part::Data => *data = Some(id),
                }
            }
        }
        Ok(out)
    }

    /// Reads header and table.
    fn read_extent(&self, s: &Space, ids: [Id; 2], nonce: u64, number: u32) -> io::Result<Look> {
        let files = open_extent(s, nonce)?;
        let mut page = vec![0; HEADER_BYTES as usize];
        let n = read_all_at(&*files.table, &mut page, 0)?;
        let Some(header) = Header::decode(page.get(..n).unwrap_or_default()) else {
            return Ok(match claims_version(&page) {
                Some(version) => Look::Newer(version),
                None => Look::Bad("its header is damaged"),
            });
        };
        let len = s.params.block_len;
        let same = header.block_len == len as u64
            && u64::from(header.slot_bytes) == super::slot_bytes(len)
            && header.namespace == *s.ns.digest()
            && header.nonce == nonce;
        if !same || n < page.len() {
            return Ok(Look::Bad("its header is that of other blocks"));
        }
        if header.slots > MAX_SLOTS {
            return Ok(Look::Newer(format!(
                "{} slots, {MAX_SLOTS} can be numbered",
                header.slots
            )));
        }
        let data = s.root.disk.stat(&files.data.path)?;
        if files.table.stat()?.len < header.table_len() || data.len < header.data_len() {
            return Ok(Look::Bad("a file of it was cut"));
        }
        let extent = files.into_extent(number, header, ids, header.slots);
        let (mut records, mut newer) = (Vec::new(), Vec::new());
        each_record(&extent, &mut |place, record| match record {
            Some(record) => records.push(FoundRecord {
                fp: s.fingerprint(&record.key),
                sequence: record.sequence,
                slot: extent.slot(place),
                tag: record.tag(),
                key: s.root.keep_keys.then_some(record.key),
            }),
            None => newer.push(place),
        })?;
        Ok(Look::Good(FoundExtent {
            extent,
            records,
            newer,
        }))
    }

    /// Makes hits of what was found: newest first, each in front of those before it. Returns how many.
    fn take_in(&self, s: &Space, found: Vec<FoundExtent>) -> u64 {
        let mut all = Vec::with_capacity(found.iter().map(|f| f.records.len()).sum());
        let mut extents = Vec::with_capacity(found.len());
        for f in found {
            all.extend(f.records);
            extents.push((f.extent, f.newer));
        }
        all.sort_unstable_by_key(|r| std::cmp::Reverse(r.sequence));
        if let Some(newest) = all.first() {
            self.seen_sequence(newest.sequence);
        }
        let mut taken = Vec::with_capacity(all.len());
        for part in all.chunks(AT_ONCE) {
            let mut core = lock(&s.core);
            for r in part {
                let body = SlotBody {
                    store: self.store,
                    slot: r.slot,
                    tag: r.tag,
                };
                let key = r.key.as_ref().map(|k| (s.id, k));
                let found = core.catalog.discover(r.fp, State::Ready, body.body(), key);
                let Some(id) = found else { continue };
                core.catalog.rank(id, Origin::Cold);
                core.catalog.stats.recovered_blocks += 1;
                taken.push(r.slot);
            }
        }
        let blocks = taken.len() as u64;
        taken.sort_unstable();
        for (e, newer) in extents {
            recount(s, &e);
            let first = taken.partition_point(|&s| s < e.slot(0));
            let mine = taken.get(first..).unwrap_or_default();
            let mut used: Vec<u32> = mine
                .iter()
                .map_while(|&s| s.checked_sub(e.slot(0)).filter(|&p| p < e.header.slots))
                .collect();
            if !newer.is_empty() {
                // taken for good
                used.extend(newer);
                used.sort_unstable();
            }
            let free = gaps(&used, e.header.slots);
            self.add(Arc::new(e), u32::try_from(used.len()).unwrap_or(u32::MAX), free);
        }
        blocks
    }
}

/// Keeps the parts of extents that cannot be opened now for the next call.
fn claim_later(s: &Space, parts: Vec<Id>) {
    lock(&s.core).add_unclaimed(s.id, parts);
}

/// Sorts what came of an extent.
fn sort_in(s: &Space, out: &mut Looked, look: io::Result<Look>, nonce: u64, ids: &[Option<Id>; 2]) {
    let (tier, now) = (&s.params.name, s.clock.now());
    let all = ids.iter().flatten().copied();
    match look {
        Ok(Look::Good(found)) => out.good.push(found),
        Ok(Look::Bad(why)) => {
            tracing::warn!(%tier, extent = nonce, why, "an extent is of no use and is removed");
            out.bad.extend(all);
        }
        Ok(Look::Newer(version)) => {
            let what = "an extent of a later version stays as it is, counted and not served";
            if s.root.told.is_new(what, now, 1) {
                tracing::warn!(%tier, extent = nonce, version, "{what}");
            }
            out.newer += 1;
        }
        Err(error) => match classify(&error) {
            IoClass::Gone => out.gone.extend(all),
            IoClass::Corrupt => {
                tracing::warn!(%tier, extent = nonce, %error, "an extent is lost and is removed");
                out.bad.extend(all);
            }
            _ => {
                let what = "an extent cannot be read now: it stays counted and is tried again";
                if s.root.told.is_new(what, now, 1) {
                    tracing::warn!(%tier, extent = nonce, %error, "{what}");
                }
                out.later.extend(all);
            }
        },
    }
}

/// Counts an extent as what it may come to cost.
fn recount(s: &Space, e: &Extent) {
    let fs_block = s.root.unit;
    let costs = [
        table_cost(e.header.slots, fs_block),
        data_cost(e.header.slots, u64::from(e.header.slot_bytes), fs_block),
    ];
    let mut core = lock(&s.core);
    for (&id, cost) in e.ids.iter().zip(costs) {
        core.recount(id, cost);
    }
}

/// Calls `each` with the records of an extent; `None` for one of a later version.
pub(super) fn each_record(extent: &Extent, each: &mut dyn FnMut(u32, Option<Record>)) -> io::Result<()> {
    let mut piece = vec![0; TABLE_PIECE.min(extent.header.slots as usize * RECORD_BYTES)];
    let mut place = 0;
    while place < extent.header.slots && !piece.is_empty() {
        let n = read_all_at(&*extent.table, &mut piece, Header::record_at(place))?;
        let (records, _) = piece.get(..n).unwrap_or_default().as_chunks::<RECORD_BYTES>();
        if records.is_empty() {
            break;
        }
        for bytes in records {
            if place >= extent.header.slots {
                break;
            }
            let nonce = extent.header.nonce;
            if let Some(r) = Record::decode(bytes, nonce, place) {
                each(place, Some(r));
            } else if Record::is_newer(bytes, nonce, place) {
                each(place, None);
            }
            place += 1;
        }
    }
    Ok(())
}

/// The runs between `used` places of `slots`.
fn gaps(used: &[u32], slots: u32) -> Vec<SlotRun> {
    let mut out = Vec::new();
    let mut from = 0;
    for &end in used.iter().chain(std::iter::once(&slots)) {
        if end > from {
            out.push(SlotRun {
                first: from,
                len: end - from,
            });
        }
        from = end + 1;
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn gaps_are_what_is_not_used() {
        let run = |first, len| SlotRun { first, len };
        assert_eq!(gaps(&[], 5), [run(0, 5)]);
        assert_eq!(gaps(&[0, 1, 4], 5), [run(2, 2)]);
        assert_eq!(gaps(&[1, 3], 6), [run(0, 1), run(2, 1), run(4, 2)]);
        assert_eq!(gaps(&[0, 1], 2), []);
    }
}
