//! Whether a machine and a directory suit a file tier. Each check says what was found and, unless all is well, what to
//! do. Nothing is changed: the one file made has no name and is gone when it is closed.

mod check;
mod device;
mod layout;
mod limits;
mod place;
mod unit;

use std::{
    fs::File,
    path::{Path, PathBuf},
};

pub use self::check::{Check, Diagnosis, Level};
use super::Admin;
use crate::{
    error::Result,
    io::{Stat, disk::FileKind},
};

/// File descriptors that checks may need at once.
const SPARE: usize = 8;
/// Files whose modes and times are looked at.
const SAMPLE: usize = 200;

impl Admin {
    /// Looks at machine and directory. Where the ledger tells a bound, all files are counted against it.
    ///
    /// # Errors
    /// The system's, where file descriptors or memory run out: nothing can be told then.
    pub fn doctor(&self) -> Result<Diagnosis> {
        self.command("doctor", |_| String::new(), Self::look_around)
    }

    fn look_around(&self) -> Result<Diagnosis> {
        // a check that tries something would take a lack of descriptors for its own failure
        let spare: std::io::Result<Vec<_>> = (0..SPARE).map(|_| File::open("/dev/null")).collect();
        if let Err(e) = spare {
            self.notes.note(Path::new("/dev/null"), &e);
            self.notes.check("doctor", "")?;
        }
        let sample = self.sample();
        let mut checks = self.place(&sample);
        checks.extend(device::checks(&self.root, sample.first().map(|s| &*s.0)));
        checks.push(self.layout());
        checks.push(self.unit());
        checks.extend(self.bound_check()?);
        checks.extend(limits::checks());
        Ok(Diagnosis {
            root: self.root.display().to_string(),
            level: checks.iter().map(|c| c.level).max().unwrap_or(Level::Ok),
            checks,
        })
    }

    /// Whether the bound of the ledger is kept.
    fn bound_check(&self) -> Result<Option<Check>> {
        let what = "bound";
        let Some(bound) = self.see()?.page().map(|p| p.head.bound) else {
            return Ok(None);
        };
        let content = self.survey(None)?;
        let above = self.above_bound(Some(bound), content.bytes())?;
        let size = bytesize::ByteSize::b;
        if above > 0 {
            return Ok(Some(Check::bad(
                what,
                format!("du is {} ABOVE the bound of {}", size(above), size(bound)),
                "members count less than there is: end the engines, run `kvweir verify ROOT --repair --yes`, and start \
                 them again: the start walks, counts and trims",
            )));
        }
        if let Some((_, first)) = content.unreadable.first() {
            return Ok(Some(Check::warn(
                what,
                format!(
                    "{} places cannot be read, such as {first}",
                    content.unreadable.len()
                ),
                "what lies there is in no account: run it as the engine's user, and look at the device (dmesg)",
            )));
        }
        let found = format!("{} of {}", size(content.bytes()), size(bound));
        Ok(Some(Check::ok(what, found)))
    }

    /// Some files below the root, found without walking all of it.
    fn sample(&self) -> Vec<(PathBuf, Stat)> {
        let mut files = Vec::new();
        let mut stack = vec![self.root.clone()];
        // directories are many and small: a bound on them is a bound on time
        let mut left = SAMPLE * 4;
        while let Some(dir) = stack.pop().filter(|_| files.len() < SAMPLE && left > 0) {
            left -= 1;
            let mut names = Vec::new();
            // what cannot be read is another check's business
            let _ = self.disk.list(&dir, &mut |name, _| names.push(dir.join(name)));
            for path in names.into_iter().take(SAMPLE) {
                match self.disk.stat(&path) {
                    Ok(s) if s.kind == FileKind::Dir => stack.push(path),
                    Ok(s) if s.kind == FileKind::File && files.len() < SAMPLE => files.push((path, s)),
                    _ => {}
                }
            }
        }
        files
    }
}
