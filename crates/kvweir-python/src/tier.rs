//! The file tier over memory of the caller. Calls of the scheduler are short and keep the interpreter's lock: to get it
//! back from a busy Python thread takes 5 ms, ten times what submitting 2,048 blocks does. Opening, draining and closing
//! release it.

use std::{
    path::PathBuf,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use kvweir::{
    Key,
    events::{Event, EventKind},
    fs::{FsBuilder, FsSettings, FsTier as Engine},
    io::{Region, pool::PoolSize},
    metrics::{EvictReason, RefuseReason, TierStats},
    namespace::Namespace,
    tier::{
        BlockOutcome, Direction, JobId, LoadBlock, LoadJob, Lookup, Report, RequestId, StoreBlock, StoreJob,
        Tier,
    },
};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyBytes, PyDict, PyList},
};

use crate::{
    buffer::View,
    errors::{ClosedError, UnavailableError, raise},
};

struct Open {
    engine: Engine,
    region: Region,
    reports: Vec<Report>,
    events: Vec<Event>,
}

/// A bounded file tier over a writable buffer of rows.
#[pyclass(frozen, module = "kvweir._kvweir")]
struct FsTier {
    open: Mutex<Option<Open>>,
    /// Released after the engine, which may still touch it.
    view: Mutex<Option<View>>,
    last: Mutex<TierStats>,
    answers: [Py<PyAny>; 3],
    /// The context of the last lookup and the request it names: thousands of lookups in a row bring the same one.
    asking: Mutex<Option<(Py<PyAny>, RequestId)>>,
}

impl Drop for FsTier {
    fn drop(&mut self) {
        // forgotten by its owner: the same care as at shutdown, without an interpreter to raise into
        let open = self.open.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let Some(mut o) = open else { return };
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
    fn lock(&self) -> MutexGuard<'_, Option<Open>> {
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn with<R>(&self, f: impl FnOnce(&mut Open) -> R) -> PyResult<R> {
        self.lock()
            .as_mut()
            .map(f)
            .ok_or_else(|| ClosedError::new_err("the tier was shut down"))
    }

    /// The request that `context.req_id` names.
    fn asking(&self, context: &Bound<'_, PyAny>) -> PyResult<RequestId> {
        let known = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some((_, req)) = known.as_ref().filter(|(c, _)| context.is(c)) {
            return Ok(*req);
        }
        drop(known);
        let name = context.getattr(pyo3::intern!(context.py(), "req_id"))?;
        let req = request(&name.extract::<pyo3::pybacked::PyBackedStr>()?);
        self.remember(Some((context.clone().unbind(), req)));
        Ok(req)
    }

    /// Replaces the remembered context; the old one is let go of outside the lock.
    fn remember(&self, context: Option<(Py<PyAny>, RequestId)>) {
        let mut known = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        let old = std::mem::replace(&mut *known, context);
        drop(known);
        drop(old);
    }

    /// Keys and slots of a job.
    fn job(keys: &Bound<'_, PyList>, slots: Vec<u32>) -> PyResult<Vec<(Key, u32)>> {
        if keys.len() != slots.len() {
            return Err(PyValueError::new_err("as many slots as keys are wanted"));
        }
        keys.iter()
            .zip(slots)
            .map(|(k, slot)| Ok((key_of(&k)?, slot)))
            .collect()
    }
}

/// Those of `keys` that are keys.
fn known(keys: &Bound<'_, PyList>) -> Vec<Key> {
    keys.iter().filter_map(|k| key_of(&k).ok()).collect()
}

fn key_of(k: &Bound<'_, PyAny>) -> PyResult<Key> {
    Key::new(k.cast::<PyBytes>()?.as_bytes()).map_err(raise)
}

/// The engine's number of a request's name.
fn request(name: &str) -> RequestId {
    RequestId(xxhash_rust::xxh3::xxh3_64(name.as_bytes()))
}

#[pymethods]
impl FsTier {
    /// Opens `root` for blocks of the namespace that `identity` (JSON) and `rank` name. `answers`: what `lookup`
    /// returns for miss, hit and retry.
    #[new]
    #[expect(clippy::too_many_arguments, reason = "the settings, by name")]
    #[pyo3(signature = (view, root, identity, rank, answers, *, name="fs", namespace_extra="", max_bytes=None,
        min_free_bytes=None, policy="lru", load_threads=None, store_threads=None, verify=true, events=false,
        locality=None, pin_ttl_s=600.0, miss_ttl_s=1.0, io_timeout_s=30.0, bounce="auto", read_only=false))]
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
            ..FsSettings::new(root)
        };
        let fields =
            serde_json::from_str(identity).map_err(|e| PyValueError::new_err(format!("identity: {e}")))?;
        let ns = Namespace::from_fields(fields, rank, namespace_extra).map_err(raise)?;
        // the engine fills and reads its rows when it likes, whoever has a guard of them
        let builder = FsBuilder::new(settings, ns, region.block_len())
            .name(name)
            .honours_guards(false);
        let engine = py.detach(|| builder.open()).map_err(raise)?;
        let open = Open {
            engine,
            region,
            reports: Vec::new(),
            events: Vec::new(),
        };
        Ok(Self {
            open: Mutex::new(Some(open)),
            view: Mutex::new(Some(view)),
            last: Mutex::default(),
            answers: [answers.0, answers.1, answers.2],
            asking: Mutex::default(),
        })
    }

    /// The directory that holds the blocks.
    fn namespace_dir(&self) -> PyResult<PathBuf> {
        self.with(|o| o.engine.namespace_dir().to_owned())
    }

    /// Whether `key` can be loaded; a hit pins it for the request that `context.req_id` names.
    fn lookup(&self, key: &Bound<'_, PyBytes>, context: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = key.py();
        let req = self.asking(context)?;
        // a name that is no key is held by nobody; nothing raises into the engine
        let answer = match (Key::new(key.as_bytes()), self.lock().as_mut()) {
            (Ok(key), Some(o)) => o.engine.lookup(&key, req),
            _ => Lookup::Miss,
        };
        let [miss, hit, retry] = &self.answers;
        Ok(match answer {
            Lookup::Miss => miss,
            Lookup::Hit => hit,
            Lookup::Retry => retry,
        }
        .clone_ref(py))
    }

    /// Starts storing rows `slots` under `keys`.
    fn submit_store(&self, job: u64, req: &str, keys: &Bound<'_, PyList>, slots: Vec<u32>) -> PyResult<()> {
        let (blocks, req) = (Self::job(keys, slots)?, request(req));
        self.with(|o| {
            let n = blocks.len();
            let blocks: Vec<StoreBlock> = blocks
                .into_iter()
                .filter_map(|(key, slot)| {
                    Some(StoreBlock {
                        key,
                        slot: o.region.read(slot).ok()?,
                    })
                })
                .collect();
            if blocks.len() < n {
                o.reports.push(failed(job, Direction::Store, n));
            } else {
                o.engine.submit_store(StoreJob {
                    id: JobId(job),
                    req,
                    blocks,
                });
            }
        })
    }

    /// Starts loading `keys` into rows `slots`.
    fn submit_load(&self, job: u64, req: &str, keys: &Bound<'_, PyList>, slots: Vec<u32>) -> PyResult<()> {
        let (blocks, req) = (Self::job(keys, slots)?, request(req));
        self.with(|o| {
            let n = blocks.len();
            let blocks: Vec<LoadBlock> = blocks
                .into_iter()
                .filter_map(|(key, slot)| {
                    Some(LoadBlock {
                        key,
                        slot: o.region.write(slot).ok()?,
                    })
                })
                .collect();
            if blocks.len() < n {
                o.reports.push(failed(job, Direction::Load, n));
            } else {
                o.engine.submit_load(LoadJob {
                    id: JobId(job),
                    req,
                    blocks,
                });
            }
        })
    }

    /// The jobs that ended since the last call.
    fn poll(&self) -> Vec<Ended> {
        let mut open = self.lock();
        let Some(o) = open.as_mut() else { return Vec::new() };
        o.engine.poll(&mut o.reports);
        o.reports.drain(..).map(ended).collect()
    }

    /// Whether jobs wait, run, or were not polled yet.
    fn has_pending_work(&self) -> bool {
        self.lock()
            .as_ref()
            .is_some_and(|o| !o.reports.is_empty() || o.engine.has_pending_work())
    }

    /// The request used `keys`, in prefix order.
    fn touch(&self, req: &str, keys: &Bound<'_, PyList>) {
        if let Some(o) = self.lock().as_mut() {
            o.engine.touch(&known(keys), request(req));
        }
    }

    /// The request is over; `keys` are its blocks in prefix order.
    fn finish(&self, req: &str, keys: &Bound<'_, PyList>) {
        self.remember(None);
        if let Some(o) = self.lock().as_mut() {
            o.engine.on_request_finished(request(req), &known(keys));
        }
    }

    /// Residency changes since the last call: whether removed, and the keys, oldest first.
    fn take_events<'py>(&self, py: Python<'py>) -> PyResult<Vec<(bool, Vec<Bound<'py, PyBytes>>)>> {
        let mut open = self.lock();
        let Some(o) = open.as_mut() else {
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
        py.detach(|| {
            if let Some(o) = self.lock().as_mut() {
                o.engine.drain();
            }
        });
    }

    /// Numbers by name; reasons are dictionaries.
    fn stats<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let now = self.lock().as_ref().map(|o| o.engine.stats());
        let mut last = self.last.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(s) = now {
            *last = s;
        }
        stats_dict(py, &last)
    }

    /// Ends running I/O, cancels the rest, releases pins and the memory. Further calls find nothing.
    fn shutdown(&self, py: Python<'_>) -> PyResult<Vec<Ended>> {
        self.remember(None);
        let view = self.view.lock().unwrap_or_else(PoisonError::into_inner).take();
        let (ended, quiet) = py.detach(|| {
            let Some(mut o) = self.lock().take() else {
                return (Vec::new(), true);
            };
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

/// The report of a job whose rows are in other use or do not exist.
fn failed(job: u64, direction: Direction, blocks: usize) -> Report {
    Report {
        id: JobId(job),
        direction,
        blocks: vec![BlockOutcome::Failed(kvweir::ErrorKind::Invalid); blocks],
        bytes: 0,
        device_time: Duration::ZERO,
        queue_time: Duration::ZERO,
    }
}

#[expect(clippy::needless_pass_by_value, reason = "used as a mapping function")]
fn ended(r: Report) -> Ended {
    use kvweir::ErrorKind::{Busy, Closed, Full};
    let faults = r
        .blocks
        .iter()
        .filter(|b| matches!(b, BlockOutcome::Failed(k) if !matches!(k, Full | Busy | Closed)))
        .count();
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

fn stats_dict<'py>(py: Python<'py>, s: &TierStats) -> PyResult<Bound<'py, PyDict>> {
    let d = PyDict::new(py);
    let numbers = [
        ("blocks", s.blocks),
        ("resident_bytes", s.resident_bytes),
        ("reserved_bytes", s.reserved_bytes),
        ("peak_bytes", s.peak_bytes),
        ("pinned_blocks", s.pinned_blocks),
        ("pinned_peak", s.pinned_peak),
        ("pin_leases_expired", s.pin_leases_expired),
        ("lookup_hits", s.lookup_hits),
        ("lookup_misses", s.lookup_misses),
        ("lookup_retries", s.lookup_retries),
        ("stored_blocks", s.stored_blocks),
        ("stored_bytes", s.stored_bytes),
        ("present_blocks", s.present_blocks),
        ("loaded_blocks", s.loaded_blocks),
        ("loaded_bytes", s.loaded_bytes),
        ("load_failures", s.load_failures),
        ("verification_failures", s.verification_failures),
        ("unlink_failures", s.unlink_failures),
        ("recovered_blocks", s.recovered_blocks),
        ("swept_files", s.swept_files),
        ("foreign_files", s.foreign_files),
        ("oldest_age_seconds", s.oldest_age_seconds),
        ("queued_blocks", s.queued_blocks),
        ("index_bytes", s.index_bytes),
        ("breaker_state", s.breaker_state),
        ("breaker_opened", s.breaker_opened),
        ("jobs_timed_out", s.jobs_timed_out),
        ("hung_operations", s.hung_operations),
    ];
    for (name, n) in numbers {
        d.set_item(name, n)?;
    }
    d.set_item("bound_bytes", s.bound_bytes)?;
    d.set_item("effective_bound_bytes", s.effective_bound_bytes)?;
    d.set_item("startup_seconds", s.startup_seconds)?;
    d.set_item("store_device_seconds", s.store_device_time.as_secs_f64())?;
    d.set_item("load_device_seconds", s.load_device_time.as_secs_f64())?;
    let by = PyDict::new(py);
    let bytes = PyDict::new(py);
    for (r, (n, b)) in EvictReason::ALL
        .iter()
        .zip(s.evicted_blocks.iter().zip(s.evicted_bytes))
    {
        by.set_item(r.as_str(), n)?;
        bytes.set_item(r.as_str(), b)?;
    }
    d.set_item("evicted_blocks", by)?;
    d.set_item("evicted_bytes", bytes)?;
    let by = PyDict::new(py);
    for (r, n) in RefuseReason::ALL.iter().zip(s.refused_blocks) {
        by.set_item(r.as_str(), n)?;
    }
    d.set_item("refused_blocks", by)?;
    Ok(d)
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
