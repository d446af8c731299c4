//! What a bench tells. Every number is in the unit its name says.

use std::{collections::BTreeMap, path::PathBuf};

use hdrhistogram::Histogram;
use serde::Serialize;

use crate::table::{Section, bytes, count};

/// It is told when writes into new space reach less than this share of the rate into old space.
const NOTABLE: f64 = 0.85;

/// The whole outcome.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Outcome {
    /// The directory below which was measured.
    pub(crate) root: PathBuf,
    /// Seconds since the Unix epoch at the beginning.
    pub(crate) unix_s: u64,
    /// Usable CPUs.
    pub(crate) cpus: usize,
    /// Kernel.
    pub(crate) kernel: String,
    /// What was run, by flag.
    pub(crate) settings: BTreeMap<&'static str, String>,
    /// Whether the device was measured past the page cache.
    pub(crate) direct: bool,
    /// The first writes to the device's file, into new space: the limit of a tier that is still filling.
    pub(crate) device_new: Measure,
    /// What was written before the first step; none without `--churn`.
    pub(crate) churn: Option<Measure>,
    /// One per queue depth.
    pub(crate) steps: Vec<Step>,
    /// Loaded blocks that were looked at.
    pub(crate) checked_blocks: u64,
    /// Loaded blocks that held other bytes than were stored.
    pub(crate) wrong_blocks: u64,
    /// Blocks that the tier reported failed.
    pub(crate) failed_blocks: u64,
    /// Blocks that were gone when they were to be loaded.
    pub(crate) missed_blocks: u64,
    /// Blocks that the tier evicted.
    pub(crate) evicted_blocks: u64,
    /// The most bytes that the tier held.
    pub(crate) bytes_peak: u64,
    /// Its bound.
    pub(crate) bound_bytes: u64,
    /// Ended by a signal.
    pub(crate) interrupted: bool,
    /// Where the scratch directory stays; none if it was removed.
    pub(crate) kept: Option<PathBuf>,
    /// Where the report was written.
    pub(crate) report: Option<PathBuf>,
}

/// All phases with one number of jobs under way.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Step {
    /// Jobs under way.
    pub(crate) queue_depth: u32,
    /// The phases.
    pub(crate) measures: Vec<Measure>,
}

/// One direction of one phase.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Measure {
    /// `store`, `load`, `mixed store`, `mixed load`.
    pub(crate) what: &'static str,
    /// `device` (whole jobs in one file), `device blocks` (single blocks in one file), `device, new space`, `tier`.
    pub(crate) by: &'static str,
    /// Jobs that ended; of the device, reads and writes.
    pub(crate) jobs: u64,
    /// Bytes of blocks moved.
    pub(crate) bytes: u64,
    /// Wall-clock time of the phase.
    pub(crate) seconds: f64,
    /// 10^9 bytes per second.
    pub(crate) gb_s: f64,
    /// Share of what the device gave for whole jobs; only in the tier's rows.
    pub(crate) of_limit: Option<f64>,
    /// CPU time of the process, all threads, for 2^30 bytes; of mixed phases both directions together.
    pub(crate) cpu_s_per_gib: f64,
    /// Of jobs, from submission to report.
    pub(crate) latency: Latency,
    /// The same by per cent, for the report.
    #[serde(skip)]
    pub(crate) curve: Vec<(f64, f64)>,
}

/// How long jobs took.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize)]
pub(crate) struct Latency {
    /// Half took at most this long.
    pub(crate) p50_us: f64,
    /// 9 of 10.
    pub(crate) p90_us: f64,
    /// 99 of 100.
    pub(crate) p99_us: f64,
    /// 999 of 1,000.
    pub(crate) p999_us: f64,
    /// All.
    pub(crate) max_us: f64,
}

impl Latency {
    pub(super) fn of_nanos(h: &Histogram<u64>) -> Self {
        let us = |q| h.value_at_quantile(q) as f64 / 1e3;
        Self {
            p50_us: us(0.5),
            p90_us: us(0.9),
            p99_us: us(0.99),
            p999_us: us(0.999),
            max_us: h.max() as f64 / 1e3,
        }
    }
}

impl Step {
    /// The row of `what` by `by`.
    pub(crate) fn find(&self, what: &str, by: &str) -> Option<&Measure> {
        self.measures.iter().find(|m| m.what == what && m.by == by)
    }

    /// Compares the tier's rows with the device's.
    pub(super) fn compare(&mut self) {
        let limits: Vec<(&str, f64)> = self
            .measures
            .iter()
            .filter(|m| m.by == "device")
            .map(|m| (m.what, m.gb_s))
            .collect();
        for m in self.measures.iter_mut().filter(|m| m.by == "tier") {
            let limit = limits.iter().find(|(what, gb_s)| *what == m.what && *gb_s > 0.0);
            m.of_limit = limit.map(|(_, gb_s)| m.gb_s / gb_s);
        }
    }
}

impl Outcome {
    /// The sections of table and report.
    pub(crate) fn sections(&self) -> Vec<Section> {
        let mut sections = vec![self.run_section()];
        let first = std::slice::from_ref(&self.device_new);
        sections.push(measures("new space", String::new(), first));
        if let Some(m) = &self.churn {
            sections.push(measures(
                "churn, before the rest",
                String::new(),
                std::slice::from_ref(m),
            ));
        }
        for step in &self.steps {
            let depth = format!("{} under way", step.queue_depth);
            sections.push(measures("jobs (latency in us)", depth, &step.measures));
        }
        sections
    }

    /// The rate into new space as a share of the rate into old space, if that is notably less.
    fn new_of_old(&self) -> Option<f64> {
        let olds = self.steps.iter().filter_map(|s| s.find("store", "device"));
        let old = olds.map(|m| m.gb_s).fold(0.0, f64::max);
        Some(self.device_new.gb_s / old).filter(|part| old > 0.0 && *part < NOTABLE)
    }

    fn run_section(&self) -> Section {
        let content = match self.wrong_blocks {
            0 => format!("0 wrong bytes in {} blocks checked", count(self.checked_blocks)),
            n => format!("{} BLOCKS WITH WRONG BYTES", count(n)),
        };
        let settings: Vec<String> = self.settings.iter().map(|(k, v)| format!("{k} {v}")).collect();
        let mut rows = vec![
            ("directory", self.root.display().to_string()),
            (
                "machine",
                format!("{} usable CPUs, Linux {}", self.cpus, self.kernel),
            ),
            ("settings", settings.join(", ")),
            ("content", content),
            (
                "held by the tier",
                format!(
                    "at most {} of {}, {} blocks evicted",
                    bytes(self.bytes_peak),
                    bytes(self.bound_bytes),
                    count(self.evicted_blocks)
                ),
            ),
        ];
        if !self.direct {
            let why = "the file system has no direct I/O: the device's rows are those of the page cache";
            rows.push(("note", why.to_owned()));
        }
        if let Some(part) = self.new_of_old() {
            let why = format!(
                "writes into new space reach {part:.2} of the rate into old space, which slows a tier that is still \
                 filling: the disk is thinly provisioned, or the mount has discard (`kvweir doctor`); `--max-bytes` and \
                 `--churn` show a full tier"
            );
            rows.push(("note", why));
        }
        for (name, n) in [
            ("failed", self.failed_blocks),
            ("gone before a load", self.missed_blocks),
        ] {
            if n > 0 {
                rows.push((name, format!("{} blocks", count(n))));
            }
        }
        if self.interrupted {
            rows.push(("interrupted", String::from("yes: the numbers so far")));
        }
        if let Some(path) = &self.kept {
            rows.push(("kept", path.display().to_string()));
        }
        if let Some(path) = &self.report {
            rows.push(("report", path.display().to_string()));
        }
        Section {
            title: "bench",
            head: Vec::new(),
            rows: rows.into_iter().map(|(n, v)| vec![n.to_owned(), v]).collect(),
        }
    }
}

fn measures(title: &'static str, first: String, all: &[Measure]) -> Section {
    let us = |v: f64| format!("{v:.0}");
    let more = [
        "GB/s",
        "of device",
        "CPU s/GiB",
        "p50",
        "p90",
        "p99",
        "p99.9",
        "max",
        "jobs",
    ];
    let row = |m: &Measure| {
        let l = &m.latency;
        vec![
            format!("{}, {}", m.what, m.by),
            format!("{:.3}", m.gb_s),
            m.of_limit.map_or_else(String::new, |r| format!("{r:.2}")),
            format!("{:.3}", m.cpu_s_per_gib),
            us(l.p50_us),
            us(l.p90_us),
            us(l.p99_us),
            us(l.p999_us),
            us(l.max_us),
            count(m.jobs),
        ]
    };
    let mut head = vec![first];
    head.extend(more.map(str::to_owned));
    Section {
        title,
        head,
        rows: all.iter().map(row).collect(),
    }
}
