//! Log records of the engine. Workers may not wait for the interpreter's lock (they may hold a lock that the thread
//! with it waits for), so records go into a bounded queue, and Python takes them when it polls.

use std::{
    collections::VecDeque,
    fmt::Write as _,
    sync::{Mutex, MutexGuard, Once, PoisonError},
};

use kvweir::io::process::forks;
use pyo3::prelude::*;
use tracing::{
    Event, Level, Subscriber,
    field::{Field, Visit},
};
use tracing_subscriber::{Layer, layer::Context, prelude::*};

/// Most records kept; the oldest go first.
const KEPT: usize = 1000;

/// By forks: a lock that a thread held when its process forked is held for ever in the child, and what lies there is
/// its parent's to tell.
static RECORDS: [Mutex<VecDeque<(u8, String)>>; 8] = [const { Mutex::new(VecDeque::new()) }; 8];
static INIT: Once = Once::new();

/// Those of this process; `None` after more forks than anybody makes.
fn records() -> Option<MutexGuard<'static, VecDeque<(u8, String)>>> {
    let own = RECORDS.get(usize::try_from(forks()).ok()?)?;
    Some(own.lock().unwrap_or_else(PoisonError::into_inner))
}

struct Keep;

#[derive(Default)]
struct Text {
    message: String,
    fields: String,
}

impl Visit for Text {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            name => write!(self.fields, " {name}={value:?}"),
        };
    }
}

impl<S: Subscriber> Layer<S> for Keep {
    fn on_event(&self, event: &Event<'_>, _: Context<'_, S>) {
        let level = *event.metadata().level();
        if level > Level::INFO {
            return;
        }
        let mut text = Text::default();
        event.record(&mut text);
        // the numbers of Python's logging
        let number = match level {
            Level::ERROR => 40,
            Level::WARN => 30,
            _ => 20,
        };
        let Some(mut records) = records() else { return };
        if records.len() >= KEPT {
            records.pop_front();
        }
        records.push_back((number, text.message + &text.fields));
    }
}

/// Takes the log records since the last call: level as in `logging`, text.
#[pyfunction]
fn take_logs() -> Vec<(u8, String)> {
    records().map_or_else(Vec::new, |mut r| r.drain(..).collect())
}

pub(crate) fn register(m: &Bound<'_, PyModule>) -> PyResult<()> {
    INIT.call_once(|| {
        // another subscriber in this process is somebody's choice
        let _ = tracing_subscriber::registry().with(Keep).try_init();
    });
    m.add_function(wrap_pyfunction!(take_logs, m)?)
}
