//! What is behind the manager's lock; the words in which it answers; contexts and the requests that they name.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

use kvweir::{
    Key,
    events::Event,
    io::{Region, process::Home},
    manager::{Found, Manager as Engine},
    tier::{RequestId, StorePolicy},
};
use pyo3::{
    exceptions::PyKeyError,
    prelude::*,
    sync::MutexExt,
    types::{PyByteArray, PyDict, PyString},
};

use super::hosted::{HostedJobs, is_called};
use crate::{
    buffer::{View, is_quiet},
    tier::state::request,
};

/// What is behind a lock, whoever left it poisoned: every state it can be left in is valid.
pub(super) fn locked<T>(of: &Mutex<T>) -> MutexGuard<'_, T> {
    of.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A manager that was not shut down.
pub(super) struct Open {
    pub(super) engine: Engine,
    pub(super) region: Region,
    pub(super) events: Vec<Event>,
    /// Blocks that each call made room for, since they were last taken.
    pub(super) allocations: Vec<usize>,
}

/// What is under the lock.
pub(super) struct State {
    pub(super) open: Option<Open>,
    /// The context of the last call and the request it names: thousands of lookups in a row bring the same one.
    pub(super) asking: Option<(Py<PyAny>, RequestId)>,
    /// Keys of requests, told by `touch` where contexts do not have them.
    pub(super) orders: HashMap<RequestId, Told>,
}

/// The keys of a request as `touch` tells them, all of them again in each step.
pub(super) enum Told {
    /// Wanted; those that came.
    Awaited(Vec<Key>),
    /// They came.
    Known(Vec<Key>),
}

/// The contexts of requests, for tiers written in Python: each until the last of them was told of its end.
#[derive(Default)]
pub(super) struct Contexts(Mutex<Kept>);

#[derive(Default)]
struct Kept {
    /// Tiers written in Python.
    tiers: usize,
    /// They are shut down: nothing is asked of them.
    over: bool,
    /// With how many of them have not been told of the end.
    all: HashMap<RequestId, (Py<PyAny>, usize)>,
}

impl Contexts {
    fn lock(&self) -> MutexGuard<'_, Kept> {
        locked(&self.0)
    }

    /// One more tier wants them.
    pub(super) fn keep(&self) {
        self.lock().tiers += 1;
    }

    /// A request began; `untold`: tiers written in Python that do not know of it.
    pub(super) fn insert(&self, req: RequestId, context: &Bound<'_, PyAny>, untold: usize) {
        let mut kept = self.lock();
        let told = kept.tiers.saturating_sub(untold);
        if told == 0 {
            return;
        }
        let old = kept.all.insert(req, (context.clone().unbind(), told));
        drop(kept);
        drop(old);
    }

    pub(super) fn get(&self, py: Python<'_>, req: RequestId) -> Option<Py<PyAny>> {
        Some(self.lock().all.get(&req)?.0.clone_ref(py))
    }

    /// A tier was told of the end of a request.
    pub(super) fn told(&self, req: RequestId) {
        let mut kept = self.lock();
        let Some((_, left)) = kept.all.get_mut(&req) else {
            return;
        };
        *left = left.saturating_sub(1);
        let over = if *left == 0 { kept.all.remove(&req) } else { None };
        drop(kept);
        drop(over);
    }

    /// The tiers that want them are shut down.
    pub(super) fn end(&self) {
        self.lock().over = true;
    }

    /// Whether those tiers are shut down.
    pub(super) fn is_over(&self) -> bool {
        self.lock().over
    }

    pub(super) fn clear(&self) {
        let old = std::mem::take(&mut self.lock().all);
        drop(old);
    }
}

/// The tiering manager of one engine.
#[pyclass(frozen, subclass, weakref, dict, module = "kvweir._kvweir")]
pub(super) struct Manager {
    /// Elsewhere no lock is touched: a thread that is not there may hold it.
    pub(super) home: Home,
    pub(super) state: Mutex<State>,
    pub(super) contexts: Arc<Contexts>,
    /// Released after the engine, which may still touch it.
    pub(super) view: Mutex<Option<View>>,
    pub(super) words: Words,
    pub(super) order: Option<Py<PyString>>,
    /// By tier: the jobs of one written in Python.
    pub(super) hosted: Mutex<Vec<Option<HostedJobs>>>,
    pub(super) hears_flush: bool,
}

impl Drop for Manager {
    fn drop(&mut self) {
        let state = self.state.get_mut().unwrap_or_else(PoisonError::into_inner);
        let Some(mut o) = state.open.take() else { return };
        if self.home.is_surely_elsewhere() {
            return std::mem::forget(o);
        }
        o.engine.shutdown();
        o.engine.remove_tiers();
        if !is_quiet(&o.region) {
            std::mem::forget(self.view.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

impl Manager {
    /// The state, waited for without the interpreter's lock.
    pub(super) fn lock<'a>(&'a self, py: Python<'_>) -> MutexGuard<'a, State> {
        match self.state.try_lock() {
            Ok(state) => state,
            Err(_) => self
                .state
                .lock_py_attached(py)
                .unwrap_or_else(PoisonError::into_inner),
        }
    }

    /// In a child of the process that opened it, and in calls that it makes of a tier, which may not call it.
    fn is_out_of_reach(&self) -> bool {
        self.home.is_elsewhere() || is_called()
    }

    /// What `f` says of an open manager, else `closed`; also in a child of the process that opened it.
    pub(super) fn with<R>(&self, py: Python<'_>, closed: R, f: impl FnOnce(&mut Open) -> R) -> R {
        if self.is_out_of_reach() {
            return closed;
        }
        match &mut self.lock(py).open {
            Some(o) => f(o),
            None => closed,
        }
    }

    /// The request that `context.req_id` names; none where it names none.
    pub(super) fn asking(&self, context: &Bound<'_, PyAny>) -> Option<RequestId> {
        let py = context.py();
        if self.is_out_of_reach() {
            return None;
        }
        if let Some((known, req)) = &self.lock(py).asking
            && context.is(known)
        {
            return Some(*req);
        }
        let name = context.getattr(pyo3::intern!(py, "req_id")).ok()?;
        let req = request(&name);
        let new = Some((context.clone().unbind(), req));
        // the old one is let go of outside the lock
        let old = std::mem::replace(&mut self.lock(py).asking, new);
        drop(old);
        Some(req)
    }

    pub(super) fn forget_context(&self, py: Python<'_>) {
        if self.home.is_elsewhere() {
            return;
        }
        let old = self.lock(py).asking.take();
        drop(old);
    }
}

/// Makes arrays of rows: `numpy.frombuffer` and `numpy.int32`.
pub(super) struct ArrayMaker(Py<PyAny>, Py<PyAny>);

impl ArrayMaker {
    pub(super) fn clone_ref(&self, py: Python<'_>) -> Self {
        Self(self.0.clone_ref(py), self.1.clone_ref(py))
    }

    /// An array of `rows`.
    pub(super) fn of(&self, py: Python<'_>, rows: &[u32]) -> PyResult<Py<PyAny>> {
        let bytes: Vec<u8> = rows.iter().flat_map(|s| s.to_ne_bytes()).collect();
        self.0.call1(py, (PyByteArray::new(py, &bytes), self.1.bind(py)))
    }
}

/// What is returned to vLLM, and made for it.
pub(super) struct Words {
    miss: Py<PyAny>,
    hit: Py<PyAny>,
    hit_pending: Py<PyAny>,
    retry: Py<PyAny>,
    /// `RequestOffloadingContext` of both policies.
    pub(super) by_block: Py<PyAny>,
    by_request: Py<PyAny>,
    /// `PrepareStoreOutput`.
    pub(super) prepared: Py<PyAny>,
    /// `CPULoadStoreSpec`.
    place: Py<PyAny>,
    pub(super) array: ArrayMaker,
    /// `CacheHitSource.HOST`, or anything where there is none.
    pub(super) host: Py<PyAny>,
    /// `TierFilter.ALL`, where there is one.
    pub(super) everything: Option<Py<PyAny>>,
    /// By tier: its source; its medium and locality.
    pub(super) sources: Mutex<Vec<Py<PyAny>>>,
    pub(super) places: Mutex<Vec<(Py<PyAny>, Py<PyAny>)>>,
}

impl Words {
    pub(super) fn new(words: &Bound<'_, PyDict>) -> PyResult<Self> {
        let word = |name: &str| -> PyResult<Py<PyAny>> {
            words
                .get_item(name)?
                .map(Bound::unbind)
                .ok_or_else(|| PyKeyError::new_err(name.to_owned()))
        };
        Ok(Self {
            miss: word("miss")?,
            hit: word("hit")?,
            hit_pending: word("hit_pending")?,
            retry: word("retry")?,
            by_block: word("by_block")?,
            by_request: word("by_request")?,
            prepared: word("prepared")?,
            place: word("place")?,
            array: ArrayMaker(word("from_buffer")?, word("int32")?),
            host: word("host")?,
            everything: words
                .get_item("everything")?
                .filter(|w| !w.is_none())
                .map(Bound::unbind),
            sources: Mutex::default(),
            places: Mutex::default(),
        })
    }

    pub(super) fn answer(&self, found: Found) -> &Py<PyAny> {
        match found {
            Found::Hit => &self.hit,
            Found::HitPending => &self.hit_pending,
            Found::Retry => &self.retry,
            Found::Miss => &self.miss,
        }
    }

    /// A member of `LookupResult`.
    pub(super) fn hit(&self, py: Python<'_>) -> Py<PyAny> {
        self.hit.clone_ref(py)
    }

    /// A member of `LookupResult`.
    pub(super) fn retry(&self, py: Python<'_>) -> Py<PyAny> {
        self.retry.clone_ref(py)
    }

    pub(super) fn policy(&self, policy: StorePolicy) -> &Py<PyAny> {
        match policy {
            StorePolicy::NewBlocks => &self.by_block,
            StorePolicy::EveryBlock => &self.by_request,
        }
    }

    /// Rows as vLLM's workers are told of them.
    pub(super) fn place(&self, py: Python<'_>, slots: &[u32]) -> PyResult<Py<PyAny>> {
        self.place.call1(py, (self.array.of(py, slots)?,))
    }
}
