//! `--report`: one HTML file that needs nothing else, no script and no network: plots as inline SVG, the summary
//! as tables, the settings in force.

pub(crate) mod bench;
pub(crate) mod hitrate;
mod over_time;
mod plot;

use std::{
    fs::{self, Permissions},
    io::{self, Write},
    os::unix::fs::PermissionsExt,
    path::Path,
};

use crate::{
    summary::{Summary, Timeline},
    table::Section,
};
use plot::Plot;

const STYLE: &str = include_str!("style.css");
/// The report as HTML.
pub(crate) fn render(summary: &Summary, timeline: &Timeline, settings_toml: &str) -> anyhow::Result<String> {
    let verdict = match (summary.wrong_blocks, summary.interrupted) {
        (0, false) => format!("0 wrong bytes in {} blocks checked", summary.blocks_checked),
        (0, true) => String::from("interrupted, 0 wrong bytes so far"),
        (n, _) => format!("{n} blocks with wrong bytes"),
    };
    let lead = format!(
        "{} requests, prefix hit rate {:.4}, {}.",
        summary.requests,
        summary.prefix_hit_rate,
        escape(&verdict),
    );
    let mut html = head("kvweir replay", &lead);
    if timeline.samples().count() < 2 {
        html += "<p class=\"note\">The run was too short for plots.</p>\n";
    } else {
        html += "<div class=\"plots\">\n";
        for plot in over_time::plots(timeline) {
            html += &figure(&plot)?;
        }
        html += "</div>\n";
    }
    html += &tables(&summary.sections());
    html += &format!("<h2>settings</h2>\n<pre>{}</pre>\n", escape(settings_toml));
    Ok(page(html))
}

/// What comes before the plots; `lead` is HTML.
fn head(title: &str, lead: &str) -> String {
    format!(
        "<!doctype html>\n<html lang=\"en\">\n<head>\n<meta charset=\"utf-8\">\n\
         <meta name=\"viewport\" content=\"width=device-width, initial-scale=1\">\n\
         <meta name=\"color-scheme\" content=\"light dark\">\n\
         <title>{title}</title>\n<style>\n{STYLE}</style>\n</head>\n<body>\n\
         <h1>{title}</h1>\n<p class=\"lead\">{lead}</p>\n",
    )
}

/// Sections as tables.
fn tables(sections: &[Section]) -> String {
    let mut html = String::new();
    for section in sections {
        // a table wider than the page scrolls by itself
        html += &format!(
            "<h2>{}</h2>\n<div class=\"wide\"><table>\n",
            escape(section.title)
        );
        if !section.head.is_empty() {
            html += &row("th", &section.head);
        }
        section.rows.iter().for_each(|r| html += &row("td", r));
        html += "</table></div>\n";
    }
    html
}

/// A whole page of its beginning.
fn page(mut html: String) -> String {
    html += "</body>\n</html>\n";
    html
}

/// Whether a report may be written to `path`; if not, the end of a sentence that says why.
pub(crate) fn check(path: &Path) -> Result<(), String> {
    if path.is_dir() {
        return Err(String::from("is a directory"));
    }
    if is_other(path) {
        return rustix::fs::access(path, rustix::fs::Access::WRITE_OK)
            .or_else(|e| {
                if e == rustix::io::Errno::NOENT {
                    Ok(())
                } else {
                    Err(e)
                }
            })
            .map_err(|e| format!("cannot be written to ({e})"));
    }
    let dir = dir_of(path);
    if !dir.is_dir() {
        return Err(format!("lies in {}, which is no directory", dir.display()));
    }
    rustix::fs::access(dir, rustix::fs::Access::WRITE_OK | rustix::fs::Access::EXEC_OK)
        .map_err(|e| format!("lies in {}, which cannot be written to ({e})", dir.display()))
}

fn dir_of(path: &Path) -> &Path {
    match path.parent() {
        Some(p) if !p.as_os_str().is_empty() => p,
        _ => Path::new("."),
    }
}

/// Whether what is there is a link, a pipe or a device: that is written to, not replaced.
fn is_other(path: &Path) -> bool {
    fs::symlink_metadata(path).is_ok_and(|m| !m.is_file())
}

/// Writes the report under a temporary name beside `path` and renames it: a reader never sees half of it.
pub(crate) fn write(path: &Path, html: &str) -> io::Result<()> {
    if is_other(path) {
        return fs::write(path, html);
    }
    let dir = dir_of(path);
    let mut builder = tempfile::Builder::new();
    let mut file = builder
        .prefix(".kvweir-report-")
        // Narrowed by the umask, as for any file.
        .permissions(Permissions::from_mode(0o666))
        .tempfile_in(dir)?;
    file.write_all(html.as_bytes())?;
    file.as_file().sync_all()?;
    file.persist(path)?;
    Ok(())
}

/// Text as HTML text or attribute.
pub(crate) fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out += "&amp;",
            '<' => out += "&lt;",
            '>' => out += "&gt;",
            '"' => out += "&quot;",
            '\'' => out += "&#39;",
            c => out.push(c),
        }
    }
    out
}

fn row(cell: &str, cells: &[String]) -> String {
    let cells: String = cells
        .iter()
        .map(|c| format!("<{cell}>{}</{cell}>", escape(c)))
        .collect();
    format!("<tr>{cells}</tr>\n")
}

fn figure(plot: &Plot) -> anyhow::Result<String> {
    let legend: String = plot
        .series
        .iter()
        .map(|s| {
            let (r, g, b) = s.colour;
            let line = if s.limit { "dashed" } else { "solid" };
            let style = format!("border-top:3px {line} rgb({r},{g},{b})");
            format!("<span><i style=\"{style}\"></i>{}</span>\n", escape(&s.name))
        })
        .collect();
    Ok(format!(
        "<figure>\n<h3>{}</h3>\n<div class=\"legend\">{legend}</div>\n{}\n</figure>\n",
        escape(plot.title),
        plot.to_svg()?,
    ))
}

#[cfg(test)]
mod tests;
