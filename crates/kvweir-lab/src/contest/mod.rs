//! The tier beside vLLM's own file tier, LMCache's local disk and the raw device: the same blocks out of the same
//! memory, on the same disk, in interleaved rounds of one run. Every round each side stores fresh blocks and loads them
//! back, and every byte that comes back is compared; who begins changes from round to round.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the cases and their rounds |
//! | `age.rs` | tiers that fill, are full, were written over; loads beside stores |
//! | `side.rs` | what a contender does |
//! | `ours.rs`, `device.rs`, `peer.rs` | the contenders: our tier, the device alone, a tier of Python |
//! | `peer.py` | those tiers of Python, each in a process of its own |
//! | `targets.rs` | the ratios that are wanted |
//! | `tell.rs` | tables, ratios against targets, JSON |

mod age;
mod device;
mod ours;
mod peer;
mod side;
mod targets;
mod tell;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use anyhow::{Context, Result, ensure};
use kvweir::{
    clock::Clock,
    fs::{FsSettings, Layout, PACK_BELOW},
    io::{Disk, OsDisk, Region, engine::EngineKind},
};

use self::{
    device::Raw,
    ours::Ours,
    peer::Peer,
    side::{Side, Took, Work, salt},
    tell::{Row, Told},
};
use crate::{env, keys::fill, print::say};

const PEER: &str = include_str!("peer.py");

/// Options of `contest`.
#[derive(Debug, clap::Args)]
pub(crate) struct Args {
    /// Where to write; a temporary directory inside it is made and removed.
    #[arg(long, default_value = ".")]
    dir: PathBuf,
    /// Two minutes instead of ten: fewer rounds of fewer blocks.
    #[arg(long)]
    quick: bool,
    /// Rounds of each case [default: 7, with --quick 3]
    #[arg(long)]
    rounds: Option<u64>,
    /// Layouts of ours; the ratios are told of the first. One that is `fs` under another name is left out.
    #[arg(long, value_delimiter = ',', default_value = "auto,fs")]
    layouts: Vec<Layout>,
    /// How our workers speak to the kernel: threads or io_uring.
    #[arg(long, default_value_t)]
    engine: EngineKind,
    /// Tiers of Python: stock (vLLM's own file tier), wheel (ours in vLLM), lmcache (its local disk).
    #[arg(long, value_delimiter = ',', default_value = "stock,wheel,lmcache")]
    peers: Vec<String>,
    /// The Python that has vLLM [default: $KVWEIR_CACHE/mgr/bin/python; without it only ours and the device run]
    #[arg(long)]
    python: Option<PathBuf>,
    /// A directory for PYTHONPATH, where LMCache lies if not beside vLLM.
    #[arg(long)]
    python_path: Option<PathBuf>,
    /// Only cases whose name contains this.
    #[arg(long)]
    only: Option<String>,
    /// Print one JSON object instead of tables.
    #[arg(long)]
    json: bool,
    /// Seed of keys and contents.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

/// Blocks of one size, stored and loaded by everybody.
#[derive(Debug, Clone, Copy)]
struct Case {
    name: &'static str,
    block_kib: usize,
    blocks: u32,
    store_batch: u32,
    load_batch: u32,
}

const CASES: [Case; 4] = [
    case("64 KiB", 64, 4096, 16, 64),
    case("16 KiB", 16, 8192, 32, 64),
    case("2 MiB", 2048, 128, 8, 8),
    case("8 MiB", 8192, 32, 2, 2),
];

const fn case(name: &'static str, block_kib: usize, blocks: u32, store_batch: u32, load_batch: u32) -> Case {
    Case {
        name,
        block_kib,
        blocks,
        store_batch,
        load_batch,
    }
}

pub(crate) fn run(args: &Args, clock: &Arc<dyn Clock>) -> Result<()> {
    let dir = args
        .dir
        .canonicalize()
        .with_context(|| format!("directory {}", args.dir.display()))?;
    if !args.json {
        env::tell(&**clock, args.seed, Some(&dir));
    }
    let temp = tempfile::Builder::new().prefix("kvweir-lab-").tempdir_in(&dir)?;
    let memory = tempfile::Builder::new()
        .prefix("kvweir-lab-")
        .tempdir_in("/dev/shm")?;
    let mut contest = Contest {
        args,
        clock,
        dir: temp.path(),
        memory: memory.path(),
        rounds: args.rounds.unwrap_or(if args.quick { 3 } else { 7 }),
        peers: Vec::new(),
        told: Told::default(),
        made: 0,
    };
    contest.start_peers()?;
    contest.fits()?;
    let began = clock.now();
    let wanted = |name: &str| args.only.as_ref().is_none_or(|o| name.contains(o.as_str()));
    for (n, case) in CASES.iter().enumerate() {
        if wanted(case.name) {
            contest.sizes(n as u64, *case)?;
            contest.clean()?;
        }
    }
    if wanted("bound") {
        contest.bound()?;
        contest.clean()?;
    }
    if wanted("beside stores") {
        contest.beside()?;
    }
    contest.told.seconds = clock.now().since(began).as_secs_f64();
    contest.told.print(args.json, contest.rounds)
}

struct Contest<'a> {
    args: &'a Args,
    clock: &'a Arc<dyn Clock>,
    dir: &'a Path,
    memory: &'a Path,
    rounds: u64,
    peers: Vec<(String, Peer)>,
    told: Told,
    made: u64,
}

type Sides<'a> = Vec<(String, Box<dyn Side + 'a>)>;

impl Contest<'_> {
    fn start_peers(&mut self) -> Result<()> {
        let python = self.args.python.clone().or_else(|| {
            let cache = std::env::var_os("KVWEIR_CACHE")?;
            Some(Path::new(&cache).join("mgr/bin/python"))
        });
        let Some(python) = python else {
            let why = "no --python and no KVWEIR_CACHE: only ours and the device".to_owned();
            self.told.peers.push(("peers".into(), why));
            return Ok(());
        };
        let script = self.dir.join("peer.py");
        std::fs::write(&script, PEER)?;
        for kind in &self.args.peers {
            match Peer::start(&python, &script, self.args.python_path.as_ref(), kind) {
                Ok(peer) => self.peers.push((kind.clone(), peer)),
                Err(e) => self
                    .told
                    .peers
                    .push((kind.clone(), format!("does not run: {e:#}"))),
            }
        }
        Ok(())
    }

    /// Refuses to begin where the disk would run full: all that a case wrote stays until it is over.
    fn fits(&self) -> Result<()> {
        let most = CASES
            .iter()
            .map(|c| u64::from(self.blocks(c.blocks)) * ((c.block_kib as u64) << 10));
        // ours with and without checksums and full, the device twice, and the peers
        let sides = (self.args.layouts.len() * 3 + 2 + self.peers.len()) as u64;
        let need = most.max().unwrap_or(0) * sides * (self.rounds + 2) + (2 << 30);
        let free = OsDisk.space(self.dir)?.available;
        ensure!(
            free >= need,
            "{} MiB are free in {}, and {} MiB may be written: fewer --rounds, --layouts or --peers, or another --dir",
            free >> 20,
            self.dir.display(),
            need >> 20
        );
        Ok(())
    }

    /// Removes what a case wrote.
    fn clean(&self) -> Result<()> {
        for entry in std::fs::read_dir(self.dir)? {
            let path = entry?.path();
            if path.is_dir() {
                std::fs::remove_dir_all(&path)?;
            } else if path.extension().is_none_or(|e| e != "py") {
                std::fs::remove_file(&path)?;
            }
        }
        // a disk that is told of what was removed should not be at it while the next case is measured
        rustix::fs::syncfs(std::fs::File::open(self.dir)?)?;
        Ok(())
    }

    fn blocks(&self, blocks: u32) -> u32 {
        if self.args.quick { blocks / 2 } else { blocks }
    }

    /// Memory for `blocks` blocks, twice: what is stored, and what comes back.
    fn region(&mut self, block_kib: usize, blocks: u32) -> Result<(Region, PathBuf)> {
        self.made += 1;
        let path = self.memory.join(self.made.to_string());
        Ok((Region::shared(&path, blocks * 2, block_kib << 10)?, path))
    }

    fn settings(&mut self, layout: Layout, bound: u64) -> FsSettings {
        self.made += 1;
        FsSettings {
            max_bytes: Some(bound),
            layout,
            engine: self.args.engine,
            ..FsSettings::new(self.dir.join(format!("kvweir-{}", self.made)))
        }
    }

    /// Our layouts for blocks of this size; `auto` is what it chooses.
    fn layouts(&self, block_kib: usize) -> Vec<Layout> {
        let is_large = block_kib << 10 >= PACK_BELOW;
        let mut seen = Vec::new();
        for &layout in &self.args.layouts {
            let real = if layout == Layout::Auto && is_large {
                Layout::Fs
            } else {
                layout
            };
            if !seen.contains(&real) {
                seen.push(real);
            }
        }
        seen
    }

    /// A bound with room for all that a side stores in `times` times the rounds, whatever the layout.
    fn room(&self, region: &Region, times: u64) -> u64 {
        let block = region.block_len() as u64 + (12 << 10);
        (1 << 30) + self.rounds * times * u64::from(region.num_slots() / 2) * block
    }

    fn ours<'s>(
        &mut self,
        region: &Region,
        block_kib: usize,
        verify: &[bool],
        bound: u64,
    ) -> Result<Sides<'s>> {
        let mut sides: Sides<'s> = Vec::new();
        for layout in self.layouts(block_kib) {
            for &verify in verify {
                let settings = FsSettings {
                    verify,
                    ..self.settings(layout, bound)
                };
                let name = if verify { "" } else { ", checksums off" };
                let side = Ours::new(settings, region, self.clock)?;
                sides.push((format!("kvweir {layout}{name}"), Box::new(side)));
            }
        }
        Ok(sides)
    }

    /// Ours at its bound, as it is for most of its life: it holds one round and a half, so every store evicts.
    fn full(&mut self, layout: Layout, region: &Region, blocks: u32) -> Result<Ours> {
        let block_kib = region.block_len() as u64 >> 10;
        let settings = self.settings(layout, age::bound(block_kib, blocks));
        let mut side = Ours::new(settings, region, self.clock)?;
        for round in 0..2 {
            side.store(whole(salt(self.args.seed, 300, round), blocks, 0, 16))?;
        }
        Ok(side)
    }

    /// Opens the tiers of the peers; one that cannot is told and left out from now on.
    fn open_peers(&mut self, region: &Region, memory: &Path, bound: u64) -> Vec<(String, Peer)> {
        let mut open = Vec::new();
        for (name, mut peer) in std::mem::take(&mut self.peers) {
            self.made += 1;
            let root = self.dir.join(format!("{name}-{}", self.made));
            match peer.open(&root, memory, region, bound) {
                Ok(()) => {
                    self.told.about(&name, &peer.about);
                    open.push((name, peer));
                }
                Err(e) => self.told.peers.push((name, format!("does not run here: {e:#}"))),
            }
        }
        open
    }

    /// Fills the first half of the region with what round `round` stores.
    fn fill(region: &Region, salt: u64) -> Result<()> {
        for slot in 0..region.num_slots() / 2 {
            fill(salt ^ u64::from(slot) << 40, &mut region.write(slot)?);
        }
        Ok(())
    }

    fn clear(region: &Region) -> Result<()> {
        let half = region.num_slots() / 2;
        (half..half * 2).try_for_each(|slot| {
            region.write(slot)?.fill(0);
            Ok(())
        })
    }

    fn compare(region: &Region, who: &str) -> Result<()> {
        let half = region.num_slots() / 2;
        for slot in 0..half {
            ensure!(
                *region.read(slot)? == *region.read(half + slot)?,
                "{who}: block {slot} came back changed"
            );
        }
        Ok(())
    }

    /// Stores, whole prefixes at once, and one prefix after the other.
    fn sizes(&mut self, number: u64, case: Case) -> Result<()> {
        let blocks = self.blocks(case.blocks);
        let (region, memory) = self.region(case.block_kib, blocks)?;
        let room = self.room(&region, 1);
        let mut peers = self.open_peers(&region, &memory, room);
        let mut sides = self.ours(&region, case.block_kib, &[true, false], room)?;
        for layout in self.layouts(case.block_kib).into_iter().take(1) {
            sides.push((
                format!("kvweir {layout}, full"),
                Box::new(self.full(layout, &region, blocks)?),
            ));
        }
        for (name, again) in [("raw", false), ("raw, written over", true)] {
            let path = self.dir.join(format!("raw-{number}-{again}"));
            let raw = Raw::new(&path, blocks, &region, self.clock, again)?;
            sides.push((name.into(), Box::new(raw)));
        }
        sides.extend(
            peers
                .iter_mut()
                .map(|(n, p)| (n.clone(), Box::new(p) as Box<dyn Side>)),
        );
        let ops = [
            ("store", false, case.store_batch, usize::MAX),
            ("load", true, case.load_batch, usize::MAX),
            ("load, one job at a time", true, case.load_batch, 1),
        ];
        let mut rows: Vec<Row> = Vec::new();
        for (op, _, batch, _) in ops {
            let op = format!("{op}, {batch} per job");
            rows.extend(sides.iter().map(|(who, _)| {
                Row::new(case.name, &op, who, region.block_len() as u64 * u64::from(blocks))
            }));
        }
        let mut failed: Vec<(String, String)> = Vec::new();
        for round in 0..self.rounds {
            let salt = salt(self.args.seed, number, round);
            Self::fill(&region, salt)?;
            for (n, &(_, is_load, batch, depth)) in ops.iter().enumerate() {
                for turn in 0..sides.len() {
                    let who = (turn + round as usize) % sides.len();
                    let Some((name, side)) = sides.get_mut(who) else {
                        continue;
                    };
                    if failed.iter().any(|(f, _)| f == name) {
                        continue;
                    }
                    let work = Work {
                        salt,
                        first: 0,
                        slot: if is_load { blocks } else { 0 },
                        blocks,
                        batch,
                        depth,
                    };
                    let took = if is_load {
                        Self::clear(&region)?;
                        let took = side.load(work);
                        if took.is_ok() {
                            Self::compare(&region, name)?;
                        }
                        took
                    } else {
                        side.store(work)
                    };
                    let at = n * sides.len() + who;
                    Self::note(rows.get_mut(at), took, &sides, who, &mut failed)?;
                }
            }
        }
        self.end(sides, rows, failed)?;
        self.peers = peers;
        Ok(())
    }

    /// Keeps what a side took. Ours may not fail; a peer that does is left out and told.
    fn note(
        row: Option<&mut Row>,
        took: Result<Took>,
        sides: &Sides<'_>,
        who: usize,
        failed: &mut Vec<(String, String)>,
    ) -> Result<()> {
        let name = sides.get(who).map_or("", |(n, _)| n);
        match took {
            Ok(took) => row.context("one row per side")?.add(took),
            Err(e) if name.starts_with("kvweir") || name.starts_with("raw") => {
                return Err(e.context(name.to_owned()));
            }
            Err(e) => failed.push((name.to_owned(), format!("failed: {e:#}"))),
        }
        Ok(())
    }

    fn end(&mut self, sides: Sides<'_>, rows: Vec<Row>, failed: Vec<(String, String)>) -> Result<()> {
        for (_, mut side) in sides {
            side.close()?;
        }
        self.told.peers.extend(failed);
        let rows = rows.into_iter().filter(Row::is_measured);
        self.told.rows.extend(rows);
        if !self.args.json {
            say(&format!(
                "done: {}",
                self.told.rows.last().map_or("", |r| &r.case)
            ));
        }
        Ok(())
    }
}

/// All blocks of a round, all jobs at once.
fn whole(salt: u64, blocks: u32, slot: u32, batch: u32) -> Work {
    Work {
        salt,
        first: 0,
        slot,
        blocks,
        batch,
        depth: usize::MAX,
    }
}
