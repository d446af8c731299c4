//! Who is measured: the tier in this process, the device without a tier, and tiers of Python in processes of their own.

use std::{
    collections::VecDeque,
    io::{BufRead, BufReader, IoSlice, IoSliceMut, Write},
    path::{Path, PathBuf},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use anyhow::{Context, Result, ensure};
use kvweir::{
    Key,
    clock::Clock,
    fs::{FsBuilder, FsSettings, FsTier},
    io::{Disk, DiskFile, OsDisk, Region, disk::OpenMode, pool::PoolSize},
    namespace::{Identity, Namespace},
    sync::Bell,
    tier::{JobId, LoadBlock, LoadJob, Lookup, Report, RequestId, StoreBlock, StoreJob, Tier},
};
use rustix::time::{ClockId, clock_gettime};
use serde_json::{Value, json};

use crate::keys::{key, mix};

/// Blocks to move.
#[derive(Debug, Clone, Copy)]
pub(super) struct Work {
    /// Blocks of another salt are other blocks.
    pub(super) salt: u64,
    /// The first of them.
    pub(super) first: u32,
    /// The slot of the first; the others follow.
    pub(super) slot: u32,
    /// How many.
    pub(super) blocks: u32,
    /// Blocks of a job.
    pub(super) batch: u32,
    /// Jobs under way.
    pub(super) depth: usize,
}

/// What it took.
#[derive(Debug, Clone, Default)]
pub(super) struct Took {
    /// Wall-clock time.
    pub(super) seconds: f64,
    /// CPU time of the process that moved them.
    pub(super) cpu_s: f64,
    /// Time of each job.
    pub(super) jobs_s: Vec<f64>,
}

/// A contender.
pub(super) trait Side {
    /// Stores blocks.
    fn store(&mut self, work: Work) -> Result<Took>;
    /// Loads blocks that were stored.
    fn load(&mut self, work: Work) -> Result<Took>;
    /// Loads `loads` jobs, one at a time, while `store.depth` jobs of fresh blocks are kept under way.
    fn duel(&mut self, store: Work, load: Work, loads: usize) -> Result<Took>;
    /// Ends the tier.
    fn close(&mut self) -> Result<()>;
}

/// The tier in this process.
#[derive(Debug)]
pub(super) struct Ours {
    tier: FsTier,
    bell: Arc<Bell>,
    clock: Arc<dyn Clock>,
    region: Region,
    next: u64,
}

/// Blocks of the prefix that one request stores, in several jobs.
const PREFIX: u32 = 64;

/// A job that waits: its number, its request, and its blocks' keys and slots.
type Prepared = (u64, RequestId, Vec<(Key, u32)>);

impl Ours {
    /// Opens the tier of `settings`.
    pub(super) fn new(settings: FsSettings, region: &Region, clock: &Arc<dyn Clock>) -> Result<Self> {
        let bell = Arc::<Bell>::default();
        let tier = FsBuilder::new(
            settings,
            Namespace::new(&Identity::default())?,
            region.block_len(),
        )
        .clock(Arc::clone(clock))
        .bell(Arc::clone(&bell))
        .open()?;
        Ok(Self {
            tier,
            bell,
            clock: Arc::clone(clock),
            region: region.clone(),
            next: 1,
        })
    }

    fn prepare(&mut self, w: Work, req: Option<RequestId>) -> Result<Prepared> {
        let keys = (0..w.blocks).map(|n| Ok((key(w.salt, u64::from(w.first + n))?, w.slot + n)));
        self.next += 1;
        let req = req.unwrap_or(RequestId(self.next));
        Ok((self.next, req, keys.collect::<Result<_>>()?))
    }

    fn jobs(&mut self, w: Work, is_load: bool) -> Result<VecDeque<Prepared>> {
        self.next += u64::from(w.blocks);
        let first = self.next;
        let starts = (0..w.blocks).step_by(w.batch as usize);
        starts
            .map(|n| {
                let of = Work {
                    first: w.first + n,
                    slot: w.slot + n,
                    blocks: w.batch.min(w.blocks - n),
                    ..w
                };
                // the pins of a request pass to its load as a whole
                let req = RequestId(first - u64::from(n / PREFIX));
                self.prepare(of, (!is_load).then_some(req))
            })
            .collect()
    }

    fn submit(&mut self, (n, req, blocks): Prepared, is_load: bool) -> Result<()> {
        let id = JobId(n);
        if is_load {
            for (key, _) in &blocks {
                ensure!(self.tier.lookup(key, req) == Lookup::Hit, "a block is missing");
            }
            let blocks = blocks.into_iter().map(|(key, slot)| {
                let slot = self.region.write(slot)?;
                Ok(LoadBlock { key, slot })
            });
            let blocks = blocks.collect::<kvweir::Result<_>>()?;
            self.tier.submit_load(LoadJob { id, req, blocks });
        } else {
            let blocks = blocks.into_iter().map(|(key, slot)| {
                let slot = self.region.read(slot)?;
                Ok(StoreBlock { key, slot })
            });
            let blocks = blocks.collect::<kvweir::Result<_>>()?;
            self.tier.submit_store(StoreJob { id, req, blocks });
        }
        Ok(())
    }

    /// Waits for reports, all of whose blocks must have moved.
    fn poll(&mut self, reports: &mut Vec<Report>) -> Result<()> {
        let seen = self.bell.rings();
        self.tier.poll(reports);
        if reports.is_empty() {
            self.bell.wait(seen, Duration::from_secs(1));
            self.tier.poll(reports);
        }
        ensure!(reports.iter().all(Report::all_ok), "a block did not move");
        Ok(())
    }

    fn move_all(&mut self, w: Work, is_load: bool) -> Result<Took> {
        let mut jobs = self.jobs(w, is_load)?;
        let count = jobs.len();
        let requests: Vec<RequestId> = jobs.iter().map(|j| j.1).collect();
        let mut running = std::collections::HashMap::new();
        let mut took = Took::default();
        let mut reports = Vec::new();
        let (began, cpu) = (self.clock.now(), cpu_seconds());
        while took.jobs_s.len() < count {
            while running.len() < w.depth
                && let Some(job) = jobs.pop_front()
            {
                running.insert(job.0, self.clock.now());
                self.submit(job, is_load)?;
            }
            self.poll(&mut reports)?;
            let now = self.clock.now();
            for r in reports.drain(..) {
                let at = running.remove(&r.id.0).context("a job that nobody gave")?;
                took.jobs_s.push(now.since(at).as_secs_f64());
            }
        }
        for req in requests {
            self.tier.on_request_finished(req, &[]);
        }
        took.seconds = self.clock.now().since(began).as_secs_f64();
        took.cpu_s = cpu_seconds() - cpu;
        Ok(took)
    }
}

impl Side for Ours {
    fn store(&mut self, work: Work) -> Result<Took> {
        self.move_all(work, false)
    }

    fn load(&mut self, work: Work) -> Result<Took> {
        self.move_all(work, true)
    }

    fn duel(&mut self, store: Work, load: Work, loads: usize) -> Result<Took> {
        let (mut stores, mut stored, mut loaded) = (0, 0u32, 0u32);
        let mut waiting = None;
        let mut took = Took::default();
        let mut reports = Vec::new();
        let (began, cpu) = (self.clock.now(), cpu_seconds());
        while took.jobs_s.len() < loads {
            while stores < store.depth {
                let at = stored * store.batch;
                let job = self.prepare(
                    Work {
                        first: at,
                        slot: store.slot + at % store.blocks,
                        blocks: store.batch,
                        ..store
                    },
                    None,
                )?;
                self.submit(job, false)?;
                stores += 1;
                stored += 1;
            }
            if waiting.is_none() {
                let at = (loaded * load.batch) % load.blocks;
                let job = self.prepare(
                    Work {
                        first: load.first + at,
                        slot: load.slot + at,
                        blocks: load.batch,
                        ..load
                    },
                    None,
                )?;
                loaded += 1;
                waiting = Some((job.0, self.clock.now()));
                self.submit(job, true)?;
            }
            self.poll(&mut reports)?;
            let now = self.clock.now();
            for r in reports.drain(..) {
                self.tier.on_request_finished(RequestId(r.id.0), &[]);
                match waiting {
                    Some((id, at)) if id == r.id.0 => {
                        waiting = None;
                        took.jobs_s.push(now.since(at).as_secs_f64());
                    }
                    _ => stores -= 1,
                }
            }
        }
        took.seconds = self.clock.now().since(began).as_secs_f64();
        took.cpu_s = cpu_seconds() - cpu;
        while stores > 0 {
            self.poll(&mut reports)?;
            stores -= reports.drain(..).len();
        }
        Ok(took)
    }

    fn close(&mut self) -> Result<()> {
        self.tier.shutdown();
        Ok(())
    }
}

/// The device: preallocated files, one run of blocks per job, the tier's threads. Every tier that is not full writes where
/// nothing of it was before, so the device does too: each round writes a new file, in which a load finds the same round's
/// blocks. With `again` it is one file, written over in each round: what a tier at its bound can reach. A disk may treat
/// the two differently, above all one that is thinly provisioned below a file system that discards.
#[derive(Debug)]
pub(super) struct Raw {
    path: PathBuf,
    files: u64,
    again: bool,
    file: Box<dyn DiskFile>,
    clock: Arc<dyn Clock>,
    region: Region,
    bytes: u64,
}

impl Raw {
    pub(super) fn new(
        path: &Path,
        blocks: u32,
        region: &Region,
        clock: &Arc<dyn Clock>,
        again: bool,
    ) -> Result<Self> {
        let bytes = u64::from(blocks) * region.block_len() as u64;
        let path = path.to_owned();
        let raw = Self {
            file: Self::make(&path, 0, bytes)?,
            path,
            files: 1,
            again,
            clock: Arc::clone(clock),
            region: region.clone(),
            bytes,
        };
        let once = Work {
            salt: 0,
            first: 0,
            slot: 0,
            blocks,
            batch: 16,
            depth: usize::MAX,
        };
        if again {
            raw.spread(once, false)?;
        }
        Ok(raw)
    }

    fn make(path: &Path, number: u64, bytes: u64) -> Result<Box<dyn DiskFile>> {
        let path = path.with_extension(number.to_string());
        let file = OsDisk.open(&path, OpenMode::ReadWrite, true)?;
        file.allocate(bytes)
            .with_context(|| format!("preallocate {}", path.display()))?;
        Ok(file)
    }

    fn spread(&self, w: Work, is_load: bool) -> Result<Took> {
        let pool = PoolSize::default();
        let most = if is_load { pool.threads } else { pool.store_threads };
        let (next, times) = (AtomicU64::new(0), Mutex::new(Vec::new()));
        let jobs = u64::from(w.blocks.div_ceil(w.batch));
        let work = || -> Result<()> {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= jobs {
                    return Ok(());
                }
                let at = n as u32 * w.batch;
                let began = self.clock.now();
                self.once(w.slot + at, at, w.batch.min(w.blocks - at), is_load)?;
                let took = self.clock.now().since(began).as_secs_f64();
                times.lock().unwrap_or_else(PoisonError::into_inner).push(took);
            }
        };
        let (began, cpu) = (self.clock.now(), cpu_seconds());
        std::thread::scope(|s| {
            let all: Vec<_> = (0..most.min(w.depth)).map(|_| s.spawn(work)).collect();
            all.into_iter()
                .try_for_each(|t| t.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
        })?;
        Ok(Took {
            seconds: self.clock.now().since(began).as_secs_f64(),
            cpu_s: cpu_seconds() - cpu,
            jobs_s: times.into_inner().unwrap_or_else(PoisonError::into_inner),
        })
    }

    fn once(&self, slot: u32, at: u32, blocks: u32, is_load: bool) -> Result<()> {
        let len = self.region.block_len();
        let (slots, offset) = (slot..slot + blocks, u64::from(at) * len as u64);
        let done = if is_load {
            let mut held = slots
                .map(|n| self.region.write(n))
                .collect::<kvweir::Result<Vec<_>>>()?;
            let mut bufs: Vec<_> = held.iter_mut().map(|s| IoSliceMut::new(s)).collect();
            self.file.read_at(&mut bufs, offset)?
        } else {
            let held = slots
                .map(|n| self.region.read(n))
                .collect::<kvweir::Result<Vec<_>>>()?;
            let bufs: Vec<_> = held.iter().map(|s| IoSlice::new(s)).collect();
            self.file.write_at(&bufs, offset)?
        };
        ensure!(done == blocks as usize * len, "the device moved less");
        Ok(())
    }
}

impl Side for Raw {
    fn store(&mut self, work: Work) -> Result<Took> {
        if !self.again {
            // as all others, it keeps what earlier rounds wrote
            self.file = Self::make(&self.path, self.files, self.bytes)?;
            self.files += 1;
        }
        self.spread(work, false)
    }

    fn load(&mut self, work: Work) -> Result<Took> {
        self.spread(work, true)
    }

    fn duel(&mut self, _: Work, _: Work, _: usize) -> Result<Took> {
        anyhow::bail!("the device alone has no queue of its own")
    }

    fn close(&mut self) -> Result<()> {
        Ok(())
    }
}

/// A tier of Python in a process of its own.
#[derive(Debug)]
pub(super) struct Peer {
    child: Child,
    to: ChildStdin,
    from: BufReader<ChildStdout>,
    /// What it says of itself.
    pub(super) about: String,
}

impl Peer {
    /// Starts the process; `path` is where more Python lies.
    pub(super) fn start(python: &Path, script: &Path, path: Option<&PathBuf>, kind: &str) -> Result<Self> {
        let mut command = Command::new(python);
        command.arg(script).arg(kind);
        command.envs([("OMP_NUM_THREADS", "1"), ("VLLM_NO_USAGE_STATS", "1")]);
        command.envs([("LMCACHE_TRACK_USAGE", "false"), ("HF_HUB_OFFLINE", "1")]);
        command.envs([("VLLM_LOGGING_LEVEL", "ERROR"), ("LMCACHE_LOG_LEVEL", "ERROR")]);
        if let Some(path) = path {
            command.env("PYTHONPATH", path);
        }
        let mut child = command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn()
            .with_context(|| format!("start {}", python.display()))?;
        let to = child.stdin.take().context("its input")?;
        let from = BufReader::new(child.stdout.take().context("its output")?);
        Ok(Self {
            child,
            to,
            from,
            about: String::new(),
        })
    }

    /// Ends the tier it has and opens one below `root` over `region`, which lies in the file `memory`.
    pub(super) fn open(&mut self, root: &Path, memory: &Path, region: &Region, max_bytes: u64) -> Result<()> {
        let said = self.ask(&json!({
            "op": "open", "root": root, "region": memory, "max_bytes": max_bytes,
            "slots": region.num_slots(), "row": region.block_len(),
        }))?;
        self.about = said.get("about").map(Value::to_string).unwrap_or_default();
        Ok(())
    }

    fn ask(&mut self, question: &Value) -> Result<Value> {
        writeln!(self.to, "{question}")?;
        self.to.flush()?;
        let mut line = String::new();
        self.from.read_line(&mut line)?;
        let said: Value = serde_json::from_str(&line).context("it ended")?;
        match said.get("error").and_then(Value::as_str) {
            Some(e) => anyhow::bail!("{e}"),
            None => Ok(said),
        }
    }

    fn timed(&mut self, question: &Value) -> Result<Took> {
        let said = self.ask(question)?;
        let number = |name| {
            said.get(name)
                .and_then(Value::as_f64)
                .context("a number is missing")
        };
        let jobs = said
            .get("jobs_s")
            .and_then(Value::as_array)
            .context("times are missing")?;
        Ok(Took {
            seconds: number("seconds")?,
            cpu_s: number("cpu_s")?,
            jobs_s: jobs.iter().filter_map(Value::as_f64).collect(),
        })
    }
}

fn as_json(op: &str, w: Work) -> Value {
    json!({
        "op": op, "salt": w.salt, "first": w.first, "slot": w.slot, "blocks": w.blocks, "batch": w.batch,
        "depth": w.depth.min(1 << 30),
    })
}

impl Side for &mut Peer {
    fn store(&mut self, work: Work) -> Result<Took> {
        self.timed(&as_json("store", work))
    }

    fn load(&mut self, work: Work) -> Result<Took> {
        self.timed(&as_json("load", work))
    }

    fn duel(&mut self, store: Work, load: Work, loads: usize) -> Result<Took> {
        self.timed(&json!({
            "op": "duel", "loads": loads, "store": as_json("store", store), "load": as_json("load", load),
        }))
    }

    fn close(&mut self) -> Result<()> {
        self.ask(&json!({"op": "close"})).map(|_| ())
    }
}

impl Drop for Peer {
    fn drop(&mut self) {
        if !matches!(self.child.try_wait(), Ok(Some(_))) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }
}

/// A salt of its own for each round and purpose.
pub(super) fn salt(seed: u64, case: u64, round: u64) -> u64 {
    // exact in a JSON number
    mix(mix(seed ^ case << 32) ^ round) >> 16
}

/// CPU time of this process, all threads, user and system.
fn cpu_seconds() -> f64 {
    let t = clock_gettime(ClockId::ProcessCPUTime);
    t.tv_sec as f64 + t.tv_nsec as f64 / 1e9
}
