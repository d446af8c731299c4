//! The plots of a replay over its time.

use super::plot::{COLOURS, LIMIT, Plot, Scale, Series};
use crate::summary::{Sample, Timeline};

/// All of them, in the order of the report.
pub(super) fn plots(t: &Timeline) -> Vec<Plot> {
    vec![hits(t), resident(t), latency(t), pressure(t), dropped(t)]
}

fn line(t: &Timeline, name: &str, i: usize, at: &dyn Fn(&Sample) -> Option<(f64, f64)>) -> Series {
    Series {
        name: name.to_owned(),
        colour: COLOURS.get(i % COLOURS.len()).copied().unwrap_or_default(),
        limit: false,
        points: t.samples().filter_map(at).collect(),
    }
}

/// A line over time of what samples may have.
fn by_time(t: &Timeline, name: &str, i: usize, y: &dyn Fn(&Sample) -> Option<f64>) -> Series {
    line(t, name, i, &|s| y(s).map(|y| (s.t_s, y)))
}

fn limit(t: &Timeline, name: &str, y: f64) -> Series {
    let end = t.samples().next_back().map_or(0.0, |s| s.t_s);
    Series {
        name: name.to_owned(),
        colour: LIMIT,
        limit: true,
        points: vec![(0.0, y), (end, y)],
    }
}

fn hits(t: &Timeline) -> Plot {
    let mut series = vec![line(t, "total", 0, &|s| Some((s.requests as f64, s.hit_rate)))];
    for (i, name) in t.tier_names.iter().enumerate() {
        series.push(line(t, name, i + 1, &|s| {
            Some((s.requests as f64, *s.tier_hit_rates.get(i)?))
        }));
    }
    Plot {
        title: "Prefix hit rate",
        x: "requests",
        y: "share of blocks",
        scale: Scale::Linear,
        series,
    }
}

fn resident(t: &Timeline) -> Plot {
    let mib = |b: u64| b as f64 / f64::from(1 << 20);
    let mut series = vec![by_time(t, "resident", 0, &|s| Some(mib(s.bytes_resident)))];
    series.extend(t.bound_bytes.map(|b| limit(t, "bound", mib(b))));
    Plot {
        title: "Bytes resident in secondary tiers",
        x: "seconds",
        y: "MiB",
        scale: Scale::Linear,
        series,
    }
}

fn latency(t: &Timeline) -> Plot {
    Plot {
        title: "Store and load latency",
        x: "seconds",
        y: "microseconds",
        scale: Scale::Log,
        series: vec![
            by_time(t, "store p50", 0, &|s| s.store_p50_us),
            by_time(t, "store p99", 3, &|s| s.store_p99_us),
            by_time(t, "load p50", 2, &|s| s.load_p50_us),
            by_time(t, "load p99", 1, &|s| s.load_p99_us),
        ],
    }
}

fn pressure(t: &Timeline) -> Plot {
    let low = Series {
        colour: (120, 120, 120),
        ..limit(t, "low water mark", t.low_water_s * 1e3)
    };
    Plot {
        title: "Store time against the water marks",
        x: "seconds",
        y: "ms per MiB",
        scale: Scale::Linear,
        series: vec![
            by_time(t, "EMA", 0, &|s| s.ema_s_per_mib.map(|e| e * 1e3)),
            limit(t, "high water mark", t.high_water_s * 1e3),
            low,
        ],
    }
}

fn dropped(t: &Timeline) -> Plot {
    Plot {
        title: "Blocks dropped by back-pressure",
        x: "seconds",
        y: "blocks",
        scale: Scale::Linear,
        series: vec![by_time(t, "dropped so far", 1, &|s| {
            Some(s.dropped_blocks as f64)
        })],
    }
}
