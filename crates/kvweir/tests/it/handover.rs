//! Moments in which a journal is not yet one: what comes after must neither walk the tree for it nor be kept out.

use std::{path::Path, sync::Arc};

use kvweir::{
    fs::{FsBuilder, FsSettings, Layout, min_bound},
    io::{
        fault::{Fault, FaultDisk, Op, Rule},
        sim::SimDisk,
    },
};

use crate::support::*;

/// A journal is made in two calls, the file and its header. A process that died between them left an empty file, which
/// the next start took for damage, and walked the tree; beside other members it refused to open.
#[test]
fn a_death_at_any_step_of_a_compaction_needs_no_walk() {
    let bound = min_bound(LEN) + (1 << 20);
    let mut died = 0;
    for n in 0.. {
        let disk = SimDisk::new(Path::new("/sim"), None);
        let builder = |d: Arc<dyn kvweir::io::Disk>| {
            let settings = FsSettings {
                max_bytes: Some(bound),
                layout: Layout::Fs,
                ..FsSettings::new("/sim/kv")
            };
            FsBuilder::new(settings, ns("model"), LEN)
                .disk(d)
                .boot_id([1; 16])
        };
        let mut c = client(builder(Arc::new(disk.clone())));
        store(&mut c, &keys(0..4));
        let last = disk.steps() + n;
        disk.die_at(last);
        c.tier.compact();
        let over = disk.steps() <= last;
        drop(c);
        let seen = FaultDisk::new(Arc::new(disk.next_life()));
        seen.record();
        let mut c = client(builder(Arc::new(seen.clone())));
        let own = Path::new("/sim/kv").join(ns("model").dir());
        let walks = |r: Vec<(Op, std::path::PathBuf)>| r.iter().any(|(op, p)| *op == Op::List && *p == own);
        assert!(!walks(seen.take_record()), "walked after a death at step {n}");
        assert!(keys(0..4).iter().all(|k| c.holds(k)), "step {n}");
        if over {
            break;
        }
        died += 1;
    }
    assert!(died > 5, "the test tests nothing");
}

/// A member that failed before it had a journal left its number in the ledger. Its namespace then wanted to read that
/// journal, found none, and could not be opened before all others had ended.
#[test]
fn a_member_that_failed_before_its_journal_opens_again_beside_others() {
    for op in [Op::Open, Op::Write] {
        let root = Root::new();
        let open = |model, disk: FaultDisk| {
            FsBuilder::new(root.settings(8 << 20), ns(model), LEN)
                .disk(Arc::new(disk))
                .open()
        };
        let whole = || faulty();
        let _other = open("other", whole()).unwrap();
        let broken = whole();
        broken.add(Rule::new(op, Fault::Errno(5)).path("journal-"));
        assert!(open("model", broken).is_err(), "{op:?}");
        let mut c = Fs::new(Box::new(open("model", whole()).unwrap()), 64, LEN);
        store(&mut c, &keys(0..2));
    }
}
