//! The report of `--hit-rate-only`: the hit rate by capacity, the table, the settings in force.

use anyhow::Result;

use super::{
    escape, figure, head, page,
    plot::{COLOURS, Plot, Scale, Series},
    tables,
};
use crate::hitrate::{self, HitRate};

/// The report as HTML.
pub(crate) fn render(results: &[HitRate], settings_toml: &str) -> Result<String> {
    let requests = results.iter().map(|r| r.requests).max().unwrap_or_default();
    let lead = format!("{requests} requests, by the eviction code alone: how large must the cache be?");
    let mut html = head("kvweir replay --hit-rate-only", &lead);
    html += "<div class=\"plots\">\n";
    html += &figure(&curve(results))?;
    html += "</div>\n";
    html += &tables(&[hitrate::section(results)]);
    html += &format!("<h2>settings</h2>\n<pre>{}</pre>\n", escape(settings_toml));
    Ok(page(html))
}

fn curve(results: &[HitRate]) -> Plot {
    let name = results
        .first()
        .map_or_else(String::new, |r| format!("{}, {}", r.policy, r.order));
    // nothing is found where nothing fits
    let mut points = vec![(0.0, 0.0)];
    points.extend(
        results
            .iter()
            .map(|r| (r.capacity_blocks as f64, r.prefix_hit_rate)),
    );
    points.sort_by(|a, b| a.0.total_cmp(&b.0));
    Plot {
        title: "Prefix hit rate by capacity",
        x: "blocks",
        y: "share of blocks",
        scale: Scale::Linear,
        series: vec![Series {
            name,
            colour: COLOURS.first().copied().unwrap_or_default(),
            limit: false,
            points,
        }],
    }
}
