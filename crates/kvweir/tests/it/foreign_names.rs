//! A name of a file is bytes, not text. The walk once looked for what it could not spell in UTF-8 under another name,
//! did not find it, and counted nothing: a root with 4 MiB of such files went as far above its bound (I1). What lay
//! in directories below `.kvweir` was not counted either.

use std::{
    ffi::OsStr,
    fs,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};

use kvweir::{admin::Admin, fs::Layout, tier::Tier};

use crate::support::{
    R, Root, assert_settled, du, extent_files, files, in_both_layouts, keys, room_for, store,
};

/// Writes a file of `len` bytes and returns its path.
fn plant(root: &Path, name: &[u8], len: usize) -> PathBuf {
    let path = root.join(OsStr::from_bytes(name));
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(&path, vec![7; len]).unwrap();
    path
}

/// Files of others at every level of the layout, under names that are no text.
fn plant_everywhere(root: &Path) -> Vec<PathBuf> {
    let block = files(root)
        .into_iter()
        .find(|p| p.extension().is_some_and(|e| e == "bin"));
    let block = block.unwrap();
    let (leaf, ns) = (block.parent().unwrap(), block.ancestors().nth(3).unwrap());
    vec![
        plant(root, b"caf\xe9.dat", 3 << 20),
        plant(root, b"d\xe9/x", 1 << 20),
        plant(root, b"caf\xe9_0123456789ab_r0/000/00_g0/x.bin", 100_000),
        plant(ns, b"\xff", 100_000),
        plant(leaf.parent().unwrap(), b"\xff_g0/y", 100_000),
        plant(leaf, b"\xff\xfe.txt", 100_000),
        plant(root, b".kvweir/\xe9", 100_000),
        plant(root, b".kvweir/old\xe9/journal-00-00000001", 100_000),
        plant(root, b".kvweir/journal-07-00000001/x", 100_000),
    ]
}

fn what_no_text_can_name_is_counted_and_left_alone(layout: Layout) {
    let root = Root::of(layout);
    let bound = room_for(60, layout) + (6 << 20);
    let mut c = root.open(bound);
    store(&mut c, &keys(0..20));
    c.tier.shutdown();
    drop(c);
    root.forget_journal();
    let planted = plant_everywhere(&root.path());
    let mut c = root.open(bound);
    assert_settled(&mut c, &root);
    // more than fits, in jobs that may be refused
    for k in keys(100..900) {
        let _ = c.store(R, std::slice::from_ref(&k));
    }
    c.tier.on_request_finished(R, &[]);
    assert_settled(&mut c, &root);
    assert!(root.du() <= bound, "{} bytes with a bound of {bound}", root.du());
    c.tier.shutdown();
    for p in &planted {
        assert!(p.exists(), "{p:?} is not ours to remove");
    }
    assert!(
        layout != Layout::Pack || !extent_files(&root.path()).is_empty(),
        "nothing was packed"
    );
}

in_both_layouts!(what_no_text_can_name_is_counted_and_left_alone);

#[test]
fn operators_are_shown_every_byte_under_names_they_can_read() {
    let root = Root::new();
    let mut c = root.open(0);
    store(&mut c, &keys(0..20));
    c.tier.shutdown();
    drop(c);
    plant_everywhere(&root.path());
    let admin = Admin::new(root.path()).unwrap();
    let seen = admin.inspect().unwrap();
    assert_eq!(seen.bytes, du(&root.path()));
    let shown = |part: &str| seen.foreign_examples.iter().any(|p| p.contains(part));
    for part in ["caf\u{fffd}.dat", "d\u{fffd}/x", "\u{fffd}\u{fffd}.txt"] {
        assert!(shown(part), "{part} in {:?}", seen.foreign_examples);
    }
    assert_eq!(seen.unreadable, Vec::<String>::new());
    let trimmed = admin.trim(0, None).unwrap();
    assert_eq!(trimmed.before_bytes, du(&root.path()));
}
