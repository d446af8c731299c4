//! A tier's numbers as a dictionary.

use kvweir::metrics::{EvictReason, RefuseReason, TierStats};
use pyo3::{prelude::*, types::PyDict};

/// Numbers by name; reasons are dictionaries.
pub(crate) fn stats_dict<'py>(py: Python<'py>, s: &TierStats) -> PyResult<Bound<'py, PyDict>> {
    let d = PyDict::new(py);
    let numbers = [
        ("blocks", s.blocks),
        ("resident_bytes", s.resident_bytes),
        ("reserved_bytes", s.reserved_bytes),
        ("peak_bytes", s.peak_bytes),
        ("pinned_blocks", s.pinned_blocks),
        ("pinned_peak", s.pinned_peak),
        ("pin_leases_expired", s.pin_leases_expired),
        ("lookup_hits", s.lookup_hits),
        ("lookup_misses", s.lookup_misses),
        ("lookup_retries", s.lookup_retries),
        ("stored_blocks", s.stored_blocks),
        ("stored_bytes", s.stored_bytes),
        ("present_blocks", s.present_blocks),
        ("loaded_blocks", s.loaded_blocks),
        ("loaded_bytes", s.loaded_bytes),
        ("load_failures", s.load_failures),
        ("verification_failures", s.verification_failures),
        ("unlink_failures", s.unlink_failures),
        ("recovered_blocks", s.recovered_blocks),
        ("swept_files", s.swept_files),
        ("foreign_files", s.foreign_files),
        ("unopened_extents", s.unopened_extents),
        ("oldest_age_seconds", s.oldest_age_seconds),
        ("queued_blocks", s.queued_blocks),
        ("stores_held", s.stores_held),
        ("index_bytes", s.index_bytes),
        ("breaker_state", s.breaker_state),
        ("breaker_opened", s.breaker_opened),
        ("jobs_timed_out", s.jobs_timed_out),
        ("hung_operations", s.hung_operations),
    ];
    for (name, n) in numbers {
        d.set_item(name, n)?;
    }
    d.set_item("bound_bytes", s.bound_bytes)?;
    d.set_item("effective_bound_bytes", s.effective_bound_bytes)?;
    d.set_item("startup_seconds", s.startup_seconds)?;
    d.set_item("store_device_seconds", s.store_device_time.as_secs_f64())?;
    d.set_item("load_device_seconds", s.load_device_time.as_secs_f64())?;
    let by = PyDict::new(py);
    let bytes = PyDict::new(py);
    for (r, (n, b)) in EvictReason::ALL
        .iter()
        .zip(s.evicted_blocks.iter().zip(s.evicted_bytes))
    {
        by.set_item(r.as_str(), n)?;
        bytes.set_item(r.as_str(), b)?;
    }
    d.set_item("evicted_blocks", by)?;
    d.set_item("evicted_bytes", bytes)?;
    let by = PyDict::new(py);
    for (r, n) in RefuseReason::ALL.iter().zip(s.refused_blocks) {
        by.set_item(r.as_str(), n)?;
    }
    d.set_item("refused_blocks", by)?;
    Ok(d)
}
