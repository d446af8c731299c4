//! Walks of a root, or of some of it, by the tier that opens it.

use crate::{
    error::Result,
    fs::shared::Shared,
    io::pool::usable_cpus,
    root::walk::{Found, Sweep, Walk},
};

pub(crate) fn root_level(s: &Shared) -> Result<(u64, u64)> {
    let mut level = None;
    with_walk(s, Sweep::All, &|_| {}, |w| level = Some(w.root_level()));
    level.unwrap_or(Ok((0, 0)))
}

pub(crate) fn with_walk<R>(
    s: &Shared,
    sweep: Sweep,
    found: &(dyn Fn(&mut [Found]) + Sync),
    run: impl FnOnce(&Walk<'_>) -> R,
) -> R {
    let own = s.ns.dir();
    run(&Walk {
        disk: &*s.disk,
        root: &s.params.root,
        own,
        block_len: s.params.block_len as u64,
        fs_block: s.params.fs_block,
        want_keys: s.params.keep_keys,
        threads: (usable_cpus() * 2).clamp(2, 16),
        sweep,
        found,
        number: &|dir| s.number_of(dir),
        stop: &s.stop,
        watch: None,
    })
}
