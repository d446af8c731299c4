//! Lookups answered ahead. vLLM asks for the keys of a prompt one by one, in the order in which its context names them:
//! after a hit the next ones are looked up together, so that their memory accesses overlap, and pinned; the calls that
//! ask for them then compare bytes and nothing else. Only hits are answered from here, and only until the next call of
//! another kind: a miss is always looked up when it is asked for, and a pinned block stays (I3).

use pyo3::{
    prelude::*,
    types::{PyBytes, PyDict, PyIterator, PyString},
};

use crate::keys::Names;

/// Most keys looked up together.
const MOST: usize = 64;

/// Keys that hit and were not asked for yet.
#[derive(Default)]
pub(crate) struct Ahead {
    /// The request's keys, from where they were read last.
    order: Option<Py<PyIterator>>,
    /// The order is not known, or was read to its end.
    over: bool,
    names: Names,
    hits: usize,
    next: usize,
    /// How many were looked up last: few until the keys are seen to come in order.
    size: usize,
}

impl Ahead {
    /// Whether `key` is one that hit; those before it are passed over.
    pub(crate) fn answers(&mut self, key: &[u8]) -> bool {
        for at in self.next..self.hits {
            if self.names.get(at) == Some(key) {
                self.next = at + 1;
                return true;
            }
        }
        false
    }

    /// Whether there is anything to read on.
    pub(crate) fn is_over(&self) -> bool {
        self.over
    }

    /// Reads the keys that come after `key` among those that `context` names in its attribute `attribute`.
    pub(crate) fn read_on(&mut self, key: &[u8], context: &Bound<'_, PyAny>, attribute: &Bound<'_, PyAny>) {
        self.names.clear();
        (self.hits, self.next) = (0, 0);
        self.size = (2 * self.size).clamp(2, MOST);
        if self.read(key, context, attribute).is_none() {
            self.over = true;
            self.order = None;
        }
    }

    /// What was read.
    pub(crate) fn names(&self) -> &Names {
        &self.names
    }

    /// Whether letting go of it lets go of an object of Python.
    pub(crate) fn is_of_python(&self) -> bool {
        self.order.is_some()
    }

    /// `None` at the end of the order, or where there is none.
    fn read(&mut self, key: &[u8], context: &Bound<'_, PyAny>, attribute: &Bound<'_, PyAny>) -> Option<()> {
        let py = context.py();
        if self.order.is_none() {
            let all = context.getattr(attribute.cast::<PyString>().ok()?).ok()?;
            let order = all.cast_exact::<PyDict>().ok()?.try_iter().ok()?;
            self.order = Some(order.unbind());
        }
        let mut order = self.order.as_ref()?.bind(py).clone();
        loop {
            let k = order.next()?.ok()?;
            if k.cast::<PyBytes>().is_ok_and(|k| k.as_bytes() == key) {
                break;
            }
        }
        for _ in 0..self.size {
            self.names.push(&order.next()?.ok()?).ok()?;
        }
        Some(())
    }

    /// The first `hits` of what was read are held.
    pub(crate) fn found(&mut self, hits: usize) {
        self.hits = hits;
    }
}
