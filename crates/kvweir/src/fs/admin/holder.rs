//! Who holds a root. Locks decide: the exclusive `.kvweir.lock`, and `.kvweir/member-<n>.lock` of engines that share
//! a root. What a lock file says about its holder is for people. Stock tiers, and unbounded tiers of ours, hold no
//! lock and cannot be seen here.

use std::path::{Path, PathBuf};

use serde::Serialize;

use super::{
    super::lockfile::{LOCK_FILE, OWN_DIR, RootLock, host_name, read_holder},
    Admin,
};
use crate::{
    error::{Error, ErrorKind, IoClass, Result, classify},
    io::disk::OpenMode,
};

/// A lock of a root and who took it last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Holder {
    /// The lock file, from the root on.
    pub lock: String,
    /// What the holder wrote about itself, if anything.
    pub text: Option<String>,
    /// Its process, on its host.
    pub pid: Option<u32>,
    /// Its host.
    pub host: Option<String>,
    /// Whether the lock is held now; `None` if that cannot be found out.
    pub live: Option<bool>,
}

/// The right to change a root: no engine holds it, and none that wants the root alone can open it until this is
/// dropped.
#[derive(Debug)]
pub struct Claim {
    root: PathBuf,
    _lock: RootLock,
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
}

impl Admin {
    /// The locks of the root. Looking at a lock that is free takes it for a moment.
    ///
    /// # Errors
    /// The I/O error of listing the lock files.
    pub fn holders(&self) -> Result<Vec<Holder>> {
        let own = self.root.join(OWN_DIR);
        let mut members = Vec::new();
        match self.disk.list(&own, &mut |name, _| {
            if name.starts_with("member-") && name.ends_with(".lock") {
                members.push(own.join(name));
            }
        }) {
            Err(e) if classify(&e) != IoClass::Gone => {
                return Err(Error::io("list locks", own.display(), e));
            }
            _ => {}
        }
        members.sort_unstable();
        let exclusive = self.root.join(LOCK_FILE);
        let locks = std::iter::once(&exclusive).chain(&members);
        Ok(locks.filter_map(|l| self.holder(l)).collect())
    }

    fn holder(&self, lock: &Path) -> Option<Holder> {
        let file = match self.disk.open(lock, OpenMode::Read, false) {
            Err(e) if classify(&e) == IoClass::Gone => return None,
            r => r.ok(),
        };
        let text = file.as_deref().and_then(read_holder);
        let words = text.as_deref().unwrap_or_default().split_whitespace();
        let word_after = |word: &str| words.clone().skip_while(|w| *w != word).nth(1);
        Some(Holder {
            lock: self.short(lock),
            pid: word_after("pid").and_then(|p| p.parse().ok()),
            host: word_after("on").map(str::to_owned),
            live: file.and_then(|f| f.try_lock().ok()).map(|free| !free),
            text,
        })
    }

    /// Refuses a root that somebody holds, or may hold.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] with the holder's pid and host.
    pub fn require_idle(&self) -> Result<()> {
        let Some(h) = self.holders()?.into_iter().find(|h| h.live != Some(false)) else {
            return Ok(());
        };
        let who = h.text.unwrap_or_else(|| "another process".into());
        let root = self.root.display();
        let message = match h.live {
            Some(_) => format!("{root} is in use by {who} (lock {})", h.lock),
            None => format!(
                "{root}: lock {} cannot be read, so whether {who} uses it cannot be told",
                h.lock
            ),
        };
        Err(Error::new(ErrorKind::Busy, "change root", message))
    }

    /// Takes the root for as long as the claim lives.
    ///
    /// # Errors
    /// [`ErrorKind::Busy`] with the holder's pid and host, or the I/O error of the lock file.
    pub fn claim(&self) -> Result<Claim> {
        self.require_idle()?;
        let lock = RootLock::acquire(&*self.disk, &self.root)?;
        lock.name_holder(std::process::id(), &host_name())
            .map_err(|e| Error::io("name holder", self.root.display(), e))?;
        // engines that share a root came in between, if any did
        let members = self.holders()?;
        if let Some(h) = members
            .iter()
            .find(|h| h.lock != LOCK_FILE && h.live != Some(false))
        {
            let who = h.text.as_deref().unwrap_or("another process");
            let message = format!("{} is in use by {who} (lock {})", self.root.display(), h.lock);
            return Err(Error::new(ErrorKind::Busy, "change root", message));
        }
        Ok(Claim {
            root: self.root.clone(),
            _lock: lock,
        })
    }

    /// Whether an engine holds the root now, as far as can be told.
    pub(super) fn is_held(&self) -> Result<bool> {
        Ok(self.holders()?.iter().any(|h| h.live != Some(false)))
    }

    /// Whether a live writer holds this temporary.
    pub(super) fn is_being_written(&self, temp: &Path) -> bool {
        match self.disk.open(temp, OpenMode::Read, false) {
            Ok(f) => !f.try_lock().unwrap_or(true),
            Err(_) => false,
        }
    }
}
