//! The report of `kvweir bench`: latencies by per cent of the jobs, rates and latencies by jobs under way, the tables.

use anyhow::Result;

use super::{
    escape, figure, head, page,
    plot::{COLOURS, Plot, Scale, Series},
    tables,
};
use crate::bench::{Measure, Outcome, Step};

/// The rows that are drawn.
const LINES: [(&str, &str); 4] = [
    ("store", "device"),
    ("store", "tier"),
    ("load", "device"),
    ("load", "tier"),
];

/// The report as HTML.
pub(crate) fn render(outcome: &Outcome) -> Result<String> {
    let verdict = match (outcome.wrong_blocks, outcome.interrupted) {
        (0, false) => format!("0 wrong bytes in {} blocks checked", outcome.checked_blocks),
        (0, true) => String::from("interrupted, 0 wrong bytes so far"),
        (n, _) => format!("{n} blocks with wrong bytes"),
    };
    let lead = format!("{}: {}.", outcome.root.display(), verdict);
    let mut html = head("kvweir bench", &escape(&lead));
    html += "<div class=\"plots\">\n";
    if outcome.steps.len() > 1 {
        html += &figure(&by_depth(outcome, "Rate", "GB/s", Scale::Linear, |m| m.gb_s))?;
        let p99 = |m: &Measure| m.latency.p99_us;
        html += &figure(&by_depth(
            outcome,
            "Latency of jobs, p99",
            "microseconds",
            Scale::Log,
            p99,
        ))?;
        let cpu = |m: &Measure| m.cpu_s_per_gib;
        html += &figure(&by_depth(
            outcome,
            "CPU time",
            "seconds per GiB",
            Scale::Linear,
            cpu,
        ))?;
    }
    if let Some(step) = outcome.steps.last() {
        html += &figure(&by_share(step))?;
    }
    html += "</div>\n";
    html += &tables(&outcome.sections());
    Ok(page(html))
}

fn series(points: impl Fn(&'static str, &'static str) -> Vec<(f64, f64)>) -> Vec<Series> {
    LINES
        .into_iter()
        .zip(COLOURS)
        .map(|((what, by), colour)| Series {
            name: format!("{what}, {by}"),
            colour,
            limit: by == "device",
            points: points(what, by),
        })
        .collect()
}

fn by_depth(
    o: &Outcome,
    title: &'static str,
    y: &'static str,
    scale: Scale,
    of: fn(&Measure) -> f64,
) -> Plot {
    let at = |s: &Step, what: &str, by: &str| Some((f64::from(s.queue_depth), of(s.find(what, by)?)));
    let points = |what: &'static str, by: &'static str| {
        let mut points: Vec<_> = o.steps.iter().filter_map(|s| at(s, what, by)).collect();
        points.sort_by(|a, b| a.0.total_cmp(&b.0));
        points
    };
    Plot {
        title,
        x: "jobs under way",
        y,
        scale,
        series: series(points),
    }
}

fn by_share(step: &Step) -> Plot {
    let curve =
        |what: &'static str, by: &'static str| step.find(what, by).map_or_else(Vec::new, |m| m.curve.clone());
    Plot {
        title: "Latency by share of jobs, in the last step",
        x: "per cent of the jobs",
        y: "microseconds",
        scale: Scale::Log,
        series: series(curve),
    }
}
