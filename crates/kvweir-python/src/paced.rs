//! Pacing of promotions, fed with what vLLM's calls tell: the order of a request's keys from its context (0.31 and
//! later) or from `touch` (before), jobs, and the ends of steps.

use std::{collections::HashMap, thread::ThreadId, time::Duration};

use kvweir::{
    Key,
    clock::SystemClock,
    pacing::{Answer, OrderedKey, Outlook, PacedKey, Pacer, PacingSettings},
    tier::RequestId,
};
use pyo3::{
    prelude::*,
    types::{PyDict, PyString},
};

use crate::{errors::raise, keys::Names};

/// Most polls in a step that belong to its stores: one for each request that runs.
const MOST_POLLS: u32 = 1000;
/// Most requests whose keys `touch` named and nobody has used yet.
const MOST_ORDERS: usize = 1024;

/// Where in its step the scheduler is.
#[derive(Default)]
pub(crate) struct Steps {
    /// The thread that ends steps.
    scheduler: Option<ThreadId>,
    /// How often it polled since the last one ended.
    pub(crate) polled: u32,
}

impl Steps {
    /// Jobs are polled: whether in the middle of a step, by the scheduler.
    pub(crate) fn polls(&mut self) -> bool {
        if self.scheduler != Some(std::thread::current().id()) {
            return false;
        }
        self.polled = self.polled.saturating_add(1);
        // who polls on and on waits for a load, and ends no step before
        (2..=MOST_POLLS).contains(&self.polled)
    }

    pub(crate) fn ended(&mut self) {
        self.scheduler = Some(std::thread::current().id());
        self.polled = 0;
    }
}

/// The pacer, and what is known of the order of keys.
pub(crate) struct Paced {
    pacer: Pacer,
    /// From `touch`: the keys of requests that wait, group by group.
    touched: HashMap<RequestId, Names>,
}

impl Paced {
    pub(crate) fn new(slots: usize, windows: Vec<Option<u32>>, share: f64, wait_s: f64) -> PyResult<Self> {
        let wait = Duration::try_from_secs_f64(wait_s).map_err(|_| {
            pyo3::exceptions::PyValueError::new_err(format!(
                "promote_wait_s = {wait_s}: seconds, zero or more, are wanted"
            ))
        })?;
        let settings = PacingSettings { share, wait };
        settings.validate().map_err(raise)?;
        Ok(Self {
            pacer: Pacer::new(slots as u64, windows, settings, SystemClock::shared()),
            touched: HashMap::new(),
        })
    }

    /// An answer that needs no look at the tier.
    pub(crate) fn before(&mut self, req: RequestId, key: PacedKey) -> Option<Answer> {
        self.pacer.before(req, key)
    }

    /// The answer for a block of a request that the pacer let through already, or nothing.
    pub(crate) fn admitted(&mut self, req: RequestId, key: PacedKey) -> Option<Answer> {
        self.pacer
            .is_admitted(req)
            .then(|| self.pacer.hit(req, key, || None))
    }

    /// The answer for the first block of a request. `order`: its keys; `held` tells which of them the tier has.
    pub(crate) fn first(
        &mut self,
        req: RequestId,
        key: PacedKey,
        order: Option<Order>,
        held: impl FnOnce(&[Key]) -> Vec<bool>,
    ) -> Answer {
        let order = match order {
            Some(Order::Count(n)) if self.pacer.has_plenty(n) => {
                return self.pacer.hit(req, key, || Some(Outlook::at_most(n as u64)));
            }
            Some(Order::Count(_)) | None => self.touched.remove(&req).map(|names| (names, Vec::new())),
            Some(Order::Keys(names, ends)) => Some((names, ends)),
        };
        let outlook = order.map(|(names, ends)| {
            let keys: Vec<Key> = names.keys().collect();
            let held = held(&keys);
            let mut places: HashMap<u32, u64> = HashMap::new();
            let order: Vec<OrderedKey> = keys
                .iter()
                .zip(held)
                .enumerate()
                .map(|(i, (key, held))| {
                    let key = PacedKey::new(key.as_bytes());
                    let place = places.entry(key.group).or_default();
                    *place += 1;
                    OrderedKey {
                        key,
                        end: ends.get(i).copied().unwrap_or(*place),
                        held,
                    }
                })
                .collect();
            self.pacer.outlook(&order, key)
        });
        self.pacer.hit(req, key, || outlook)
    }

    /// How much of the order of `context`'s keys has to be read: how many there are, where they all fit.
    pub(crate) fn order(&self, context: &Bound<'_, PyAny>, attribute: &Bound<'_, PyAny>) -> Option<Order> {
        let all = context.getattr(attribute.cast::<PyString>().ok()?).ok()?;
        let all = all.cast_exact::<PyDict>().ok()?;
        if self.pacer.has_plenty(all.len()) {
            return Some(Order::Count(all.len()));
        }
        let (names, ends) = Names::known(all).ok()?;
        Some(Order::Keys(names, ends))
    }

    /// `touch` named keys of a request.
    pub(crate) fn touched(&mut self, req: RequestId, keys: &Names) {
        if self.pacer.wants_order(req) && self.touched.len() < MOST_ORDERS {
            self.touched.entry(req).or_default().append(keys);
        }
    }

    pub(crate) fn storing(&mut self, req: RequestId, names: &Names) {
        self.pacer.storing(req, ids(names));
    }

    pub(crate) fn stored(&mut self, blocks: usize) {
        self.pacer.stored(blocks as u64);
    }

    pub(crate) fn submitted(&mut self, req: RequestId, names: &Names) {
        self.pacer.submitted(req, ids(names));
    }

    pub(crate) fn release(&mut self, req: RequestId) {
        self.touched.remove(&req);
        self.pacer.release(req);
    }

    pub(crate) fn reset(&mut self) {
        self.touched.clear();
        self.pacer.reset();
    }

    pub(crate) fn step_ended(&mut self, scheduled: impl IntoIterator<Item = RequestId>) {
        self.pacer.step_ended(scheduled);
    }

    /// Adds the numbers to those of the tier.
    pub(crate) fn fill(&self, dict: &Bound<'_, PyDict>) -> PyResult<()> {
        let s = self.pacer.stats();
        for (name, n) in [
            ("promotions_cut_requests", s.cut_requests),
            ("promotions_cut_blocks", s.cut_blocks),
            ("promotions_held_back_requests", s.held_back_requests),
            ("promotions_repeated_blocks", s.repeated_blocks),
            ("promotions_refused_blocks", s.refused_blocks),
            ("promised_slots", s.promised_slots),
        ] {
            dict.set_item(name, n)?;
        }
        Ok(())
    }
}

fn ids(names: &Names) -> impl ExactSizeIterator<Item = u64> + Clone {
    (0..names.len()).map(|i| PacedKey::new(names.get(i).unwrap_or_default()).id)
}

/// The keys of a request.
pub(crate) enum Order {
    /// How many: they all fit.
    Count(usize),
    /// The keys, group by group, and where each ends.
    Keys(Names, Vec<u64>),
}
