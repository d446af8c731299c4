//! What settings must be together, without looking at the disk.

use kvweir::fs::Layout;

use super::{
    origin::{Origin, SettingError},
    replay::{DropPolicy, ReplaySettings},
    value,
};

type Result<T> = std::result::Result<T, SettingError>;

const BLOCK_MAX: u64 = 2 << 30;
impl ReplaySettings {
    /// Checks every setting against the others.
    pub(super) fn check_values(&self) -> Result<()> {
        if self.block_bytes == 0 || self.block_bytes > BLOCK_MAX {
            return Err(self.refuse("block_bytes", "is out of range"));
        }
        if self.primary_slots() == 0 {
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
        if p.enabled && p.policy == DropPolicy::Drop {
            for (key, value) in [
                ("low_water_s", p.low_water_s),
                ("decay_half_life_s", p.decay_half_life_s),
            ] {
                if value <= 0.0 {
                    let why = format!(
                        "with {} never lets pressure end once it began, since no store goes through",
                        self.tell("backpressure_policy")
                    );
                    return Err(self.refuse(key, &why));
                }
            }
        }
        let unset = p.max_inflight_bytes.is_none();
        if p.enabled && unset && !self.hit_rate_only && self.max_inflight() < self.block_bytes {
            let why = format!(
                "is too small for {}: a quarter of it, {}, may be on its way to the file tier, where blocks would go one by one",
                self.tell("block_bytes"),
                value::show_size(self.max_inflight()),
            );
            return Err(self.refuse("primary_bytes", &why));
        }
        self.check_bound(kvweir::fs::min_bound(
            usize::try_from(self.block_bytes).unwrap_or(usize::MAX),
        ))?;
        self.check_layout()?;
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

    /// Blocks that the primary tier holds: each takes whole pages.
    pub(crate) fn primary_slots(&self) -> u64 {
        self.primary_bytes / kvweir::io::round_up(self.block_bytes.max(1), kvweir::io::PAGE as u64)
    }

    /// The most bytes of stores on their way to the file tier.
    pub(crate) fn max_inflight(&self) -> u64 {
        let usual = || kvweir::pressure::default_max_inflight(self.primary_bytes);
        match self.pressure.enabled {
            true => self.pressure.max_inflight_bytes.unwrap_or_else(usual),
            false => u64::MAX,
        }
    }

    fn check_layout(&self) -> Result<()> {
        if self.layout != Layout::Pack || self.hit_rate_only {
            return Ok(());
        }
        if self.read_only {
            let why = format!("does not go with {}", self.tell("read_only"));
            return Err(self.refuse("layout", &why));
        }
        let block_len = usize::try_from(self.block_bytes).unwrap_or(usize::MAX);
        let least = kvweir::fs::min_pack_bound(block_len);
        match self.max_bytes {
            None => Err(self.refuse("layout", "needs `max_bytes`, which is unset")),
            Some(max) if max < least => {
                let why = format!(
                    "is below the {least} bytes that {} needs with blocks of {}",
                    self.tell("layout"),
                    self.tell("block_bytes")
                );
                Err(self.refuse("max_bytes", &why))
            }
            Some(_) => Ok(()),
        }
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
