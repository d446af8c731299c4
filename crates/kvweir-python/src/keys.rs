//! Keys, rows and positions as Python gives them. What is copied here is copied with the interpreter's lock held, so it
//! is bytes one after the other; a worker makes keys and slots of them.

use kvweir::{
    Key,
    events::{Event, EventKind},
};
use pyo3::{
    buffer::PyBuffer,
    exceptions::PyValueError,
    prelude::*,
    types::{PyBytes, PyDict, PyList},
};

use crate::errors::raise;

/// What a key that the request does not know sorts by.
const FAR: u64 = u64::MAX;

/// Keys in a row.
#[derive(Default)]
pub(crate) struct Names {
    bytes: Vec<u8>,
    ends: Vec<u32>,
}

impl Names {
    /// The keys of a list, a set or anything else that yields bytes.
    pub(crate) fn of(keys: &Bound<'_, PyAny>) -> PyResult<Self> {
        let mut names = Self::default();
        if let Ok(list) = keys.cast::<PyList>() {
            names.reserve(list.len());
            list.iter().try_for_each(|k| names.push(&k))?;
        } else {
            names.reserve(keys.len()?);
            keys.try_iter()?.try_for_each(|k| names.push(&k?))?;
        }
        Ok(names)
    }

    /// Those of a request's keys that are keys, and the position of each where `keys` is a dictionary of them.
    pub(crate) fn known(keys: &Bound<'_, PyAny>) -> PyResult<(Self, Vec<u64>)> {
        let (mut names, mut at) = (Self::default(), Vec::new());
        if let Ok(positions) = keys.cast::<PyDict>() {
            names.reserve(positions.len());
            at.reserve(positions.len());
            for (k, position) in positions.iter() {
                if names.push(&k).is_ok() {
                    at.push(position.extract().unwrap_or(FAR));
                }
            }
        } else {
            for k in keys.try_iter()? {
                let _ = names.push(&k?);
            }
        }
        Ok((names, at))
    }

    fn reserve(&mut self, keys: usize) {
        // a hash of 32 bytes and a group
        self.bytes.reserve(keys.saturating_mul(36).min(1 << 24));
        self.ends.reserve(keys.min(1 << 20));
    }

    pub(crate) fn push(&mut self, key: &Bound<'_, PyAny>) -> PyResult<()> {
        let bytes = key.cast::<PyBytes>()?.as_bytes();
        if bytes.is_empty() || bytes.len() > kvweir::block::MAX_KEY_BYTES {
            Key::new(bytes).map_err(raise)?;
        }
        self.bytes.extend_from_slice(bytes);
        self.ends.push(u32::try_from(self.bytes.len())?);
        Ok(())
    }

    /// Adds the keys of `other`.
    pub(crate) fn append(&mut self, other: &Self) {
        let begin = self.ends.last().copied().unwrap_or(0);
        self.bytes.extend_from_slice(&other.bytes);
        self.ends
            .extend(other.ends.iter().map(|end| begin.saturating_add(*end)));
    }

    pub(crate) fn clear(&mut self) {
        self.bytes.clear();
        self.ends.clear();
    }

    /// The bytes of a key.
    pub(crate) fn get(&self, at: usize) -> Option<&[u8]> {
        let begin = match at.checked_sub(1) {
            Some(before) => *self.ends.get(before)?,
            None => 0,
        };
        self.bytes.get(begin as usize..*self.ends.get(at)? as usize)
    }

    /// How many.
    pub(crate) fn len(&self) -> usize {
        self.ends.len()
    }

    /// The keys, in order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = Key> + '_ {
        let mut begin = 0;
        self.ends.iter().filter_map(move |&end| {
            let range = begin..end as usize;
            begin = end as usize;
            Key::new(self.bytes.get(range)?).ok()
        })
    }
}

/// Residency changes as Python takes them: whether removed, and the keys, oldest first; neighbours of a kind together.
pub(crate) fn changes(
    py: Python<'_>,
    events: impl IntoIterator<Item = Event>,
) -> Vec<(bool, Vec<Bound<'_, PyBytes>>)> {
    let mut out: Vec<(bool, Vec<Bound<'_, PyBytes>>)> = Vec::new();
    for e in events {
        let removed = e.kind == EventKind::Removed;
        let key = PyBytes::new(py, e.key.as_bytes());
        match out.last_mut() {
            Some((r, keys)) if *r == removed => keys.push(key),
            _ => out.push((removed, vec![key])),
        }
    }
    out
}

/// Rows, from an array of integers or anything else that yields them.
pub(crate) fn rows(slots: &Bound<'_, PyAny>) -> PyResult<Vec<u32>> {
    let py = slots.py();
    if let Ok(array) = PyBuffer::<i64>::get(slots) {
        return array
            .to_vec(py)?
            .into_iter()
            .map(|n| Ok(u32::try_from(n)?))
            .collect();
    }
    if let Ok(array) = PyBuffer::<i32>::get(slots) {
        return array
            .to_vec(py)?
            .into_iter()
            .map(|n| Ok(u32::try_from(n)?))
            .collect();
    }
    slots.try_iter()?.map(|n| n?.extract()).collect()
}

/// The position of each of `keys` among those of its request; none where no request is known.
pub(crate) fn positions(keys: &Bound<'_, PyAny>, known: Option<&Bound<'_, PyDict>>) -> PyResult<Vec<u64>> {
    let Some(known) = known.filter(|k| !k.is_empty()) else {
        return Ok(Vec::new());
    };
    keys.try_iter()?
        .map(|k| Ok(known.get_item(k?)?.and_then(|n| n.extract().ok()).unwrap_or(FAR)))
        .collect()
}

/// Puts `items` into the order of their `positions`, where these are known; others stay as they are.
pub(crate) fn by_position<T>(items: impl Iterator<Item = T>, positions: &[u64]) -> Vec<T> {
    if positions.is_sorted() {
        return items.collect();
    }
    let mut all: Vec<(u64, T)> = positions.iter().copied().zip(items).collect();
    all.sort_by_key(|&(at, _)| at);
    all.into_iter().map(|(_, item)| item).collect()
}

/// Keys and rows of a job, as Python gave them.
pub(crate) struct Job {
    pub(crate) names: Names,
    pub(crate) rows: Vec<u32>,
    positions: Vec<u64>,
}

impl Job {
    pub(crate) fn new(
        keys: &Bound<'_, PyAny>,
        slots: &Bound<'_, PyAny>,
        known: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Self> {
        let job = Self {
            names: Names::of(keys)?,
            rows: rows(slots)?,
            positions: positions(keys, known)?,
        };
        if job.names.len() != job.rows.len() {
            return Err(PyValueError::new_err("as many slots as keys are wanted"));
        }
        Ok(job)
    }

    /// The blocks, in prefix order where positions tell it; fails if a row is in other use or does not exist.
    pub(crate) fn blocks<B>(&self, block: impl Fn(Key, u32) -> kvweir::Result<B>) -> kvweir::Result<Vec<B>> {
        let pairs = self.names.keys().zip(self.rows.iter().copied());
        by_position(pairs, &self.positions)
            .into_iter()
            .map(|(key, slot)| block(key, slot))
            .collect()
    }
}
