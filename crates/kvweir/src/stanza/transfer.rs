//! A whole `--kv-transfer-config`: the parts of vLLM's own that lead to our tiers.

use std::collections::BTreeMap;

use super::{
    Model, PrimaryFit,
    look::{Checked, Checking, Fields, MODULE, inside, text},
    nearest,
    read::read_manager,
    tier::InCommon,
    value::{Given, Value, get},
};

const MANAGING: &str = "KvweirOffloadingSpec";
const SPECS: &[&str] = &[MANAGING, "KvweirCpuOffloadingSpec"];
const TIERING: &str = "TieringOffloadingSpec";
/// What a transfer configuration is called in a settings file, or by the flag.
const CONFIG: &[&str] = &["kv-transfer-config", "kv_transfer_config"];
const ROLES: &[&str] = &["kv_both", "kv_producer", "kv_consumer"];
/// Names in the stanza around the tiers whose misspelling vLLM silently ignores.
const EXTRA: &[&str] = &[
    "spec_name",
    "spec_module_path",
    "cpu_bytes_to_use",
    "block_size",
    "blocks_per_chunk",
    "eviction_policy",
    "cache_policy_module_path",
    "secondary_tiers",
    "backpressure",
    "store_threshold",
    "max_tracker_size",
    "tier_poll_interval_s",
    "offload_prompt_only",
    "self_describing_kv_events",
    "canonical_layout",
    "sync_load_budget_bytes",
    "promote_share",
    "promote_wait_s",
];

/// Checks one tier's part of a configuration as vLLM hands it to the tier's class, `type` and `backpressure` in it.
pub fn check_tier(stanza: &Given) -> Checked {
    let mut look = Checking {
        found: Checked::default(),
        model: None,
    };
    match stanza.map() {
        Some(fields) => look.tier("", fields, &InCommon::default(), &mut BTreeMap::new()),
        None => look.mistake("", "stanza", format!("{}: an object is wanted", stanza.shown)),
    }
    look.found
}

/// Checks a transfer configuration: as it is, below its name as in vLLM's settings files, or a part of it (what
/// stands in `kv_connector_extra_config`, or one tier). `model` lets it look at the sizes of blocks too. Looks at no
/// disk.
pub fn check(stanza: &Given, model: Option<Model>) -> Checked {
    let mut look = Checking {
        found: Checked::default(),
        model,
    };
    match stanza.map() {
        Some(fields) if get(fields, "secondary_tiers").is_some() => look.extra("", fields),
        Some(fields) if get(fields, "type").is_some() => {
            look.tier("", fields, &InCommon::default(), &mut BTreeMap::new());
            let note = "a tier alone: what it has to stand in, kv_connector_extra_config and the rest, was not checked";
            look.found.notes.push(note.to_owned());
        }
        Some(fields) => {
            let named = |name: &&&str| get(fields, name).is_some_and(|c| c.map().is_some());
            let name = CONFIG.iter().find(named).copied().unwrap_or_default();
            let inner = get(fields, name).and_then(Given::map).unwrap_or(fields);
            look.transfer(name, inner);
        }
        None => look.mistake(
            "",
            "stanza",
            format!("{}: an object with kv_connector is wanted", stanza.shown),
        ),
    }
    if look.found.tiers == 0 && !look.found.manager && look.found.mistakes.is_empty() {
        look.mistake(
            "",
            "secondary_tiers",
            format!(
                "no tier of kvweir's is named: add {{\"type\": \"KvweirTier\", \"module_path\": \"{MODULE}\", \
                 ...}}"
            ),
        );
    }
    look.found
}

/// A positive whole number, as vLLM reads one.
fn whole(given: &Given) -> Option<u64> {
    match &given.value {
        Value::Int(n) => u64::try_from(*n).ok().filter(|&n| n > 0),
        Value::Real(x) if *x >= 1.0 && *x < 2_f64.powi(63) => Some(*x as u64),
        Value::Text(s) => s.trim().parse().ok().filter(|&n| n > 0),
        _ => None,
    }
}

impl Checking {
    fn transfer(&mut self, place: &str, fields: &Fields) {
        if let Some(role) = get(fields, "kv_role").filter(|r| !r.text().is_some_and(|r| ROLES.contains(&r))) {
            let message = format!("kv_role = {}: {} is allowed", role.shown, ROLES.join(", "));
            self.mistake(place, "kv_role", message);
        }
        let extra = match get(fields, "kv_connector_extra_config") {
            Some(given) => match given.map() {
                Some(extra) => extra,
                None => {
                    let message = format!("kv_connector_extra_config = {}: an object is wanted", given.shown);
                    return self.mistake(place, "kv_connector_extra_config", message);
                }
            },
            None => &[],
        };
        match get(fields, "kv_connector").map(|c| (c.text(), &c.shown)) {
            Some((Some("OffloadingConnector"), _)) => {
                if get(fields, "kv_role").is_none() {
                    self.mistake(
                        place,
                        "kv_role",
                        "kv_role is not given: write \"kv_both\"".to_owned(),
                    );
                }
                self.extra(&inside(place, "kv_connector_extra_config"), extra);
            }
            Some((Some("MultiConnector"), _)) => self.several(place, extra),
            Some((Some(other), shown)) => match nearest(other, ["OffloadingConnector"]) {
                Some(near) => {
                    self.mistake(
                        place,
                        "kv_connector",
                        format!("kv_connector = {shown}: did you mean '{near}'?"),
                    );
                    self.extra(&inside(place, "kv_connector_extra_config"), extra);
                }
                None => self.found.notes.push(format!(
                    "{} = {shown}: not kvweir's to check; tiers need OffloadingConnector",
                    inside(place, "kv_connector")
                )),
            },
            Some((None, shown)) => self.mistake(
                place,
                "kv_connector",
                format!("kv_connector = {shown}: a name is wanted"),
            ),
            None => {
                let message = "kv_connector is not given: write \"OffloadingConnector\"";
                self.mistake(place, "kv_connector", message.to_owned());
                if !extra.is_empty() {
                    self.extra(&inside(place, "kv_connector_extra_config"), extra);
                }
            }
        }
    }

    fn several(&mut self, place: &str, extra: &Fields) {
        let Some(Value::List(connectors)) = get(extra, "connectors").map(|c| &c.value) else {
            return self.mistake(
                place,
                "connectors",
                "connectors: a list of configurations is wanted".to_owned(),
            );
        };
        for (i, c) in connectors.iter().enumerate() {
            let at = inside(place, &format!("connectors[{i}]"));
            match c.map() {
                Some(fields) => self.transfer(&at, fields),
                None => self.mistake(&at, "connectors", format!("{}: an object is wanted", c.shown)),
            }
        }
    }

    fn extra(&mut self, place: &str, extra: &Fields) {
        for (name, _) in extra {
            if !EXTRA.contains(&name.as_str())
                && let Some(near) = nearest(name, EXTRA.iter().copied())
            {
                self.found.notes.push(format!(
                    "{}: unknown here; did you mean '{near}'?",
                    inside(place, name)
                ));
            }
        }
        self.spec(place, extra);
        let slot_bytes = self.primary(place, extra);
        let Some(tiers) = get(extra, "secondary_tiers") else {
            return;
        };
        let Value::List(tiers) = &tiers.value else {
            let message = format!("secondary_tiers = {}: a list of objects is wanted", tiers.shown);
            return self.mistake(place, "secondary_tiers", message);
        };
        let shared = match get(extra, "backpressure") {
            Some(given) if given.value == Value::Null => &[],
            Some(given) => match given.map() {
                Some(fields) => fields,
                None => {
                    let message = format!("backpressure = {}: an object is wanted", given.shown);
                    self.mistake(place, "backpressure", message);
                    &[]
                }
            },
            None => &[][..],
        };
        let shared = InCommon {
            place,
            backpressure: shared,
            slot_bytes,
        };
        let mut roots = BTreeMap::new();
        for (i, tier) in tiers.iter().enumerate() {
            let at = inside(place, &format!("secondary_tiers[{i}]"));
            match tier.map() {
                Some(fields) => self.tier(&at, fields, &shared, &mut roots),
                None => self.mistake(
                    &at,
                    "secondary_tiers",
                    format!("{}: an object is wanted", tier.shown),
                ),
            }
        }
    }

    fn spec(&mut self, place: &str, extra: &Fields) {
        let tiers = get(extra, "secondary_tiers").is_some();
        let Some(name) = get(extra, "spec_name") else {
            if tiers {
                let message = "spec_name is not given: vLLM's default has no secondary tiers; write \
                               \"TieringOffloadingSpec\"";
                self.mistake(place, "spec_name", message.to_owned());
            }
            return;
        };
        let module = text(extra, "spec_module_path");
        match name.text() {
            Some("CPUOffloadingSpec") if tiers => {
                let message = format!(
                    "spec_name = {}: it has no secondary tiers; write \"TieringOffloadingSpec\"",
                    name.shown
                );
                self.mistake(place, "spec_name", message);
            }
            Some(TIERING | "CPUOffloadingSpec") => {}
            Some(s) if SPECS.contains(&s) => {
                if s == MANAGING {
                    self.found.manager = true;
                    for mistake in read_manager(extra).mistakes {
                        self.push(if place.is_empty() {
                            mistake
                        } else {
                            mistake.within(place)
                        });
                    }
                }
                if module != Some(MODULE) {
                    let message = format!("spec_name = {} needs spec_module_path \"{MODULE}\"", name.shown);
                    self.mistake(place, "spec_module_path", message);
                }
            }
            Some(s) => match nearest(s, SPECS.iter().copied().chain([TIERING])) {
                Some(near) if module.is_none_or(|m| m == MODULE) => {
                    self.mistake(
                        place,
                        "spec_name",
                        format!("spec_name = {}: did you mean '{near}'?", name.shown),
                    );
                }
                _ if module == Some(MODULE) => {
                    let message = format!("spec_name = {}: {MODULE} has {}", name.shown, SPECS.join(", "));
                    self.mistake(place, "spec_name", message);
                }
                _ => self.found.notes.push(format!(
                    "{} = {}: not kvweir's, not checked",
                    inside(place, "spec_name"),
                    name.shown
                )),
            },
            None => self.mistake(
                place,
                "spec_name",
                format!("spec_name = {}: a name is wanted", name.shown),
            ),
        }
    }

    /// Checks what the primary's size follows from; the bytes of a slot, where they are known.
    fn primary(&mut self, place: &str, extra: &Fields) -> Option<usize> {
        let cpu_bytes = match get(extra, "cpu_bytes_to_use") {
            None => {
                let message =
                    "cpu_bytes_to_use is not given: name the bytes of host memory for the primary tier";
                self.mistake(place, "cpu_bytes_to_use", message.to_owned());
                None
            }
            Some(given) => {
                let bytes = whole(given);
                if bytes.is_none() {
                    let hint = given.text().and_then(|s| crate::size::parse(s).ok());
                    let hint = hint
                        .filter(|&n| n > 0)
                        .map_or(" above zero".to_owned(), |n| format!(": write {n}"));
                    let message = format!(
                        "cpu_bytes_to_use = {}: vLLM takes a whole number of bytes{hint}",
                        given.shown
                    );
                    self.mistake(place, "cpu_bytes_to_use", message);
                }
                bytes
            }
        };
        let mut number = |name: &str| {
            let given = get(extra, name).filter(|g| g.value != Value::Null)?;
            if whole(given).is_none() {
                let message = format!("{name} = {}: a whole number, at least 1, is allowed", given.shown);
                self.mistake(place, name, message);
            }
            Some(whole(given))
        };
        let (tokens, blocks) = (number("block_size"), number("blocks_per_chunk"));
        if tokens.is_some() && blocks.is_some() {
            let message = "block_size and blocks_per_chunk say the same in two ways: keep one";
            self.mistake(place, "block_size", message.to_owned());
        }
        let model = self.model?;
        let slot_tokens = match (tokens, blocks) {
            (Some(tokens), _) => tokens?,
            (None, Some(blocks)) => blocks?.checked_mul(model.block_tokens)?,
            (None, None) => model.block_tokens,
        };
        let fit = PrimaryFit::new(model, slot_tokens, cpu_bytes?)?;
        if let Some(m) = fit.mistake(model, cpu_bytes?) {
            self.mistake(place, "cpu_bytes_to_use", m.message);
        }
        self.found.primary = Some(fit);
        usize::try_from(fit.slot_bytes).ok()
    }
}
