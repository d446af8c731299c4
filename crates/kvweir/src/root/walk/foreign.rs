//! What a walk only counts: files and directories of others, and what of ours holds no blocks.

use std::{ffi::OsStr, io, path::Path};

use super::{Survey, Walk};
use crate::{
    error::{Error, Result},
    io::disk::FileKind,
    root::{
        journal::parse_name,
        names::{CONFIG_FILE, STATE_DIR, is_namespace},
        visitor::Met,
    },
};

impl Walk<'_> {
    /// Counts a file or a whole directory that is not ours, at the larger of length and allocation.
    pub(super) fn count_foreign(&self, path: &Path, out: &mut Survey) -> Result<()> {
        if path == self.root.join(STATE_DIR) {
            return self.count_state(path, out);
        }
        let mut stack = vec![path.to_owned()];
        while let Some(p) = stack.pop() {
            let Some(stat) = self.look(&p)? else {
                continue;
            };
            let own = p.file_name().is_some_and(|n| n == CONFIG_FILE);
            self.tell(
                || match own || stat.kind == FileKind::Dir && self.is_config_dir(&p) {
                    true => Met::Own {
                        path: &p,
                        stat: &stat,
                    },
                    false => Met::Foreign {
                        path: &p,
                        stat: &stat,
                    },
                },
            );
            match stat.kind {
                FileKind::Dir => {
                    out.deep_bytes += stat.allocated;
                    match self.disk.list(&p, &mut |name, _| stack.push(p.join(name))) {
                        // somebody else's (`lost+found` of a mount point): counted as far as it can be seen
                        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => {
                            tracing::warn!(dir = %p.display(), %error, "a foreign directory cannot be read");
                            out.foreign_files += 1;
                        }
                        Err(e) if e.kind() != io::ErrorKind::NotFound => {
                            self.unreadable(&p, Error::io("list directory", p.display(), e))?;
                        }
                        _ => {}
                    }
                }
                FileKind::File => {
                    out.foreign_files += u64::from(!own);
                    out.deep_bytes += stat.counted(self.fs_block);
                }
                FileKind::Other => out.deep_bytes += stat.allocated,
            }
        }
        Ok(())
    }

    /// Counts the state directory and all below it: journals are their members' to count.
    fn count_state(&self, path: &Path, out: &mut Survey) -> Result<()> {
        let Some(stat) = self.look(path)? else {
            return Ok(());
        };
        self.tell(|| Met::Own { path, stat: &stat });
        out.common_bytes += stat.allocated;
        for (name, kind) in self.entries(path)?.unwrap_or_default() {
            let journal = kind == FileKind::File && name.to_str().and_then(parse_name).is_some();
            if journal && self.watch.is_none() {
                continue;
            }
            let at = path.join(&name);
            let Some(stat) = self.look(&at)? else { continue };
            self.tell(|| Met::Own {
                path: &at,
                stat: &stat,
            });
            out.common_bytes += match kind {
                FileKind::File => stat.counted(self.fs_block),
                FileKind::Dir => stat.allocated + self.own_below(&at)?,
                FileKind::Other => stat.allocated,
            };
        }
        Ok(())
    }

    /// Bytes of what lies below a directory in the state directory, where nothing of ours does; a watcher is told.
    fn own_below(&self, dir: &Path) -> Result<u64> {
        let mut bytes = 0;
        let mut stack = vec![dir.to_owned()];
        while let Some(d) = stack.pop() {
            for (name, _) in self.entries(&d)?.unwrap_or_default() {
                let path = d.join(name);
                let Some(stat) = self.look(&path)? else { continue };
                self.tell(|| Met::Own {
                    path: &path,
                    stat: &stat,
                });
                bytes += match stat.kind {
                    FileKind::File => stat.counted(self.fs_block),
                    FileKind::Dir | FileKind::Other => stat.allocated,
                };
                if stat.kind == FileKind::Dir {
                    stack.push(path);
                }
            }
        }
        Ok(bytes)
    }

    /// Whether `path` is the directory, just below the root, of a namespace's identity.
    fn is_config_dir(&self, path: &Path) -> bool {
        let name = path.file_name().and_then(OsStr::to_str);
        path.parent() == Some(self.root) && name.is_some_and(|n| is_namespace(&format!("{n}_r0")))
    }
}
