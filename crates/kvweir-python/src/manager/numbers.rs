//! Counters as dictionaries.

use pyo3::{prelude::*, types::PyDict};

use super::state::Manager;

#[pymethods]
impl Manager {
    /// Numbers of the primary, of promotions and, in `tiers`, of each secondary tier, since the manager was made. Load
    /// latencies and sizes of stores are those since the last call.
    fn numbers<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let d = PyDict::new(py);
        let Some((primary, stats, tiers, allocations)) = self.with(py, None, |o| {
            let traffic = o.engine.tier_traffic();
            let tiers: Vec<_> = o
                .engine
                .tier_stats()
                .into_iter()
                .zip(traffic)
                .enumerate()
                .map(|(i, ((_, _, gate), traffic))| (traffic, gate, o.engine.take_load_latencies(i)))
                .collect();
            Some((
                o.engine.primary().stats(),
                o.engine.stats().clone(),
                tiers,
                std::mem::take(&mut o.allocations),
            ))
        }) else {
            return Ok(d);
        };
        for (name, n) in [
            ("slots", primary.slots),
            ("used_slots", primary.used),
            ("referenced_slots", primary.referenced),
            ("writing_slots", primary.writing),
            ("held_slots", primary.held),
            ("evicted_blocks", primary.evicted),
            ("allocation_failures", primary.allocation_failures),
            ("primary_queries", stats.primary_queries),
            ("primary_hits", stats.primary_hits),
            ("queued_promotions", stats.queued_promotions),
            ("promoted_blocks", stats.promoted_blocks),
            ("failed_promotions", stats.failed_promotions),
            ("promotions_without_room", stats.promotions_without_room),
            ("failed_cascades", stats.failed_cascades),
            ("refused_cascades", stats.refused_cascades),
            ("held_back_requests", stats.held_back_requests),
            ("cut_requests", stats.cut_requests),
        ] {
            d.set_item(name, n)?;
        }
        let mut all = Vec::with_capacity(tiers.len());
        for (traffic, gate, latencies) in tiers {
            let t = PyDict::new(py);
            for (name, n) in [
                ("queries", traffic.queries),
                ("hits", traffic.hits),
                ("loaded_blocks", traffic.loaded_blocks),
                ("stored_blocks", traffic.stored_blocks),
                ("failed_loads", traffic.failed_loads),
                ("failed_stores", traffic.failed_stores),
                ("active_loads", traffic.active_loads),
                ("active_stores", traffic.active_stores),
                ("loading_blocks", traffic.loading_blocks),
                ("storing_blocks", traffic.storing_blocks),
            ] {
                t.set_item(name, n)?;
            }
            t.set_item("load_seconds", traffic.load_seconds)?;
            t.set_item("store_seconds", traffic.store_seconds)?;
            let latencies: Vec<(f64, bool)> = latencies
                .into_iter()
                .map(|(took, ok)| (took.as_secs_f64(), ok))
                .collect();
            t.set_item("latencies", latencies)?;
            if let Some(g) = gate {
                let dropped = g.drops.total();
                t.set_item("stores_dropped", dropped.stores)?;
                t.set_item("blocks_dropped", dropped.blocks)?;
                t.set_item("store_latency_ema", g.detector.ema_s_per_mib)?;
                t.set_item("inflight_bytes", g.inflight_bytes)?;
                t.set_item("under_pressure", g.detector.under_pressure)?;
            }
            all.push(t);
        }
        d.set_item("allocations", allocations)?;
        d.set_item("tiers", all)?;
        Ok(d)
    }
}
