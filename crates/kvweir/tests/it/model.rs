//! The whole file tier against a plain model, on a simulated disk: sequences of stores, loads, uses, restarts, deaths,
//! power losses and damage, made and shrunk by proptest; and the same without end for a time (`KVWEIR_SIM_SECONDS`),
//! each run told by its seed.
//!
//! The model knows what was stored and what was acknowledged as held. It does not know whom the policy evicts, so it
//! checks what must be so whoever goes: what is held was stored; an acknowledged store is held; what a request pins
//! stays as long as it does, and a store fails only beside pins; a restart changes nothing; a death loses nothing
//! that was acknowledged but what the last call evicted; what was damaged is a miss.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::{Path, PathBuf},
    sync::Arc,
    time::Duration,
};

use kvweir::{
    ErrorKind,
    evict::PolicyKind,
    fs::{FsBuilder, FsSettings, FsTier, Layout},
    io::{pool::PoolSize, sim::SimDisk},
    tier::{BlockOutcome, RequestId, Tier, conformance::Client},
};
use proptest::prelude::*;

use crate::support::*;

const TOP: &str = "/sim";
const ROOT: &str = "/sim/kv";
const KEYS: u64 = 40;

/// One step of a run.
#[derive(Debug, Clone)]
enum Op {
    Store {
        from: u64,
        n: u64,
    },
    Load {
        from: u64,
        n: u64,
    },
    Use {
        from: u64,
        n: u64,
    },
    /// A request finds blocks and loads none: they are pinned until it is released.
    Hold {
        req: u64,
        from: u64,
        n: u64,
    },
    Release {
        req: u64,
    },
    /// Folds the journal.
    Compact,
    /// Closes in order and opens again.
    Restart,
    /// Dies within the next store, after so many calls to the disk.
    Die {
        steps: u64,
        from: u64,
        n: u64,
    },
    /// Dies, and the power fails.
    Power {
        steps: u64,
        from: u64,
        seed: u64,
    },
    /// A file's byte flips, or it is cut or removed, behind the tier's back.
    Damage {
        which: u64,
        how: u8,
    },
}

fn op() -> impl Strategy<Value = Op> {
    let range = (0..KEYS, 1..6u64);
    prop_oneof![
        6 => range.clone().prop_map(|(from, n)| Op::Store { from, n }),
        4 => range.clone().prop_map(|(from, n)| Op::Load { from, n }),
        2 => range.clone().prop_map(|(from, n)| Op::Use { from, n }),
        2 => (0..3u64, 0..KEYS, 1..9u64).prop_map(|(req, from, n)| Op::Hold { req, from, n }),
        2 => (0..3u64).prop_map(|req| Op::Release { req }),
        1 => Just(Op::Compact),
        2 => Just(Op::Restart),
        2 => (0..120u64, 0..KEYS, 1..6u64).prop_map(|(steps, from, n)| Op::Die { steps, from, n }),
        1 => (0..120u64, 0..KEYS, any::<u64>()).prop_map(|(steps, from, seed)| Op::Power { steps, from, seed }),
        1 => (any::<u64>(), 0..3u8).prop_map(|(which, how)| Op::Damage { which, how }),
    ]
}

struct Run {
    disk: SimDisk,
    layout: Layout,
    boot: u8,
    policy: PolicyKind,
    bound: u64,
    /// Threads that store: a job's blocks are stored in their order by one, in any order by two.
    stores: usize,
    c: Option<Client<FsTier>>,
    /// What a lookup should find.
    held: BTreeSet<u64>,
    damaged: BTreeSet<u64>,
    /// What requests found and have not let go of.
    pins: BTreeMap<u64, BTreeSet<u64>>,
    /// Damaged, and perhaps written anew by a process that died.
    maybe: BTreeSet<u64>,
    /// An extent was damaged: what its table tells may be wrong at any start from now on, by whichever way it is read.
    shaken: bool,
    /// Ever stored: what was evicted from a slot that nothing was written to since may be found again.
    known: BTreeSet<u64>,
    /// The power failed: what lay in slots that nobody held may be torn since, and is found again all the same.
    lost_power: bool,
}

impl Run {
    fn start(layout: Layout, policy: PolicyKind, blocks: u64, stores: usize) -> Self {
        let mut run = Self {
            disk: SimDisk::new(Path::new(TOP), None),
            layout,
            boot: 1,
            policy,
            bound: room_for(blocks, layout),
            stores,
            c: None,
            held: BTreeSet::new(),
            damaged: BTreeSet::new(),
            pins: BTreeMap::new(),
            maybe: BTreeSet::new(),
            shaken: false,
            known: BTreeSet::new(),
            lost_power: false,
        };
        run.open();
        run
    }

    fn open(&mut self) {
        self.pins.clear();
        let settings = FsSettings {
            max_bytes: Some(self.bound),
            policy: self.policy,
            layout: self.layout,
            pool: PoolSize::new(1, self.stores),
            ..FsSettings::new(ROOT)
        };
        let tier = FsBuilder::new(settings, ns("model"), LEN)
            .disk(Arc::new(self.disk.clone()))
            .boot_id([self.boot; 16])
            .walk_patience(Duration::from_secs(60))
            .open()
            .unwrap();
        let mut c = Client::new(Box::new(tier), 16, LEN);
        if self.lost_power {
            // a file of ours that was cut to a block's length, and perhaps torn by another loss since, is a stock
            // tier's
            c.allow_unverified();
        }
        self.c = Some(c);
    }

    fn c(&mut self) -> &mut Client<FsTier> {
        self.c.as_mut().unwrap()
    }

    fn look(&mut self) -> BTreeSet<u64> {
        let c = self.c();
        (0..KEYS + 6).filter(|&n| c.holds(&keys(n..n + 1)[0])).collect()
    }

    /// After a start: what is held, `before` and perhaps `new`, nothing else; what was evicted may be back.
    fn found(&mut self, before: &BTreeSet<u64>, new: &BTreeSet<u64>) -> BTreeSet<u64> {
        self.known.extend(new);
        let after = self.look();
        let may = match self.layout {
            Layout::Pack => self.known.clone(),
            _ => before | new,
        };
        assert!(after.is_subset(&may), "held what was never stored");
        if self.lost_power && self.layout == Layout::Pack {
            self.maybe.extend(after.difference(before));
        }
        after
    }

    /// After a start: `after` is held, and where an extent was damaged any of it may be wrong.
    fn settle_damage(&mut self, after: BTreeSet<u64>) {
        if self.shaken {
            self.maybe.extend(&after);
        }
        self.held = after;
    }

    /// A block was found bad: it is a miss, pinned or not.
    fn gone(&mut self, k: u64) {
        self.held.remove(&k);
        self.pins.values_mut().for_each(|p| p.retain(|&held| held != k));
    }

    fn store(&mut self, from: u64, n: u64) {
        let before = self.look();
        let s = self.c().tier.stats();
        assert_eq!(before, self.held, "what is held changed by itself: {s:?}");
        let outcomes = self.c().store(R, &keys(from..from + n));
        self.c().tier.on_request_finished(R, &[]);
        let after = self.look();
        let pinned: BTreeSet<u64> = self.pins.values().flatten().copied().collect();
        // whoever looks finds a damaged one bad
        let bad: BTreeSet<u64> = self.damaged.union(&self.maybe).copied().collect();
        let good: BTreeSet<u64> = pinned.difference(&bad).copied().collect();
        assert!(good.is_subset(&after), "a pinned block was evicted (I3)");
        let no_room = |o: BlockOutcome| !pinned.is_empty() && o == BlockOutcome::Failed(ErrorKind::Full);
        let all = outcomes.iter().all(|o| o.is_ok());
        let ended: Vec<_> = (from..from + n).zip(outcomes).collect();
        for &(k, o) in &ended {
            assert!(o.is_ok() || no_room(o), "key {k}: {o:?}");
            if o == BlockOutcome::Stored {
                assert!(
                    !good.contains(&k),
                    "pinned block {k} went and was stored again (I3)"
                );
                // found bad and forgotten: what was pinned is not there any more
                self.gone(k);
                self.damaged.remove(&k);
                self.maybe.remove(&k);
            }
        }
        let new: BTreeSet<u64> = (from..from + n).collect();
        assert!(after.is_subset(&(&before | &new)), "held what was never stored");
        self.known.extend(&new);
        let told = format!("{ended:?}, before {before:?}, after {after:?}, pinned {pinned:?}");
        let is_there = |k: u64| after.contains(&k) || bad.contains(&k);
        if all && self.stores == 1 {
            assert!(is_there(from + n - 1), "the last block stored is there: {told}");
        } else if all {
            // room for one that is stored may be had from one that was found before
            let mut stored = ended.iter().filter(|e| e.1 == BlockOutcome::Stored).peekable();
            match stored.peek() {
                Some(_) => assert!(
                    stored.any(|e| is_there(e.0)),
                    "one of those stored was the last: {told}"
                ),
                None => assert!(ended.iter().all(|e| is_there(e.0)), "nothing was stored: {told}"),
            }
        }
        self.held = after;
    }

    fn load(&mut self, from: u64, n: u64) {
        let wanted: Vec<u64> = (from..from + n).filter(|k| self.held.contains(k)).collect();
        for k in wanted {
            let found = self.c().lookup(&keys(k..k + 1)[0], R);
            assert!(found, "key {k} is held");
            let got = self.c().load(R, &keys(k..k + 1));
            if self.damaged.remove(&k) {
                assert!(!got[0].is_ok(), "damaged bytes of key {k} were served");
                self.gone(k);
            } else if self.maybe.remove(&k) || self.shaken {
                if !got[0].is_ok() {
                    self.gone(k);
                }
            } else {
                assert!(got[0].is_ok(), "key {k}: {got:?}");
            }
        }
        self.c().tier.on_request_finished(R, &[]);
    }

    /// A loss of power after so many steps of a store.
    fn power(&mut self, steps: u64, from: u64, seed: u64) {
        self.die(steps, from, 1);
        let mut rng = Rng(seed);
        self.disk = self.disk.next_life();
        self.disk.lose_power(&mut |below| rng.below(below));
        self.boot = self.boot.wrapping_add(1);
        self.open();
        self.c().allow_unverified();
        let before = self.held.clone();
        let after = self.found(&before, &BTreeSet::from([from]));
        // what is held may be torn: asked for once, it is right or a miss
        for &k in &after {
            self.c().lookup(&keys(k..k + 1)[0], R);
            let _ = self.c().load(R, &keys(k..k + 1));
        }
        self.c().tier.on_request_finished(R, &[]);
        self.damaged.clear();
        self.maybe.clear();
        self.lost_power = true;
        self.held = self.look();
    }

    fn step(&mut self, op: &Op) {
        match *op {
            Op::Store { from, n } => self.store(from, n),
            Op::Load { from, n } => self.load(from, n),
            Op::Hold { req, from, n } => {
                for k in from..from + n {
                    let is_held = self.c().lookup(&keys(k..k + 1)[0], RequestId(100 + req));
                    assert_eq!(is_held, self.held.contains(&k), "key {k}");
                    if is_held {
                        self.pins.entry(req).or_default().insert(k);
                    }
                }
            }
            Op::Release { req } => {
                self.pins.remove(&req);
                self.c().tier.on_request_finished(RequestId(100 + req), &[]);
            }
            Op::Use { from, n } => self.c().tier.on_request_finished(R, &keys(from..from + n)),
            Op::Compact => {
                self.c().tier.compact();
                let after = self.look();
                let s = self.c().tier.stats();
                assert_eq!(after, self.held, "compaction changed what is held: {s:?}");
            }
            Op::Restart => {
                self.c().tier.shutdown();
                self.c = None;
                self.disk = self.disk.next_life();
                self.open();
                let before = self.held.clone();
                let after = self.found(&before, &BTreeSet::new());
                let lost: Vec<_> = before.difference(&after).collect();
                assert!(
                    self.shaken || lost.is_empty(),
                    "a restart lost {lost:?} of {before:?}: {:?}",
                    self.c().tier.stats()
                );
                self.settle_damage(after);
            }
            Op::Die { steps, from, n } => {
                self.die(steps, from, n);
                self.disk = self.disk.next_life();
                self.open();
                let before = self.held.clone();
                let after = self.found(&before, &(from..from + n).collect());
                // each block that was stored evicts a few at most: one for itself, some for the journal's room
                let lost = before.difference(&after).count() as u64;
                // slots are evicted 32 at a time, and found again where nothing was written over them
                assert!(
                    self.shaken || lost <= 4 * n + 4,
                    "{lost} acknowledged blocks are gone"
                );
                self.settle_damage(after);
            }
            Op::Power { steps, from, seed } => self.power(steps, from, seed),
            Op::Damage { which, how } => self.damage(which, how),
        }
    }

    fn die(&mut self, steps: u64, from: u64, n: u64) {
        for k in from..from + n {
            if self.damaged.remove(&k) {
                self.maybe.insert(k);
            }
        }
        self.disk.die_at(self.disk.steps() + steps);
        self.c().submit_store(R, &keys(from..from + n));
        self.c().wait_all();
        self.c = None;
    }

    fn damage(&mut self, which: u64, how: u8) {
        let files: Vec<PathBuf> = self
            .disk
            .files(Path::new(ROOT))
            .into_iter()
            .filter(|p| p.extension().is_some_and(|e| e == "bin"))
            .collect();
        if self.layout == Layout::Pack {
            return self.damage_extent(&files, which, how);
        }
        let Some(file) = files.get(which as usize % files.len().max(1)) else {
            return;
        };
        let name = file.file_stem().unwrap().to_string_lossy().into_owned();
        let Some(k) = (0..KEYS + 6).find(|&n| keys(n..n + 1)[0].to_string().starts_with(&name)) else {
            return;
        };
        self.disk.tamper(file, |mut bytes| match how {
            0 => {
                let at = which as usize % LEN.min(bytes.len()).max(1);
                if let Some(b) = bytes.get_mut(at) {
                    *b ^= 1 << (which % 8);
                }
                Some(bytes)
            }
            1 => {
                bytes.truncate(which as usize % LEN);
                Some(bytes)
            }
            _ => None,
        });
        // the same bit may have flipped back
        if how == 0 && self.damaged.contains(&k) {
            self.disk.tamper(file, |_| None);
        }
        self.damaged.insert(k);
    }

    /// What lies where in an extent is no business of a test: any block may be hit, and is right or a miss.
    fn damage_extent(&mut self, extents: &[PathBuf], which: u64, how: u8) {
        let Some(file) = extents.get(which as usize % extents.len().max(1)) else {
            return;
        };
        let mut rng = Rng(which);
        self.disk.tamper(file, |mut bytes| {
            match how {
                // a bit of anything
                0 => {
                    let at = rng.below(bytes.len() as u64) as usize;
                    bytes[at] ^= 1 << rng.below(8);
                }
                // a page of zeros
                1 => {
                    let at = rng.below(bytes.len() as u64) as usize / 4096 * 4096;
                    let end = bytes.len().min(at + 4096);
                    bytes[at..end].fill(0);
                }
                // two records change places
                _ if bytes.starts_with(b"KVWEIRX1") => {
                    let records = &mut bytes[4096..];
                    let n = records.len() as u64 / 128;
                    let (a, b) = (rng.below(n) as usize * 128, rng.below(n) as usize * 128);
                    for i in 0..128 {
                        records.swap(a + i, b + i);
                    }
                }
                _ => {}
            }
            Some(bytes)
        });
        self.shaken = true;
        self.maybe.extend(&self.known);
    }

    /// The account is what lies there, unless files were changed behind its back.
    fn end(&mut self, tampered: bool) {
        (0..3).for_each(|req| self.c().tier.on_request_finished(RequestId(100 + req), &[]));
        assert!(self.disk.bytes().0 <= self.bound + 4096, "above the bound");
        let s = self.c().tier.stats();
        assert_eq!(s.pinned_blocks, 0);
        let mut last = (0, 0);
        for _ in 0..60 {
            let s = self.c().tier.stats();
            last = (s.resident_bytes, counted_on(&self.disk, Path::new(ROOT)));
            if tampered || last.0 == last.1 && s.reserved_bytes == 0 {
                return;
            }
            pause(10);
        }
        let files = self.disk.files(Path::new(ROOT));
        assert_eq!(last.0, last.1, "account and du: {files:?}");
    }
}

fn run(ops: &[Op], layout: Layout, policy: PolicyKind, blocks: u64) {
    let mut r = Run::start(layout, policy, blocks, 1 + ops.len() % 2);
    for op in ops {
        r.step(op);
    }
    r.end(ops.iter().any(|o| matches!(o, Op::Damage { .. })));
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, max_shrink_iters: 200, ..ProptestConfig::default() })]

    #[test]
    fn the_tier_does_what_the_model_says(
        ops in prop::collection::vec(op(), 1..40),
        layout in prop::sample::select(vec![Layout::Fs, Layout::Pack]),
        policy in prop::sample::select(PolicyKind::ALL.to_vec()),
        blocks in 8..24u64,
    ) {
        run(&ops, layout, policy, blocks);
    }
}

fn long_runs_agree_with_the_model(layout: Layout) {
    let number = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let clock = kvweir::clock::SystemClock::shared();
    let began = clock.now();
    let seconds = number("KVWEIR_SIM_SECONDS").unwrap_or(4);
    let first = number("KVWEIR_SEED").unwrap_or(1);
    let (mut seed, mut steps) = (first, 0u64);
    while clock.now().since(began) < Duration::from_secs(seconds) {
        let config = ProptestConfig {
            failure_persistence: None,
            ..ProptestConfig::default()
        };
        let mut bytes = [0; 32];
        bytes[..8].copy_from_slice(&seed.to_le_bytes());
        let rng =
            proptest::test_runner::TestRng::from_seed(proptest::test_runner::RngAlgorithm::ChaCha, &bytes);
        let mut runner = proptest::test_runner::TestRunner::new_with_rng(config, rng);
        let tree = prop::collection::vec(op(), 200..400)
            .new_tree(&mut runner)
            .unwrap();
        let mut ops = proptest::strategy::ValueTree::current(&tree);
        // every second run is one in which nothing is excused
        if seed % 2 == 0 {
            ops.retain(|o| !matches!(o, Op::Damage { .. }));
        }
        let policy = PolicyKind::ALL[seed as usize % PolicyKind::ALL.len()];
        let told = std::panic::catch_unwind(|| run(&ops, layout, policy, 8 + seed % 16));
        assert!(told.is_ok(), "{layout}: KVWEIR_SEED={seed} fails");
        steps += ops.len() as u64;
        seed += 1;
        if number("KVWEIR_SEED").is_some() {
            break;
        }
    }
    println!("{layout}: {steps} steps in {} runs, {seconds} s", seed - first);
}

in_both_layouts! {
    long_runs_agree_with_the_model,
}
