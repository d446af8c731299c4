//! A check of a stanza under way: where it stands, and what it has found.

use serde::Serialize;

use super::{
    Mistake, Model, PrimaryFit,
    value::{Given, get},
};

/// Our package, as vLLM is told of it.
pub(super) const MODULE: &str = "kvweir.vllm";

pub(super) type Fields = [(String, Given)];

/// What a check of a stanza found.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize)]
pub struct Checked {
    /// All that must be changed.
    pub mistakes: Vec<Mistake>,
    /// What was left unchecked, and what may have been meant differently.
    pub notes: Vec<String>,
    /// Tiers of ours that were found.
    pub tiers: usize,
    /// Whether our manager is above them, or above those of others.
    pub manager: bool,
    /// Where each of them stands, and its directory.
    pub roots: Vec<(String, String)>,
    /// The primary against the longest prompt, where the numbers for it are known.
    pub primary: Option<PrimaryFit>,
}

/// A check of a stanza under way.
pub(super) struct Checking {
    pub(super) found: Checked,
    pub(super) model: Option<Model>,
}

/// `place.name`, or what there is of it.
pub(super) fn inside(place: &str, name: &str) -> String {
    if place.is_empty() {
        name.to_owned()
    } else {
        format!("{place}.{name}")
    }
}

pub(super) fn text<'a>(fields: &'a Fields, name: &str) -> Option<&'a str> {
    get(fields, name).and_then(Given::text)
}

impl Checking {
    pub(super) fn mistake(&mut self, place: &str, setting: &str, message: String) {
        let mut m = Mistake::new(setting, message);
        if !place.is_empty() {
            m = m.within(place);
        }
        self.push(m);
    }

    /// What two tiers share is reported once.
    pub(super) fn push(&mut self, mistake: Mistake) {
        if !self.found.mistakes.contains(&mistake) {
            self.found.mistakes.push(mistake);
        }
    }
}
