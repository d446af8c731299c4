//! What can be said about paths by looking, without making anything.

use std::{
    fs,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
};

use rustix::fs::Access;

use super::{origin::SettingError, replay::ReplaySettings};

impl ReplaySettings {
    /// Checks the root, the place of the report, and the memory.
    pub(super) fn check_paths(&self) -> Result<(), SettingError> {
        let machine = rustix::system::sysinfo();
        let memory = machine.totalram as u64 * u64::from(machine.mem_unit.max(1));
        if self.primary_bytes > memory && !self.hit_rate_only {
            let memory = crate::table::bytes(memory);
            return Err(self.refuse(
                "primary_bytes",
                &format!("is more than the {memory} of this machine"),
            ));
        }
        if let Some(root) = self.root.as_deref().filter(|_| !self.hit_rate_only) {
            self.check_dir("root", root)?;
        }
        let Some(report) = &self.report else { return Ok(()) };
        if report.is_dir() {
            return Err(self.refuse("report", "is a directory"));
        }
        let parent = match report.parent() {
            Some(p) if !p.as_os_str().is_empty() => p,
            _ => Path::new("."),
        };
        if !parent.is_dir() {
            return Err(self.refuse(
                "report",
                &format!("lies in {}, which is no directory", parent.display()),
            ));
        }
        self.check_writable("report", parent)
    }

    /// A directory one may write to, or a place where one may make it.
    fn check_dir(&self, key: &str, path: &Path) -> Result<(), SettingError> {
        if path.as_os_str().is_empty() {
            return Err(self.refuse(key, "is empty"));
        }
        let mut at: PathBuf = path.to_owned();
        loop {
            match fs::metadata(&at) {
                Ok(m) if m.is_dir() && self.read_only => return Ok(()),
                Ok(m) if m.is_dir() => return self.check_writable(key, &at),
                Ok(_) if at == path => return Err(self.refuse(key, "is a file, not a directory")),
                Ok(_) => {
                    return Err(self.refuse(key, &format!("lies below {}, which is a file", at.display())));
                }
                Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
                    at = match at.parent() {
                        Some(p) if !p.as_os_str().is_empty() => p.to_owned(),
                        _ => PathBuf::from("."),
                    };
                }
                Err(e) if e.kind() == std::io::ErrorKind::NotADirectory => {
                    at.pop();
                }
                Err(e) => return Err(self.refuse(key, &format!("cannot be looked at: {e}"))),
            }
        }
    }

    fn check_writable(&self, key: &str, dir: &Path) -> Result<(), SettingError> {
        let Err(errno) = rustix::fs::access(dir, Access::WRITE_OK | Access::EXEC_OK) else {
            return Ok(());
        };
        let (mode, owner) = fs::metadata(dir).map_or((0, 0), |m| (m.mode() & 0o7777, m.uid()));
        let uid = rustix::process::geteuid().as_raw();
        Err(self.refuse(
            key,
            &format!(
                "needs {} writable: uid {uid}, mode {mode:04o} of uid {owner} ({errno})",
                dir.display()
            ),
        ))
    }
}
