//! The file tier over memory of the caller. Calls of the scheduler are short and keep the interpreter's lock: to get it
//! back from a busy Python thread takes 5 ms, more than ten times what submitting 2,048 blocks does. Opening, draining
//! and closing release it. In a child of the process that opened a tier, lookups of it miss, submissions raise
//! `ClosedError`, and every other call does nothing.

pub(crate) mod state;

use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError},
    time::Duration,
};

use kvweir::{
    Key,
    fs::{FsBuilder, FsSettings},
    io::{pool::PoolSize, process::Home},
    metrics::TierStats,
    namespace::Namespace,
    pacing::{Answer, PacedKey},
    tier::{Direction, JobId, LoadBlock, Report, RequestId, StoreBlock, Tier},
};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyBytes, PyDict, PyString},
};

use self::state::{FsTier, Open, State, request};
use crate::{
    buffer::{View, is_quiet},
    errors::{UnavailableError, raise},
    keys::{Job, Names, by_position, changes},
    paced::Paced,
    stats::stats_dict,
};

/// A job that ended: its number, whether it was a load, per-block success, blocks that an I/O fault failed, bytes
/// moved, seconds of device time, seconds queued.
type Ended = (u64, bool, Vec<bool>, usize, u64, f64, f64);

#[pymethods]
impl FsTier {
    /// Opens `root` for blocks of the namespace that `identity` (JSON) and `rank` name. `answers`: what `lookup`
    /// returns for miss, hit and retry. `order`: the attribute of a request's context whose value is a dictionary that
    /// has the request's keys in prefix order. `windows`: per KV-cache group the chunks that a request needs, or none
    /// for all; where they are given, promotions are paced, and `end_step` has to be called. `guarded`: nobody touches
    /// a row while a job has it, even one that was given up.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the settings, by name")]
    #[pyo3(signature = (view, root, identity, rank, answers, *, name="fs", namespace_extra="", max_bytes=None,
        min_free_bytes=None, policy="lru", load_threads=None, store_threads=None, verify=true, events=false,
        locality=None, pin_ttl_s=600.0, miss_ttl_s=1.0, io_timeout_s=30.0, bounce="auto", read_only=false,
        layout="fs", engine="threads", order=None, promote_share=0.75, promote_wait_s=10.0, windows=None,
        guarded=false))]
    fn new(
        py: Python<'_>,
        view: &Bound<'_, PyAny>,
        root: PathBuf,
        identity: &str,
        rank: u64,
        answers: (Py<PyAny>, Py<PyAny>, Py<PyAny>),
        name: &str,
        namespace_extra: &str,
        max_bytes: Option<u64>,
        min_free_bytes: Option<u64>,
        policy: &str,
        load_threads: Option<usize>,
        store_threads: Option<usize>,
        verify: bool,
        events: bool,
        locality: Option<&str>,
        pin_ttl_s: f64,
        miss_ttl_s: f64,
        io_timeout_s: f64,
        bounce: &str,
        read_only: bool,
        layout: &str,
        engine: &str,
        order: Option<&str>,
        promote_share: f64,
        promote_wait_s: f64,
        windows: Option<Vec<Option<u32>>>,
        guarded: bool,
    ) -> PyResult<Self> {
        let view = View::new(view)?;
        let region = view.region.clone();
        let seconds = |what: &str, s: f64| {
            Duration::try_from_secs_f64(s).map_err(|_| {
                PyValueError::new_err(format!("{what} = {s}: seconds, zero or more, are wanted"))
            })
        };
        let usual = PoolSize::default();
        let settings = FsSettings {
            max_bytes,
            min_free_bytes,
            policy: policy.parse().map_err(raise)?,
            pool: PoolSize::new(
                load_threads.unwrap_or(usual.threads - usual.store_threads),
                store_threads.unwrap_or(usual.store_threads),
            ),
            verify,
            events,
            locality: locality.unwrap_or("LOCAL").parse().map_err(raise)?,
            pin_ttl: seconds("pin_ttl_s", pin_ttl_s)?,
            miss_ttl: seconds("miss_ttl_s", miss_ttl_s)?,
            io_timeout: Some(seconds("io_timeout_s", io_timeout_s)?),
            bounce: bounce.parse().map_err(raise)?,
            read_only,
            layout: layout.parse().map_err(raise)?,
            engine: engine.parse().map_err(raise)?,
            ..FsSettings::new(root)
        };
        let fields =
            serde_json::from_str(identity).map_err(|e| PyValueError::new_err(format!("identity: {e}")))?;
        let ns = Namespace::from_fields(fields, rank, namespace_extra).map_err(raise)?;
        // vLLM's manager fills and reads its rows when it likes, whoever has a guard of them
        let builder = FsBuilder::new(settings, ns, region.block_len())
            .name(name)
            .slots_outlive_reports(guarded);
        let engine = py.detach(|| builder.open()).map_err(raise)?;
        let slots = region.num_slots() as usize;
        let paced = windows
            .map(|windows| Paced::new(slots, windows, promote_share, promote_wait_s))
            .transpose()?;
        let open = Open {
            engine,
            region,
            reports: Vec::new(),
            events: Vec::new(),
        };
        Ok(Self {
            home: Home::here(),
            state: Mutex::new(State {
                open: Some(open),
                paced,
                ..State::default()
            }),
            view: Mutex::new(Some(view)),
            last: Mutex::default(),
            answers: [answers.0, answers.1, answers.2],
            order: order.map(|name| PyString::intern(py, name).into_any().unbind()),
        })
    }

    /// The directory that holds the blocks.
    fn namespace_dir(&self, py: Python<'_>) -> PyResult<PathBuf> {
        self.with(py, |o| o.engine.namespace_dir().to_owned())
    }

    /// How new blocks are laid out: `fs` or `pack`.
    fn layout(&self, py: Python<'_>) -> PyResult<&'static str> {
        self.with(py, |o| o.engine.layout().as_str())
    }

    /// Whether `key` can be loaded now; a hit pins it for the request that `context.req_id` names.
    /// Never raises: what is no key, or comes without a request, is a miss.
    fn lookup(&self, key: &Bound<'_, PyAny>, context: &Bound<'_, PyAny>) -> Py<PyAny> {
        let [miss, hit, retry] = &self.answers;
        if self.is_abroad(key.py()) {
            return miss.clone_ref(key.py());
        }
        let (Ok(key), Some((mut state, req))) = (key.cast::<PyBytes>(), self.asking(context)) else {
            return miss.clone_ref(key.py());
        };
        let name = key.as_bytes();
        let paced = PacedKey::new(name);
        let answer = match state.paced.as_mut().and_then(|p| p.before(req, paced)) {
            Some(answer) => answer,
            None if state.ahead.answers(name) => {
                state.answered += 1;
                state.answer(req, paced).unwrap_or(Answer::Hit)
            }
            None => self.ask(state, name, context, req),
        };
        match answer {
            Answer::Miss => miss,
            Answer::Hit => hit,
            Answer::Retry => retry,
        }
        .clone_ref(key.py())
    }

    /// A step of the scheduler is over; the requests named in `scheduled` run now for the first time.
    fn end_step(&self, scheduled: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.is_abroad(scheduled.py()) {
            return Ok(());
        }
        let requests: Vec<RequestId> = scheduled
            .try_iter()?
            .filter_map(|name| Some(request(&name.ok()?)))
            .collect();
        let mut state = self.lock();
        state.steps.ended();
        if let Some(p) = &mut state.paced {
            p.step_ended(requests);
        }
        Ok(())
    }

    /// Starts storing rows `slots` under `keys`, in the order of `positions` where these are given.
    #[pyo3(signature = (job, req, keys, slots, positions=None))]
    fn submit_store(
        &self,
        job: u64,
        req: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        slots: &Bound<'_, PyAny>,
        positions: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<()> {
        let blocks = Job::new(keys, slots, positions)?;
        let runs = request(req);
        self.pace(keys.py(), |p| p.storing(runs, &blocks.names));
        self.with(keys.py(), |o| {
            let region = o.region.clone();
            let block = move |key, slot| region.read(slot).map(|slot| StoreBlock { key, slot });
            o.engine
                .store_later(JobId(job), request(req), blocks.rows.len(), move || {
                    blocks.blocks(block)
                });
        })
    }

    /// Starts loading `keys` into rows `slots`.
    fn submit_load(
        &self,
        job: u64,
        req: &Bound<'_, PyAny>,
        keys: &Bound<'_, PyAny>,
        slots: &Bound<'_, PyAny>,
    ) -> PyResult<()> {
        let blocks = Job::new(keys, slots, None)?;
        let waits = request(req);
        self.pace(keys.py(), |p| p.submitted(waits, &blocks.names));
        self.with(keys.py(), |o| {
            let region = o.region.clone();
            let block = move |key, slot| region.write(slot).map(|slot| LoadBlock { key, slot });
            o.engine
                .load_later(JobId(job), request(req), blocks.rows.len(), move || {
                    blocks.blocks(block)
                });
        })
    }

    /// The jobs that ended since the last call. Loads that end in the middle of a scheduler's step, after its lookups,
    /// are told in the next one: a block that is told readable and was not read yet may be evicted for a store.
    fn poll(&self, py: Python<'_>) -> Vec<Ended> {
        if self.is_abroad(py) {
            return Vec::new();
        }
        let mut state = self.other();
        let mid_step = state.steps.polls();
        let Some(o) = state.engine() else {
            return Vec::new();
        };
        o.engine.poll(&mut o.reports);
        let mut reports = std::mem::take(&mut o.reports);
        if mid_step {
            o.reports
                .extend(reports.extract_if(.., |r| r.direction == Direction::Load));
        }
        if let Some(p) = &mut state.paced {
            let stores = reports.iter().filter(|r| r.direction == Direction::Store);
            stores.for_each(|r| p.stored(r.blocks.len()));
        }
        reports.into_iter().map(ended).collect()
    }

    /// Whether jobs wait, run, or were not polled yet.
    fn has_pending_work(&self, py: Python<'_>) -> bool {
        if self.is_abroad(py) {
            return false;
        }
        let state = self.lock();
        (state.open.as_ref()).is_some_and(|o| o.engine.has_pending_work() || !o.reports.is_empty())
    }

    /// The request used `keys`, in prefix order.
    fn touch(&self, req: &Bound<'_, PyAny>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.is_abroad(keys.py()) {
            return Ok(());
        }
        let (names, _) = Names::known(keys)?;
        let named = request(req);
        self.pace(keys.py(), |p| p.touched(named, &names));
        if let Some(o) = self.other().engine() {
            let keys: Vec<Key> = names.keys().collect();
            o.engine.touch(&keys, request(req));
        }
        Ok(())
    }

    /// The request is over; `keys` are its blocks, in prefix order or by position.
    fn finish(&self, req: &Bound<'_, PyAny>, keys: &Bound<'_, PyAny>) -> PyResult<()> {
        if self.is_abroad(keys.py()) {
            return Ok(());
        }
        self.remember(None);
        let ended = request(req);
        self.pace(keys.py(), |p| p.release(ended));
        let (names, positions) = Names::known(keys)?;
        if let Some(o) = self.lock().engine() {
            o.engine
                .finish_later(request(req), move || by_position(names.keys(), &positions));
        }
        Ok(())
    }

    /// Residency changes since the last call: whether removed, and the keys, oldest first.
    fn take_events<'py>(&self, py: Python<'py>) -> PyResult<Vec<(bool, Vec<Bound<'py, PyBytes>>)>> {
        if self.is_abroad(py) {
            return Ok(Vec::new());
        }
        let mut state = self.lock();
        let Some(o) = state.open.as_mut() else {
            return Ok(Vec::new());
        };
        o.engine.take_events(&mut o.events);
        Ok(changes(py, o.events.drain(..)))
    }

    /// Waits until nothing runs; what waits is cancelled and reported.
    fn drain(&self, py: Python<'_>) {
        if self.is_abroad(py) {
            return;
        }
        py.detach(|| {
            // the engine empties its primary
            let mut state = self.lock();
            state.steps.polled = 0;
            if let Some(p) = &mut state.paced {
                p.reset();
            }
            drop(state);
            if let Some(o) = self.other().engine() {
                o.engine.drain();
            }
        });
    }

    /// Numbers by name; reasons are dictionaries.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        if self.is_abroad(py) {
            return stats_dict(py, &TierStats::default());
        }
        let now = self.lock().engine().map(|o| o.engine.stats());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(s) = now {
            *last = s;
        }
        let dict = stats_dict(py, &last)?;
        if let Some(p) = &self.lock().paced {
            p.fill(&dict)?;
        }
        Ok(dict)
    }

    /// Ends running I/O, cancels the rest, releases pins and the memory. Further calls find nothing.
    fn shutdown(&self, py: Python<'_>) -> PyResult<Vec<Ended>> {
        if self.is_abroad(py) {
            return Ok(Vec::new());
        }
        self.remember(None);
        let view = self.view.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (ended, quiet) = py.detach(|| {
            let mut state = self.lock();
            let _ = state.engine();
            let Some(mut o) = state.open.take() else {
                return (Vec::new(), true);
            };
            drop(state);
            o.engine.shutdown();
            o.engine.poll(&mut o.reports);
            *self.last.lock().unwrap_or_else(PoisonError::into_inner) = o.engine.stats();
            let quiet = is_quiet(&o.region);
            (
                std::mem::take(&mut o.reports).into_iter().map(ended).collect(),
                quiet,
            )
        });
        if !quiet {
            // a worker hangs in I/O on a row: the memory may not go before it returns, if it ever does (I5)
            std::mem::forget(view);
            return Err(UnavailableError::new_err(
                "I/O still runs at shutdown; the memory stays in use",
            ));
        }
        drop(view);
        Ok(ended)
    }
}

#[expect(clippy::needless_pass_by_value, reason = "used as a mapping function")]
fn ended(r: Report) -> Ended {
    let faults = r.blocks.iter().filter(|b| b.failed_on_device()).count();
    (
        r.id.0,
        r.direction == Direction::Load,
        r.blocks.iter().map(|b| b.is_ok()).collect(),
        faults,
        r.bytes,
        r.device_time.as_secs_f64(),
        r.queue_time.as_secs_f64(),
    )
}

/// Reads a size such as "500GiB" or 1073741824.
#[pyfunction]
fn parse_size(text: &str) -> PyResult<u64> {
    kvweir::size::parse(text).map_err(|why| PyValueError::new_err(format!("{text:?} {why}")))
}

/// The directory name, below a root, of the namespace that `identity` (JSON), `rank` and `namespace_extra` name.
#[pyfunction]
fn namespace_dir(identity: &str, rank: u64, namespace_extra: &str) -> PyResult<String> {
    let fields =
        serde_json::from_str(identity).map_err(|e| PyValueError::new_err(format!("identity: {e}")))?;
    Ok(Namespace::from_fields(fields, rank, namespace_extra)
        .map_err(raise)?
        .dir()
        .to_owned())
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_function(wrap_pyfunction!(parse_size, m)?)?;
    m.add_function(wrap_pyfunction!(namespace_dir, m)?)?;
    m.add_class::<FsTier>()
}
