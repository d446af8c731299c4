//! Adding tiers. One of ours is shared with its Python object, which goes on telling its numbers and events.

use std::sync::Arc;

use kvweir::{
    Key,
    error::ErrorKind,
    events::{Event, Locality, Medium},
    metrics::TierStats,
    tier::{Direction, LoadJob, Lookup, Report, RequestId, StoreJob, Tier},
};
use pyo3::prelude::*;

use super::{
    gates,
    hosted::{HostedJobs, HostedTier, Shape},
    state::{Manager, locked},
};
use crate::tier::state::FsTier;

/// The engine of a tier whose Python object somebody else has too. No Python runs in its calls.
#[derive(Debug)]
struct Shared {
    name: String,
    locality: Locality,
    tier: Py<FsTier>,
    /// Jobs that came after its end.
    refused: Vec<Report>,
}

impl Shared {
    fn with<R>(&self, closed: R, f: impl FnOnce(&mut dyn Tier) -> R) -> R {
        match self.tier.get().lock().open.as_mut() {
            Some(o) => f(&mut o.engine),
            None => closed,
        }
    }
}

impl Tier for Shared {
    fn name(&self) -> &str {
        &self.name
    }

    fn medium(&self) -> Medium {
        Medium::Storage
    }

    fn locality(&self) -> Locality {
        self.locality
    }

    fn lookup(&mut self, key: &Key, req: RequestId) -> Lookup {
        self.with(Lookup::Miss, |t| t.lookup(key, req))
    }

    fn lookup_run(&mut self, keys: &[Key], req: RequestId) -> (usize, Lookup) {
        self.with((0, Lookup::Miss), |t| t.lookup_run(keys, req))
    }

    fn submit_store(&mut self, job: StoreJob) {
        match self.tier.get().lock().open.as_mut() {
            Some(o) => o.engine.submit_store(job),
            None => self.refused.push(Report::refused(
                job.id,
                Direction::Store,
                job.blocks.len(),
                ErrorKind::Closed,
            )),
        }
    }

    fn submit_load(&mut self, job: LoadJob) {
        match self.tier.get().lock().open.as_mut() {
            Some(o) => o.engine.submit_load(job),
            None => self.refused.push(Report::refused(
                job.id,
                Direction::Load,
                job.blocks.len(),
                ErrorKind::Closed,
            )),
        }
    }

    fn poll(&mut self, reports: &mut Vec<Report>) {
        self.with((), |t| t.poll(reports));
        reports.append(&mut self.refused);
    }

    fn touch(&mut self, keys: &[Key], req: RequestId) {
        self.with((), |t| t.touch(keys, req));
    }

    fn on_request_finished(&mut self, req: RequestId, keys: &[Key]) {
        if let Some(o) = self.tier.get().lock().open.as_mut() {
            // a worker marks the blocks as used
            let keys = keys.to_vec();
            o.engine.finish_later(req, move || keys);
        }
    }

    fn take_events(&mut self, _events: &mut Vec<Event>) {
        // its Python object tells them
    }

    fn has_pending_work(&self) -> bool {
        !self.refused.is_empty() || self.with(false, |t| t.has_pending_work())
    }

    fn drain(&mut self) {
        self.with((), |t| t.drain());
    }

    fn shutdown(&mut self) {
        self.with((), |t| t.shutdown());
    }

    fn stats(&self) -> TierStats {
        self.with(TierStats::default(), |t| t.stats())
    }
}

#[pymethods]
impl Manager {
    /// Adds a tier of ours below those added before. `gate`: its back-pressure, a `Gate` or a detector of Python.
    /// `source`, `medium`, `locality`: vLLM's words for where it is.
    fn add_native(
        &self,
        tier: &Bound<'_, FsTier>,
        name: &str,
        gate: &Bound<'_, PyAny>,
        source: Py<PyAny>,
        place: (Py<PyAny>, Py<PyAny>),
        remote: bool,
    ) -> PyResult<()> {
        let gate = gates::of(gate)?;
        let shared = Shared {
            name: name.to_owned(),
            locality: if remote { Locality::Remote } else { Locality::Local },
            tier: tier.clone().unbind(),
            refused: Vec::new(),
        };
        self.add(tier.py(), Box::new(shared), gate, (source, place), None);
        Ok(())
    }

    /// Adds a tier written in Python. `job`: makes a `TransferJob` of number, keys, rows, direction and context.
    #[expect(clippy::too_many_arguments, reason = "what a tier is, by name")]
    fn add_hosted(
        &self,
        tier: &Bound<'_, PyAny>,
        name: &str,
        gate: &Bound<'_, PyAny>,
        source: Py<PyAny>,
        place: (Py<PyAny>, Py<PyAny>),
        remote: bool,
        job: Py<PyAny>,
    ) -> PyResult<()> {
        let py = tier.py();
        self.contexts.keep();
        let gate = gates::of(gate)?;
        let shape = Shape {
            name: name.to_owned(),
            remote,
            memory: place
                .0
                .bind(py)
                .str()
                .is_ok_and(|s| s.to_string_lossy().ends_with("CPU")),
        };
        let jobs = HostedJobs::default();
        let contexts = Arc::clone(&self.contexts);
        let hosted = HostedTier::new(tier, shape, job, &self.words, contexts, Arc::clone(&jobs))?;
        self.add(py, Box::new(hosted), gate, (source, place), Some(jobs));
        Ok(())
    }
}

impl Manager {
    fn add(
        &self,
        py: Python<'_>,
        tier: Box<dyn Tier>,
        gate: Option<kvweir::pressure::Gate>,
        (source, place): (Py<PyAny>, (Py<PyAny>, Py<PyAny>)),
        jobs: Option<HostedJobs>,
    ) {
        self.with(py, (), |o| o.engine.add_tier(tier, gate));
        locked(&self.words.sources).push(source);
        locked(&self.words.places).push(place);
        locked(&self.hosted).push(jobs);
    }
}
