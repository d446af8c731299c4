//! The tables of a namespace's extents, all of them.

use std::collections::HashSet;

use crate::{
    admin::{
        Admin,
        extents::{Packed, known, map_parallel},
        survey::Facts,
    },
    block::Fingerprint,
};
use foldhash::fast::FixedState;

impl Admin {
    /// Reads the tables of a namespace's extents. What cannot be read goes to `unreadable`.
    pub(super) fn packed(&self, facts: &Facts, unreadable: &mut Vec<String>) -> Packed {
        let all = map_parallel(self.threads, &facts.extent_files, |files| {
            known(&*self.disk, files).map_err(|e| format!("{}: {e}", self.short(files.path())))
        });
        let mut out = Packed::default();
        let mut keys: HashSet<Fingerprint, FixedState> = HashSet::default();
        for k in all {
            match k {
                Ok(Some(k)) => {
                    out.slots += u64::from(k.header.slots);
                    out.records += k.records;
                    out.times.extend(k.times);
                    keys.extend(k.keys);
                }
                Ok(None) => out.unusable += 1,
                Err(why) => {
                    out.unusable += 1;
                    unreadable.push(why);
                }
            }
        }
        out.blocks = keys.len() as u64;
        out
    }
}
