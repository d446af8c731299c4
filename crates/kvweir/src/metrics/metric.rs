//! What a metric is: its name, what it counts, and how its values are read.

use super::{GateStats, TierStats};

/// Whether a number only ever rises.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Kind {
    /// Rises until the process ends.
    Counter,
    /// Goes up and down.
    Gauge,
}

impl Kind {
    /// The word of the text format.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Counter => "counter",
            Self::Gauge => "gauge",
        }
    }
}

/// What a number counts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Unit {
    /// Things, or what the name says.
    None,
    /// Bytes.
    Bytes,
    /// Seconds.
    Seconds,
}

impl Unit {
    /// The suffix in the name; empty for none.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::None => "",
            Self::Bytes => "bytes",
            Self::Seconds => "seconds",
        }
    }
}

/// What the metrics of one tier are read from.
#[derive(Debug, Clone, Copy)]
pub struct Snapshot<'a> {
    /// The tier's numbers.
    pub tier: &'a TierStats,
    /// Those of the gate before its stores, if it has one.
    pub gate: Option<&'a GateStats>,
}

/// A number as it is counted.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Value {
    /// Whole.
    Int(u64),
    /// Measured.
    Real(f64),
}

impl From<u64> for Value {
    fn from(n: u64) -> Self {
        Self::Int(n)
    }
}

impl From<f64> for Value {
    fn from(x: f64) -> Self {
        Self::Real(x)
    }
}

/// One value of a metric.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Sample {
    /// Value of the metric's second label, if it has one.
    pub label: Option<&'static str>,
    /// The number.
    pub value: Value,
}

/// How the values of a metric are read; none where the tier does not have it.
type Read = fn(&Snapshot<'_>) -> Vec<Sample>;

/// A metric.
#[derive(Debug, Clone, Copy)]
pub struct Metric {
    /// The whole name, as it is scraped.
    pub name: &'static str,
    /// One sentence.
    pub help: &'static str,
    /// Counter or gauge.
    pub kind: Kind,
    /// What it counts.
    pub unit: Unit,
    /// Names of labels; `tier` first.
    pub labels: &'static [&'static str],
    /// Its values for one tier; none where the tier does not have it.
    pub read: Read,
}

impl Metric {
    /// A number that goes up and down, one per tier.
    pub(super) const fn gauge(name: &'static str, unit: Unit, help: &'static str, read: Read) -> Self {
        Self {
            name,
            help,
            kind: Kind::Gauge,
            unit,
            labels: &["tier"],
            read,
        }
    }

    /// A number that only rises, one per tier.
    pub(super) const fn counter(name: &'static str, unit: Unit, help: &'static str, read: Read) -> Self {
        Self {
            kind: Kind::Counter,
            ..Self::gauge(name, unit, help, read)
        }
    }

    /// The same with more labels.
    pub(super) const fn labelled(self, labels: &'static [&'static str]) -> Self {
        Self { labels, ..self }
    }
}
