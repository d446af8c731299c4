//! The file tier over memory of the caller. Calls of the scheduler are short and keep the interpreter's lock: to get it
//! back from a busy Python thread takes 5 ms, more than ten times what submitting 2,048 blocks does. Opening, draining
//! and closing release it. In a child of the process that opened a tier, lookups of it miss, submissions raise
//! `ClosedError`, and every other call does nothing.

use std::{
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kvweir::{
    Key,
    events::{Event, EventKind},
    fs::{FsBuilder, FsSettings, FsTier as Engine},
    io::{Region, pool::PoolSize, process::Home},
    metrics::TierStats,
    namespace::Namespace,
    pacing::{Answer, PacedKey},
    tier::{Direction, JobId, LoadBlock, Lookup, Report, RequestId, StoreBlock, Tier},
};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyBytes, PyDict, PyString},
};

use crate::{
    ahead::Ahead,
    buffer::View,
    errors::{ClosedError, UnavailableError, raise},
    keys::{Job, Names, by_position},
    paced::{Paced, Steps},
    stats::stats_dict,
};

struct Open {
    engine: Engine,
    region: Region,
    reports: Vec<Report>,
    events: Vec<Event>,
}

#[derive(Default)]
struct State {
    open: Option<Open>,
    /// The context of the last lookup and the request it names: thousands of lookups in a row bring the same one.
    asking: Option<(Py<PyAny>, RequestId)>,
    ahead: Ahead,
    /// Lookups answered from `ahead` that the engine was not told of.
    answered: u64,
    paced: Option<Paced>,
    steps: Steps,
}

/// A bounded file tier over a writable buffer of rows.
#[pyclass(frozen, module = "kvweir._kvweir")]
struct FsTier {
    /// Elsewhere no lock is touched: a thread that is not there may hold it.
    home: Home,
    state: Mutex<State>,
    /// Released after the engine, which may still touch it.
    view: Mutex<Option<View>>,
    last: Mutex<TierStats>,
    answers: [Py<PyAny>; 3],
    /// The attribute of a context that names its request's keys in order.
    order: Option<Py<PyAny>>,
}

impl State {
    /// What is answered for a block that the tier has, where no plan has to be made first.
    fn answer(&mut self, req: RequestId, key: PacedKey) -> Option<Answer> {
        match &mut self.paced {
            Some(p) => p.admitted(req, key),
            None => Some(Answer::Hit),
        }
    }

    /// The engine, its numbers complete.
    fn engine(&mut self) -> Option<&mut Open> {
        let answered = std::mem::take(&mut self.answered);
        let open = self.open.as_mut()?;
        if answered > 0 {
            open.engine.count_hits(answered);
        }
        Some(open)
    }
}

impl Drop for FsTier {
    fn drop(&mut self) {
        // forgotten by its owner: the same care as at shutdown, without an interpreter to raise into
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(mut o) = state.open.take() else { return };
        if self.home.is_surely_elsewhere() {
            return std::mem::forget(o);
        }
        o.engine.shutdown();
        if !(0..o.region.num_slots()).all(|slot| o.region.is_free(slot)) {
            std::mem::forget(self.view.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

/// A job that ended: its number, whether it was a load, per-block success, blocks that an I/O fault failed, bytes
/// moved, seconds of device time, seconds queued.
type Ended = (u64, bool, Vec<bool>, usize, u64, f64, f64);

impl FsTier {
    /// Whether this is a child of the process that opened the tier, which is said once.
    fn is_abroad(&self, py: Python<'_>) -> bool {
        let abroad = self.home.is_elsewhere();
        if abroad && self.home.is_news() {
            let text = self.home.told_elsewhere("tier");
            let told = py
                .import("logging")
                .and_then(|l| l.call_method1("getLogger", ("vllm.kvweir",)))
                .and_then(|l| l.call_method1("error", ("%s", text)));
            // whoever logs may fail; a call that does nothing does not
            drop(told);
        }
        abroad
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For calls that are no lookups: what was looked up ahead is not answered any more.
    fn other(&self) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        let old = std::mem::take(&mut state.ahead);
        if old.is_of_python() {
            drop(state);
            drop(old);
            state = self.lock();
        }
        state
    }

    /// Tells the pacer, if there is one.
    fn pace(&self, py: Python<'_>, f: impl FnOnce(&mut Paced)) {
        if self.is_abroad(py) {
            return;
        }
        if let Some(p) = &mut self.lock().paced {
            f(p);
        }
    }

    fn with<R>(&self, py: Python<'_>, f: impl FnOnce(&mut Open) -> R) -> PyResult<R> {
        if self.is_abroad(py) {
            return Err(ClosedError::new_err(self.home.told_elsewhere("tier")));
        }
        self.other()
            .engine()
            .map(f)
            .ok_or_else(|| ClosedError::new_err("the tier was shut down"))
    }

    /// The state, and the request that `context.req_id` names; none where it names none.
    fn asking(&self, context: &Bound<'_, PyAny>) -> Option<(MutexGuard<'_, State>, RequestId)> {
        let state = self.lock();
        if let Some((known, req)) = &state.asking
            && context.is(known)
        {
            let req = *req;
            return Some((state, req));
        }
        drop(state);
        let name = context.getattr(pyo3::intern!(context.py(), "req_id")).ok()?;
        let req = request(&name);
        self.remember(Some((context.clone().unbind(), req)));
        Some((self.lock(), req))
    }

    /// Replaces the remembered context; the old one is let go of outside the lock.
    fn remember(&self, context: Option<(Py<PyAny>, RequestId)>) {
        let mut state = self.lock();
        let old = (
            std::mem::replace(&mut state.asking, context),
            std::mem::take(&mut state.ahead),
        );
        drop(state);
        drop(old);
    }

    /// What the engine and the pacer say of a key that was not looked up ahead.
    fn ask(
        &self,
        mut state: MutexGuard<'_, State>,
        name: &[u8],
        context: &Bound<'_, PyAny>,
        req: RequestId,
    ) -> Answer {
        // a name that is no key is held by nobody; nothing raises into the engine
        let found = match (Key::new(name), state.open.as_mut()) {
            (Ok(key), Some(o)) => o.engine.lookup(&key, req),
            _ => Lookup::Miss,
        };
        let paced = PacedKey::new(name);
        match found {
            Lookup::Miss => Answer::Miss,
            Lookup::Retry => Answer::Retry,
            Lookup::Hit => match state.answer(req, paced) {
                Some(answer) => {
                    if answer == Answer::Hit {
                        self.look_ahead(state, name, context, req);
                    }
                    answer
                }
                None => self.first_hit(state, paced, context, req),
            },
        }
    }

    /// The first block of a request that the tier has: what it may promote is planned.
    fn first_hit(
        &self,
        mut state: MutexGuard<'_, State>,
        key: PacedKey,
        context: &Bound<'_, PyAny>,
        req: RequestId,
    ) -> Answer {
        let Some(paced) = state.paced.take() else {
            return Answer::Hit;
        };
        // Python is asked without the lock; all calls come under the manager's
        drop(state);
        let attribute = self.order.as_ref().map(|a| a.bind(context.py()));
        let order = attribute.and_then(|a| paced.order(context, a));
        let mut guard = self.lock();
        let state = &mut *guard;
        let open = state.open.as_ref();
        let paced = state.paced.insert(paced);
        paced.first(req, key, order, |keys| {
            open.map_or_else(Vec::new, |o| o.engine.held(keys))
        })
    }

    /// After a hit on `key`: looks for the keys that come next, which are pinned where they hit.
    fn look_ahead(
        &self,
        mut state: MutexGuard<'_, State>,
        key: &[u8],
        context: &Bound<'_, PyAny>,
        req: RequestId,
    ) {
        let Some(attribute) = self.order.as_ref().filter(|_| !state.ahead.is_over()) else {
            return;
        };
        // Python is asked without the lock
        let mut ahead = std::mem::take(&mut state.ahead);
        drop(state);
        ahead.read_on(key, context, attribute.bind(context.py()));
        let keys: Vec<Key> = ahead.names().keys().collect();
        let mut state = self.lock();
        if let Some(o) = state.open.as_mut() {
            ahead.found(o.engine.pin_ahead(&keys, req));
        }
        let old = std::mem::replace(&mut state.ahead, ahead);
        drop(state);
        drop(old);
    }
}

/// The engine's number of a request's name, whatever the name is: vLLM takes it from clients, so it may be a text that is
/// no Unicode.
fn request(name: &Bound<'_, PyAny>) -> RequestId {
    let hash = |bytes: &[u8]| RequestId(xxhash_rust::xxh3::xxh3_64(bytes));
    let Ok(name) = name.cast::<PyString>() else {
        return name
            .repr()
            .map_or(RequestId(0), |shown| hash(shown.to_string_lossy().as_bytes()));
    };
    if let Ok(text) = name.to_str() {
        return hash(text.as_bytes());
    }
    let bytes = name.call_method1("encode", ("utf-8", "surrogatepass"));
    match bytes.as_ref().map(|b| b.cast::<PyBytes>()) {
        Ok(Ok(bytes)) => hash(bytes.as_bytes()),
        _ => hash(name.to_string_lossy().as_bytes()),
    }
}

#[pymethods]
impl FsTier {
    /// Opens `root` for blocks of the namespace that `identity` (JSON) and `rank` name. `answers`: what `lookup`
    /// returns for miss, hit and retry. `order`: the attribute of a request's context whose value is a dictionary that
    /// has the request's keys in prefix order. `windows`: per KV-cache group the chunks that a request needs, or none for
    /// all; where they are given, promotions are paced, and `end_step` has to be called.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the settings, by name")]
    #[pyo3(signature = (view, root, identity, rank, answers, *, name="fs", namespace_extra="", max_bytes=None,
        min_free_bytes=None, policy="lru", load_threads=None, store_threads=None, verify=true, events=false,
        locality=None, pin_ttl_s=600.0, miss_ttl_s=1.0, io_timeout_s=30.0, bounce="auto", read_only=false,
        layout="fs", engine="threads", order=None, promote_share=0.75, promote_wait_s=10.0, windows=None))]
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
        // the engine fills and reads its rows when it likes, whoever has a guard of them
        let builder = FsBuilder::new(settings, ns, region.block_len())
            .name(name)
            .slots_outlive_reports(false);
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
        let mut out: Vec<(bool, Vec<Bound<'py, PyBytes>>)> = Vec::new();
        for e in o.events.drain(..) {
            let removed = e.kind == EventKind::Removed;
            let key = PyBytes::new(py, e.key.as_bytes());
            match out.last_mut() {
                Some((r, keys)) if *r == removed => keys.push(key),
                _ => out.push((removed, vec![key])),
            }
        }
        Ok(out)
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
            let quiet = (0..o.region.num_slots()).all(|slot| o.region.is_free(slot));
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
