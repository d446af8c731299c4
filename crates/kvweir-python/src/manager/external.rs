//! What a tier written in Python asks of the manager on behalf of somebody elsewhere, from `serve_external_requests`.
//! The tier that asks is named by its place; it is not asked itself, nor told of such a request.

use kvweir::{manager::Found, tier::StorePolicy};
use pyo3::{
    prelude::*,
    types::{PyBytes, PyList},
};

use super::{
    hosted::Job,
    key_of, keys_of,
    state::{Manager, locked},
};
use crate::errors::raise;

#[pymethods]
impl Manager {
    /// A request of tier `tier` begins.
    fn external_request(&self, context: &Bound<'_, PyAny>, tier: usize) -> PyResult<Py<PyAny>> {
        let py = context.py();
        let Some(req) = self.asking(context) else {
            return Ok(self.words.by_block.clone_ref(py));
        };
        let new = self.new_request(context)?;
        self.contexts.insert(req, context, 1);
        let policy = self.with(py, StorePolicy::NewBlocks, |o| {
            o.engine.on_external_request(req, new, tier)
        });
        Ok(self.words.policy(policy).clone_ref(py))
    }

    /// As `lookup`, block by block: nothing is planned.
    fn external_lookup(&self, key: &Bound<'_, PyAny>, context: &Bound<'_, PyAny>) -> Py<PyAny> {
        let py = key.py();
        let found = match (key_of(key), self.asking(context)) {
            (Some(key), Some(req)) => self.with(py, Found::Miss, |o| o.engine.lookup(&key, req)),
            _ => Found::Miss,
        };
        self.words.answer(found).clone_ref(py)
    }

    /// Pins `keys` in the primary for a job of tier `tier`: its number, the keys and their rows.
    fn external_store_job<'py>(
        &self,
        keys: &Bound<'py, PyAny>,
        context: &Bound<'py, PyAny>,
        tier: usize,
    ) -> PyResult<(u64, Bound<'py, PyList>, Py<PyAny>)> {
        let py = keys.py();
        let names = keys_of(keys)?;
        let req = self
            .asking(context)
            .ok_or_else(|| crate::errors::InvalidError::new_err("the context names no request"))?;
        let job = self
            .with(py, Err(super::closed("store")), |o| {
                o.engine.store_job_for(&names, req, tier)
            })
            .map_err(raise)?;
        let rows: Vec<u32> = job.blocks.iter().map(|b| b.slot.slot()).collect();
        let listed = PyList::new(py, job.blocks.iter().map(|b| PyBytes::new(py, b.key.as_bytes())))?;
        let id = job.id.0;
        let hosted = self
            .hosted
            .lock()
            .unwrap_or_else(std::sync::PoisonError::into_inner);
        if let Some(Some(jobs)) = hosted.get(tier) {
            let job = Job::of_its_own(job);
            locked(jobs).insert(id, job);
        }
        drop(hosted);
        Ok((id, listed, self.words.array.of(py, &rows)?))
    }

    /// Takes in the jobs of `tiers` that ended.
    fn poll_some(&self, py: Python<'_>, tiers: Vec<usize>) {
        self.with(py, (), |o| tiers.into_iter().for_each(|t| o.engine.poll_tier(t)));
    }

    /// Takes in the jobs that ended, where this step has not done so.
    fn poll_step(&self, py: Python<'_>) {
        self.with(py, (), |o| {
            if !o.engine.set_polled(true) {
                o.engine.poll();
            }
        });
    }

    /// The tiers written in Python are shut down: nothing is asked of them any more.
    fn hosted_are_over(&self) {
        self.contexts.end();
    }

    /// Whether this step has taken in the jobs that ended; `is`: from now on.
    fn set_polled(&self, py: Python<'_>, is: bool) -> bool {
        self.with(py, false, |o| o.engine.set_polled(is))
    }
}
