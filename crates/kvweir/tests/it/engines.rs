//! Every engine moves the same bytes, and what it takes the checksum of on the way is no less compared.

use kvweir::{
    ErrorKind,
    fs::{FsSettings, Layout},
    io::engine::EngineKind,
    tier::{BlockOutcome, Tier, Verified, conformance::Client},
};

use crate::support::{Fs, R, Root, all_ok, builder, data_of, extents, files, keys};

/// More than one piece, and a last one that is no whole piece.
const LARGE: usize = (3 << 19) + 4096;
const SMALL: usize = 64 << 10;

fn open(root: &Root, engine: EngineKind, layout: Layout, len: usize, verify: bool) -> Fs {
    let settings = FsSettings {
        engine,
        layout,
        verify,
        ..root.settings(256 << 20)
    };
    Client::new(Box::new(builder(settings, "model", len).open().unwrap()), 64, len)
}

/// Layouts and lengths of blocks.
const CASES: [(Layout, usize); 4] = [
    (Layout::Fs, LARGE),
    (Layout::Fs, SMALL),
    (Layout::Pack, SMALL),
    (Layout::Pack, 2 << 20),
];

#[test]
fn what_one_engine_stored_every_engine_loads() {
    for (layout, len) in CASES {
        for first in [EngineKind::Threads, EngineKind::IoUring] {
            let root = Root::of(layout);
            let stored = keys(0..24);
            all_ok(&open(&root, first, layout, len, true).store(R, &stored));
            for second in [EngineKind::Threads, EngineKind::IoUring] {
                for verify in [true, false] {
                    let mut c = open(&root, second, layout, len, verify);
                    let way = if verify {
                        Verified::Checksum
                    } else {
                        Verified::SizeOnly
                    };
                    let outcomes = c.load(R, &stored);
                    let want = vec![BlockOutcome::Loaded(way); stored.len()];
                    assert_eq!(outcomes, want, "{layout}, {len}: {first}, then {second}");
                }
            }
        }
    }
}

#[test]
fn a_changed_byte_is_found_by_every_engine_wherever_it_lies() {
    for engine in [EngineKind::Threads, EngineKind::IoUring] {
        for (layout, len) in CASES {
            for at in [0, len / 2, len - 1] {
                let root = Root::of(layout);
                let mut c = open(&root, engine, layout, len, true);
                let key = keys(0..1);
                all_ok(&c.store(R, &key));
                let file = match layout {
                    Layout::Pack => data_of(&extents(&root.path())[0]),
                    _ => files(&root.path())
                        .into_iter()
                        .find(|p| p.extension().is_some_and(|e| e == "bin"))
                        .unwrap(),
                };
                // the block is the only one: where its data file is not zero it lies
                let mut bytes = std::fs::read(&file).unwrap();
                let start = match layout {
                    Layout::Pack => {
                        let first = bytes.iter().position(|&b| b != 0).unwrap();
                        first / len * len
                    }
                    _ => 0,
                };
                bytes[start + at] ^= 1;
                std::fs::write(&file, &bytes).unwrap();
                let outcome = c.load(R, &key)[0];
                assert_eq!(
                    outcome,
                    BlockOutcome::Failed(ErrorKind::Corrupt),
                    "{engine}, {layout}, {len}, byte {at}"
                );
                assert_eq!(c.tier.stats().verification_failures, 1);
            }
        }
    }
}

#[test]
fn a_large_file_that_lost_its_end_is_no_block_for_any_engine() {
    for engine in [EngineKind::Threads, EngineKind::IoUring] {
        let root = Root::of(Layout::Fs);
        let mut c = open(&root, engine, Layout::Fs, LARGE, true);
        let keys = keys(0..2);
        all_ok(&c.store(R, &keys));
        let blocks = files(&root.path())
            .into_iter()
            .filter(|p| p.extension().is_some_and(|e| e == "bin"));
        for (file, len) in blocks.zip([LARGE as u64, 1 << 19]) {
            std::fs::File::options()
                .write(true)
                .open(file)
                .unwrap()
                .set_len(len)
                .unwrap();
        }
        for outcome in c.load(R, &keys) {
            assert_eq!(outcome, BlockOutcome::Failed(ErrorKind::Corrupt), "{engine}");
        }
    }
}

/// io_uring was without effect unless blocks were packed.
#[test]
fn a_tier_that_is_to_use_io_uring_has_rings_for_packed_blocks_and_for_large_files() {
    if kvweir::io::engine::probe().is_err() {
        return crate::support::skip("no io_uring here");
    }
    let rings = || {
        let all = std::fs::read_dir("/proc/self/fd").unwrap().flatten();
        all.filter_map(|e| std::fs::read_link(e.path()).ok())
            .filter(|p| p.to_string_lossy().contains("io_uring"))
            .count()
    };
    for (layout, len) in CASES.into_iter().filter(|c| c.1 > SMALL) {
        let root = Root::of(layout);
        // other tests of this process may drop theirs meanwhile
        let has_some = (0..20).any(|_| {
            let before = rings();
            let _c = open(&root, EngineKind::IoUring, layout, len, true);
            rings() > before
        });
        assert!(has_some, "layout {layout}, blocks of {len} bytes");
    }
}
