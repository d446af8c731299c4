//! Claims of the primary tier, and a random walk against a plain model.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;

use super::*;

fn key(n: u32) -> Key {
    Key::new(&n.to_le_bytes()).unwrap()
}

fn keys(r: impl IntoIterator<Item = u32>) -> Vec<Key> {
    r.into_iter().map(key).collect()
}

fn tier(slots: u32) -> Primary {
    Primary::new(Region::new(slots, 64, false).unwrap(), PolicyKind::Lru, true)
}

const R: RequestId = RequestId(1);

fn store(p: &mut Primary, r: impl IntoIterator<Item = u32>) -> Option<Prepared> {
    let k = keys(r);
    let out = p.prepare_store(&k, R)?;
    p.complete_store(&k, true);
    p.end_step();
    Some(out)
}

#[test]
fn a_block_is_writing_then_ready_and_a_failed_write_frees_its_slot() {
    let mut p = tier(2);
    p.prepare_store(&keys([1, 2]), R).unwrap();
    assert_eq!(p.lookup(&key(1)), SlotState::Writing);
    assert_eq!(p.prepare_load(&keys([1])).unwrap_err().kind(), ErrorKind::Invalid);
    p.complete_store(&keys([1]), true);
    p.complete_store(&keys([2]), false);
    assert_eq!(
        (p.lookup(&key(1)), p.lookup(&key(2))),
        (SlotState::Ready, SlotState::Absent)
    );
    assert_eq!(p.stats().used, 1);
}

#[test]
fn the_leaf_end_of_a_request_is_evicted_first() {
    let mut p = tier(4);
    store(&mut p, 0..4).unwrap();
    assert_eq!(store(&mut p, 10..12).unwrap().evicted, keys([3, 2]));
}

#[test]
fn none_is_returned_and_nothing_changed_when_room_cannot_be_made() {
    let mut p = tier(4);
    store(&mut p, 0..4).unwrap();
    p.prepare_load(&keys([0, 1, 2])).unwrap();
    assert!(p.prepare_store(&keys([10, 11]), R).is_none());
    assert_eq!(p.stats().allocation_failures, 1);
    assert!((0..4).all(|n| p.state(&key(n)) == SlotState::Ready));
    p.complete_load(&keys([0, 1, 2]));
    assert_eq!(p.stats().referenced, 0);
    assert!(p.prepare_store(&keys([10, 11]), R).is_some());
}

#[test]
fn a_hit_holds_until_the_end_of_the_step() {
    let mut p = tier(2);
    store(&mut p, 0..2).unwrap();
    assert_eq!(p.lookup(&key(1)), SlotState::Ready);
    assert_eq!(
        p.prepare_store(&keys([5]), R).unwrap().evicted,
        keys([0]),
        "the block that was not just looked up"
    );
    p.complete_store(&keys([5]), true);
    assert!(p.prepare_load(&keys([1])).is_ok());
}

#[test]
fn blocks_of_the_same_call_are_not_evicted_for_each_other() {
    let mut p = tier(3);
    store(&mut p, 0..3).unwrap();
    let out = p.prepare_store(&keys([2, 7]), R).unwrap();
    assert_eq!((out.to_store.len(), out.evicted), (1, keys([1])));
    assert!(p.prepare_store(&keys([2, 2, 2]), R).unwrap().to_store.is_empty());
    let mut q = tier(3);
    assert_eq!(
        q.prepare_store(&keys([4, 4]), R).unwrap().to_store.len(),
        1,
        "a key given twice takes one slot"
    );
    assert_eq!(q.stats().used, 1);
}

#[test]
fn a_slot_that_io_still_touches_is_not_handed_out() {
    let mut p = tier(2);
    let slots: Vec<_> = p.prepare_store(&keys([1, 2]), R).unwrap().to_store;
    let guard = p.region().write(slots[0].1).unwrap();
    p.complete_store(&keys([1, 2]), false);
    let out = p.prepare_store(&keys([3]), R).unwrap();
    assert_ne!(out.to_store[0].1, guard.slot());
    p.complete_store(&keys([3]), true);
    p.end_step();
    let reader = p.region().read(out.to_store[0].1).unwrap();
    assert!(
        p.prepare_store(&keys([4]), R).is_none(),
        "the other slot is read from without a reference"
    );
    drop((guard, reader));
    assert!(p.prepare_store(&keys([4]), R).is_some());
}

#[test]
fn reset_forgets_everything_and_tells_so() {
    let mut p = tier(4);
    store(&mut p, 0..2).unwrap();
    p.prepare_load(&keys([0])).unwrap();
    p.prepare_store(&keys([8]), R).unwrap();
    p.reset();
    assert_eq!((p.stats().used, p.stats().referenced), (0, 0));
    p.complete_load(&keys([0]));
    p.complete_store(&keys([8]), true);
    let mut ev = Vec::new();
    p.take_events(&mut ev);
    assert!(
        ev.iter()
            .filter(|e| e.kind == crate::events::EventKind::Removed)
            .count()
            >= 2
    );
    assert_eq!(store(&mut p, 20..24).unwrap().to_store.len(), 4);
}

/// A key given three times evicted three blocks, of which two slots stayed empty.
#[test]
fn a_key_given_often_evicts_one_block() {
    let mut p = tier(3);
    store(&mut p, 0..3).unwrap();
    let out = p.prepare_store(&keys([9, 9, 9]), R).unwrap();
    assert_eq!((out.to_store.len(), out.evicted), (1, keys([2])));
    p.complete_store(&keys([9]), true);
    p.end_step();
    // room for one more than the guard leaves: not for three of the same
    p.prepare_load(&keys([0, 1])).unwrap();
    assert_eq!(p.prepare_store(&keys([7, 7, 7]), R).unwrap().to_store.len(), 1);
}

/// What a guard, a reference or a hit in the step kept from going goes when that is over, though nobody asks in
/// between.
#[test]
fn every_hold_that_ends_is_noticed() {
    for policy in PolicyKind::ALL {
        let mut p = Primary::new(Region::new(3, 64, false).unwrap(), policy, true);
        store(&mut p, 0..3).unwrap();
        p.lookup(&key(0));
        p.prepare_load(&keys([1])).unwrap();
        let guard = p.region().read(p.find(&key(2), key(2).fingerprint(0)).unwrap());
        for _ in 0..3 {
            assert!(p.prepare_store(&keys([7]), R).is_none());
        }
        drop(guard);
        assert_eq!(p.prepare_store(&keys([7]), R).unwrap().evicted, keys([2]));
        assert!(p.prepare_store(&keys([8]), R).is_none());
        p.complete_load(&keys([1]));
        assert_eq!(p.prepare_store(&keys([8]), R).unwrap().evicted, keys([1]));
        assert!(p.prepare_store(&keys([9]), R).is_none());
        p.end_step();
        assert_eq!(p.prepare_store(&keys([9]), R).unwrap().evicted, keys([0]));
        assert!(p.prepare_store(&keys([10]), R).is_none(), "all are being written");
        p.complete_store(&keys([8]), true);
        assert_eq!(p.prepare_store(&keys([10]), R).unwrap().evicted, keys([8]));
    }
}

#[derive(Debug, Clone)]
enum Op {
    Store(Vec<u32>),
    Complete(u32, bool),
    Load(Vec<u32>),
    Unload(u32),
    Touch(Vec<u32>),
    Lookup(u32),
    /// An I/O guard of the block's slot, held until so many other steps have passed.
    Guard(u32),
    Unguard,
    /// A waiting request holds the block, if it is there; the oldest hold ends.
    Hold(u32),
    Unhold,
    EndStep,
}

fn op() -> impl Strategy<Value = Op> {
    let some = || prop::collection::vec(0u32..24, 1..5);
    prop_oneof![
        3 => some().prop_map(Op::Store),
        3 => (0u32..24, any::<bool>()).prop_map(|(k, ok)| Op::Complete(k, ok)),
        2 => some().prop_map(Op::Load),
        2 => (0u32..24).prop_map(Op::Unload),
        1 => some().prop_map(Op::Touch),
        2 => (0u32..24).prop_map(Op::Lookup),
        1 => (0u32..24).prop_map(Op::Guard),
        2 => Just(Op::Unguard),
        1 => (0u32..24).prop_map(Op::Hold),
        1 => Just(Op::Unhold),
        1 => Just(Op::EndStep),
    ]
}

proptest! {
    #[test]
    fn slots_states_and_references_follow_a_plain_model(
        ops in prop::collection::vec(op(), 1..200),
        policy in prop::sample::select(PolicyKind::ALL.to_vec()),
    ) {
        const SLOTS: u32 = 8;
        let mut p = Primary::new(Region::new(SLOTS, 16, false).unwrap(), policy, true);
        // key -> (ready, references)
        let mut model: BTreeMap<u32, (bool, u32)> = BTreeMap::new();
        let mut resident = BTreeSet::new();
        let mut hits = BTreeSet::new();
        let mut guards: Vec<crate::io::SlotRead> = Vec::new();
        // holds, and the block that each is on as long as it is there
        let mut holds: VecDeque<(Claim, u32)> = VecDeque::new();
        for op in ops {
            match op {
                Op::Store(ks) => {
                    let want: BTreeSet<u32> = ks.iter().copied().filter(|k| !model.contains_key(k)).collect();
                    hits.extend(ks.iter().filter(|k| model.get(k).is_some_and(|s| s.0)));
                    let slots: BTreeMap<u32, u32> = model.keys()
                        .map(|&k| (k, p.find(&key(k), key(k).fingerprint(0)).unwrap())).collect();
                    let guarded: BTreeSet<u32> = guards.iter().map(crate::io::SlotRead::slot).collect();
                    let on_hold = |k: &u32| holds.iter().any(|h| h.1 == *k);
                    let held = |k: &u32| hits.contains(k) || guarded.contains(&slots[k]) || on_hold(k);
                    let can_go = model.iter().filter(|&(k, s)| *s == (true, 0) && !held(k)).count();
                    // a slot that was given up while it was read is nobody's yet
                    let late = guarded.iter().filter(|&g| slots.values().all(|s| s != g)).count();
                    let free = SLOTS as usize - model.len() - late;
                    let fits = want.len() <= free + can_go;
                    let got = p.prepare_store(&keys(ks.clone()), R);
                    prop_assert_eq!(got.is_some(), fits, "{} free, {} can go", free, can_go);
                    if let Some(out) = got {
                        for k in &out.evicted {
                            let k = u32::from_le_bytes(k.as_bytes().try_into().unwrap());
                            prop_assert_eq!(model.remove(&k), Some((true, 0)), "evicted {} which was in use", k);
                            prop_assert!(!ks.contains(&k) && holds.iter().all(|h| h.1 != k));
                        }
                        let got: BTreeSet<u32> = out.to_store.iter()
                            .map(|(k, _)| u32::from_le_bytes(k.as_bytes().try_into().unwrap())).collect();
                        prop_assert_eq!(&got, &want);
                        model.extend(got.into_iter().map(|k| (k, (false, 0))));
                    }
                }
                Op::Complete(k, ok) => {
                    p.complete_store(&keys([k]), ok);
                    if let Some(s) = model.get_mut(&k).filter(|s| !s.0) {
                        if ok {
                            s.0 = true;
                        } else {
                            // what held it holds nothing now
                            model.remove(&k);
                            holds.iter_mut().filter(|h| h.1 == k).for_each(|h| h.1 = u32::MAX);
                        }
                    }
                }
                Op::Load(ks) => {
                    let all = ks.iter().all(|k| model.get(k).is_some_and(|s| s.0));
                    let got = p.prepare_load(&keys(ks.clone()));
                    prop_assert_eq!(got.is_ok(), all);
                    if all {
                        ks.iter().for_each(|k| model.get_mut(k).unwrap().1 += 1);
                    }
                }
                Op::Unload(k) => {
                    p.complete_load(&keys([k]));
                    if let Some(s) = model.get_mut(&k) { s.1 = s.1.saturating_sub(1) }
                }
                Op::Touch(ks) => p.touch(&keys(ks), RequestId(9)),
                Op::Lookup(k) => {
                    if p.lookup(&key(k)) == SlotState::Ready {
                        hits.insert(k);
                    }
                }
                Op::Guard(k) => {
                    if model.contains_key(&k) && guards.len() < 3 {
                        let slot = p.find(&key(k), key(k).fingerprint(0)).unwrap();
                        guards.push(p.region().read(slot).unwrap());
                    }
                }
                Op::Unguard => drop(guards.pop()),
                Op::Hold(k) => {
                    let claim = p.hold(&key(k));
                    prop_assert_eq!(claim.is_some(), model.contains_key(&k));
                    if let Some(claim) = claim {
                        if holds.len() < 3 { holds.push_back((claim, k)) } else { p.unhold(&[claim]) }
                    }
                }
                Op::Unhold => {
                    if let Some((claim, _)) = holds.pop_front() { p.unhold(&[claim]) }
                }
                Op::EndStep => {
                    p.end_step();
                    hits.clear();
                }
            }
            for k in 0..24 {
                let want = match model.get(&k) {
                    None => SlotState::Absent,
                    Some((true, _)) => SlotState::Ready,
                    Some(_) => SlotState::Writing,
                };
                prop_assert_eq!(p.state(&key(k)), want);
            }
            let st = p.stats();
            prop_assert!(st.used as usize == model.len() && st.used <= u64::from(SLOTS));
            let on_hold: BTreeSet<u32> = holds.iter().map(|h| h.1).filter(|k| model.contains_key(k)).collect();
            prop_assert_eq!(st.held as usize, on_hold.len());
            prop_assert_eq!(st.writing as usize, model.values().filter(|s| !s.0).count());
            prop_assert_eq!(st.referenced as usize, model.values().filter(|s| s.1 > 0).count());
            let mut ev = Vec::new();
            p.take_events(&mut ev);
            for e in ev {
                match e.kind {
                    crate::events::EventKind::Stored => resident.insert(e.key),
                    crate::events::EventKind::Removed => resident.remove(&e.key),
                };
            }
            let ready: BTreeSet<Key> = model.iter().filter(|(_, s)| s.0).map(|(k, _)| key(*k)).collect();
            prop_assert_eq!(&resident, &ready);
        }
    }
}
