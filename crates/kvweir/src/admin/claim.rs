//! The right to change a root. Whoever has it holds the ledger's lock after no member was found alive, and members
//! join under that lock: engines that open meanwhile wait for 5 s and are refused.
//!
//! Journals tell what members left, and leases are made of it; a command that removed or added files would make both
//! wrong (I1). So before its first change a claim gives them up: the ledger first, durably, which alone lets the next
//! start walk the tree; then the journals. From then on the root is right whenever the command ends or is killed. A
//! claim that changes nothing leaves all of them.

use std::{
    io,
    path::{Path, PathBuf},
    sync::Arc,
};

use super::Admin;
use crate::{
    error::{Error, IoClass, Result, classify},
    io::{Disk, DiskFile, disk::OpenMode},
    root::{
        around::refuse_above,
        journal::parse_name,
        ledger::give_up,
        member::{OPEN_PATIENCE, forget_files},
        names::STATE_DIR,
        ownership::unusable,
    },
    sync::{Mutex, lock},
};

/// The right to change a root: no engine that has a bound holds it, and none can open it until this is dropped.
#[derive(Debug)]
pub struct Claim {
    root: PathBuf,
    disk: Arc<dyn Disk>,
    /// Held for life.
    ledger: Box<dyn DiskFile>,
    /// Whether journals and ledger are given up.
    changes: Mutex<bool>,
}

impl Claim {
    /// Refuses a claim of another root.
    pub(super) fn covers(&self, admin: &Admin) -> Result<()> {
        if self.root == admin.root {
            return Ok(());
        }
        Err(Error::invalid(
            "change root",
            format!("the claim is of {}, not of this root", self.root.display()),
        ))
    }

    /// To be called before any file of the root is made, replaced or removed.
    pub(super) fn change(&self) -> Result<()> {
        let mut changes = lock(&self.changes);
        if *changes {
            return Ok(());
        }
        let fault = |e: io::Error| Error::io("give up the journals", self.root.display(), e);
        give_up(&*self.ledger).map_err(fault)?;
        forget_files(&*self.disk, &self.root, &|_| true).map_err(fault)?;
        *changes = true;
        Ok(())
    }
}

impl Admin {
    /// Takes the root for as long as the claim lives. Makes `.kvweir/ledger`, empty, where there is none.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`](crate::ErrorKind::Busy) with the holder's pid and host, also where a root above is held, or
    /// the I/O error of the ledger's file.
    pub fn claim(&self) -> Result<Claim> {
        self.command("claim root", |_| String::new(), Self::take)
    }

    fn take(&self) -> Result<Claim> {
        self.require_idle()?;
        // what is added here would break a bound above, and what is removed may be its blocks
        refuse_above(&self.disk, &self.root, false)?;
        let ledger = self.ledger();
        let fault = |e: io::Error| unusable(&*self.disk, &self.root, e);
        match self.disk.create_dir(&ledger.dir()) {
            Err(e) if e.kind() != io::ErrorKind::AlreadyExists => return Err(fault(e)),
            _ => {}
        }
        let Some(file) = ledger.hold(OPEN_PATIENCE).map_err(fault)? else {
            self.require_idle()?;
            return Err(self.claimed_by_another());
        };
        // engines came in between, if any did
        self.refuse_held(&self.see_unlocked()?)?;
        Ok(Claim {
            root: self.root.clone(),
            disk: Arc::clone(&self.disk),
            ledger: file,
            changes: Mutex::new(false),
        })
    }

    /// Whether a live writer holds this temporary.
    pub(super) fn is_being_written(&self, temp: &Path) -> bool {
        match self.disk.open(temp, OpenMode::Read, false) {
            Ok(f) => !f.try_lock().unwrap_or(true),
            // what cannot be looked at may be written
            Err(e) => classify(&e) != IoClass::Gone,
        }
    }

    /// Whether this is a journal or snapshot, which goes with the first change.
    pub(super) fn is_journal(&self, path: &Path) -> bool {
        path.parent() == Some(&*self.root.join(STATE_DIR))
            && path
                .file_name()
                .and_then(|n| n.to_str())
                .is_some_and(|n| parse_name(n).is_some())
    }
}
