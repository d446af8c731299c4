//! Every policy against a naive model, and what all policies promise (I3, one pass, all or none).

use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
};

use proptest::prelude::*;

use super::*;

mod model;
use model::Model;

fn fp(key: u64) -> Fingerprint {
    Fingerprint::of(&key.to_le_bytes(), 0)
}

/// The owner: keys under reused ids, pins, and how often each id was asked about in the last pass.
#[derive(Default)]
struct Owner {
    keys: HashMap<Id, u64>,
    pinned: HashSet<u64>,
    asked: RefCell<HashMap<Id, u32>>,
}

impl Owner {
    fn id_of(&self, key: u64) -> Option<Id> {
        self.keys.iter().find(|(_, k)| **k == key).map(|(id, _)| *id)
    }

    fn free_id(&self) -> Id {
        (0..).find(|id| !self.keys.contains_key(id)).unwrap()
    }

    fn keys_of(&self, ids: &[Id]) -> Vec<u64> {
        ids.iter().map(|id| self.keys[id]).collect()
    }
}

impl Residents for Owner {
    fn evictable(&self, id: Id) -> bool {
        *self.asked.borrow_mut().entry(id).or_default() += 1;
        !self.pinned.contains(&self.keys[&id])
    }

    fn fingerprint(&self, id: Id) -> Fingerprint {
        fp(self.keys[&id])
    }
}

#[derive(Debug, Clone)]
enum Op {
    Insert(u64, u32, u32),
    Cold(u64, u32),
    Access(u64, u32),
    Remove(u64),
    Pin(u64),
    Unpin(u64),
    Victims(u64),
    Capacity(u64),
    Unknown(Id),
}

fn op() -> impl Strategy<Value = Op> {
    let (key, weight, tag) = (0..24_u64, 1..5_u32, 0..4_u32);
    prop_oneof![
        10 => (key.clone(), weight.clone(), tag.clone()).prop_map(|(k, w, t)| Op::Insert(k, w, t)),
        2 => (key.clone(), weight).prop_map(|(k, w)| Op::Cold(k, w)),
        8 => (key.clone(), tag).prop_map(|(k, t)| Op::Access(k, t)),
        1 => key.clone().prop_map(Op::Remove),
        4 => key.clone().prop_map(Op::Pin),
        4 => key.prop_map(Op::Unpin),
        6 => (0..12_u64).prop_map(Op::Victims),
        1 => (0..60_u64).prop_map(Op::Capacity),
        1 => prop_oneof![Just(Id::MAX), Just(Id::MAX - 1), Just(77), Just(1 << 20)].prop_map(Op::Unknown),
    ]
}

fn agree(kind: PolicyKind, capacity: u64, ops: &[Op]) -> Result<(), TestCaseError> {
    let mut policy = kind.build(capacity);
    let mut model = Model::new(kind, capacity);
    let mut owner = Owner::default();
    for op in ops {
        match *op {
            Op::Insert(key, weight, tag) if owner.id_of(key).is_none() => {
                let id = owner.free_id();
                owner.keys.insert(id, key);
                policy.insert(id, fp(key), weight, RequestTag(tag));
                model.insert(key, weight, tag);
            }
            Op::Cold(key, weight) if owner.id_of(key).is_none() => {
                let id = owner.free_id();
                owner.keys.insert(id, key);
                policy.insert_cold(id, fp(key), weight);
                model.insert_cold(key, weight);
            }
            Op::Insert(key, _, tag) | Op::Access(key, tag) => {
                policy.access(owner.id_of(key).unwrap_or(50), RequestTag(tag));
                model.access(key, tag);
            }
            Op::Remove(key) => {
                if let Some(id) = owner.id_of(key) {
                    policy.remove(id);
                    owner.keys.remove(&id);
                }
                model.remove(key);
            }
            Op::Pin(key) => drop(owner.pinned.insert(key)),
            Op::Unpin(key) => {
                owner.pinned.remove(&key);
                policy.unpinned(owner.id_of(key).unwrap_or(50));
            }
            Op::Victims(need) => {
                owner.asked.borrow_mut().clear();
                let before = policy.eviction_order();
                let mut out = vec![Id::MAX];
                let ok = policy.victims(need, &owner, &mut out);
                let expected = model.victims(need, &owner.pinned);
                prop_assert_eq!(ok, expected.is_some());
                prop_assert_eq!(owner.keys_of(&out[1..]), expected.unwrap_or_default());
                prop_assert!(owner.asked.borrow().values().all(|n| *n == 1), "asked twice");
                prop_assert!(owner.keys_of(&out[1..]).iter().all(|k| !owner.pinned.contains(k)));
                if !ok && kind != PolicyKind::S3Fifo {
                    prop_assert_eq!(before, policy.eviction_order());
                }
                out[1..]
                    .iter()
                    .for_each(|id| assert!(owner.keys.remove(id).is_some()));
            }
            Op::Capacity(weight) => {
                policy.set_capacity(weight);
                model.set_capacity(weight);
            }
            Op::Unknown(id) => {
                policy.access(id, RequestTag(1));
                policy.remove(id);
                if id >= Id::MAX - 1 {
                    policy.insert(id, fp(1 << 40), 1, RequestTag(1));
                    policy.insert_cold(id, fp(1 << 40), 1);
                }
            }
            Op::Cold(..) => {}
        }
        let order = policy.eviction_order();
        prop_assert_eq!(owner.keys_of(&order), model.order(), "after {:?}", op);
        prop_assert_eq!((policy.len(), policy.weight()), (order.len(), model.weight()));
        prop_assert_eq!(policy.is_empty(), policy.oldest().is_none());
        if kind != PolicyKind::S3Fifo {
            prop_assert_eq!(policy.oldest(), order.first().copied());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::with_cases(300) })]

    #[test]
    fn lru_agrees_with_its_model(c in 0..60_u64, ops in prop::collection::vec(op(), 1..120)) {
        agree(PolicyKind::Lru, c, &ops)?;
    }

    #[test]
    fn arc_agrees_with_its_model(c in 0..60_u64, ops in prop::collection::vec(op(), 1..120)) {
        agree(PolicyKind::Arc, c, &ops)?;
    }

    #[test]
    fn s3fifo_agrees_with_its_model(c in 0..60_u64, ops in prop::collection::vec(op(), 1..120)) {
        agree(PolicyKind::S3Fifo, c, &ops)?;
    }
}

/// Nine tenths of a tier pinned made every eviction walk over them, while lookups waited for the lock.
#[test]
fn pinned_entries_are_asked_about_once_and_go_in_their_order_when_unpinned() {
    const ALL: u64 = 100_000;
    for kind in PolicyKind::ALL {
        let mut policy = kind.build(ALL);
        let mut owner = Owner::default();
        for key in 0..ALL {
            owner.keys.insert(key as Id, key);
            policy.insert(key as Id, fp(key), 1, RequestTag::NONE);
        }
        owner.pinned = (0..ALL).filter(|k| k % 10 > 0).collect();
        let mut out = Vec::new();
        assert!(
            !policy.victims(ALL / 10 + 1, &owner, &mut out) && out.is_empty(),
            "{kind}"
        );
        assert_eq!(owner.asked.take().values().sum::<u32>(), ALL as u32);
        for _ in 0..100 {
            assert!(policy.victims(20, &owner, &mut out));
        }
        assert_eq!(out, (0..2000).map(|n| n * 10).collect::<Vec<Id>>(), "{kind}");
        assert_eq!(
            owner.asked.take().values().sum::<u32>(),
            2000,
            "{kind}: the victims"
        );
        assert!(policy.victims(ALL / 10 - 2000, &owner, &mut out));
        owner.asked.take();
        for _ in 0..100 {
            assert!(!policy.victims(1, &owner, &mut out), "all are pinned");
        }
        assert!(
            owner.asked.take().is_empty(),
            "{kind}: a pass over pinned entries only"
        );
        let mut free: Vec<Id> = (0..3000).filter(|k| k % 10 > 0).map(|k| k * 7).collect();
        free.retain(|id| id % 10 > 0);
        for &id in free.iter().rev() {
            owner.pinned.remove(&u64::from(id));
            policy.unpinned(id);
        }
        out.clear();
        assert!(policy.victims(free.len() as u64, &owner, &mut out));
        assert_eq!(
            out, free,
            "{kind}: the order they had, whoever was unpinned first"
        );
        assert_eq!(policy.len() as u64, ALL - ALL / 10 - free.len() as u64);
    }
}

/// Pins that come and go all the time leave no more behind than the entries that are there.
#[test]
fn what_is_set_aside_takes_few_bytes_and_gives_them_back() {
    const ALL: u64 = 20_000;
    for kind in PolicyKind::ALL {
        let mut policy = kind.build(ALL);
        let mut owner = Owner::default();
        for key in 0..ALL {
            owner.keys.insert(key as Id, key);
            policy.insert(key as Id, fp(key), 1, RequestTag::NONE);
        }
        let mut out = Vec::new();
        let unpinned = policy.memory_bytes();
        for round in 0..200 {
            let pinned = |k: &u64| !(k + round).is_multiple_of(4);
            owner.pinned = (0..ALL).filter(pinned).collect();
            policy.victims(ALL / 3, &owner, &mut out);
            assert!(out.is_empty());
            for id in (0..ALL as Id).filter(|id| (u64::from(*id) + round) % 4 == 1) {
                policy.access(id, RequestTag::NONE);
            }
            (0..ALL as Id).for_each(|id| policy.unpinned(id));
            let grown = policy.memory_bytes() - unpinned;
            // a pass of S3-FIFO moves on what it looked at before
            let each = if kind == PolicyKind::S3Fifo { 10 } else { 7 };
            assert!(
                grown as u64 <= each * ALL,
                "{kind}: {grown} bytes in round {round}"
            );
        }
        assert_eq!(policy.len() as u64, ALL);
    }
}

#[test]
fn the_block_inserted_last_is_spared_while_another_can_go() {
    for kind in [PolicyKind::Lru, PolicyKind::Arc] {
        let mut policy = kind.build(3);
        let owner = Owner {
            keys: (0..4).map(|i| (i, u64::from(i))).collect(),
            ..Owner::default()
        };
        for id in 0..3 {
            policy.insert(id, fp(u64::from(id)), 1, RequestTag(1));
            policy.access(id, RequestTag(2)); // into T2
        }
        policy.insert(3, fp(3), 1, RequestTag(3)); // alone in T1
        let mut out = Vec::new();
        assert!(policy.victims(4, &owner, &mut out));
        assert_eq!(out, [0, 1, 2, 3], "{kind}");
    }
}

#[test]
fn one_request_counts_once_and_nobody_always() {
    for (kind, tags, survives) in [
        (PolicyKind::Arc, [1, 1, 1], false),
        (PolicyKind::Arc, [1, 2, 2], true),
        (PolicyKind::Arc, [0, 0, 0], true),
        (PolicyKind::S3Fifo, [1, 2, 2], false),
        (PolicyKind::S3Fifo, [1, 2, 3], true),
        (PolicyKind::S3Fifo, [0, 0, 0], true),
    ] {
        let mut policy = kind.build(10);
        policy.insert(0, fp(0), 1, RequestTag(tags[0]));
        policy.access(0, RequestTag(tags[1]));
        policy.access(0, RequestTag(tags[2]));
        (1..10).for_each(|id| policy.insert(id, fp(u64::from(id)), 1, RequestTag(9)));
        assert_eq!(policy.eviction_order()[0] != 0, survives, "{kind} {tags:?}");
    }
}

#[test]
fn memory_is_a_node_an_id_and_bounded_ghosts() {
    for (kind, node) in [
        (PolicyKind::Lru, 12),
        (PolicyKind::Arc, 16),
        (PolicyKind::S3Fifo, 16),
    ] {
        let mut policy = kind.build(10_000);
        let owner = Owner {
            keys: (0..10_000).map(|i| (i, u64::from(i))).collect(),
            ..Owner::default()
        };
        (0..10_000).for_each(|id| policy.insert(id, fp(u64::from(id)), 1, RequestTag(1)));
        let full = policy.memory_bytes();
        assert!(full <= 10 * 1024 * node + 1024, "{kind}: {full}");
        for round in 1..5_u64 {
            let mut out = Vec::new();
            assert!(policy.victims(10_000, &owner, &mut out));
            out.iter()
                .for_each(|&id| policy.insert(id, fp(u64::from(id) + round), 1, RequestTag(1)));
        }
        let ghosts = policy.memory_bytes() - full;
        assert!(
            ghosts <= if node == 12 { 0 } else { 20_000 * 32 },
            "{kind}: {ghosts}"
        );
    }
}

proptest! {
    /// With ids named twice, unknown and reserved ones among them.
    #[test]
    fn accesses_at_once_are_single_accesses(
        capacity in 1..80_u64,
        batches in prop::collection::vec(
            (prop::collection::vec(0..60_u32, 0..40), 0..3_u32, 0..6_u64),
            1..30,
        ),
    ) {
        let names = |id: Id| if id == 59 { Id::MAX } else { id };
        for kind in PolicyKind::ALL {
            let (mut one, mut all) = (kind.build(capacity), kind.build(capacity));
            let owner = Owner {
                keys: (0..50).map(|i| (i, u64::from(i))).collect(),
                ..Owner::default()
            };
            for p in [&mut one, &mut all] {
                (0..50).for_each(|id| p.insert(id, fp(u64::from(id)), id % 3 + 1, RequestTag(1)));
            }
            for (ids, tag, need) in &batches {
                let ids: Vec<Id> = ids.iter().map(|&id| names(id)).collect();
                ids.iter().for_each(|&id| one.access(id, RequestTag(*tag)));
                all.access_all(&ids, RequestTag(*tag));
                prop_assert_eq!(one.eviction_order(), all.eviction_order());
                let (mut a, mut b) = (vec![], vec![]);
                one.victims(*need, &owner, &mut a);
                all.victims(*need, &owner, &mut b);
                prop_assert_eq!(&a, &b);
                for p in [&mut one, &mut all] {
                    a.iter().take(2).for_each(|&id| p.insert(id, fp(u64::from(id)), 1, RequestTag(2)));
                }
                prop_assert_eq!((one.len(), one.weight()), (all.len(), all.weight()));
            }
        }
    }
}

#[test]
fn names_are_read_as_they_are_written() {
    for kind in PolicyKind::ALL {
        let json = serde_json::to_string(&kind).unwrap();
        assert_eq!(json, format!("\"{kind}\""));
        assert_eq!(serde_json::from_str::<PolicyKind>(&json).unwrap(), kind);
        assert_eq!(kind.as_str().parse::<PolicyKind>().unwrap(), kind.build(1).kind());
    }
    assert!(
        "fifo"
            .parse::<PolicyKind>()
            .unwrap_err()
            .to_string()
            .contains("s3fifo")
    );
}
