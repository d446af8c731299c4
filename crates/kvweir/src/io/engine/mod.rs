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
mod contract;
mod fixed;
mod flight;
mod kind;
mod probe;
mod ring;
mod run;
#[cfg(test)]
mod tests;
mod threads;

pub use self::{
    choose::Engines,
    contract::{DEPTH, Ended, Engine, Tally},
    kind::EngineKind,
};
pub use probe::probe;
pub use ring::RingEngine;
pub use run::{Piece, ReadRun, Run, WriteRun};
pub use threads::ThreadEngine;
