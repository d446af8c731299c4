//! The directory: who owns it, who may read it, who holds it, and whether its times make sense.

use std::path::PathBuf;

use super::Check;
use crate::{admin::Admin, error::classify, io::Stat};

/// Seconds by which a file's time may lie in the future.
const SKEW_S: i128 = 60;
/// No clock that is set is earlier: 2024-01-01.
const EARLIEST_S: u64 = 1_704_067_200;

impl Admin {
    pub(super) fn place(&self, sample: &[(PathBuf, Stat)]) -> Vec<Check> {
        let mut checks = vec![self.permissions()];
        let open = |s: &&(PathBuf, Stat)| s.1.mode & 0o077 != 0;
        let readable = sample.iter().filter(open).count();
        checks.push(match sample.iter().find(open) {
            None => Check::ok(
                "file modes",
                format!("{} files looked at, all private", sample.len()),
            ),
            Some((path, stat)) => Check::warn(
                "file modes",
                format!(
                    "{readable} of {} files can be reached by others, such as {} (mode {:04o})",
                    sample.len(),
                    self.short(path),
                    stat.mode
                ),
                "chmod 600 them: blocks are made of prompts (stock tiers write mode 0644)",
            ),
        });
        checks.push(self.times(sample));
        checks.push(self.who());
        checks
    }

    fn permissions(&self) -> Check {
        let me = rustix::process::geteuid().as_raw();
        match self.disk.stat(&self.root) {
            Err(e) => Check::bad(
                "root",
                format!("cannot be looked at: {e} ({:?})", classify(&e)),
                "give this user access to the directory and those above it",
            ),
            Ok(s) if s.uid != me && me != 0 => Check::bad(
                "root",
                format!("owned by uid {}, this is uid {me}", s.uid),
                "run as the engine's user, or chown the directory to it",
            ),
            Ok(s) if s.mode & 0o022 != 0 => Check::bad(
                "root",
                format!("mode {:04o}: others may write", s.mode),
                "chmod 700 it: whoever writes there decides what the model reads",
            ),
            Ok(s) if s.mode & 0o077 != 0 => Check::warn(
                "root",
                format!("mode {:04o}, uid {}: others may look in", s.mode, s.uid),
                "chmod 700 it: blocks are made of prompts",
            ),
            Ok(s) => Check::ok("root", format!("mode {:04o}, uid {}", s.mode, s.uid)),
        }
    }

    /// Ages decide what is trimmed first at start, so files from the future would never go.
    fn times(&self, sample: &[(PathBuf, Stat)]) -> Check {
        let now = self.clock.unix_seconds();
        let boot = std::fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap_or_default();
        let ahead = sample
            .iter()
            .map(|s| s.1.mtime_ns / 1_000_000_000 - i128::from(now))
            .max()
            .unwrap_or(0);
        if now < EARLIEST_S {
            return Check::bad(
                "clock",
                format!("{now} s since 1970"),
                "set the clock: ages of blocks decide what is evicted at start",
            );
        }
        if ahead > SKEW_S {
            return Check::warn(
                "clock",
                format!("the newest file looked at is {ahead} s ahead of the clock"),
                "set the clocks of all machines that write here (NTP): files from the future are evicted last",
            );
        }
        Check::ok("clock", format!("agrees with the files; boot {}", boot.trim()))
    }

    fn who(&self) -> Check {
        let holders = match self.see() {
            Ok(seen) => seen.holders,
            Err(e) => return Check::warn("holder", e.to_string(), "run as the engine's user"),
        };
        let live: Vec<_> = holders.iter().filter(|h| h.may_live()).collect();
        match live.first() {
            None => Check::ok("holder", "nobody holds the root"),
            Some(h) => Check::ok(
                "holder",
                format!(
                    "{} of {} members live, {} is {}",
                    live.len(),
                    holders.len(),
                    h.lock,
                    h.who()
                ),
            ),
        }
    }
}
