//! How promotions are paced.

use std::time::Duration;

use crate::error::{Error, Result};

/// How promotions are paced.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct PacingSettings {
    /// Share of the primary's slots that promoted blocks of waiting requests take together, in (0, 1]. One request
    /// alone may take more if it fits as a whole.
    pub share: f64,
    /// Longest time for which a request is held back for others; zero: never, what does not fit is cut at once.
    pub wait: Duration,
}

impl Default for PacingSettings {
    fn default() -> Self {
        Self {
            share: 0.75,
            wait: Duration::from_secs(10),
        }
    }
}

impl PacingSettings {
    /// Checks the values.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) naming the setting, its value and what is allowed.
    pub fn validate(&self) -> Result<()> {
        if !(self.share > 0.0 && self.share <= 1.0) {
            return Err(Error::invalid(
                "check settings",
                format!(
                    "promote_share = {}: a share of the primary tier above 0, at most 1, is allowed",
                    self.share
                ),
            ));
        }
        Ok(())
    }
}
