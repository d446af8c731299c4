//! Where a block lies twice, one copy goes only when the other was read and is right. A second `convert` once believed
//! the record of a slot whose bytes a power loss had taken, and removed the files: 0 of 20 blocks were left. An import
//! called a block present whose payload was zeros, so that the user removed the source.

use std::{fs, os::unix::fs::FileExt, path::Path};

use kvweir::{
    admin::{Admin, ConvertOptions, Converted, ImportOptions},
    fs::Layout,
    tier::{
        BlockOutcome, Tier, Verified,
        conformance::{content, key},
    },
};

use super::{
    BOUND, admin,
    packed::{made as packed, open},
    stock,
};
use crate::support::{FILE, LEN, R, Root, all_ok, block_files, data_of, extents, file_of, keys, ns, temps};

const N: u64 = 20;

fn convert(admin: &Admin, to: Layout) -> Converted {
    let claim = admin.claim().unwrap();
    let options = ConvertOptions {
        to,
        namespace: None,
        max_bytes: Some(BOUND),
    };
    admin.convert(&options, &|_| {}, Some(&claim)).unwrap()
}

/// A root whose blocks lie in slots and in files.
fn twice() -> Root {
    let root = packed(N, BOUND);
    let slots = root.0.path().join("slots");
    let x = extents(&root.path())[0].parent().unwrap().to_owned();
    fs::create_dir(&slots).unwrap();
    let copy = |from: &Path, to: &Path| {
        for f in fs::read_dir(from).unwrap().flatten() {
            fs::copy(f.path(), to.join(f.file_name())).unwrap();
        }
    };
    copy(&x, &slots);
    assert_eq!(convert(&admin(&root), Layout::Fs).namespaces[0].moved, N);
    fs::create_dir_all(&x).unwrap();
    copy(&slots, &x);
    root
}

fn zero_slots(root: &Root, keep: usize) {
    for table in extents(&root.path()) {
        let data = fs::OpenOptions::new().write(true).open(data_of(&table)).unwrap();
        let len = data.metadata().unwrap().len() as usize;
        data.write_all_at(&vec![0; len - keep * LEN], (keep * LEN) as u64)
            .unwrap();
    }
}

fn zero_payloads(root: &Root) {
    for n in 0..N {
        let path = file_of(&root.path().join(ns("model").dir()), &key(n));
        let file = fs::OpenOptions::new().write(true).open(path).unwrap();
        file.write_all_at(&[0; LEN], 0).unwrap();
    }
}

fn all_load(root: &Root, layout: Layout) {
    let mut c = open(root, BOUND, layout, "model");
    for k in keys(0..N) {
        assert!(c.holds(&k), "{k} is lost");
        all_ok(&c.load(R, &[k]));
    }
    c.tier.on_request_finished(R, &[]);
    c.tier.shutdown();
}

#[test]
fn into_extents_a_file_goes_only_when_the_slot_was_read_and_holds_its_block() {
    let root = twice();
    zero_slots(&root, 5);
    let r = convert(&admin(&root), Layout::Pack);
    let n = &r.namespaces[0];
    assert!(r.is_whole(), "{r:?}");
    assert_eq!((n.present, n.rescued, n.moved), (5, N - 5, N - 5), "{n:?}");
    assert_eq!(block_files(&root.path()).len(), 0);
    all_load(&root, Layout::Pack);
}

#[test]
fn into_files_a_slot_goes_only_when_the_file_was_read_and_holds_its_block() {
    let root = twice();
    zero_payloads(&root);
    let r = convert(&admin(&root), Layout::Fs);
    assert!(r.is_whole(), "{r:?}");
    assert_eq!((r.namespaces[0].present, r.namespaces[0].moved), (0, N));
    assert_eq!(extents(&root.path()).len(), 0);
    all_load(&root, Layout::Fs);
}

#[test]
fn where_both_copies_are_good_the_old_one_goes_unwritten() {
    for (to, left) in [(Layout::Pack, 0), (Layout::Fs, N as usize)] {
        let root = twice();
        let r = convert(&admin(&root), to);
        assert_eq!((r.namespaces[0].present, r.namespaces[0].moved), (N, 0), "{r:?}");
        assert_eq!(
            (block_files(&root.path()).len(), temps(&root.path()).len()),
            (left, 0)
        );
        all_load(&root, to);
    }
}

#[test]
fn a_slot_that_is_bad_takes_no_good_file_with_it() {
    let root = twice();
    zero_slots(&root, 0);
    convert(&admin(&root), Layout::Fs);
    assert_eq!(block_files(&root.path()).len(), N as usize);
    all_load(&root, Layout::Fs);
}

/// A power loss in a conversion left one file without its trailer: its length was taken for that of all blocks, and
/// every extent was passed over.
#[test]
fn a_torn_file_does_not_hide_how_long_packed_blocks_are() {
    let root = packed(N, BOUND);
    let torn = file_of(&root.path().join(ns("model").dir()), &key(0));
    fs::create_dir_all(torn.parent().unwrap()).unwrap();
    fs::write(&torn, vec![0; FILE as usize]).unwrap();
    let r = convert(&admin(&root), Layout::Fs);
    assert_eq!(
        (r.namespaces[0].moved, r.namespaces[0].unusable_extents),
        (N, 0),
        "{r:?}"
    );
    all_load(&root, Layout::Fs);
}

#[test]
fn an_import_calls_nothing_present_that_it_did_not_read() {
    let source = Root::new();
    fs::create_dir(source.path()).unwrap();
    for n in 0..N {
        stock(&source.path(), "model", &key(n));
    }
    let root = Root::new();
    fs::create_dir(root.path()).unwrap();
    let (from, into) = (admin(&source), admin(&root));
    let import = || {
        let claim = into.claim().unwrap();
        into.import(Some(&from), &ImportOptions::default(), &|_| {}, Some(&claim))
            .unwrap()
    };
    assert_eq!(import().namespaces[0].imported, N);
    zero_payloads(&root);
    // what a crash left of the identity
    let config = root.path().join(ns("model").config_dir()).join("config.json");
    fs::write(&config, b"").unwrap();
    let r = import();
    assert!(r.is_whole(), "{r:?}");
    assert_eq!((r.namespaces[0].imported, r.namespaces[0].present), (N, 0));
    assert_eq!(import().namespaces[0].present, N);
    assert_eq!(
        fs::read(&config).unwrap(),
        fs::read(source.path().join(ns("model").config_dir()).join("config.json")).unwrap()
    );
    let mut c = root.open(BOUND);
    for n in 0..N {
        let file = fs::read(file_of(c.tier.namespace_dir(), &key(n))).unwrap();
        assert_eq!(
            (file.len() as u64, &file[..LEN]),
            (FILE, &content(&key(n), LEN)[..])
        );
        assert!(c.holds(&key(n)));
        assert_eq!(c.load(R, &[key(n)]), [BlockOutcome::Loaded(Verified::Checksum)]);
    }
    c.tier.on_request_finished(R, &[]);
}
