//! Spaces of one root in less usual company; `spaces.rs` has the usual.

mod company;
mod ends;
mod faults;
mod starts;

use std::{ops::Range, sync::Arc, time::Duration};

use kvweir::{
    ErrorKind,
    clock::{Clock, SystemClock},
    evict::PolicyKind,
    fs::{FsBuilder, FsSettings, FsSpace, FsTier, Layout},
    io::fault::{Fault, Op, Rule},
    tier::{
        RequestId, Tier,
        conformance::{Client, long_key},
    },
};

use crate::{shared_root::pour, support::*};

/// A space: name, bytes of a block, layout.
type What = (&'static str, usize, Layout);

const SMALL: usize = 4096;
const FS: Layout = Layout::Fs;
const PACK: Layout = Layout::Pack;
const BOTH: [[Layout; 2]; 4] = [[FS, FS], [PACK, PACK], [FS, PACK], [PACK, FS]];

fn build(mut settings: FsSettings, all: &[What]) -> FsBuilder {
    settings.layout = all[0].2;
    let first = builder(settings, all[0].0, all[0].1).name(all[0].0);
    all[1..].iter().fold(first, |b, &(name, len, layout)| {
        b.beside(FsSpace::new(name, ns(name), len).layout(layout))
    })
}

fn clients(b: FsBuilder, all: &[What]) -> Vec<Fs> {
    let tiers: Vec<FsTier> = b.open_all().unwrap();
    let tiers = tiers.into_iter().zip(all);
    tiers.map(|(t, w)| Client::new(Box::new(t), 64, w.1)).collect()
}

fn open(root: &Root, bound: u64, all: &[What]) -> Vec<Fs> {
    clients(build(root.settings(bound), all), all)
}

fn count(c: &mut Fs, range: Range<u64>) -> u64 {
    let n = keys(range).iter().filter(|k| c.holds(k)).count();
    c.tier.on_request_finished(R, &[]);
    n as u64
}

fn loads(c: &mut Fs, range: Range<u64>) {
    for part in keys(range).chunks(20) {
        all_ok(&c.load(R, part));
        c.tier.on_request_finished(R, &[]);
    }
}

/// The account agrees with the disk; extents that nobody opened since a walk are counted as what they take.
fn assert_counted(c: &mut Fs, root: &Root) {
    until("the account agrees with du", || {
        let s = c.tier.stats();
        (root.du()..=root.counted()).contains(&s.resident_bytes) && s.reserved_bytes == 0
    });
    assert_eq!((c.tier.stats().pinned_blocks, temps(&root.path()).len()), (0, 0));
}

fn shut(all: Vec<Fs>) {
    for mut c in all {
        c.tier.shutdown();
    }
}
