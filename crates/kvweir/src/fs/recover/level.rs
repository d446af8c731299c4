//! Walks of a root, or of some of it, by the member that opens it.

use crate::{
    error::Result,
    fs::shared::Shared,
    io::pool::usable_cpus,
    root::walk::{FoundFile, Sweep, Walk},
};

pub(crate) fn root_level(s: &Shared) -> Result<(u64, u64)> {
    let mut level = None;
    with_walk(s, Sweep::All, &|_| {}, |w| level = Some(w.root_level()));
    level.unwrap_or(Ok((0, 0)))
}

pub(crate) fn with_walk<R>(
    s: &Shared,
    sweep: Sweep,
    found: &(dyn Fn(&mut [FoundFile]) + Sync),
    run: impl FnOnce(&Walk<'_>) -> R,
) -> R {
    let own: Vec<(&str, u64)> = s.served.iter().map(|s| (s.ns.dir(), s.block_len)).collect();
    run(&Walk {
        disk: &*s.root.disk,
        root: &s.root.path,
        own: &own,
        fs_block: s.root.unit,
        want_keys: s.root.keep_keys,
        threads: (usable_cpus() * 2).clamp(2, 16),
        sweep,
        found,
        number: &|dir| s.root.number_of(dir),
        stop: &s.stop,
        watch: None,
    })
}
