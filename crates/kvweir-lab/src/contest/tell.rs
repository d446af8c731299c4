//! What the contest tells: medians by side, ratios against their targets, the same as JSON. A ratio is taken round by
//! round, and the median of those is told.

use anyhow::Result;
use serde_json::{Value, json};

use super::{
    side::Took,
    targets::{BOUND, Of, TARGETS, Target},
};
use crate::print::{heading, median, say, table};

const GIB: f64 = (1u64 << 30) as f64;

/// One operation of one side: a round each.
#[derive(Debug)]
pub(super) struct Row {
    pub(super) case: String,
    pub(super) op: String,
    pub(super) side: String,
    bytes: f64,
    seconds: Vec<f64>,
    cpu_s: Vec<f64>,
    jobs_s: Vec<f64>,
}

impl Row {
    /// `bytes` are moved in each round.
    pub(super) fn new(case: &str, op: &str, side: &str, bytes: u64) -> Self {
        Self {
            case: case.into(),
            op: op.into(),
            side: side.into(),
            bytes: bytes as f64,
            seconds: Vec::new(),
            cpu_s: Vec::new(),
            jobs_s: Vec::new(),
        }
    }

    pub(super) fn add(&mut self, took: Took) {
        self.seconds.push(took.seconds);
        self.cpu_s.push(took.cpu_s);
        self.jobs_s.extend(took.jobs_s);
    }

    pub(super) fn is_measured(&self) -> bool {
        !self.seconds.is_empty()
    }

    fn gb_s(&self) -> f64 {
        self.bytes / 1e9 / median(&mut self.seconds.clone())
    }

    fn cpu(&self) -> f64 {
        median(&mut self.cpu_s.clone()) / (self.bytes / GIB)
    }

    /// What `self` is of `other`: the median over the rounds, in which both met the same noise.
    fn ratio(&self, other: &Self, of: Of) -> f64 {
        let each =
            |a: &[f64], b: &[f64]| median(&mut a.iter().zip(b).map(|(a, b)| a / b).collect::<Vec<_>>());
        match of {
            Of::Rate => each(&other.seconds, &self.seconds) * self.bytes / other.bytes,
            Of::Cpu => each(&self.cpu_s, &other.cpu_s) * other.bytes / self.bytes,
            Of::P99 => self.ms(0.99) / other.ms(0.99),
        }
    }

    /// Milliseconds that the fastest share of the jobs took.
    fn ms(&self, share: f64) -> f64 {
        let mut all = self.jobs_s.clone();
        all.sort_by(f64::total_cmp);
        let at = ((all.len() as f64 * share).ceil() as usize).clamp(1, all.len().max(1)) - 1;
        all.get(at).copied().unwrap_or(0.0) * 1e3
    }

    fn cells(&self, rows: &[Self]) -> Vec<String> {
        let rate = |s: f64| format!("{:.3}", self.bytes / 1e9 / s);
        let of = |side: &str| {
            find(rows, &self.case, &self.op, side)
                .map_or_else(String::new, |r| format!("{:.2}", self.ratio(r, Of::Rate)))
        };
        vec![
            self.side.clone(),
            format!("{:.3}", self.gb_s()),
            rate(self.seconds.iter().copied().fold(0.0, f64::max)),
            rate(self.seconds.iter().copied().fold(f64::MAX, f64::min)),
            of("stock"),
            of("raw"),
            format!("{:.2}", self.cpu()),
            format!("{:.2}", self.ms(0.5)),
            format!("{:.2}", self.ms(0.99)),
        ]
    }

    fn json(&self) -> Value {
        json!({
            "case": self.case, "op": self.op, "side": self.side, "bytes_a_round": self.bytes,
            "gb_s": self.gb_s(), "cpu_s_per_gib": self.cpu(), "seconds": self.seconds,
            "job_p50_ms": self.ms(0.5), "job_p99_ms": self.ms(0.99), "jobs": self.jobs_s.len(),
        })
    }
}

fn find<'a>(rows: &'a [Row], case: &str, op: &str, side: &str) -> Option<&'a Row> {
    rows.iter().find(|r| {
        r.case == case
            && r.op.starts_with(op)
            && (match side {
                "ours" => is_ours(&r.side),
                "full" => r.side.starts_with("kvweir") && r.side.ends_with(", full"),
                _ => r.side == side,
            })
    })
}

/// Our usual side: of several layouts the first.
fn is_ours(side: &str) -> bool {
    side.starts_with("kvweir") && !side.contains(',')
}

/// All that was measured.
#[derive(Debug, Default)]
pub(super) struct Told {
    pub(super) rows: Vec<Row>,
    /// What peers are, or why they do not run.
    pub(super) peers: Vec<(String, String)>,
    pub(super) seconds: f64,
}

impl Told {
    /// Keeps what a peer says of itself, once.
    pub(super) fn about(&mut self, name: &str, about: &str) {
        if !self.peers.iter().any(|(n, _)| n == name) {
            self.peers.push((name.to_owned(), about.to_owned()));
        }
    }

    fn row(&self, case: &str, op: &str, side: &str) -> Option<&Row> {
        if case == BOUND {
            // the first layout's
            return self
                .rows
                .iter()
                .find(|r| r.case == case && r.op.starts_with(op) && r.side.ends_with(side));
        }
        find(&self.rows, case, op, side)
    }

    /// What it is, and whether that is good; none where a side was not measured.
    fn judge(&self, t: &Target) -> Option<(f64, bool)> {
        let row = |(op, side)| self.row(t.case, op, side);
        let ratio = row(t.above)?.ratio(row(t.below)?, t.of);
        let good = if t.is_most() {
            ratio <= t.target
        } else {
            ratio >= t.target
        };
        Some((ratio, good))
    }

    pub(super) fn print(&self, json: bool, rounds: u64) -> Result<()> {
        if json {
            let ratios = TARGETS.iter().filter_map(|t| {
                let (ratio, good) = self.judge(t)?;
                let target = t.target.is_finite().then_some(t.target);
                Some(json!({
                    "what": t.what, "case": t.case, "ratio": ratio, "target": target, "at_most": t.is_most(), "pass": good,
                }))
            });
            let all = json!({
                "rounds": rounds, "seconds": self.seconds,
                "peers": self.peers.iter().map(|(n, w)| json!({"name": n, "about": w})).collect::<Vec<_>>(),
                "rows": self.rows.iter().map(Row::json).collect::<Vec<_>>(),
                "ratios": ratios.collect::<Vec<_>>(),
            });
            say(&serde_json::to_string(&all)?);
            return Ok(());
        }
        for (name, about) in &self.peers {
            say(&format!("peer      {name}: {about}"));
        }
        say(&format!(
            "rounds    {rounds}, medians; {:.0} s in all\n",
            self.seconds
        ));
        let mut last = (String::new(), String::new());
        let mut lines = Vec::new();
        for row in &self.rows {
            let now = (row.case.clone(), row.op.clone());
            if now != last {
                if !lines.is_empty() {
                    table(&std::mem::take(&mut lines));
                }
                let title = format!("{}: {}", row.case, row.op);
                let mut head = heading(&[
                    "",
                    "GB/s",
                    "min",
                    "max",
                    "/ stock",
                    "/ raw",
                    "CPU s/GiB",
                    "job p50 ms",
                    "job p99 ms",
                ]);
                if let Some(first) = head.first_mut() {
                    *first = title;
                }
                lines.push(head);
                last = now;
            }
            lines.push(row.cells(&self.rows));
        }
        table(&lines);
        let mut lines = vec![heading(&["ratio", "case", "measured", "target", "verdict"])];
        for t in TARGETS {
            let Some((ratio, good)) = self.judge(t) else {
                continue;
            };
            let (target, verdict) = if t.target.is_finite() {
                let sign = if t.is_most() { "<=" } else { ">=" };
                (
                    format!("{sign} {:.2}", t.target),
                    if good { "PASS" } else { "short" },
                )
            } else {
                (String::new(), "")
            };
            lines.push(vec![
                t.what.into(),
                t.case.into(),
                format!("{ratio:.2}"),
                target,
                verdict.into(),
            ]);
        }
        table(&lines);
        Ok(())
    }
}
