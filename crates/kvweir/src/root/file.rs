//! A counted file comes or goes. It is begun in the journal, its directories are made, it is written under a temporary
//! name that nobody else uses and renamed, and told as stored, or as gone where that fails (I1, I2, I6). Whatever
//! failed on the way is given back; what cannot be removed stays counted.

use std::{
    io,
    path::{Path, PathBuf},
};

use super::{
    Root,
    accounts::Accounts,
    journal::{Facts, units},
    names::{DirClass, Location, Prefix, leaf_dir, name_fingerprint, temp_name},
};
use crate::{
    block::{Fingerprint, Key},
    budget::Change,
    error::{IoClass, classify},
    io::{DiskFile, Stat, disk::OpenMode},
};

/// A file that is to be published in a namespace that is served here.
pub(crate) struct NewFile<'a> {
    /// What the index will know it by.
    pub(crate) fp: Fingerprint,
    pub(crate) at: &'a Location,
    /// Whose it is, if events need that.
    pub(crate) key: Option<&'a Key>,
    /// Whether it ends in a trailer page.
    pub(crate) trailer: bool,
    /// Bytes that it is counted as; `None`: what it then takes.
    pub(crate) cost: Option<u64>,
    /// Seconds since the Unix epoch.
    pub(crate) written_at: u64,
}

/// Who writes a file.
pub(crate) trait Author {
    /// Writes it in directory `dir` and renames it.
    ///
    /// # Errors
    /// Nothing of it is left then but what [`Root::discard`] counts.
    fn write(&mut self, dir: &Path) -> io::Result<Stat>;

    /// The device is full. Returns whether something went since, so that it is worth another try.
    fn make_space(&mut self, _error: &io::Error) -> bool {
        false
    }

    /// Whether anybody still wants it: some step may have hung.
    ///
    /// # Errors
    /// Nobody does; it is taken back.
    fn is_wanted(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// A file that was published.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Counted {
    /// Bytes that it is to be counted as.
    pub(crate) cost: u64,
    /// What its directories came to.
    pub(crate) dirs: Change,
}

/// A file that may be removed.
pub(crate) struct FileRef<'a> {
    pub(crate) fp: Fingerprint,
    pub(crate) class: DirClass,
    pub(crate) prefix: Prefix,
    /// Its key, where that is kept: else its name is looked for.
    pub(crate) key: Option<&'a Key>,
}

impl Root {
    /// Makes a file. What it takes is reserved before, and counted by the caller, with `dirs`.
    ///
    /// # Errors
    /// It was not made, and nothing of it is counted.
    pub(crate) fn publish(
        &self,
        accounts: &dyn Accounts,
        file: &NewFile<'_>,
        author: &mut dyn Author,
    ) -> io::Result<Counted> {
        let at = file.at;
        let place = at.class();
        if let Some(j) = self.journal.get() {
            let begin = || j.begin(accounts, file.fp, place);
            begin().or_else(|e| match classify(&e) {
                IoClass::Full if author.make_space(&e) => begin(),
                _ => Err(e),
            })?;
        }
        let (own, ns) = (self.own_dir(at.namespace), at.namespace);
        let enter = || self.dirs.enter(&*self.disk, own, ns, at.prefix, at.leaf);
        let (mut change, mut entered) = enter();
        if matches!(&entered, Err(e) if classify(e) == IoClass::Full && author.make_space(e)) {
            let again = enter();
            change.add(again.0);
            entered = again.1;
        }
        if let Err(e) = entered {
            self.took_nothing(accounts, file, change);
            return Err(e);
        }
        let dir = self.leaf_of(at);
        let written = match author.write(&dir) {
            // somebody removed the directory behind our back
            Err(e) if classify(&e) == IoClass::Gone => self
                .dirs
                .remake(&*self.disk, own, ns, at.prefix, at.leaf)
                .and_then(|()| author.write(&dir)),
            Err(e) if classify(&e) == IoClass::Full && author.make_space(&e) => author.write(&dir),
            r => r,
        };
        change.add(match &written {
            Ok(_) => self.dirs.grown(&*self.disk, own, ns, at.prefix, at.leaf),
            Err(_) => self.dirs.leave(&*self.disk, own, ns, at.prefix, at.leaf),
        });
        let stat = written.inspect_err(|_| self.took_nothing(accounts, file, change))?;
        let cost = file.cost.unwrap_or_else(|| stat.counted(self.unit));
        self.journal_stored(accounts, file, cost);
        if let Err(late) = author.is_wanted()
            && self.take_back(at)
        {
            change.add(self.dirs.leave(&*self.disk, own, ns, at.prefix, at.leaf));
            self.took_nothing(accounts, file, change);
            return Err(late);
        }
        Ok(Counted { cost, dirs: change })
    }

    /// Makes a temporary in `dir` for a file that will be called `name`.
    ///
    /// # Errors
    /// Those of making a file.
    pub(crate) fn create_temp(
        &self,
        dir: &Path,
        name: &str,
        direct: bool,
    ) -> io::Result<(PathBuf, Box<dyn DiskFile>)> {
        loop {
            let temp = dir.join(temp_name(name, self.next_temp()));
            match self.disk.open(&temp, OpenMode::CreateNew, direct) {
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => {}
                Err(e) if direct && classify(&e) == IoClass::Invalid => {
                    // some file systems make the file before refusing the flag
                    let _ = self.disk.remove_file(&temp);
                    return Err(e);
                }
                r => return r.map(|file| (temp, file)),
            }
        }
    }

    /// Removes a temporary; what cannot be removed stays counted until it can.
    pub(crate) fn discard(&self, accounts: &dyn Accounts, temp: PathBuf, bytes: u64) {
        match self.disk.remove_file(&temp) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => accounts.leave_behind(temp, bytes),
            _ => {}
        }
    }

    /// Tries again to remove temporaries that could not be removed; returns whether any went.
    pub(crate) fn retry_leftovers(&self, accounts: &dyn Accounts) -> bool {
        let (mut any, mut stuck) = (false, Vec::new());
        for (path, bytes) in accounts.take_leftovers() {
            match self.disk.remove_file(&path) {
                Err(e) if e.kind() != io::ErrorKind::NotFound => stuck.push((path, bytes)),
                _ => {
                    accounts.shrink(bytes);
                    any = true;
                }
            }
        }
        accounts.keep_leftovers(stuck);
        any
    }

    /// Removes a file; returns what its directories came to.
    ///
    /// # Errors
    /// It is still there.
    pub(crate) fn remove(&self, accounts: &dyn Accounts, file: &FileRef<'_>) -> io::Result<Change> {
        if self.read_only {
            return Ok(Change::default());
        }
        let Some((namespace, seed)) = self.namespace_and_seed(file.class.namespace) else {
            return Ok(Change::default());
        };
        let (leaf, place) = (file.class.leaf, (file.class, file.prefix));
        let dir = leaf_dir(&namespace, file.prefix, leaf);
        let name = match file.key {
            Some(k) => Ok(Some(Location::of(k).file_name())),
            None => self.find_name(&dir, file, seed),
        };
        if let Some(j) = self.journal.get()
            && let Err(error) = j.evict(accounts, file.fp, place)
        {
            // the next owner will miss the block and find that out; room is needed now
            tracing::debug!(%error, "a removal is not in the journal");
        }
        let gone = name.and_then(|name| match name {
            Some(name) => self.disk.remove_file(&dir.join(name)),
            None => Ok(()),
        });
        if let Err(e) = gone
            && e.kind() != io::ErrorKind::NotFound
        {
            return Err(e);
        }
        let change = self
            .dirs
            .leave(&*self.disk, &namespace, file.class.namespace, file.prefix, leaf);
        self.journal_gone(accounts, file.fp, place);
        Ok(change)
    }

    /// Tells the journal that nothing of a file is there any more.
    pub(crate) fn journal_gone(
        &self,
        accounts: &dyn Accounts,
        fp: Fingerprint,
        (class, prefix): (DirClass, Prefix),
    ) {
        if let Some(j) = self.journal.get() {
            let costs = self.dirs.costs(class.namespace, prefix, class.leaf);
            j.gone(accounts, fp, (class, prefix), costs);
        }
    }

    fn journal_stored(&self, accounts: &dyn Accounts, file: &NewFile<'_>, cost: u64) {
        let Some(j) = self.journal.get() else { return };
        let facts = Facts {
            trailer: file.trailer,
            bad: false,
            cost: units(cost),
            written_at: u32::try_from(file.written_at).unwrap_or(u32::MAX),
            dirs: self.dirs.costs(file.at.namespace, file.at.prefix, file.at.leaf),
        };
        let key = file.key.filter(|_| self.keep_keys).map(Key::as_bytes);
        if let Err(error) = j.stored(accounts, file.fp, file.at.class(), facts, key) {
            // its begin stands: the next owner looks
            tracing::debug!(%error, "a file is in doubt in the journal");
        }
    }

    /// A file was not made and nothing of it is left; where a temporary is stuck its leaf stays in doubt.
    fn took_nothing(&self, accounts: &dyn Accounts, file: &NewFile<'_>, change: Change) {
        if !accounts.has_leftovers() {
            self.journal_gone(accounts, file.fp, file.at.class());
        }
        accounts.apply(change);
    }

    /// Removes what was published after its job was given up. Where it cannot go it stays, and is what was to be
    /// stored, since all of it was written before.
    fn take_back(&self, at: &Location) -> bool {
        match self.disk.remove_file(&self.path_of(at)) {
            Err(e) => e.kind() == io::ErrorKind::NotFound,
            Ok(()) => true,
        }
    }

    /// The name, in its leaf directory, of a file of which only the fingerprint is known. Leaves hold a handful of
    /// files, so this costs about as much as the removal itself; it is what keeps full keys out of memory.
    fn find_name(&self, dir: &Path, file: &FileRef<'_>, seed: u64) -> io::Result<Option<String>> {
        let mut found = None;
        self.disk.list(dir, &mut |name, _| {
            let is_it = |n: &&str| name_fingerprint(n, file.prefix, file.class.leaf, seed) == Some(file.fp);
            if found.is_none() {
                found = name.to_str().filter(is_it).map(str::to_owned);
            }
        })?;
        Ok(found)
    }
}
