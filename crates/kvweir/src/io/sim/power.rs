//! A power loss: what was not synced is kept, cut, zeroed, put back or gone.

use std::{path::PathBuf, sync::Arc};

use super::{SimDisk, data::Data, tree::Node};
use crate::{
    io::PAGE,
    sync::{Mutex, lock},
};

/// What a device writes whole.
const SECTOR: usize = 512;

impl SimDisk {
    /// The power fails and comes back: what was not synced is kept, cut, zeroed, put back under its old name or gone,
    /// as `chance` says (a number below its argument).
    pub fn lose_power(&self, chance: &mut dyn FnMut(u64) -> u64) {
        let mut t = lock(&self.0);
        let files: Vec<(PathBuf, Arc<Mutex<Data>>)> = t
            .nodes
            .iter()
            .filter_map(|(p, n)| match n {
                Node::File(d) => Some((p.clone(), Arc::clone(d))),
                Node::Dir => None,
            })
            .collect();
        for (path, data) in files {
            let mut d = lock(&data);
            d.lock = None;
            if d.synced.as_ref() == Some(&d.bytes) {
                continue;
            }
            let before = d.taken();
            let mut gone = false;
            match chance(8) {
                0 => gone = true,
                1 => {
                    let keep = chance(d.bytes.len() as u64 + 1) as usize;
                    d.resize(keep, 0..0);
                }
                2 => {
                    let pages = d.bytes.len().div_ceil(4096) as u64;
                    let at = chance(pages.max(1)) as usize * 4096;
                    d.bytes.iter_mut().skip(at).take(4096).for_each(|b| *b = 0);
                }
                3 => {
                    if let Some(old) = d.renamed_from.take() {
                        t.nodes.remove(&path);
                        t.nodes.insert(old, Node::File(Arc::clone(&data)));
                    }
                }
                // sectors written anew are as they were before
                4 => {
                    let before = std::mem::take(&mut d.before);
                    for (page, old) in before {
                        let keeps = chance(256);
                        let Some(now) = d.bytes.get_mut(page * PAGE..) else {
                            continue;
                        };
                        let sectors = now.chunks_mut(SECTOR).zip(old.chunks(SECTOR));
                        for (n, (now, old)) in sectors.enumerate() {
                            if keeps >> n & 1 == 0
                                && let Some(now) = now.get_mut(..old.len())
                            {
                                now.copy_from_slice(old);
                            }
                        }
                    }
                }
                _ => {}
            }
            d.before.clear();
            let now = if gone { 0 } else { d.taken() };
            if gone {
                t.nodes.remove(&path);
            }
            t.allocated = t.allocated - before + now;
        }
    }
}
