//! The summary as sections of named values, which the terminal and the report show alike.

use std::borrow::Cow;

use super::{ByReason, Quantiles, Summary, TierSummary};
use crate::table::{Section, bytes, count};

impl Summary {
    /// The sections: the run, the tiers side by side, the latencies.
    pub(crate) fn sections(&self) -> Vec<Section> {
        let list = |title, rows: Vec<(Cow<'static, str>, String)>| Section {
            title,
            head: Vec::new(),
            rows: rows
                .into_iter()
                .map(|(name, value)| vec![name.into_owned(), value])
                .collect(),
        };
        let mut sections = vec![list("run", self.run_rows())];
        if !self.tiers.is_empty() {
            sections.push(self.tier_section());
        }
        if !self.latencies.is_empty() {
            sections.push(self.latency_section());
        }
        sections
    }

    fn run_rows(&self) -> Vec<(Cow<'static, str>, String)> {
        let p = &self.primary;
        let mut rows = vec![
            ("requests".into(), count(self.requests)),
            ("blocks requested".into(), count(self.blocks_requested)),
            ("prefix hit rate".into(), rate(self.prefix_hit_rate)),
            (
                "  from the primary tier".into(),
                format!("{} ({} blocks)", rate(p.hit_rate), count(p.hits)),
            ),
        ];
        for tier in &self.tiers {
            rows.push((
                format!("  from {}", tier.name).into(),
                format!("{} ({} blocks)", rate(tier.hit_rate), count(tier.hits)),
            ));
        }
        rows.extend([
            (
                "content".into(),
                if self.wrong_blocks == 0 {
                    format!("0 wrong bytes in {} blocks checked", count(self.blocks_checked))
                } else {
                    format!("{} BLOCKS WITH WRONG BYTES", count(self.wrong_blocks))
                },
            ),
            (
                "primary tier".into(),
                match p.without_slot {
                    0 => format!("{}, {} blocks evicted", bytes(p.bytes), count(p.evictions)),
                    n => format!(
                        "{}, {} blocks evicted, {} without a slot",
                        bytes(p.bytes),
                        count(p.evictions),
                        count(n)
                    ),
                },
            ),
            ("secondary peak".into(), bytes(self.bytes_resident_peak)),
            (
                "write amplification".into(),
                format!("{:.3}", self.write_amplification),
            ),
            ("restarts".into(), count(self.restarts)),
            ("elapsed".into(), format!("{:.2} s", self.elapsed_s)),
        ]);
        rows.extend(self.events_row());
        if self.skipped_lines > 0 {
            rows.push(("bad lines skipped".into(), count(self.skipped_lines)));
        }
        if self.interrupted {
            rows.push(("interrupted".into(), String::from("yes: the numbers so far")));
        }
        if let Some(path) = &self.report {
            rows.push(("report".into(), path.display().to_string()));
        }
        rows.extend(self.notes.iter().map(|n| ("note".into(), n.clone())));
        rows
    }

    fn events_row(&self) -> Option<(Cow<'static, str>, String)> {
        let text = match (self.events_match_directory, &self.events_note) {
            (Some(true), _) => "yes".to_owned(),
            (Some(false), _) => "NO".to_owned(),
            (None, Some(why)) => format!("not checked: {why}"),
            (None, None) => return None,
        };
        Some(("events match directory".into(), text))
    }

    fn tier_section(&self) -> Section {
        let mut head = vec![String::new()];
        head.extend(self.tiers.iter().map(|t| format!("{} ({})", t.name, t.medium)));
        let row = |name: &str, cell: &dyn Fn(&TierSummary) -> String| {
            std::iter::once(name.to_owned())
                .chain(self.tiers.iter().map(cell))
                .collect::<Vec<_>>()
        };
        let rows = vec![
            row("hits", &|t| format!("{} ({})", count(t.hits), rate(t.hit_rate))),
            row("stored", &|t| {
                format!("{} blocks, {}", count(t.blocks_stored), bytes(t.bytes_stored))
            }),
            row("  device time", &|t| {
                format!("{:.3} s, {:.3} GB/s", t.device_store_s, t.store_gb_s)
            }),
            row("loaded", &|t| {
                format!("{} blocks, {}", count(t.blocks_loaded), bytes(t.bytes_loaded))
            }),
            row("  device time", &|t| {
                format!("{:.3} s, {:.3} GB/s", t.device_load_s, t.load_gb_s)
            }),
            row("evicted", &|t| {
                format!("{} blocks, {}", count(t.evicted_blocks), bytes(t.evicted_bytes))
            }),
            row("dropped", &|t| reasons(&t.drops)),
            row("refused", &|t| reasons(&t.refused)),
            row("load failures", &|t| count(t.load_failures)),
            row("resident", &|t| {
                format!(
                    "{}, peak {}",
                    bytes(t.bytes_resident),
                    bytes(t.bytes_resident_peak)
                )
            }),
            row("bound", &|t| {
                t.bound_bytes.map_or_else(|| String::from("none"), bytes)
            }),
            row("pinned", &|t| {
                format!("{}, peak {}", count(t.pinned_end), count(t.pinned_peak))
            }),
        ];
        Section {
            title: "tiers",
            head,
            rows,
        }
    }

    fn latency_section(&self) -> Section {
        let us = |v: f64| format!("{v:.1}");
        let row = |(name, q): (&String, &Quantiles)| {
            vec![
                name.clone(),
                us(q.p50_us),
                us(q.p99_us),
                us(q.p999_us),
                us(q.max_us),
                count(q.count),
            ]
        };
        Section {
            title: "latency (us)",
            head: ["", "p50", "p99", "p99.9", "max", "count"]
                .map(str::to_owned)
                .to_vec(),
            rows: self.latencies.iter().map(row).collect(),
        }
    }
}

fn rate(r: f64) -> String {
    format!("{r:.4}")
}

fn reasons(by: &ByReason) -> String {
    let parts: Vec<String> = by
        .iter()
        .filter(|(_, n)| **n > 0)
        .map(|(why, n)| format!("{} {why}", count(*n)))
        .collect();
    if parts.is_empty() {
        String::from("0")
    } else {
        parts.join(", ")
    }
}
