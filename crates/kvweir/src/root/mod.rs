//! A bounded directory of counted files: the one place where such a file comes or goes. Knows no block, no slot and no
//! policy; what its files are for is its tiers' business.
//!
//! | file | what it holds |
//! |---|---|
//! | `mod.rs` | [`Root`]: the directory, as one member has it open |
//! | `file.rs` | a counted file comes ([`publish`](Root::publish)) or goes ([`remove`](Root::remove)) |
//! | `account.rs`, `accounts.rs` | the bytes of a member; what the root's files need of whoever keeps them |
//! | `names.rs`, `trailer.rs` | the names of files and directories; the page behind a block |
//! | `dirs/`, `leaves.rs` | directories: made, counted, removed; a number for each |
//! | `ledger/`, `member.rs`, `dead.rs` | who owns how much of a root's bytes |
//! | `journal/` | what a member wrote and removed, for its next life and for others |
//! | `walk/`, `visitor.rs` | what lies there; walks that change nothing |
//! | `around.rs`, `ownership.rs` | whose bound an engine would break; whose a root is |
//!
//! Keeps I1: what is reserved before it is written, counted while it lies there, and given back when it is gone,
//! journal, directories and temporaries included.

pub(crate) mod account;
pub(crate) mod accounts;
pub(crate) mod around;
pub(crate) mod dead;
pub(crate) mod dirs;
pub(crate) mod file;
pub(crate) mod journal;
pub(crate) mod leaves;
pub(crate) mod ledger;
pub(crate) mod member;
pub(crate) mod names;
pub(crate) mod ownership;
pub(crate) mod trailer;
pub(crate) mod visitor;
pub(crate) mod walk;

use std::{
    path::{Path, PathBuf},
    sync::Arc,
};

use self::{
    dirs::Dirs,
    journal::Journal,
    names::{Location, MAX_NAMESPACES, leaf_dir},
};
use crate::{
    io::Disk,
    namespace::dir_seed,
    sync::{
        Mutex, OnceLock,
        atomic::{AtomicBool, AtomicU64, Ordering},
        lock,
    },
    told::Told,
};

/// A root, open.
pub(crate) struct Root {
    pub(crate) disk: Arc<dyn Disk>,
    pub(crate) path: PathBuf,
    /// Unit of allocation of the file system, in bytes.
    pub(crate) unit: u64,
    pub(crate) bounded: bool,
    /// Nothing below it is changed.
    pub(crate) read_only: bool,
    /// Whether keys are written down, for events.
    pub(crate) keep_keys: bool,
    pub(crate) dirs: Dirs,
    /// What this member owns, told to the next owner. Bounded roots only.
    pub(crate) journal: OnceLock<Journal>,
    /// Whether direct I/O is worth trying on this file system.
    pub(crate) direct: AtomicBool,
    /// What the log was told of.
    pub(crate) told: Told,
    /// The directories of the namespaces that are served here.
    own: Vec<PathBuf>,
    /// Directories of all namespaces found below the root, and what their keys are hashed with; those served come
    /// first.
    namespaces: Mutex<Vec<(PathBuf, u64)>>,
    temps: AtomicU64,
    nonces: AtomicU64,
}

/// How a root is opened.
#[derive(Debug)]
pub(crate) struct RootSettings {
    pub(crate) path: PathBuf,
    pub(crate) unit: u64,
    pub(crate) bounded: bool,
    pub(crate) read_only: bool,
    pub(crate) keep_keys: bool,
    pub(crate) direct: bool,
    /// The directories of the namespaces that are served, and what their keys are hashed with.
    pub(crate) own: Vec<(String, u64)>,
    /// The first number of a temporary, unlike those of any other process and of our own last life; and the first
    /// nonce.
    pub(crate) first: (u64, u64),
}

impl Root {
    pub(crate) fn new(disk: Arc<dyn Disk>, settings: RootSettings) -> Self {
        let below = |(dir, seed): &(String, u64)| (settings.path.join(dir), *seed);
        let namespaces: Vec<(PathBuf, u64)> = settings.own.iter().map(below).collect();
        Self {
            disk,
            unit: settings.unit,
            bounded: settings.bounded,
            read_only: settings.read_only,
            keep_keys: settings.keep_keys,
            dirs: Dirs::new(),
            journal: OnceLock::new(),
            direct: AtomicBool::new(settings.direct),
            told: Told::default(),
            path: settings.path,
            own: namespaces.iter().map(|n| n.0.clone()).collect(),
            namespaces: Mutex::new(namespaces),
            temps: AtomicU64::new(settings.first.0),
            nonces: AtomicU64::new(settings.first.1),
        }
    }

    /// The directory of a namespace that is served here.
    pub(crate) fn own_dir(&self, number: u16) -> &Path {
        self.own.get(usize::from(number)).unwrap_or(&self.path)
    }

    /// The directories of all namespaces that are served here.
    pub(crate) fn own_dirs(&self) -> &[PathBuf] {
        &self.own
    }

    /// The directory of a namespace by number.
    pub(crate) fn namespace(&self, number: u16) -> Option<PathBuf> {
        Some(self.namespace_and_seed(number)?.0)
    }

    /// The same, and what its keys are hashed with.
    pub(crate) fn namespace_and_seed(&self, number: u16) -> Option<(PathBuf, u64)> {
        lock(&self.namespaces).get(usize::from(number)).cloned()
    }

    /// The names of all namespaces' directories, by number.
    pub(crate) fn namespace_names(&self) -> Vec<String> {
        let name = |(p, _): &(PathBuf, u64)| {
            p.file_name()
                .map(|n| n.to_string_lossy().into_owned())
                .unwrap_or_default()
        };
        lock(&self.namespaces).iter().map(name).collect()
    }

    /// The number of the namespace in directory `dir`, new where it is not known; `None` when there are too many.
    pub(crate) fn number_of(&self, dir: &str) -> Option<u16> {
        let path = self.path.join(dir);
        let mut all = lock(&self.namespaces);
        let at = all.iter().position(|p| p.0 == path).unwrap_or(all.len());
        let number = u16::try_from(at).ok().filter(|&n| n < MAX_NAMESPACES)?;
        if at == all.len() {
            all.push((path, dir_seed(dir)));
        }
        drop(all);
        if let Some(j) = self.journal.get() {
            j.name(number, dir);
        }
        Some(number)
    }

    /// The leaf directory of one of our own files.
    pub(crate) fn leaf_of(&self, at: &Location) -> PathBuf {
        leaf_dir(self.own_dir(at.namespace), at.prefix, at.leaf)
    }

    /// The path of one of our own files.
    pub(crate) fn path_of(&self, at: &Location) -> PathBuf {
        self.leaf_of(at).join(at.file_name())
    }

    /// A unique number.
    pub(crate) fn nonce(&self) -> u64 {
        self.nonces.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed)
    }

    fn next_temp(&self) -> u64 {
        self.temps.fetch_add(1, Ordering::Relaxed)
    }
}
