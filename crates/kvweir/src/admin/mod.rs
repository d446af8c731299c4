//! Looking after a root from outside: what operators do beside engines. Knows the files' format; prints nothing.
//!
//! | file | what it does |
//! |---|---|
//! | `holder.rs`, `claim.rs` | who holds a root; holding it oneself, and giving its journals up |
//! | `survey.rs`, `identity.rs` | what lies in each namespace; the sizes and digests its files should have |
//! | `inspect.rs`, `keys.rs` | the numbers of a survey; the keys of a namespace's blocks |
//! | `check.rs`, `reader.rs` | one file against its trailer and name; all files, in parallel |
//! | `verify.rs` | removal of bad ones |
//! | `verification.rs`, `finding.rs` | what is reported; what is found, and how grave it is |
//! | `extents.rs`, `tables.rs` | extents of packed blocks: header and table; all those of a namespace |
//! | `check_extent.rs` | every slot against its record |
//! | `journals.rs` | block files and extents against the journals of members |
//! | `trim.rs` | oldest blocks first, down to a size |
//! | `gc.rs`, `shm.rs` | leftovers, namespaces out of use, shared memory of engines that are gone |
//! | `doctor/` | whether machine and directory suit |
//! | `import/` | trailers for blocks that a stock tier wrote |
//! | `spent.rs`, `notes.rs` | commands end where file descriptors or memory do; what they note of that |
//! | `temps.rs` | temporaries of commands |
//! | `convert/` | blocks from files into extents and back |
//!
//! Whatever removes or replaces files takes a [`Claim`]: the proof that no engine holds the root. Without one it only
//! tells what it would do. With its first change journals and ledger go, and the next start walks the root. Nothing is
//! removed but files and directories of the layout's own names (I1), and blocks only where they are old, provably wrong
//! (I2), or of a namespace the caller named the age of.
//!
//! ```
//! use kvweir::admin::{Admin, VerifyOptions};
//! # fn main() -> kvweir::Result<()> {
//! # let dir = tempfile::tempdir().unwrap();
//! # let root = dir.path();
//! let admin = Admin::new(root)?;
//! let report = admin.verify(&VerifyOptions::default(), &|_| {})?;
//! assert!(report.is_clean());
//! # Ok(()) }
//! ```

mod check;
mod check_extent;
mod claim;
mod convert;
mod doctor;
mod extents;
mod finding;
mod gc;
mod holder;
mod identity;
mod import;
mod inspect;
mod journals;
mod keys;
mod notes;
mod reader;
mod shm;
mod spent;
mod survey;
mod tables;
mod temps;
#[cfg(test)]
mod tests {
    mod extents;
}
mod trim;
mod verification;
mod verify;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use serde::Serialize;

use self::notes::Notes;
pub use self::{
    claim::Claim,
    convert::{ConvertOptions, Converted, ConvertedNamespace},
    doctor::{Check, Diagnosis, Level},
    finding::{Fault, Finding, Weight},
    gc::{Collected, GcOptions, GoneNamespace},
    holder::Holder,
    import::{ImportOptions, Imported, ImportedNamespace},
    inspect::{Inspection, Layouts, LedgerInfo, LedgerState, MemberInfo, NamespaceInfo, Writer},
    journals::JournalCheck,
    keys::Keys,
    shm::{RegionInfo, RegionState},
    trim::Trimmed,
    verification::{Repaired, Verification},
    verify::VerifyOptions,
};
use crate::{
    clock::{Clock, SystemClock},
    error::{Error, Result},
    io::{Disk, OsDisk, pool::usable_cpus},
    root::{
        dirs::Dirs,
        visitor::Watch,
        walk::{Sweep, Walk},
    },
    sync::{Mutex, lock},
};

/// A root to look after.
#[derive(Debug, Clone)]
pub struct Admin {
    root: PathBuf,
    /// What the caller gave.
    plain: Arc<dyn Disk>,
    /// The same, with notes of what runs out.
    disk: Arc<dyn Disk>,
    notes: Arc<Notes>,
    clock: Arc<dyn Clock>,
    threads: usize,
}

/// Files and the bytes they take.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Pile {
    /// How many.
    pub files: u64,
    /// Allocated bytes, as `du` counts them.
    pub bytes: u64,
}

impl Pile {
    fn add(&mut self, bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
    }
}

/// How far a long command is.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Blocks done.
    pub blocks: u64,
    /// Blocks in all.
    pub of_blocks: u64,
    /// Bytes read.
    pub bytes: u64,
}

/// Who is told how far a command is; called by many threads, once per block.
pub type OnProgress<'a> = &'a (dyn Fn(Progress) + Sync);

impl Admin {
    /// The bytes of which everything below the root takes a multiple.
    fn allocation_unit(&self) -> Result<u64> {
        let space = self.disk.space(&self.root);
        let said = space.map_err(|e| Error::io("ask for space", self.root.display(), e))?;
        Ok(crate::fs::settings::allocation_unit(
            &*self.disk,
            &self.root,
            said.block,
        ))
    }

    /// Looks after the directory `root`, which must exist.
    ///
    /// # Errors
    /// [`ErrorKind::Invalid`](crate::ErrorKind::Invalid) when it is no directory.
    pub fn new(root: impl AsRef<Path>) -> Result<Self> {
        let root = root.as_ref();
        let found = root
            .canonicalize()
            .map_err(|e| Error::invalid("look at root", format!("{}: {e}", root.display())))?;
        if !found.is_dir() {
            return Err(Error::invalid(
                "look at root",
                format!("{} is not a directory", root.display()),
            ));
        }
        Ok(Self {
            root: found,
            plain: Arc::new(OsDisk),
            disk: Arc::new(OsDisk),
            notes: Arc::default(),
            clock: SystemClock::shared(),
            threads: (usable_cpus() * 4).clamp(4, 16),
        })
    }

    /// Another disk than the operating system's.
    #[must_use]
    pub fn disk(mut self, disk: Arc<dyn Disk>) -> Self {
        self.plain = Arc::clone(&disk);
        self.disk = disk;
        self
    }

    /// Another clock than the system's.
    #[must_use]
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Threads that read; four times the usable CPUs, between 4 and 16, unless set.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.threads = threads.max(1);
        self
    }

    /// The directory.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Walks the root and changes nothing.
    fn walk(&self, threads: usize, watch: &dyn Watch) -> Result<()> {
        // numbers are given as names are met
        let names = Mutex::new(Vec::<String>::new());
        let number = |name: &str| {
            let mut names = lock(&names);
            let at = names.iter().position(|n| n == name).unwrap_or(names.len());
            if at == names.len() {
                names.push(name.to_owned());
            }
            u16::try_from(at).ok()
        };
        let walk = Walk {
            disk: &*self.disk,
            root: &self.root,
            // no namespace is served
            own: &[],
            fs_block: 1,
            want_keys: false,
            threads,
            sweep: Sweep::Member(u32::MAX),
            found: &|_| {},
            number: &number,
            stop: self.notes.stop(),
            watch: Some(watch),
        };
        walk.run(&Dirs::new())?;
        self.notes.check("walk", "")
    }

    /// `path` as people want to read it: relative to the root.
    fn short(&self, path: &Path) -> String {
        path.strip_prefix(&self.root)
            .unwrap_or(path)
            .display()
            .to_string()
    }

    /// Removes `dir` and the directories above it up to the namespace's own, as far as they are empty. Returns how
    /// many went and their allocated bytes.
    fn remove_empty(&self, dir: &Path) -> Pile {
        let mut gone = Pile::default();
        let mut at = Some(dir);
        while let Some(d) =
            at.filter(|d| d.parent() != Some(&*self.root) && **d != *self.root && d.starts_with(&self.root))
        {
            let bytes = self.disk.stat(d).map_or(0, |s| s.allocated);
            if self.disk.remove_dir(d).is_err() {
                break;
            }
            gone.add(bytes);
            at = d.parent();
        }
        gone
    }

    fn unix_ns(&self) -> i128 {
        i128::from(self.clock.unix_seconds()) * 1_000_000_000
    }
}

/// Seconds from `mtime_ns` to `now_ns`; zero for the future.
fn age_s(now_ns: i128, mtime_ns: i128) -> u64 {
    u64::try_from((now_ns - mtime_ns) / 1_000_000_000).unwrap_or(0)
}
