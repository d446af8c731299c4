use super::*;
use crate::io::{
    OsDisk,
    disk::{read_full, write_full},
};

fn disk() -> (tempfile::TempDir, FaultDisk) {
    (tempfile::tempdir().unwrap(), FaultDisk::new(Arc::new(OsDisk)))
}

#[test]
fn the_nth_call_of_any_kind_fails_and_the_record_tells_which_it_was() {
    let (dir, d) = disk();
    let run = |d: &FaultDisk, name: &str| -> io::Result<()> {
        let f = d.open(&dir.path().join(name), OpenMode::CreateNew, false)?;
        f.allocate(4096)?;
        write_full(&*f, &[1; 4096], &[])?;
        f.sync()?;
        f.try_lock()?;
        d.space(dir.path())?;
        d.rename(&dir.path().join(name), &dir.path().join("to"))
    };
    d.record();
    run(&d, "first").unwrap();
    let steps: Vec<Op> = d.take_record().into_iter().map(|c| c.0).collect();
    let want = [
        Op::Create,
        Op::Allocate,
        Op::Write,
        Op::Sync,
        Op::Lock,
        Op::Space,
        Op::Rename,
    ];
    assert_eq!((steps.as_slice(), d.calls()), (&want[..], 7));
    for (n, op) in steps.into_iter().enumerate() {
        d.heal();
        d.add(Rule::nth(n as u64, Fault::Errno(5)));
        assert_eq!(run(&d, &format!("f{n}")).unwrap_err().raw_os_error(), Some(5));
        assert_eq!(d.met().last().unwrap().0, op);
    }
}

#[test]
fn one_bit_is_wrong_in_what_was_read_or_written() {
    let (dir, d) = disk();
    let path = dir.path().join("f");
    let f = d.open(&path, OpenMode::CreateNew, false).unwrap();
    d.add(Rule::new(Op::Write, Fault::Flip).times(1));
    write_full(&*f, &[0; 4096], &[0; 512]).unwrap();
    let ones = |b: &[u8]| b.iter().map(|x| x.count_ones()).sum::<u32>();
    assert_eq!(ones(&std::fs::read(&path).unwrap()), 1);
    std::fs::write(&path, [0; 4608]).unwrap();
    d.add(Rule::new(Op::Read, Fault::Flip).times(1));
    let (mut a, mut b) = ([0; 4096], [0; 512]);
    let f = d.open(&path, OpenMode::Read, false).unwrap();
    assert_eq!(read_full(&*f, &mut a, &mut b).unwrap(), 4608);
    assert_eq!((ones(&a), ones(&b)), (1, 0));
}

#[test]
fn a_disk_runs_full_and_has_room_again_when_files_go() {
    let (dir, d) = disk();
    d.add(Rule::new(Op::Write, Fault::FullAt(8192)));
    let store = |n: u32| {
        let f = d.open(&dir.path().join(n.to_string()), OpenMode::CreateNew, false)?;
        write_full(&*f, &[1; 4096], &[])
    };
    assert!(store(1).is_ok() && store(2).is_ok());
    assert_eq!(d.space(dir.path()).unwrap().available, 0);
    assert_eq!(store(3).unwrap_err().kind(), io::ErrorKind::StorageFull);
    d.remove_file(&dir.path().join("1")).unwrap();
    assert!(store(4).is_ok() && store(5).is_err());
}

#[test]
fn a_call_hangs_until_it_is_released_and_then_does_its_work() {
    let (dir, d) = disk();
    d.add(Rule::new(Op::CreateDir, Fault::Hang).times(1));
    let path = dir.path().join("d");
    std::thread::scope(|s| {
        let t = std::thread::Builder::new().name("hangs".into());
        let made = t.spawn_scoped(s, || d.create_dir(&path)).unwrap();
        assert!(d.wait_hanging(1, Duration::from_secs(10)));
        assert!(!path.exists() && !made.is_finished());
        d.release();
        made.join().unwrap().unwrap();
    });
    assert!(path.exists() && d.hanging() == 0);
}

/// A call that had met its rule and did not wait yet slept on past the healing, for ever.
#[test]
fn a_call_that_is_about_to_hang_goes_on_when_the_disk_heals() {
    let (dir, d) = disk();
    let stop = std::sync::atomic::AtomicBool::new(false);
    std::thread::scope(|s| {
        let t = std::thread::Builder::new().name("calls".into());
        t.spawn_scoped(s, || {
            while !stop.load(Ordering::Relaxed) {
                d.stat(dir.path()).unwrap();
            }
        })
        .unwrap();
        let stuck = (0..2_000).find(|_| {
            d.add(Rule::new(Op::Stat, Fault::Hang));
            for _ in 0..100 {
                std::hint::spin_loop();
            }
            d.heal();
            // two calls on, the one that was under way has ended
            let calls = d.calls();
            for n in 0..5_000 {
                if d.calls() >= calls + 2 {
                    break;
                }
                crate::sync::Bell::default().wait(0, Duration::from_millis(u64::from(n >= 100)));
            }
            d.calls() < calls + 2
        });
        stop.store(true, Ordering::Relaxed);
        d.heal();
        assert_eq!(stuck, None, "a call hangs on a disk that has healed");
    });
}
