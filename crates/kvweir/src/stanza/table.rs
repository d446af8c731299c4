//! The settings. A row is a setting; the manual's tables, the checker and the Python package follow it.

use std::{borrow::Cow, time::Duration};

use super::value::Parsed;

/// A setting's value where none is given.
#[derive(Debug, Clone, Copy)]
enum Default {
    Unset,
    Bool(bool),
    Int(u64),
    Real(f64),
    Word(&'static str),
}

/// How a setting's value is read.
#[derive(Debug, Clone, Copy)]
pub enum Kind {
    /// A directory: a text that is not empty.
    Path,
    /// Any text.
    Text,
    /// One of these, as they stand here.
    Word(&'static [&'static str]),
    /// One of these, in any letter case.
    AnyCase(&'static [&'static str]),
    /// true or false.
    Switch,
    /// A whole number of this range.
    Count(u64, u64),
    /// Bytes, one at least: a whole number, or a text with a unit.
    Size,
    /// A finite number of which this is true.
    Real(fn(f64) -> bool),
}

/// A setting of a stanza.
#[derive(Debug, Clone, Copy)]
pub struct Setting {
    /// Its name.
    pub name: &'static str,
    /// Other names it goes by.
    pub aliases: &'static [&'static str],
    /// How it is read.
    pub kind: Kind,
    default: Default,
    unset: &'static str,
    /// What is allowed, as messages end.
    pub allowed: &'static str,
    /// What it is for.
    pub meaning: &'static str,
    /// Whether `null` is the same as to leave it out.
    pub nullable: bool,
}

impl Setting {
    /// The setting of `table` that goes by `name`.
    pub fn find(table: &'static [Self], name: &str) -> Option<&'static Self> {
        table.iter().find(|s| s.name == name || s.aliases.contains(&name))
    }

    /// Its value where none is given.
    pub fn default_value(&self) -> Parsed {
        match self.default {
            Default::Unset => Parsed::Null,
            Default::Bool(b) => Parsed::Bool(b),
            Default::Int(n) => Parsed::Int(n),
            Default::Real(x) => Parsed::Real(x),
            Default::Word(w) => Parsed::Text(Cow::Borrowed(w)),
        }
    }

    /// The same in words.
    pub fn default_words(&self) -> String {
        if self.unset.is_empty() {
            self.default_value().to_string()
        } else {
            self.unset.to_owned()
        }
    }

    const fn aliases(mut self, aliases: &'static [&'static str]) -> Self {
        self.aliases = aliases;
        self
    }

    const fn required(mut self) -> Self {
        self.unset = "(required)";
        self
    }

    /// Unset where it is left out, which means `unset`.
    const fn unset(mut self, unset: &'static str) -> Self {
        self.unset = unset;
        self.nullable = true;
        self
    }
}

const fn row(
    name: &'static str,
    kind: Kind,
    default: Default,
    allowed: &'static str,
    meaning: &'static str,
) -> Setting {
    Setting {
        name,
        aliases: &[],
        kind,
        default,
        unset: "",
        allowed,
        meaning,
        nullable: false,
    }
}

const NULL: Default = Default::Unset;
const FALSE: Default = Default::Bool(false);
const TRUE: Default = Default::Bool(true);
const SWITCH: &str = "true or false is allowed";
const SIZE: &str = "more than zero bytes is allowed; write 1073741824 or \"500GiB\"";
const THREADS: &str = "1 to 256 threads is allowed";
const SECONDS: &str = "a number of seconds, zero or more, is allowed";
const SPAN: &str = "a number of seconds greater than zero is allowed";
const NUMBER: &str = "a number is allowed";

/// Whether the engine can count so many seconds.
fn seconds(s: f64) -> bool {
    s < 1e18 && Duration::try_from_secs_f64(s).is_ok()
}

/// As [`seconds`], and not so short that nothing is left.
fn span(s: f64) -> bool {
    seconds(s) && !Duration::from_secs_f64(s).is_zero()
}

/// The settings of a tier of ours, `type` and what vLLM takes out not among them.
pub const TIER: &[Setting] = &[
    row(
        "root_dir",
        Kind::Path,
        NULL,
        "name a directory",
        "the directory; its parent must exist",
    )
    .required(),
    row(
        "max_bytes",
        Kind::Size,
        NULL,
        SIZE,
        "bound on all that lies below `root_dir`",
    )
    .aliases(&["max_cache_size_bytes", "capacity_bytes"])
    .unset("unbounded and shared"),
    row(
        "min_free_bytes",
        Kind::Size,
        NULL,
        SIZE,
        "bytes of the file system to leave free, whoever fills it",
    )
    .unset("no floor"),
    row(
        "layout",
        Kind::Word(&["auto", "fs", "pack"]),
        Default::Word("auto"),
        "auto, fs or pack is allowed",
        "one file per block, packed into large files, or what suits; `KvweirFsTier` has `fs`",
    ),
    row(
        "engine",
        Kind::Word(&["threads", "io_uring"]),
        Default::Word("threads"),
        "threads or io_uring is allowed",
        "who moves packed blocks, and reads large ones with files of their own",
    ),
    row(
        "policy",
        Kind::Word(&["lru", "arc", "s3fifo"]),
        Default::Word("lru"),
        "lru, arc or s3fifo is allowed",
        "what is evicted first",
    ),
    row(
        "n_read_threads",
        Kind::Count(1, 256),
        NULL,
        THREADS,
        "worker threads for loads",
    )
    .unset("by usable CPUs"),
    row(
        "n_write_threads",
        Kind::Count(1, 256),
        NULL,
        THREADS,
        "worker threads that may store",
    )
    .unset("by usable CPUs"),
    row(
        "verify",
        Kind::Switch,
        TRUE,
        SWITCH,
        "compare payload checksums on load",
    ),
    row(
        "enable_kv_events",
        Kind::Switch,
        FALSE,
        SWITCH,
        "publish residency events, where vLLM does",
    ),
    row(
        "locality",
        Kind::AnyCase(&["LOCAL", "REMOTE"]),
        NULL,
        "LOCAL or REMOTE is allowed",
        "where the directory is; decides water marks and `bounce`",
    )
    .unset("LOCAL"),
    row(
        "namespace_extra",
        Kind::Text,
        Default::Word(""),
        "a text is allowed",
        "sets blocks of the same model apart",
    ),
    row(
        "pin_ttl_s",
        Kind::Real(span),
        Default::Real(600.0),
        SPAN,
        "a request not finished for so long loses its pins",
    ),
    row(
        "miss_ttl_s",
        Kind::Real(seconds),
        Default::Real(1.0),
        SECONDS,
        "a missing key is not looked for for so long",
    ),
    row(
        "io_timeout_s",
        Kind::Real(seconds),
        Default::Real(30.0),
        SECONDS,
        "a job whose I/O takes this long is given up; 0: never",
    ),
    row(
        "bounce",
        Kind::Word(&["auto", "always", "never"]),
        Default::Word("auto"),
        "auto, always or never is allowed",
        "load through a buffer of the tier",
    ),
    row(
        "read_only",
        Kind::Switch,
        FALSE,
        SWITCH,
        "change nothing below `root_dir`, store nothing",
    ),
    row(
        "max_inflight_bytes",
        Kind::Size,
        NULL,
        SIZE,
        "most bytes submitted to be stored and not completed",
    )
    .unset("a quarter of the primary, 64 MiB to 2 GiB"),
    row(
        "promote_share",
        Kind::Real(|x| x > 0.0 && x <= 1.0),
        Default::Real(0.75),
        "greater than 0 and at most 1 is allowed",
        "share of the primary's slots that promoted blocks of waiting requests take together",
    ),
    row(
        "promote_wait_s",
        Kind::Real(seconds),
        Default::Real(10.0),
        SECONDS,
        "a request is held back for others so long at most; 0: never, it is cut instead",
    ),
];

/// The settings of `backpressure` with `kvweir.vllm.KvweirDetector`, the names of the classes not among them.
pub const BACKPRESSURE: &[Setting] = &[
    row(
        "high_water_s",
        Kind::Real(|x| x > 0.0),
        NULL,
        "seconds per MiB, greater than zero, are allowed",
        "a smoothed time above it sets pressure; seconds per MiB",
    )
    .unset("0.01; 0.05 with `locality` REMOTE"),
    row(
        "low_water_s",
        Kind::Real(|x| x >= 0.0),
        NULL,
        "seconds per MiB, zero or more, are allowed",
        "a smoothed time below it clears pressure; at most `high_water_s`",
    )
    .unset("0.002; 0.01 with `locality` REMOTE"),
    row(
        "alpha",
        Kind::Real(|x| x > 0.0 && x <= 1.0),
        Default::Real(0.15),
        "greater than 0 and at most 1 is allowed",
        "weight of the newest completion",
    ),
    row(
        "warmup_completions",
        Kind::Count(0, u32::MAX as u64),
        Default::Int(10),
        "a whole number from 0 to 4294967295 is allowed",
        "so many first completions only collect",
    ),
    row(
        "decay_half_life_s",
        Kind::Real(|_| true),
        Default::Real(2.0),
        NUMBER,
        "under pressure the smoothed time halves in so many seconds of silence; 0 disables",
    ),
    row(
        "cooldown_s",
        Kind::Real(|_| true),
        Default::Real(1.0),
        NUMBER,
        "after pressure every second store is dropped for so many seconds; 0 disables",
    ),
    row(
        "failure_threshold",
        Kind::Count(1, u32::MAX as u64),
        NULL,
        "a whole number from 1 to 4294967295, or none to ignore failures, is allowed",
        "so many failed stores in a row mean pressure",
    )
    .unset("3"),
    row(
        "max_inflight_bytes",
        Kind::Size,
        NULL,
        SIZE,
        "as in the tier's own stanza, and before it",
    )
    .unset("that of the tier"),
];

/// The settings of `KvweirOffloadingSpec` that mean something else than in vLLM's own specification, or nothing there.
/// They stand beside `cpu_bytes_to_use` and `secondary_tiers`.
pub const MANAGER: &[Setting] = &[
    row(
        "eviction_policy",
        Kind::Word(&["lru", "arc", "s3fifo"]),
        Default::Word("lru"),
        "lru, arc or s3fifo is allowed",
        "which block of the primary is evicted first",
    ),
    row(
        "promote_share",
        Kind::Real(|x| x > 0.0 && x <= 1.0),
        Default::Real(0.75),
        "greater than 0 and at most 1 is allowed",
        "share of the primary's slots that waiting requests hold together; one that is alone may take more",
    ),
    row(
        "promote_wait_s",
        Kind::Real(seconds),
        Default::Real(10.0),
        SECONDS,
        "a request is held back for others so long at most; 0: never, it is cut instead",
    ),
    row(
        "tier_poll_interval_s",
        Kind::Real(|x| x < 1e9),
        Default::Real(0.001),
        NUMBER,
        "pause between two looks at tiers of others that serve other engines; 0: only in steps",
    ),
    row(
        "store_threshold",
        Kind::Count(0, 1),
        Default::Int(0),
        "0 or 1 is allowed: with tiers, blocks are stored when they first come",
        "as in vLLM's own tiering specification",
    ),
];
