//! Appends that fail half way: what the file holds and what the writer believes are brought together before anything
//! else is written, so that a later start reads the journal (I6) and the account stays what lies there (I1).

use std::fs;

use kvweir::{
    io::fault::{Fault, Op, Rule},
    tier::Tier,
};

use crate::support::*;

const BOUND: u64 = 4 << 20;

/// Opens what is there; it must not need a walk, and `n` blocks must be right.
fn reads_its_journal(root: &Root, n: u64, what: &str) {
    let disk = faulty();
    disk.record();
    let mut c = client(root.on(disk.clone(), BOUND));
    let own = root.path().join(ns("model").dir());
    let listed = disk.take_record();
    assert!(
        !listed.iter().any(|(op, p)| *op == Op::List && *p == own),
        "{what}: the journal was not believed"
    );
    for part in keys(0..n).chunks(32) {
        all_ok(&c.load(R, part));
        c.tier.on_request_finished(R, &[]);
    }
    assert_settled(&mut c, root);
}

/// The journal's file had reached the limit of file sizes (EFBIG): removals did not go into it, whatever was evicted
/// for that, and the next start told of blocks that were gone.
#[test]
fn what_does_not_go_into_a_journal_at_the_limit_of_file_sizes_goes_into_the_next_one() {
    for goes_on in [false, true] {
        let root = Root::new();
        let disk = faulty();
        let mut c = client(root.on(disk.clone(), BOUND));
        store(&mut c, &keys(0..20));
        let journal = files(&root.path().join(".kvweir"))
            .into_iter()
            .find(|p| p.to_string_lossy().contains("/journal-"))
            .unwrap();
        disk.add(Rule::new(Op::Write, Fault::Errno(27)).path(journal.file_name().unwrap()));
        // one block goes for each that cannot be begun, unless the keeper was faster
        let mut end = 20;
        c.store(R, &keys(end..end + 1));
        c.tier.on_request_finished(R, &[]);
        if goes_on {
            until("the next file takes records", || {
                end += 1;
                c.store(R, &keys(end..end + 1))[0].is_ok()
            });
        }
        c.tier.on_request_finished(R, &[]);
        let held = |c: &mut Fs| {
            (0..=end)
                .filter(|&n| c.holds(&keys(n..n + 1)[0]))
                .collect::<Vec<_>>()
        };
        let before = held(&mut c);
        c.tier.shutdown();
        drop(c);
        disk.heal();
        disk.record();
        let mut c = client(root.on(disk.clone(), BOUND));
        let own = root.path().join(ns("model").dir());
        let walked = disk.take_record().contains(&(Op::List, own));
        assert!(!walked, "the journal was not believed");
        assert_eq!(held(&mut c), before, "goes on: {goes_on}");
        assert_settled(&mut c, &root);
    }
}

/// A long record ended in ENOSPC, with part of it in the file. The shorter ones that came next lay over its begin, and
/// its rest was read as damage.
#[test]
fn a_long_record_that_fails_half_way_does_not_cost_the_journal() {
    for moved in [1, 60, 300, 800] {
        for cut_fails in [0, 1, 3] {
            let root = Root::new();
            let disk = faulty();
            let mut c = client(root.on(disk.clone(), BOUND));
            store(&mut c, &keys(0..100));
            disk.add(
                Rule::new(Op::Write, Fault::Short(moved))
                    .path("/journal-00")
                    .times(1),
            );
            disk.add(
                Rule::new(Op::Write, Fault::Errno(28))
                    .path("/journal-00")
                    .times(1),
            );
            disk.add(
                Rule::new(Op::Allocate, Fault::Errno(5))
                    .path("/journal-00")
                    .times(cut_fails),
            );
            c.tier.on_request_finished(R, &keys(0..100));
            until("the record failed", || disk.met().len() >= 2);
            if cut_fails == 0 {
                store(&mut c, &keys(100..103));
            } else {
                // each append tries to cut again
                until("it is cut", || {
                    c.store(R, &keys(100..103)).iter().all(|o| o.is_ok())
                });
                c.tier.on_request_finished(R, &[]);
            }
            assert_settled(&mut c, &root);
            drop(c);
            reads_its_journal(&root, 103, &format!("{moved} bytes, {cut_fails} cuts fail"));
        }
    }
}

/// While a store was under way the flush that begins the next generation failed: numbers of directories were taken for
/// written that the file did not define, and the next start could not read it.
#[test]
fn a_change_of_generation_that_fails_while_a_store_is_under_way_does_not_cost_the_journal() {
    // the header, then what is under way
    for (skip, moved) in [(0, 0), (0, 10), (1, 0), (1, 10), (1, 45)] {
        let root = Root::new();
        let disk = faulty();
        let mut c = client(root.on(disk.clone(), BOUND));
        store(&mut c, &keys(0..10));
        disk.add(Rule::new(Op::Rename, Fault::Hang));
        let job = c.submit_store(R, &keys(10..11));
        assert!(disk.wait_hanging(1, std::time::Duration::from_secs(10)));
        if moved > 0 {
            let short = Rule::new(Op::Write, Fault::Short(moved));
            disk.add(short.path("/journal-00-00000001").after(skip).times(1));
            let fails = Rule::new(Op::Write, Fault::Errno(28));
            disk.add(fails.path("/journal-00-00000001").after(skip).times(1));
        } else {
            let fails = Rule::new(Op::Write, Fault::Errno(28));
            disk.add(fails.path("/journal-00-00000001").after(skip).times(1));
        }
        c.tier.compact();
        assert!(disk.met().len() > 1, "the test tests nothing");
        disk.heal();
        all_ok(&c.wait(job).blocks);
        c.tier.on_request_finished(R, &[]);
        store(&mut c, &keys(11..20));
        if skip == 0 {
            c.tier.compact();
            store(&mut c, &keys(20..22));
        } else {
            store(&mut c, &keys(20..22));
        }
        assert_settled(&mut c, &root);
        drop(c);
        reads_its_journal(&root, 22, &format!("call {skip}, {moved} bytes"));
    }
}

/// The file of the next generation was made, its header failed, and it could not be removed: no generation ever came
/// after it, since a file of that name was there.
#[test]
fn a_next_generation_that_cannot_be_removed_is_made_all_the_same_later() {
    let root = Root::new();
    let disk = faulty();
    let mut c = client(root.on(disk.clone(), BOUND));
    store(&mut c, &keys(0..10));
    disk.add(
        Rule::new(Op::Write, Fault::Errno(28))
            .path("/journal-00-00000001")
            .times(1),
    );
    disk.add(
        Rule::new(Op::Remove, Fault::Errno(5))
            .path("/journal-00-00000001")
            .times(1),
    );
    c.tier.compact();
    assert_eq!(disk.met().len(), 2, "the test tests nothing");
    store(&mut c, &keys(10..15));
    c.tier.compact();
    assert!(root.path().join(".kvweir/snapshot-00-00000001").exists());
    store(&mut c, &keys(15..20));
    assert_settled(&mut c, &root);
    drop(c);
    reads_its_journal(&root, 20, "made again");
}

/// A writer that was killed in the middle of a long record leaves part of it. The next one goes on before that part,
/// with shorter records: the rest of it lay behind them and was read as damage by the one after.
#[test]
fn who_goes_on_behind_a_torn_end_cuts_it() {
    for (torn, cut_fails) in [(9, 0), (500, 0), (5000, 0), (500, 1)] {
        let root = Root::new();
        let mut c = root.open(BOUND);
        let mut clean = on_model(&root, &mut c);
        // the begin of a frame of 30,000 bytes
        let mut bytes = fs::read(&clean).unwrap();
        bytes.extend(30_000u16.to_le_bytes());
        bytes.extend([6, 0]);
        bytes.resize(bytes.len() + torn - 4, 0);
        fs::write(&clean, &bytes).unwrap();
        let disk = faulty();
        disk.add(
            Rule::new(Op::Allocate, Fault::Errno(5))
                .path("/journal-00")
                .times(cut_fails),
        );
        c = client(root.on(disk.clone(), BOUND));
        until("it stores", || c.store(R, &keys(20..21))[0].is_ok());
        c.tier.on_request_finished(R, &[]);
        assert_settled(&mut c, &root);
        drop(c);
        clean.clear();
        reads_its_journal(&root, 21, &format!("{torn} bytes"));
    }
}

/// Stores twenty blocks with the tier, ends it and returns its journal.
fn on_model(root: &Root, c: &mut Fs) -> std::path::PathBuf {
    store(c, &keys(0..20));
    c.tier.shutdown();
    let mut all = files(&root.path().join(".kvweir"));
    all.retain(|p| p.to_string_lossy().contains("/journal-"));
    all.pop().unwrap()
}
