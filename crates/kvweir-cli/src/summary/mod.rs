//! What a replay tells at its end. Every number is in the unit its name says: bytes, blocks, seconds, microseconds.

mod sections;
mod timeline;

use std::{collections::BTreeMap, path::PathBuf};

use serde::Serialize;

pub(crate) use self::timeline::{Sample, Timeline};
use crate::table;

/// Drops and refusals by reason.
pub(crate) type ByReason = BTreeMap<String, u64>;

/// The whole outcome.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct Summary {
    /// Requests finished.
    pub(crate) requests: u64,
    /// Blocks of those requests.
    pub(crate) blocks_requested: u64,
    /// Share of the blocks requested that were leading hits in any tier.
    pub(crate) prefix_hit_rate: f64,
    /// Promoted blocks compared with what was stored.
    pub(crate) blocks_checked: u64,
    /// Promoted blocks whose bytes were not those stored.
    pub(crate) wrong_blocks: u64,
    /// Wall-clock time.
    pub(crate) elapsed_s: f64,
    /// Ended by a signal.
    pub(crate) interrupted: bool,
    /// Malformed trace lines passed over.
    pub(crate) skipped_lines: u64,
    /// Times the tier was closed and reopened.
    pub(crate) restarts: u64,
    /// Host memory.
    pub(crate) primary: PrimarySummary,
    /// Secondary tiers in lookup order.
    pub(crate) tiers: Vec<TierSummary>,
    /// By operation: lookup, store, load.
    pub(crate) latencies: BTreeMap<String, Quantiles>,
    /// The most bytes all secondary tiers held at once.
    pub(crate) bytes_resident_peak: u64,
    /// Bytes written by the tiers for each byte of blocks stored.
    pub(crate) write_amplification: f64,
    /// Whether the events, replayed into a set, give the directory's content; none if not checked.
    pub(crate) events_match_directory: Option<bool>,
    /// The first difference, or why they were not compared.
    pub(crate) events_note: Option<String>,
    /// What the numbers mean and what to try, where they are not what one hopes for.
    pub(crate) notes: Vec<String>,
    /// Where the report was written.
    pub(crate) report: Option<PathBuf>,
}

/// The primary tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct PrimarySummary {
    /// Leading blocks found here.
    pub(crate) hits: u64,
    /// Their share of the blocks requested.
    pub(crate) hit_rate: f64,
    /// Size of the tier.
    pub(crate) bytes: u64,
    /// Blocks evicted.
    pub(crate) evictions: u64,
    /// Blocks that were computed and not kept: all slots were in use.
    pub(crate) without_slot: u64,
}

/// One secondary tier.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub(crate) struct TierSummary {
    /// Name of the tier.
    pub(crate) name: String,
    /// Medium, as in its events.
    pub(crate) medium: String,
    /// Leading blocks found here.
    pub(crate) hits: u64,
    /// Their share of the blocks requested.
    pub(crate) hit_rate: f64,
    /// Blocks stored.
    pub(crate) blocks_stored: u64,
    /// Their bytes.
    pub(crate) bytes_stored: u64,
    /// Blocks loaded.
    pub(crate) blocks_loaded: u64,
    /// Their bytes.
    pub(crate) bytes_loaded: u64,
    /// 10^9 bytes stored in a second of device time.
    pub(crate) store_gb_s: f64,
    /// 10^9 bytes loaded in a second of device time.
    pub(crate) load_gb_s: f64,
    /// Device time of stores.
    pub(crate) device_store_s: f64,
    /// Device time of loads.
    pub(crate) device_load_s: f64,
    /// Blocks evicted.
    pub(crate) evicted_blocks: u64,
    /// Their bytes.
    pub(crate) evicted_bytes: u64,
    /// Blocks dropped by back-pressure, by reason.
    pub(crate) drops: ByReason,
    /// Blocks the tier did not take, by reason.
    pub(crate) refused: ByReason,
    /// Loads that failed.
    pub(crate) load_failures: u64,
    /// Bytes held at the end.
    pub(crate) bytes_resident: u64,
    /// The most bytes held.
    pub(crate) bytes_resident_peak: u64,
    /// The bound; none if unbounded.
    pub(crate) bound_bytes: Option<u64>,
    /// The most blocks pinned at once.
    pub(crate) pinned_peak: u64,
    /// Blocks pinned at the end; zero unless something leaks.
    pub(crate) pinned_end: u64,
}

impl TierSummary {
    /// The bytes by which the tier is above its bound at the end, in words.
    pub(crate) fn above_bound(&self) -> Option<String> {
        let bound = self.bound_bytes?;
        let above = self.bytes_resident.checked_sub(bound).filter(|n| *n > 0)?;
        Some(format!(
            "{} are left above the bound of {}: the next run that opens the root goes on removing",
            table::bytes(above),
            table::bytes(bound)
        ))
    }
}

/// Latencies of one operation.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Quantiles {
    /// Half are at most this long.
    pub(crate) p50_us: f64,
    /// 99 of 100 are.
    pub(crate) p99_us: f64,
    /// 999 of 1,000 are.
    pub(crate) p999_us: f64,
    /// All are.
    pub(crate) max_us: f64,
    /// How many there were.
    pub(crate) count: u64,
}

impl Quantiles {
    /// From a histogram of nanoseconds.
    pub(crate) fn of_nanos(h: &hdrhistogram::Histogram<u64>) -> Self {
        let us = |q| h.value_at_quantile(q) as f64 / 1e3;
        Self {
            p50_us: us(0.5),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: h.max() as f64 / 1e3,
            count: h.len(),
        }
    }
}

impl Summary {
    /// One JSON object, in one line.
    pub(crate) fn to_json(&self) -> serde_json::Result<String> {
        serde_json::to_string(self)
    }

    /// For people.
    pub(crate) fn to_table(&self) -> String {
        self.sections()
            .iter()
            .map(table::Section::to_text)
            .collect::<Vec<_>>()
            .join("\n\n")
    }
}

#[cfg(test)]
pub(crate) mod tests;
