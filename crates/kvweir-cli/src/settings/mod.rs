//! Settings of `kvweir replay`: flags win over the file, the file over the defaults. Every fault names the
//! setting, its value, what is allowed and where it came from; nothing is made on disk before all is checked.

mod build;
mod check;
mod disk;
mod file;
mod flags;
mod origin;
mod print;
mod raw;
mod replay;
mod table;
mod value;

use std::path::Path;

use self::raw::RawSettings;
pub(crate) use self::{
    flags::Flags,
    origin::SettingError,
    replay::{BUILTIN_REQUESTS, DropPolicy, ReplaySettings, order_name},
};
use crate::output;

impl ReplaySettings {
    /// Reads the file, if one is named, lays the flags over it, and checks everything.
    pub(crate) fn load(config: Option<&Path>, flags: Flags) -> Result<Self, SettingError> {
        let mut raw = config.map_or_else(|| Ok(RawSettings::new()), file::read)?;
        raw.extend(flags.0);
        // from here on errors are told in the form that is wanted
        output::want_json(raw.get("json").is_some_and(|r| r.text == "true"));
        let settings = Self::build(raw)?;
        settings.check_values()?;
        settings.check_paths()?;
        Ok(settings)
    }

    /// The settings as a TOML file that gives the same settings, each line with its origin.
    pub(crate) fn to_toml(&self) -> String {
        print::to_toml(&self.raw)
    }
}

#[cfg(test)]
mod tests;
