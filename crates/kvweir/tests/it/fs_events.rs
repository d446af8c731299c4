//! I7: events replayed into a set are the directory's content.

use std::{collections::HashSet, fs, path::Path};

use kvweir::{
    Key,
    fs::Layout,
    tier::{RequestId, Tier, conformance::key},
};

use crate::support::{R, Rng, Root, assert_settled, file_of, files, in_both_layouts, room_for};

/// Keys read from the names of the files below a namespace's directory.
fn keys_on_disk(dir: &Path) -> HashSet<Key> {
    files(dir)
        .iter()
        .map(|p| {
            let stem = p.file_stem().unwrap().to_str().unwrap();
            let leaf = p.parent().unwrap().file_name().unwrap().to_str().unwrap();
            let group: u32 = leaf.split_once("_g").unwrap().1.parse().unwrap();
            let mut bytes: Vec<u8> = (0..stem.len())
                .step_by(2)
                .map(|i| u8::from_str_radix(&stem[i..i + 2], 16).unwrap())
                .collect();
            for shift in [24, 16, 8, 0] {
                bytes.push((group >> shift) as u8);
            }
            Key::new(&bytes).unwrap()
        })
        .collect()
}

fn replayed_events_equal_the_directory_through_evictions_damage_and_restarts(layout: Layout) {
    let root = Root::of(layout);
    let mut rng = Rng(3);
    for life in 0..4 {
        let bound = room_for(15 + rng.below(20), layout);
        let mut c = root.open(bound);
        let dir = c.tier.namespace_dir().to_owned();
        for step in 0..120u64 {
            let n = rng.below(120);
            match rng.below(10) {
                // what lies where in an extent is not for a test to know
                0 | 1 if layout == Layout::Pack => {
                    c.load(R, &[key(n)]);
                }
                0 => {
                    // damage shows at the load
                    if c.lookup(&key(n), R) {
                        fs::write(file_of(&dir, &key(n)), b"?").unwrap();
                    }
                    c.load(R, &[key(n)]);
                }
                1 => {
                    if c.lookup(&key(n), R) {
                        fs::remove_file(file_of(&dir, &key(n))).unwrap();
                    }
                    c.load(R, &[key(n)]);
                }
                2..=4 => {
                    c.submit_load(RequestId(step), &[key(n), key(n + 1)]);
                }
                _ => {
                    c.submit_store(RequestId(step), &[key(n), key(n + 1), key(n + 2)]);
                }
            }
            c.tier.on_request_finished(R, &[]);
            if rng.below(4) == 0 {
                c.replay_events();
            }
            c.collect();
        }
        c.wait_all();
        let said: HashSet<Key> = c.replay_events().iter().cloned().collect();
        if layout != Layout::Pack {
            assert_eq!(said, keys_on_disk(&dir), "life {life}");
        }
        for n in 0..123 {
            assert_eq!(c.holds(&key(n)), said.contains(&key(n)));
        }
        assert_settled(&mut c, &root);
    }
}

in_both_layouts! {
    replayed_events_equal_the_directory_through_evictions_damage_and_restarts,
}
