//! The tiering manager for vLLM's scheduler: each call of its interface is one native call. The Python class over it
//! (`kvweir.vllm.manager`) adds what is called once a step or less: events, metrics, tiers written in Python.
//!
//! The manager's lock is never waited for with the interpreter's lock held, since a tier written in Python takes the
//! latter while it has the former. A tier of Python that calls back does so from `serve_external_requests` only, which
//! is called without the manager's lock.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | the calls of a step |
//! | `tiers.rs` | adding tiers; a native tier that its Python object shares |
//! | `hosted.rs` | a tier written in Python |
//! | `gates.rs` | gates, and detectors written in Python |
//! | `state.rs` | what is behind the lock; contexts and the requests they name |
//! | `external.rs` | what tiers ask on behalf of others |
//! | `numbers.rs` | counters as dictionaries |

mod external;
mod gates;
mod hosted;
mod numbers;
mod state;
mod tiers;

use std::{
    collections::HashMap,
    sync::{Arc, Mutex},
    time::Duration,
};

use kvweir::{
    Key,
    io::process::Home,
    manager::{Found, Groups, Manager as Engine, NewRequest, PlanSettings},
    primary::Primary,
    tier::{RequestId, StorePolicy},
};
use pyo3::{
    exceptions::PyValueError,
    prelude::*,
    types::{PyBytes, PyDict, PyList, PyString, PyTuple},
};

use self::state::{Contexts, Manager, Open, State, Told, Words, locked};
use crate::{
    buffer::{View, is_quiet},
    errors::{UnavailableError, raise},
    keys::{Names, by_position, changes},
    tier::state::request,
};

/// Sizes of stores kept until they are taken.
const MAX_ALLOCATIONS: usize = 4096;

fn closed(op: &'static str) -> kvweir::Error {
    kvweir::Error::new(kvweir::ErrorKind::Closed, op, "the manager was shut down")
}

/// The group of a key: its last four bytes.
fn group_of(key: &Key) -> u32 {
    key.as_bytes()
        .last_chunk::<4>()
        .map_or(0, |tail| tail.iter().fold(0, |n, &byte| n << 8 | u32::from(byte)))
}

/// The keys of anything that yields them; what is no key is left out.
fn keys_of(keys: &Bound<'_, PyAny>) -> PyResult<Vec<Key>> {
    let mut out = Vec::with_capacity(keys.len().unwrap_or(0).min(1 << 20));
    let mut push = |k: &Bound<'_, PyAny>| {
        if let Some(key) = key_of(k) {
            out.push(key);
        }
    };
    if let Ok(list) = keys.cast_exact::<PyList>() {
        list.iter().for_each(|k| push(&k));
    } else {
        for k in keys.try_iter()? {
            push(&k?);
        }
    }
    Ok(out)
}

fn key_of(key: &Bound<'_, PyAny>) -> Option<Key> {
    Key::new(key.cast::<PyBytes>().ok()?.as_bytes()).ok()
}

#[pymethods]
impl Manager {
    /// Manages the rows of `view`. `words`: what calls return or make, by name. `order`: the attribute of a request's
    /// context that has its keys in prefix order; without it they are told by `touch`. `windows`: per KV-cache group the
    /// chunks that a request needs, or none for all; without it, that is seen from how groups are searched. `hears_flush`: whether `on_reset_flushed` follows each reset.
    #[new]
    #[pyo3(signature = (view, words, *, policy="lru", events=false, order=None, windows=None, promote_share=0.75,
        promote_wait_s=10.0, hears_flush=true))]
    #[expect(clippy::too_many_arguments, reason = "the settings, by name")]
    fn new(
        py: Python<'_>,
        view: &Bound<'_, PyAny>,
        words: &Bound<'_, PyDict>,
        policy: &str,
        events: bool,
        order: Option<&str>,
        windows: Option<Vec<Option<u32>>>,
        promote_share: f64,
        promote_wait_s: f64,
        hears_flush: bool,
    ) -> PyResult<Self> {
        let view = View::new(view)?;
        let wait = Duration::try_from_secs_f64(promote_wait_s).map_err(|_| {
            PyValueError::new_err(format!(
                "promote_wait_s = {promote_wait_s}: seconds, zero or more, are wanted"
            ))
        })?;
        let primary = Primary::new(view.region.clone(), policy.parse().map_err(raise)?, events);
        let engine = Engine::new(primary)
            .groups(windows.map_or_else(
                || Groups::watched(group_of),
                |windows| Groups::new(group_of, windows),
            ))
            .planning(PlanSettings {
                share: promote_share,
                wait,
            })
            .map_err(raise)?;
        Ok(Self {
            home: Home::here(),
            state: Mutex::new(State {
                open: Some(Open {
                    engine,
                    region: view.region.clone(),
                    events: Vec::new(),
                    allocations: Vec::new(),
                }),
                asking: None,
                orders: HashMap::new(),
            }),
            contexts: Arc::new(Contexts::default()),
            view: Mutex::new(Some(view)),
            words: Words::new(words)?,
            order: order.map(|name| PyString::intern(py, name).unbind()),
            hosted: Mutex::default(),
            hears_flush,
        })
    }

    /// Where `key` stands for the request of `context`. Never raises: what is no key is a miss.
    fn lookup(&self, key: &Bound<'_, PyAny>, context: &Bound<'_, PyAny>) -> Py<PyAny> {
        let py = key.py();
        let found = match (key_of(key), self.asking(context)) {
            (Some(key), Some(req)) => self.find(py, &key, req, context),
            _ => Found::Miss,
        };
        self.words.answer(found).clone_ref(py)
    }

    /// The tier that `key` came from, for a request that hit it.
    fn get_load_source(&self, key: &Bound<'_, PyAny>, context: &Bound<'_, PyAny>) -> Py<PyAny> {
        let py = key.py();
        let tier = match (key_of(key), self.asking(context)) {
            (Some(key), Some(req)) => self.with(py, None, |o| o.engine.origin(&key, req)),
            _ => None,
        };
        let sources = locked(&self.words.sources);
        let of_tier = tier.and_then(|t| sources.get(t));
        of_tier.unwrap_or(&self.words.host).clone_ref(py)
    }

    /// Makes `keys`, each answered HIT in this step, readable for a copy; where they are.
    fn prepare_load(&self, keys: &Bound<'_, PyAny>, context: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = keys.py();
        let req = self.asking(context);
        let ends = self.ends(keys, context);
        let keys = keys_of(keys)?;
        let slots = self.with(py, Err(closed("load")), |o| match req {
            Some(req) => o.engine.prepare_load_of(&keys, &ends, req),
            None => o.engine.prepare_load(&keys),
        });
        self.words.place(py, &slots.map_err(raise)?)
    }

    /// The request used `keys`; up to vLLM 0.30 it tells their order.
    fn touch(&self, keys: &Bound<'_, PyAny>, context: &Bound<'_, PyAny>) -> PyResult<()> {
        let Some(req) = self.asking(context) else {
            return Ok(());
        };
        let keys = keys_of(keys)?;
        let mut state = self.lock(context.py());
        if let Some(Told::Awaited(order)) = state.orders.get_mut(&req) {
            order.extend(keys.iter().cloned());
        }
        if let Some(o) = &mut state.open {
            o.engine.touch(&keys, req);
        }
        Ok(())
    }

    /// The copy of `keys` to the accelerator is over.
    #[pyo3(signature = (keys, req_context=None))]
    fn complete_load(&self, keys: &Bound<'_, PyAny>, req_context: Option<&Bound<'_, PyAny>>) -> PyResult<()> {
        let _ = req_context;
        let all = keys_of(keys)?;
        self.with(keys.py(), (), |o| o.engine.complete_load(&all));
        Ok(())
    }

    /// Room in the primary for those of `keys` that are not there; none if there is none.
    fn prepare_store(
        &self,
        keys: &Bound<'_, PyAny>,
        context: &Bound<'_, PyAny>,
    ) -> PyResult<Option<Py<PyAny>>> {
        let py = keys.py();
        let Some(req) = self.asking(context) else {
            return Ok(None);
        };
        let given = PyTuple::new(py, keys.try_iter()?.collect::<PyResult<Vec<_>>>()?)?;
        let (mut names, mut objects) = (Vec::with_capacity(given.len()), Vec::with_capacity(given.len()));
        for object in given.iter() {
            if let Some(key) = key_of(&object) {
                names.push(key);
                objects.push(object);
            }
        }
        let ends = self.ends(given.as_any(), context);
        let Some(room) = self.with(py, None, |o| {
            let room = o.engine.prepare_store_of(&names, &ends, req)?;
            if !room.to_store.is_empty() && o.allocations.len() < MAX_ALLOCATIONS {
                o.allocations.push(room.to_store.len());
            }
            Some(room)
        }) else {
            return Ok(None);
        };
        let slots: Vec<u32> = room.to_store.iter().map(|&(_, slot)| slot).collect();
        // in the order in which they were given
        let mut of = names.iter().zip(&objects);
        let stored = room
            .to_store
            .iter()
            .filter_map(|(key, _)| of.find(|(k, _)| *k == key).map(|(_, object)| object));
        let stored = PyList::new(py, stored.collect::<Vec<_>>())?;
        let evicted = PyList::new(py, room.evicted.iter().map(|k| PyBytes::new(py, k.as_bytes())))?;
        let place = self.words.place(py, &slots)?;
        Ok(Some(self.words.prepared.call1(py, (stored, place, evicted))?))
    }

    /// The copy of `keys` from the accelerator is over: they go down to the tiers; or, without success, they are gone.
    #[pyo3(signature = (keys, req_context, success=true))]
    fn complete_store(
        &self,
        keys: &Bound<'_, PyAny>,
        req_context: &Bound<'_, PyAny>,
        success: bool,
    ) -> PyResult<()> {
        let Some(req) = self.asking(req_context) else {
            return Ok(());
        };
        let all = keys_of(keys)?;
        self.with(keys.py(), (), |o| {
            o.engine.complete_store_in_any_order(all, req, success);
        });
        Ok(())
    }

    /// A request begins; how its blocks are to be offered.
    fn on_new_request(&self, context: &Bound<'_, PyAny>) -> PyResult<Py<PyAny>> {
        let py = context.py();
        let Some(req) = self.asking(context) else {
            return Ok(self.words.by_block.clone_ref(py));
        };
        let new = self.new_request(context)?;
        self.contexts.insert(req, context, 0);
        let policy = self.with(py, StorePolicy::NewBlocks, |o| o.engine.on_new_request(req, new));
        Ok(self.words.policy(policy).clone_ref(py))
    }

    /// The request is over.
    fn on_request_finished(&self, context: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = context.py();
        let Some(req) = self.asking(context) else {
            return Ok(());
        };
        self.forget_context(py);
        let keys = match self.keys_told(context) {
            Some(told) => {
                let ends: Vec<u64> = told.iter().map(|&(_, end)| end).collect();
                by_position(told.into_iter().map(|(key, _)| key), &ends)
            }
            None => Vec::new(),
        };
        let mut state = self.lock(py);
        let told = match state.orders.remove(&req) {
            Some(Told::Known(keys) | Told::Awaited(keys)) => keys,
            None => Vec::new(),
        };
        let keys = if keys.is_empty() { told } else { keys };
        if let Some(o) = &mut state.open {
            o.engine.on_request_finished(req, &keys);
        }
        Ok(())
    }

    /// The step's last call; `context.new_req_ids` run now for the first time.
    fn on_schedule_end(&self, context: &Bound<'_, PyAny>) -> PyResult<()> {
        let py = context.py();
        let ids = context.getattr(pyo3::intern!(py, "new_req_ids"))?;
        let scheduled: Vec<RequestId> = ids
            .try_iter()?
            .filter_map(|name| Some(request(&name.ok()?)))
            .collect();
        self.with(py, (), |o| {
            scheduled.into_iter().for_each(|req| o.engine.let_go(req));
            o.engine.on_schedule_end();
        });
        Ok(())
    }

    /// Whether the engine has to go on stepping.
    fn has_pending_work(&self, py: Python<'_>) -> bool {
        self.with(py, false, |o| o.engine.has_pending_work())
    }

    /// Forgets what the primary holds; the tiers keep their blocks.
    fn reset_cache(&self, py: Python<'_>) {
        self.forget_context(py);
        py.detach(|| {
            let mut state = locked(&self.state);
            state.orders.clear();
            if let Some(o) = state.open.as_mut().filter(|_| !self.home.is_elsewhere()) {
                o.engine.reset();
                if !self.hears_flush {
                    o.engine.on_reset_flushed();
                }
            }
        });
    }

    /// The workers have ended what was under way at the reset.
    fn on_reset_flushed(&self, py: Python<'_>) {
        self.with(py, (), |o| o.engine.on_reset_flushed());
    }

    /// Residency changes of the primary since the last call: whether removed, and the keys, oldest first.
    fn take_primary_events<'py>(&self, py: Python<'py>) -> Vec<(bool, Vec<Bound<'py, PyBytes>>)> {
        let events = self.with(py, Vec::new(), |o| {
            o.engine.take_primary_events(&mut o.events);
            std::mem::take(&mut o.events)
        });
        changes(py, events)
    }

    /// Blocks that were to come into the primary since the last call and did not.
    fn take_lost<'py>(&self, py: Python<'py>) -> Vec<Bound<'py, PyBytes>> {
        let lost = self.with(py, Vec::new(), |o| o.engine.take_lost());
        lost.iter().map(|key| PyBytes::new(py, key.as_bytes())).collect()
    }

    /// Ends all tiers and lets go of the memory. Further calls find nothing.
    fn close(&self, py: Python<'_>) -> PyResult<()> {
        if self.home.is_elsewhere() {
            return Ok(());
        }
        self.forget_context(py);
        let quiet = py.detach(|| {
            let mut state = locked(&self.state);
            let Some(mut o) = state.open.take() else {
                return true;
            };
            o.engine.shutdown();
            o.engine.remove_tiers();
            is_quiet(&o.region)
        });
        self.contexts.clear();
        let view = locked(&self.view).take();
        if !quiet {
            // a worker hangs in I/O on a row: the memory may not go before it returns, if it ever does (I5)
            std::mem::forget(view);
            return Err(UnavailableError::new_err(
                "I/O still runs at shutdown; the memory stays in use",
            ));
        }
        drop(view);
        Ok(())
    }
}

impl Manager {
    fn find(&self, py: Python<'_>, key: &Key, req: RequestId, context: &Bound<'_, PyAny>) -> Found {
        if self.order.is_none() {
            self.tell_touched(py, req);
        }
        if let Some(found) = self.with(py, Some(Found::Miss), |o| o.engine.lookup_with_prefix(key, req)) {
            return found;
        }
        let told = self.keys_told(context);
        let mut state = self.lock(py);
        let State { open, orders, .. } = &mut *state;
        let Some(o) = open else { return Found::Miss };
        if self.order.is_none() {
            // the version tells the order after it first asked
            orders.insert(req, Told::Awaited(Vec::new()));
            return o.engine.await_prefix(key, req);
        }
        match told {
            Some(told) => o.engine.set_prefix(req, told),
            None => o.engine.set_no_prefix(req),
        }
        o.engine.lookup(key, req)
    }

    /// Passes on the keys that `touch` has named since they were wanted.
    fn tell_touched(&self, py: Python<'_>, req: RequestId) {
        let mut state = self.lock(py);
        let State { open, orders, .. } = &mut *state;
        if let (Some(o), Some(Told::Awaited(keys))) = (open, orders.get_mut(&req))
            && !keys.is_empty()
        {
            let keys = std::mem::take(keys);
            orders.insert(req, Told::Known(keys.clone()));
            // of a group with a window a part is named only: how the groups stand to each other is not told
            let first = keys.first().map(group_of);
            if keys.iter().all(|key| Some(group_of(key)) == first) {
                o.engine.set_prefix(req, counted(keys));
            } else {
                o.engine.set_no_prefix(req);
            }
        }
    }

    /// The keys of a request as its context has them, each with where it ends: those that end blocks first, as vLLM tells
    /// them first. None where it has none.
    fn keys_told(&self, context: &Bound<'_, PyAny>) -> Option<Vec<(Key, u64)>> {
        let all = context.getattr(self.order.as_ref()?.bind(context.py())).ok()?;
        let all = all.cast_exact::<PyDict>().ok().filter(|d| !d.is_empty())?;
        let (names, ends) = Names::known(all).ok()?;
        Some(names.keys().zip(ends).collect())
    }

    /// Where each of `keys` that is a key ends in its request; 0 where that is not told.
    fn ends(&self, keys: &Bound<'_, PyAny>, context: &Bound<'_, PyAny>) -> Vec<u64> {
        let py = keys.py();
        let told = self
            .order
            .as_ref()
            .and_then(|order| context.getattr(order.bind(py)).ok());
        let told = told.as_ref().and_then(|told| told.cast_exact::<PyDict>().ok());
        let keys = keys.try_iter().into_iter().flatten().flatten();
        keys.filter(|object| key_of(object).is_some())
            .map(|object| {
                let end = told.and_then(|t| t.get_item(&object).ok().flatten());
                end.and_then(|end| end.extract().ok()).unwrap_or(0)
            })
            .collect()
    }

    /// What a request wants, as its context says.
    fn new_request(&self, context: &Bound<'_, PyAny>) -> PyResult<NewRequest> {
        let py = context.py();
        let Some(everything) = &self.words.everything else {
            return Ok(NewRequest::default());
        };
        let filter = context.getattr(pyo3::intern!(py, "load_tier_filter"))?;
        if filter.is(everything) {
            return Ok(NewRequest::default());
        }
        let places: Vec<(Py<PyAny>, Py<PyAny>)> = {
            let places = locked(&self.words.places);
            places
                .iter()
                .map(|(m, l)| (m.clone_ref(py), l.clone_ref(py)))
                .collect()
        };
        let mut not_from = Vec::new();
        for (i, place) in places.into_iter().enumerate() {
            if !filter
                .call_method1(pyo3::intern!(py, "allows"), place)?
                .is_truthy()?
            {
                not_from.push(i);
            }
        }
        Ok(NewRequest {
            not_from,
            ..NewRequest::default()
        })
    }
}

/// Keys with their places within their groups.
fn counted(keys: Vec<Key>) -> Vec<(Key, u64)> {
    let mut places: HashMap<u32, u64> = HashMap::new();
    keys.into_iter()
        .map(|key| {
            let place = places.entry(group_of(&key)).or_default();
            *place += 1;
            (key, *place)
        })
        .collect()
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    m.add_class::<gates::Gate>()?;
    m.add_class::<Manager>()
}
