//! Disks that hang, are full, or lose what one of several had.

use super::*;

#[test]
fn a_space_is_not_held_up_by_one_whose_reads_hang() {
    for layouts in BOTH {
        let (root, disk) = (Root::new(), faulty());
        let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
        let mut settings = root.settings(16 << 20);
        settings.io_timeout = Some(Duration::from_millis(300));
        let b = build(settings.clone(), &spaces).disk(Arc::new(disk.clone()));
        let mut all = clients(b, &spaces);
        for t in &mut all {
            t.allow_late_slots();
            store(t, &keys(0..20));
        }
        let dir = all[0].tier.namespace_dir().file_name().unwrap().to_owned();
        disk.add(Rule::new(Op::Read, Fault::Hang).path(dir).times(1));
        assert!(all[0].holds(&keys(0..1)[0]));
        let job = all[0].submit_load(R, &keys(0..1));
        assert!(disk.wait_hanging(1, Duration::from_secs(10)));
        store(&mut all[1], &keys(20..30));
        loads(&mut all[1], 0..30);
        all[1].tier.drain();
        assert!(!all[0].wait(job).blocks[0].is_ok(), "given up");
        assert_eq!(count(&mut all[0], 0..20), 0, "the breaker is open");
        assert_eq!(all[1].tier.stats().breaker_state, 0);
        assert_eq!(count(&mut all[1], 0..30), 30);
        // the one that hangs ends first
        let clock = SystemClock::new();
        let began = clock.now();
        let mut a = all.remove(0);
        a.tier.shutdown();
        assert!(clock.now().since(began) < Duration::from_secs(8));
        store(&mut all[0], &keys(30..40));
        loads(&mut all[0], 0..40);
        disk.heal();
        until("what hung returns", || disk.hanging() == 0);
        shut(all);
        drop(a);
        let mut all = clients(build(settings, &spaces), &spaces);
        assert_eq!((count(&mut all[0], 0..20), count(&mut all[1], 0..40)), (20, 40));
        assert_settled(&mut all[0], &root);
        shut(all);
    }
}

#[test]
fn all_workers_hang_in_one_space_and_the_other_comes_back_with_them() {
    for layouts in BOTH {
        let (root, disk) = (Root::new(), faulty());
        let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
        let mut settings = root.settings(16 << 20);
        settings.io_timeout = Some(Duration::from_millis(300));
        let b = build(settings.clone(), &spaces).disk(Arc::new(disk.clone()));
        let mut all = clients(b, &spaces);
        for t in &mut all {
            t.allow_late_slots();
            store(t, &keys(0..20));
        }
        let dir = all[0].tier.namespace_dir().file_name().unwrap().to_owned();
        disk.add(Rule::new(Op::Read, Fault::Hang).path(dir));
        let jobs: Vec<_> = (0..4u64)
            .map(|n| {
                assert!(all[0].holds(&keys(n..n + 1)[0]));
                all[0].submit_load(RequestId(n), &keys(n..n + 1))
            })
            .collect();
        assert!(disk.wait_hanging(2, Duration::from_secs(10)));
        let stores = all[1].submit_store(R, &keys(20..30));
        assert!(all[1].holds(&keys(0..1)[0]));
        let load = all[1].submit_load(R, &keys(0..1));
        for job in jobs {
            assert!(!all[0].wait(job).blocks[0].is_ok());
        }
        assert!(all[1].wait(stores).blocks.iter().all(|o| !o.is_ok()));
        assert!(!all[1].wait(load).blocks[0].is_ok());
        let clock = SystemClock::new();
        let began = clock.now();
        all[1].tier.drain();
        assert!(
            clock.now().since(began) < Duration::from_secs(8),
            "{:?}",
            clock.now().since(began)
        );
        disk.heal();
        for t in &mut all {
            until("the breaker closes", || {
                t.collect();
                t.tier.stats().breaker_state == 0
            });
        }
        store(&mut all[1], &keys(40..50));
        loads(&mut all[1], 0..20);
        // what hung is a miss until it is stored again
        loads(&mut all[0], 4..20);
        for t in &mut all {
            t.tier.on_request_finished(R, &[]);
            (0..4).for_each(|n| t.tier.on_request_finished(RequestId(n), &[]));
        }
        assert_settled(&mut all[0], &root);
        shut(all);
    }
}

#[test]
fn while_one_hangs_for_ever_the_last_keeps_the_root_claimed() {
    for order in [[0, 1], [1, 0]] {
        let (root, disk) = (Root::new(), faulty());
        let spaces = [("a", LEN, PACK), ("b", SMALL, FS)];
        let mut settings = root.settings(16 << 20);
        settings.io_timeout = Some(Duration::from_millis(200));
        let b = build(settings.clone(), &spaces).disk(Arc::new(disk.clone()));
        let mut all = clients(b, &spaces);
        for t in &mut all {
            t.allow_late_slots();
            store(t, &keys(0..10));
        }
        let dir = all[0].tier.namespace_dir().file_name().unwrap().to_owned();
        disk.add(Rule::new(Op::Read, Fault::Hang).path(dir));
        assert!(all[0].holds(&keys(0..1)[0]));
        let job = all[0].submit_load(R, &keys(0..1));
        assert!(disk.wait_hanging(1, Duration::from_secs(10)));
        assert!(!all[0].wait(job).blocks[0].is_ok());
        for n in order {
            all[n].tier.shutdown();
        }
        settings.max_bytes = Some(8 << 20);
        let e = build(settings.clone(), &spaces).open_all().unwrap_err();
        assert_eq!(e.kind(), ErrorKind::Busy, "{e}");
        disk.heal();
        drop(all);
    }
}

#[test]
fn on_a_device_that_is_full_below_the_bound_a_newcomer_gets_its_part() {
    a_newcomer_gets_its_part("8m", None, 5);
}

#[test]
fn above_a_floor_of_free_bytes_a_newcomer_gets_its_part() {
    a_newcomer_gets_its_part("16m", Some(8 << 20), 60);
}

/// One fills a file system of `size`, then another stores, with pauses of so many milliseconds.
fn a_newcomer_gets_its_part(size: &str, min_free_bytes: Option<u64>, ms: u64) {
    for [x, y] in BOTH {
        let Some(tmp) = Tmpfs::new(size) else {
            return skip("no file system can be mounted here");
        };
        let spaces = [("a", LEN, x), ("b", SMALL, y)];
        let settings = FsSettings {
            max_bytes: Some(64 << 20),
            min_free_bytes,
            pool: kvweir::io::pool::PoolSize::new(2, 2),
            ..FsSettings::new(tmp.path().join("kv"))
        };
        let mut all = clients(build(settings, &spaces), &spaces);
        pour(&mut all[0], 0..1100);
        let alone = count(&mut all[0], 0..1100);
        let mut got = 0;
        for n in 0..40 {
            got += pour(&mut all[1], n * 10..n * 10 + 10);
            pause(ms);
        }
        let left = count(&mut all[0], 0..1100);
        assert!(got >= 300, "{x}, {y}: {got}; {left} of {alone} are left");
        shut(all);
    }
}

#[test]
fn at_a_floor_of_free_bytes_files_get_room_from_extents() {
    for layouts in [[PACK, FS], [FS, PACK], [PACK, PACK]] {
        let root = Root::new();
        let path = root.path();
        let disk = crate::hook::hook(|_, _| Ok(())).free(move || (12u64 << 20).saturating_sub(du(&path)));
        let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
        let mut settings = root.settings(64 << 20);
        settings.min_free_bytes = Some(8 << 20);
        let mut all = clients(build(settings, &spaces).disk(Arc::new(disk)), &spaces);
        for n in 0..12 {
            pour(&mut all[0], n * 50..n * 50 + 50);
            pause(60);
        }
        let alone = count(&mut all[0], 0..600);
        let mut got = 0;
        for n in 0..40 {
            got += pour(&mut all[1], n * 10..n * 10 + 10);
            pause(60);
        }
        let left = count(&mut all[0], 0..600);
        assert!(got >= 350, "{layouts:?}: {got}; {left} of {alone} are left");
        shut(all);
    }
}

#[test]
fn extents_of_one_that_are_removed_cost_the_other_nothing() {
    for layouts in [[PACK, PACK], [FS, PACK], [PACK, FS]] {
        let root = Root::new();
        let spaces = [("a", LEN, layouts[0]), ("b", SMALL, layouts[1])];
        let mut all = open(&root, 16 << 20, &spaces);
        for t in &mut all {
            store(t, &keys(0..40));
        }
        let n = if layouts[1] == PACK { 1 } else { 0 };
        for file in extent_files(all[n].tier.namespace_dir()) {
            std::fs::remove_file(file).unwrap();
        }
        until("its blocks are misses", || count(&mut all[n], 0..40) == 0);
        assert_eq!(count(&mut all[1 - n], 0..40), 40);
        loads(&mut all[1 - n], 0..40);
        for t in &mut all {
            store(t, &keys(100..140));
            loads(t, 100..140);
        }
        until("the account agrees", || {
            all[0].tier.stats().resident_bytes == root.counted()
        });
        shut(all);
        let mut all = open(&root, 16 << 20, &spaces);
        assert_eq!(
            (count(&mut all[n], 0..200), count(&mut all[1 - n], 0..200)),
            (40, 80)
        );
        shut(all);
    }
}
