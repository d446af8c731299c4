//! The one list of settings of `kvweir replay`: flags, file keys, defaults, help and error texts all come from it.

/// How a setting's text is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    /// Bytes: an integer or a string with a unit.
    Size,
    /// A whole number.
    Count,
    /// A number with a fraction.
    Real,
    /// true or false; as a flag the value may be left out.
    Switch,
    /// A path.
    Path,
    /// One of a few words.
    Word,
    /// Whole numbers; a list in the file, separated by commas in a flag.
    Counts,
}

/// One setting.
#[derive(Debug)]
pub(crate) struct Setting {
    /// The snake_case name in the file; the flag is the same in kebab-case.
    pub(crate) key: &'static str,
    /// The flag without dashes.
    pub(crate) flag: &'static str,
    /// Other names, in the file and as flags.
    pub(crate) aliases: &'static [&'static str],
    /// How it is read.
    pub(crate) kind: Kind,
    /// The value if nobody gives one.
    pub(crate) default: Option<&'static str>,
    /// What it means to leave it unset (settings without a default).
    pub(crate) unset: &'static str,
    /// What is allowed, for errors and help.
    pub(crate) allowed: &'static str,
    /// What it is.
    pub(crate) help: &'static str,
    /// Under which heading the help lists it.
    pub(crate) heading: &'static str,
}

impl Setting {
    /// The setting of that name or alias (snake_case).
    pub(crate) fn find(name: &str) -> Option<&'static Self> {
        SETTINGS
            .iter()
            .find(|s| s.key == name || s.aliases.contains(&name))
    }

    /// The known name nearest to `name`, if one is near.
    pub(crate) fn nearest(name: &str) -> Option<&'static str> {
        let name = name.replace('-', "_").to_lowercase();
        let names = SETTINGS
            .iter()
            .flat_map(|s| std::iter::once(&s.key).chain(s.aliases));
        let best = names.map(|n| (kvweir::stanza::distance(&name, n), *n)).min()?;
        (best.0 <= 2 + name.len() / 4).then_some(best.1)
    }
}

const SIZE: &str = "bytes as a number (65536) or a string with a unit (64KiB, 1.5GiB, 500MB)";
const POLICIES: &str = "lru, arc, s3fifo";
const BOUNCES: &str = "auto, always, never";
const LAYOUTS: &str = "auto, fs, pack";
const ENGINES: &str = "threads, io_uring";
const SWITCH: &str = "true or false";
const WORK: &str = "Workload";
const PRIMARY: &str = "Primary tier";
const TIER: &str = "File tier";
const PRESSURE: &str = "Back-pressure";
const HITRATE: &str = "Hit rate only";
const OUTPUT: &str = "Output";

const fn first(values: &[&'static str]) -> Option<&'static str> {
    match values {
        [value, ..] => Some(value),
        [] => None,
    }
}

macro_rules! settings {
    ($($key:ident $flag:literal $kind:ident $(= $default:literal)? $(alias [$($alias:literal),*])?
        $(unset $unset:literal)?, $heading:expr, $allowed:expr, $help:literal;)*) => {
        &[$(Setting {
            key: stringify!($key),
            flag: $flag,
            aliases: &[$($($alias),*)?],
            kind: Kind::$kind,
            default: first(&[$($default)?]),
            unset: concat!($($unset)?),
            allowed: $allowed,
            help: $help,
            heading: $heading,
        }),*]
    };
}

/// Every setting, in the order in which help and `--print-config` list them.
pub(crate) const SETTINGS: &[Setting] = settings! {
    trace "trace" Path unset "the built-in workload", WORK, "a file, or - for stdin",
        "Trace of requests in Mooncake format (JSON lines), plain or compressed with gzip, zstd or xz; - reads stdin";
    requests "requests" Count unset "600 of the built-in workload, all of a trace", WORK, "a whole number, at least 1",
        "Stop after this many requests";
    seed "seed" Count = "0", WORK, "a whole number", "Seed of the built-in workload and of everything random";
    concurrency "concurrency" Count = "4", WORK, "a whole number from 1 to 1024", "Requests in flight at a time";
    time_scale "time-scale" Real unset "as fast as possible", WORK, "a number above 0",
        "Keep the trace's arrival times, this many times faster";
    skip_bad_lines "skip-bad-lines" Switch = "false", WORK, SWITCH,
        "Pass over malformed trace lines and count them instead of ending";
    restart_every "restart-every" Count unset "300 with the built-in workload, else 0", WORK,
        "a whole number; 0 = never", "Close and reopen the file tier after every so many requests";
    verify "verify" Switch = "true", WORK, SWITCH, "Compare every promoted block with what its key says it holds";
    block_bytes "block-bytes" Size = "64KiB", PRIMARY, "1 B to 2GiB: bytes as a number or a string such as 64KiB",
        "Bytes per block";
    primary_bytes "primary-bytes" Size = "64MiB", PRIMARY, SIZE, "Host memory of the primary tier";
    primary_policy "primary-policy" Word = "lru", PRIMARY, POLICIES, "What the primary tier evicts";
    root "root" Path unset "a temporary directory, removed at the end", TIER, "a directory; it is made if missing",
        "Directory of the file tier";
    max_bytes "max-bytes" Size alias ["max_cache_size_bytes", "capacity_bytes"]
        unset "no bound with `root`, else 256MiB", TIER, SIZE,
        "The most bytes the file tier may occupy, everything below its root counted";
    policy "policy" Word = "lru", TIER, POLICIES, "What the file tier evicts";
    threads "threads" Count unset "from CPU affinity and cgroup quota", TIER, "a whole number from 2 to 512",
        "I/O threads of the file tier, of which half may store";
    io_timeout_s "io-timeout-s" Real = "30", TIER, "seconds; 0 = never",
        "A job whose I/O takes this long is given up, and the tier is left alone for a while";
    bounce "bounce" Word = "auto", TIER, BOUNCES,
        "Load through a buffer of the tier, so that a load that hangs can be given up; auto: on network file systems";
    read_only "read-only" Switch = "false", TIER, SWITCH, "Change nothing below the root: load, and store nothing";
    layout "layout" Word = "auto", TIER, LAYOUTS,
        "How new blocks are laid out: one file per block, packed into large files, or auto: packed where that suits";
    engine "engine" Word = "threads", TIER, ENGINES, "Who moves packed blocks and reads large files";
    backpressure "backpressure" Switch = "true", PRESSURE, SWITCH, "Hold back stores from a tier that cannot keep up";
    backpressure_policy "backpressure-policy" Word = "throttled_drop", PRESSURE, "drop, throttled_drop",
        "Which stores to drop under pressure";
    high_water_s "high-water-s" Real = "0.010", PRESSURE, "seconds per MiB, not below low_water_s",
        "Store time above which pressure sets in";
    low_water_s "low-water-s" Real = "0.002", PRESSURE, "seconds per MiB, 0 or more, not above high_water_s",
        "Store time below which pressure ends";
    alpha "alpha" Real = "0.15", PRESSURE, "a number above 0, at most 1", "Weight of the newest sample in the EMA";
    warmup_completions "warmup-completions" Count = "10", PRESSURE, "a whole number",
        "Stores that only warm up the EMA";
    decay_half_life_s "decay-half-life-s" Real = "2.0", PRESSURE, "seconds; 0 or less disables",
        "Half-life of the EMA while a tier under pressure is silent";
    cooldown_s "cooldown-s" Real = "1.0", PRESSURE, "seconds, 0 or more",
        "For how long every second store is dropped after pressure ends";
    failure_threshold "failure-threshold" Count = "3", PRESSURE, "a whole number, at least 1",
        "Failed stores in a row that mean pressure";
    ramp_factor "ramp-factor" Real = "2.0", PRESSURE, "a number above 0",
        "Overshoot, in high water marks, at which every store is dropped";
    max_inflight_bytes "max-inflight-bytes" Size unset "a quarter of primary_bytes, at most 2GiB", PRESSURE,
        "at least block_bytes: bytes as a number or a string such as 512MiB",
        "The most bytes of stores one tier may have in flight";
    hit_rate_only "hit-rate-only" Switch = "false", HITRATE, SWITCH,
        "Run only the eviction code, without I/O: how many leading blocks of each request were present?";
    capacity_blocks "capacity-blocks" Counts unset "needed with hit_rate_only", HITRATE,
        "whole numbers, at least 1, separated by commas (a list in the file)",
        "Capacity in blocks; several give one result each";
    order "order" Word = "leaf-first", HITRATE, "leaf-first, head-first",
        "Order in which the blocks of a request are touched";
    json "json" Switch = "false", OUTPUT, SWITCH, "Print one JSON object instead of the table";
    report "report" Path unset "none", OUTPUT, "a file in an existing directory",
        "Write a self-contained HTML report with plots";
    quiet "quiet" Switch = "false", OUTPUT, SWITCH, "No progress bar";
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_unique_and_flags_follow_keys() {
        let mut names: Vec<_> = SETTINGS
            .iter()
            .flat_map(|s| std::iter::once(&s.key).chain(s.aliases))
            .collect();
        let count = names.len();
        names.sort();
        names.dedup();
        assert_eq!(names.len(), count);
        for s in SETTINGS {
            assert_eq!(s.flag, s.key.replace('_', "-"));
            assert!(
                s.default.is_some() == s.unset.is_empty(),
                "{}: a default or what unset means",
                s.key
            );
        }
    }

    #[test]
    fn the_policies_allowed_are_those_there_are() {
        assert_eq!(
            POLICIES,
            kvweir::evict::PolicyKind::ALL
                .map(kvweir::evict::PolicyKind::as_str)
                .join(", ")
        );
    }

    #[test]
    fn the_ways_to_bounce_allowed_are_those_there_are() {
        let all = kvweir::fs::BounceMode::ALL.map(kvweir::fs::BounceMode::as_str);
        assert_eq!(BOUNCES, all.join(", "));
    }

    #[test]
    fn nearest_names() {
        assert_eq!(Setting::nearest("alhpa"), Some("alpha"));
        assert_eq!(Setting::nearest("max-byte"), Some("max_bytes"));
        assert_eq!(Setting::nearest("primary_size_bytes"), Some("primary_bytes"));
        assert_eq!(Setting::nearest("zzzzzz"), None);
        assert_eq!(kvweir::stanza::distance("kitten", "sitting"), 3);
    }
}
