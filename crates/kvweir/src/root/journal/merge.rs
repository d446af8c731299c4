//! Folding the generations before a rotation into the snapshot of the one that it begins.

use std::{collections::HashSet, io, path::Path};

use super::{
    read::load,
    record::{FRAME_BYTES, Facts},
    rotate::Rotation,
    snapshot::Snapshot,
    state::FoldState,
    unusable::Unusable,
    write::SNAPSHOT_BASE,
};
use crate::{
    block::Key,
    io::Disk,
    root::names::DirClass,
    root::names::{DirKind, Prefix},
};

/// Folds the generations before `rotation` into one state, to be written as its snapshot.
pub(crate) fn merge(
    disk: &dyn Disk,
    root: &Path,
    rotation: &Rotation,
    fs_block: u64,
) -> Result<Merged, Unusable> {
    let h = rotation.header();
    Ok(Merged(
        load(disk, root, h.member, fs_block, h.generation.wrapping_sub(1))?.state,
    ))
}

/// The state that a snapshot is made of.
pub(crate) struct Merged(FoldState);

impl Merged {
    /// Upper limit of the snapshot's bytes.
    pub(crate) fn limit(&self) -> u64 {
        let s = &self.0;
        let (mut blocks, mut keys) = (0, 0);
        for o in s.blocks.iter() {
            blocks += 1;
            keys += o.key.as_ref().map_or(0, |k| k.as_bytes().len());
        }
        let dirs = s.leaves.iter().count() + s.highs.len() + s.tops.len();
        let classes: HashSet<(u16, DirKind)> = s.leaves.rows().map(|(ns, _, leaf, _)| (ns, leaf)).collect();
        let names: usize = s.namespaces.iter().map(String::len).max().unwrap_or(0) + FRAME_BYTES + 8;
        let fixed = SNAPSHOT_BASE as usize + (classes.len() + s.namespaces.len()) * names;
        (fixed + blocks * (FRAME_BYTES + 48) + keys + dirs * (FRAME_BYTES + 12)) as u64
    }

    /// Writes everything, least recently used first. `number` gives the writer's number of a namespace.
    pub(crate) fn write(self, out: &mut Snapshot, number: &dyn Fn(&str) -> Option<u16>) -> io::Result<()> {
        let mut s = self.0;
        let numbers: Vec<Option<u16>> = s.namespaces.iter().map(|n| number(n)).collect();
        let of = |ns: u16| {
            let n = numbers.get(usize::from(ns)).copied().flatten();
            n.ok_or(io::Error::from(io::ErrorKind::InvalidData))
        };
        let blocks = std::mem::take(&mut s.blocks).into_order();
        let mut alone = s.leaves.clone();
        for o in &blocks {
            let place = (o.namespace, o.prefix, o.leaf);
            alone.set(place, 0);
            let facts = Facts {
                trailer: o.trailer,
                bad: o.bad,
                cost: o.cost,
                written_at: o.written_at,
                dirs: [
                    s.leaves.get(place),
                    s.highs.get(&(o.namespace, o.prefix.high())).copied().unwrap_or(0),
                    s.tops.get(&o.namespace).copied().unwrap_or(0),
                ],
            };
            let class = DirClass {
                namespace: of(o.namespace)?,
                leaf: o.leaf,
            };
            out.stored(
                o.fp,
                (class, o.prefix),
                facts,
                o.key.as_deref().map(Key::as_bytes),
            )?;
        }
        let mut dir = |ns: u16, leaf: DirKind, level: u16, prefix: Prefix, cost: u32| -> io::Result<()> {
            let namespace = of(ns)?;
            out.dir(DirClass { namespace, leaf }, level, prefix, cost)
        };
        for ((ns, prefix, leaf), cost) in alone.iter() {
            dir(ns, leaf, 2, prefix, cost)?;
        }
        for (&(ns, high), &cost) in &s.highs {
            dir(ns, DirKind::Keyed, 1, Prefix(high << 8), cost)?;
        }
        for (&ns, &cost) in &s.tops {
            dir(ns, DirKind::Keyed, 0, Prefix(0), cost)?;
        }
        Ok(())
    }
}
