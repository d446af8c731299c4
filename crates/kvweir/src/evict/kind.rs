//! The policies by name, as settings write them.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};

/// The policies there are; in settings `"lru"`, `"arc"` or `"s3fifo"`.
///
/// ```
/// use kvweir::evict::PolicyKind;
/// let kind: PolicyKind = "arc".parse()?;
/// assert_eq!(kind, PolicyKind::Arc);
/// assert_eq!(kind.to_string(), "arc");
/// # Ok::<(), kvweir::Error>(())
/// ```
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
#[non_exhaustive]
pub enum PolicyKind {
    /// Least recently used.
    #[default]
    Lru,
    /// Adaptive replacement: recency and frequency, balanced by what proved useful.
    Arc,
    /// Three FIFO queues with lazy promotion.
    S3Fifo,
}

impl PolicyKind {
    /// Every policy.
    pub const ALL: [Self; 3] = [Self::Lru, Self::Arc, Self::S3Fifo];

    /// The word used in settings, metrics labels and JSON.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Lru => "lru",
            Self::Arc => "arc",
            Self::S3Fifo => "s3fifo",
        }
    }
}

impl fmt::Display for PolicyKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for PolicyKind {
    type Err = Error;

    fn from_str(s: &str) -> Result<Self> {
        Self::ALL.into_iter().find(|k| k.as_str() == s).ok_or_else(|| {
            Error::invalid(
                "read policy",
                format!("there are lru, arc and s3fifo, but no {s:?}"),
            )
        })
    }
}
