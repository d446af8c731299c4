//! What settings must be together, without looking at the disk.

use super::{Origin, ReplaySettings, Result, SettingError};

const BLOCK_MAX: u64 = 2 << 30;
impl ReplaySettings {
    /// Checks every setting against the others.
    pub(super) fn check_values(&self) -> Result<()> {
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
        self.check_bound(kvweir::fs::min_bound(
            usize::try_from(self.block_bytes).unwrap_or(usize::MAX),
        ))?;
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
}
