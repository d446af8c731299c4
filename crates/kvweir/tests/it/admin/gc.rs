//! Leftovers go, what somebody may need stays; above all, shared memory that a process uses.

use std::{
    collections::BTreeMap,
    fs,
    io::{BufRead, BufReader, Read},
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    time::Duration,
};

use kvweir::{
    admin::{Admin, Collected, GcOptions, RegionState},
    fs::FsBuilder,
    tier::conformance::key,
};

use super::{BOUND, admin, age, made};
use crate::support::{LEN, Root, client, file_of, files, keys, ns, store};

fn no_shm() -> GcOptions {
    GcOptions {
        shm: None,
        ..GcOptions::default()
    }
}

fn gc(admin: &Admin, options: &GcOptions) -> Collected {
    let before = files(admin.root());
    let plan = admin.gc(options, None).unwrap();
    assert!(!plan.done);
    assert_eq!(before, files(admin.root()), "nothing was removed");
    let claim = admin.claim().unwrap();
    let done = admin.gc(options, Some(&claim)).unwrap();
    assert_eq!(plan.temporaries, done.temporaries);
    assert_eq!(plan.regions, done.regions);
    done
}

#[test]
fn temporaries_of_ours_that_nobody_writes_go_and_all_others_stay() {
    let (root, dir) = made(10);
    let temp = |n: u64, id: &str| file_of(&dir, &key(n)).with_extension(format!("bin.{id}.kvweir"));
    let old: Vec<PathBuf> = (0..5).map(|n| temp(n, "00000000000000aa")).collect();
    let young = temp(5, "00000000000000bb");
    let held = temp(6, "00000000000000cc");
    let stock = file_of(&dir, &key(7)).with_extension("bin_123.tmp");
    let odd = temp(8, "x");
    for p in old.iter().chain([&young, &held, &stock, &odd]) {
        fs::write(p, b"half").unwrap();
    }
    for p in old.iter().chain([&held, &stock, &odd]) {
        age(p, 3600);
    }
    let empty = dir.join("fff/ff_g3");
    fs::create_dir_all(&empty).unwrap();
    let lock = fs::File::open(&held).unwrap();
    lock.lock().unwrap();
    let r = gc(&admin(&root), &no_shm());
    assert_eq!(
        (r.temporaries.files, r.temporaries_kept, r.failed.len()),
        (5, 2, 0),
        "{r:?}"
    );
    assert!(old.iter().all(|p| !p.exists()));
    assert!([&young, &held, &stock, &odd].iter().all(|p| p.exists()));
    assert!(!empty.exists() && !empty.parent().unwrap().exists());
    assert_eq!(r.empty_directories, 2);
    drop(lock);
    let mut c = root.open(BOUND);
    assert!((0..10).all(|n| c.holds(&key(n))));
}

#[test]
fn a_namespace_goes_when_nothing_was_written_for_so_long_and_its_foreign_files_stay() {
    let (root, dir) = made(10);
    for model in ["old", "new", "odd"] {
        let mut c = client(FsBuilder::new(root.settings(BOUND), ns(model), LEN));
        store(&mut c, &keys(0..20));
    }
    let of = |model: &str| root.path().join(ns(model).dir());
    for n in 0..20 {
        age(&file_of(&of("old"), &key(n)), 40 * 86_400);
        age(&file_of(&of("odd"), &key(n)), 40 * 86_400);
        // one block keeps a namespace
        if n > 0 {
            age(&file_of(&of("new"), &key(n)), 40 * 86_400);
        }
    }
    fs::write(of("odd").join("notes.txt"), b"mine").unwrap();
    let month = GcOptions {
        older_than: Some(Duration::from_secs(30 * 86_400)),
        ..no_shm()
    };
    let r = gc(&admin(&root), &month);
    let mut gone: Vec<_> = r
        .namespaces
        .iter()
        .map(|n| (n.directory.as_str(), n.blocks.files))
        .collect();
    gone.sort_unstable();
    let (old, odd) = (ns("old"), ns("odd"));
    assert_eq!(gone, [(odd.dir(), 20), (old.dir(), 20)]);
    assert!(!of("old").exists() && !root.path().join(old.config_dir()).exists());
    assert_eq!(files(&of("odd")), [of("odd").join("notes.txt")]);
    assert!(root.path().join(odd.config_dir()).join("config.json").exists());
    let mut c = client(FsBuilder::new(root.settings(BOUND), ns("new"), LEN));
    assert!((0..20).all(|n| c.holds(&key(n))));
    crate::support::assert_settled(&mut c, &root);
    assert!(dir.exists());
}

#[test]
fn an_identity_that_another_rank_shares_stays() {
    let (root, dir) = made(3);
    let name = dir.file_name().unwrap().to_string_lossy().into_owned();
    let rank1 = root.path().join(name.replace("_r0", "_r1"));
    fs::create_dir_all(&rank1).unwrap();
    for n in 0..3 {
        age(&file_of(&dir, &key(n)), 7200);
    }
    let hour = GcOptions {
        older_than: Some(Duration::from_secs(3600)),
        ..no_shm()
    };
    let r = gc(&admin(&root), &hour);
    assert_eq!((r.namespaces.len(), r.namespaces[0].kept.as_deref()), (1, None));
    assert!(!dir.exists() && rank1.exists());
    assert!(
        root.path()
            .join(ns("model").config_dir())
            .join("config.json")
            .exists()
    );
}

/// A process that does `code` with the file `F` and then waits for its stdin to close.
fn user(code: &str, file: &Path) -> Option<Child> {
    let code = format!(
        "import mmap, os, sys\nF = sys.argv[1]\n{code}\nprint('ready', flush=True)\nsys.stdin.read()\n"
    );
    let spawned = Command::new("python3")
        .args(["-c", &code])
        .arg(file)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = spawned.ok()?;
    let mut line = String::new();
    BufReader::new(child.stdout.as_mut().unwrap().by_ref())
        .read_line(&mut line)
        .unwrap();
    (line == "ready\n").then_some(child)
}

/// What gc makes of the regions in `shm`, by the name of the first file.
fn regions(root: &Root, shm: &Path, proc: &Path, grace: u64) -> BTreeMap<String, RegionState> {
    let options = GcOptions {
        shm: Some(shm.to_owned()),
        proc: proc.to_owned(),
        grace: Duration::from_secs(grace),
        ..GcOptions::default()
    };
    let name = |p: &String| Path::new(p).file_name().unwrap().to_string_lossy().into_owned();
    let r = gc(&admin(root), &options);
    r.regions
        .into_iter()
        .map(|r| (name(&r.paths[0]), r.state))
        .collect()
}

/// A machine that runs these processes and an idle first one. The real `/proc` of a test's machine may hide some, and
/// then nothing is ever removed.
fn machine(pids: &[u32]) -> tempfile::TempDir {
    let proc = tempfile::tempdir().unwrap();
    let link = |to: &str, at: &str| std::os::unix::fs::symlink(to, proc.path().join(at)).unwrap();
    fs::create_dir_all(proc.path().join("self/ns")).unwrap();
    link("pid:[4026531836]", "self/ns/pid");
    fs::create_dir_all(proc.path().join("1/fd")).unwrap();
    fs::write(proc.path().join("1/maps"), b"").unwrap();
    for pid in pids {
        link(&format!("/proc/{pid}"), &pid.to_string());
    }
    proc
}

/// Shared memory of engines that run and of one that is dead, and files of others.
struct Shm {
    dir: tempfile::TempDir,
    mapped: PathBuf,
    open: PathBuf,
    pieces: [PathBuf; 3],
    dead: [PathBuf; 2],
    others: [PathBuf; 4],
}

impl Shm {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str| {
            let path = dir.path().join(name);
            fs::write(&path, vec![1; 1 << 16]).unwrap();
            path
        };
        Self {
            mapped: file("vllm_offload_mapped.mmap"),
            open: file("vllm_offload_open.mmap"),
            pieces: [
                file("vllm_offload_pieces.mmap"),
                file("vllm_offload_pieces.mmap.1"),
                file("vllm_offload_pieces.mmap.10"),
            ],
            dead: [file("vllm_offload_dead.mmap"), file("vllm_offload_dead.mmap.1")],
            others: [
                file("psm_1234"),
                file("vllm_offload_x.mmap.bak"),
                file("vllm_offload_.mmap"),
                file("my_vllm_offload_x.mmap"),
            ],
            dir,
        }
    }

    fn path(&self) -> &Path {
        self.dir.path()
    }

    fn of_engines(&self) -> impl Iterator<Item = &PathBuf> {
        [&self.mapped, &self.open].into_iter().chain(&self.pieces)
    }

    /// Processes that use what runs: one maps a file, one has one open, one maps a piece. `None` without Python.
    fn users(&self) -> Option<[Child; 3]> {
        let map = "f = os.open(F, os.O_RDWR)\nm = mmap.mmap(f, 0)\nos.closerange(3, 64)";
        let children = [
            user(map, &self.mapped),
            user("f = os.open(F, os.O_RDONLY)", &self.open),
            user(map, &self.pieces[2]),
        ];
        let [Some(maps), Some(opens), Some(maps_piece)] = children else {
            return None;
        };
        let fds = fs::read_dir(format!("/proc/{}/fd", maps.id())).unwrap();
        let has_open = |p: fs::DirEntry| fs::read_link(p.path()).is_ok_and(|p| p == self.mapped);
        assert!(!fds.flatten().any(has_open), "mapped and not open");
        Some([maps, opens, maps_piece])
    }
}

#[test]
fn shared_memory_goes_only_if_no_process_maps_or_has_open_any_piece_of_it() {
    let (root, _) = made(1);
    let shm = Shm::new();
    let Some(mut users) = shm.users() else {
        println!("skipped: there is no python3 to map a file");
        return;
    };
    let [maps, opens, maps_piece] = [0, 1, 2].map(|n| users[n].id());
    let proc = machine(&[std::process::id(), maps, opens, maps_piece]);
    let used = |pid: u32| RegionState::InUse(vec![pid]);
    let expected = BTreeMap::from([
        ("vllm_offload_mapped.mmap".to_owned(), used(maps)),
        ("vllm_offload_open.mmap".to_owned(), used(opens)),
        ("vllm_offload_pieces.mmap".to_owned(), used(maps_piece)),
    ]);
    // on the real machine nothing that is used goes, whether or not all of it can be seen
    let real = regions(&root, shm.path(), Path::new("/proc"), 0);
    for (name, state) in &expected {
        assert!(
            real[name] == *state || matches!(real[name], RegionState::Left(_)),
            "{real:?}"
        );
    }
    for p in &shm.dead {
        fs::write(p, b"again, if it went").unwrap();
    }
    let mut found = regions(&root, shm.path(), proc.path(), 0);
    assert_eq!(found.remove("vllm_offload_dead.mmap"), Some(RegionState::Gone));
    assert_eq!(found, expected);
    assert!(shm.dead.iter().all(|p| !p.exists()));
    assert!(shm.of_engines().chain(&shm.others).all(|p| p.exists()));
    for child in &mut users {
        drop(child.stdin.take());
        child.wait().unwrap();
    }
    // nobody uses them now, but they are young
    let proc = machine(&[std::process::id()]);
    let found = regions(&root, shm.path(), proc.path(), 3600);
    assert!(
        found.values().all(|r| matches!(r, RegionState::Left(_))),
        "{found:?}"
    );
    assert!(shm.of_engines().all(|p| p.exists()));
    let found = regions(&root, shm.path(), proc.path(), 0);
    assert!(
        found.len() == 3 && found.values().all(|r| *r == RegionState::Gone),
        "{found:?}"
    );
    assert!(shm.of_engines().all(|p| !p.exists()));
    assert!(
        shm.others.iter().all(|p| p.exists()),
        "only the exact names are regions"
    );
}

#[test]
fn shared_memory_stays_where_processes_cannot_be_seen() {
    let (root, _) = made(1);
    let (shm, proc) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let region = shm.path().join("vllm_offload_x.mmap");
    fs::write(&region, b"x").unwrap();
    let see = |proc: &Path| {
        let options = GcOptions {
            shm: Some(shm.path().to_owned()),
            proc: proc.to_owned(),
            grace: Duration::ZERO,
            ..GcOptions::default()
        };
        let r = gc(&admin(&root), &options);
        assert!(region.exists());
        match &r.regions[0].state {
            RegionState::Left(why) => why.clone(),
            other => panic!("{other:?}"),
        }
    };
    see(&proc.path().join("none"));
    fs::create_dir_all(proc.path().join("self/ns")).unwrap();
    let link = proc.path().join("self/ns/pid");
    std::os::unix::fs::symlink("pid:[4026532000]", &link).unwrap();
    let why = see(proc.path());
    assert!(
        why.contains("pid:[4026532000]") && why.contains("--pid=host"),
        "{why}"
    );
    fs::remove_file(&link).unwrap();
    std::os::unix::fs::symlink("pid:[4026531836]", &link).unwrap();
    // processes of others are hidden altogether
    fs::create_dir_all(proc.path().join("77/fd")).unwrap();
    fs::write(proc.path().join("77/maps"), b"").unwrap();
    assert!(see(proc.path()).contains("pid 1 cannot be seen"));
    // or can be seen and not looked into
    fs::create_dir_all(proc.path().join("1/maps")).unwrap();
    fs::write(proc.path().join("1/comm"), "init\n").unwrap();
    let why = see(proc.path());
    assert!(
        why.contains("pid 1 (init)") && why.contains("as root on the host"),
        "{why}"
    );
}

#[test]
fn shared_memory_that_is_not_there_is_refused_before_anything_goes() {
    let (root, dir) = made(1);
    let temp = file_of(&dir, &key(0)).with_extension("bin.00000000000000aa.kvweir");
    fs::write(&temp, b"x").unwrap();
    for shm in [root.path().join("none"), temp.clone()] {
        let options = GcOptions {
            shm: Some(shm.clone()),
            grace: Duration::ZERO,
            ..GcOptions::default()
        };
        let admin = admin(&root);
        let claim = admin.claim().unwrap();
        let e = admin.gc(&options, Some(&claim)).unwrap_err();
        assert_eq!(e.kind(), kvweir::ErrorKind::Invalid);
        assert!(e.to_string().contains(&shm.display().to_string()), "{e}");
        assert!(temp.exists());
    }
}
