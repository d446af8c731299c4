//! What is wanted of the tier, as ratios of what was measured in one run.

/// What is compared.
#[derive(Debug, Clone, Copy)]
pub(super) enum Of {
    Rate,
    Cpu,
    P99,
}

/// A ratio that is to be at least, or of CPU and time at most, so much.
#[derive(Debug, Clone, Copy)]
pub(super) struct Target {
    pub(super) what: &'static str,
    pub(super) case: &'static str,
    /// Operation and side above and below the line.
    pub(super) above: (&'static str, &'static str),
    pub(super) below: (&'static str, &'static str),
    pub(super) of: Of,
    pub(super) target: f64,
}

impl Target {
    /// Whether less is better.
    pub(super) fn is_most(&self) -> bool {
        !matches!(self.of, Of::Rate)
    }
}

/// The case of tiers at their bound.
pub(super) const BOUND: &str = "bound, 64 KiB";
/// The case of loads beside stores.
pub(super) const BESIDE: &str = "beside stores, 64 KiB";

/// `ours` is our first layout, `full` the same at its bound.
const fn target(
    what: &'static str,
    case: &'static str,
    op: &'static str,
    sides: (&'static str, &'static str),
    of: Of,
    target: f64,
) -> Target {
    let (above, below) = sides;
    Target {
        what,
        case,
        above: (op, above),
        below: (op, below),
        of,
        target,
    }
}

const fn at_bound(what: &'static str, op: &'static str, which: &'static str, least: f64) -> Target {
    target(what, BOUND, op, (which, "filling"), Of::Rate, least)
}

/// Loads beside stores against loads alone, of one side.
const fn beside(what: &'static str, side: &'static str, most: f64) -> Target {
    Target {
        below: ("load alone", side),
        ..target(what, BESIDE, "load beside", (side, side), Of::P99, most)
    }
}

#[rustfmt::skip]
pub(super) const TARGETS: &[Target] = &[
    target("store rate / stock", "64 KiB", "store", ("ours", "stock"), Of::Rate, 4.0),
    target("store rate at the bound / stock", "64 KiB", "store", ("full", "stock"), Of::Rate, 4.0),
    target("store rate / stock", "16 KiB", "store", ("ours", "stock"), Of::Rate, 15.0),
    target("store rate at the bound / stock", "16 KiB", "store", ("full", "stock"), Of::Rate, 15.0),
    target("store rate / raw", "64 KiB", "store", ("ours", "raw"), Of::Rate, 0.85),
    target("store rate at the bound / raw, written over", "64 KiB", "store", ("full", "raw, written over"), Of::Rate, 0.85),
    target("load rate / stock", "64 KiB", "load, 64", ("ours", "stock"), Of::Rate, 1.3),
    target("load rate / raw", "64 KiB", "load, 64", ("ours", "raw"), Of::Rate, 0.85),
    target("load rate / stock", "16 KiB", "load, 64", ("ours", "stock"), Of::Rate, 2.0),
    target("load rate / raw", "16 KiB", "load, 64", ("ours", "raw"), Of::Rate, 0.85),
    target("one prefix at a time / stock", "64 KiB", "load, one", ("ours", "stock"), Of::Rate, 2.0),
    target("store CPU / stock", "64 KiB", "store", ("ours", "stock"), Of::Cpu, 1.0),
    target("load CPU / stock", "64 KiB", "load, 64", ("ours", "stock"), Of::Cpu, 0.334),
    target("load CPU / stock", "16 KiB", "load, 64", ("ours", "stock"), Of::Cpu, 0.334),
    target("load rate with / without checksums", "64 KiB", "load, 64", ("ours", "kvweir auto, checksums off"), Of::Rate, 0.95),
    target("store rate / stock", "2 MiB", "store", ("ours", "stock"), Of::Rate, 1.0),
    target("store rate / raw", "2 MiB", "store", ("ours", "raw"), Of::Rate, 0.95),
    target("store CPU / stock", "2 MiB", "store", ("ours", "stock"), Of::Cpu, 0.5),
    target("load rate / stock", "2 MiB", "load, 8", ("ours", "stock"), Of::Rate, 1.0),
    target("load rate / raw", "2 MiB", "load, 8", ("ours", "raw"), Of::Rate, 0.95),
    target("load CPU / stock", "2 MiB", "load, 8", ("ours", "stock"), Of::Cpu, 0.5),
    target("store rate / stock", "8 MiB", "store", ("ours", "stock"), Of::Rate, 1.0),
    target("store rate / raw", "8 MiB", "store", ("ours", "raw"), Of::Rate, 0.95),
    target("store CPU / stock", "8 MiB", "store", ("ours", "stock"), Of::Cpu, 0.5),
    target("load rate / stock", "8 MiB", "load, 2", ("ours", "stock"), Of::Rate, 1.0),
    target("load rate / raw", "8 MiB", "load, 2", ("ours", "raw"), Of::Rate, 0.95),
    target("load CPU / stock", "8 MiB", "load, 2", ("ours", "stock"), Of::Cpu, 0.5),
    at_bound("evicting / filling store", "store", "full", 0.95),
    at_bound("full / filling load", "load", "full", 0.95),
    at_bound("churned / filling store", "store", "churned", 0.8),
    at_bound("churned / filling load", "load", "churned", 0.8),
    target("p99 beside stores / stock's", BESIDE, "load beside", ("ours", "stock"), Of::P99, 0.5),
    beside("p99 beside stores / alone", "ours", 2.0),
    beside("  the same of stock", "stock", f64::INFINITY),
];
