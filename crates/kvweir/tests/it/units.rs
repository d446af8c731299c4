//! File systems that give out space in larger units than they tell: ext4 with clusters, tmpfs with huge pages. What was
//! reserved and counted went by the unit that was told, and `du` stood far above the bound (I1). And a device that has
//! less free space than the bound is large.

use kvweir::{
    ErrorKind,
    admin::{Admin, ConvertOptions},
    fs::{FsBuilder, FsSettings, Layout},
    io::{Disk, OsDisk},
    tier::{BlockOutcome, Tier, conformance::Client},
};

use crate::support::*;

const CLUSTER: u64 = 64 << 10;
const HUGE: u64 = 2 << 20;

fn in_dir(dir: &std::path::Path, layout: Layout) -> Root {
    Root(tempfile::tempdir_in(dir).unwrap(), layout)
}

/// Stores many times what fits and looks at `du` after each job.
fn fill(root: &Root, bound: u64, blocks: u64) {
    for life in 0..3u64 {
        let mut c = root.open(bound);
        let mut stored = 0;
        for part in keys(life * 10_000..life * 10_000 + blocks).chunks(16) {
            stored += c.store(R, part).iter().filter(|o| o.is_ok()).count();
            c.tier.on_request_finished(R, &[]);
            let counted = |c: &Client<kvweir::fs::FsTier>| {
                let s = c.tier.stats();
                s.resident_bytes + s.reserved_bytes
            };
            // the keeper writes its journal anew meanwhile: a reading counts when the account stood still around it
            let quiet = || {
                let (before, du) = (counted(&c), root.du());
                assert!(du <= bound, "{du} of {bound} in life {life}");
                (counted(&c) == before).then_some((du, before))
            };
            let (du, counted) = (0..1000).find_map(|_| quiet()).unwrap();
            assert!(du <= counted, "{du} of {counted} counted");
        }
        assert!(stored as u64 > blocks / 2, "{stored} of {blocks} in life {life}");
        assert!(
            c.tier.stats().evicted_blocks.iter().sum::<u64>() > 0,
            "the bound was reached"
        );
        until("the account is what lies there", || {
            root.du() <= c.tier.stats().resident_bytes
        });
        drop(c);
        if life == 1 {
            root.forget_journal();
        }
    }
    assert!(root.du() <= bound);
}

#[test]
fn small_units_are_measured_as_what_they_are() {
    for block in ["1024", "4096"] {
        let Some(disk) = Ext4::of(&["-b", block]) else {
            return skip("no ext4 can be made and mounted here");
        };
        assert_eq!(OsDisk.unit(&disk.at()).unwrap().to_string(), block);
    }
}

fn the_bound_holds_where_space_comes_in_clusters(layout: Layout) {
    let Some(disk) = Ext4::of(&["-O", "bigalloc", "-C", "65536"]) else {
        return skip("no ext4 with clusters can be made and mounted here");
    };
    assert_eq!(OsDisk.unit(&disk.at()).unwrap(), CLUSTER);
    fill(&in_dir(&disk.at(), layout), 8 << 20, 1200);
}

/// What commands look through told no unit but the file system's word: `convert` left 134 MiB below a bound of 64.
#[test]
fn operators_keep_a_bound_where_space_comes_in_clusters() {
    let Some(disk) = Ext4::of(&["-O", "bigalloc", "-C", "65536"]) else {
        return skip("no ext4 with clusters can be made and mounted here");
    };
    let root = in_dir(&disk.at(), Layout::Pack);
    let bound = 8 << 20;
    let mut c = root.open(bound);
    for part in keys(0..300).chunks(16) {
        c.store(R, part);
        c.tier.on_request_finished(R, &[]);
    }
    drop(c);
    let admin = Admin::new(root.path()).unwrap();
    let claim = admin.claim().unwrap();
    let options = ConvertOptions {
        to: Layout::Fs,
        namespace: None,
        max_bytes: Some(bound),
    };
    let done = admin.convert(&options, &|_| {}, Some(&claim)).unwrap();
    assert!(
        done.namespaces[0].moved > 0 && done.peak_bytes <= bound,
        "{done:?}"
    );
    assert!(root.du() <= bound, "{} of {bound}", root.du());
    let told = format!("{:?}", admin.doctor().unwrap());
    assert!(told.contains("64.0 KiB measured"), "{told}");
}

fn the_bound_holds_where_space_comes_in_huge_pages(layout: Layout) {
    let Some(disk) = Tmpfs::new("400m,huge=always") else {
        return skip("no tmpfs with huge pages can be mounted here");
    };
    if OsDisk.unit(disk.path()).unwrap() < HUGE {
        return skip("tmpfs has no huge pages here");
    }
    let root = in_dir(disk.path(), layout);
    let small = builder(root.settings(64 << 20), "model", LEN).open().unwrap_err();
    assert_eq!(small.kind(), ErrorKind::Invalid);
    assert!(
        small.to_string().contains(&format!("units of {HUGE} bytes")),
        "{small}"
    );
    assert_eq!(
        files(root.0.path()),
        Vec::<std::path::PathBuf>::new(),
        "nothing was begun"
    );
    let blocks = if layout == Layout::Pack { 20_000 } else { 300 };
    let bound = 160 << 20;
    fill(&root, bound, blocks);
}

fn the_smallest_bound_that_is_taken_can_be_used_in_clusters(layout: Layout) {
    let Some(disk) = Ext4::of(&["-O", "bigalloc", "-C", "65536"]) else {
        return skip("no ext4 with clusters can be made and mounted here");
    };
    let root = in_dir(&disk.at(), layout);
    let opens = |bound: u64| FsBuilder::new(root.settings(bound), ns("model"), LEN).open();
    let (mut low, mut high) = (256 << 10, 16 << 20);
    while high - low > 4096 {
        let middle = (low + high) / 2;
        // without a root there is nothing to join
        match opens(middle) {
            Ok(mut t) => {
                t.shutdown();
                high = middle;
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Invalid, "{e}");
                low = middle;
            }
        }
    }
    let mut c = root.open(high);
    for n in 0..40 {
        assert_eq!(
            c.store(R, &keys(n..n + 1)),
            [BlockOutcome::Stored],
            "block {n} within {high}"
        );
        c.tier.on_request_finished(R, &[]);
        assert!(root.du() <= high, "{} of {high}", root.du());
    }
}

#[test]
fn extents_are_halved_where_the_device_has_less_space_than_the_bound_asks_for() {
    let Some(disk) = Tmpfs::new("32m") else {
        return skip("no tmpfs can be mounted here");
    };
    for min_free in [None, Some(8 << 20)] {
        let root = in_dir(disk.path(), Layout::Pack);
        let settings = FsSettings {
            min_free_bytes: min_free,
            ..root.settings(16 << 30)
        };
        let mut c = client(builder(settings, "model", LEN));
        for part in keys(0..1000).chunks(20) {
            all_ok(&c.store(R, part));
        }
        // and so does a device that is full in the end: what is there makes room
        for part in keys(1000..8000).chunks(20) {
            all_ok(&c.store(R, part));
        }
        c.tier.on_request_finished(R, &[]);
        let free = OsDisk.space(disk.path()).unwrap().available;
        assert!(free >= min_free.unwrap_or(0), "{free} bytes are free");
        assert!(c.tier.stats().blocks > 1500, "{}", c.tier.stats().blocks);
        all_ok(&c.load(R, &keys(7990..8000)));
        c.tier.on_request_finished(R, &[]);
    }
}

in_both_layouts! {
    the_bound_holds_where_space_comes_in_clusters,
    the_bound_holds_where_space_comes_in_huge_pages,
    the_smallest_bound_that_is_taken_can_be_used_in_clusters,
}
