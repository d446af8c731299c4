//! `--print-config`: the settings in force as TOML, with the origin of each.

use super::{
    raw::RawSettings,
    table::{Kind, SETTINGS},
    value,
};

/// One line per setting; what is unset is a comment.
pub(super) fn to_toml(raw: &RawSettings) -> String {
    let mut out = String::new();
    let mut heading = "";
    for s in SETTINGS {
        if s.heading != heading {
            let blank = if heading.is_empty() { "" } else { "\n" };
            out += &format!("{blank}# {}\n", s.heading);
            heading = s.heading;
        }
        let (line, origin) = match raw.get(s.key) {
            Some(r) => (
                format!("{} = {}", s.key, literal(s.kind, &r.text)),
                r.origin.to_string(),
            ),
            None => (format!("# {} =", s.key), format!("default: {}", s.unset)),
        };
        out += &format!("{line:<40} # {origin}\n");
    }
    out
}

/// The value as TOML; all of them have been read before, so the fallbacks are never taken.
fn literal(kind: Kind, text: &str) -> String {
    let quoted = || toml::Value::String(text.to_owned()).to_string();
    match kind {
        Kind::Size => value::size(text).map_or_else(
            |_| quoted(),
            |b| match value::show_size(b) {
                plain if plain.parse::<u64>().is_ok() => plain,
                unit => format!("\"{unit}\""),
            },
        ),
        Kind::Count => value::count(text).map_or_else(|_| quoted(), |n| n.to_string()),
        Kind::Real => value::real(text).map_or_else(|_| quoted(), |v| format!("{v:?}")),
        Kind::Switch => text.to_owned(),
        Kind::Path | Kind::Word => quoted(),
        Kind::Counts => value::counts(text).map_or_else(|_| quoted(), |n| format!("{n:?}")),
    }
}
