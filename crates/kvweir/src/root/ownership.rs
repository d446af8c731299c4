//! Messages about roots that cannot be had: whose they are, and where.

use std::{io, path::Path};

use super::ledger::NewerLedger;
use crate::{
    error::{Error, ErrorKind, IoClass, classify},
    io::Disk,
};

/// The error of a root that cannot be written, with whose it is.
pub(crate) fn unusable(disk: &dyn Disk, root: &Path, e: io::Error) -> Error {
    if e.get_ref()
        .is_some_and(<dyn std::error::Error + Send + Sync>::is::<NewerLedger>)
    {
        return Error::new(ErrorKind::Invalid, "open root", e.to_string());
    }
    let whose = disk.stat(root).map_or(String::new(), |s| {
        format!(" (owner uid {}, mode {:04o})", s.uid, s.mode)
    });
    let me = rustix::process::geteuid().as_raw();
    let path = root.display();
    let hint = if classify(&e) == IoClass::Denied {
        " (with read_only the blocks there are served and nothing is stored)"
    } else {
        ""
    };
    Error::io(
        "open root",
        format!("{path}{whose} cannot be written by uid {me}{hint}"),
        e,
    )
    .with_kind(ErrorKind::Invalid)
}

/// This machine's name.
pub(crate) fn host_name() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}
