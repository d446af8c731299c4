//! A tier written in Python, with the calls and the promises that vLLM's own manager gives it. What it raises is logged
//! and counts as a miss or a failed job: nothing of it reaches the scheduler.

use std::{
    cell::Cell,
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use kvweir::{
    Key,
    clock::{Instant, SystemClock},
    error::ErrorKind,
    events::{Event, Locality, Medium},
    metrics::TierStats,
    tier::{
        BlockOutcome, Direction, JobId, LoadBlock, LoadJob, Lookup, Report, RequestId, StoreBlock, StoreJob,
        StorePolicy, Tier, Verified,
    },
};
use pyo3::{
    prelude::*,
    types::{PyBytes, PyList},
};

use super::state::{ArrayMaker, Contexts, Words, locked};

thread_local! {
    /// A tier is being called by a manager on this thread, which holds its lock.
    static CALLED: Cell<u32> = const { Cell::new(0) };
}

/// For as long as a tier is called.
struct Called;

impl Called {
    fn new() -> Self {
        CALLED.with(|n| n.set(n.get() + 1));
        Self
    }
}

impl Drop for Called {
    fn drop(&mut self) {
        CALLED.with(|n| n.set(n.get().saturating_sub(1)));
    }
}

/// Whether this thread is in a call that a manager makes of a tier: a call back would wait for the manager for ever.
pub(super) fn is_called() -> bool {
    CALLED.with(Cell::get) > 0
}

/// Says in the log that something of Python raised.
pub(super) fn tell(py: Python<'_>, what: &str, e: &PyErr) {
    let told = py
        .import("logging")
        .and_then(|l| l.call_method1("getLogger", ("vllm.kvweir",)))
        .and_then(|l| {
            l.call_method1(
                "error",
                ("%s: %s: %s", what, e.get_type(py).name().ok(), e.value(py)),
            )
        });
    // whoever logs may fail
    drop(told);
}

/// Between two lines of the log about one tier.
const TELL_EVERY: Duration = Duration::from_secs(1);

/// What is known of a tier.
pub(super) struct Shape {
    pub(super) name: String,
    pub(super) remote: bool,
    pub(super) memory: bool,
}

/// Jobs by number.
pub(super) type HostedJobs = Arc<Mutex<HashMap<u64, Job>>>;

/// Slots of a job, claimed until it is reported.
#[derive(Debug)]
enum Claimed {
    /// Held, never read.
    Store {
        _blocks: Vec<StoreBlock>,
    },
    Load(Vec<LoadBlock>),
}

/// A job that the tier has not told the end of.
#[derive(Debug)]
pub(super) struct Job {
    claimed: Claimed,
    blocks: usize,
    submitted: Instant,
}

impl Job {
    /// A job that the tier runs without having been submitted it.
    pub(super) fn of_its_own(job: StoreJob) -> Self {
        Self {
            blocks: job.blocks.len(),
            claimed: Claimed::Store { _blocks: job.blocks },
            submitted: now(),
        }
    }

    fn direction(&self) -> Direction {
        match self.claimed {
            Claimed::Store { .. } => Direction::Store,
            Claimed::Load(_) => Direction::Load,
        }
    }
}

/// A tier written in Python.
pub(super) struct HostedTier {
    name: String,
    medium: Medium,
    locality: Locality,
    block_bytes: u64,
    tier: Py<PyAny>,
    make_job: Py<PyAny>,
    array: ArrayMaker,
    /// Members of `LookupResult`: hit, retry.
    hit: Py<PyAny>,
    retry: Py<PyAny>,
    contexts: Arc<Contexts>,
    jobs: HostedJobs,
    /// Jobs that it raised on.
    failed: Vec<Report>,
    last_told: Mutex<Option<Instant>>,
}

impl std::fmt::Debug for HostedTier {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("HostedTier")
            .field("name", &self.name)
            .finish_non_exhaustive()
    }
}

impl HostedTier {
    pub(super) fn new(
        tier: &Bound<'_, PyAny>,
        shape: Shape,
        make_job: Py<PyAny>,
        words: &Words,
        contexts: Arc<Contexts>,
        jobs: HostedJobs,
    ) -> PyResult<Self> {
        let py = tier.py();
        let block_bytes = tier
            .getattr("block_size_bytes")
            .and_then(|n| n.extract())
            .unwrap_or(0);
        Ok(Self {
            name: shape.name,
            medium: if shape.memory {
                Medium::Cpu
            } else {
                Medium::Storage
            },
            locality: if shape.remote {
                Locality::Remote
            } else {
                Locality::Local
            },
            block_bytes,
            tier: tier.clone().unbind(),
            make_job,
            array: words.array.clone_ref(py),
            hit: words.hit(py),
            retry: words.retry(py),
            contexts,
            jobs,
            failed: Vec::new(),
            last_told: Mutex::default(),
        })
    }

    /// What a call of the tier returns; nothing where it raised.
    fn call<R>(&self, what: &str, f: impl for<'py> FnOnce(&Bound<'py, PyAny>) -> PyResult<R>) -> Option<R> {
        if self.contexts.is_over() {
            return None;
        }
        let called = Called::new();
        let answer = Python::attach(|py| match f(self.tier.bind(py)) {
            Ok(answer) => Some(answer),
            Err(e) => {
                self.told(py, what, &e);
                None
            }
        });
        drop(called);
        answer
    }

    /// Says that it raised, once in a while.
    fn told(&self, py: Python<'_>, what: &str, e: &PyErr) {
        let mut last = locked(&self.last_told);
        let at = now();
        if last.is_none_or(|last| at.since(last) >= TELL_EVERY) {
            *last = Some(at);
            drop(last);
            tell(py, &format!("tier {} raised in {what}", self.name), e);
        }
    }

    fn submit(&mut self, id: JobId, req: RequestId, keys: &[Key], rows: &[u32], claimed: Claimed) {
        let is_load = matches!(claimed, Claimed::Load(_));
        let job = Job {
            claimed,
            blocks: keys.len(),
            submitted: now(),
        };
        let direction = job.direction();
        // a tier may report within the call
        locked(&self.jobs).insert(id.0, job);
        let what = if is_load { "submit_load" } else { "submit_store" };
        let went = self.call(what, |tier| {
            let py = tier.py();
            let made = self.job_object(py, id, req, keys, rows, is_load)?;
            tier.call_method1(what, (made,)).map(drop)
        });
        if went.is_none() && locked(&self.jobs).remove(&id.0).is_some() {
            self.failed.push(refused(id, direction, keys.len()));
        }
    }

    fn job_object(
        &self,
        py: Python<'_>,
        id: JobId,
        req: RequestId,
        keys: &[Key],
        rows: &[u32],
        is_load: bool,
    ) -> PyResult<Py<PyAny>> {
        let names = PyList::new(py, keys.iter().map(|k| PyBytes::new(py, k.as_bytes())))?;
        let rows = self.array.of(py, rows)?;
        let context = self.contexts.get(py, req);
        self.make_job.call1(py, (id.0, names, rows, is_load, context))
    }

    fn lookup_in(&self, tier: &Bound<'_, PyAny>, key: &Key, context: Option<&Py<PyAny>>) -> PyResult<Lookup> {
        let py = tier.py();
        let name = PyBytes::new(py, key.as_bytes());
        let answer = tier.call_method1(pyo3::intern!(py, "lookup"), (name, context))?;
        Ok(if answer.is(&self.hit) {
            Lookup::Hit
        } else if answer.is(&self.retry) {
            Lookup::Retry
        } else {
            Lookup::Miss
        })
    }

    /// The report of a job that the tier told the end of. One that cannot be read has failed.
    fn report(&self, told: &Bound<'_, PyAny>) -> PyResult<Report> {
        let id: u64 = told.getattr("job_id")?.extract()?;
        let Some(job) = locked(&self.jobs).remove(&id) else {
            // the manager says that it knows none
            return Ok(refused(JobId(id), Direction::Load, 0));
        };
        let (direction, blocks) = (job.direction(), job.blocks);
        Ok(self.ended(JobId(id), &job, told).unwrap_or_else(|e| {
            self.told(told.py(), "a result that cannot be read", &e);
            refused(JobId(id), direction, blocks)
        }))
    }

    fn ended(&self, id: JobId, job: &Job, told: &Bound<'_, PyAny>) -> PyResult<Report> {
        let success = told.getattr("success")?.is_truthy()?;
        let some = told.getattr("successful_keys").ok().filter(|s| !s.is_none());
        let time: Option<f64> = told.getattr("transfer_time").ok().and_then(|t| t.extract().ok());
        let bytes: Option<u64> = told.getattr("transfer_bytes").ok().and_then(|b| b.extract().ok());
        let direction = job.direction();
        let good = match direction {
            Direction::Store => BlockOutcome::Stored,
            Direction::Load => BlockOutcome::Loaded(Verified::SizeOnly),
        };
        let bad = BlockOutcome::Failed(ErrorKind::Unavailable);
        let blocks = match (&job.claimed, some) {
            (Claimed::Load(blocks), Some(some)) if !success => {
                let came: std::collections::HashSet<Key> = super::keys_of(&some)?.into_iter().collect();
                blocks
                    .iter()
                    .map(|b| if came.contains(&b.key) { good } else { bad })
                    .collect()
            }
            _ => vec![if success { good } else { bad }; job.blocks],
        };
        let wall = now().since(job.submitted);
        Ok(Report {
            id,
            direction,
            bytes: bytes
                .unwrap_or_else(|| blocks.iter().filter(|b| b.is_ok()).count() as u64 * self.block_bytes),
            blocks,
            device_time: time
                .and_then(|t| Duration::try_from_secs_f64(t).ok())
                .unwrap_or(wall),
            queue_time: Duration::ZERO,
        })
    }
}

/// The time; a tier of Python cannot be given another clock.
fn now() -> Instant {
    SystemClock::shared().now()
}

fn refused(id: JobId, direction: Direction, blocks: usize) -> Report {
    Report::refused(id, direction, blocks, ErrorKind::Unavailable)
}

impl Tier for HostedTier {
    fn name(&self) -> &str {
        &self.name
    }

    fn medium(&self) -> Medium {
        self.medium
    }

    fn locality(&self) -> Locality {
        self.locality
    }

    fn on_new_request(&mut self, req: RequestId) -> StorePolicy {
        let every = self.call("on_new_request", |tier| {
            let py = tier.py();
            let answer = tier.call_method1("on_new_request", (self.contexts.get(py, req),))?;
            let name: String = answer.getattr("policy")?.getattr("name")?.extract()?;
            Ok(name == "REQUEST_LEVEL")
        });
        if every == Some(true) {
            StorePolicy::EveryBlock
        } else {
            StorePolicy::NewBlocks
        }
    }

    fn lookup(&mut self, key: &Key, req: RequestId) -> Lookup {
        self.lookup_run(std::slice::from_ref(key), req).1
    }

    fn lookup_run(&mut self, keys: &[Key], req: RequestId) -> (usize, Lookup) {
        self.call("lookup", |tier| {
            let context = self.contexts.get(tier.py(), req);
            for (i, key) in keys.iter().enumerate() {
                let answer = self.lookup_in(tier, key, context.as_ref()).unwrap_or_else(|e| {
                    self.told(tier.py(), "lookup", &e);
                    Lookup::Miss
                });
                if answer != Lookup::Hit {
                    return Ok((i, answer));
                }
            }
            Ok((keys.len(), Lookup::Hit))
        })
        .unwrap_or((0, Lookup::Miss))
    }

    fn submit_store(&mut self, job: StoreJob) {
        let (keys, rows): (Vec<Key>, Vec<u32>) =
            job.blocks.iter().map(|b| (b.key.clone(), b.slot.slot())).unzip();
        self.submit(
            job.id,
            job.req,
            &keys,
            &rows,
            Claimed::Store { _blocks: job.blocks },
        );
    }

    fn submit_load(&mut self, job: LoadJob) {
        let (keys, rows): (Vec<Key>, Vec<u32>) =
            job.blocks.iter().map(|b| (b.key.clone(), b.slot.slot())).unzip();
        self.submit(job.id, job.req, &keys, &rows, Claimed::Load(job.blocks));
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        reports.append(&mut self.failed);
        let told = self.call("get_finished_jobs", |tier| {
            let ended = tier.call_method0("get_finished_jobs")?;
            ended
                .try_iter()?
                .map(|e| e.map(Bound::unbind))
                .collect::<PyResult<Vec<_>>>()
        });
        let Some(told) = told.filter(|t| !t.is_empty()) else {
            return;
        };
        Python::attach(|py| {
            for ended in told {
                match self.report(ended.bind(py)) {
                    Ok(report) => reports.push(report),
                    Err(e) => self.told(py, "a result of no job", &e),
                }
            }
        });
    }

    fn touch(&mut self, keys: &[Key], req: RequestId) {
        self.call("touch", |tier| {
            let py = tier.py();
            let names = PyList::new(py, keys.iter().map(|k| PyBytes::new(py, k.as_bytes())))?;
            tier.call_method1("touch", (names, self.contexts.get(py, req)))
                .map(drop)
        });
    }

    fn on_request_finished(&mut self, req: RequestId, _keys: &[Key]) {
        self.call("on_request_finished", |tier| {
            let context = self.contexts.get(tier.py(), req);
            tier.call_method1("on_request_finished", (context,)).map(drop)
        });
        self.contexts.told(req);
    }

    fn take_events(&mut self, _events: &mut Vec<Event>) {
        // its owner in Python passes them on
    }

    fn has_pending_work(&self) -> bool {
        !self.failed.is_empty()
            || self
                .call("has_pending_work", |tier| {
                    tier.call_method0("has_pending_work")?.is_truthy()
                })
                .unwrap_or(false)
    }

    fn drain(&mut self) {
        self.call("drain_jobs", |tier| tier.call_method0("drain_jobs").map(drop));
    }

    fn shutdown(&mut self) {
        // its owner in Python ends it; what it was given is over then
        locked(&self.jobs).clear();
    }

    fn stats(&self) -> TierStats {
        TierStats::default()
    }
}
