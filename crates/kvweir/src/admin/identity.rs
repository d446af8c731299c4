//! The identity of a namespace's directory: the `config.json` beside it, believed only if it yields the directory's
//! very name.

use std::{io, path::Path};

use serde_json::{Map, Value};

use crate::{
    error::{IoClass, classify},
    io::{
        Disk,
        disk::{OpenMode, read_full},
    },
    namespace::Namespace,
    root::names::CONFIG_FILE,
};

/// Longest identity that is read.
const MAX_CONFIG: usize = 16 << 20;

/// What `config.json` says of a namespace.
#[derive(Debug, Clone)]
pub(super) enum Config {
    /// The identity of this directory.
    Known(Box<Namespace>, Map<String, Value>),
    /// There is none.
    Missing,
    /// It cannot be used, for this reason.
    Unusable(String),
}

impl Config {
    /// Reads the identity of the directory `name` below `root`.
    pub(super) fn read(disk: &dyn Disk, root: &Path, name: &str) -> Self {
        let Some((base, rank)) = split(name) else {
            return Self::Unusable("the directory has no rank".into());
        };
        let path = root.join(base).join(CONFIG_FILE);
        let text = match read_text(disk, &path) {
            Ok(t) => t,
            Err(e) if classify(&e) == IoClass::Gone => return Self::Missing,
            Err(e) => return Self::Unusable(format!("{CONFIG_FILE} cannot be read: {e}")),
        };
        let fields: Map<String, Value> = match serde_json::from_slice(&text) {
            Ok(f) => f,
            Err(e) => return Self::Unusable(format!("{CONFIG_FILE} is not an identity: {e}")),
        };
        match Namespace::from_fields(fields.clone(), rank, "") {
            Ok(ns) if ns.dir() == name => Self::Known(Box::new(ns), fields),
            Ok(ns) => Self::Unusable(format!("{CONFIG_FILE} is the identity of {}", ns.dir())),
            Err(e) => Self::Unusable(format!("{CONFIG_FILE}: {}", e.message())),
        }
    }

    pub(super) fn namespace(&self) -> Option<&Namespace> {
        match self {
            Self::Known(ns, _) => Some(ns),
            _ => None,
        }
    }
}

/// The bytes of an identity's file.
pub(super) fn read_text(disk: &dyn Disk, path: &Path) -> io::Result<Vec<u8>> {
    let f = disk.open(path, OpenMode::Read, false)?;
    let len = usize::try_from(f.stat()?.len).unwrap_or(MAX_CONFIG);
    let mut text = vec![0; len.min(MAX_CONFIG)];
    let n = read_full(&*f, &mut text, &mut [])?;
    text.truncate(n);
    Ok(text)
}

/// The directory of the identity, and the rank.
pub(super) fn split(name: &str) -> Option<(&str, u64)> {
    let (base, rank) = name.rsplit_once("_r")?;
    Some((base, rank.parse().ok()?))
}
