//! The seam between the command and the engine: where requests come from, and the run itself.

mod run;

use std::{
    path::Path,
    sync::atomic::{AtomicBool, Ordering},
};

use anyhow::Result;

pub(crate) use run::{Outcome, run};

use crate::{
    interrupt,
    settings::{BUILTIN_REQUESTS, ReplaySettings},
    trace::{BadLines, Notes, Source, TraceReader},
    usage::UsageError,
    workload::{AgentWorkload, WorkloadSettings},
};

/// Requests, already limited in number, and what their reader notices.
pub(crate) struct Workload {
    /// The requests.
    pub(crate) requests: Source,
    /// Grows while the requests are read.
    pub(crate) notes: Notes,
}

/// Opens the trace, or makes up a workload.
pub(crate) fn open(settings: &ReplaySettings) -> Result<Workload> {
    let limit = usize::try_from(settings.requests.unwrap_or(u64::MAX)).unwrap_or(usize::MAX);
    let Some(path) = &settings.trace else {
        let requests = settings.requests.unwrap_or(BUILTIN_REQUESTS);
        let made_up = WorkloadSettings {
            seed: settings.seed,
            requests,
            ..WorkloadSettings::default()
        };
        let requests = Box::new(AgentWorkload::new(made_up).map(Ok));
        return Ok(Workload {
            requests,
            notes: Notes::default(),
        });
    };
    let mut reader = open_trace(settings, path)?;
    let notes = reader.notes();
    // The first request is read now: a file that is no trace is refused before anything else is done.
    let first = reader.next().transpose()?;
    if first.is_none() && interrupt::came() {
        let requests = Box::new(std::iter::empty());
        return Ok(Workload { requests, notes });
    }
    let Some(first) = first else {
        return Err(UsageError {
            message: format!(
                "trace {} holds no request ({} bad lines skipped)",
                path.display(),
                notes.skipped()
            ),
            hint: Some("without TRACE the built-in workload is run"),
        }
        .into());
    };
    let rest = reader.map(|r| r.map_err(Into::into));
    let requests = Box::new(std::iter::once(Ok(first)).chain(rest).take(limit));
    Ok(Workload { requests, notes })
}

/// Reads a trace file through once, so that a bad line is told before anything is made on disk, and counts its
/// requests. Streams such as stdin are checked as they are read; their number of requests is known only if it is
/// limited.
pub(crate) fn survey(settings: &ReplaySettings, stop: &AtomicBool) -> Result<Option<u64>> {
    let Some(path) = &settings.trace else {
        return Ok(settings.requests);
    };
    if !path.is_file() {
        return Ok(settings.requests);
    }
    let limit = settings.requests.unwrap_or(u64::MAX);
    let mut requests = 0;
    for request in open_trace(settings, path)? {
        request?;
        requests += 1;
        if requests >= limit || stop.load(Ordering::Relaxed) {
            break;
        }
    }
    Ok(Some(requests))
}

fn open_trace(settings: &ReplaySettings, path: &Path) -> Result<TraceReader, UsageError> {
    let bad = if settings.skip_bad_lines {
        BadLines::Skip
    } else {
        BadLines::Refuse
    };
    TraceReader::open(path, bad).map_err(|e| UsageError {
        message: format!("trace {} cannot be read: {e}", path.display()),
        hint: Some("give a file of JSON lines, plain or compressed with gzip, zstd or xz, or - for stdin"),
    })
}
