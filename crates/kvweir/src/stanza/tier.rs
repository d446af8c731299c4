//! A tier of a configuration: whether it is ours, its settings, and its `backpressure` as vLLM merges it.

use std::collections::BTreeMap;

use super::{
    look::{Checking, Fields, MODULE, inside, text},
    nearest,
    read::{TierKind, read_backpressure, read_tier},
    value::{Given, Parsed, Value, get},
};
use crate::pressure::Locality;

const STOCK_TIERS: &[&str] = &["fs", "obj", "p2p", "example", "kvcr"];
const DETECTOR: &str = "kvweir.vllm.KvweirDetector";
const POLICIES: &[&str] = &[
    "kvweir.vllm.KvweirDropPolicy",
    "kvweir.vllm.KvweirThrottledDropPolicy",
];
const STOCK_DROP: &str = "DropStorePolicy";

/// What all tiers of a configuration have in common.
#[derive(Default)]
pub(super) struct InCommon<'a> {
    /// Where their list stands.
    pub(super) place: &'a str,
    /// The `backpressure` there.
    pub(super) backpressure: &'a Fields,
    /// Bytes of a block, where they are known.
    pub(super) slot_bytes: Option<usize>,
}

/// A tier that stores below a directory.
pub(super) struct Storing {
    /// Where it stands.
    at: String,
    bound: Option<u64>,
}

impl Checking {
    /// Which tier of ours is meant, if one is.
    fn kind(&mut self, at: &str, fields: &Fields) -> Option<TierKind> {
        let module = text(fields, "module_path");
        let given = match get(fields, "type") {
            Some(given) => given,
            None => {
                self.mistake(
                    at,
                    "type",
                    "type is not given: name a tier, such as \"KvweirTier\"".to_owned(),
                );
                return None;
            }
        };
        let Some(name) = given.text() else {
            self.mistake(at, "type", format!("type = {}: a name is wanted", given.shown));
            return None;
        };
        if let Some(kind) = TierKind::ALL.into_iter().find(|k| k.short == name) {
            return Some(kind);
        }
        // whose module it is
        let ours = module.is_some_and(|m| m == MODULE || nearest(m, [MODULE]).is_some());
        if let Some(kind) = TierKind::ALL.into_iter().find(|k| k.class == name) {
            if module == Some(MODULE) {
                return Some(kind);
            }
            if ours || module.is_none() {
                let short = kind.short;
                let message = format!(
                    "type {} needs module_path \"{MODULE}\", or type \"{short}\"",
                    given.shown
                );
                self.mistake(at, "module_path", message);
                return Some(kind);
            }
        } else if !STOCK_TIERS.contains(&name) && (ours || module.is_none()) {
            let names = TierKind::ALL.iter().flat_map(|k| [k.class, k.short]);
            let near = nearest(name, names);
            if near.is_some() || ours {
                let hint = near.map_or_else(
                    || {
                        let [a, b] = TierKind::ALL.map(|k| k.class);
                        format!("{MODULE} has {a} and {b}")
                    },
                    |near| format!("did you mean '{near}'?"),
                );
                self.mistake(at, "type", format!("type = {}: {hint}", given.shown));
                self.found.tiers += usize::from(near.is_none());
                return TierKind::ALL
                    .into_iter()
                    .find(|k| near == Some(k.class) || near == Some(k.short));
            }
        }
        self.found
            .notes
            .push(format!("{at} (type {}): not kvweir's, not checked", given.shown));
        None
    }

    /// Checks one tier. `roots`: the directories of the tiers before it that store.
    pub(super) fn tier(
        &mut self,
        at: &str,
        fields: &Fields,
        shared: &InCommon<'_>,
        roots: &mut BTreeMap<String, Storing>,
    ) {
        let Some(kind) = self.kind(at, fields) else {
            return;
        };
        self.found.tiers += 1;
        let own: Vec<(String, Given)> = fields
            .iter()
            .filter(|(name, _)| !matches!(name.as_str(), "type" | "module_path" | "backpressure"))
            .cloned()
            .collect();
        let reading = read_tier(&own, kind, Some(shared.slot_bytes.unwrap_or(1)));
        let root = reading.settings.get("root_dir").and_then(Parsed::text);
        let bound = reading.settings.get("max_bytes").and_then(Parsed::int);
        let wrong = reading.mistakes.iter().any(|m| m.setting == "max_bytes");
        let reads = reading.settings.get("read_only") == Some(&Parsed::Bool(true));
        if let Some(root) = root {
            self.found.roots.push((at.to_owned(), root.to_owned()));
        }
        if let Some(root) = root.filter(|_| !wrong && !reads) {
            self.shared_root(at, root, bound, roots);
        }
        let locality = reading.settings.get("locality").and_then(Parsed::text);
        let locality = locality.and_then(|l| l.parse().ok()).unwrap_or_default();
        for m in reading.mistakes {
            self.push(m.within(at));
        }
        self.backpressure(at, get(fields, "backpressure"), shared, locality);
    }

    /// Two tiers of one list may store below one directory as two engines may, within one bound.
    fn shared_root(
        &mut self,
        at: &str,
        root: &str,
        bound: Option<u64>,
        roots: &mut BTreeMap<String, Storing>,
    ) {
        let Some(first) = roots.get(root.trim_end_matches('/')) else {
            let at = at.to_owned();
            roots.insert(root.trim_end_matches('/').to_owned(), Storing { at, bound });
            return;
        };
        if first.bound == bound {
            self.found.notes.push(format!(
                "{at}: root_dir = {root:?} is also that of {}: that works, both are members of one root, but every \
                 block is offered to both, and packed blocks are stored twice; keep one of the two, or give each its \
                 own directory",
                first.at
            ));
            return;
        }
        let words = |b: Option<u64>| b.map_or_else(|| "no bound".to_owned(), |b| b.to_string());
        let message = format!(
            "max_bytes = {}: another tier of {root} has {}; the bound is the directory's",
            words(bound),
            words(first.bound)
        );
        self.mistake(at, "max_bytes", message);
    }

    /// What vLLM merges for a tier: its own `backpressure` over the one that all share.
    fn backpressure(&mut self, at: &str, own: Option<&Given>, shared: &InCommon<'_>, locality: Locality) {
        let (place, shared) = (shared.place, shared.backpressure);
        let here = match own.map(|g| (&g.value, g.map(), &g.shown)) {
            Some((Value::Null, ..)) | None => &[],
            Some((_, Some(fields), _)) => fields,
            Some((_, None, shown)) => {
                return self.mistake(
                    at,
                    "backpressure",
                    format!("backpressure = {shown}: an object is wanted"),
                );
            }
        };
        if own.is_none() && shared.is_empty() {
            return;
        }
        let mut merged: Vec<(String, Given)> = here.to_vec();
        merged.extend(
            shared
                .iter()
                .filter(|(name, _)| get(here, name).is_none())
                .cloned(),
        );
        let stands = |name: &str| {
            let base = if get(here, name).is_some() || get(shared, name).is_none() {
                at
            } else {
                place
            };
            inside(base, "backpressure")
        };
        let class = get(&merged, "backpressure_cls");
        let Some(name) = class.and_then(Given::text) else {
            let message = match class {
                Some(other) => format!(
                    "backpressure_cls = {}: a name is wanted, such as {DETECTOR}",
                    other.shown
                ),
                None => format!("backpressure_cls is not given: write \"{DETECTOR}\""),
            };
            return self.mistake(&stands("backpressure_cls"), "backpressure_cls", message);
        };
        if !is_ours(name, &[DETECTOR]) {
            let bare = nearest(name.rsplit('.').next().unwrap_or(name), ["KvweirDetector"]).is_some();
            if !bare && !name.starts_with("kvweir.") {
                self.found.notes.push(format!(
                    "{} ({name}): not kvweir's, its settings were not checked",
                    stands("backpressure_cls")
                ));
                return;
            }
            let message = format!("backpressure_cls = {name:?}: write \"{DETECTOR}\"");
            self.mistake(&stands("backpressure_cls"), "backpressure_cls", message);
        }
        let drops = self.policy(get(&merged, "policy_cls"), &stands("policy_cls"));
        merged.retain(|(name, _)| !matches!(name.as_str(), "backpressure_cls" | "policy_cls"));
        for m in read_backpressure(&merged, locality, drops).mistakes {
            let place = stands(&m.setting);
            self.push(m.within(&place));
        }
    }

    /// Whether the policy drops every store.
    fn policy(&mut self, given: Option<&Given>, place: &str) -> bool {
        let Some(given) = given.filter(|g| g.value != Value::Null) else {
            return false;
        };
        let Some(name) = given.text() else {
            self.mistake(
                place,
                "policy_cls",
                format!("policy_cls = {}: a name is wanted", given.shown),
            );
            return false;
        };
        if !is_ours(name, POLICIES) {
            let bare = name.rsplit('.').next().unwrap_or(name);
            let near = POLICIES.iter().copied().find(|p| {
                bare.starts_with("Kvweir") && nearest(bare, [p.rsplit('.').next().unwrap_or(p)]).is_some()
            });
            if near.is_some() || name.starts_with("kvweir.") {
                let hint =
                    near.map_or_else(|| POLICIES.join(" or "), |near| format!("did you mean '{near}'?"));
                self.mistake(
                    place,
                    "policy_cls",
                    format!("policy_cls = {}: {hint}", given.shown),
                );
            }
        }
        name == STOCK_DROP || name.ends_with(".DropStorePolicy") || name.ends_with(".KvweirDropPolicy")
    }
}

/// Whether `name` is one of ours, also by the module that holds it.
fn is_ours(name: &str, ours: &[&str]) -> bool {
    ours.contains(&name.replace(".vllm.pressure.", ".vllm.").as_str())
}
