//! A root above its bound was once printed beside that bound without a word, and leftovers, as every kill leaves some,
//! counted as much as lost blocks.

use std::fs;

use kvweir::{
    admin::{Fault, Level, Verification, VerifyOptions, Weight},
    fs::Layout,
    tier::{Tier, conformance::key},
};

use super::{admin, made, packed::open, verify};
use crate::support::{R, Root, all_ok, data_of, extents, file_of, in_both_layouts, keys, room_for};

fn a_root_above_its_bound_is_told_by_every_command_and_a_repair_brings_it_back(layout: Layout) {
    let root = Root::of(layout);
    let bound = room_for(80, layout) + (1 << 20);
    let mut c = open(&root, bound, layout, "model");
    for part in keys(0..60).chunks(4) {
        all_ok(&c.store(R, part));
    }
    c.tier.on_request_finished(R, &[]);
    drop(c);
    let looked = admin(&root);
    assert_eq!(looked.inspect().unwrap().above_bound_bytes, 0);
    assert!(verify(&root).is_clean());
    let bound_check = || {
        let all = looked.doctor().unwrap().checks;
        all.into_iter().find(|c| c.what == "bound").unwrap()
    };
    assert_eq!(bound_check().level, Level::Ok);
    // what no member counts
    fs::write(root.path().join("foreign"), vec![1; bound as usize]).unwrap();
    let above = root.du() - bound;
    assert_eq!(looked.inspect().unwrap().above_bound_bytes, above);
    let (seen, told) = (verify(&root), bound_check());
    assert_eq!(told.level, Level::Bad);
    assert!(told.found.contains("ABOVE") && told.advice.contains("--repair"));
    let [f] = &seen.findings[..] else {
        panic!("{:?}", seen.findings)
    };
    assert_eq!((f.fault, f.weight), (Fault::AboveBound, Weight::Bound));
    assert!(f.detail.contains(&above.to_string()), "{}", f.detail);
    fs::write(root.path().join("foreign"), vec![1; 700_000]).unwrap();
    fs::write(root.path().join("more"), vec![1; bound as usize - 1_000_000]).unwrap();
    let claim = looked.claim().unwrap();
    let seen = looked
        .verify(
            &VerifyOptions {
                claim: Some(&claim),
                ..VerifyOptions::default()
            },
            &|_| {},
        )
        .unwrap();
    assert_eq!(seen.count(Weight::Bound), 1);
    assert!(looked.repair(&seen, Some(&claim)).unwrap().next_start_walks);
    drop(claim);
    fs::remove_file(root.path().join("more")).unwrap();
    drop(open(&root, bound, layout, "model"));
    assert!(root.du() <= bound);
    assert_eq!(verify(&root).count(Weight::Bound), 0);
}

in_both_layouts!(a_root_above_its_bound_is_told_by_every_command_and_a_repair_brings_it_back);

#[test]
fn leftovers_weigh_nothing_and_lost_blocks_do() {
    let (root, dir) = made(5);
    let mut c = open(&root, super::BOUND, Layout::Pack, "other");
    all_ok(&c.store(R, &keys(0..5)));
    drop(c);
    let file = file_of(&dir, &key(0));
    fs::write(file.with_extension("bin.00000000000000aa.kvweir"), b"x").unwrap();
    fs::create_dir_all(dir.join("123/45_g0")).unwrap();
    let seen = verify(&root);
    assert_eq!((seen.is_clean(), seen.is_tidy_only()), (false, true));
    assert_eq!(seen.count(Weight::Tidy), 2, "{:?}", seen.findings);
    assert_eq!(seen.weights, [("tidy", 2)].into());
    // an extent in the making: its table comes last. Its journal knows nothing of it
    let table = extents(&root.path()).remove(0);
    let kept = fs::read(&table).unwrap();
    fs::remove_file(&table).unwrap();
    let of = |seen: &Verification| {
        let half = seen.findings.iter().find(|f| f.fault == Fault::HalfExtent);
        half.unwrap().weight
    };
    assert_eq!(of(&verify(&root)), Weight::Tidy);
    fs::write(&table, kept).unwrap();
    // a table without its slots has lost them
    fs::remove_file(data_of(&table)).unwrap();
    assert_eq!(of(&verify(&root)), Weight::Block);
    fs::write(&file, b"").unwrap();
    let seen = verify(&root);
    assert!(!seen.is_tidy_only());
    let zero = seen.findings.iter().find(|f| f.fault == Fault::ZeroLength);
    assert_eq!(zero.unwrap().weight, Weight::Block);
}
