//! A file in more than four pieces takes a block of ext4's own tree, and with delayed allocation it does so some
//! seconds after it was written. A journal is appended to in small steps beside other writers, so it comes to be in
//! pieces where free space is: its tree block was in no account, and about one stress run in a hundred under load
//! found the account 4096 bytes below `du` (I1).

use std::{fs, os::unix::fs::MetadataExt, path::Path};

use kvweir::{
    fs::{FsBuilder, FsSettings, Layout},
    tier::conformance::Client,
};

use crate::support::{
    Ext4, Fs, Rng, Root, agreed, assert_settled, in_both_layouts, keys, ns, room_for, skip, store,
};

/// Leaves no two free blocks side by side.
fn fragment(at: &Path) {
    let name = |n: u32| at.join(format!("fill/{n}"));
    fs::create_dir(at.join("fill")).unwrap();
    let mut made = 0;
    while fs::write(name(made), [1; 4096]).is_ok() {
        made += 1;
        if made % 500 == 0 {
            rustix::fs::syncfs(fs::File::open(at).unwrap()).unwrap();
        }
    }
    rustix::fs::syncfs(fs::File::open(at).unwrap()).unwrap();
    (0..made)
        .step_by(2)
        .for_each(|n| fs::remove_file(name(n)).unwrap());
    rustix::fs::syncfs(fs::File::open(at).unwrap()).unwrap();
}

fn fragmented() -> Option<(Ext4, Root, Root)> {
    let disk = Ext4::of(&["-b", "4096", "-N", "30000", "-m", "0"])?;
    fragment(&disk.at());
    let root = |layout| Root(tempfile::tempdir_in(disk.at()).unwrap(), layout);
    let roots = (root(Layout::Fs), root(Layout::Pack));
    Some((disk, roots.0, roots.1))
}

/// Bytes that journals take beyond their length.
fn trees(root: &Root) -> u64 {
    let state = fs::read_dir(root.path().join(".kvweir")).unwrap();
    let journals = state
        .flatten()
        .filter(|e| e.file_name().to_string_lossy().contains("-00-"));
    journals
        .filter_map(|e| e.metadata().ok())
        .map(|m| m.blocks() * 512 - m.len().next_multiple_of(4096))
        .sum()
}

fn give_out_blocks(root: &Root) {
    rustix::fs::syncfs(fs::File::open(root.path()).unwrap()).unwrap();
}

fn settled(c: &mut Fs, root: &Root) {
    give_out_blocks(root);
    assert_settled(c, root);
}

fn blocks_of_a_files_own_tree_are_counted_and_inside_the_bound(layout: Layout) {
    let Some((_disk, files, packed)) = fragmented() else {
        return skip("no ext4 can be made and mounted here");
    };
    let root = if layout == Layout::Pack { packed } else { files };
    let bound = room_for(120, layout);
    let mut c = root.open(bound);
    let (mut rng, mut with_tree, mut most) = (Rng(3), 0, 0);
    for round in 0..120 {
        let from = rng.below(400);
        store(&mut c, &keys(from..from + 3));
        give_out_blocks(&root);
        most = most.max(root.du());
        with_tree += u32::from(trees(&root) > 0);
        if round % 10 == 0 {
            agreed(&mut c, &root);
        }
    }
    let s = agreed(&mut c, &root);
    assert!(
        most <= bound && s.peak_bytes <= bound,
        "{most} and {} of {bound}",
        s.peak_bytes
    );
    if layout == Layout::Fs {
        assert!(with_tree > 10, "journals stayed whole: {with_tree}");
    }
    settled(&mut c, &root);
    c.tier.compact();
    settled(&mut c, &root);
    // by the journal, then by a walk
    drop(c);
    give_out_blocks(&root);
    let mut c = root.open(bound);
    assert_settled(&mut c, &root);
    drop(c);
    root.forget_journal();
    let mut c = root.open(bound);
    settled(&mut c, &root);
}

#[test]
fn a_file_written_through_the_page_cache_is_counted_with_its_tree() {
    const BLOCK: usize = 64 << 10;
    let Some((_disk, root, _)) = fragmented() else {
        return skip("no ext4 can be made and mounted here");
    };
    let settings = FsSettings {
        direct: false,
        ..root.settings(8 << 20)
    };
    let tier = FsBuilder::new(settings, ns("model"), BLOCK).open().unwrap();
    let mut c = Client::new(Box::new(tier), 64, BLOCK);
    store(&mut c, &keys(0..150));
    settled(&mut c, &root);
}

in_both_layouts! {
    blocks_of_a_files_own_tree_are_counted_and_inside_the_bound,
}
