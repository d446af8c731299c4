//! The settings file: TOML, flat, every key known, every value with its line.

use std::{path::Path, sync::Arc};

use toml::de::{DeTable, DeValue};

use super::{
    origin::{Origin, Raw, SettingError, Shape},
    raw::RawSettings,
    table::{Kind, Setting},
};

/// Reads the file into raw values.
pub(crate) fn read(path: &Path) -> Result<RawSettings, SettingError> {
    let name = path.display().to_string();
    let text = std::fs::read(path)
        .map_err(|e| SettingError::new(format!("settings file {name} cannot be read: {e}"), None))?;
    let text = String::from_utf8(text)
        .map_err(|e| SettingError::new(format!("settings file {name} is not UTF-8: {e}"), None))?;
    parse(&text, &name)
}

/// Reads TOML text; `name` is the file's name in messages.
pub(crate) fn parse(text: &str, name: &str) -> Result<RawSettings, SettingError> {
    let line = |at: usize| 1 + text.bytes().take(at).filter(|&b| b == b'\n').count();
    let table = DeTable::parse(text).map_err(|e| {
        let at = e.span().map_or(1, |s| line(s.start));
        let what = e.message().lines().collect::<Vec<_>>().join(", ");
        SettingError::new(
            format!("{name} line {at}: {what}"),
            Some(String::from("the file is TOML: `key = value` lines")),
        )
    })?;
    let path: Arc<str> = name.into();
    let mut raw = RawSettings::new();
    for (key, value) in table.get_ref() {
        let origin = Origin::File {
            path: Arc::clone(&path),
            line: line(key.span().start),
        };
        let written: &str = key.get_ref();
        let Some(setting) = Setting::find(written) else {
            let hint = Setting::nearest(written).map_or_else(
                || String::from("`kvweir replay --print-config` lists every setting"),
                |near| format!("did you mean `{near}`?"),
            );
            return Err(SettingError::new(
                format!("unknown key `{written}` ({origin})"),
                Some(hint),
            ));
        };
        let (text, shape) = plain(value.get_ref()).ok_or_else(|| {
            let what = value.get_ref().type_str();
            SettingError::new(
                format!("`{written}` ({origin}) is a TOML {what}"),
                Some(format!("allowed for `{}`: {}", setting.key, setting.allowed)),
            )
        })?;
        let new = Raw { text, shape, origin };
        let fits = match setting.kind {
            Kind::Size => matches!(new.shape, Shape::Text | Shape::Number),
            Kind::Count | Kind::Real => new.shape == Shape::Number,
            Kind::Switch => new.shape == Shape::Bool,
            Kind::Path | Kind::Word => new.shape == Shape::Text,
            Kind::Counts => matches!(new.shape, Shape::Number | Shape::List),
        };
        if !fits {
            let why = format!("is a TOML {}", value.get_ref().type_str());
            return Err(SettingError::refused(written, &new, &why, setting.allowed));
        }
        if let Some(other) = raw.insert(setting.key, new.clone()) {
            let message = format!(
                "`{}` is given twice, by its name and by an alias ({} and {})",
                setting.key, other.origin, new.origin
            );
            return Err(SettingError::new(message, Some(String::from("keep one of them"))));
        }
    }
    Ok(raw)
}

fn plain(value: &DeValue<'_>) -> Option<(String, Shape)> {
    let radix = |i: &toml::de::DeInteger<'_>| {
        // The parser drops underscores and the 0x prefix and tells the radix.
        i128::from_str_radix(i.as_str(), i.radix()).map_or_else(|_| i.to_string(), |v| v.to_string())
    };
    Some(match value {
        DeValue::String(s) => (s.to_string(), Shape::Text),
        DeValue::Integer(i) => (radix(i), Shape::Number),
        DeValue::Float(x) => (x.as_str().to_owned(), Shape::Number),
        DeValue::Boolean(b) => (b.to_string(), Shape::Bool),
        DeValue::Array(items) => {
            let items: Option<Vec<String>> = items
                .iter()
                .map(|v| match v.get_ref() {
                    DeValue::Integer(i) => Some(radix(i)),
                    _ => None,
                })
                .collect();
            (items?.join(","), Shape::List)
        }
        DeValue::Datetime(_) | DeValue::Table(_) => return None,
    })
}
