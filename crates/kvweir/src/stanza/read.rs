//! Compares what was written with a table of settings.

use std::{collections::BTreeMap, time::Duration};

use super::{
    Mistake, Reading, nearest,
    table::{BACKPRESSURE, Kind, MANAGER, Setting, TIER},
    value::{Given, Parsed, Value},
};
use crate::{
    fs::{FsSettings, Layout},
    pressure::{DropPolicyKind, Locality, PressureSettings},
    size,
};

/// A tier of ours, as `type` names it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TierKind {
    /// The name of its class.
    pub class: &'static str,
    /// The short name by which vLLM knows it once our plugin is loaded.
    pub short: &'static str,
    /// The only layout it has, if it has one only.
    pub layout: Option<Layout>,
}

impl TierKind {
    /// All of them.
    pub const ALL: [Self; 2] = [
        Self {
            class: "KvweirTier",
            short: "kvweir",
            layout: None,
        },
        Self {
            class: "KvweirFsTier",
            short: "kvweir_fs",
            layout: Some(Layout::Fs),
        },
    ];
}

/// Reads a tier's stanza, without `type`, `module_path` and `backpressure`. `block_bytes`: the length of its blocks,
/// or any that is not too long where it is not known; without it settings are looked at one by one. Looks at no disk.
pub fn read_tier(written: &[(String, Given)], kind: TierKind, block_bytes: Option<usize>) -> Reading {
    let mut reading = read(TIER, written, "the kvweir tier");
    let text = |r: &Reading, name| r.settings.get(name).and_then(Parsed::text).map(str::to_owned);
    let given = |name: &str| written.iter().any(|(n, _)| n == name);
    if let Some(only) = kind.layout {
        let named = text(&reading, "layout").filter(|l| given("layout") && l != only.as_str());
        if let Some(other) = named {
            let class = kind.class;
            reading.mistakes.push(Mistake::new(
                "layout",
                format!("layout = {other:?}: {class} has layout '{only}'; use KvweirTier"),
            ));
        }
        reading
            .settings
            .insert("layout", Parsed::Text(only.as_str().into()));
    }
    if reading.settings.get("root_dir") == Some(&Parsed::Null)
        && !reading.mistakes.iter().any(|m| m.setting == "root_dir")
    {
        reading.mistakes.push(Mistake::new(
            "root_dir",
            "root_dir is not given: name a directory",
        ));
    }
    // contradictions between values are the engine's to report; a wrong value was reported and has its default here
    let layout = text(&reading, "layout").and_then(|l| l.parse().ok());
    let seconds = |name| {
        let s = reading.settings.get(name).and_then(Parsed::real);
        s.and_then(|s| Duration::try_from_secs_f64(s).ok())
    };
    let usual = FsSettings::new("/");
    let settings = FsSettings {
        max_bytes: reading.settings.get("max_bytes").and_then(Parsed::int),
        layout: layout.unwrap_or(usual.layout),
        read_only: reading.settings.get("read_only") == Some(&Parsed::Bool(true)),
        pin_ttl: seconds("pin_ttl_s").unwrap_or(usual.pin_ttl),
        ..usual
    };
    let bound_is_wrong = reading.mistakes.iter().any(|m| m.setting == "max_bytes");
    if let Some(Err(e)) = block_bytes.map(|len| settings.validate(len)) {
        // where a bound was given and is wrong, its absence is no second mistake
        if !bound_is_wrong {
            let setting = e.message().split_whitespace().next().unwrap_or_default();
            let message = e.message().to_owned();
            reading.mistakes.push(Mistake::new(setting.to_owned(), message));
        }
    }
    reading
}

/// Reads what `KvweirOffloadingSpec` takes of the fields beside `secondary_tiers`; others are vLLM's.
pub fn read_manager(written: &[(String, Given)]) -> Reading {
    let own: Vec<(String, Given)> = written
        .iter()
        .filter(|(name, _)| Setting::find(MANAGER, name).is_some())
        .cloned()
        .collect();
    let mut reading = read(MANAGER, &own, "KvweirOffloadingSpec");
    let of_python = written
        .iter()
        .find(|(name, given)| name == "cache_policy_module_path" && given.value != Value::Null);
    if let Some((name, given)) = of_python {
        let message = format!(
            "cache_policy_module_path = {}: KvweirOffloadingSpec has policies of its own; a policy written in Python needs \
             spec_name \"TieringOffloadingSpec\"",
            given.shown
        );
        reading.mistakes.push(Mistake::new(name.clone(), message));
    }
    reading
}

/// Reads `backpressure` for `KvweirDetector`, without the names of the classes. `drops`: the policy drops every store
/// under pressure.
pub fn read_backpressure(written: &[(String, Given)], locality: Locality, drops: bool) -> Reading {
    let mut reading = read(BACKPRESSURE, written, "backpressure");
    let usual = PressureSettings::default_config("fs", locality);
    for (name, mark) in [
        ("high_water_s", usual.high_water_s),
        ("low_water_s", usual.low_water_s),
    ] {
        let slot = reading.settings.entry(name).or_insert(Parsed::Null);
        if *slot == Parsed::Null {
            *slot = Parsed::Real(mark);
        }
    }
    let real = |name: &str, usual: f64| reading.settings.get(name).and_then(Parsed::real).unwrap_or(usual);
    let wrong = |name: &str| reading.mistakes.iter().any(|m| m.setting == name);
    let mut settings = PressureSettings {
        high_water_s: real("high_water_s", usual.high_water_s),
        low_water_s: real("low_water_s", usual.low_water_s),
        alpha: real("alpha", usual.alpha),
        decay_half_life_s: real("decay_half_life_s", usual.decay_half_life_s),
        cooldown_s: real("cooldown_s", usual.cooldown_s),
        policy: if drops {
            DropPolicyKind::Drop
        } else {
            DropPolicyKind::ThrottledDrop
        },
        ..usual
    };
    // marks cannot be compared where one of them is wrong
    if wrong("high_water_s") || wrong("low_water_s") {
        (settings.high_water_s, settings.low_water_s) = (usual.high_water_s, usual.low_water_s);
    }
    let more: Vec<Mistake> = settings
        .mistakes()
        .into_iter()
        .map(|message| {
            let setting = message.split_whitespace().next().unwrap_or_default().to_owned();
            Mistake::new(setting, message)
        })
        .collect();
    reading.mistakes.extend(more);
    reading
}

fn read(table: &'static [Setting], written: &[(String, Given)], whose: &str) -> Reading {
    let defaults = table.iter().map(|s| (s.name, s.default_value()));
    let mut reading = Reading {
        settings: defaults.collect(),
        mistakes: Vec::new(),
    };
    let mut known_as: BTreeMap<&str, &str> = BTreeMap::new();
    for (name, given) in written {
        let Some(setting) = Setting::find(table, name) else {
            let names = table
                .iter()
                .flat_map(|s| std::iter::once(s.name).chain(s.aliases.iter().copied()));
            let hint = match nearest(name, names) {
                Some(near) => format!("did you mean '{near}'?"),
                None => {
                    let all: Vec<&str> = table.iter().map(|s| s.name).collect();
                    format!("known are {}", all.join(", "))
                }
            };
            let name = Given::new(Value::Null, name.as_str()).shown;
            reading.mistakes.push(Mistake::new(
                name.clone(),
                format!("unknown setting '{name}' of {whose}; {hint}"),
            ));
            continue;
        };
        if known_as.insert(setting.name, name).is_some() {
            reading.mistakes.push(Mistake::new(
                setting.name,
                format!("'{}' is given twice (as '{name}' too)", setting.name),
            ));
            continue;
        }
        match understood(setting, &given.value) {
            Ok(Some(parsed)) => {
                reading.settings.insert(setting.name, parsed);
            }
            Ok(None) => {}
            Err(why) => {
                let message = format!("{name} = {}: {why}", given.shown);
                reading.mistakes.push(Mistake::new(setting.name, message));
            }
        }
    }
    reading
}

/// The value, or none where it is left unset; else what is wrong with it.
fn understood(setting: &Setting, value: &Value) -> Result<Option<Parsed>, String> {
    let refused = || Err(setting.allowed.to_owned());
    Ok(Some(match (setting.kind, value) {
        (_, Value::Null) if setting.nullable => return Ok(None),
        (Kind::Path, Value::Text(s) | Value::Raw(s)) if !s.is_empty() => {
            if s.contains('\0') {
                return Err("a path has no zero byte; name a directory".to_owned());
            }
            Parsed::Text(s.clone().into())
        }
        (Kind::Text, Value::Text(s)) => Parsed::Text(s.clone().into()),
        (Kind::Text, Value::Raw(_)) => return Err("this text is no Unicode; a text is allowed".to_owned()),
        (Kind::Word(words), Value::Text(s)) if words.contains(&s.as_str()) => Parsed::Text(s.clone().into()),
        (Kind::AnyCase(words), Value::Text(s)) => match words.iter().find(|w| w.eq_ignore_ascii_case(s)) {
            Some(word) => Parsed::Text((*word).into()),
            None => return refused(),
        },
        (Kind::Switch, Value::Bool(b)) => Parsed::Bool(*b),
        (Kind::Count(least, most), Value::Int(n)) => match u64::try_from(*n) {
            Ok(n) if (least..=most).contains(&n) => Parsed::Int(n),
            _ => return refused(),
        },
        (Kind::Size, _) => return sized(setting, value).map(Some),
        (Kind::Real(good), Value::Int(n)) if good(*n as f64) => Parsed::Real(*n as f64),
        (Kind::Real(good), Value::Real(x)) if x.is_finite() && good(*x) => Parsed::Real(*x),
        _ => return refused(),
    }))
}

fn sized(setting: &Setting, value: &Value) -> Result<Parsed, String> {
    let text = match value {
        Value::Text(s) => s.clone(),
        Value::Int(n) => n.to_string(),
        _ => {
            return Err("is neither a number of bytes nor a text; write 1073741824 or \"500GiB\"".to_owned());
        }
    };
    match size::parse(&text) {
        Ok(0) => Err(setting.allowed.to_owned()),
        Ok(bytes) => Ok(Parsed::Int(bytes)),
        Err(why) => Err(format!("{why}; write 1073741824 or \"500GiB\"")),
    }
}
