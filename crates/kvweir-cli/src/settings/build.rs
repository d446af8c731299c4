//! Raw text into typed settings, with the defaults that depend on what else is given.

use std::{ops::RangeInclusive, path::PathBuf, time::Duration};

use kvweir::{
    evict::{Order, PolicyKind},
    fs::{BounceMode, Layout},
    io::engine::EngineKind,
};

use super::{
    origin::{Origin, Raw, SettingError, Shape},
    raw::{RawSettings, refuse},
    replay::{BUILTIN_REQUESTS, DropPolicy, PressureSettings, ReplaySettings, order_name},
    table::SETTINGS,
    value,
};

type Result<T> = std::result::Result<T, SettingError>;

const BUILTIN_RESTART_EVERY: u64 = 300;
/// Bound of a temporary root: less than the built-in workload touches.
const TEMPORARY_BOUND: u64 = 256 << 20;

impl ReplaySettings {
    /// Reads each setting by itself; what they mean together is checked later.
    pub(super) fn build(mut raw: RawSettings) -> Result<Self> {
        for (key, text) in derived_defaults(&raw) {
            raw.entry(key).or_insert(Raw {
                text,
                shape: Shape::Any,
                origin: Origin::Default,
            });
        }
        let read = Reader(&raw);
        let policy = PolicyKind::ALL.map(|kind| (kind.as_str(), kind));
        Ok(Self {
            trace: read.path("trace"),
            requests: read.count("requests", 1..=u64::MAX)?,
            seed: read.need("seed", value::count)?,
            concurrency: read.count("concurrency", 1..=1024)?.map_or(1, |n| n as usize),
            time_scale: read.real("time_scale", |v| v > 0.0)?,
            skip_bad_lines: read.need("skip_bad_lines", value::switch)?,
            restart_every: read.count("restart_every", 0..=u64::MAX)?.filter(|&n| n > 0),
            verify: read.need("verify", value::switch)?,
            block_bytes: read.need("block_bytes", value::size)?,
            primary_bytes: read.need("primary_bytes", value::size)?,
            primary_policy: read.word("primary_policy", &policy)?,
            root: read.path("root"),
            max_bytes: read.get("max_bytes", value::size)?,
            policy: read.word("policy", &policy)?,
            threads: read.count("threads", 2..=512)?.map(|n| n as usize),
            io_timeout: Duration::try_from_secs_f64(read.need_real("io_timeout_s", |v| v >= 0.0)?)
                .unwrap_or(Duration::MAX),
            bounce: read.word("bounce", &BounceMode::ALL.map(|mode| (mode.as_str(), mode)))?,
            read_only: read.need("read_only", value::switch)?,
            layout: read.word("layout", &Layout::ALL.map(|layout| (layout.as_str(), layout)))?,
            engine: read.word("engine", &EngineKind::ALL.map(|kind| (kind.as_str(), kind)))?,
            pressure: PressureSettings {
                enabled: read.need("backpressure", value::switch)?,
                policy: read.word(
                    "backpressure_policy",
                    &[
                        ("drop", DropPolicy::Drop),
                        ("throttled_drop", DropPolicy::ThrottledDrop),
                    ],
                )?,
                high_water_s: read.need_real("high_water_s", |v| v >= 0.0)?,
                low_water_s: read.need_real("low_water_s", |v| v >= 0.0)?,
                alpha: read.need_real("alpha", |v| v > 0.0 && v <= 1.0)?,
                warmup_completions: read.need("warmup_completions", value::count)?,
                decay_half_life_s: read.need_real("decay_half_life_s", |_| true)?,
                cooldown_s: read.need_real("cooldown_s", |v| v >= 0.0)?,
                failure_threshold: read.count("failure_threshold", 1..=u64::MAX)?.unwrap_or(1),
                ramp_factor: read.need_real("ramp_factor", |v| v > 0.0)?,
                max_inflight_bytes: read.get("max_inflight_bytes", value::size)?,
            },
            hit_rate_only: read.need("hit_rate_only", value::switch)?,
            capacity_blocks: read.get("capacity_blocks", value::counts)?.unwrap_or_default(),
            order: read.word(
                "order",
                &[Order::LeafFirst, Order::HeadFirst].map(|order| (order_name(order), order)),
            )?,
            json: read.need("json", value::switch)?,
            report: read.path("report"),
            quiet: read.need("quiet", value::switch)?,
            raw,
        })
    }
}

/// Defaults: those of the table, and those that depend on what else is given.
fn derived_defaults(raw: &RawSettings) -> Vec<(&'static str, String)> {
    let mut defaults: Vec<_> = SETTINGS
        .iter()
        .filter_map(|s| Some((s.key, s.default?.to_owned())))
        .collect();
    if !raw.contains_key("trace") {
        defaults.push(("requests", BUILTIN_REQUESTS.to_string()));
        defaults.push(("restart_every", BUILTIN_RESTART_EVERY.to_string()));
    }
    if !raw.contains_key("root") {
        defaults.push(("max_bytes", value::show_size(TEMPORARY_BOUND)));
    }
    defaults
}

/// Reads typed values out of raw ones.
struct Reader<'a>(&'a RawSettings);

impl Reader<'_> {
    fn get<T>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> std::result::Result<T, String>,
    ) -> Result<Option<T>> {
        let Some(raw) = self.0.get(key) else {
            return Ok(None);
        };
        parse(&raw.text)
            .map(Some)
            .map_err(|why| refuse(self.0, key, &why))
    }

    /// A setting that has a default in the table.
    fn need<T>(
        &self,
        key: &'static str,
        parse: impl Fn(&str) -> std::result::Result<T, String>,
    ) -> Result<T> {
        self.get(key, parse)?
            .ok_or_else(|| refuse(self.0, key, "is needed"))
    }

    fn count(&self, key: &'static str, range: RangeInclusive<u64>) -> Result<Option<u64>> {
        self.get(key, |text| {
            let n = value::count(text)?;
            if range.contains(&n) {
                Ok(n)
            } else {
                Err(String::from("is out of range"))
            }
        })
    }

    fn real(&self, key: &'static str, ok: impl Fn(f64) -> bool) -> Result<Option<f64>> {
        self.get(key, |text| {
            let v = value::real(text)?;
            if ok(v) {
                Ok(v)
            } else {
                Err(String::from("is out of range"))
            }
        })
    }

    fn need_real(&self, key: &'static str, ok: impl Fn(f64) -> bool) -> Result<f64> {
        self.real(key, ok)?
            .ok_or_else(|| refuse(self.0, key, "is needed"))
    }

    fn word<T: Copy>(&self, key: &'static str, words: &[(&str, T)]) -> Result<T> {
        self.need(key, |text| {
            let found = words.iter().find(|(word, _)| *word == text);
            found
                .map(|(_, v)| *v)
                .ok_or_else(|| String::from("is none of the words allowed"))
        })
    }

    fn path(&self, key: &str) -> Option<PathBuf> {
        self.0.get(key).map(|r| PathBuf::from(&r.text))
    }
}
