//! Roots to open: many block files of the stock layout, made with many threads.

use std::{
    io,
    path::Path,
    sync::atomic::{AtomicU64, Ordering},
};

use anyhow::Result;

use crate::keys::key;

/// Threads that make files.
const THREADS: u64 = 8;

/// Makes files of the first `count` keys of `seed` below the namespace's directory `ns`; `write` makes the one at a
/// path. A wrong byte would be found on load; for opening a root only names and sizes matter.
pub(crate) fn make(
    ns: &Path,
    seed: u64,
    count: u64,
    write: impl Fn(&Path) -> io::Result<()> + Sync,
) -> Result<()> {
    std::fs::create_dir_all(ns)?;
    let next = AtomicU64::new(0);
    let work = || -> Result<()> {
        loop {
            let n = next.fetch_add(1, Ordering::Relaxed);
            if n >= count {
                return Ok(());
            }
            let name = key(seed, n)?.to_string();
            let (high, rest) = name.split_at(3);
            let (low, _) = rest.split_at(2);
            let (hash, _) = name.split_at(64);
            let dir = ns.join(high).join(format!("{low}_g0"));
            std::fs::create_dir_all(&dir)?;
            write(&dir.join(format!("{hash}.bin")))?;
        }
    };
    std::thread::scope(|s| {
        let all: Vec<_> = (0..THREADS).map(|_| s.spawn(work)).collect();
        all.into_iter()
            .try_for_each(|t| t.join().map_err(|_| anyhow::anyhow!("a thread panicked"))?)
    })
}
