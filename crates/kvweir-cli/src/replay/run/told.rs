//! What residency events told, against what lies below the root (I7).

use std::{collections::BTreeSet, path::Path};

use kvweir::{
    Key,
    admin::{Admin, Holder},
    events::{Event, EventKind, Medium},
    fs::Layout,
};

use super::life::Life;
use crate::settings::ReplaySettings;

/// The outcome of the comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Compared {
    /// Everything told of is there, and where that can be known nothing else is.
    Same,
    /// They differ: the first difference.
    Differs(String),
    /// What there should be cannot be known: why.
    NotChecked(String),
}

/// The blocks of the file tier, as its events tell.
#[derive(Debug, Default)]
pub(super) struct Told {
    /// Blocks whose last event says that they came.
    here: BTreeSet<Key>,
    /// Blocks whose last event says that they went.
    gone: BTreeSet<Key>,
    /// Who else used the root at the end of a life: its blocks may have become ours, some of which had gone.
    others: Option<String>,
}

impl Told {
    pub(super) fn take(&mut self, events: &[Event]) {
        for e in events.iter().filter(|e| e.medium == Medium::Storage) {
            let (to, from) = match e.kind {
                EventKind::Stored => (&mut self.here, &mut self.gone),
                EventKind::Removed => (&mut self.gone, &mut self.here),
            };
            from.remove(&e.key);
            to.insert(e.key.clone());
        }
    }

    /// A tier that owns its root tells all of it again when it is opened.
    pub(super) fn reopened(&mut self, settings: &ReplaySettings, root: &Path) {
        if settings.max_bytes.is_some() && !settings.read_only {
            // the next life may take them over, and the ledger then knows them no more
            let others = self
                .others
                .take()
                .or_else(|| others(&Admin::new(root).ok()?, settings));
            *self = Self {
                others,
                ..Self::default()
            };
        }
    }

    /// Compares with what `last` left.
    pub(super) fn compare(&self, settings: &ReplaySettings, last: &Life) -> Compared {
        let not = |why: &str| Compared::NotChecked(why.to_owned());
        if settings.read_only {
            return not("the root is read only, and others may change it");
        }
        if let Some(why) = &self.others {
            return not(why);
        }
        let admin = match Admin::new(&last.root) {
            Ok(admin) => admin,
            Err(e) => return Compared::NotChecked(e.to_string()),
        };
        if let Some(why) = others(&admin, settings) {
            return Compared::NotChecked(why);
        }
        let name = last.namespace_dir.file_name().unwrap_or_default();
        let there = match admin.keys(&name.to_string_lossy()) {
            Ok(there) => there,
            Err(e) => return Compared::NotChecked(e.to_string()),
        };
        // who came meanwhile may have evicted what was ours
        if let Some(why) = others(&admin, settings) {
            return Compared::NotChecked(why);
        }
        let packs = last.layout == Layout::Pack;
        let extents = there.unusable_extents.iter().filter(|_| packs);
        if let Some(first) = there.unreadable.iter().chain(extents).next() {
            return not(first);
        }
        let missing = |k: &&Key| !(there.files.contains(*k) || packs && there.packed.contains(*k));
        if let Some(key) = self.here.iter().find(missing) {
            return differs(
                key,
                "by its last event it is here, and nothing holds it",
                &last.namespace_dir,
            );
        }
        // without a bound nobody knows what else lies there
        if settings.max_bytes.is_none() {
            return Compared::Same;
        }
        if let Some(key) = there.files.iter().find(|k| !self.here.contains(*k)) {
            return differs(
                key,
                "by its last event it is not here, and it has a file",
                &last.namespace_dir,
            );
        }
        let unopened = last.unopened_extents();
        if packs && unopened > 0 {
            return Compared::NotChecked(format!(
                "{unopened} extents could not be opened, and no event tells of their blocks; see the tier's warnings, \
                 `ulimit -n` and `ulimit -v`"
            ));
        }
        // the record of a block that was evicted stays until its slot is taken again
        let untold = |k: &&Key| !self.here.contains(*k) && !self.gone.contains(*k);
        if let Some(key) = there.packed.iter().filter(|_| packs).find(untold) {
            return differs(
                key,
                "no event told of it, and a slot holds it",
                &last.namespace_dir,
            );
        }
        Compared::Same
    }
}

fn differs(key: &Key, what: &str, dir: &Path) -> Compared {
    Compared::Differs(format!("block {key}: {what} below {}", dir.display()))
}

/// Why what lies below the root may be another's doing, if it may.
fn others(admin: &Admin, settings: &ReplaySettings) -> Option<String> {
    match admin.holders() {
        Err(e) => Some(e.to_string()),
        Ok(holders) => {
            let other = holders.iter().find(|h| may_have_written(h, settings))?;
            Some(format!("{} uses the root too, or did", other.who()))
        }
    }
}

/// Whether what lies below the root may be another's doing. Whoever joined a bounded root stays in its ledger until the
/// next start.
fn may_have_written(h: &Holder, settings: &ReplaySettings) -> bool {
    let other = h.pid != Some(std::process::id());
    match settings.max_bytes {
        Some(_) => other,
        None => other && h.may_live(),
    }
}

#[cfg(test)]
mod tests {
    use kvweir::events::Locality;

    use super::*;

    fn event(n: u8, kind: EventKind, medium: Medium) -> Event {
        Event {
            seq: 0,
            key: Key::new(&[n; 36]).unwrap(),
            kind,
            medium,
            locality: Locality::Local,
        }
    }

    #[test]
    fn the_last_event_of_a_key_counts_and_other_media_do_not() {
        use EventKind::{Removed, Stored};
        let mut told = Told::default();
        told.take(&[
            event(1, Stored, Medium::Storage),
            event(2, Stored, Medium::Storage),
            event(2, Removed, Medium::Storage),
            event(3, Removed, Medium::Storage),
            event(3, Stored, Medium::Storage),
            event(4, Stored, Medium::Cpu),
        ]);
        let key = |n| Key::new(&[n; 36]).unwrap();
        assert_eq!(told.here, BTreeSet::from([key(1), key(3)]));
        assert_eq!(told.gone, BTreeSet::from([key(2)]));
    }
}
