//! Settings of `kvweir replay`: flags win over the file, the file over the defaults. Every fault names the
//! setting, its value, what is allowed and where it came from; nothing is made on disk before all is checked.

mod disk;
mod file;
mod flags;
mod origin;
mod print;
mod table;
mod value;

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
};

pub(crate) use flags::Flags;
use kvweir::evict::{Order, PolicyKind};
pub(crate) use origin::{Origin, Raw, SettingError, Shape};
use table::{SETTINGS, Setting};
pub(crate) use value::show_size;

/// Raw values by setting name.
pub(crate) type RawSettings = BTreeMap<&'static str, Raw>;

type Result<T> = std::result::Result<T, SettingError>;

/// Requests of the built-in workload.
pub(crate) const BUILTIN_REQUESTS: u64 = 600;
const BUILTIN_RESTART_EVERY: u64 = 300;
/// Bound of a temporary root: less than the built-in workload touches.
const TEMPORARY_BOUND: u64 = 256 << 20;
const BLOCK_MAX: u64 = 2 << 30;
const PAGE: u64 = 4096;

/// The name of a touch order in settings and output.
pub(crate) const fn order_name(order: Order) -> &'static str {
    match order {
        Order::LeafFirst => "leaf-first",
        Order::HeadFirst => "head-first",
    }
}

/// Which stores to drop under pressure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum DropPolicy {
    /// All.
    Drop,
    /// A share that grows with the overshoot.
    ThrottledDrop,
}

/// Back-pressure settings, by the names of the manual.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct PressureSettings {
    /// Whether stores are gated at all.
    pub(crate) enabled: bool,
    /// Which stores to drop.
    pub(crate) policy: DropPolicy,
    /// Seconds per MiB above which pressure sets in.
    pub(crate) high_water_s: f64,
    /// Seconds per MiB below which it ends.
    pub(crate) low_water_s: f64,
    /// Weight of the newest sample.
    pub(crate) alpha: f64,
    /// Samples that only warm up.
    pub(crate) warmup_completions: u64,
    /// Half-life under silence; <= 0 disables.
    pub(crate) decay_half_life_s: f64,
    /// Cool-down after pressure.
    pub(crate) cooldown_s: f64,
    /// Failures in a row that mean pressure.
    pub(crate) failure_threshold: u64,
    /// Overshoot at which everything is dropped.
    pub(crate) ramp_factor: f64,
    /// Bytes of stores in flight; unset: a quarter of the primary, at most 2 GiB.
    pub(crate) max_inflight_bytes: Option<u64>,
}

/// All settings of a replay, checked.
#[derive(Debug, Clone)]
pub(crate) struct ReplaySettings {
    /// The trace; unset: the built-in workload. `-` is stdin.
    pub(crate) trace: Option<PathBuf>,
    /// Stop after so many requests.
    pub(crate) requests: Option<u64>,
    /// Seed of everything random.
    pub(crate) seed: u64,
    /// Requests in flight.
    pub(crate) concurrency: usize,
    /// Speed-up of the trace's clock; unset: as fast as possible.
    pub(crate) time_scale: Option<f64>,
    /// Skip malformed lines.
    pub(crate) skip_bad_lines: bool,
    /// Reopen the tier after so many requests; unset: never.
    pub(crate) restart_every: Option<u64>,
    /// Compare promoted blocks.
    pub(crate) verify: bool,
    /// Bytes of a block.
    pub(crate) block_bytes: u64,
    /// Bytes of the primary tier.
    pub(crate) primary_bytes: u64,
    /// Eviction in the primary tier.
    pub(crate) primary_policy: PolicyKind,
    /// Root of the file tier; unset: a temporary directory.
    pub(crate) root: Option<PathBuf>,
    /// Bound of the file tier; unset: none.
    pub(crate) max_bytes: Option<u64>,
    /// Eviction in the file tier.
    pub(crate) policy: PolicyKind,
    /// I/O threads.
    pub(crate) threads: Option<usize>,
    /// Back-pressure.
    pub(crate) pressure: PressureSettings,
    /// Eviction code only.
    pub(crate) hit_rate_only: bool,
    /// Capacities for `hit_rate_only`.
    pub(crate) capacity_blocks: Vec<usize>,
    /// Touch order for `hit_rate_only`.
    pub(crate) order: Order,
    /// JSON instead of a table.
    pub(crate) json: bool,
    /// HTML report.
    pub(crate) report: Option<PathBuf>,
    /// No progress bar.
    pub(crate) quiet: bool,
    raw: RawSettings,
}

impl ReplaySettings {
    /// Reads the file, if one is named, lays the flags over it, and checks everything.
    pub(crate) fn load(config: Option<&Path>, flags: Flags) -> Result<Self> {
        let mut raw = config.map_or_else(|| Ok(RawSettings::new()), file::read)?;
        raw.extend(flags.0);
        let settings = Self::build(raw)?;
        settings.check_values()?;
        settings.check_paths()?;
        Ok(settings)
    }

    fn build(mut raw: RawSettings) -> Result<Self> {
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
            threads: read.count("threads", 1..=1024)?.map(|n| n as usize),
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

    fn check_values(&self) -> Result<()> {
        if self.block_bytes == 0 || self.block_bytes > BLOCK_MAX {
            return Err(self.refuse("block_bytes", "is out of range"));
        }
        if self.primary_bytes < self.block_bytes {
            let why = format!("holds not even one block of {}", self.tell("block_bytes"));
            return Err(self.refuse("primary_bytes", &why));
        }
        let p = &self.pressure;
        if p.low_water_s > p.high_water_s {
            return Err(self.refuse(
                "low_water_s",
                &format!("lies above {}", self.tell("high_water_s")),
            ));
        }
        if p.max_inflight_bytes.is_some_and(|b| b < self.block_bytes) {
            let why = format!("lets not even one block of {} through", self.tell("block_bytes"));
            return Err(self.refuse("max_inflight_bytes", &why));
        }
        self.check_bound(min_bound(self.block_bytes))?;
        self.check_mode()
    }

    /// Refuses a bound below `min_bound`, the least bytes a root with a single block occupies.
    pub(crate) fn check_bound(&self, min_bound: u64) -> Result<()> {
        if self.max_bytes.is_none_or(|b| b >= min_bound) {
            return Ok(());
        }
        let why = format!(
            "is below the {min_bound} bytes that one block of {} needs with its trailer page and directories",
            self.tell("block_bytes"),
        );
        Err(self.refuse("max_bytes", &why))
    }

    fn check_mode(&self) -> Result<()> {
        let given_by_flag = |key| matches!(self.origin(key), Origin::Flag(_));
        if self.hit_rate_only && self.capacity_blocks.is_empty() {
            return Err(SettingError::new(
                format!(
                    "{} needs `capacity_blocks`, which is unset",
                    self.tell("hit_rate_only")
                ),
                Some(String::from("add --capacity-blocks N, or several: N,N,N")),
            ));
        }
        if self.hit_rate_only && self.report.is_some() {
            return Err(self.refuse(
                "report",
                &format!("does not go with {}", self.tell("hit_rate_only")),
            ));
        }
        if !self.hit_rate_only && given_by_flag("capacity_blocks") {
            return Err(SettingError::new(
                format!("{} is for --hit-rate-only", self.tell("capacity_blocks")),
                Some(String::from(
                    "with real I/O the file tier is bounded by --max-bytes",
                )),
            ));
        }
        Ok(())
    }

    /// Where the value of `key` came from.
    pub(crate) fn origin(&self, key: &str) -> &Origin {
        self.raw.get(key).map_or(&Origin::Default, |r| &r.origin)
    }

    /// An error about the value of `key`; `why` continues the sentence "`key = value` (origin) ...".
    pub(crate) fn refuse(&self, key: &str, why: &str) -> SettingError {
        refuse(&self.raw, key, why)
    }

    /// "`key = value` (origin)", for messages about two settings.
    fn tell(&self, key: &str) -> String {
        self.raw.get(key).map_or_else(
            || format!("`{key}`"),
            |r| format!("`{key} = {}` ({})", r.text, r.origin),
        )
    }

    /// The settings as a TOML file that gives the same settings, each line with its origin.
    pub(crate) fn to_toml(&self) -> String {
        print::to_toml(&self.raw)
    }
}

/// Least bytes of a root with one block: block and trailer page in whole pages, and five directories.
pub(crate) const fn min_bound(block_bytes: u64) -> u64 {
    block_bytes.saturating_add(PAGE).next_multiple_of(PAGE) + 5 * PAGE
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
        defaults.push(("max_bytes", show_size(TEMPORARY_BOUND)));
    }
    defaults
}

fn refuse(raw: &RawSettings, key: &str, why: &str) -> SettingError {
    let allowed = Setting::find(key).map_or("", |s| s.allowed);
    let unset = Raw {
        text: String::from("(unset)"),
        shape: Shape::Any,
        origin: Origin::Default,
    };
    SettingError::refused(key, raw.get(key).unwrap_or(&unset), why, allowed)
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

    fn count(&self, key: &'static str, range: std::ops::RangeInclusive<u64>) -> Result<Option<u64>> {
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

#[cfg(test)]
mod tests;
