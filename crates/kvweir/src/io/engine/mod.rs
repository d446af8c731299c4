//! Engines: who moves a batch of [runs](Run) between files and memory. A worker of the pool owns one engine, hands it
//! a batch and gets it back when every run has ended (I5): whole, at the end of the file, or with the system's error.
//! [`ThreadEngine`] asks with one system call after another and works everywhere; [`RingEngine`] has many runs under
//! way at once through io_uring, where the kernel lets it.
//!
//! ```
//! # fn main() -> kvweir::Result<()> {
//! use kvweir::io::{Disk, OsDisk, disk::OpenMode, engine::{EngineKind, Engines, ReadRun, Run}};
//! # let path = std::env::temp_dir().join(format!("kvweir-engine-{}", std::process::id()));
//! # std::fs::write(&path, b"0123456789").unwrap();
//! let file = OsDisk.open(&path, OpenMode::Read, false).unwrap();
//! let mut engine = Engines::choose(EngineKind::Threads).engine();
//! let (mut a, mut b) = ([0; 4], [0; 4]);
//! let mut batch = [ReadRun::new(&*file, 0).with(&mut a), ReadRun::new(&*file, 8).with(&mut b)];
//! engine.read(&mut batch);
//! let [first, second] = batch.map(Run::into_result);
//! assert_eq!((first.unwrap(), second.unwrap()), (4, 2), "the file ends there");
//! assert_eq!((&a, &b[..2]), (b"0123", &b"89"[..]));
//! # std::fs::remove_file(&path).unwrap();
//! # Ok(()) }
//! ```

mod choose;
mod fixed;
mod flight;
mod kind;
mod probe;
mod ring;
mod run;
#[cfg(test)]
mod tests;
mod threads;

use std::fmt::Debug;

pub use self::{choose::Engines, kind::EngineKind};
pub use probe::probe;
pub use ring::RingEngine;
pub use run::{Piece, ReadRun, Run, WriteRun};
pub use threads::ThreadEngine;

use super::Region;

/// Runs that a [`RingEngine`] has under way at once unless told otherwise.
pub const DEPTH: u32 = 64;

/// Moves batches of runs. One thread at a time uses an engine.
pub trait Engine: Debug + Send {
    /// Its word in settings, as it really works: `threads` or `io_uring`.
    fn name(&self) -> &'static str;

    /// Reads; returns when every run of `batch` has ended, and not before. Runs that have ended already are left alone.
    fn read(&mut self, batch: &mut [ReadRun<'_>]) {
        self.read_each(batch, &mut |_, _| ());
    }

    /// As [`read`](Self::read), and tells `ended` of each run that it ended, at once, while others are still under way
    /// where it can: so what has come can be worked on in the meantime. Told with all runs and the number of the one.
    fn read_each(&mut self, batch: &mut [ReadRun<'_>], ended: &mut Ended<'_>);

    /// Whether it has several runs of a batch under way at once, so that it pays to cut a large read into some.
    fn overlaps(&self) -> bool {
        false
    }

    /// Writes; returns when every run of `batch` has ended, and not before. Runs that have ended already are left alone.
    fn write(&mut self, batch: &mut [WriteRun<'_>]);

    /// Tells the system of memory that will be used again and again, so that it need not be looked up each time. All
    /// of it is then resident and pinned for the life of the engine, which holds a clone of the region. `false` where
    /// that is not to be had: transfers work all the same.
    fn register(&mut self, region: &Region) -> bool {
        let _ = region;
        false
    }

    /// What it has done so far.
    fn tally(&self) -> Tally {
        Tally::default()
    }
}

/// Whom [`Engine::read_each`] tells.
pub type Ended<'f> = dyn FnMut(&[ReadRun<'_>], usize) + 'f;

/// What an engine has done.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Tally {
    /// Operations handed to a ring.
    pub submitted: u64,
    /// Those of them in registered memory.
    pub fixed: u64,
    /// System calls that handed operations over or waited for them.
    pub enters: u64,
    /// Runs ended by plain calls although there is a ring: their file has no descriptor, or the ring broke.
    pub called: u64,
    /// Registrations of memory that the system refused.
    pub refused: u64,
}
