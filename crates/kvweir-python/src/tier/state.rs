//! What an object of the tier holds, and how a key that it is asked for is answered.

use std::sync::{Mutex, MutexGuard, PoisonError};

use kvweir::{
    Key,
    events::Event,
    fs::FsTier as Engine,
    io::{Region, process::Home},
    metrics::TierStats,
    pacing::{Answer, PacedKey},
    tier::{Lookup, Report, RequestId, Tier},
};
use pyo3::{
    prelude::*,
    types::{PyBytes, PyString},
};

use crate::{
    ahead::Ahead,
    buffer::{View, is_quiet},
    errors::ClosedError,
    paced::{Paced, Steps},
};

/// A tier that was not shut down.
pub(crate) struct Open {
    pub(crate) engine: Engine,
    pub(super) region: Region,
    pub(super) reports: Vec<Report>,
    pub(super) events: Vec<Event>,
}

/// What is under the lock.
#[derive(Default)]
pub(crate) struct State {
    pub(crate) open: Option<Open>,
    /// The context of the last lookup and the request it names: thousands of lookups in a row bring the same one.
    pub(super) asking: Option<(Py<PyAny>, RequestId)>,
    pub(super) ahead: Ahead,
    /// Lookups answered from `ahead` that the engine was not told of.
    pub(super) answered: u64,
    pub(super) paced: Option<Paced>,
    pub(super) steps: Steps,
}

/// A bounded file tier over a writable buffer of rows.
#[pyclass(frozen, module = "kvweir._kvweir")]
pub(crate) struct FsTier {
    /// Elsewhere no lock is touched: a thread that is not there may hold it.
    pub(super) home: Home,
    pub(super) state: Mutex<State>,
    /// Released after the engine, which may still touch it.
    pub(super) view: Mutex<Option<View>>,
    pub(super) last: Mutex<TierStats>,
    pub(super) answers: [Py<PyAny>; 3],
    /// The attribute of a context that names its request's keys in order.
    pub(super) order: Option<Py<PyAny>>,
}

impl State {
    /// What is answered for a block that the tier has, where no plan has to be made first.
    pub(super) fn answer(&mut self, req: RequestId, key: PacedKey) -> Option<Answer> {
        match &mut self.paced {
            Some(p) => p.admitted(req, key),
            None => Some(Answer::Hit),
        }
    }

    /// The engine, its numbers complete.
    pub(super) fn engine(&mut self) -> Option<&mut Open> {
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
        if !is_quiet(&o.region) {
            std::mem::forget(self.view.get_mut().unwrap_or_else(PoisonError::into_inner).take());
        }
    }
}

impl FsTier {
    /// Whether this is a child of the process that opened the tier, which is said once.
    pub(super) fn is_abroad(&self, py: Python<'_>) -> bool {
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

    pub(crate) fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// For calls that are no lookups: what was looked up ahead is not answered any more.
    pub(super) fn other(&self) -> MutexGuard<'_, State> {
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
    pub(super) fn pace(&self, py: Python<'_>, f: impl FnOnce(&mut Paced)) {
        if self.is_abroad(py) {
            return;
        }
        if let Some(p) = &mut self.lock().paced {
            f(p);
        }
    }

    pub(super) fn with<R>(&self, py: Python<'_>, f: impl FnOnce(&mut Open) -> R) -> PyResult<R> {
        if self.is_abroad(py) {
            return Err(ClosedError::new_err(self.home.told_elsewhere("tier")));
        }
        self.other()
            .engine()
            .map(f)
            .ok_or_else(|| ClosedError::new_err("the tier was shut down"))
    }

    /// The state, and the request that `context.req_id` names; none where it names none.
    pub(super) fn asking(&self, context: &Bound<'_, PyAny>) -> Option<(MutexGuard<'_, State>, RequestId)> {
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
    pub(super) fn remember(&self, context: Option<(Py<PyAny>, RequestId)>) {
        let mut state = self.lock();
        let old = (
            std::mem::replace(&mut state.asking, context),
            std::mem::take(&mut state.ahead),
        );
        drop(state);
        drop(old);
    }

    /// What the engine and the pacer say of a key that was not looked up ahead.
    pub(super) fn ask(
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

/// The engine's number of a request's name, whatever the name is: vLLM takes it from clients, so it may be a text that
/// is no Unicode.
pub(crate) fn request(name: &Bound<'_, PyAny>) -> RequestId {
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
