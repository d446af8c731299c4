//! Values before they are understood, by the name of their setting.

use std::collections::BTreeMap;

use super::{
    origin::{Origin, Raw, SettingError, Shape},
    table::Setting,
};

/// Raw values by setting name.
pub(crate) type RawSettings = BTreeMap<&'static str, Raw>;

/// An error about the value of `key`; `why` continues the sentence "`key = value` (origin) ...".
pub(super) fn refuse(raw: &RawSettings, key: &str, why: &str) -> SettingError {
    let allowed = Setting::find(key).map_or("", |s| s.allowed);
    let unset = Raw {
        text: String::from("(unset)"),
        shape: Shape::Any,
        origin: Origin::Default,
    };
    SettingError::refused(key, raw.get(key).unwrap_or(&unset), why, allowed)
}
