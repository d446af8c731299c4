//! What `tests/it` and `tests/schedules` share: names of tiers, waiting, what extents are counted as, a generator.

use std::{path::Path, time::Duration};

pub(crate) use kvweir::tier::conformance::keys;
use kvweir::{
    fs::FsTier,
    io::sim::SimDisk,
    namespace::{Identity, Namespace},
    sync::Bell,
    tier::{BlockOutcome, conformance::Client},
};

pub(crate) type Fs = Client<FsTier>;

pub(crate) fn ns(model: &str) -> Namespace {
    Namespace::new(&Identity {
        model_name: model.into(),
        ..Identity::default()
    })
    .unwrap()
}

pub(crate) fn all_ok(outcomes: &[BlockOutcome]) {
    assert!(outcomes.iter().all(|o| o.is_ok()), "{outcomes:?}");
}

/// Lets the engine's threads run for `ms` milliseconds, or turns of a scheduler.
pub(crate) fn pause(ms: u64) {
    Bell::default().wait(0, Duration::from_millis(ms));
}

/// What a file of an extent, of `len` bytes, is counted as on a file system with blocks of `block` bytes: every block
/// of it may be a run of its own.
pub(crate) fn extent_file_cost(len: u64, block: u64) -> u64 {
    let (runs, per_block) = (len.div_ceil(block), (block / 16 - 6).min(250));
    let tree = match runs {
        0..=4 => 0,
        n if n <= per_block => 1,
        n => 1 + n.div_ceil(per_block - 1),
    };
    (runs + tree) * block
}

pub(crate) fn is_of_extent(path: &Path) -> bool {
    path.extension().is_some_and(|e| e == "bin") && path.parent().is_some_and(|d| d.ends_with("00_x"))
}

/// What an account is to say of `root` on a simulated disk: what `du` says, and what the file system's trees of extents
/// may come to need.
pub(crate) fn counted_on(disk: &SimDisk, root: &Path) -> u64 {
    let mut spare = 0;
    for path in disk.files(root).into_iter().filter(|p| is_of_extent(p)) {
        disk.tamper(&path, |bytes| {
            let len = bytes.len() as u64;
            spare += extent_file_cost(len, 4096) - len.next_multiple_of(4096);
            Some(bytes)
        });
    }
    disk.du(root) + spare
}

/// A small seeded generator.
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    pub(crate) fn below(&mut self, n: u64) -> u64 {
        self.next() % n
    }
}
