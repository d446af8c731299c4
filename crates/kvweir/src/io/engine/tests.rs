//! Both engines, by what they promise: the same bytes, all runs ended, no memory in use when they return.

use std::{
    io::{self, IoSlice, IoSliceMut, Write},
    os::{
        fd::{AsFd, BorrowedFd},
        unix::fs::FileExt,
    },
    path::Path,
    sync::Mutex,
};

use proptest::prelude::*;

use super::{flight::Flight, run::MAX_PIECES, *};
use crate::io::{
    Disk, DiskFile, OsDisk, PAGE, PageBuffer, Region,
    disk::{OpenMode, Stat},
};

/// A ring, or the reason why this test does not look at one.
fn ring(depth: u32) -> Option<RingEngine> {
    match probe() {
        Ok(()) => Some(RingEngine::new(depth).unwrap()),
        Err(reason) => {
            eprintln!("not tested with a ring: {reason}");
            None
        }
    }
}

fn engines(depth: u32) -> Vec<Box<dyn Engine>> {
    let mut all: Vec<Box<dyn Engine>> = vec![Box::new(ThreadEngine)];
    all.extend(ring(depth).map(|r| Box::new(r) as Box<dyn Engine>));
    all
}

/// Numbers of a seed.
struct Seed(u64);

impl Seed {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z ^ (z >> 29)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }
}

fn noise(seed: u64, len: usize) -> Vec<u8> {
    let mut s = Seed(seed);
    (0..len).map(|_| s.next() as u8).collect()
}

fn open(path: &Path, mode: OpenMode, direct: bool) -> Box<dyn DiskFile> {
    OsDisk.open(path, mode, direct).unwrap()
}

/// A file of the memory of this process.
fn mem_file(bytes: &[u8]) -> Fake {
    let fd = rustix::fs::memfd_create("kvweir-test", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let file = std::fs::File::from(fd);
    file.write_all_at(bytes, 0).unwrap();
    Fake {
        file,
        lend: true,
        trouble: Mutex::default(),
    }
}

/// A file that lends its descriptor or not, and has trouble first.
#[derive(Debug)]
struct Fake {
    file: std::fs::File,
    lend: bool,
    /// What calls end with before the first that works; `Ok(n)` moves at most `n` bytes.
    trouble: Mutex<Vec<Result<usize, i32>>>,
}

impl DiskFile for Fake {
    fn read_at(&self, bufs: &mut [IoSliceMut<'_>], offset: u64) -> io::Result<usize> {
        assert!(!bufs.is_empty() && bufs.len() <= 1024 && bufs.iter().all(|b| !b.is_empty()));
        match self.trouble.lock().unwrap().pop() {
            Some(Err(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Some(Ok(most)) => {
                let n = most.min(bufs[0].len());
                self.file.read_at(&mut bufs[0][..n], offset)
            }
            None => Ok(rustix::io::preadv(&self.file, bufs, offset)?),
        }
    }
    fn write_at(&self, bufs: &[IoSlice<'_>], offset: u64) -> io::Result<usize> {
        assert!(!bufs.is_empty() && bufs.len() <= 1024 && bufs.iter().all(|b| !b.is_empty()));
        match self.trouble.lock().unwrap().pop() {
            Some(Err(errno)) => Err(io::Error::from_raw_os_error(errno)),
            Some(Ok(most)) => self.file.write_at(&bufs[0][..most.min(bufs[0].len())], offset),
            None => Ok(rustix::io::pwritev(&self.file, bufs, offset)?),
        }
    }
    fn allocate(&self, _: u64) -> io::Result<()> {
        Ok(())
    }
    fn sync(&self) -> io::Result<()> {
        Ok(())
    }
    fn stat(&self) -> io::Result<Stat> {
        Err(io::ErrorKind::Unsupported.into())
    }
    fn try_lock(&self) -> io::Result<bool> {
        Ok(true)
    }
    fn fd(&self) -> Option<BorrowedFd<'_>> {
        self.lend.then(|| self.file.as_fd())
    }
}

/// Reads `runs` (offset and lengths of pieces) of `file`; the bytes and result of each.
fn read(
    engine: &mut dyn Engine,
    file: &dyn DiskFile,
    runs: &[(u64, Vec<usize>)],
) -> Vec<(Vec<u8>, io::Result<usize>)> {
    let mut memory: Vec<Vec<Vec<u8>>> = runs
        .iter()
        .map(|(_, lens)| lens.iter().map(|&n| vec![0; n]).collect())
        .collect();
    let mut batch: Vec<ReadRun<'_>> = runs
        .iter()
        .zip(&mut memory)
        .map(|((offset, _), pieces)| {
            let run = ReadRun::new(file, *offset);
            pieces.iter_mut().fold(run, |run, p| run.with(p))
        })
        .collect();
    let mut told = vec![0; batch.len()];
    let mut seen = vec![None; batch.len()];
    engine.read_each(&mut batch, &mut |runs, n| {
        told[n] += 1;
        assert!(runs[n].result().is_some(), "told before it ended");
        seen[n] = runs[n]
            .pieces()
            .map(|all| all.iter().flat_map(|p| p.to_vec()).collect::<Vec<u8>>());
    });
    assert_eq!(told, vec![1; batch.len()], "each is told of once");
    let results: Vec<_> = batch.into_iter().map(Run::into_result).collect();
    for ((seen, memory), result) in seen.iter().zip(&memory).zip(&results) {
        if let (Some(seen), Ok(n)) = (seen, result) {
            assert_eq!(seen[..*n], memory.concat()[..*n], "what was shown is what came");
        }
    }
    memory
        .into_iter()
        .map(|pieces| pieces.concat())
        .zip(results)
        .collect()
}

fn any_runs() -> impl Strategy<Value = Vec<(u64, Vec<usize>)>> {
    let few = prop::collection::vec(0..3000usize, 0..6);
    let many = prop::collection::vec(0..9usize, 1000..2500);
    prop::collection::vec((0..70_000u64, prop_oneof![8 => few, 1 => many]), 0..40)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn all_engines_read_what_the_file_holds_as_far_as_it_goes(
        runs in any_runs(), depth in 1..20u32, seed: u64
    ) {
        let bytes = noise(seed, 65_536);
        let file = mem_file(&bytes);
        for mut engine in engines(depth) {
            for ((offset, lens), (got, result)) in runs.iter().zip(read(&mut *engine, &file, &runs)) {
                let from = bytes.len().min(*offset as usize);
                let len = lens.iter().sum::<usize>().min(bytes.len() - from);
                prop_assert_eq!(result.unwrap(), len, "{}", engine.name());
                prop_assert_eq!(&got[..len], &bytes[from..from + len]);
                prop_assert!(got[len..].iter().all(|&b| b == 0));
            }
        }
    }

    #[test]
    fn all_engines_write_the_same_bytes(
        lens in prop::collection::vec(
            prop_oneof![8 => prop::collection::vec(0..3000usize, 0..6),
                        1 => prop::collection::vec(0..9usize, 1000..2500)], 0..40),
        depth in 1..20u32, seed: u64
    ) {
        let bytes = noise(seed, 1 << 18);
        for mut engine in engines(depth) {
            let file = mem_file(&[]);
            // runs follow each other, with a gap between
            let (mut at, mut want, mut batch) = (0usize, Vec::new(), Vec::new());
            for pieces in &lens {
                let mut run = WriteRun::new(&file, at as u64 + 7);
                want.resize(at + 7, 0);
                for &n in pieces {
                    let from = at % (bytes.len() / 2);
                    run.push(&bytes[from..from + n]);
                    want.extend_from_slice(&bytes[from..from + n]);
                    at = want.len();
                }
                at = want.len();
                batch.push(run);
            }
            engine.write(&mut batch);
            for run in batch {
                let asked = run.asked();
                prop_assert_eq!(run.into_result().unwrap(), asked);
            }
            let mut got = vec![0; want.len()];
            let n = file.file.read_at(&mut got, 0).unwrap();
            prop_assert!(want[n..].iter().all(|&b| b == 0), "{} wrote {} bytes", engine.name(), n);
            prop_assert!(got == want);
        }
    }
}

#[test]
fn errors_are_the_systems_and_of_their_run_only() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    std::fs::write(&path, noise(1, 8192)).unwrap();
    let good = open(&path, OpenMode::Read, false);
    for mut engine in engines(8) {
        // a file that is open for reading cannot be written: EBADF
        let page = [1; 64];
        let mut batch = [WriteRun::new(&*good, 0).with(&page), WriteRun::new(&*good, 64)];
        engine.write(&mut batch);
        let [bad, empty] = batch;
        assert_eq!(bad.into_result().unwrap_err().raw_os_error(), Some(9));
        assert_eq!(empty.into_result().unwrap(), 0);

        let (mut a, mut b, mut c) = ([0; 16], [0; 16], [0; 16]);
        let mut batch = [
            ReadRun::new(&*good, 0).with(&mut a),
            ReadRun::new(&*good, u64::MAX).with(&mut b),
            ReadRun::new(&*good, 8190).with(&mut c),
        ];
        assert!(batch.iter().all(|r| r.result().is_none()));
        engine.read(&mut batch);
        let [first, second, third] = batch;
        assert!(first.into_whole().is_ok());
        assert_eq!(second.into_result().unwrap_err().raw_os_error(), Some(22));
        assert_eq!(
            third.into_whole().unwrap_err().kind(),
            io::ErrorKind::UnexpectedEof
        );
    }
    let untold = ReadRun::new(&*good, 0).into_result().unwrap_err();
    assert_eq!(untold.kind(), io::ErrorKind::NotConnected);
}

#[test]
fn direct_reads_end_at_the_end_of_a_file_and_refuse_misaligned_memory() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let bytes = noise(2, 2 * PAGE + 100);
    std::fs::write(&path, &bytes).unwrap();
    let Ok(file) = OsDisk.open(&path, OpenMode::Read, true) else {
        eprintln!("not tested: no direct I/O in {}", dir.path().display());
        return;
    };
    for mut engine in engines(8) {
        let mut memory = PageBuffer::new(6 * PAGE).unwrap();
        let (a, rest) = memory.as_mut_slice().split_at_mut(3 * PAGE);
        let (b, c) = rest.split_at_mut(PAGE);
        let mut batch = [
            ReadRun::new(&*file, 0).with(a),
            ReadRun::new(&*file, PAGE as u64).with(b).with(&mut c[..PAGE]),
        ];
        engine.read(&mut batch);
        let lens = batch.map(|r| r.into_result().unwrap());
        assert_eq!(lens, [bytes.len(), PAGE + 100], "{}", engine.name());
        assert!(memory.as_slice()[..bytes.len()] == bytes[..]);
        assert!(memory.as_slice()[3 * PAGE..4 * PAGE] == bytes[PAGE..2 * PAGE]);

        let mut batch = [ReadRun::new(&*file, 0).with(&mut memory.as_mut_slice()[1..=PAGE])];
        engine.read(&mut batch);
        let [run] = batch;
        // some file systems take what they cannot do directly through the page cache
        if let Err(e) = run.into_result() {
            assert_eq!(e.raw_os_error(), Some(22), "{}", engine.name());
        }
    }
}

#[test]
fn a_file_without_a_descriptor_is_called_and_short_or_interrupted_calls_go_on() {
    let bytes = noise(3, 30_000);
    for mut engine in engines(4) {
        let file = Fake {
            lend: false,
            trouble: Mutex::new(vec![Ok(1), Err(4), Err(11), Ok(7), Err(4)]),
            ..mem_file(&bytes)
        };
        let got = read(&mut *engine, &file, &[(5, vec![1000, 0, 2000]), (9000, vec![10])]);
        assert!(got[0].0 == bytes[5..3005] && got[1].0 == bytes[9000..9010]);
        if engine.name() == "io_uring" {
            let called = engine.tally();
            assert_eq!((called.called, called.submitted), (2, 0));
        }
        *file.trouble.lock().unwrap() = vec![Ok(0), Ok(3)];
        let mut batch = [WriteRun::new(&file, 0).with(b"abcdef")];
        engine.write(&mut batch);
        let [run] = batch;
        assert_eq!(run.into_result().unwrap_err().kind(), io::ErrorKind::WriteZero);
        *file.trouble.lock().unwrap() = vec![Err(11); 1000];
        let [(_, stuck)] = read(&mut *engine, &file, &[(0, vec![1])]).try_into().unwrap();
        assert_eq!(stuck.unwrap_err().kind(), io::ErrorKind::WouldBlock);
    }
}

#[test]
fn registered_memory_is_used_where_a_run_lies_in_it() {
    let Some(mut engine) = ring(8) else { return };
    let region = Region::new(8, 2 * PAGE, false).unwrap();
    if !engine.register(&region) {
        assert_eq!(engine.tally().refused, 1);
        eprintln!("not tested: memory cannot be registered here");
        return;
    }
    let bytes = noise(4, 16 * PAGE);
    let file = mem_file(&bytes);
    let mut slots: Vec<_> = (0..8).map(|s| region.write(s).unwrap()).collect();
    let mut outside = vec![0; PAGE];
    let mut batch: Vec<_> = slots
        .iter_mut()
        .zip(0..)
        .map(|(slot, i)| ReadRun::new(&file, i * 2 * PAGE as u64).with(slot))
        .collect();
    batch.push(ReadRun::new(&file, 0).with(&mut outside));
    engine.read(&mut batch);
    assert!(batch.into_iter().all(|r| r.into_whole().is_ok()));
    assert_eq!((engine.tally().submitted, engine.tally().fixed), (9, 8));
    assert!(slots.iter().flat_map(|s| s.iter()).eq(&bytes) && outside == bytes[..PAGE]);
    drop(slots);

    let copy = mem_file(&[]);
    let slots: Vec<_> = (0..8).map(|s| region.read(s).unwrap()).collect();
    let mut batch: Vec<_> = slots
        .iter()
        .zip(0..)
        .map(|(slot, i)| WriteRun::new(&copy, i * 2 * PAGE as u64).with(slot))
        .collect();
    engine.write(&mut batch);
    assert!(batch.into_iter().all(|r| r.into_whole().is_ok()));
    assert_eq!(engine.tally().fixed, 16);
    let mut got = vec![0; bytes.len()];
    copy.file.read_exact_at(&mut got, 0).unwrap();
    assert!(got == bytes);

    // another region takes the place of the first; on another thread it is registered anew
    let other = Region::new(1, PAGE, false).unwrap();
    assert!(engine.register(&other));
    std::thread::scope(|s| {
        s.spawn(|| {
            let mut slot = other.write(0).unwrap();
            let mut batch = [ReadRun::new(&file, 0).with(&mut slot)];
            engine.read(&mut batch);
            let [run] = batch;
            run.into_whole().unwrap();
            assert_eq!((engine.tally().fixed, engine.tally().called), (17, 0));
        });
    });
}

#[test]
fn a_flight_that_is_dropped_waits_for_what_is_under_way() {
    let Some(mut engine) = ring(4) else { return };
    let ring = engine.ring_of_test();
    // a read of it waits until somebody writes
    let (from, mut to) = io::pipe().unwrap();
    let mut bytes = [0u8; 3];
    let mut broken = false;
    let panicked = std::thread::scope(|s| {
        let (begin, begun) = std::sync::mpsc::sync_channel::<()>(0);
        s.spawn(move || {
            begun.recv().unwrap();
            // long enough that a flight that does not wait would be gone
            let _ = begun.recv_timeout(std::time::Duration::from_millis(100));
            to.write_all(b"end").unwrap();
        });
        std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            let mut flight = Flight::new(ring, &mut broken);
            let entry = io_uring::opcode::Read::new(fixed::descriptor(from.as_fd()), bytes.as_mut_ptr(), 3);
            #[expect(unsafe_code, reason = "what is tested")]
            // SAFETY: the memory is looked at after the flight only.
            let pushed = unsafe { flight.push(&entry.build()) };
            assert!(pushed);
            flight.enter(0).unwrap();
            begin.send(()).unwrap();
            panic!("on purpose");
        }))
        .is_err()
    });
    assert!(panicked && !broken);
    assert_eq!(&bytes, b"end");
}

#[test]
fn a_ring_that_breaks_leaves_its_runs_to_plain_calls() {
    let Some(mut engine) = ring(4) else { return };
    let bytes = noise(5, 5000);
    let file = mem_file(&bytes);
    // its descriptor now is another file's: every enter fails
    let fd = std::os::fd::AsRawFd::as_raw_fd(engine.ring_of_test());
    let null = std::fs::File::open("/dev/null").unwrap();
    #[expect(unsafe_code, reason = "takes the ring's descriptor away")]
    // SAFETY: the descriptor stays open, as another file; nothing is under way in the ring.
    let moved = unsafe { libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&null), fd) };
    assert_eq!(moved, fd);
    let runs: Vec<_> = (0..20).map(|i| (i * 100, vec![100])).collect();
    for ((at, _), (got, result)) in runs.iter().zip(read(&mut engine, &file, &runs)) {
        assert_eq!(result.unwrap(), 100);
        assert!(got == bytes[*at as usize..][..100]);
    }
    assert_eq!((engine.name(), engine.tally().called), ("threads", 20));
}

#[test]
fn what_a_panic_left_in_a_ring_is_never_handed_over() {
    // once the next batch handed over an operation of the last one, whose memory was gone
    let Some(mut engine) = ring(4) else { return };
    let bytes = noise(6, 5000);
    let file = mem_file(&bytes);
    let fd = std::os::fd::AsRawFd::as_raw_fd(engine.ring_of_test());
    let null = std::fs::File::open("/dev/null").unwrap();
    #[expect(unsafe_code, reason = "takes the ring's descriptor away for a while")]
    // SAFETY: the descriptor stays open, as another file; the ring lives on behind its double.
    let own = unsafe {
        let own = libc::dup(fd);
        assert_eq!(libc::dup2(std::os::fd::AsRawFd::as_raw_fd(&null), fd), fd);
        own
    };
    let mut left = vec![0; 100];
    let panicked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        // the first lies in the queue when the second, which is empty, is told
        let mut batch = [ReadRun::new(&file, 0).with(&mut left), ReadRun::new(&file, 0)];
        engine.read_each(&mut batch, &mut |_, n| assert_eq!(n, 0, "on purpose"));
    }));
    assert!(panicked.is_err());
    #[expect(unsafe_code, reason = "gives the ring its descriptor back")]
    // SAFETY: as above.
    unsafe {
        assert_eq!(libc::dup2(own, fd), fd);
        libc::close(own);
    }
    let runs = [(1000, vec![100]), (2000, vec![100])];
    for ((at, _), (got, result)) in runs.iter().zip(read(&mut engine, &file, &runs)) {
        assert_eq!(result.unwrap(), 100);
        assert!(got == bytes[*at as usize..][..100]);
    }
    assert!(
        left.iter().all(|&b| b == 0),
        "an operation of the batch that panicked ran"
    );
    assert_eq!((engine.name(), engine.tally().called), ("threads", 2));
}

#[test]
fn many_small_transfers_of_many_threads_arrive() {
    let seed = std::env::var("KVWEIR_SEED").map_or(7, |s| s.parse().unwrap());
    eprintln!("KVWEIR_SEED={seed}");
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("f");
    let file = open(&path, OpenMode::ReadWrite, false);
    file.allocate(4 << 20).unwrap();
    let work = |thread: u64, mut engine: Box<dyn Engine>| {
        let mut s = Seed(seed ^ thread << 32);
        let part = 1 << 20;
        let base = thread * part as u64;
        let mut model = vec![0u8; part];
        for round in 0..30 {
            let n = 1 + s.below(300);
            let width = part / n;
            let cuts: Vec<_> = (0..n)
                .map(|i| (i * width + s.below(width / 2), 1 + s.below(width / 2)))
                .collect();
            if round % 2 == 0 {
                for &(at, len) in &cuts {
                    model[at..at + len].fill(s.next() as u8);
                }
                let runs = cuts
                    .iter()
                    .map(|&(at, len)| WriteRun::new(&*file, base + at as u64).with(&model[at..at + len]));
                let mut batch: Vec<_> = runs.collect();
                engine.write(&mut batch);
                assert!(batch.into_iter().all(|r| r.into_whole().is_ok()));
            } else {
                let runs: Vec<_> = cuts
                    .iter()
                    .map(|&(at, len)| (base + at as u64, vec![len / 2, len - len / 2]))
                    .collect();
                for ((got, _), &(at, len)) in read(&mut *engine, &*file, &runs).iter().zip(&cuts) {
                    assert!(got[..] == model[at..at + len]);
                }
            }
        }
    };
    for depth in [1, 8, 64] {
        let engines: Vec<_> = (0..4).filter_map(|_| engines(depth).pop()).collect();
        std::fs::write(&path, vec![0; 4 << 20]).unwrap();
        std::thread::scope(|scope| {
            for (thread, engine) in (0..).zip(engines) {
                let work = &work;
                scope.spawn(move || work(thread, engine));
            }
        });
    }
}

#[test]
fn settings_name_engines_by_words() {
    for kind in EngineKind::ALL {
        assert_eq!(kind.to_string().parse::<EngineKind>().unwrap(), kind);
    }
    let e = "aio".parse::<EngineKind>().unwrap_err();
    assert!(e.to_string().contains("threads, io_uring"), "{e}");
    let threads = Engines::choose(EngineKind::Threads);
    assert_eq!((threads.engine().name(), threads.refused()), ("threads", None));
    let asked = Engines::choose(EngineKind::IoUring);
    assert_eq!(asked.engine().name(), asked.kind().as_str());
    assert_eq!(asked.refused().is_some(), asked.kind() == EngineKind::Threads);
}

#[test]
fn more_pieces_than_one_call_takes_are_split() {
    const { assert!(MAX_PIECES == 1024) };
    let bytes = noise(6, 5000);
    let file = mem_file(&bytes);
    for mut engine in engines(2) {
        let got = read(&mut *engine, &file, &[(1, vec![1; 3333]), (0, vec![1; 1025])]);
        assert!(got[0].0 == bytes[1..3334] && got[1].0 == bytes[..1025]);
        if engine.name() == "io_uring" {
            assert_eq!(engine.tally().submitted, 4 + 2);
        }
    }
}
