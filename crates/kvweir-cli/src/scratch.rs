//! Temporary directories of a run. Each has a lock that is held as long as the run lives; a directory whose lock is
//! free was left by a killed run, and the next one removes it. Threads share the removal, which tells how far it is.

use std::{
    fs::{self, File, Permissions},
    io,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    thread,
};

use rustix::fs::{FlockOperation, flock};

/// The file whose lock says that the directory is in use.
const LOCK: &str = "in-use";
/// Threads that remove; directories wait for the device, not for CPUs.
const THREADS: usize = 4;

/// A directory that goes with its owner.
#[derive(Debug)]
pub(crate) struct Scratch {
    path: PathBuf,
    lock: Option<File>,
}

impl Scratch {
    /// Makes a directory in `parent` whose name begins with `prefix`; removes those of that name that killed runs left
    /// there.
    pub(crate) fn make(parent: &Path, prefix: &'static str) -> io::Result<Self> {
        sweep(parent, prefix);
        let dir = tempfile::Builder::new()
            .prefix(prefix)
            .permissions(Permissions::from_mode(0o700))
            .tempdir_in(parent)?;
        // where nothing can be locked, nobody will take it for left behind
        let lock = take_lock(dir.path()).ok();
        Ok(Self {
            path: dir.keep(),
            lock,
        })
    }

    /// The directory.
    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Leaves it, for good.
    pub(crate) fn keep(mut self) -> io::Result<PathBuf> {
        if self.lock.take().is_some() {
            fs::remove_file(self.path.join(LOCK))?;
        }
        Ok(std::mem::take(&mut self.path))
    }

    /// Removes it; `tell` hears how many files have gone.
    pub(crate) fn remove(mut self, tell: &(dyn Fn(u64) + Sync)) -> io::Result<()> {
        let path = std::mem::take(&mut self.path);
        remove_tree(&path, tell)
    }
}

impl Drop for Scratch {
    fn drop(&mut self) {
        if self.path.as_os_str().is_empty() {
            return;
        }
        // on the way out with an error of its own
        let _ = remove_tree(&self.path, &|_| {});
    }
}

/// The lock is held before the file has its name: nobody ever sees it free.
fn take_lock(dir: &Path) -> io::Result<File> {
    let new = dir.join("in-use.new");
    let file = File::create_new(&new)?;
    let done = flock(&file, FlockOperation::NonBlockingLockExclusive)
        .map_err(io::Error::from)
        .and_then(|()| fs::rename(&new, dir.join(LOCK)));
    if done.is_err() {
        let _ = fs::remove_file(&new);
    }
    done.map(|()| file)
}

/// Removes directories of ours whose run has ended. What cannot be removed stays for the next one.
fn sweep(parent: &Path, prefix: &str) {
    let uid = rustix::process::geteuid().as_raw();
    for entry in fs::read_dir(parent).into_iter().flatten().flatten() {
        let is_ours = entry.file_name().to_string_lossy().starts_with(prefix)
            && entry.metadata().is_ok_and(|m| m.is_dir() && m.uid() == uid);
        // one without a lock was kept, or is being made or removed
        let lock = File::open(entry.path().join(LOCK)).ok().filter(|_| is_ours);
        if let Some(lock) = lock
            && flock(&lock, FlockOperation::NonBlockingLockExclusive).is_ok()
        {
            let _ = remove_tree(&entry.path(), &|_| {});
        }
    }
}

/// Removes everything below `root`, the lock and `root` itself last: if this is cut short, the rest is swept later.
fn remove_tree(root: &Path, tell: &(dyn Fn(u64) + Sync)) -> io::Result<()> {
    let (files, failed) = (AtomicU64::new(0), Mutex::new(None));
    let fail = |e: io::Error| {
        if e.kind() != io::ErrorKind::NotFound {
            failed
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .get_or_insert(e);
        }
    };
    let mut levels = vec![vec![root.to_owned()]];
    while let Some(level) = levels.last().filter(|l| !l.is_empty()) {
        let below = Mutex::new(Vec::new());
        share(level, |dir| {
            let entries = fs::read_dir(dir).map_err(&fail);
            for entry in entries.into_iter().flatten().flatten() {
                let path = entry.path();
                if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    below.lock().unwrap_or_else(PoisonError::into_inner).push(path);
                } else if dir != root || entry.file_name() != LOCK {
                    let _ = fs::remove_file(&path).map_err(&fail);
                    tell(files.fetch_add(1, Ordering::Relaxed) + 1);
                }
            }
        });
        levels.push(below.into_inner().unwrap_or_else(PoisonError::into_inner));
    }
    for level in levels.iter().skip(1).rev() {
        share(level, |dir| {
            let _ = fs::remove_dir(dir).map_err(&fail);
        });
    }
    let _ = fs::remove_file(root.join(LOCK)).map_err(&fail);
    let _ = fs::remove_dir(root).map_err(&fail);
    failed
        .into_inner()
        .unwrap_or_else(PoisonError::into_inner)
        .map_or(Ok(()), Err)
}

/// Calls `work` for all of `items`, by a few threads.
fn share(items: &[PathBuf], work: impl Fn(&Path) + Sync) {
    let at = AtomicUsize::new(0);
    let run = || {
        while let Some(item) = items.get(at.fetch_add(1, Ordering::Relaxed)) {
            work(item);
        }
    };
    thread::scope(|scope| {
        for _ in 1..THREADS.min(items.len()) {
            // without helpers it only takes longer
            let _ = thread::Builder::new()
                .name("kvweir-remove".into())
                .spawn_scoped(scope, run);
        }
        run();
    });
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fill(dir: &Path) {
        for n in 0..40 {
            let deep = dir.join(format!("a{}/b{n}", n % 3));
            fs::create_dir_all(&deep).unwrap();
            fs::write(deep.join("file"), b"x").unwrap();
        }
        fs::write(dir.join("file"), b"x").unwrap();
    }

    fn names(dir: &Path) -> Vec<String> {
        let mut names: Vec<_> = fs::read_dir(dir)
            .unwrap()
            .map(|e| e.unwrap().file_name().into_string().unwrap())
            .collect();
        names.sort();
        names
    }

    #[test]
    fn all_of_it_goes_and_is_counted() {
        let dir = tempfile::tempdir().unwrap();
        let scratch = Scratch::make(dir.path(), "x-").unwrap();
        fill(scratch.path());
        let most = AtomicU64::new(0);
        scratch
            .remove(&|n| _ = most.fetch_max(n, Ordering::Relaxed))
            .unwrap();
        assert_eq!(most.into_inner(), 41);
        assert_eq!(names(dir.path()), [""; 0]);
    }

    #[test]
    fn what_a_killed_run_left_is_swept_and_what_is_used_kept_or_not_ours_stays() {
        let dir = tempfile::tempdir().unwrap();
        let used = Scratch::make(dir.path(), "x-").unwrap();
        let kept = Scratch::make(dir.path(), "x-").unwrap().keep().unwrap();
        let dead = dir.path().join("x-dead");
        fs::create_dir(&dead).unwrap();
        fs::write(dead.join(LOCK), b"").unwrap();
        fill(&dead);
        let other = dir.path().join("y-dead");
        fs::create_dir(&other).unwrap();
        fs::write(other.join(LOCK), b"").unwrap();
        std::os::unix::fs::symlink(&other, dir.path().join("x-link")).unwrap();
        let new = Scratch::make(dir.path(), "x-").unwrap();
        assert!(!dead.exists());
        assert!(used.path().exists() && kept.exists() && other.join(LOCK).exists() && new.path().exists());
        drop((used, new));
        assert_eq!(names(dir.path()).len(), 3, "{:?}", names(dir.path()));
    }
}
