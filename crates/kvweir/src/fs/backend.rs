//! The local tier as the jobs see it.

use std::{io, ops::Range, time::Duration};

use crate::{
    block::{Fingerprint, Key},
    catalog::space::SpaceId,
    clock::Instant,
    fs::{core::Core, layouts::Layout, space::Space},
    io::pool::Worker,
    jobs::{Backend, LoadRun, Loads, Runner, StoreRun, Stores},
    root::names::fingerprint,
    sync::{Mutex, lock},
};

impl Backend for Space {
    type State = Core;

    fn runner(&self) -> &Runner {
        &self.runner
    }

    fn state(&self) -> &Mutex<Core> {
        &self.core
    }

    fn space(&self) -> SpaceId {
        self.id
    }

    fn fingerprint(&self, key: &Key) -> Fingerprint {
        fingerprint(key, self.ns.seed())
    }

    fn block_len(&self) -> usize {
        self.params.block_len
    }

    fn takes_stores(&self) -> bool {
        !self.root.read_only
    }

    fn batch(&self) -> usize {
        self.layouts.get(0).map_or(0, Layout::batch)
    }

    fn may_abandon_loads(&self) -> bool {
        self.bounce.on || self.runner.watchdog.slots_outlive_reports
    }

    /// `statvfs` of a network or FUSE file system is a round trip.
    fn probe(&self) -> io::Result<()> {
        let (disk, path) = (&self.root.disk, &self.root.path);
        let ask = || disk.space(path).and_then(|_| disk.stat(path)).map(|_| ());
        ask().or_else(|e| match e.kind() {
            // somebody removed it: a store would make it again
            io::ErrorKind::NotFound if !self.root.read_only => disk.create_dir(path).and_then(|()| ask()),
            _ => Err(e),
        })
    }

    fn look(&self, now: Instant, timeout: Option<Duration>) -> bool {
        self.root.told.tell(&self.params.name, now, false);
        let Some(timeout) = timeout else { return false };
        let mut probes = lock(&self.probes);
        let overdue = probes.oldest().is_some_and(|t| now.since(t) >= timeout);
        if overdue {
            probes.running.clear();
        }
        overdue
    }
}

impl Stores for Space {
    fn store(&self, run: &StoreRun<Self>, units: Range<usize>, worker: &mut Worker) {
        self.store_units(run, units, worker);
    }
}

impl Loads for Space {
    fn load(&self, run: &LoadRun<Self>, units: Range<usize>, worker: &mut Worker) {
        self.load_units(run, units, worker);
    }
}
