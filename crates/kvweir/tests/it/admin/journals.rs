//! Block files against journals, and members as they are told.

use std::{
    fs,
    io::{BufRead, BufReader},
};

use kvweir::{
    admin::{Fault, LedgerState, Verification, VerifyOptions},
    tier::conformance::key,
};

use super::{BOUND, admin, made, verify};
use crate::support::{LEN, Root, assert_settled, builder, client, file_of, keys, ns, pause, store};

/// Repairs all that was found.
fn repair(root: &Root, found: &Verification) -> kvweir::admin::Repaired {
    let a = admin(root);
    let plan = a.repair(found, None).unwrap();
    let claim = a.claim().unwrap();
    let done = a.repair(found, Some(&claim)).unwrap();
    assert_eq!(plan.next_start_walks, done.next_start_walks);
    done
}

#[test]
fn inspect_tells_who_shares_the_root_and_how_much_each_may_hold() {
    let (root, _) = made(20);
    let mut b = client(builder(root.settings(BOUND), "other", LEN));
    store(&mut b, &keys(0..10));
    // the keeper writes what is held now and then
    let held = |i: &kvweir::admin::Inspection| i.members.iter().find(|m| m.holder.number == 1)?.held_bytes;
    let a = admin(&root);
    let mut i = a.inspect().unwrap();
    for _ in 0..250 {
        if held(&i).is_some_and(|h| h >= 10 * (LEN as u64 + 4096)) {
            break;
        }
        pause(20);
        i = a.inspect().unwrap();
    }
    assert_eq!(i.ledger.state, LedgerState::Whole);
    assert_eq!(
        (i.ledger.bound_bytes, i.ledger.walker, i.ledger.claimed),
        (Some(BOUND), None, false)
    );
    let live = i.members.iter().find(|m| m.holder.live == Some(true)).unwrap();
    assert_eq!(live.holder.number, 1);
    assert_eq!(live.holder.lock, ".kvweir/member-01.lock");
    assert_eq!(live.holder.pid, Some(std::process::id()));
    assert!(!live.holder.host.as_deref().unwrap().is_empty());
    assert_eq!(live.namespace.as_deref(), Some(ns("other").dir()));
    assert!(
        live.journal_bytes >= 4096 && live.generation == Some(0),
        "{live:?}"
    );
    let (lease, held) = (live.lease_bytes.unwrap(), live.held_bytes.unwrap());
    assert!(
        held >= 10 * (LEN as u64 + 4096) && lease >= held && lease <= BOUND,
        "{live:?}"
    );
    let leases: u64 = i.members.iter().filter_map(|m| m.lease_bytes).sum();
    assert!(leases + i.ledger.common_bytes.unwrap() <= BOUND);
    assert_eq!(i.bytes, root.du());
    drop(b);
    let i = admin(&root).inspect().unwrap();
    let all: Vec<_> = i
        .members
        .iter()
        .map(|m| (m.holder.live, m.ended_in_order))
        .collect();
    assert!(all.iter().all(|m| *m == (Some(false), Some(true))), "{all:?}");
}

#[test]
fn a_file_that_no_journal_knows_is_found_and_counted_after_a_repair() {
    let (root, dir) = made(30);
    let (other, from) = made(40);
    for n in 35..38 {
        let to = file_of(&dir, &key(n));
        fs::create_dir_all(to.parent().unwrap()).unwrap();
        fs::copy(file_of(&from, &key(n)), to).unwrap();
    }
    drop(other);
    let v = verify(&root);
    assert!(v.journals.compared && v.journals.blocks == 30, "{v:?}");
    assert_eq!((v.good, v.findings.len(), v.faults["not_in_journal"]), (33, 3, 3));
    let done = repair(&root, &v);
    assert!(
        done.next_start_walks && done.files.files == 0 && done.kept == 0,
        "{done:?}"
    );
    let again = verify(&root);
    assert!(again.is_clean() && !again.journals.compared);
    let mut c = root.open(BOUND);
    assert!((35..38).all(|n| c.holds(&key(n))));
    assert_settled(&mut c, &root);
    drop(c);
    let v = verify(&root);
    assert!(
        v.is_clean() && v.journals.compared && v.journals.blocks == 33,
        "{v:?}"
    );
}

#[test]
fn a_block_whose_file_is_gone_is_told_and_no_finding() {
    let (root, dir) = made(30);
    for n in [3, 9] {
        fs::remove_file(file_of(&dir, &key(n))).unwrap();
    }
    let v = verify(&root);
    // the emptied directories are findings of their own
    assert!(
        v.findings.iter().all(|f| f.fault == Fault::EmptyDirectory),
        "{v:?}"
    );
    assert_eq!((v.journals.compared, v.journals.journal_without_file), (true, 2));
    assert_eq!(v.journals.without_file_in.len(), 2);
    let at = &v.journals.without_file_in[0];
    assert!(
        at.starts_with(ns("model").dir()) && root.path().join(at).exists(),
        "{at}"
    );
}

#[test]
fn only_the_chosen_namespace_is_compared() {
    let (root, dir) = made(10);
    let mut b = client(builder(root.settings(BOUND), "other", LEN));
    store(&mut b, &keys(0..4));
    drop(b);
    fs::remove_file(file_of(&dir, &key(3))).unwrap();
    let name = ns("other");
    let only = VerifyOptions {
        namespace: Some(name.dir()),
        claim: None,
    };
    let v = admin(&root).verify(&only, &|_| {}).unwrap();
    assert_eq!(
        (v.journals.blocks, v.journals.journal_without_file),
        (4, 0),
        "{v:?}"
    );
}

#[test]
fn damaged_journals_and_ledgers_are_found_and_the_next_start_after_a_repair_is_exact() {
    let damage = |root: &Root, name: &str, at: usize| {
        let path = root.path().join(".kvweir").join(name);
        let mut bytes = fs::read(&path).unwrap();
        bytes[at] ^= 1;
        fs::write(&path, bytes).unwrap();
    };
    for (name, at, fault) in [
        ("journal-00-00000000", 200, Fault::DamagedJournal),
        ("journal-00-00000000", 10, Fault::DamagedJournal),
        ("ledger", 20, Fault::DamagedLedger),
        ("ledger", 4100, Fault::DamagedLedger),
    ] {
        let (root, _) = made(30);
        damage(&root, name, at);
        let v = verify(&root);
        assert_eq!((v.findings.len(), v.findings[0].fault), (1, fault), "{v:?}");
        assert!(!v.journals.compared && v.findings[0].path.starts_with(".kvweir/"));
        if fault == Fault::DamagedLedger {
            let i = admin(&root).inspect().unwrap();
            assert_eq!((i.ledger.state, i.members.len()), (LedgerState::Damaged, 0));
        }
        assert!(repair(&root, &v).next_start_walks);
        assert!(verify(&root).is_clean());
        let mut c = root.open(BOUND);
        assert!((0..30).all(|n| c.holds(&key(n))));
        assert_settled(&mut c, &root);
    }
}

#[test]
fn journals_of_another_boot_are_not_compared() {
    let root = Root::new();
    let mut c = client(builder(root.settings(BOUND), "model", LEN).boot_id([7; 16]));
    store(&mut c, &keys(0..5));
    drop(c);
    let v = verify(&root);
    assert!(!v.journals.compared && v.is_clean(), "{v:?}");
    assert!(v.journals.why_not.unwrap().contains("started anew"));
}

#[test]
fn what_a_kill_leaves_in_doubt_is_no_finding_and_commands_work_on_it() {
    let root = Root::new();
    fs::create_dir(root.path()).unwrap();
    let bound = 8 << 20;
    for round in 0..3 {
        let mut child = crate::crash::spawn(&root.path(), bound, 900, round);
        let mut lines = BufReader::new(child.stdout.take().unwrap())
            .lines()
            .map_while(Result::ok);
        let acks = lines.by_ref().filter(|l| l.starts_with("ack")).take(40).count();
        child.kill().unwrap();
        child.wait().unwrap();
        assert_eq!(acks, 40);
        let v = verify(&root);
        assert!(v.journals.compared, "{:?}", v.journals);
        let left = [Fault::LeftoverTemporary, Fault::EmptyDirectory];
        assert!(
            v.findings.iter().all(|f| left.contains(&f.fault)),
            "{:?}",
            v.findings
        );
        assert_eq!(v.journals.journal_without_file, 0, "{:?}", v.journals);
        let a = admin(&root);
        assert!(
            a.inspect()
                .unwrap()
                .members
                .iter()
                .all(|m| m.holder.live == Some(false))
        );
        if round == 1 {
            repair(&root, &v);
            let claim = a.claim().unwrap();
            assert!(a.trim(bound / 3, Some(&claim)).unwrap().is_reached());
        }
    }
    let mut c = root.open(bound);
    assert_settled(&mut c, &root);
    assert!(root.du() <= bound);
}

#[test]
fn what_an_engine_does_while_files_are_read_is_no_finding() {
    let (root, _) = made(300);
    let once = std::sync::Once::new();
    let came = |_| {
        once.call_once(|| {
            let mut c = root.open(BOUND);
            store(&mut c, &keys(1000..1300));
        });
    };
    let v = admin(&root)
        .threads(1)
        .verify(&VerifyOptions::default(), &came)
        .unwrap();
    assert!(v.is_clean() && !v.journals.compared, "{v:?}");
    assert!(v.good > 300, "some of the new files were met");
    assert!(v.journals.why_not.unwrap().contains("came to the root"));
}
