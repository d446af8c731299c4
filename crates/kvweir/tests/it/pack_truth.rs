//! I2 for packed blocks: whatever happens to an extent behind its tier's back, a block is right or a miss, and the
//! account follows.

use std::path::{Path, PathBuf};

use kvweir::{
    ErrorKind, Key,
    fs::Layout,
    tier::{BlockOutcome, RequestId, Tier, Verified},
};

use crate::support::*;

const BOUND: u64 = 4 << 20;
const BLOCKS: u64 = 40;

/// An extent's bytes.
struct Image {
    path: PathBuf,
    table: Vec<u8>,
    data: Vec<u8>,
    slots: usize,
}

impl Image {
    fn read(path: &Path) -> Self {
        let table = std::fs::read(path).unwrap();
        Self {
            path: path.to_owned(),
            slots: u32::from_le_bytes(table[12..16].try_into().unwrap()) as usize,
            table,
            data: std::fs::read(data_of(path)).unwrap(),
        }
    }

    fn write(&self) {
        std::fs::write(&self.path, &self.table).unwrap();
        std::fs::write(data_of(&self.path), &self.data).unwrap();
    }

    fn record(slot: usize) -> std::ops::Range<usize> {
        4096 + slot * 128..4096 + (slot + 1) * 128
    }

    /// The keys of its slots.
    fn keys(&self) -> Vec<Option<Key>> {
        let key = |slot| {
            let r = &self.table[Self::record(slot)];
            let len = usize::from(u16::from_le_bytes([r[2], r[3]]));
            (r[0] == 1).then(|| Key::new(&r[32..32 + len]).unwrap())
        };
        (0..self.slots).map(key).collect()
    }
}

/// A tier of two extents and more, closed.
fn filled() -> Root {
    let root = Root::of(Layout::Pack);
    let mut c = root.open(BOUND);
    for part in keys(0..BLOCKS).chunks(10) {
        all_ok(&c.store(R, part));
    }
    c.tier.on_request_finished(R, &[]);
    assert_settled(&mut c, &root);
    assert!(extents(&root.path()).len() >= 2);
    root
}

type Damage = fn(&mut Image, &Image);

/// What is done to an extent (beside another one), and whether it costs slot 0, slots 0 and 1, or all blocks.
const TABLE: [(&str, Damage, usize); 16] = [
    ("first bit of a payload", |i, _| i.data[0] ^= 1, 1),
    ("last bit of a payload", |i, _| i.data[LEN - 1] ^= 128, 1),
    (
        "another block's payload",
        |i, _| i.data.copy_within(LEN..2 * LEN, 0),
        1,
    ),
    ("a payload of zeros", |i, _| i.data[..LEN].fill(0), 1),
    ("half of a payload", |i, _| i.data[LEN / 2..LEN].fill(9), 1),
    ("a record's key", |i, _| i.table[Image::record(0)][40] ^= 1, 1),
    (
        "a record's checksum of the block",
        |i, _| i.table[Image::record(0)][17] ^= 1,
        1,
    ),
    (
        "a record's own checksum",
        |i, _| i.table[Image::record(0)][127] ^= 1,
        1,
    ),
    ("a torn record", |i, _| i.table[Image::record(0)][64..].fill(0), 1),
    (
        "swapped records",
        |i, _| {
            let (a, b) = i.table[Image::record(0).start..].split_at_mut(128);
            a.swap_with_slice(&mut b[..128]);
        },
        2,
    ),
    (
        "a record of another extent",
        |i, o| i.table[Image::record(0)].copy_from_slice(&o.table[Image::record(0)]),
        1,
    ),
    ("a header's bit", |i, _| i.table[33] ^= 1, usize::MAX),
    (
        "the header of another extent",
        |i, o| i.table[..128].copy_from_slice(&o.table[..128]),
        usize::MAX,
    ),
    (
        "the table of another extent",
        |i, o| i.table = o.table.clone(),
        usize::MAX,
    ),
    (
        "a table cut in the middle",
        |i, _| i.table.truncate(4096 + 200),
        usize::MAX,
    ),
    (
        "data cut in the middle",
        |i, _| i.data.truncate(i.data.len() / 2),
        usize::MAX,
    ),
];

#[test]
fn every_kind_of_damage_to_an_extent_found_at_start_costs_what_it_hit_and_no_more() {
    for (what, damage, costs) in TABLE {
        let root = filled();
        let all = extents(&root.path());
        let (mut image, other) = (Image::read(&all[0]), Image::read(&all[1]));
        let there: Vec<Key> = image.keys().into_iter().flatten().collect();
        let hit: Vec<Key> = image.keys().into_iter().take(costs).flatten().collect();
        assert!(!hit.is_empty(), "{what}");
        damage(&mut image, &other);
        image.write();
        let mut c = root.open(BOUND);
        for k in keys(0..BLOCKS) {
            let good = c.lookup(&k, R) && {
                let got = c.load(R, std::slice::from_ref(&k))[0];
                assert!(
                    matches!(
                        got,
                        BlockOutcome::Loaded(Verified::Checksum) | BlockOutcome::Failed(ErrorKind::Corrupt)
                    ),
                    "{what}: {got:?}"
                );
                got.is_ok()
            };
            // the header of another extent makes all records wrong, one with no record is there no more
            assert_eq!(good, !hit.contains(&k), "{what}: {k}, of {} there", there.len());
        }
        c.tier.on_request_finished(R, &[]);
        for k in &hit {
            assert!(!c.holds(k), "{what}: still a hit");
        }
        for part in hit.chunks(10) {
            assert!(
                c.store(R, part).iter().all(|o| *o == BlockOutcome::Stored),
                "{what}"
            );
        }
        all_ok(&c.load(R, &keys(0..BLOCKS)));
        c.tier.on_request_finished(R, &[]);
        assert_settled(&mut c, &root);
        drop(c);
        // and it stays so
        let mut c = root.open(BOUND);
        all_ok(&c.load(R, &keys(0..BLOCKS)));
        c.tier.on_request_finished(R, &[]);
        assert_settled(&mut c, &root);
    }
}

#[test]
fn a_table_without_its_data_or_data_without_its_table_is_given_up() {
    for table in [true, false] {
        let root = filled();
        let gone = extents(&root.path()).swap_remove(0);
        let lost: Vec<Key> = Image::read(&gone).keys().into_iter().flatten().collect();
        std::fs::remove_file(if table { gone.clone() } else { data_of(&gone) }).unwrap();
        let mut c = root.open(BOUND);
        assert!(lost.iter().all(|k| !c.holds(k)));
        assert!(!gone.exists() && !data_of(&gone).exists());
        all_ok(&c.store(R, &lost));
        all_ok(&c.load(R, &keys(0..BLOCKS)));
        c.tier.on_request_finished(R, &[]);
        assert_settled(&mut c, &root);
    }
}

#[test]
fn damage_to_an_open_extent_is_one_miss_a_block() {
    for (what, damage, costs) in TABLE.into_iter().take(5) {
        let root = filled();
        let mut c = root.open(BOUND);
        let all = extents(&root.path());
        let (mut image, other) = (Image::read(&all[0]), Image::read(&all[1]));
        let hit: Vec<Key> = image.keys().into_iter().take(costs).flatten().collect();
        damage(&mut image, &other);
        image.write();
        let wanted = keys(0..BLOCKS);
        assert!(wanted.iter().all(|k| c.lookup(k, R)));
        for (k, got) in wanted.iter().zip(c.load(R, &wanted)) {
            assert_eq!(got.is_ok(), !hit.contains(k), "{what}: {got:?}");
        }
        c.tier.on_request_finished(R, &[]);
        assert_eq!(c.tier.stats().verification_failures, hit.len() as u64, "{what}");
        all_ok(&c.store(R, &hit));
        all_ok(&c.load(R, &wanted));
        c.tier.on_request_finished(R, &[]);
        assert_settled(&mut c, &root);
    }
}

#[test]
fn an_extent_deleted_while_it_is_open_serves_until_the_restart_and_then_misses() {
    let root = filled();
    let mut c = root.open(BOUND);
    let gone = extents(&root.path()).swap_remove(0);
    let lost: Vec<Key> = Image::read(&gone).keys().into_iter().flatten().collect();
    std::fs::remove_file(&gone).unwrap();
    std::fs::remove_file(data_of(&gone)).unwrap();
    let got = c.load(R, &keys(0..BLOCKS));
    assert!(got.iter().all(|o| o.is_ok()), "{got:?}");
    c.tier.on_request_finished(R, &[]);
    for part in keys(100..140).chunks(5) {
        all_ok(&c.store(R, part));
    }
    c.tier.on_request_finished(R, &[]);
    assert!(root.du() <= c.tier.stats().resident_bytes);
    drop(c);
    let mut c = root.open(BOUND);
    assert!(lost.iter().all(|k| !c.holds(k)));
    assert_settled(&mut c, &root);
    let held: Vec<Key> = keys(0..140).into_iter().filter(|k| c.holds(k)).collect();
    assert!(held.len() >= BLOCKS as usize - lost.len());
    for part in held.chunks(20) {
        all_ok(&c.load(R, part));
    }
    c.tier.on_request_finished(R, &[]);
    all_ok(&c.store(R, &lost));
    assert!(root.du() <= c.tier.stats().resident_bytes && c.tier.stats().resident_bytes <= BOUND);
}

#[test]
fn an_extent_cut_while_it_is_open_misses_and_is_written_anew() {
    let root = filled();
    let mut c = root.open(BOUND);
    let cut = extents(&root.path()).swap_remove(0);
    let image = Image::read(&cut);
    let lost: Vec<Key> = image.keys().into_iter().flatten().collect();
    let file = std::fs::OpenOptions::new()
        .write(true)
        .open(data_of(&cut))
        .unwrap();
    file.set_len(0).unwrap();
    for (k, got) in keys(0..BLOCKS).iter().zip(c.load(R, &keys(0..BLOCKS))) {
        assert_eq!(got.is_ok(), !lost.contains(k), "{got:?}");
    }
    c.tier.on_request_finished(R, &[]);
    all_ok(&c.store(R, &lost));
    all_ok(&c.load(R, &keys(0..BLOCKS)));
    assert!(root.du() <= c.tier.stats().resident_bytes);
}

#[test]
fn a_bad_block_that_others_still_pin_is_stored_anew_and_its_slot_comes_back() {
    let root = Root::of(Layout::Pack);
    let mut c = root.open(BOUND);
    store(&mut c, &keys(0..3));
    let extent = extents(&root.path()).swap_remove(0);
    let mut image = Image::read(&extent);
    let slot = image
        .keys()
        .iter()
        .position(|k| *k == Some(keys(1..2).remove(0)))
        .unwrap();
    image.data[slot * LEN + 5] ^= 1;
    image.write();
    let k = keys(1..2);
    for r in 1..=4 {
        assert!(c.lookup(&k[0], RequestId(r)));
    }
    for r in 1..=3 {
        let got = c.load(RequestId(r), &[k[0].clone(), k[0].clone()]);
        assert!(got.iter().all(|o| !o.is_ok()), "{got:?}");
    }
    // the fourth still pins what is bad
    assert_eq!(c.store(RequestId(9), &k), [BlockOutcome::Stored]);
    all_ok(&c.load(RequestId(9), &k));
    for r in [1, 2, 3, 4, 9] {
        c.tier.on_request_finished(RequestId(r), &[]);
    }
    let mut most = 0;
    let mut n = 100;
    while c.tier.stats().evicted_blocks.iter().sum::<u64>() <= 1 {
        store(&mut c, &keys(n..n + 1));
        most = most.max(c.tier.stats().blocks);
        n += 1;
    }
    let slots: u32 = extents(&root.path()).iter().filter_map(|e| slots_of(e)).sum();
    assert_eq!(most, u64::from(slots), "every slot is in use again");
    assert_settled(&mut c, &root);
}
