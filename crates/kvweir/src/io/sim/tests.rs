use std::io::{IoSlice, IoSliceMut};

use super::{tree::ENOSPC, *};
use crate::io::disk::{Disk, OpenMode, read_full, write_full};

fn disk() -> SimDisk {
    SimDisk::new(Path::new("/d"), Some(64 << 10))
}

#[test]
fn it_is_a_file_system() {
    let d = disk();
    let p = |s: &str| PathBuf::from("/d").join(s);
    d.create_dir(&p("a")).unwrap();
    assert!(
        d.create_dir(&p("x/y"))
            .is_err_and(|e| e.kind() == io::ErrorKind::NotFound)
    );
    let f = d.open(&p("a/f"), OpenMode::CreateNew, false).unwrap();
    write_full(&*f, &[7; 5000], &[8; 100]).unwrap();
    assert_eq!(d.du(Path::new("/d")), 4096 + 4096 + 8192);
    assert_eq!(d.bytes(), (12288, 12288), "the top is not counted");
    d.rename(&p("a/f"), &p("g")).unwrap();
    let (mut x, mut y) = (vec![0; 5000], vec![0; 200]);
    let g = d.open(&p("g"), OpenMode::Read, true).unwrap();
    assert_eq!(read_full(&*g, &mut x, &mut y).unwrap(), 5100);
    assert!(x.iter().all(|&b| b == 7) && y[..100].iter().all(|&b| b == 8));
    assert!(d.remove_dir(&p("a")).is_ok() && d.remove_file(&p("g")).is_ok());
    assert_eq!(d.bytes(), (12288, 0));
    let f = d.open(&p("f"), OpenMode::CreateNew, false).unwrap();
    let full = write_full(&*f, &vec![0; 70 << 10], &[]);
    assert_eq!(full.unwrap_err().raw_os_error(), Some(ENOSPC));
}

#[test]
fn allocated_bytes_count_and_two_handles_of_a_file_see_the_same() {
    let d = disk();
    let p = Path::new("/d/f");
    let a = d.open(p, OpenMode::CreateNew, false).unwrap();
    a.allocate(20_000).unwrap();
    assert_eq!((d.bytes().1, a.stat().unwrap().len), (20480, 20_000));
    assert_eq!(a.allocate(70 << 10).unwrap_err().raw_os_error(), Some(ENOSPC));
    let b = d.open(p, OpenMode::ReadWrite, true).unwrap();
    b.write_at(&[IoSlice::new(&[7; 4096])], 8192).unwrap();
    let mut x = [0; 10];
    a.read_at(&mut [IoSliceMut::new(&mut x)], 8190).unwrap();
    assert_eq!(x, [0, 0, 7, 7, 7, 7, 7, 7, 7, 7]);
    assert_eq!(d.bytes().1, 20480);
}

#[test]
fn a_power_loss_may_bring_back_what_was_written_over() {
    let p = Path::new("/d/f");
    let mut seen = std::collections::BTreeSet::new();
    for seed in 0..60u64 {
        let d = disk();
        let f = d.open(p, OpenMode::CreateNew, false).unwrap();
        write_full(&*f, &[1; 8192], &[]).unwrap();
        f.sync().unwrap();
        f.write_at(&[IoSlice::new(&[2; 4096])], 4096).unwrap();
        let mut n = seed;
        d.lose_power(&mut |below| {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (n >> 33) % below
        });
        let Ok(f) = d.open(p, OpenMode::Read, false) else {
            continue;
        };
        let mut now = vec![9; 8192];
        if read_full(&*f, &mut now, &mut []).unwrap() == 8192 {
            seen.insert((now[0], now[4096], now[8191]));
        }
    }
    assert!(seen.contains(&(1, 2, 2)), "{seen:?}");
    assert!(seen.iter().any(|s| s.1 != s.2), "torn: {seen:?}");
}

#[test]
fn the_dead_change_nothing_and_hold_no_locks() {
    let d = disk();
    let p = Path::new("/d/f");
    let f = d.open(p, OpenMode::CreateNew, false).unwrap();
    assert!(f.try_lock().unwrap());
    assert!(!d.open(p, OpenMode::ReadWrite, false).unwrap().try_lock().unwrap());
    write_full(&*f, b"one", &[]).unwrap();
    d.die_at(d.steps());
    assert!(write_full(&*f, b"two", &[]).is_err() && d.remove_file(p).is_err());
    let next = d.next_life();
    let g = next.open(p, OpenMode::ReadWrite, false).unwrap();
    assert!(g.try_lock().unwrap());
    let mut now = [0; 3];
    read_full(&*g, &mut now, &mut []).unwrap();
    assert_eq!(&now, b"one");
    assert!(
        write_full(&*f, b"two", &[]).is_err(),
        "nor does it in the next life"
    );
}

#[test]
fn what_was_synced_survives_a_power_loss() {
    for seed in 0..50u64 {
        let d = disk();
        for name in ["safe", "not"] {
            let f = d
                .open(&Path::new("/d").join(name), OpenMode::CreateNew, false)
                .unwrap();
            write_full(&*f, &[9; 9000], &[]).unwrap();
            if name == "safe" {
                f.sync().unwrap();
            }
        }
        let mut n = seed;
        d.lose_power(&mut |below| {
            n = n.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
            (n >> 33) % below
        });
        let f = d.open(Path::new("/d/safe"), OpenMode::Read, false).unwrap();
        let mut bytes = vec![0; 9000];
        assert_eq!(read_full(&*f, &mut bytes, &mut []).unwrap(), 9000);
        assert!(bytes.iter().all(|&b| b == 9));
    }
}

#[test]
fn a_torn_write_leaves_half_of_it_and_the_next_call_works() {
    let d = disk();
    let p = Path::new("/d/f");
    let f = d.open(p, OpenMode::CreateNew, false).unwrap();
    d.fail_at(d.steps(), SimFault::Torn(ENOSPC));
    let torn = write_full(&*f, &[7; 100], &[]);
    assert_eq!(torn.unwrap_err().raw_os_error(), Some(ENOSPC));
    assert_eq!(f.stat().unwrap().len, 50);
    f.set_len(10).unwrap();
    assert_eq!((f.stat().unwrap().len, d.bytes().1), (10, 4096));
    f.set_len(0).unwrap();
    assert_eq!(d.bytes().1, 0);
}
