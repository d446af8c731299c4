//! Every I/O step of `convert`, both ways, and of `import` meets every fault, from the beginning and after a run that
//! was killed half-way. Then the command is run again on a healthy disk, and no block may be lost: each is served
//! with the bytes that were stored, and the bound held at every step. Power losses at any moment too.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kvweir::{
    admin::{Admin, ConvertOptions, ImportOptions},
    fs::{FsBuilder, FsSettings, FsTier, Layout},
    io::{
        Disk,
        disk::{OpenMode, write_full},
        pool::PoolSize,
        sim::{SimDisk, SimFault},
    },
    tier::{
        Tier,
        conformance::{Client, content, key, long_key},
    },
};

use crate::support::*;

const N: u64 = 9;

fn bound() -> u64 {
    room_for(4 * N, Layout::Pack)
}

/// What is done to a root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Command {
    Convert(Layout),
    ImportInPlace,
    ImportInto,
}

impl Command {
    /// How the blocks lie before it.
    fn before(self) -> Option<Layout> {
        match self {
            Self::Convert(Layout::Pack) => Some(Layout::Fs),
            Self::Convert(_) => Some(Layout::Pack),
            _ => None,
        }
    }

    fn after(self) -> Layout {
        match self {
            Self::Convert(to) => to,
            _ => Layout::Fs,
        }
    }
}

/// A directory that is there, and empty: what a test sees below it lies on the simulated disk.
struct Place(tempfile::TempDir);

impl Place {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        for name in ["kv", "source"] {
            std::fs::create_dir(dir.path().join(name)).unwrap();
        }
        Self(dir)
    }

    fn root(&self) -> PathBuf {
        self.0.path().join("kv")
    }

    fn source(&self) -> PathBuf {
        self.0.path().join("source")
    }

    fn open(&self, disk: &SimDisk, layout: Layout) -> Client<FsTier> {
        let settings = FsSettings {
            max_bytes: Some(bound()),
            layout,
            pool: PoolSize::new(1, 1),
            ..FsSettings::new(self.root())
        };
        let tier = FsBuilder::new(settings, ns("model"), LEN)
            .disk(Arc::new(disk.clone()))
            .boot_id([1; 16])
            .walk_patience(Duration::from_secs(60))
            .open();
        Client::new(Box::new(tier.unwrap()), 32, LEN)
    }

    fn admin(&self, disk: &SimDisk, at: &Path) -> Admin {
        Admin::new(at).unwrap().disk(Arc::new(disk.clone())).threads(1)
    }

    /// A disk with all blocks, where the command finds them.
    fn begin(&self, command: Command) -> SimDisk {
        let disk = SimDisk::new(self.0.path(), None);
        match command.before() {
            Some(layout) => {
                let mut c = self.open(&disk, layout);
                for part in keys(0..N).chunks(3) {
                    all_ok(&c.store(R, part));
                }
                all_ok(&c.store(R, &[long_key(1, 30)]));
                c.tier.on_request_finished(R, &[]);
                c.tier.shutdown();
            }
            None => {
                let at = match command {
                    Command::ImportInto => self.source(),
                    _ => self.root(),
                };
                disk.create_dir(&self.root()).unwrap();
                stock(&disk, &at);
            }
        }
        disk.sync_all(self.0.path()).unwrap();
        disk.next_life()
    }

    /// Runs the command; what it says that is not done.
    fn run(&self, disk: &SimDisk, command: Command) -> kvweir::Result<Vec<String>> {
        let admin = self.admin(disk, &self.root());
        let claim = admin.claim()?;
        let quiet = &|_| {};
        match command {
            Command::Convert(to) => {
                let options = ConvertOptions {
                    to,
                    namespace: None,
                    max_bytes: Some(bound()),
                };
                let r = admin.convert(&options, quiet, Some(&claim))?;
                Ok(not_whole(r.is_whole(), &r))
            }
            Command::ImportInPlace => {
                let r = admin.import(None, &ImportOptions::default(), quiet, Some(&claim))?;
                Ok(not_whole(r.is_whole(), &r))
            }
            Command::ImportInto => {
                let from = self.admin(disk, &self.source());
                let r = admin.import(Some(&from), &ImportOptions::default(), quiet, Some(&claim))?;
                Ok(not_whole(r.is_whole(), &r))
            }
        }
    }

    /// Runs the command again, on a healthy disk, and looks at what is there then.
    fn finish(&self, disk: &SimDisk, command: Command, what: &str) -> SimDisk {
        let next = disk.next_life();
        let left = self.run(&next, command);
        assert!(left.as_ref().is_ok_and(Vec::is_empty), "{what}: again, {left:?}");
        if let Command::Convert(_) = command {
            let (peak, bound) = (next.bytes().0, bound() + 4096);
            assert!(peak <= bound, "{what}: the bound, {peak} of {bound}");
        }
        next
    }

    /// Every block is served with the bytes that were stored.
    fn assert_served(&self, disk: &SimDisk, command: Command, what: &str) {
        let next = disk.next_life();
        let mut c = self.open(&next, command.after());
        let mut all = keys(0..N);
        if command.before().is_some() {
            all.push(long_key(1, 30));
        }
        for k in &all {
            assert!(c.holds(k), "{what}: {k} is lost");
            let o = c.load(R, std::slice::from_ref(k));
            assert!(o.iter().all(|o| o.is_ok()), "{what}: {k} {o:?}");
        }
        c.tier.on_request_finished(R, &all);
        c.tier.shutdown();
    }
}

fn not_whole(whole: bool, report: &impl std::fmt::Debug) -> Vec<String> {
    (!whole).then(|| format!("{report:?}")).into_iter().collect()
}

/// Blocks as a stock tier writes them, and their identity.
fn stock(disk: &SimDisk, root: &Path) {
    let ns = ns("model");
    let make = |path: &Path, bytes: &[u8]| {
        let mut dirs: Vec<_> = path.ancestors().skip(1).take_while(|d| *d != root).collect();
        dirs.push(root);
        for d in dirs.into_iter().rev() {
            let _ = disk.create_dir(d);
        }
        let file = disk.open(path, OpenMode::CreateNew, false).unwrap();
        write_full(&*file, bytes, &[]).unwrap();
    };
    for n in 0..N {
        make(&file_of(&root.join(ns.dir()), &key(n)), &content(&key(n), LEN));
    }
    make(
        &root.join(ns.config_dir()).join("config.json"),
        ns.config().as_bytes(),
    );
}

/// The faults that one step meets.
fn faults() -> Vec<SimFault> {
    let mut all = vec![SimFault::Die, SimFault::Short, SimFault::Flip];
    // EIO ENOSPC EMFILE ENOMEM EACCES EROFS ESTALE ETIMEDOUT EDQUOT ENODEV EBADMSG EINTR
    all.extend([5, 28, 24, 12, 13, 30, 116, 110, 122, 19, 74, 4].map(SimFault::Once));
    all.extend([5, 24, 28, 30].map(SimFault::From));
    all
}

fn every_step_meets_every_fault(command: Command) {
    let place = Place::new();
    let clean = place.begin(command);
    assert!(place.run(&clean, command).unwrap().is_empty());
    let steps = clean.steps();
    // a fast look at all of it: with KVWEIR_MATRIX=all no step is left out
    let stride = match std::env::var("KVWEIR_MATRIX").as_deref() {
        Ok("all") => 1,
        _ => 29,
    };
    let mut tried: BTreeMap<String, u64> = BTreeMap::new();
    for (i, fault) in faults().into_iter().enumerate() {
        for begun in [false, true] {
            for n in ((i as u64 * 7) % stride..steps).step_by(stride as usize) {
                let mut disk = place.begin(command);
                if begun {
                    // as far as another run came that was killed
                    disk.die_at(steps / 4 + n * 31 % (steps / 2));
                    let _ = place.run(&disk, command);
                    disk = disk.next_life();
                }
                disk.fail_at(n, fault);
                let what = format!("{command:?}, {fault:?} at step {n}, begun {begun}");
                let _ = place.run(&disk, command);
                if let Command::Convert(_) = command {
                    assert!(disk.bytes().0 <= bound() + 4096, "{what}: the bound");
                }
                let disk = place.finish(&disk, command, &what);
                place.assert_served(&disk, command, &what);
                *tried.entry(format!("{fault:?}")).or_default() += 1;
            }
        }
    }
    let all: u64 = tried.values().sum();
    println!("{command:?}: {steps} steps, {all} runs, all sound: {tried:?}");
    assert!(steps > 50 && all > 50);
}

#[test]
fn a_conversion_into_extents_loses_nothing_whatever_step_fails() {
    every_step_meets_every_fault(Command::Convert(Layout::Pack));
}

#[test]
fn a_conversion_into_files_loses_nothing_whatever_step_fails() {
    every_step_meets_every_fault(Command::Convert(Layout::Fs));
}

#[test]
fn an_import_in_place_loses_nothing_whatever_step_fails() {
    every_step_meets_every_fault(Command::ImportInPlace);
}

#[test]
fn an_import_into_another_root_loses_nothing_whatever_step_fails() {
    every_step_meets_every_fault(Command::ImportInto);
}

#[test]
fn power_may_go_at_any_moment_of_a_command_and_after_the_one_that_goes_on() {
    let seeds = std::env::var("KVWEIR_POWER")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(80);
    let place = Place::new();
    for command in [
        Command::Convert(Layout::Pack),
        Command::Convert(Layout::Fs),
        Command::ImportInPlace,
        Command::ImportInto,
    ] {
        let clean = place.begin(command);
        assert!(place.run(&clean, command).unwrap().is_empty());
        let steps = clean.steps();
        // the last: slots were given back, and power went before their records had: those blocks had their files
        for seed in (0..seeds).chain([4444]) {
            let mut rng = Rng(seed);
            let what = format!("{command:?}, power loss, seed {seed}");
            let disk = place.begin(command);
            disk.die_at(rng.below(steps));
            let _ = place.run(&disk, command);
            // the process died; every second time the machine with it
            if seed % 2 == 0 {
                disk.lose_power(&mut |below| rng.below(below));
            }
            let disk = place.finish(&disk, command, &what);
            disk.lose_power(&mut |below| rng.below(below));
            place.assert_served(&disk, command, &what);
        }
    }
}
